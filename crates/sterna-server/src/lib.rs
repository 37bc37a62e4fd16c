//! The broker process: listeners, protocol front doors, authentication, authorization,
//! configuration. [`Server`] is all of it, and [`config`] describes it.
//!
//! ```no_run
//! use sterna_server::{Server, config};
//!
//! let mut config = config::load(None, std::env::vars())?;
//! config.listeners = vec![config::Listener::at("mqtt://localhost:0")];
//! let server = Server::start(&config)?;
//! println!("{}", server.listeners().join(" "));
//! // The threads of the server serve clients. A program that goes on waits here for a signal.
//! if !server.shutdown() {
//!     eprintln!("not everything was stored");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The server writes its log by `tracing`; the program chooses a subscriber. It installs no signal handler.
//!
//! [`Shard`], and the types that its [`Parts`] name, are public for simulations. There a shard serves clients of the
//! simulated network of `sterna-net`, in virtual time.

mod admin;
mod amqp;
pub mod audit;
pub mod authorization;
mod bans;
pub mod certificate;
mod cluster;
pub mod config;
mod context;
pub mod control;
pub mod data_directory;
mod directory_watch;
mod door;
mod file_watch;
mod giving_way;
mod holding;
mod http;
pub mod identity;
mod inspect;
mod judge;
mod key_refresh;
mod last_refusal;
mod line;
mod mail;
mod mapping;
mod memory;
pub mod metrics;
mod mqtt;
pub mod node_clock;
mod open_files;
mod otlp;
mod pace;
mod policy;
mod reload;
mod repeats;
mod rights;
mod seats;
mod server;
mod session;
mod shard;
mod shares;
mod store;
pub mod sys;
mod tracer;
pub mod transfer;
mod unread_store;
mod watch;
mod weighing;

pub use amqp::Registry;
pub use bans::Bans;
pub use cluster::{Cluster, Member};
pub use control::Failure;
pub use http::Registry as HttpRegistry;
pub use mail::{AdminLetter, AmqpLetter, HttpLetter, Letters, Mail, Outbox};
pub use memory::{Memory, Stage, Unused, give_back_with, keep_one_heap};
pub use mqtt::Repetitions;
pub use policy::Policy;
pub use seats::Seats;
pub use server::Server;
pub use session::{HttpSession, SessionState, Terminus};
pub use shard::{Found, Parts, Shard};
pub use tracer::Tracer;
