//! Files of certificates and keys, as operators and tutorials make them. Each fault is named, with a command that makes a
//! good one. The TLS library's own words are for programmers.
//!
//! - [`certificates`] and [`private_key`] read files in PEM.
//! - [`unusable`] and [`unusable_key`] say why a chain and a key cannot be shown to peers.
//! - [`weaknesses`] says what many peers will refuse.
//! - [`refused`] says why a peer's certificate was refused, and [`CertificateSubject`] whose it is.
//!
//! The crate opens no file and no socket.

mod file;
mod identity;
mod key;
mod refused;
mod subject;

pub use file::{certificates, private_key};
pub use identity::{unusable, weaknesses};
pub use key::unusable_key;
pub use refused::{Owner, refused};
pub use subject::{CertificateSubject, escaped};

/// A command that makes a key.
pub(crate) const MAKE_KEY: &str =
    "make one with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem`";

/// Commands that make a certificate of version 3 with names from a request.
pub(crate) const MAKE_CERTIFICATE: &str = "make one of version 3 with names: put `subjectAltName = DNS:broker.example` into the file \
     names.ext, and run `openssl x509 -req -in request.csr -CA ca.pem -CAkey ca.key \
     -CAcreateserial -days 365 -extfile names.ext -out certificate.pem`";
