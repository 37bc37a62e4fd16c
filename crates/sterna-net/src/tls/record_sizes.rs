//! Records as small as a client asks for. A device with little memory has a buffer for a few hundred bytes, and a record
//! can be read only when all of it is there.
//!
//! The library has one size for a whole configuration, so there is a configuration for each size. It does not tell of the
//! extensions that ask for a size (RFC 6066, section 4, and RFC 8449), and does not echo them.

use std::sync::Arc;

use rustls::ServerConfig;

use super::config::FULL_RECORD_BYTES;

/// Sizes that clients can ask for, in bytes of plaintext. Smaller records would cost more than they are worth.
const SIZES: [u16; 5] = [512, 1024, 2048, 4096, 8192];
/// The header of a record, which is part of the library's size.
const HEADER_BYTES: usize = 5;

/// The configurations of a listener by the size of records.
#[derive(Debug)]
pub(crate) struct BySize {
    /// For clients that ask for nothing.
    usual: Arc<ServerConfig>,
    usual_bytes: u16,
    /// The smaller ones, ascending.
    smaller: Vec<(u16, Arc<ServerConfig>)>,
}

impl BySize {
    /// Configurations like `config`, with records of at most `most_bytes` of plaintext.
    pub(crate) fn new(config: &ServerConfig, most_bytes: u16) -> Self {
        let sized = |bytes: u16| {
            let mut config = config.clone();
            config.max_fragment_size =
                (bytes < FULL_RECORD_BYTES).then_some(usize::from(bytes) + HEADER_BYTES);
            Arc::new(config)
        };
        let smaller = SIZES.into_iter().filter(|bytes| *bytes < most_bytes);
        Self {
            usual: sized(most_bytes),
            usual_bytes: most_bytes,
            smaller: smaller.map(|bytes| (bytes, sized(bytes))).collect(),
        }
    }

    /// The configuration for a client that asks for records of at most this size, or for none.
    pub(crate) fn of(&self, asked_bytes: Option<u16>) -> Arc<ServerConfig> {
        let Some(asked_bytes) = asked_bytes.filter(|bytes| *bytes < self.usual_bytes) else {
            return Arc::clone(&self.usual);
        };
        let mut smaller = self.smaller.iter().rev();
        let fitting = smaller.find(|(bytes, _)| *bytes <= asked_bytes);
        let found = fitting.or_else(|| self.smaller.first());
        Arc::clone(found.map_or(&self.usual, |(_, config)| config))
    }

    /// The application protocols (ALPN) that are served.
    pub(crate) fn protocols(&self) -> &[Vec<u8>] {
        &self.usual.alpn_protocols
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{Certificates, Identity, TlsConfig};

    #[test]
    fn a_client_gets_what_it_asks_for_and_no_less_than_the_smallest() {
        let made = rcgen::generate_simple_self_signed(vec!["a".into()]).expect("certificate");
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).expect("pem");
        let certificates = Certificates::new(vec![identity]).expect("usable");
        let config = TlsConfig::new(certificates, &[]).for_tcp().expect("config");
        for (most, asked, bytes) in [
            (16_384, None, None),
            (16_384, Some(16_384), None),
            (16_384, Some(512), Some(512)),
            (16_384, Some(1_000), Some(512)),
            (16_384, Some(100), Some(512)),
            (1_000, None, Some(1_000)),
            (1_000, Some(4_096), Some(1_000)),
            (1_000, Some(600), Some(512)),
            (512, Some(100), Some(512)),
        ] {
            let found = BySize::new(&config, most).of(asked).max_fragment_size;
            let bytes = bytes.map(|bytes: usize| bytes + HEADER_BYTES);
            assert_eq!(found, bytes, "{most} {asked:?}");
        }
    }
}
