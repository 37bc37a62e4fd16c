//! The state that survives a link endpoint (AMQP 1.0, part 2, sections 2.6.5 and 2.6.13). Both ends
//! compare it when the link is attached again.

use rustc_hash::FxHashMap;

use super::DeliveryTag;
use crate::messaging::{DeliveryState, DeliveryStateBuf, Received};
use crate::performatives::Role;
use crate::types::{Encoded, Field as _, Map, MapWriter, Value};

/// A delivery that was not settled when its link was suspended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsettled {
    /// Delivery tag.
    pub tag: DeliveryTag,
    /// The caller's value; the delivery-id for a received one.
    pub token: u64,
    /// Last state of the delivery. A sender has the state that the receiver told, a receiver its
    /// own.
    pub state: Option<DeliveryStateBuf>,
}

/// Action for a delivery of a link that was suspended and is attached again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// Sender: the receiver never had it. Send it again, as a new delivery.
    Resend,
    /// Sender: both ends have it, and the receiver has not decided. Send it as a resumed delivery,
    /// from where the receiver is: from the start if that is `None`.
    Resume(Option<Received>),
    /// Sender: the receiver has decided. Send it as a resumed, settled delivery with this state and
    /// no payload; that ends it.
    Settle(DeliveryStateBuf),
    /// Sender: it was decided here, and the receiver has only a part. Send it as a resumed,
    /// aborted delivery.
    Abort,
    /// The delivery is settled, with this state if one is known. No action is due.
    Settled(Option<DeliveryStateBuf>),
    /// Receiver: the sender has taken it up again with this delivery-id. The state from before has
    /// been told again; the sender will settle.
    Resumed {
        /// New number of the delivery.
        delivery_id: u32,
    },
    /// The peer's map was incomplete and did not have it. Keep it until the link is attached with
    /// complete maps.
    Wait,
}

/// Entry of a delivery in the peer's unsettled map.
#[derive(Clone, Debug)]
enum Entry<'a> {
    /// The end has no such delivery.
    Absent,
    /// That it is there; its state, if one is known.
    Present(Option<DeliveryState<'a>>),
}

/// A sender's decision for one delivery, with the receiver's entry for it (the examples of section
/// 2.6.13).
fn sender_recovery(own: Option<&DeliveryStateBuf>, theirs: Entry<'_>, complete: bool) -> Recovery {
    let decided = own.filter(|state| state.is_terminal());
    match (decided, theirs) {
        (None, Entry::Absent) if !complete => Recovery::Wait,
        (None, Entry::Absent) => Recovery::Resend,
        (Some(state), Entry::Absent) => Recovery::Settled(Some(state.clone())),
        (None, Entry::Present(Some(DeliveryState::Received(received)))) => {
            // Less than the receiver once had: the received bytes are lost (example 7).
            match own.map(DeliveryStateBuf::view) {
                Some(DeliveryState::Received(earlier))
                    if (earlier.section_number, earlier.section_offset)
                        > (received.section_number, received.section_offset) =>
                {
                    Recovery::Abort
                }
                _ => Recovery::Resume(Some(received)),
            }
        }
        (None, Entry::Present(Some(state))) if state.is_terminal() => {
            Recovery::Settle(DeliveryStateBuf::new(&state))
        }
        // Nothing is decided, also not in a transaction, which may never be committed.
        (None, Entry::Present(_)) => Recovery::Resume(None),
        (Some(_), Entry::Present(None | Some(DeliveryState::Received(_)))) => Recovery::Abort,
        // The outcome takes effect at the sender: its view is definitive (example 13).
        (Some(state), Entry::Present(Some(_))) => Recovery::Settle(state.clone()),
    }
}

/// Actions for deliveries, and the deliveries that a receiver keeps until the sender resumes them.
pub(crate) struct Reconciled {
    pub(crate) events: Vec<(Unsettled, Recovery)>,
    pub(crate) kept: Vec<Unsettled>,
}

/// Compares both ends' unsettled deliveries.
pub(crate) fn reconcile(
    role: Role,
    own: Vec<Unsettled>,
    remote: Option<Map<'_>>,
    remote_incomplete: bool,
) -> Reconciled {
    let mut theirs = FxHashMap::default();
    for (tag, state) in remote.unwrap_or(Map::EMPTY) {
        if let Value::Binary(tag) = tag {
            // A state that this end does not know counts as none.
            theirs.insert(tag, DeliveryState::from_value(state).ok());
        }
    }
    let mut events = Vec::new();
    let mut kept = Vec::new();
    for delivery in own {
        let entry = theirs
            .get(delivery.tag.as_bytes())
            .map_or(Entry::Absent, |state: &Option<_>| {
                Entry::Present(state.clone())
            });
        match role {
            Role::Sender => {
                let recovery = sender_recovery(delivery.state.as_ref(), entry, !remote_incomplete);
                // The receiver may answer before the caller has sent: the tag is known again with
                // the transfer only.
                events.push((delivery, recovery));
            }
            Role::Receiver if matches!(entry, Entry::Present(_)) => kept.push(delivery),
            Role::Receiver if remote_incomplete => {
                events.push((delivery.clone(), Recovery::Wait));
                kept.push(delivery);
            }
            // Only the receiver has it: the sender has settled.
            Role::Receiver => {
                let state = delivery.state.clone();
                events.push((delivery, Recovery::Settled(state)));
            }
        }
    }
    Reconciled { events, kept }
}

/// The unsettled map of an attach, in at most about `max_bytes`; the second value tells whether
/// entries were left out.
pub(crate) fn encode_map(unsettled: &[Unsettled], max_bytes: usize) -> (Encoded, bool) {
    /// Of a tag with its constructor and length.
    const TAG_BYTES: usize = super::MAX_TAG_BYTES + 2;
    let mut incomplete = false;
    let map = Encoded::build(|out| {
        let mut map = MapWriter::new(out);
        let mut bytes = 16;
        for delivery in unsettled {
            let state = delivery
                .state
                .as_ref()
                .map(|state| Encoded::build(|out| state.view().write(out)));
            bytes += TAG_BYTES + state.as_ref().map_or(1, |state| state.bytes().len());
            if bytes > max_bytes {
                incomplete = true;
                break;
            }
            let value = state.as_ref().map_or(Value::Null, Encoded::value);
            map.push(&Value::Binary(delivery.tag.as_bytes()), &value);
        }
        map.finish();
    });
    (map, incomplete)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decided_in_a_transaction_is_not_decided() {
        let state = crate::transactions::TransactionalState {
            txn_id: b"1",
            outcome: Some(crate::messaging::Outcome::Accepted),
        };
        let theirs = Entry::Present(Some(DeliveryState::Transactional(state)));
        let recovery = sender_recovery(None, theirs, true);
        assert_eq!(recovery, Recovery::Resume(None));
    }

    /// The examples of section 2.6.13, by number: the sender's state, the receiver's entry, and the
    /// sender's action.
    #[test]
    fn examples_of_the_specification() {
        let received = |section_offset| {
            DeliveryStateBuf::Received(Received {
                section_number: 0,
                section_offset,
            })
        };
        let at = |section_offset| {
            Some(Received {
                section_number: 0,
                section_offset,
            })
        };
        let accepted = DeliveryStateBuf::Accepted;
        let released = DeliveryStateBuf::Released;
        let cases = [
            (1, None, None, Recovery::Resend),
            (2, None, Some(Some(received(3))), Recovery::Resume(at(3))),
            (
                3,
                None,
                Some(Some(accepted.clone())),
                Recovery::Settle(accepted.clone()),
            ),
            (4, None, Some(None), Recovery::Resume(None)),
            (5, Some(received(2)), None, Recovery::Resend),
            (
                6,
                Some(received(2)),
                Some(Some(received(3))),
                Recovery::Resume(at(3)),
            ),
            (
                7,
                Some(received(2)),
                Some(Some(received(1))),
                Recovery::Abort,
            ),
            (
                8,
                Some(received(2)),
                Some(Some(accepted.clone())),
                Recovery::Settle(accepted.clone()),
            ),
            (
                10,
                Some(accepted.clone()),
                None,
                Recovery::Settled(Some(accepted.clone())),
            ),
            (
                11,
                Some(accepted.clone()),
                Some(Some(received(1))),
                Recovery::Abort,
            ),
            (
                12,
                Some(accepted.clone()),
                Some(Some(accepted.clone())),
                Recovery::Settle(accepted.clone()),
            ),
            (
                13,
                Some(accepted.clone()),
                Some(Some(released)),
                Recovery::Settle(accepted.clone()),
            ),
            (14, Some(accepted), Some(None), Recovery::Abort),
        ];
        for (number, own, theirs, expected) in cases {
            let view = theirs.as_ref().map_or(Entry::Absent, |state| {
                Entry::Present(state.as_ref().map(DeliveryStateBuf::view))
            });
            assert_eq!(
                sender_recovery(own.as_ref(), view, true),
                expected,
                "example {number}"
            );
        }
    }
}
