//! A subscription while its response lasts: a session of the broker, and where its messages go.

use std::collections::VecDeque;

use sterna_broker::{ConsumerId, Delivery, SessionKey};
use sterna_http::ExchangeId;

use super::origin::Reader;
use super::plan::{Poll, Subscribe};
use crate::http::format::{Format, OutgoingMessage, Place};
use crate::identity::Identity;
use crate::session::http::Window;

/// A subscription of a connection.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) exchange: ExchangeId,
    pub(super) consumer: ConsumerId,
    pub(super) session: SessionKey,
    /// The subscription's owner.
    pub(super) identity: Identity,
    /// The session's name, as the client knows it.
    pub(super) name: Box<str>,
    pub(super) reader: Reader,
    pub(super) format: Format,
    pub(super) outlet: Outlet,
    pub(super) state: State,
    /// Ids and tags of messages that an earlier response sent and that are to be sent again, in order.
    pub(super) resend: VecDeque<(u64, u64)>,
    /// The message of which a part is sent.
    pub(super) unfinished: Option<Box<Sending>>,
    /// The sent messages that are kept.
    pub(super) keep: Keep,
    /// Whether its queue waits for room, or for acknowledgements.
    pub(super) parked: bool,
    pub(super) timing: Timing,
    /// The time at which something was sent last.
    pub(super) quiet_since_ms: u64,
    pub(super) flow: Flow,
}

/// A message that is being sent, piece by piece.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) delivery: Delivery,
    /// Zero for none.
    pub(super) id: u64,
    /// The time at which it began: the rest of its lifetime is of this time.
    pub(super) begun_ms: u64,
    pub(super) place: Place,
}

impl Sending {
    pub(super) fn item(&self) -> OutgoingMessage<'_> {
        OutgoingMessage::of(&self.delivery, self.id, self.begun_ms)
    }
}

/// Where messages go.
#[derive(Debug)]
pub(super) enum Outlet {
    /// To a response that does not end.
    Stream,
    /// To a response that ends with them.
    Poll(Box<Polling>),
    /// To the response of a poll whose last message is being sent. It ends with that.
    LastOfPoll,
    /// To a stream of a WebTransport session, or its datagrams.
    Transport {
        /// The stream that the server has opened.
        stream: u64,
    },
}

/// A poll that waits.
#[derive(Debug)]
pub(super) struct Polling {
    pub(super) poll: Poll,
    pub(super) deadline_ms: u64,
    /// Path and parameters of the request that goes on, without session and position.
    pub(super) next: String,
    /// The position that the client is at.
    pub(super) after: u64,
}

/// How far a subscription has come.
#[derive(Debug)]
pub(super) enum State {
    /// The session is on its way from another shard, or is not kept yet.
    Opening(Box<Opening>),
    /// The response has begun, or is a poll that waits.
    Live,
    /// All its filters have ended. The response ends when the queue is empty.
    Ending,
}

/// The steps that follow once the session is here, and kept.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) plan: Subscribe,
    pub(super) identity: Identity,
    /// The append by which its session was opened; 0 for none.
    pub(super) token: u64,
    /// The time for which its session outlives the response, in seconds.
    pub(super) expiry_s: u32,
    /// Whether the session was there before.
    pub(super) is_present: bool,
}

/// The sent messages that are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Keep {
    /// All of them, until they are acknowledged. When the window is full, nothing more is sent.
    Acknowledged(Window),
    /// The last ones, as far as the window goes.
    Last(Window),
}

/// Time limits of a response in milliseconds, with the settings of its beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Silence before a heartbeat; 0 for no heartbeats.
    pub(super) heartbeat_ms: u64,
    /// Time without progress at the client before the response is cut off.
    pub(super) stalled_ms: u64,
}

/// Whether a client takes the bytes that it is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Bytes handed to the transport.
    pub(super) sent_bytes: u64,
    /// Bytes that it had taken at the last look.
    pub(super) taken_bytes: u64,
    /// The time since which nothing was taken, as far as known.
    pub(super) since_ms: u64,
}

impl Subscription {
    /// Whether it has something to say that is not in its queue: to go on with a message, to send some again, or to end.
    pub(super) fn has_more(&self) -> bool {
        self.unfinished.is_some() || !self.resend.is_empty() || matches!(self.state, State::Ending)
    }
}

impl Flow {
    /// Notes the bytes that are sent.
    pub(super) const fn sent(&mut self, bytes: usize, now_ms: u64) {
        if self.sent_bytes <= self.taken_bytes {
            self.since_ms = now_ms;
        }
        self.sent_bytes += bytes as u64;
    }

    /// The time to look whether anything was taken; `None` where nothing is left to take.
    pub(super) fn deadline_ms(&self, timeout_ms: u64) -> Option<u64> {
        (self.sent_bytes > self.taken_bytes).then(|| self.since_ms + timeout_ms)
    }

    /// Notes the bytes taken; returns whether they are more than before.
    pub(super) const fn taken(&mut self, bytes: u64, now_ms: u64) -> bool {
        if bytes <= self.taken_bytes {
            return false;
        }
        self.taken_bytes = bytes;
        self.since_ms = now_ms;
        true
    }
}

/// A name that nobody else has: 120 random bits.
pub(super) fn new_name() -> Option<String> {
    use std::fmt::Write as _;
    let mut random = [0; 15];
    getrandom::fill(&mut random).ok()?;
    let mut name = String::from("~");
    for byte in random {
        let _ = write!(name, "{byte:02x}");
    }
    Some(name)
}

/// Whether a session is the client's by name, and not one that the broker has named.
pub(super) fn is_durable(name: &str) -> bool {
    !name.starts_with('~')
}

/// The bits of a [`ConsumerId`] that tell a subscription from clients of other protocols. Two are those in
/// which a link of AMQP differs from an MQTT client. The third is the highest, which no number of a link
/// reaches.
const KIND_BITS: u64 = 1 << 63 | 0b11 << NUMBER_BITS;
/// The values of these bits for a subscription.
const SUBSCRIPTION: u64 = 1 << 63 | 0b01 << NUMBER_BITS;
/// Bits below the lower two.
const NUMBER_BITS: u32 = 30;

/// The broker's name for a subscription, by its number on the shard.
pub(super) const fn consumer_id(number: u64) -> ConsumerId {
    let low = number & ((1 << NUMBER_BITS) - 1);
    let high = (number >> NUMBER_BITS) << 32 & !KIND_BITS;
    ConsumerId(high | SUBSCRIPTION | low)
}

/// Whether the broker's name is that of a subscription.
pub(crate) const fn is_consumer(consumer: ConsumerId) -> bool {
    consumer.0 & KIND_BITS == SUBSCRIPTION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_meet_no_other_consumers() {
        for number in [0, 1, (1 << NUMBER_BITS) - 1, 1 << NUMBER_BITS, 1 << 40] {
            let consumer = consumer_id(number);
            assert!(is_consumer(consumer), "{number}");
            assert!(!crate::amqp::is_consumer(consumer), "{number}");
        }
        assert_ne!(consumer_id(1), consumer_id(1 + (1 << NUMBER_BITS)));
        for slot in [0, (1 << 30) - 1, 1 << 31, u64::from(u32::MAX)] {
            for generation in [0, 7, u64::from(u32::MAX)] {
                assert!(
                    !is_consumer(ConsumerId(generation << 32 | slot)),
                    "{slot:x}"
                );
            }
        }
    }

    #[test]
    fn a_name_of_the_broker_is_nobodys_by_choice() {
        assert_ne!(new_name(), new_name());
        assert!(!is_durable(&new_name().unwrap()));
    }

    #[test]
    fn a_client_that_takes_nothing_is_noticed() {
        let mut flow = Flow::default();
        assert_eq!(flow.deadline_ms(100), None);
        flow.sent(10, 1000);
        flow.sent(10, 1050);
        assert_eq!(flow.deadline_ms(100), Some(1100));
        assert!(flow.taken(5, 1100));
        assert_eq!(flow.deadline_ms(100), Some(1200));
        assert!(!flow.taken(5, 1200));
        assert!(flow.taken(20, 1200));
        assert_eq!(flow.deadline_ms(100), None);
        flow.sent(1, 5000);
        assert_eq!(flow.deadline_ms(100), Some(5100));
    }
}
