//! The QUIC driver against real clients, in virtual time.

mod chaos;
mod closing;
mod early_data;
mod handshake;
mod limits;
mod path;
mod streams;
mod world;
