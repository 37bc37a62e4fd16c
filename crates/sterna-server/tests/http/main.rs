//! HTTP: what carries requests and responses, and what answers them, driven by hand.

mod admission;
mod ended;
#[path = "../fixture/mod.rs"]
mod fixture;
mod h3_client;
mod http3;
mod polls;
mod publish;
mod resume;
mod sessions;
mod subscribe;
mod topics;
