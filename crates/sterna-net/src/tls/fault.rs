//! The fault of a TLS handshake in our words.

use std::fmt::Write as _;

use rustls::{CipherSuite, Error, InvalidMessage, PeerIncompatible};
use sterna_tls::Owner;

use super::authority::last_refused;
use super::hello::Hello;
use crate::foreign::spoken;
use crate::handshake::{HandshakeFault, alert_detail, alpn_detail, protocol_names};

/// The fault behind an error of the library's. `first` is the start of what the client has sent, `hello` what it offers, if
/// that was read, and `served` are the listener's protocols (ALPN).
pub(crate) fn classify(
    error: &Error,
    first: &[u8],
    hello: Option<&Hello>,
    served: &[Vec<u8>],
) -> (HandshakeFault, String) {
    let whose = last_refused();
    let offered = |what: fn(&Hello) -> String| hello.map_or_else(|| "others".to_owned(), what);
    match error {
        Error::NoApplicationProtocol => {
            let detail = alpn_detail(&offered(protocols), served);
            (HandshakeFault::Alpn, detail)
        }
        Error::AlertReceived(alert) => (HandshakeFault::Alert, alert_detail((*alert).into())),
        Error::PeerIncompatible(why) => incompatible(why, hello, &offered),
        Error::NoCertificatesPresented => (
            HandshakeFault::NoClientCertificate,
            "the client shows no certificate, and has to".to_owned(),
        ),
        // A server looks at no certificates but those of clients.
        Error::InvalidCertificate(why) => {
            let mut detail = sterna_tls::refused(Owner::Client, why);
            if let Some(whose) = whose {
                let _ = write!(detail, ": {whose}");
            }
            (HandshakeFault::ClientCertificate, detail)
        }
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) if !first.is_empty() => not_tls(first),
        Error::FailedToGetCurrentTime | Error::FailedToGetRandomBytes => {
            (HandshakeFault::Internal, error.to_string())
        }
        _ => (HandshakeFault::Malformed, error.to_string()),
    }
}

fn incompatible(
    why: &PeerIncompatible,
    hello: Option<&Hello>,
    offered: &dyn Fn(fn(&Hello) -> String) -> String,
) -> (HandshakeFault, String) {
    let no_common = |what: &str| {
        let of_client = offered(ciphers);
        (
            HandshakeFault::Ciphers,
            format!("no common {what}; cipher suites of the client: {of_client}"),
        )
    };
    let version = || {
        let spoken = offered(Hello::versions);
        let detail = format!("no common version of TLS: the client speaks {spoken}");
        (HandshakeFault::Version, detail)
    };
    // An old client lacks much that the library asks for earlier.
    if hello.is_some_and(|hello| !hello.shares_version) {
        return version();
    }
    if hello.is_some_and(|hello| !hello.shares_cipher) {
        return no_common("cipher suite");
    }
    match why {
        PeerIncompatible::NoCipherSuitesInCommon => no_common("cipher suite"),
        PeerIncompatible::NoKxGroupsInCommon
        | PeerIncompatible::NamedGroupsExtensionRequired
        | PeerIncompatible::NoEcPointFormatsInCommon
        | PeerIncompatible::UncompressedEcPointsRequired
        | PeerIncompatible::KeyShareExtensionRequired => no_common("key exchange"),
        PeerIncompatible::NoSignatureSchemesInCommon
        | PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon
        | PeerIncompatible::SignatureAlgorithmsExtensionRequired => {
            no_common("signature algorithm")
        }
        PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled
        | PeerIncompatible::Tls13RequiredForQuic
        | PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::ServerDoesNotSupportTls12Or13
        | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig => version(),
        other => (
            HandshakeFault::Ciphers,
            format!("the client is not compatible: {other:?}"),
        ),
    }
}

/// The protocols (ALPN) that a client names.
fn protocols(hello: &Hello) -> String {
    protocol_names(hello.protocols.iter().map(AsRef::as_ref))
}

/// The cipher suites that a client offers.
fn ciphers(hello: &Hello) -> String {
    let name = |number: &u16| {
        let suite = CipherSuite::from(*number);
        let name = suite.as_str().map(str::to_owned);
        name.unwrap_or_else(|| format!("0x{number:04x}"))
    };
    let mut text = (hello.ciphers.iter())
        .map(name)
        .collect::<Vec<_>>()
        .join(", ");
    let more = hello.all_ciphers - hello.ciphers.len();
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// The thing that came instead of TLS, by its first bytes.
fn not_tls(first: &[u8]) -> (HandshakeFault, String) {
    let is_text = first
        .iter()
        .take(8)
        .all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    let what = match first {
        [high, _, 1, ..] if high & 0x80 != 0 => "SSL 2.0",
        [22, 2, ..] => "an old version of SSL",
        _ => match spoken(first) {
            Some(protocol) => &format!("plain {protocol}"),
            None if is_text && first.len() >= 4 => "plain text",
            None => "something else",
        },
    };
    let fault = if what.contains("SSL") {
        HandshakeFault::Version
    } else {
        HandshakeFault::NotTls
    };
    (
        fault,
        format!("this listener speaks TLS, and the client {what}"),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tls::hello::FirstRecord;

    #[test]
    fn what_is_not_tls_is_named() {
        let error = Error::InvalidMessage(InvalidMessage::InvalidContentType);
        for (first, fault, word) in [
            (
                &b"\x10\x0c\0\x04MQTT"[..],
                HandshakeFault::NotTls,
                "plain MQTT",
            ),
            (b"GET / HTTP/1.1\r\n", HandshakeFault::NotTls, "plain HTTP"),
            (b"AMQP\0\x01\0\0", HandshakeFault::NotTls, "plain AMQP"),
            (b"\x80\x2e\x01\0\x02", HandshakeFault::Version, "SSL 2.0"),
            (b"\0", HandshakeFault::NotTls, "something else"),
        ] {
            let (found, detail) = classify(&error, first, None, &[]);
            assert_eq!(found, fault, "{detail}");
            assert!(detail.ends_with(word) || detail.contains(word), "{detail}");
        }
    }

    /// The first flight of a client of the library's.
    fn flight(extra: &[u8]) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"x-one".to_vec(), b"x\"two".to_vec()];
        let name = "broker.example".try_into().expect("a name");
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("the flight");
        bytes.extend_from_slice(extra);
        // The extensions are last, so more of them can be put behind.
        let added = extra.len() as u16;
        let mut raise = |at: usize| {
            let number = u16::from_be_bytes([bytes[at], bytes[at + 1]]) + added;
            bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
        };
        raise(3);
        raise(7);
        let ciphers = 11 + 32 + 1 + 32;
        let compression =
            ciphers + 2 + usize::from(u16::from_be_bytes([bytes[ciphers], bytes[ciphers + 1]]));
        let at = compression + 2;
        let number = u16::from_be_bytes([bytes[at], bytes[at + 1]]) + added;
        bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    fn hello(extra: &[u8]) -> Hello {
        match FirstRecord::of(&flight(extra)) {
            FirstRecord::Hello(hello) => *hello,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_client_offers_is_read() {
        let hello = hello(&[]);
        assert_eq!(protocols(&hello), "x-one, x\\\"two");
        assert_eq!(hello.versions(), "TLS 1.3, TLS 1.2");
        assert!(
            ciphers(&hello).starts_with("TLS13_AES_"),
            "{}",
            ciphers(&hello)
        );
        assert!(ciphers(&hello).ends_with(" more"), "{}", ciphers(&hello));
        assert_eq!(hello.record_bytes, None);
    }

    /// RFC 6066, section 4, and RFC 8449, section 4.
    #[test]
    fn the_size_of_records_that_a_client_asks_for_is_read() {
        for (code, bytes) in [(1, Some(512)), (4, Some(4096)), (0, None), (5, None)] {
            assert_eq!(hello(&[0, 1, 0, 1, code]).record_bytes, bytes, "{code}");
        }
        assert_eq!(hello(&[0, 28, 0, 2, 1, 0]).record_bytes, Some(255));
        assert_eq!(hello(&[0, 28, 0, 2, 0, 63]).record_bytes, None);
        let both = [0, 1, 0, 1, 1, 0, 28, 0, 2, 4, 0];
        assert_eq!(hello(&both).record_bytes, Some(1023));
    }

    #[test]
    fn the_suites_of_the_library_are_known() {
        let provider = rustls::crypto::ring::default_provider();
        let suites = provider.cipher_suites.iter();
        let mut served: Vec<u16> = suites.map(|suite| suite.suite().into()).collect();
        served.sort_unstable();
        assert_eq!(served, crate::tls::hello::SERVED_CIPHERS);
        assert!(hello(&[]).shares_cipher && hello(&[]).shares_version);
    }

    #[test]
    fn any_cut_and_any_byte_is_taken() {
        let bytes = flight(&[0, 1, 0, 1, 1]);
        for cut in 0..bytes.len() {
            assert_eq!(FirstRecord::of(&bytes[..cut]), FirstRecord::Incomplete);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = FirstRecord::of(&changed);
            }
        }
        assert_eq!(FirstRecord::of(b"\x10\x0c\0\x04MQTT"), FirstRecord::Other);
        assert_eq!(FirstRecord::of(b"GET / HTTP/1.1"), FirstRecord::Other);
        assert_eq!(FirstRecord::of(b""), FirstRecord::Incomplete);
    }
}
