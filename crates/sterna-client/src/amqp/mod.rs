//! AMQP 1.0: connections, sessions, senders, receivers, transactions, over TCP, TLS, WebSocket and
//! QUIC.
//!
//! A [`Connection`] connects by its [`LinkOptions::url`](crate::LinkOptions::url) (`amqp`, `amqps`, `amqp+ws`, `amqp+wss`,
//! `amqp+quic`). After a loss it connects again and attaches its links with their unsettled
//! deliveries. No message that a receiver has accepted is lost. With [`ReceiverSettles::Second`]
//! none is delivered twice, if the peer remembers the link.
//!
//! * **One flight.** Nothing here waits for the connection: protocol header, SASL, open, begin and
//!   attach leave together. Over QUIC each further session has a stream of its own. With a ticket
//!   and announced credit the first transfer travels in the first datagram.
//! * **Bounded.** Senders wait for room, receivers give credit only for what they have room for.
//! * **Precise.** An [`Error`] says what it ended, and has the peer's condition and words.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use sterna_client::amqp::{Connection, Message, Options, Outcome, ReceiverOptions, SenderOptions};
//!
//! let (connection, _events) = Connection::start(Options::new("amqp://localhost".parse()?))?;
//! let session = connection.session().await?;
//! let mut receiver = session.receiver(ReceiverOptions::new("queue/jobs")).await?;
//! let sender = session.sender(SenderOptions::new("queue/jobs")).await?;
//! assert_eq!(sender.deliver(Message::data("work")).await?, Outcome::Accepted);
//! let delivery = receiver.next().await?;
//! println!("{:?}", delivery.message()?.bytes());
//! delivery.accept().await?;
//! connection.close().await?;
//! # Ok(())
//! # }
//! ```

mod connection;
mod driver;
mod error;
mod login;
mod mapping;
mod memory;
mod message;
mod options;
mod outcome;
mod receiver;
mod sender;
mod transaction;
mod value;

pub use connection::{Connected, Connection, Event, Events, Session};
pub use driver::LinkInfo;
pub use error::{Error, Remote};
pub use login::Sasl;
pub use mapping::{RETAIN_ANNOTATION, TOPIC_ANNOTATION};
pub use message::{Annotations, Body, Header, Message, Properties};
pub use options::{
    Credit, DistributionMode, Durability, ExpiryPolicy, MAX_IN_FLIGHT, Options, ReceiverOptions,
    ReceiverSettles, SenderOptions, SenderSettles,
};
pub use outcome::Outcome;
pub use receiver::{Delivery, Receiver, Settlement};
pub use sender::{Sender, Sending};
pub use sterna_amqp::Condition;
pub use sterna_amqp::types::Encoded;
pub use transaction::{Controller, Transaction};
pub use value::Value;
