//! Messages that a reader did not get, or that no reader got: by reason and protocol.

use std::sync::Arc;

use sterna_broker::{
    EndCause, HoldBack, Loss, LossReason, LossWatcher, PublishRefusal, SessionName,
};
use sterna_net::Count;

use super::meters::Meters;
use crate::config::Protocol;
use crate::session::{AMQP_PREFIX, HTTP_PREFIX, QUEUE_PREFIX, reader_parts};

/// The reason of a dropped message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DropReason {
    /// The queue of its reader was full, or all messages together were above their limit.
    QueueFull,
    /// It was refused, and its publisher told so. An AMQP queue that it is for was full, or the transaction
    /// that it is in is too large.
    QueueRefused,
    /// It was refused because the store was full.
    StoreFull,
    /// It was refused because other nodes want it, and NATS could not take it.
    ClusterAway,
    /// It was of QoS 0 and had waited for too long.
    TooLate,
    /// It was of QoS 0, and its reader was not there.
    Away,
    /// Its expiry interval had passed.
    Expired,
    /// Consumers of an AMQP queue without dead letters rejected it, or failed too often.
    Undeliverable,
    /// It is larger than its reader takes, or cannot be had in the reader's protocol.
    TooLarge,
    /// It was refused because its publisher publishes faster than it may.
    RateExceeded,
    /// The rules do not let its publisher publish there.
    NotAuthorized,
    /// Its topic, its properties or its form are not valid.
    Invalid,
}

impl DropReason {
    /// All reasons.
    pub(crate) const ALL: [Self; 12] = [
        Self::QueueFull,
        Self::QueueRefused,
        Self::StoreFull,
        Self::ClusterAway,
        Self::TooLate,
        Self::Away,
        Self::Expired,
        Self::Undeliverable,
        Self::TooLarge,
        Self::RateExceeded,
        Self::NotAuthorized,
        Self::Invalid,
    ];

    /// The value of the label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::QueueRefused => PublishRefusal::QueueFull.name(),
            Self::StoreFull => PublishRefusal::StoreFull.name(),
            Self::ClusterAway => PublishRefusal::ClusterAway.name(),
            Self::TooLate => "too_late",
            Self::Away => "away",
            Self::Expired => "expired",
            Self::Undeliverable => "undeliverable",
            Self::TooLarge => "too_large",
            Self::RateExceeded => "rate_exceeded",
            Self::NotAuthorized => "not_authorized",
            Self::Invalid => "invalid",
        }
    }

    /// The reason of a publication that the broker has refused.
    const fn of_refusal(refusal: PublishRefusal) -> Self {
        match refusal {
            PublishRefusal::QueueFull => Self::QueueRefused,
            PublishRefusal::StoreFull => Self::StoreFull,
            PublishRefusal::ClusterAway => Self::ClusterAway,
        }
    }

    const fn of_loss(reason: LossReason) -> Self {
        match reason {
            LossReason::Full => Self::QueueFull,
            LossReason::Late => Self::TooLate,
            LossReason::Away => Self::Away,
            LossReason::Expired => Self::Expired,
            LossReason::Undeliverable => Self::TooLarge,
            LossReason::Dead => Self::Undeliverable,
            LossReason::Forbidden => Self::NotAuthorized,
        }
    }
}

/// Values of the label `protocol`: the protocols of
/// [`Protocol::OF_MESSAGES`], then [`SHARED`] and [`INTERNAL`].
const PARTIES: usize = Protocol::OF_MESSAGES.len() + 2;
/// The queue of a shared subscription. Its members may speak any protocol; an AMQP queue is one.
const SHARED: usize = Protocol::OF_MESSAGES.len();
/// The broker's own: wills and dead letters.
const INTERNAL: usize = SHARED + 1;

const fn party_name(party: usize) -> &'static str {
    match party {
        SHARED => "shared",
        INTERNAL => "internal",
        other => Protocol::OF_MESSAGES[other].name(),
    }
}

/// The party that a reader of the broker is, by its name without a user.
fn party_of(reader: &str) -> usize {
    let begins = |prefix: &&str| reader.starts_with(*prefix);
    if reader.starts_with(sterna_mqtt::topic::SHARE_PREFIX) {
        SHARED
    } else if [AMQP_PREFIX, QUEUE_PREFIX].iter().any(begins) {
        Protocol::Amqp as usize
    } else if begins(&HTTP_PREFIX) {
        Protocol::Http as usize
    } else {
        Protocol::Mqtt as usize
    }
}

/// Numbers of dropped messages of one shard.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    numbers: [[Count; DropReason::ALL.len()]; PARTIES],
    /// Messages of clients that the broker has refused, by [`PublishRefusal`]: a part of `numbers`.
    refused: [Count; PublishRefusal::ALL.len()],
}

impl Drops {
    /// Counts a message of a client, which spoke this protocol.
    pub(crate) fn count(&self, protocol: Protocol, reason: DropReason) {
        self.numbers[protocol as usize][reason as usize].add(1);
    }

    /// Counts messages of a client, which spoke this protocol, that the broker has refused.
    pub(crate) fn count_refused(&self, protocol: Protocol, why: PublishRefusal, messages: usize) {
        let reason = DropReason::of_refusal(why);
        self.numbers[protocol as usize][reason as usize].add(messages as u64);
        self.refused[why as usize].add(messages as u64);
    }

    /// All numbers. The broker has refused `refused` messages, by [`PublishRefusal`]; those of them that were no
    /// client's were its own.
    pub(crate) fn table(&self, refused: [u64; PublishRefusal::ALL.len()]) -> DropTable {
        let mut table = DropTable::default();
        for (row, counts) in table.0.iter_mut().zip(&self.numbers) {
            for (number, count) in row.iter_mut().zip(counts) {
                *number = count.get();
            }
        }
        for (refusal, refused) in PublishRefusal::ALL.into_iter().zip(refused) {
            let at = DropReason::of_refusal(refusal) as usize;
            let of_clients = self.refused[refusal as usize].get();
            table.0[INTERNAL][at] = refused.saturating_sub(of_clients);
        }
        table
    }
}

/// Numbers of dropped messages at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DropTable([[u64; DropReason::ALL.len()]; PARTIES]);

impl DropTable {
    /// Adds those of another shard.
    pub(crate) fn add(&mut self, other: &Self) {
        for (row, more) in self.0.iter_mut().zip(&other.0) {
            for (number, more) in row.iter_mut().zip(more) {
                *number += more;
            }
        }
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().flatten().sum()
    }

    /// The numbers with the labels `reason` and `protocol`.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let rows = self.0.iter().enumerate();
        rows.flat_map(|(party, row)| {
            let numbers = DropReason::ALL.iter().zip(row);
            numbers.map(move |(reason, number)| (reason.name(), party_name(party), *number))
        })
    }
}

/// Counts the losses of a shard's queues, and logs each.
#[derive(Debug)]
pub(crate) struct Watcher(pub(crate) Arc<Meters>);

impl LossWatcher for Watcher {
    fn lost(&self, loss: Loss<'_>) {
        let reason = DropReason::of_loss(loss.reason);
        let (client, user) = reader_parts(loss.reader);
        self.0.drops.numbers[party_of(client)][reason as usize].add(loss.messages);
        log_drops((client, user), loss.topic, reason, loss.messages);
        let reader = (loss.reader, loss.origin);
        let watch = &self.0.watch;
        watch.dropped(reader, loss.topic, reason.name(), loss.messages);
    }

    fn holds(&self, reader: &str) {
        let (client, user) = reader_parts(reader);
        tracing::info!(
            client,
            user,
            "the reader's queue is half full: its publishers are read as fast as it takes"
        );
    }

    fn let_go(&self, session: &SessionName) {
        tracing::warn!(
            session = session.id(),
            user = session.user(),
            "the store has little room left, and this session holds most of its log: its client is disconnected, and the \
             limits of its queue hold until it has read all"
        );
    }

    fn held_back(&self, filter: &str, reason: HoldBack, messages: u64, pause_ms: u64) {
        let why = match reason {
            HoldBack::Lost => "consumers that had it were lost, and the message may be the cause",
            HoldBack::DeadLettersFull => "the queue of its dead letters is full",
        };
        tracing::warn!(
            queue = filter,
            messages,
            pause_ms,
            why,
            "messages wait before they are delivered again; the pause doubles each time"
        );
    }

    fn ended(&self, session: &SessionName, cause: EndCause) {
        let (session, user) = (session.id(), session.user());
        // The broker itself attends queues for a moment when it makes them, and roots in a cluster.
        if session.starts_with(QUEUE_PREFIX) || session.starts_with('\0') {
            return;
        }
        self.0.ends[cause.number()].add(1);
        tracing::debug!(session, user, cause = cause.name(), "the consumer has left");
    }

    fn slow(&self, reader: &str) {
        let (client, user) = reader_parts(reader);
        tracing::warn!(
            client,
            user,
            "the reader takes too little: it holds no publishers any more, and its queue drops what it has no places for"
        );
    }
}

/// A line about a message that its reader does not get. The target is a name of its own, so that
/// `log.level` can ask for these lines alone. There may be as many lines as messages.
pub(super) fn log_drop(client: &str, topic: &str, reason: DropReason) {
    log_drops((client, None), topic, reason, 1);
}

fn log_drops((client, user): (&str, Option<&str>), topic: &str, reason: DropReason, messages: u64) {
    tracing::debug!(
        target: "sterna::drop",
        client,
        user,
        topic,
        reason = reason.name(),
        messages,
        "message dropped"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_known_by_its_name() {
        for (reader, name) in [
            ("sensor-1", "mqtt"),
            ("$amqp/container/link", "amqp"),
            ("$queue/orders", "amqp"),
            ("$http/session", "http"),
        ] {
            for user in [None, Some("ann")] {
                let reader = SessionName::new(user, reader);
                assert_eq!(party_name(party_of(reader_parts(reader.text()).0)), name);
            }
        }
        assert_eq!(party_name(party_of("$share/group/t/#")), "shared");
    }

    #[test]
    fn refused_messages_of_no_client_were_the_brokers_own() {
        let drops = Drops::default();
        drops.count_refused(Protocol::Amqp, PublishRefusal::QueueFull, 1);
        // One that its door has refused, of which the broker knows nothing.
        drops.count(Protocol::Amqp, DropReason::QueueRefused);
        drops.count(Protocol::Mqtt, DropReason::NotAuthorized);
        let table = drops.table([3, 1, 0]);
        assert_eq!(table.total(), 6);
        let counted: Vec<_> = table.numbers().filter(|(_, _, n)| *n > 0).collect();
        assert_eq!(
            counted,
            [
                ("not_authorized", "mqtt", 1),
                ("queue_refused", "amqp", 2),
                ("queue_refused", "internal", 2),
                ("store_full", "internal", 1),
            ]
        );
    }
}
