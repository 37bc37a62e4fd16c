//! HTTP: what carries requests and responses, and what answers them, driven by hand.

mod address_tokens;
pub(crate) mod admission;
mod backpressure;
mod cross;
mod ended;
mod flow;
mod hostile;
mod http1;
mod http2;
mod http3;
mod model;
mod pieces;
mod polls;
mod publish;
mod resume;
mod robustness;
mod said_once;
mod sessions;
mod subscribe;
mod topics;
mod transport;
mod webtransport;
