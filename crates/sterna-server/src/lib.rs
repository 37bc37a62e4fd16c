//! The broker process: listeners, protocol front doors, authentication, authorization,
//! configuration.

mod amqp;
pub mod authorization;
pub mod certificate;
pub mod config;
mod context;
pub mod data_directory;
mod door;
mod http;
pub mod identity;
mod inspect;
mod judge;
mod mail;
mod mapping;
mod mqtt;
mod policy;
mod rights;
mod server;
mod session;
mod shard;
pub mod sys;
mod tracer;

pub use amqp::Registry;
pub use http::Registry as HttpRegistry;
pub use mail::{HttpLetter, Letters, Mail, Outbox};
pub use mqtt::Repetitions;
pub use policy::Policy;
pub use server::Server;
pub use session::{HttpSession, SessionState, Terminus};
pub use shard::{Parts, Shard};
pub use tracer::Tracer;
