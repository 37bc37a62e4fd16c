//! TLS: the configuration of a listener, and the server side of one connection.

mod authority;
mod certificates;
mod config;
mod fault;
mod hello;
mod raw_keys;
mod record_sizes;
mod session;

pub use authority::{ClientAuth, ClientAuthority};
pub use certificates::{CertificateError, Certificates, Identity};
pub use config::{TlsConfig, TlsVersions};
pub(crate) use fault::classify;
pub(crate) use hello::Hello;
pub use raw_keys::{ClientKeys, RawKeys};
pub(crate) use record_sizes::BySize;
pub(crate) use session::{CIPHERTEXT_ROOM, PARTIAL_ROOM, TlsFailure, TlsSession};
