//! The QUIC driver against real clients, in virtual time.

mod amplification;
mod budget;
mod chaos;
mod closing;
mod early_data;
mod handshake;
mod keys;
mod limits;
mod migration;
mod path;
#[path = "../../../sterna-broker/tests/seeds/mod.rs"]
mod seeds;
mod sleep;
mod streams;
mod tickets;
mod trace;
mod world;
