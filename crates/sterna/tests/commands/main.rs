//! The program `sterna` as its users run it.
#![allow(clippy::unwrap_used)] // it is all test

mod acl;
mod admin;
mod amqp;
mod certificates;
mod check_config;
mod clients;
mod clock;
mod config;
mod first_connection;
mod http;
mod import;
mod insight;
mod outages;
mod process;
mod programs;
mod serve;
