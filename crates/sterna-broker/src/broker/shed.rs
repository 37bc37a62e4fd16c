//! Memory that sessions hold, and the end of those that hold most: see
//! [`Principals`](crate::Principals).

use super::Broker;
use crate::api::{DoorState, EvictReason, SessionKey};
use crate::counters::ENTRY_BYTES;
use crate::directory::Principal;
use crate::name::SessionName;
use crate::session::{BrokerSession, State};

/// About the memory that a session takes, in bytes. Bodies that it shares with others are included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionBytes {
    /// Bytes that are given back when its connection ends.
    pub connected: u64,
    /// Bytes that stay then: 0 where the session ends with its connection.
    pub lasting: u64,
}

/// A session that holds memory also without a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LastingSession {
    /// About the bytes that its end gives back.
    pub bytes: u64,
    /// Its holder.
    pub principal: Principal,
    /// Whether no consumer is connected.
    pub is_away: bool,
    slot: u32,
    generation: u32,
}

/// Bytes of a session's queue and ledger.
fn queued_bytes<P>(session: &BrokerSession<P>) -> u64 {
    let entries = (session.pending.len() + session.ledger.len()) as u64;
    session.account.pending_bytes + session.account.sent_bytes + entries * ENTRY_BYTES
}

impl<P: DoorState> Broker<P> {
    /// The memory that a session takes; nothing for an outdated key.
    #[must_use]
    pub fn held_bytes(&self, session: SessionKey) -> SessionBytes {
        let Some(session) = self.queues.attended(session) else {
            return SessionBytes::default();
        };
        let (queued, own) = (queued_bytes(session), u64::from(session.weight.charged));
        if session.expiry_s == 0 {
            SessionBytes {
                connected: queued + own,
                lasting: 0,
            }
        } else {
            SessionBytes {
                connected: queued,
                lasting: own,
            }
        }
    }

    /// Shows the bytes that the queues of sessions take on this shard, and who holds them. They are in no
    /// [principal's bytes](crate::Principals::bytes) by themselves, since they change with each message.
    pub fn weigh_sessions(&self, visit: &mut dyn FnMut(Principal, u64)) {
        for (_, session) in self.queues.sessions.open() {
            let bytes = queued_bytes(session);
            if bytes > 0 {
                visit(session.weight.principal, bytes);
            }
        }
    }

    /// The sessions of one principal on this shard that outlive their connections, in no order. The broker's own are in no
    /// such list.
    #[must_use]
    pub fn lasting_sessions(&self, principal: Principal) -> Vec<LastingSession> {
        let sessions = &self.queues.sessions;
        if principal == Principal::BROKER {
            return Vec::new();
        }
        let of_slot = |slot| {
            let (holder, charged) = sessions.charge(slot)?;
            let open = sessions.get(slot);
            let lasts = open.is_none_or(|session| {
                session.state == State::Active && (session.expiry_s > 0 || !session.is_connected())
            });
            let queued = open.map_or(0, queued_bytes);
            (holder == principal && lasts).then_some(LastingSession {
                bytes: u64::from(charged) + queued,
                principal,
                is_away: open.is_none_or(|session| !session.is_connected()),
                slot,
                generation: sessions.generation(slot)?,
            })
        };
        sessions.slots().filter_map(of_slot).collect()
    }

    /// Ends a session because memory is short, with what waits for it, and disconnects its consumer. Returns its name;
    /// `None` where it has ended meanwhile.
    pub fn end_lasting(&mut self, now_ms: u64, session: LastingSession) -> Option<SessionName> {
        let slot = session.slot;
        let known = self.queues.session(slot, session.generation)?;
        let name = known.name.clone();
        if known.state != State::Active {
            self.finish(now_ms);
            return None;
        }
        self.evict_consumer(now_ms, slot, EvictReason::MemoryShort);
        self.queues.counters.sessions_shed += 1;
        self.end_session(now_ms, slot, true);
        self.finish(now_ms);
        Some(name)
    }
}
