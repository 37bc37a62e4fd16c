//! Why a peer's certificate is refused, in words.

use std::fmt;
use std::time::Duration;

use rustls::CertificateError;
use rustls_pki_types::UnixTime;

/// The end whose certificate it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A client's, which a server has looked at.
    Client,
    /// A server's, which a client has looked at.
    Server,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "the client's certificate",
            Self::Server => "the server's certificate",
        })
    }
}

/// The sentence about a certificate that was refused.
#[must_use]
pub fn refused(owner: Owner, error: &CertificateError) -> String {
    let said = match error {
        // A server's log has the date, so that lines about one certificate are alike.
        CertificateError::Expired | CertificateError::ExpiredContext { .. }
            if owner == Owner::Client =>
        {
            "is out of date".to_owned()
        }
        CertificateError::NotValidYetContext { .. } if owner == Owner::Client => {
            "is not valid yet: is the clock of this host right?".to_owned()
        }
        CertificateError::Expired => "is out of date".to_owned(),
        CertificateError::ExpiredContext { time, not_after } => {
            format!("is out of date since {}", span(*not_after, *time))
        }
        CertificateError::NotValidYet => {
            "is not valid yet: is the clock of this host right?".to_owned()
        }
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "is not valid yet, for another {}: is the clock of this host right?",
            span(*time, *not_before)
        ),
        CertificateError::Revoked => "is revoked".to_owned(),
        CertificateError::UnknownIssuer => {
            "is signed by no authority that is trusted here (UnknownIssuer)".to_owned()
        }
        CertificateError::BadSignature => {
            "is not signed by the authority that it names (BadSignature)".to_owned()
        }
        CertificateError::NotValidForName => "is for other names".to_owned(),
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } if presented.is_empty() => format!(
            "names no host (subjectAltName), so it is not valid for {}; the common name does not count",
            expected.to_str()
        ),
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let names: Vec<&str> = presented.iter().map(|name| plain(name)).collect();
            let names = names.join(", ");
            format!("is not valid for {}, but for {names}", expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            let use_name = match owner {
                Owner::Client => "clientAuth",
                Owner::Server => "serverAuth",
            };
            format!("is for another purpose: its extended key usage has no {use_name}")
        }
        CertificateError::UnhandledCriticalExtension => {
            "has a critical extension that is not known here".to_owned()
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "is signed with an algorithm that is not taken, such as SHA-1, or with a short key"
                .to_owned()
        }
        CertificateError::ExpiredRevocationList
        | CertificateError::ExpiredRevocationListContext { .. }
        | CertificateError::UnknownRevocationStatus => {
            "cannot be judged: the revocation list is out of date".to_owned()
        }
        CertificateError::BadEncoding => "is damaged".to_owned(),
        CertificateError::ApplicationVerificationFailure => "is not one that is known".to_owned(),
        // The verifier's other errors have no variant of their own.
        other => match format!("{other:?}") {
            text if text.contains("UnsupportedCertVersion") => format!(
                "is X.509 version 1, without the names and uses that TLS needs: {}",
                crate::MAKE_CERTIFICATE
            ),
            text if text.contains("CaUsedAsEndEntity") => {
                "is that of an authority (CA:TRUE), and stands for nobody: let the authority sign another one"
                    .to_owned()
            }
            text => format!("is refused: {text}"),
        },
    };
    format!("{owner} {said}")
}

/// A name without the form that the library gives it, such as `DnsName("a.example")`.
fn plain(name: &str) -> &str {
    let inner = name.split_once('(').map_or(name, |(_, inner)| inner);
    inner.trim_end_matches(')').trim_matches('"')
}

/// The time between two moments in words.
fn span(from: UnixTime, to: UnixTime) -> String {
    let between = Duration::from_secs(to.as_secs().saturating_sub(from.as_secs()));
    match between.as_secs() {
        seconds @ 0..=119 => format!("{seconds} seconds"),
        seconds @ 120..=7199 => format!("{} minutes", seconds / 60),
        seconds @ 7200..=172_799 => format!("{} hours", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls_pki_types::CertificateDer;

    use super::*;

    /// What a client says about a server's certificate that it trusts.
    fn said(certificate: &CertificateDer<'static>, at_s: u64) -> String {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).expect("an anchor");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let name = "b.example".try_into().expect("a name");
        let now = UnixTime::since_unix_epoch(Duration::from_secs(at_s));
        let verifier = verifier.build().expect("a verifier");
        match verifier.verify_server_cert(certificate, &[], &name, &[], now) {
            Err(rustls::Error::InvalidCertificate(error)) => refused(Owner::Server, &error),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_verifiers_errors_are_put_into_words() {
        let pair = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["a.example".into()]).expect("parameters");
        let other = params.self_signed(&pair).expect("signed");
        let at_s = 1_800_000_000;
        assert!(
            said(other.der(), at_s).contains("is not valid for b.example, but for a.example"),
            "{}",
            said(other.der(), at_s)
        );
        let mut old = params.clone();
        old.not_after = rcgen::date_time_ymd(2001, 1, 1);
        let old = old.self_signed(&pair).expect("signed");
        assert!(
            said(old.der(), at_s).contains("out of date since"),
            "{}",
            said(old.der(), at_s)
        );
        let mut ca = params;
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = ca.self_signed(&pair).expect("signed");
        assert!(
            said(ca.der(), at_s).contains("CA:TRUE"),
            "{}",
            said(ca.der(), at_s)
        );
    }

    #[test]
    fn spans_have_a_fitting_unit() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        for (seconds, text) in [
            (5, "5 seconds"),
            (600, "10 minutes"),
            (86_400, "24 hours"),
            (864_000, "10 days"),
        ] {
            assert_eq!(span(at(0), at(seconds)), text);
        }
        assert_eq!(span(at(5), at(0)), "0 seconds");
    }
}
