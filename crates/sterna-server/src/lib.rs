//! The broker process: listeners, protocol front doors, authentication, authorization,
//! configuration.

pub mod authentication;
pub mod authorization;
pub mod certificate;
pub mod config;
mod mail;
mod mqtt;
mod policy;
mod server;
mod shard;
pub mod sys;
mod tracer;

pub use mail::{Letters, Mail, Outbox};
pub use mqtt::SessionState;
pub use policy::Policy;
pub use server::Server;
pub use shard::{Parts, Shard};
pub use tracer::Tracer;
