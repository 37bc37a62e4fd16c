//! Asynchronous client library for every protocol and transport of Sterna.

mod backoff;
mod error;
mod tls;
mod transport;
mod url;

pub use backoff::Backoff;
pub use error::ConnectError;
pub use tls::{Fingerprint, Tls, TlsError};
pub use url::{MAX_URL_BYTES, Scheme, Url, UrlError};
