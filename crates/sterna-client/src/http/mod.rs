//! HTTP publish-subscribe over HTTP/3, HTTP/2 and HTTP/1.1 (`docs/http.md`).
//!
//! A [`Client`] publishes and subscribes by its [`LinkOptions::url`](crate::LinkOptions::url). `https` is HTTP/3 if UDP gets
//! through, else HTTP/2 or 1.1 over TLS. `h3` is HTTP/3 only, and `http` is HTTP/1.1 without
//! encryption.
//!
//! * **One packet.** A small message is one packet up and one down. To a broker that this process was
//!   connected to before, the first message travels in the first datagram (0-RTT).
//! * **Once.** A message with QoS 1 or 2 has an `Idempotency-Key`. It is delivered once, also if it is
//!   repeated after a lost response, or by a third party that recorded early data.
//! * **Resumed.** After a loss, a [`Subscription`] continues after the last message that the
//!   application took. A durable one continues after the last that it acknowledged.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use sterna_client::http::{Client, Options, Subscribe};
//! use sterna_client::{Publish, QoS};
//!
//! let client = Client::new(Options::new("https://broker.example".parse()?))?;
//! let mut house = client.subscribe(Subscribe::new("house/#", QoS::AtLeastOnce)?).await?;
//! client.publish(Publish::new("house/door", "open")?.qos(QoS::AtLeastOnce)).await?;
//! println!("{:?}", house.next().await?.message);
//! client.close().await;
//! # Ok(())
//! # }
//! ```

mod call;
mod client;
mod error;
mod exchange;
mod fields;
mod frames;
mod link;
mod options;
mod problem;
mod session;
mod subscription;
mod text;

use std::fmt;

pub use call::{Answer, Lines, Method};
pub use client::{Client, Connected, Event, Events, Retained};
pub use error::Error;
pub use frames::{Frame, FrameError, Frames};
pub use options::{Credentials, MAX_FILTERS, MAX_SESSION_NAME, Options, Subscribe};
pub use problem::Problem;
pub use session::SessionDescription;
pub use subscription::{Received, Subscription};

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// HTTP/1.1 (RFC 9112).
    Http11,
    /// HTTP/2 (RFC 9113).
    Http2,
    /// HTTP/3 (RFC 9114).
    Http3,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
            Self::Http3 => "HTTP/3",
        })
    }
}
