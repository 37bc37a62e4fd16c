//! The small records of a store: what they are called and how they are written.
//!
//! A key begins with a letter for its kind. The name of its session or queue follows, with the length in
//! front. So the records of one session follow each other.

mod carried;
mod judged;
mod retained;
mod wire;

use core::net::{IpAddr, Ipv4Addr};
use std::collections::BTreeMap;

use crate::message::Qos;
use crate::name::SessionName;
use crate::route::{Rest, RouteFlags};
use crate::store::Change;
pub use carried::{
    CarriedSession, RecordOf, Records, anchor_records, group_named, key_of_door, key_of_retained,
    key_of_shared, record_of,
};
pub(crate) use judged::JudgedRecord;
pub(crate) use retained::{RetainedOwner, decode_retained, encode_retained};
pub use retained::{retained_message, retained_record};
pub(crate) use wire::{
    Fields, HIGHEST_PLACE, number_bytes, put_bytes, put_network, put_number, read_network,
};

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A session: its expiry.
    Session = b's',
    /// A subscription of a session, by its filter.
    Subscription = b'u',
    /// A subscription that has ended, by the position where, and its filter.
    Past = b'p',
    /// The cursor of a session.
    Cursor = b'c',
    /// A delivery that is the session's alone, by its position.
    Owned = b'o',
    /// A front door's record of a session, by its own key.
    Door = b'd',
    /// A session's will that is delayed.
    Will = b'w',
    /// How many publications of QoS 2 a session has sent to a cluster's log.
    Rounds = b'x',
    /// The cursor of a shared subscription, by its whole filter.
    Group = b'q',
    /// A topic's retained message.
    Retained = b'r',
    /// A record of the front doors for the node.
    Node = b'n',
    /// A record of the front doors for a whole cluster.
    Shared = b'k',
    /// By which rules the sessions of the node were judged.
    Judged = b'j',
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Session,
        Self::Subscription,
        Self::Past,
        Self::Cursor,
        Self::Owned,
        Self::Door,
        Self::Will,
        Self::Rounds,
        Self::Group,
        Self::Retained,
        Self::Node,
        Self::Shared,
        Self::Judged,
    ];
}

/// The key of a record: its kind, the name that it belongs to, and what tells it from others.
pub(crate) fn key(kind: Kind, name: &str, rest: &[u8]) -> Box<[u8]> {
    let mut key = Vec::with_capacity(3 + name.len() + rest.len());
    key.push(kind as u8);
    put_bytes(&mut key, name.as_bytes());
    key.extend_from_slice(rest);
    key.into()
}

/// A key taken apart; `None` where it is none of the broker's.
pub(crate) fn split_key(key: &[u8]) -> Option<(Kind, &str, &[u8])> {
    let mut fields = Fields::new(key);
    let letter = fields.byte()?;
    let kind = Kind::ALL.into_iter().find(|&kind| kind as u8 == letter)?;
    let name = fields.text()?;
    Some((kind, name, fields.rest()))
}

/// The text of the name of the session that a record is of, by its key; `None` for a record of something else.
#[must_use]
pub fn name_of(key: &[u8]) -> Option<&str> {
    match split_key(key)? {
        (Kind::Group | Kind::Retained | Kind::Node | Kind::Shared | Kind::Judged, ..) => None,
        (_, name, _) => SessionName::parts_of(name).map(|_| name),
    }
}

/// The key by which a store has a record of the front doors for the node, from its own key.
#[must_use]
pub fn key_of_node(key: &[u8]) -> Box<[u8]> {
    self::key(Kind::Node, "", key)
}

/// Whether a record is what a node notes of itself, by its key: it is of no client, topic or message.
#[must_use]
pub fn is_of_node(key: &[u8]) -> bool {
    matches!(split_key(key), Some((Kind::Node | Kind::Judged, ..)))
}

/// The part of the key that tells a record of a whole cluster from others; `None` for a record of something else.
#[must_use]
pub fn shared_of(key: &[u8]) -> Option<&[u8]> {
    match split_key(key)? {
        (Kind::Shared, _, rest) => Some(rest),
        _ => None,
    }
}

/// Adds to a session's records that of a publication, which a node of a cluster did not come to write.
///
/// It is a front door's record by `key`, and the publication's number in its session. False where the records know of
/// it, or are none. `is_its` says whether it is of the session that has the records; otherwise that shows by the number
/// alone.
pub fn settle(
    records: &mut BTreeMap<Box<[u8]>, Box<[u8]>>,
    (round, key): (u64, &[u8]),
    is_its: bool,
) -> bool {
    let name = records
        .keys()
        .find_map(|key| name_of(key))
        .map(str::to_owned);
    let Some(name) = name else {
        return false;
    };
    let rounds = self::key(Kind::Rounds, &name, &[]);
    let known = (records.get(&rounds)).and_then(|value| (**value).try_into().ok());
    let is_news = known.map_or(is_its, |known| {
        let known = u64::from_be_bytes(known);
        (is_its && known < round) || known.checked_add(1) == Some(round)
    });
    if !is_news {
        return false;
    }
    records.insert(rounds, round.to_be_bytes().into());
    records.insert(self::key(Kind::Door, &name, key), Box::default());
    true
}

/// A change that puts a record.
pub(crate) fn put(kind: Kind, name: &str, rest: &[u8], value: Vec<u8>) -> Change {
    Change {
        key: key(kind, name, rest),
        value: Some(value.into()),
    }
}

/// A change that removes a record.
pub(crate) fn remove(kind: Kind, name: &str, rest: &[u8]) -> Change {
    Change {
        key: key(kind, name, rest),
        value: None,
    }
}

/// A session, as stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionRecord {
    /// Where there is no user: the network of its client, [`UNNOTED`](Self::UNNOTED), or `None` for the broker
    /// itself.
    pub(crate) network: Option<IpAddr>,
    pub(crate) expiry_s: u32,
    /// When it expires, if it is away; `None` where it has a consumer or never expires.
    pub(crate) expires_at_ms: Option<u64>,
}

impl SessionRecord {
    /// The network that was not noted.
    pub(crate) const UNNOTED: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        put_number(&mut out, u64::from(self.expiry_s));
        put_number(&mut out, self.expires_at_ms.map_or(0, |at_ms| at_ms + 1));
        if let Some(network) = self.network {
            put_network(&mut out, network);
        }
        out
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(record);
        let expiry_s = u32::try_from(fields.number()?).ok()?;
        let expires_at_ms = fields.number()?.checked_sub(1);
        let network = match fields.rest() {
            [] => None,
            network => Some(read_network(network)?),
        };
        Some(Self {
            network,
            expiry_s,
            expires_at_ms,
        })
    }
}

/// A subscription, as stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SubscriptionRecord {
    pub(crate) flags: RouteFlags,
    pub(crate) identifier: Option<u32>,
    /// Messages before this position are not its.
    pub(crate) since: u64,
    /// The absence of its right, without the route log's length.
    pub(crate) rest: Option<Rest>,
}

impl SubscriptionRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.flags.bits()];
        put_number(&mut out, self.since);
        put_number(&mut out, u64::from(self.identifier.unwrap_or(0)));
        put_number(&mut out, Rest::number(self.rest));
        out
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(record);
        let flags = RouteFlags::from_bits(fields.byte()?);
        let since = fields.place()?;
        let identifier = u32::try_from(fields.number()?).ok()?;
        Some(Self {
            flags,
            identifier: Some(identifier).filter(|&identifier| identifier != 0),
            since,
            rest: Rest::of_number(fields.number()?),
        })
    }
}

/// A delivery that belongs to one session alone: of exactly-once quality, and sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OwnedRecord {
    pub(crate) qos: Qos,
    pub(crate) retain: bool,
    /// The shared subscription that it came from, with `$share/NAME/`.
    pub(crate) group: Option<Box<str>>,
    /// Whether the receiver has taken the message over (PUBREC).
    pub(crate) is_handed_over: bool,
    pub(crate) identifiers: Box<[u32]>,
}

impl OwnedRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let flags =
            self.qos as u8 | u8::from(self.retain) << 2 | u8::from(self.is_handed_over) << 3;
        let mut out = vec![flags];
        put_bytes(
            &mut out,
            self.group.as_deref().unwrap_or_default().as_bytes(),
        );
        put_number(&mut out, self.identifiers.len() as u64);
        for &identifier in &self.identifiers {
            put_number(&mut out, u64::from(identifier));
        }
        out
    }

    /// The record, and where the stored form of its message begins.
    pub(crate) fn decode(record: &[u8]) -> Option<(Self, usize)> {
        let mut fields = Fields::new(record);
        let flags = fields.byte()?;
        let group = fields.text()?;
        let mut identifiers = Vec::new();
        for _ in 0..fields.number()? {
            identifiers.push(u32::try_from(fields.number()?).ok()?);
        }
        let owned = Self {
            qos: Qos::from_u8(flags & 3)?,
            retain: flags & 4 != 0,
            group: (!group.is_empty()).then(|| group.into()),
            is_handed_over: flags & 8 != 0,
            identifiers: identifiers.into(),
        };
        Some((owned, record.len() - fields.rest().len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_apart_again() {
        let key = key(Kind::Subscription, "client/7", b"a/+/b");
        let parts = split_key(&key);
        assert_eq!(parts, Some((Kind::Subscription, "client/7", &b"a/+/b"[..])));
        assert_eq!(split_key(b"xx"), None);
        assert_eq!(split_key(b"s\x05ab"), None);
    }

    #[test]
    fn records_come_back() {
        for expires_at_ms in [None, Some(0), Some(u64::MAX - 1)] {
            let networks = ["10.1.2.3", "0.0.0.0", "2001:db8:1::"];
            let networks = networks.map(|network| Some(network.parse().expect("an address")));
            for network in networks.into_iter().chain([None]) {
                let record = SessionRecord {
                    network,
                    expiry_s: 7,
                    expires_at_ms,
                };
                assert_eq!(SessionRecord::decode(&record.encode()), Some(record));
            }
        }
        let record = OwnedRecord {
            qos: Qos::ExactlyOnce,
            retain: true,
            group: Some("$share/a/b".into()),
            is_handed_over: false,
            identifiers: [1, 268_435_455].into(),
        };
        let mut value = record.encode();
        let end = value.len();
        value.push(7);
        assert_eq!(OwnedRecord::decode(&value), Some((record, end)));
        let record = SubscriptionRecord {
            flags: RouteFlags::from_bits(5),
            identifier: Some(9),
            since: 1 << 40,
            rest: None,
        };
        assert_eq!(SubscriptionRecord::decode(&record.encode()), Some(record));
        for (is_over, is_by_rules) in [(false, false), (false, true), (true, false), (true, true)] {
            let rest = Some(Rest {
                since_ms: 1 << 41,
                length: None,
                is_over,
                is_by_rules,
            });
            let record = SubscriptionRecord { rest, ..record };
            assert_eq!(SubscriptionRecord::decode(&record.encode()), Some(record));
        }
        let since = HIGHEST_PLACE + 1;
        let forged = SubscriptionRecord { since, ..record };
        assert_eq!(SubscriptionRecord::decode(&forged.encode()), None);
    }
}
