//! HTTP: what carries requests and responses, driven by hand.

#[path = "../fixture/mod.rs"]
mod fixture;
mod h2_client;
mod h3_client;
mod http1;
mod http2;
mod http3;
