//! The measures of a door when memory is short. It does not read clients that publish, where their principal is heavy. It
//! ends clients of the heaviest principal, those first that hold most (`shard/shortage.rs`).
//!
//! A client that is not read is read for a moment every second. Then its PINGREQ is answered, and its
//! acknowledgements make room. Its keep-alive stands still otherwise.

use sterna_broker::Principal;
use sterna_net::ConnectionId;

use super::{Allowance, Door, Service};
use crate::context::Context;
use crate::inspect::Tally;
use crate::memory::{Stage, connection_bytes};

/// Bytes of partly arrived input that a client may have and still be read.
pub(crate) const LIGHT_BYTES: usize = 16 << 10;
/// The same where its principal is heavy, from the second stage on: many have a little, too.
const HEAVY_LIGHT_BYTES: usize = 1 << 10;

/// Unread bytes at which the transport drops what a client sends, by whether its principal is heavy.
pub(crate) fn most_unread_bytes(is_heavy: bool, stage: Stage) -> u32 {
    if is_heavy && stage >= Stage::MoveToLog {
        LIGHT_BYTES as u32
    } else {
        u32::MAX
    }
}

/// Whether a client's principal is heavy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Principals {
    /// It is to be looked up.
    #[default]
    Unknown,
    Light,
    Heavy,
}

/// Whether a client is read while memory is short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Reading {
    #[default]
    On,
    /// It is not.
    HeldBack,
    /// It is until something has come.
    Sip,
}

/// The reading of a client while memory is short, its allowance, and the counts of its traffic.
#[derive(Debug, Default)]
pub(crate) struct Sips {
    /// Whether it has published since it was read for a moment.
    pub(super) publishes: bool,
    reading: Reading,
    principal: Principals,
    /// Whether it waits for a reader whose queue is half full.
    pub(crate) is_held: bool,
    /// The beginning of its connection, in seconds since the Unix epoch.
    since_s: u32,
    /// Its allowance, if its user has limits.
    pub(super) allowance: Option<Box<Allowance>>,
    pub(crate) tally: Tally,
}

/// A connection, as a round weighs it while memory is short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighed {
    /// Its holder, which has entered for that.
    pub(crate) principal: Principal,
    /// About the bytes that its end gives back.
    pub(crate) bytes: u64,
    /// Of these, those that no session has.
    pub(crate) own_bytes: u64,
    pub(crate) connection: ConnectionId,
}

impl Sips {
    /// The state of a client that comes at `now_ms`, in milliseconds since the Unix epoch.
    pub(crate) fn begun(now_ms: u64) -> Self {
        Self {
            since_s: u32::try_from(now_ms / 1000).unwrap_or(u32::MAX),
            ..Self::default()
        }
    }

    /// The beginning of the client's connection, in milliseconds since the Unix epoch, to the second.
    pub(crate) fn since_ms(&self) -> u64 {
        u64::from(self.since_s) * 1000
    }

    /// Whether the client is not to be read; its connection keeps `partial_bytes` of partly arrived input. Ends the moment in
    /// which it was read.
    pub(crate) fn holds_back(
        &mut self,
        cx: &mut Context<'_>,
        (connection, partial_bytes): (ConnectionId, usize),
        user: Option<&str>,
    ) -> bool {
        let stage = cx.memory.stage();
        if stage == Stage::Normal {
            (self.publishes, self.reading) = (false, Reading::On);
            self.principal = Principals::Unknown;
            return self.paused_until_ms(cx.now_ms).is_some();
        }
        let is_sip = std::mem::take(&mut self.reading) == Reading::Sip;
        if self.principal == Principals::Unknown {
            let address = cx.address(connection);
            let found = cx.memory.principals().find(user, address);
            let is_heavy = found.is_some_and(|found| cx.memory.is_heavy(found));
            self.note_heavy(is_heavy);
            cx.net
                .cap_unread(connection, most_unread_bytes(is_heavy, stage));
        }
        let is_heavy = self.principal == Principals::Heavy;
        let is_concerned = is_heavy || stage >= Stage::Drop;
        let gives_more = self.publishes && (stage >= Stage::Drop || cx.memory.is_for_messages());
        let is_held_back =
            is_concerned && !is_sip && (gives_more || partial_bytes > self.light_bytes(stage));
        if is_held_back {
            self.reading = Reading::HeldBack;
        }
        is_held_back || self.paused_until_ms(cx.now_ms).is_some()
    }

    /// Notes whether the client's principal is heavy.
    fn note_heavy(&mut self, is_heavy: bool) {
        self.principal = if is_heavy {
            Principals::Heavy
        } else {
            Principals::Light
        };
    }

    /// The client is another principal's from now on.
    pub(super) fn forget_principal(&mut self) {
        self.principal = Principals::Unknown;
    }

    /// Bytes of partly arrived input that the client may have and still be read.
    fn light_bytes(&self, stage: Stage) -> usize {
        if self.principal == Principals::Heavy && stage >= Stage::MoveToLog {
            HEAVY_LIGHT_BYTES
        } else {
            LIGHT_BYTES
        }
    }

    /// Begins a moment in which the client is read, if it is not read now.
    fn open(&mut self) -> bool {
        let is_held_back = self.reading == Reading::HeldBack;
        if is_held_back {
            self.reading = Reading::Sip;
            self.publishes = false;
        }
        is_held_back
    }
}

impl<S: Service<Id = ConnectionId>> Door<S> {
    /// Memory has become short, or is short no more; or other principals are heavy.
    pub(crate) fn memory_changed(&mut self, cx: &mut Context<'_>) {
        self.with_all(cx, |_, _, _| {});
    }

    /// Reads for a moment the clients that are not read because memory is short; those of heavy principals only in a round.
    /// Clients with more than a little partly arrived input stay unread from the second stage on if their principal is heavy, and all from the stage on in which
    /// messages are dropped. More of that input helps nobody.
    pub(crate) fn sip(&mut self, cx: &mut Context<'_>, is_round: bool) {
        let stage = cx.memory.stage();
        let ids: Vec<ConnectionId> = self.clients.ids().collect();
        for id in ids {
            let opens = self.clients.get_mut(id).is_some_and(|client| {
                let partial_bytes = S::partial_bytes(client);
                let sips = S::sips(client);
                let is_heavy = sips.principal == Principals::Heavy;
                let is_hard = stage >= Stage::Drop || is_heavy;
                let may_open = stage < Stage::MoveToLog || !is_hard;
                (is_round || !is_heavy)
                    && (may_open || partial_bytes <= sips.light_bytes(stage))
                    && sips.open()
            });
            if opens {
                // The step's end lets the transport read.
                self.with_client(cx, id, |_, _, _| {});
            }
        }
    }

    /// Weighs all clients: bytes that the door keeps of them, and bytes not sent or not read yet, with the queues and what
    /// else ends with their connections.
    pub(crate) fn weigh(&self, cx: &Context<'_>, found: &mut Vec<Weighed>) {
        let ids = self.clients.ids();
        found.extend(ids.filter_map(|id| {
            let client = self.clients.get(id)?;
            let info = cx.net.info(id);
            let address = info.map(|info| info.peer.ip());
            let own_bytes = connection_bytes(info.map(|info| info.transport))
                + (S::kept_bytes(client) + cx.net.unsent_bytes(id) + cx.net.unread_bytes(id))
                    as u64;
            let mut bytes = own_bytes;
            S::each_session(client, &mut |session| {
                bytes += cx.broker.held_bytes(session).connected;
            });
            Some(Weighed {
                principal: cx.memory.principals().enter(S::user(client), address),
                bytes,
                own_bytes,
                connection: id,
            })
        }));
    }

    /// Notes whether the principal of a client is heavy; false where the client is not this door's.
    pub(crate) fn note_heavy(&mut self, id: ConnectionId, is_heavy: bool) -> bool {
        let client = self.clients.get_mut(id);
        client.is_some_and(|client| {
            S::sips(client).note_heavy(is_heavy);
            true
        })
    }

    /// Ends a client because memory is short and it holds more than others.
    pub(crate) fn shed(&mut self, cx: &mut Context<'_>, id: ConnectionId) {
        self.with_client(cx, id, S::shed);
    }
}
