//! The subject of a certificate, for lines of the log: whose it is, and until when.

use std::fmt;

use x509_parser::certificate::X509Certificate;

/// Most characters of a common name that a line gets.
const NAME_CHARACTERS: usize = 64;
/// Most bytes of a serial number (RFC 5280, section 4.1.2.2).
const SERIAL_BYTES: usize = 20;

/// The common name, the serial number and the times of a certificate. A peer may have made it: the texts are escaped and
/// bounded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateSubject {
    common_name: Option<String>,
    serial: String,
    times: [i64; 2],
    written: [String; 2],
}

impl CertificateSubject {
    /// The subject of a certificate in DER; `None` where that is no certificate.
    #[must_use]
    pub fn of(der: &[u8]) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        Some(Self::of_parsed(&certificate))
    }

    fn of_parsed(certificate: &X509Certificate<'_>) -> Self {
        let name = certificate.subject().iter_common_name().last();
        let name = name.and_then(|name| name.as_str().ok());
        let validity = certificate.validity();
        let ends = [validity.not_before, validity.not_after];
        Self {
            common_name: name.map(|name| escaped(name, NAME_CHARACTERS)),
            serial: serial(certificate.raw_serial()),
            times: ends.map(|end| end.timestamp()),
            written: ends.map(|end| escaped(&end.to_string(), NAME_CHARACTERS)),
        }
    }

    /// The end that a time, in seconds since the Unix epoch, is beyond: "valid until" or "valid from" with a date.
    #[must_use]
    pub fn beyond(&self, now_s: i64) -> Option<String> {
        let ([from, until], [from_text, until_text]) = (self.times, &self.written);
        if now_s > until {
            Some(format!("valid until {until_text}"))
        } else if now_s < from {
            Some(format!("valid from {from_text}"))
        } else {
            None
        }
    }
}

impl fmt::Display for CertificateSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.common_name {
            Some(name) => write!(f, "common name '{name}'")?,
            None => f.write_str("no common name")?,
        }
        write!(f, ", serial {}", self.serial)
    }
}

/// The beginning of a text that a peer may have chosen, without control characters.
#[must_use]
pub fn escaped(text: &str, most: usize) -> String {
    let mut escaped: String = text.chars().take(most).collect();
    let is_cut = escaped.len() < text.len();
    escaped = escaped.escape_debug().to_string();
    if is_cut {
        escaped.push_str("...");
    }
    escaped
}

/// A serial number as `openssl x509 -serial` prints it.
fn serial(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    // The sign needs a byte of its own.
    let bytes = match bytes {
        [0, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    let mut text = String::new();
    for byte in bytes.iter().take(SERIAL_BYTES) {
        let _ = write!(text, "{byte:02X}");
    }
    if bytes.len() > SERIAL_BYTES {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SerialNumber, date_time_ymd};

    use super::*;

    fn subject(name: &str, serial: &[u8]) -> CertificateSubject {
        let mut params = CertificateParams::new(vec!["x".to_owned()]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from_slice(serial));
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signed");
        CertificateSubject::of(certificate.der()).expect("a certificate")
    }

    #[test]
    fn the_subject_is_named_and_bounded() {
        let ann = subject("ann", &[0x8a, 0xbc]);
        assert_eq!(ann.to_string(), "common name 'ann', serial 8ABC");
        let long = subject(&format!("a\n'{}", "x".repeat(1000)), &[0x11; 200]);
        let text = long.to_string();
        assert!(
            text.starts_with("common name 'a\\n\\'xxx") && text.ends_with("11..."),
            "{text}"
        );
        assert!(text.len() < 200, "{text}");
        assert_eq!(CertificateSubject::of(b"nonsense"), None);
    }

    #[test]
    fn the_end_that_a_time_is_beyond_is_said() {
        let ann = subject("ann", &[1]);
        let at = |now_s| ann.beyond(now_s).unwrap_or_default();
        assert!(
            at(1_700_000_000).starts_with("valid until Jan  1"),
            "{}",
            at(1_700_000_000)
        );
        assert!(
            at(1_500_000_000).starts_with("valid from Jan  1"),
            "{}",
            at(1_500_000_000)
        );
        assert_eq!(at(1_590_000_000), "");
    }
}
