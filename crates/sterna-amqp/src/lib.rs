//! AMQP 1.0 (OASIS, ISO/IEC 19464) types, frames, and connection, session and link state, sans-IO:
//! bytes and time in, events out; commands in, bytes out. No sockets, no clock, no tasks, no locks.

pub mod connection;
mod error;
pub mod frame;
mod lane;
mod limits;
pub mod link;
pub mod messaging;
pub mod performatives;
pub mod sasl;
pub mod security;
pub mod selector;
pub mod session;
pub mod transactions;
pub mod types;

pub use connection::{Connection, Event};
pub use error::{CommandError, Condition, DecodeError, Scope, Violation};
pub use frame::{Frame, Framer};
pub use lane::{Lane, LaneWriter};
pub use limits::{Limits, MAX_MAX_FRAME_BYTES, MIN_MAX_FRAME_BYTES};
