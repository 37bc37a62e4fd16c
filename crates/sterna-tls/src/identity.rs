//! A chain and its key, as they are shown to peers.

use rustls::crypto::ring;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::x509::X509Version;

use crate::{MAKE_CERTIFICATE, unusable_key};

/// Why a chain and a key cannot be shown to peers, for which the TLS library has refused them. The end-entity certificate
/// is the first one.
#[must_use]
pub fn unusable(chain: &[CertificateDer<'_>], private: &PrivateKeyDer<'_>) -> String {
    let Some(first) = chain.first() else {
        return "there is no certificate".to_owned();
    };
    let Ok((_, leaf)) = x509_parser::parse_x509_certificate(first) else {
        return "the certificate is damaged: it is no X.509".to_owned();
    };
    if leaf.version() != X509Version::V3 {
        return format!(
            "the certificate is X.509 version {}, which has no names of servers and which TLS libraries refuse: \
             {MAKE_CERTIFICATE}",
            leaf.version().0 + 1
        );
    }
    let provider = ring::default_provider();
    let Ok(key) = provider.key_provider.load_private_key(private.clone_key()) else {
        return unusable_key(private);
    };
    let belongs = |der: &CertificateDer<'_>| {
        let alone = CertifiedKey::new(vec![der.clone().into_owned()], key.clone());
        alone.keys_match().is_ok()
    };
    if let Some(place) = chain.iter().skip(1).position(belongs) {
        return format!(
            "the key belongs to certificate {} of the file: the certificate of this host has to come first, and its \
             issuers after it, as in `cat certificate.pem intermediate.pem > chain.pem`",
            place + 2
        );
    }
    if belongs(first) {
        return "certificate and key are of no use to TLS".to_owned();
    }
    let hint = if leaf.is_ca() {
        "; the certificate is that of an authority, so it may be the wrong file"
    } else {
        ""
    };
    format!(
        "the key is that of another certificate: `openssl x509 -in certificate.pem -noout -pubkey` and `openssl pkey -in \
         key.pem -pubout` have to print the same{hint}"
    )
}

/// Faults of a chain for which many peers will refuse it. `now_s` is the time in seconds since the Unix epoch.
#[must_use]
pub fn weaknesses(chain: &[CertificateDer<'_>], now_s: i64) -> Vec<String> {
    let mut found = Vec::new();
    let parsed = (chain.iter()).map_while(|der| x509_parser::parse_x509_certificate(der).ok());
    let parsed: Vec<X509Certificate<'_>> = parsed.map(|(_, certificate)| certificate).collect();
    let Some(leaf) = parsed.first() else {
        return found;
    };
    let validity = leaf.validity();
    if validity.not_after.timestamp() < now_s {
        found.push(format!(
            "the certificate is out of date since {}",
            validity.not_after
        ));
    }
    if validity.not_before.timestamp() > now_s {
        found.push(format!(
            "the certificate is not valid before {}: is the clock of this host right?",
            validity.not_before
        ));
    }
    let names = leaf.subject_alternative_name().ok().flatten();
    if names.is_none_or(|names| names.value.general_names.is_empty()) {
        found.push(format!(
            "the certificate names no host (subjectAltName), and most clients do not look at the common name: \
             {MAKE_CERTIFICATE}"
        ));
    }
    if leaf.is_ca() {
        found.push(format!(
            "the certificate is that of an authority (CA:TRUE), which many clients refuse for a server: let the authority \
             sign another one; {MAKE_CERTIFICATE}"
        ));
    }
    let usage = leaf.extended_key_usage().ok().flatten();
    if usage.is_some_and(|usage| !usage.value.server_auth && !usage.value.any) {
        found.push(
            "the certificate is not for servers: its extended key usage has no serverAuth"
                .to_owned(),
        );
    }
    for (place, pair) in parsed.windows(2).enumerate() {
        if pair[0].issuer() != pair[1].subject() {
            found.push(format!(
                "certificate {} of the file has not signed the one before it: each is to be followed by its issuer",
                place + 2
            ));
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    const NOW_S: i64 = 1_800_000_000;

    fn key(pair: &KeyPair) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(pair.serialize_der().into())
    }

    #[test]
    fn a_chain_in_the_wrong_order_is_named() {
        let ca_key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["ca.example".into()]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = rcgen::DnType::CommonName;
        params.distinguished_name.push(name, "an authority");
        let ca = params.self_signed(&ca_key).expect("signed");
        let issuer = Issuer::new(params, ca_key);
        let leaf_key = KeyPair::generate().expect("a key");
        let leaf = CertificateParams::new(vec!["b.example".into()]).expect("parameters");
        let leaf = leaf.signed_by(&leaf_key, &issuer).expect("signed");
        let (ca, leaf) = (ca.der().clone(), leaf.der().clone());
        let wrong = [ca.clone(), leaf.clone()];
        let said = unusable(&wrong, &key(&leaf_key));
        assert!(said.contains("belongs to certificate 2"), "{said}");
        let said = weaknesses(&wrong, NOW_S).join("\n");
        assert!(
            said.contains("(CA:TRUE)") && said.contains("certificate 2 of"),
            "{said}"
        );
        let other = KeyPair::generate().expect("a key");
        let said = unusable(&[ca, leaf], &key(&other));
        assert!(
            said.contains("that of another certificate") && said.contains("wrong file"),
            "{said}"
        );
    }

    #[test]
    fn a_good_certificate_has_no_weakness() {
        let made = rcgen::generate_simple_self_signed(vec!["a.example".into()]).expect("made");
        assert_eq!(
            weaknesses(&[made.cert.der().clone()], NOW_S),
            Vec::<String>::new()
        );
    }

    #[test]
    fn dates_and_names_are_looked_at() {
        let pair = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        let made = params.self_signed(&pair).expect("signed");
        let said = weaknesses(&[made.der().clone()], NOW_S).join("\n");
        assert!(said.contains("out of date since"), "{said}");
        assert!(said.contains("names no host"), "{said}");
        let said = weaknesses(&[made.der().clone()], 0).join("\n");
        assert!(!said.contains("out of date since"), "{said}");
    }
}
