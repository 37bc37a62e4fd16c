//! Who is who and may do what, and the door of operators, in virtual time.

#![allow(unreachable_pub, reason = "the modules of one test binary")]

#[path = "../clients/amqp.rs"]
mod amqp_client;
#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../clients/h2.rs"]
mod h2_client;
#[path = "../clients/h3.rs"]
mod h3_client;
mod page;

mod admin;
mod identity;
mod metrics;
mod rights;
