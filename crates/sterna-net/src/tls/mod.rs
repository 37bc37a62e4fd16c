//! TLS: the configuration of a listener, and the server side of one connection.

mod authority;
mod certificates;
mod config;
mod raw_keys;
mod session;

pub use authority::{ClientAuth, ClientAuthority};
pub use certificates::{CertificateError, Certificates, Identity};
pub use config::{TlsConfig, TlsVersions};
pub use raw_keys::{ClientKeys, RawKeys};
pub(crate) use session::{CIPHERTEXT_ROOM, PARTIAL_ROOM, ROUND_BYTES, TlsSession};
