//! Rights hold now: what is taken away by a reload, and what a rule denies of a wider subscription.

#![allow(unreachable_pub, reason = "the modules of one test binary")]

#[path = "../amqp/client.rs"]
mod amqp_client;
mod bridge;
mod conditions;
#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../http/h3_client.rs"]
mod h3_client;
mod overlap;
mod reload;
mod users;
