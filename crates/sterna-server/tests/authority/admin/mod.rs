//! The admin API of operators.

mod attacks;
mod bans;
mod dashboard;
mod lists;
mod logins;
mod owners;
mod queues;
mod reasons;
mod roles;
mod schema;
mod trace;
mod world;
mod wrong_clock;
