//! The client's end of a connection: packets in, events out; commands in, bytes out.
//!
//! A [`Connection`] lives as long as one network connection; the [`MqttSession`](crate::MqttSession) that
//! it works on lives longer. The caller owns both, moves the bytes, keeps the messages until they
//! are acknowledged, and tells the time.
//!
//! 1. [`Connection::open`] writes CONNECT. SUBSCRIBE and PUBLISH may follow at once, in the same
//!    flight (MQTT 5.0 section 3.1.4). There are two exceptions: an authentication method, and
//!    messages of an earlier connection that wait to be sent again.
//! 2. Every received packet goes to [`Connection::handle`], which returns its meaning as an
//!    [`Event`].
//! 3. After [`Event::Connected`] the caller sends again the messages of
//!    [`Connection::next_resend`].
//! 4. [`Event::Publish`] is answered with [`Connection::acknowledge`] once the message is in safe
//!    hands.
//! 5. At [`Connection::deadline_ms`] the caller calls [`Connection::on_timeout`].

mod connection;
mod limits;
mod quic;
mod send;
#[cfg(test)]
mod tests;

pub use connection::{Connection, Event};
pub use limits::{EARLY_BYTES, EARLY_PUBLISHES, ServerLimits};
pub use send::{Publication, SendError};
