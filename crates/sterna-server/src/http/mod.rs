//! The front door of HTTP: publish-subscribe as `docs/http.md` describes it.
//!
//! What carries requests and responses (HTTP/3 on QUIC by an engine of our own, HTTP/2 and HTTP/1.1 on
//! TCP by a library) knows nothing of topics; what answers them knows nothing of either. `exchange.rs`
//! is all that both know.

mod exchange;

mod format;
mod openapi;
mod page;
mod session_state;
pub use session_state::HttpSession;
