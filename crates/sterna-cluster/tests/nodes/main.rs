//! What nodes of a cluster agree on, by models in virtual time, and topics as subjects.

mod arrivals;
mod exact;
mod owners;
mod requests;
#[path = "../../../sterna-broker/tests/seeds/mod.rs"]
mod seeds;
mod subjects;
