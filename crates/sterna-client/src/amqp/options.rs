//! Options of an AMQP connection and of its links.

use std::time::Duration;

use sterna_amqp::Limits;

use super::Error;
use super::login::Sasl;
use super::value::Value;
use crate::link::{LinkOptions, has_link_options};
use crate::options::random_id;
use crate::url::{Protocol, Url};

pub use sterna_amqp::messaging::{
    DistributionMode, TerminusDurability as Durability, TerminusExpiryPolicy as ExpiryPolicy,
};
pub use sterna_amqp::performatives::{
    ReceiverSettleMode as ReceiverSettles, SenderSettleMode as SenderSettles,
};

/// Largest number of messages of a sender that may be under way. The engine keeps no more for a
/// link.
pub const MAX_IN_FLIGHT: usize = 16_384;

has_link_options!(Options);

/// Settings of a connection. [`Options::new`] has the defaults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// URL, TLS, QUIC and reconnecting. Its fields can be set as if they were here.
    pub link: LinkOptions,
    /// Names this client towards the broker; a random name by default. With the names of links it
    /// names durable subscriptions, so it has to stay the same for them.
    pub container_id: String,
    /// The host that is addressed, for brokers that serve several; the URL's by default.
    pub hostname: Option<String>,
    /// Authentication of the client; by default PLAIN if the URL has a user name, else ANONYMOUS.
    pub sasl: Sasl,
    /// Longest wait, at the end of the connection, for the broker to acknowledge the written bytes;
    /// 30 s by default. Over QUIC the wait is shorter on a fast path. It begins anew with each
    /// acknowledgement.
    pub close_timeout: Duration,
    /// Sends everything up to the first attach at once, without an answer of the broker (part 2,
    /// section 2.4.2). On by default. If a broker hangs up on that, the next attempt waits for each
    /// answer.
    pub pipelined: bool,
    /// Longest silence of this end in seconds. A peer counts as dead after twice this time. 60 by default, 0 turns
    /// it off. Over QUIC the open leaves it out. A peer counts as dead after this time there, but not before 30 s, and
    /// QUIC sends a PING after half of it.
    pub idle_timeout_s: u16,
    /// Largest frame that is taken, in bytes; 65,536 by default, 512 to 1 GiB.
    pub max_frame_bytes: u32,
    /// Largest message that is taken, in bytes; 64 MiB by default.
    pub max_message_bytes: u64,
    /// Transfers that a session takes ahead; 2,048 by default.
    pub incoming_window: u32,
    /// Bytes of received messages that wait for the application, over all links; 128 MiB by default.
    /// Beyond, the client stops reading.
    pub incoming_bytes: usize,
    /// Bytes of messages that wait to be sent or to be settled, over all links; 128 MiB by default.
    /// Beyond, sending waits. A single message may be larger.
    pub outgoing_bytes: usize,
    /// Longest wait for the application's first message or a receiver's credit, if the start
    /// travels as early data. Both then share the first datagram. 5 ms by default.
    pub early_wait: Duration,
}

impl Options {
    /// The defaults for this broker.
    #[must_use]
    pub fn new(url: Url) -> Self {
        let sasl = match (url.user(), url.password()) {
            (Some(user), password) => Sasl::Plain {
                user: user.to_owned(),
                password: password.unwrap_or_default().to_owned(),
            },
            (None, _) => Sasl::Anonymous,
        };
        Self {
            link: LinkOptions::new(url),
            container_id: random_id(),
            hostname: None,
            sasl,
            close_timeout: Duration::from_secs(30),
            pipelined: true,
            idle_timeout_s: 60,
            max_frame_bytes: 65_536,
            max_message_bytes: 64 << 20,
            incoming_window: 2_048,
            incoming_bytes: 128 << 20,
            outgoing_bytes: 128 << 20,
            early_wait: Duration::from_millis(5),
        }
    }

    /// Checks what types cannot.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.url.scheme().protocol() != Protocol::Amqp {
            return Err(Error::Invalid(
                "the URL is of MQTT or HTTP, which an AMQP connection does not speak: use Client or http::Client",
            ));
        }
        if self.container_id.is_empty() || self.container_id.len() > 256 {
            return Err(Error::Invalid("a container-id has 1 to 256 bytes"));
        }
        if !(512..=1 << 30).contains(&self.max_frame_bytes) {
            return Err(Error::Invalid("frames have 512 bytes to 1 GiB"));
        }
        if self.max_message_bytes == 0
            || self.incoming_window == 0
            || self.incoming_bytes == 0
            || !(1..=u32::MAX as usize).contains(&self.outgoing_bytes)
        {
            return Err(Error::Invalid(
                "a limit is 0, or beyond what can be counted",
            ));
        }
        if !self.link.is_valid() {
            return Err(Error::Invalid("a setting of QUIC is out of its range"));
        }
        Ok(())
    }

    /// The engine's limits.
    pub(super) fn limits(&self) -> Limits {
        let idle_timeout_ms = if self.url.scheme().is_quic() {
            0
        } else {
            u32::from(self.idle_timeout_s) * 1000
        };
        Limits {
            max_frame_bytes: self.max_frame_bytes,
            max_message_bytes: self.max_message_bytes,
            max_assembling_bytes: self.max_message_bytes.saturating_mul(2),
            incoming_window: self.incoming_window,
            idle_timeout_ms,
            // The driver has its own patience for the start; this one is for the end.
            open_timeout_ms: u32::try_from(self.longest_connect().as_millis()).unwrap_or(u32::MAX),
            ..Limits::default()
        }
    }
}

/// Options of a sender. The default is the anonymous node: each message's `to` is its address.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SenderOptions {
    /// The link's name; a random one by default. It has to stay the same for a link that is to be
    /// found again.
    pub name: Option<String>,
    /// The node that messages go to; `None` is the anonymous node.
    pub address: Option<String>,
    /// Time at which this end settles; for each message as it is sent (`Mixed`) by default.
    pub sender_settles: SenderSettles,
    /// Time at which the receiver settles. `Second` makes deliveries exactly once, where both ends
    /// recover.
    pub receiver_settles: ReceiverSettles,
    /// Durability of the target.
    pub durability: Durability,
    /// Event with which the target begins to expire.
    pub expiry_policy: ExpiryPolicy,
    /// Time until it expires, in seconds.
    pub timeout_s: u32,
    /// Required capabilities of the node: `queue`, `topic` and so on.
    pub capabilities: Vec<String>,
    /// Messages that may be under way; 1,024 by default, up to [`MAX_IN_FLIGHT`]. Beyond, sending
    /// waits.
    pub in_flight: usize,
}

impl Default for SenderOptions {
    fn default() -> Self {
        Self {
            name: None,
            address: None,
            sender_settles: SenderSettles::Mixed,
            receiver_settles: ReceiverSettles::First,
            durability: Durability::None,
            expiry_policy: ExpiryPolicy::SessionEnd,
            timeout_s: 0,
            capabilities: Vec::new(),
            in_flight: 1_024,
        }
    }
}

impl SenderOptions {
    /// A sender to this node.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: Some(address.into()),
            ..Self::default()
        }
    }
}

/// Credit of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    /// Automatic: the limit of messages that are on their way, wait for the application, or are
    /// undecided.
    Window(u32),
    /// Credit by hand, with [`Receiver::add_credit`](super::Receiver::add_credit).
    Manual,
}

/// Options of a receiver.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReceiverOptions {
    /// The link's name; a random one by default. It has to stay the same for a durable subscription.
    pub name: Option<String>,
    /// The node that messages come from.
    pub address: Option<String>,
    /// Requests a new node in place of an address. The broker makes it and tells its address
    /// ([`LinkInfo::address`](super::LinkInfo)).
    pub dynamic: bool,
    /// Time at which the sender settles. With `Settled`, messages come at most once. With
    /// `Unsettled`, all of them wait for a decision. With `Mixed` (the default), the broker
    /// chooses.
    pub sender_settles: SenderSettles,
    /// Time at which this end settles.
    pub receiver_settles: ReceiverSettles,
    /// Durability of the source.
    pub durability: Durability,
    /// Event with which the source begins to expire.
    pub expiry_policy: ExpiryPolicy,
    /// Time until it expires, in seconds.
    pub timeout_s: u32,
    /// Whether messages are taken (`Move`) or only looked at (`Copy`).
    pub distribution_mode: Option<DistributionMode>,
    /// A selector in the language of JMS: only messages that it is true for come.
    pub selector: Option<String>,
    /// Leaves out messages that this connection itself sends.
    pub no_local: bool,
    /// Further filters, by name.
    pub filters: Vec<(String, Value)>,
    /// Required capabilities of the node: `queue`, `topic`, `shared`, `global`.
    pub capabilities: Vec<String>,
    /// Mode of credit; a window of 256 messages by default.
    pub credit: Credit,
    /// Largest message that is taken, in bytes; the connection's limit by default.
    pub max_message_bytes: Option<u64>,
}

impl Default for ReceiverOptions {
    fn default() -> Self {
        Self {
            name: None,
            address: None,
            dynamic: false,
            sender_settles: SenderSettles::Mixed,
            receiver_settles: ReceiverSettles::First,
            durability: Durability::None,
            expiry_policy: ExpiryPolicy::SessionEnd,
            timeout_s: 0,
            distribution_mode: None,
            selector: None,
            no_local: false,
            filters: Vec::new(),
            capabilities: Vec::new(),
            credit: Credit::Window(256),
            max_message_bytes: None,
        }
    }
}

impl ReceiverOptions {
    /// A receiver from this node.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: Some(address.into()),
            ..Self::default()
        }
    }

    /// A receiver from a node that the broker makes for it.
    #[must_use]
    pub fn dynamic() -> Self {
        Self {
            dynamic: true,
            ..Self::default()
        }
    }

    /// Makes the receiver a durable subscription. It outlives connections, and is found again by
    /// the container-id and this name.
    #[must_use]
    pub fn durable(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self.durability = Durability::UnsettledState;
        self.expiry_policy = ExpiryPolicy::Never;
        self
    }

    /// Whether the source outlives its link.
    pub(super) const fn outlives_link(&self) -> bool {
        matches!(self.expiry_policy, ExpiryPolicy::Never) || self.timeout_s > 0
    }
}
