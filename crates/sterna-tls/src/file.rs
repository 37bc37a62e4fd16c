//! Reading PEM (RFC 7468), and what is there instead of it.

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::MAKE_KEY;

/// The thing that is looked for in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Certificate,
    Key,
}

/// Reads the certificates of a file in PEM, in their order. A byte order mark is passed over.
///
/// # Errors
///
/// A sentence that says what is in the file instead, and how to make a good one.
pub fn certificates(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = text(file, Wanted::Certificate)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if found.is_empty() => Err(without_certificate(&labels(text))),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("it is damaged PEM: {error}")),
    }
}

/// Reads a private key in PEM: PKCS #8, SEC 1 or PKCS #1. A byte order mark is passed over.
///
/// # Errors
///
/// A sentence that says what is in the file instead, and how to make a good one.
pub fn private_key(file: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let text = text(file, Wanted::Key)?;
    let labels = labels(text);
    let is_encrypted = labels.contains(&"ENCRYPTED PRIVATE KEY")
        || (contains(text, b"Proc-Type:") && contains(text, b"ENCRYPTED"));
    if is_encrypted {
        return Err(
            "the key is encrypted, and nobody is there who could type its password: decrypt it with \
             `openssl pkey -in key.pem -out plain.pem`, and let nobody else read that file"
                .to_owned(),
        );
    }
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        rustls_pki_types::pem::Error::NoItemsFound => without_key(&labels),
        damaged => format!("it is damaged PEM: {damaged}"),
    })
}

/// The text of a file.
fn text(file: &[u8], wanted: Wanted) -> Result<&[u8], String> {
    let der = |command: &str| format!("it is DER, and has to be PEM: {command}");
    let text = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
    let detail = match text {
        [] => "it is empty".to_owned(),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            "it is UTF-16, as PowerShell's `>` writes it: save it as ASCII or UTF-8".to_owned()
        }
        [0xfe, 0xed, 0xfe, 0xed, ..] => {
            "it is a key store of Java: `keytool -importkeystore -srckeystore store.jks -destkeystore \
             store.p12 -deststoretype PKCS12`, then `openssl pkcs12 -in store.p12 -nodes -out all.pem`"
                .to_owned()
        }
        // A sequence that begins with the version 3 (RFC 7292, section 4).
        [0x30, 0x82, _, _, 2, 1, 3, ..] | [0x30, 0x80, 2, 1, 3, ..] => {
            "it is PKCS #12 (.p12, .pfx), and has to be PEM: `openssl pkcs12 -in store.p12 -nodes -out \
             all.pem`"
                .to_owned()
        }
        [0x30, 0x80..=0x83, ..] => match wanted {
            Wanted::Certificate => {
                der("`openssl x509 -inform der -in certificate.der -out certificate.pem`")
            }
            Wanted::Key => der("`openssl pkey -inform der -in key.der -out key.pem`"),
        },
        [0x30, ..] if wanted == Wanted::Key => {
            der("`openssl pkey -inform der -in key.der -out key.pem`")
        }
        text => return Ok(text),
    };
    Err(detail)
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|found| found == word)
}

/// The labels of the first parts of a file in PEM.
fn labels(text: &[u8]) -> Vec<&str> {
    const MOST: usize = 64;
    let lines = text.split(|byte| matches!(byte, b'\n' | b'\r'));
    lines.filter_map(label).take(MOST).collect()
}

/// The label of a line that begins a part.
fn label(line: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(line.trim_ascii()).ok()?;
    line.strip_prefix("-----BEGIN ")?.strip_suffix("-----")
}

fn without_certificate(labels: &[&str]) -> String {
    let has = |word: &str| labels.iter().any(|label| label.contains(word));
    let detail = if has("PRIVATE KEY") {
        "it has a private key and no certificate: are the files of certificate and key exchanged?"
    } else if has("CERTIFICATE REQUEST") {
        "it has a request for a certificate (CSR), which an authority has still to sign"
    } else if has("TRUSTED CERTIFICATE") || has("X509 CERTIFICATE") {
        "it has a certificate in a form of OpenSSL's own: `openssl x509 -in trusted.pem -out certificate.pem`"
    } else if has("PKCS7") {
        "it has PKCS #7: `openssl pkcs7 -print_certs -in chain.p7b -out certificate.pem`"
    } else if has("PUBLIC KEY") {
        "it has a public key and no certificate"
    } else {
        "it has no certificate in PEM: there is no line `-----BEGIN CERTIFICATE-----`"
    };
    detail.to_owned()
}

fn without_key(labels: &[&str]) -> String {
    let has = |word: &str| labels.iter().any(|label| label.contains(word));
    if has("DSA PRIVATE KEY") {
        format!("it has a DSA key, which TLS does not take any more: {MAKE_KEY}")
    } else if has("OPENSSH PRIVATE KEY") {
        "it has a key in the form of OpenSSH: copy it, and run `ssh-keygen -p -m PEM -f COPY`"
            .to_owned()
    } else if has("PUBLIC KEY") {
        "it has a public key, and has to have the private one".to_owned()
    } else if has("CERTIFICATE") {
        "it has a certificate and no private key: are the files of certificate and key exchanged?"
            .to_owned()
    } else if has("EC PARAMETERS") {
        format!("it has the parameters of a curve, and no key: {MAKE_KEY}")
    } else {
        "it has no private key in PEM: there is no line `-----BEGIN PRIVATE KEY-----`".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["a.example".into()]).expect("made");
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn other_line_ends_and_a_byte_order_mark_are_taken() {
        let (certificate, key) = pair();
        for change in [
            |text: &str| text.replace('\n', "\r\n"),
            |text: &str| format!("\u{feff}{text}"),
            |text: &str| format!("Bag Attributes\n    friendlyName: x\n{text}"),
        ] {
            let (certificate, key) = (change(&certificate), change(&key));
            assert_eq!(
                certificates(certificate.as_bytes()).map(|found| found.len()),
                Ok(1)
            );
            assert!(private_key(key.as_bytes()).is_ok());
        }
    }

    #[test]
    fn what_is_no_certificate_is_named() {
        let (certificate, key) = pair();
        let der = rcgen::generate_simple_self_signed(vec!["a".into()]).expect("made");
        let utf16: Vec<u8> = ("\u{feff}".chars().chain(certificate.chars()))
            .flat_map(|letter| (letter as u16).to_le_bytes())
            .collect();
        for (file, word) in [
            (&b""[..], "empty"),
            (key.as_bytes(), "exchanged"),
            (der.cert.der().as_ref(), "openssl x509 -inform der"),
            (&utf16, "UTF-16"),
            (b"\xfe\xed\xfe\xed\0\0\0\x02", "key store of Java"),
            (b"\x30\x82\x09\xaa\x02\x01\x03\x30", "PKCS #12"),
            (
                b"-----BEGIN CERTIFICATE REQUEST-----\nAA==\n-----END CERTIFICATE REQUEST-----\n",
                "CSR",
            ),
            (
                b"-----BEGIN TRUSTED CERTIFICATE-----\nAA==\n-----END TRUSTED CERTIFICATE-----\n",
                "OpenSSL's own",
            ),
            (
                b"-----BEGIN PKCS7-----\nAA==\n-----END PKCS7-----\n",
                "PKCS #7",
            ),
            (b"hello\n", "no line `-----BEGIN CERTIFICATE-----`"),
            (
                b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n",
                "damaged",
            ),
            (b"-----BEGIN CERTIFICATE-----\nAA==\n", "damaged"),
        ] {
            let said = certificates(file).expect_err(word);
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn what_is_no_key_is_named() {
        let (certificate, _) = pair();
        let made = rcgen::KeyPair::generate().expect("made");
        let old = b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAA==\n\
            -----END RSA PRIVATE KEY-----\n";
        for (file, word) in [
            (&b""[..], "empty"),
            (certificate.as_bytes(), "exchanged"),
            (made.serialized_der(), "openssl pkey -inform der"),
            (old, "openssl pkey -in key.pem"),
            (b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n", "encrypted"),
            (b"-----BEGIN DSA PRIVATE KEY-----\nAA==\n-----END DSA PRIVATE KEY-----\n", "DSA"),
            (b"-----BEGIN OPENSSH PRIVATE KEY-----\nAA==\n-----END OPENSSH PRIVATE KEY-----\n", "ssh-keygen"),
            (b"-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----\n", "public key"),
            (b"-----BEGIN EC PARAMETERS-----\nAA==\n-----END EC PARAMETERS-----\n", "parameters"),
            (b"x", "no line `-----BEGIN PRIVATE KEY-----`"),
        ] {
            let said = private_key(file).expect_err(word);
            assert!(said.contains(word), "{said}");
        }
    }
}
