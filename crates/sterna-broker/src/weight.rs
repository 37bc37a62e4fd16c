//! Memory that sessions take, as measured: `tests/memory/` of the crate `sterna` compares it with the system's
//! figures.

use crate::api::DoorState;
use crate::directory::Principal;
use crate::filter::extra_bytes;
use crate::session::{BrokerSession, Rare};
use crate::sessions::Sessions;

/// A session with its place in the registry.
const SESSION_BYTES: u64 = 900;
/// One that is away and packed.
const PACKED_SESSION_BYTES: u64 = 270;
/// A short filter in its session.
const OPEN_FILTER_BYTES: u64 = 230;
/// The same in a packed session.
const PACKED_FILTER_BYTES: u64 = 110;
/// A short filter in the index of one shard.
const ROUTE_BYTES: u64 = 110;
/// A will beside its body.
const WILL_BYTES: u64 = 240;
/// A record of the front door beside its bytes.
const RECORD_BYTES: u64 = 64;

/// Bytes of a filter in the indexes of so many shards, and in its session beside what every filter takes there.
pub(crate) fn route_bytes(filter: &str, shards: u16) -> u64 {
    ROUTE_BYTES * u64::from(shards) + extra_bytes(filter, usize::from(shards)) as u64
}

/// The bytes that a session is charged with, and who is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Weight {
    /// Those that hold it.
    pub(crate) principal: Principal,
    /// Bytes that they are charged with.
    pub(crate) charged: u32,
}

impl Weight {
    /// That of a new session, of the broker's own until it has a client.
    pub(crate) const NEW: Self = Self {
        principal: Principal::BROKER,
        charged: 0,
    };
}

fn saturated(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Bytes that last of a session, packed or not.
fn weight_of<P: DoorState>(session: &BrokerSession<P>, shards: u16, is_packed: bool) -> u32 {
    let (own, of_filter) = if is_packed {
        (PACKED_SESSION_BYTES, PACKED_FILTER_BYTES)
    } else {
        (SESSION_BYTES, OPEN_FILTER_BYTES)
    };
    let past = session
        .reader
        .as_ref()
        .map_or(0, |reader| reader.past.len());
    let filters = (session.subscriptions.len() + past) as u64;
    let routes = session.subscriptions.iter();
    let routes = routes.map(|(filter, _)| route_bytes(filter, shards));
    let will = session.will.as_ref();
    let will_bytes = will.map_or(0, |will| WILL_BYTES + will.message.body_bytes() as u64);
    let rare_bytes = session.rare.as_deref().map_or(0, Rare::bytes);
    let bytes = own
        + filters * of_filter
        + routes.sum::<u64>()
        + will_bytes
        + rare_bytes
        + session.protocol.lasting_bytes() as u64;
    saturated(bytes)
}

impl Rare {
    /// Bytes of the records that it has.
    fn bytes(&self) -> u64 {
        let kept = self.kept.iter().map(|key| key.len() as u64);
        let restored = self.restored.iter();
        let restored = restored.map(|(key, value)| (key.len() + value.len()) as u64);
        let records = (self.kept.len() + self.restored.len()) as u64;
        kept.chain(restored).sum::<u64>() + records * RECORD_BYTES
    }
}

impl<P: DoorState> Sessions<P> {
    /// Charges a session's principal with what the session has now that lasts.
    pub(crate) fn reweigh(&mut self, slot: u32) {
        self.reweigh_as(slot, false);
    }

    /// The same; `is_packed` where it is about to be.
    pub(crate) fn reweigh_as(&mut self, slot: u32, is_packed: bool) {
        let shards = self.directory.shards();
        let Some(session) = self.get_mut(slot) else {
            return;
        };
        let charged = weight_of(session, shards, is_packed);
        let principal = session.weight.principal;
        let before = std::mem::replace(&mut session.weight.charged, charged);
        let principals = self.directory.principals();
        principals.adjust_lasting(principal, before.into(), charged.into());
    }

    /// Charges a filter that a session which is not packed has anew, or `is_gone`.
    pub(crate) fn charge_filter(&mut self, slot: u32, filter: &str, is_gone: bool) {
        let bytes = OPEN_FILTER_BYTES + route_bytes(filter, self.directory.shards());
        let bytes = saturated(bytes);
        let Some(session) = self.get_mut(slot) else {
            return;
        };
        let Weight { principal, charged } = session.weight;
        session.weight.charged = if is_gone {
            charged.saturating_sub(bytes)
        } else {
            charged.saturating_add(bytes)
        };
        let (before, after) = (charged.into(), session.weight.charged.into());
        (self.directory.principals()).adjust_lasting(principal, before, after);
    }

    /// Has a principal that has entered hold a session.
    pub(crate) fn set_principal(&mut self, slot: u32, principal: Principal) {
        let Some(session) = self.get_mut(slot) else {
            return;
        };
        let before = session.weight;
        session.weight.principal = principal;
        let principals = self.directory.principals();
        principals.adjust_lasting(before.principal, before.charged.into(), 0);
        principals.adjust_lasting(principal, 0, before.charged.into());
        principals.leave(before.principal);
    }
}
