//! Acknowledged means kept: what clients are told before and after their store has it, through all doors and
//! over restarts.

#![allow(unreachable_pub, reason = "the modules of one test binary")]

mod again;
mod amqp;
#[path = "../clients/amqp.rs"]
mod amqp_client;
mod amqp_ends;
mod amqp_exact;
mod amqp_nodes;
mod behind;
mod clock;
mod ends;
mod exactly_once;
mod first_flight;
#[path = "../fixture/mod.rs"]
mod fixture;
mod full_disk;
#[path = "../clients/h3.rs"]
mod h3_client;
mod http;
mod mqtt;
mod near_full;
#[allow(dead_code, reason = "each test binary uses its part")]
#[path = "../authority/page.rs"]
mod page;
mod restart;
mod store;
mod wills;
mod wrong_clock;
