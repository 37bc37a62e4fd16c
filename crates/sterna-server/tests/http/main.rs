//! HTTP: what carries requests and responses, and what answers them, driven by hand.

#![allow(unreachable_pub, reason = "the modules of one test binary")]

mod admission;
#[path = "../amqp/client.rs"]
mod amqp_client;
mod backpressure;
mod cross;
mod ended;
#[path = "../fixture/mod.rs"]
mod fixture;
mod flow;
mod h2_client;
mod h3_client;
mod hostile;
mod http1;
mod http2;
mod http3;
mod model;
mod polls;
mod publish;
mod resume;
mod robustness;
#[path = "../../../sterna-broker/tests/seeds/mod.rs"]
mod seeds;
mod sessions;
mod subscribe;
mod topics;
mod transport;
mod webtransport;
