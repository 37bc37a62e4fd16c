//! What a message of one protocol is in the others: every row of `docs/mapping.md`, with generated
//! messages, both ways.

#![allow(unreachable_pub, dead_code, reason = "the modules of one test binary")]

mod amqp;
mod ends;
mod http;
mod mqtt;
