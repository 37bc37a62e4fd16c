//! The certificate or bare key that a peer has shown in its TLS handshake. The TLS library has
//! verified the handshake's signature.

use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::Refusal;

/// The holder of a verified certificate, or of a bare public key (RFC 7250).
#[derive(Debug)]
pub(crate) struct Holder {
    /// The last common name in the certificate's subject; a bare key has none.
    common_name: Option<String>,
}

impl Holder {
    /// Of a chain in DER, end-entity first; `None` for a peer that has shown none.
    ///
    /// The TLS library looks at the times of a certificate in a full handshake only. Resumed sessions and
    /// long connections outlive them, so they are looked at again.
    ///
    /// # Errors
    /// When it is neither a certificate nor a key, or its times are over or yet to come.
    pub(crate) fn of(chain: &[Box<[u8]>], now_ms: u64) -> Result<Option<Self>, Refusal> {
        let Some(first) = chain.first() else {
            return Ok(None);
        };
        let Ok((_, certificate)) = x509_parser::parse_x509_certificate(first) else {
            return match SubjectPublicKeyInfo::from_der(first) {
                Ok(_) => Ok(Some(Self { common_name: None })),
                Err(_) => Err(Refusal::Certificate),
            };
        };
        let seconds = i64::try_from(now_ms / 1000).unwrap_or(i64::MAX);
        let validity = certificate.validity();
        let times = validity.not_before.timestamp()..=validity.not_after.timestamp();
        if !times.contains(&seconds) {
            return Err(Refusal::Certificate);
        }
        let common_name = common_name_of(&certificate);
        Ok(Some(Self { common_name }))
    }

    /// The common name, of any form.
    pub(crate) fn common_name(&self) -> Option<&str> {
        self.common_name.as_deref()
    }

    /// The common name as a user name; `None` where there is none.
    ///
    /// # Errors
    /// When the common name can't be a user's: it is empty, too long, or has control characters.
    pub(crate) fn user_name(&self) -> Result<Option<String>, Refusal> {
        match &self.common_name {
            Some(name) if sterna_auth::is_user_name(name) => Ok(Some(name.clone())),
            Some(_) => Err(Refusal::Nameless),
            None => Ok(None),
        }
    }
}

/// The common name in the subject of a certificate that the TLS library has verified, also of one that has expired.
pub(crate) fn common_name(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    common_name_of(&certificate)
}

fn common_name_of(certificate: &X509Certificate<'_>) -> Option<String> {
    let name = certificate.subject().iter_common_name().last()?;
    Some(name.as_str().ok()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subjects_common_name_is_read_while_the_certificate_is_valid() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["x".to_owned()]).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "device-7");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        let chain: [Box<[u8]>; 1] = [certificate.der().as_ref().into()];
        let at = |now_s: u64| Holder::of(&chain, now_s * 1000);
        let holder = at(1_700_000_000).unwrap().unwrap();
        assert_eq!(holder.user_name().unwrap().as_deref(), Some("device-7"));
        for now_s in [1_500_000_000, 1_900_000_000] {
            assert_eq!(at(now_s).unwrap_err(), Refusal::Certificate);
        }
        assert!(Holder::of(&[], 0).unwrap().is_none());
        let nonsense: [Box<[u8]>; 1] = [b"nonsense".as_slice().into()];
        assert_eq!(Holder::of(&nonsense, 0).unwrap_err(), Refusal::Certificate);
        let bare: [Box<[u8]>; 1] = [rcgen::PublicKeyData::subject_public_key_info(&key).into()];
        let holder = Holder::of(&bare, 0).unwrap().unwrap();
        assert_eq!((holder.common_name(), holder.user_name()), (None, Ok(None)));
    }
}
