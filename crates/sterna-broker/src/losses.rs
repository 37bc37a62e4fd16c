//! Messages that a queue has lost, with the reason: counted, and told to the watcher.

use std::fmt;
use std::sync::Arc;

use crate::attempts::HoldBack;
use crate::counters::Counters;
use crate::end_cause::EndCause;
use crate::message::{Message, Origin};
use crate::name::SessionName;
use crate::queues::Queues;

/// The reason of a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossReason {
    /// The queue, or all messages together, had reached a limit.
    Full,
    /// A message of QoS 0 had waited longer than [`crate::Limits::queued_qos0_age_ms`].
    Late,
    /// A message of QoS 0 whose reader was not connected.
    Away,
    /// Its expiry interval had passed.
    Expired,
    /// Its only consumer could not take it ([`crate::Outcome::Undeliverable`]).
    Undeliverable,
    /// A kept queue without dead letters: consumers rejected it, or failed too often.
    Dead,
    /// A will that its owner may not publish any more, or a message that its reader may not have when it is its turn.
    Forbidden,
}

/// A message that a queue has lost.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    /// The reason.
    pub reason: LossReason,
    /// Owner of the queue, or of the will: the text of a session's name, or the whole filter of a shared subscription.
    pub reader: &'a str,
    /// Its publisher; none if it is unknown, or for several messages.
    pub origin: Origin,
    /// The message's topic; empty if it is unknown, or for several messages.
    pub topic: &'a str,
    /// Number of messages.
    pub messages: u64,
}

/// Is told of each message that a queue of the shard loses.
pub trait LossWatcher: Send + fmt::Debug {
    /// A queue has lost a message.
    fn lost(&self, loss: Loss<'_>);

    /// A reader of this name has held publishers for [`crate::Limits::reader_stall_ms`], and goes on. A shard tells it of
    /// one reader in 10 seconds at most.
    fn holds(&self, reader: &str) {
        let _ = reader;
    }

    /// The session of this name held most of the log of a store that is nearly full: its consumer was let go, once, and
    /// its limits hold until it has read all.
    fn let_go(&self, session: &SessionName) {
        let _ = session;
    }

    /// A shared subscription holds messages back before they are delivered again: so many since it was told last, and
    /// the last one for so many milliseconds. It is told once for each subscription and reason in a minute.
    fn held_back(&self, filter: &str, reason: HoldBack, messages: u64, pause_ms: u64) {
        let _ = (filter, reason, messages, pause_ms);
    }

    /// The consumer of the session of this name has left it.
    fn ended(&self, session: &SessionName, cause: EndCause) {
        let _ = (session, cause);
    }

    /// A reader of this name took too little in [`crate::Limits::reader_stall_ms`]: it holds nobody until it takes more.
    /// A shard tells it of one reader in 10 seconds at most.
    fn slow(&self, reader: &str) {
        let _ = reader;
    }
}

impl Counters {
    const fn count_losses(&mut self, messages: u64, reason: LossReason) {
        match reason {
            LossReason::Full => self.dropped_full += messages,
            LossReason::Late => self.dropped_late += messages,
            LossReason::Away => self.dropped_away += messages,
            LossReason::Expired => self.dropped_expired += messages,
            LossReason::Undeliverable => self.dropped_undeliverable += messages,
            LossReason::Dead => self.dropped_dead += messages,
            LossReason::Forbidden => self.dropped_forbidden += messages,
        }
    }
}

impl<P> Queues<P> {
    /// A session's queue has lost a message; `None` for one that is not in memory.
    pub(crate) fn lose(&mut self, slot: u32, message: Option<&Message>, reason: LossReason) {
        let reader = self.sessions[slot].name.clone();
        self.lose_of_reader(reader.text(), message, reason);
    }

    /// The queue of a shared subscription of this shard has lost a message.
    pub(crate) fn lose_of_group(&mut self, id: u32, message: Option<&Message>, reason: LossReason) {
        let filter = self.groups.get(&id).map(|group| Arc::clone(&group.filter));
        self.lose_of_reader(filter.as_deref().unwrap_or_default(), message, reason);
    }

    /// A queue has lost a message; `reader` is the text of a session's name, or the whole filter of a shared subscription.
    pub(crate) fn lose_of_reader(
        &mut self,
        reader: &str,
        message: Option<&Message>,
        reason: LossReason,
    ) {
        self.counters.count_losses(1, reason);
        if let Some(watcher) = &self.loss_watcher {
            watcher.lost(Loss {
                reason,
                reader,
                origin: message.map_or(Origin::NONE, Message::origin),
                topic: message.map_or("", Message::topic),
                messages: 1,
            });
        }
    }
}
