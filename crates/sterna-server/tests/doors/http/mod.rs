//! HTTP: what carries requests and responses, and what answers them, driven by hand.

mod admission;
mod backpressure;
mod cross;
mod ended;
mod flow;
mod hostile;
mod http1;
mod http2;
mod http3;
mod model;
mod polls;
mod publish;
mod resume;
mod robustness;
mod sessions;
mod subscribe;
mod topics;
mod transport;
mod webtransport;
