//! The front door of AMQP, driven by hand: what a client asks for, what it gets, and what is refused.

#![allow(unreachable_pub, reason = "the modules of one test binary")]

mod client;
#[path = "../fixture/mod.rs"]
mod fixture;
mod limits;
mod links;
mod queues;
mod security;
mod stealing;
mod streams;
mod transactions;
