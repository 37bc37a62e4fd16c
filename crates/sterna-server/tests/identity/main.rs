//! Who a client is, at every door: one verdict on what it shows, and what belongs to it.

#![allow(unreachable_pub, reason = "the modules of one test binary")]

#[path = "../amqp/client.rs"]
mod amqp_client;
mod bans;
mod early;
#[path = "../fixture/mod.rs"]
mod fixture;
mod guessing;
#[path = "../http/h2_client.rs"]
mod h2_client;
#[path = "../http/h3_client.rs"]
mod h3_client;
mod hook;
mod hook_attacks;
mod hook_conditions;
mod limits;
mod names;
mod ownership;
mod revocation;
mod standings;
mod table;
mod tokens;
mod world;
