//! HTTP: what carries requests and responses, driven by hand.

#[path = "../fixture/mod.rs"]
mod fixture;
mod h3_client;
mod http3;
