//! Receivers' links that are attached again: which deliveries of before are settled, and which go on.
//!
//! Where a receiver settles second, the delivery-tag of a message in the log is the message's place there. The
//! place is the same after a restart. So a broker that has sent none of the deliveries understands which of them
//! a client has taken.

use std::collections::{HashMap, HashSet};

use sterna_amqp::link::{DeliveryTag, Unsettled};
use sterna_amqp::messaging::{DeliveryState, DeliveryStateBuf};
use sterna_amqp::types::Value;
use sterna_broker::{Outcome, SessionKey, Unacknowledged};

use super::outgoing::{broker_outcome, is_returning};
use crate::context::Context;

/// The delivery-tag of a delivery to a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeliveryName {
    bytes: [u8; 1 + size_of::<u64>()],
    len: usize,
}

/// The first byte of the tag of a message in the log. Other tags have the broker's number, without this byte.
const PLACE: u8 = b'p';

impl DeliveryName {
    /// The name of a delivery. A message in the log is named by its place, which is the same after a restart.
    /// Other messages are named by the broker's number.
    pub(super) fn of(broker_tag: u64, place: u64) -> Self {
        let mut bytes = [PLACE; 1 + size_of::<u64>()];
        if place == 0 {
            bytes[..size_of::<u64>()].copy_from_slice(&broker_tag.to_be_bytes());
            let len = size_of::<u64>();
            Self { bytes, len }
        } else {
            bytes[1..].copy_from_slice(&place.to_be_bytes());
            let len = bytes.len();
            Self { bytes, len }
        }
    }

    /// The place in the log that a tag names; `None` for other tags.
    pub(super) fn place(tag: &DeliveryTag) -> Option<u64> {
        let (&PLACE, place) = tag.as_bytes().split_first()? else {
            return None;
        };
        Some(u64::from_be_bytes(place.try_into().ok()?))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A client's account of a delivery that it has not settled.
#[derive(Debug)]
pub(super) struct Told {
    tag: DeliveryTag,
    /// The client's decision; `None` for none yet.
    decided: Option<(DeliveryStateBuf, Outcome)>,
}

impl Told {
    pub(super) fn read((tag, state): (Value<'_>, Value<'_>)) -> Option<Self> {
        let Value::Binary(tag) = tag else {
            return None;
        };
        let decided = match DeliveryState::read(state) {
            Ok(DeliveryState::Outcome(outcome)) => {
                let for_broker = broker_outcome(&outcome);
                let state = DeliveryStateBuf::new(&DeliveryState::Outcome(outcome));
                Some((state, for_broker))
            }
            _ => None,
        };
        Some(Self {
            tag: DeliveryTag::new(tag)?,
            decided,
        })
    }

    /// Whether nobody is to have the message any more.
    fn is_done(&self) -> bool {
        (self.decided.as_ref()).is_some_and(|(_, outcome)| !is_returning(*outcome))
    }
}

/// Settles deliveries that a client has taken, also those of an earlier process. The answer tells the
/// client so: in it they are not unsettled.
pub(super) fn settle_told(
    cx: &mut Context<'_>,
    session: SessionKey,
    told: &[Told],
    names_places: bool,
) {
    let now_ms = cx.now_ms;
    let sent: HashMap<DeliveryTag, u64> = (cx.broker.unacknowledged(session).iter())
        .filter_map(|entry| Some((name_of(entry, names_places)?, entry.tag())))
        .collect();
    let mut places = Vec::new();
    for told in told.iter().filter(|told| told.is_done()) {
        match sent.get(&told.tag) {
            Some(&tag) if matches!(told.decided, Some((_, Outcome::Accepted))) => {
                cx.broker
                    .settle_for_good(now_ms, session, tag, Outcome::Accepted);
            }
            None if names_places => places.extend(DeliveryName::place(&told.tag)),
            // The engines find out; or it is unknown.
            Some(_) | None => {}
        }
    }
    cx.broker.settle_places(session, &places);
}

/// The delivery-tag of a sent message.
fn name_of(entry: &Unacknowledged, names_places: bool) -> Option<DeliveryTag> {
    let place = if names_places { entry.position() } else { 0 };
    DeliveryTag::new(DeliveryName::of(entry.tag(), place).as_bytes())
}

/// The unsettled deliveries of a session whose link is attached again, if the client has told its own. The answer
/// to an incomplete account is incomplete, too: the client must not take deliveries for settled that it has not
/// told.
pub(super) fn take_up(
    cx: &mut Context<'_>,
    session: SessionKey,
    (present, names_places): (bool, bool),
    (told, is_incomplete): (Option<&[Told]>, bool),
) -> Vec<Unsettled> {
    let mut ledger = if present {
        cx.broker.unacknowledged(session)
    } else {
        Vec::new()
    };
    let now_ms = cx.now_ms;
    ledger.retain(|entry| {
        if entry.is_handed_over() {
            // It was settled before a restart.
            cx.broker
                .settle(now_ms, session, entry.tag(), Outcome::Accepted);
        }
        !entry.is_handed_over()
    });
    let Some(told) = told else {
        // The client has none of them left: they go back to the queue, the latest first. Their failure was
        // counted when the connection ended.
        for entry in ledger.iter().rev() {
            cx.broker
                .settle(now_ms, session, entry.tag(), Outcome::Released);
        }
        return Vec::new();
    };
    let mut unsettled: Vec<Unsettled> = (ledger.iter())
        .filter_map(|entry| {
            Some(Unsettled {
                tag: name_of(entry, names_places)?,
                token: entry.tag(),
                state: None,
            })
        })
        .collect();
    let sent: HashSet<DeliveryTag> = unsettled.iter().map(|one| one.tag).collect();
    let others = told.iter().filter(|told| !sent.contains(&told.tag));
    unsettled.extend(others.filter_map(|told| {
        let place = DeliveryName::place(&told.tag);
        let waits = names_places
            && told.decided.is_none()
            && place.is_some_and(|place| cx.broker.wants_place(session, place));
        let state = told.decided.as_ref().map(|(state, _)| state.clone());
        let state = match state {
            // It waits in the queue again, since a restart: the client is to forget it.
            _ if waits => None,
            // A client that tells all takes absent deliveries for settled.
            _ if !is_incomplete => return None,
            state => Some(state.unwrap_or(DeliveryStateBuf::Accepted)),
        };
        Some(Unsettled {
            tag: told.tag,
            token: 0,
            state,
        })
    }));
    unsettled
}
