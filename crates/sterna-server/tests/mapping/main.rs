//! What a message of one protocol is in the others: every row of `docs/mapping.md`, with generated
//! messages, both ways.

#![allow(unreachable_pub, dead_code, reason = "the modules of one test binary")]

mod amqp;
#[path = "../amqp/client.rs"]
mod client;
mod ends;
#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../http/h3_client.rs"]
mod h3_client;
mod http;
mod mqtt;
