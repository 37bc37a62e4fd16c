//! Asynchronous client library for every protocol and transport of Sterna.
//!
//! A [`Client`] speaks MQTT 3.1, 3.1.1 or 5.0, an [`amqp::Connection`] AMQP 1.0, and an
//! [`http::Client`] HTTP. The [`Url`] selects the transport: QUIC, TLS, TCP or WebSocket. MQTT and
//! AMQP clients reconnect and keep their delivery guarantees over lost connections.
//!
//! * **One flight.** Requests made before the connection is established leave with the CONNECT or
//!   the open, in the same segment or packet.
//! * **Bounded.** Queues have limits. Publishing waits for room; a client whose messages are not read
//!   stops reading. News of the connection never wait: of those, only the newest is kept.
//! * **Verified.** Encrypted transports check the server's certificate, unless [`Tls`] disables it.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use sterna_client::{Client, Options, Publish, QoS};
//!
//! let (client, _events) = Client::connect(Options::new("mqtt://localhost".parse()?)).await?;
//! client.publish(Publish::new("hello", "world")?.qos(QoS::AtLeastOnce)).await?;
//! client.disconnect().await?;
//! # Ok(())
//! # }
//! ```

pub mod amqp;
#[cfg(feature = "arguments")]
pub mod arguments;
mod backoff;
mod client;
mod clock;
mod driver;
mod error;
mod harmless;
pub mod http;
mod link;
mod mailbox;
mod message;
mod options;
mod path;
#[cfg(feature = "qlog")]
mod qlog;
mod socket;
mod tls;
mod transport;
#[cfg(test)]
mod unread;
mod url;

pub use backoff::Backoff;
pub use client::{Client, Connected, Delivery, Event, Events, Published};
pub use error::{ConnectError, Error, Refusal, is_tls};
pub use harmless::{Harmless, is_obeyed};
pub use link::LinkOptions;
pub use message::{InvalidError, Message, Priority, Publish, Subscription, Will};
pub use options::{Login, Options, Streams};
pub use path::PathStatistics;
#[cfg(feature = "qlog")]
pub use qlog::Qlog;
pub use socket::SocketSetup;
pub use sterna_mqtt::client::{SendError, ServerLimits};
pub use sterna_mqtt::packet::RetainHandling;
pub use sterna_mqtt::topic;
pub use sterna_mqtt::{Property, PropertyBuf, PublishProperties, QoS, ReasonCode, Version};
pub use sterna_quic::{
    CongestionControl, Overrides as QuicOverrides, Profile as QuicProfile, Role as QuicRole,
};
pub use tls::{Fingerprint, Tls, TlsError, TlsVersion};
pub use transport::ending::Unacknowledged;
pub use transport::quic::EarlyData;
pub use url::{MAX_URL_BYTES, Protocol, Scheme, Url, UrlError};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
