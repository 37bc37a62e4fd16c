//! The server above the transports in virtual time, from seeds: random clients against models, power cuts, and panics
//! in each call. These work without a pause; the long form of the seeds is in CONTRIBUTING.md.

#![allow(unreachable_pub, reason = "the modules of one test binary")]

#[path = "../clients/amqp.rs"]
mod amqp_client;
#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../clients/h3.rs"]
mod h3_client;
#[path = "../../../sterna-broker/tests/seeds/mod.rs"]
mod seeds;

mod amqp_model;
mod naive;
mod panics;
mod powercut;
mod simulation;
