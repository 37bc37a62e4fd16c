//! The admin API of operators.

#![allow(unreachable_pub, reason = "the modules of one test binary")]

#[path = "../amqp/client.rs"]
mod amqp_client;
#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../http/h3_client.rs"]
mod h3_client;
#[path = "../metrics/page.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod page;

mod attacks;
mod bans;
mod dashboard;
mod lists;
mod logins;
mod queues;
mod reasons;
mod roles;
mod schema;
mod trace;
mod world;
