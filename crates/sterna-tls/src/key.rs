//! Kinds of private keys, by their DER. Only what names a key is read, never the secret.

use rustls_pki_types::PrivateKeyDer;

use crate::MAKE_KEY;

/// Identifiers of algorithms and curves in DER, and their names.
const KINDS: [(&[u8], &str); 9] = [
    (&[0x2a, 0x86, 0x48, 0xce, 0x38, 0x04, 0x01], "a DSA key"),
    (&[0x2b, 0x65, 0x71], "an Ed448 key"),
    (&[0x2b, 0x65, 0x6e], "an X25519 key, which signs nothing"),
    (&[0x2b, 0x65, 0x6f], "an X448 key, which signs nothing"),
    (
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a],
        "an RSA key for RSA-PSS alone",
    ),
    (&[0x2b, 0x81, 0x04, 0x00, 0x23], "a key of the curve P-521"),
    (
        &[0x2b, 0x81, 0x04, 0x00, 0x0a],
        "a key of the curve secp256k1",
    ),
    (&[0x2b, 0x81, 0x04, 0x00, 0x21], "a key of the curve P-224"),
    (
        &[0x2b, 0x24, 0x03, 0x03, 0x02, 0x08, 0x01, 0x01],
        "a key of a Brainpool curve",
    ),
];

/// The algorithm RSA in DER.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];

/// Sizes of RSA keys that are taken, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=4096;

/// Why the TLS library does not take a private key.
#[must_use]
pub fn unusable_key(key: &PrivateKeyDer<'_>) -> String {
    let der = key.secret_der();
    let names = |oid: &[u8]| {
        // As the bytes of an identifier, behind its tag and length.
        let found = |part: &[u8]| part[..2] == [6, oid.len() as u8] && part[2..] == *oid;
        der.windows(oid.len() + 2).any(found)
    };
    let kind = KINDS.iter().find(|(oid, _)| names(oid));
    let what = match kind {
        Some((_, name)) => (*name).to_owned(),
        None => match rsa_bits(key) {
            Some(bits) if !RSA_BITS.contains(&bits) => {
                format!("an RSA key of {bits} bits, and 2048 to 4096 are taken")
            }
            _ => return format!("the key is damaged, or of a kind that is not taken: {MAKE_KEY}"),
        },
    };
    format!("the key is {what}; RSA, P-256, P-384 and Ed25519 are taken: {MAKE_KEY}")
}

/// The size of an RSA key.
fn rsa_bits(key: &PrivateKeyDer<'_>) -> Option<usize> {
    let der = key.secret_der();
    let of_rsa = match key {
        PrivateKeyDer::Pkcs1(_) => der,
        PrivateKeyDer::Pkcs8(_) => {
            // version, algorithm, and the key in its own form (RFC 5958, section 2)
            let (_, inner, _) = element(der)?;
            let (_, _, rest) = element(inner)?;
            let (_, algorithm, rest) = element(rest)?;
            if !algorithm.windows(RSA.len()).any(|part| part == RSA) {
                return None;
            }
            element(rest)?.1
        }
        _ => return None,
    };
    // version, modulus (RFC 8017, appendix A.1.2)
    let (_, inner, _) = element(of_rsa)?;
    let (_, _, rest) = element(inner)?;
    let (_, modulus, _) = element(rest)?;
    let modulus = modulus.strip_prefix(&[0]).unwrap_or(modulus);
    let first = modulus.first()?;
    Some(modulus.len() * 8 - first.leading_zeros() as usize)
}

/// The first element of DER: its tag, its content, and what follows.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let count = usize::from(first & 0x7f);
        if !(1..=3).contains(&count) {
            return None;
        }
        let (bytes, rest) = rest.split_at_checked(count)?;
        let length = bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        (length, rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::{PrivatePkcs1KeyDer, PrivatePkcs8KeyDer};

    use super::*;

    #[test]
    fn kinds_are_named() {
        // The start of keys as OpenSSL writes them; what follows is not looked at.
        let p521 = [
            0x30, 0x10, 2, 1, 0, 0x30, 0x10, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 5, 0x2b,
            0x81, 4, 0, 0x23,
        ];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(&p521[..]));
        assert!(
            unusable_key(&key).contains("P-521"),
            "{}",
            unusable_key(&key)
        );
        let mut rsa = vec![0x30, 0x81, 0x87, 2, 1, 0, 2, 0x81, 0x81, 0, 0x80];
        rsa.resize(rsa.len() + 127, 1);
        let key = PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(&rsa[..]));
        assert!(
            unusable_key(&key).contains("1024 bits"),
            "{}",
            unusable_key(&key)
        );
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(&b"\x30"[..]));
        assert!(unusable_key(&key).contains("damaged"));
    }

    #[test]
    fn any_bytes_are_taken() {
        for length in 0..6 {
            for first in [0, 0x30, 0x7f, 0x80, 0x83, 0xff] {
                let _ = element(&vec![first; length]);
            }
        }
    }
}
