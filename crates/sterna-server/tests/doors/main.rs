//! The front doors in virtual time, without sockets: what clients send, what they get, and what is refused.

#![allow(unreachable_pub, reason = "the modules of one test binary")]

#[path = "../clients/amqp.rs"]
mod amqp_client;
#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../clients/h2.rs"]
mod h2_client;
#[path = "../clients/h3.rs"]
mod h3_client;
#[path = "../../../sterna-broker/tests/seeds/mod.rs"]
mod seeds;

mod amqp;
mod conformance;
mod fan_out;
mod first_flight;
mod holding;
mod http;
mod in_turns;
mod inspect;
mod lanes;
mod mapping;
mod overload;
mod pace;
mod quic;
mod refused;
mod silent;
