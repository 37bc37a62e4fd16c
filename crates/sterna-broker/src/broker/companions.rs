//! Records that are kept together with a message, and the message's name in a cluster.

use super::Broker;
use crate::api::{CompanionRecord, Companions, DoorState, MessageName, Outcome, SessionKey};
use crate::directory::RetainedBy;
use crate::peers::{Once, Settles};
use crate::records::{self, Kind, split_key};
use crate::store::Change;

/// Bits of a round that count the publications of a session; those above are when they began.
const ROUND_BITS: u32 = 20;

/// The companions of one publication. They are gone when the call that publishes it ends, also by a panic.
#[derive(Default, Debug)]
pub(super) struct Beside {
    pub(super) name: Option<Name>,
    /// Changes of records that are appended with the message, or not at all.
    pub(super) changes: Vec<Change>,
    /// The holder of the message if it is retained.
    pub(super) by: RetainedBy,
}

impl Beside {
    /// Whether the message goes by the log of a cluster in any case.
    pub(super) const fn is_for_log(&self) -> bool {
        matches!(self.name, Some(Name::Given(..) | Name::Logged(..)))
    }
}

/// The name of a message that is published in a cluster.
#[derive(Debug)]
pub(super) enum Name {
    /// Of a session, by its packet identifier and by how many the session has published.
    Counted(SessionKey, u16),
    /// The same, of a message that goes by the log.
    Logged(SessionKey, u16),
    /// This one, with the record of the whole cluster that is kept behind it.
    Given(Once, Option<Settles>),
}

impl<P: DoorState> Broker<P> {
    /// The companions of a publication as they are kept here.
    #[inline]
    pub(super) fn beside(&mut self, companions: Companions<'_>) -> Beside {
        let Companions { record, name } = companions;
        let mut beside = Beside::default();
        if let Some(record) = record {
            beside.changes.extend(self.companion_change(record));
        }
        if self.peers.is_some() {
            beside.name = name.map(|name| match name {
                MessageName::Counted { session, packet_id } => Name::Counted(session, packet_id),
                MessageName::Logged { session, number } => Name::Logged(session, number),
                MessageName::Given { once, record } => {
                    let settles = record.map(|(key, value)| Settles::Shared {
                        key: key.into(),
                        value: value.into(),
                    });
                    Name::Given(once, settles)
                }
            });
        }
        beside
    }

    /// The change of a record; `None` where nothing is kept of whoever it is of.
    pub(super) fn companion_change(&mut self, record: CompanionRecord<'_>) -> Option<Change> {
        match record {
            CompanionRecord::Session {
                session,
                key,
                value,
            } => self.door_change(session, key, Some(value)),
            CompanionRecord::Node { key, value } => self
                .keeps_of_node()
                .then(|| records::put(Kind::Node, "", key, value.to_vec())),
            CompanionRecord::Ended {
                session,
                tag,
                outcome,
            } => self.ended_change(session, tag, outcome),
        }
    }

    /// The record of a delivery that ends; `None` where it stays, or there is none.
    fn ended_change(&mut self, session: SessionKey, tag: u64, outcome: Outcome) -> Option<Change> {
        if self.stays(session, tag, outcome) {
            return None;
        }
        let node = self.find_sent(session, tag)?;
        let entry = self.queues.nodes.entry(node);
        let group = entry.and_then(|entry| self.index.filter_of_group(entry.group));
        (self.queues).owned_record(session.slot, node, true, group)
    }

    /// The name of the message that is published, and the record of it; `None` where nothing is kept of its session.
    pub(super) fn take_name(
        &mut self,
        now_ms: u64,
        beside: &mut Beside,
    ) -> Option<(Once, Option<Settles>)> {
        let (session, packet_id) = match beside.name.take()? {
            Name::Counted(session, number) | Name::Logged(session, number) => (session, number),
            Name::Given(once, settles) => return Some((once, settles)),
        };
        let session = self.queues.attended_mut(session)?;
        if !session.is_stored {
            return None;
        }
        let rare = session.rare_mut();
        if rare.rounds == 0 {
            // A session of that name may have been there a moment ago, and NATS knows its names.
            rare.rounds = now_ms << ROUND_BITS;
        }
        rare.rounds += 1;
        let round = rare.rounds;
        let (name, session) = (session.name.clone(), session.origin.0);
        let mut companions = beside.changes.iter();
        let settles = companions.find_map(|change| match split_key(&change.key)? {
            (Kind::Door, of, key) if *of == *name.text() => Some(Settles::Session {
                name: name.clone(),
                round,
                key: key.into(),
            }),
            _ => None,
        });
        let value = round.to_be_bytes().to_vec();
        (beside.changes).push(records::put(Kind::Rounds, name.text(), &[], value));
        let once = Once {
            session,
            round,
            packet_id,
        };
        Some((once, settles))
    }
}
