//! Records on their way between a node's store and a cluster.
//!
//! The two differ in four things. A shared subscription has a record of its own in a store, and in a cluster a session
//! without a client, its root. The will of an open connection is a record in a store, and in a cluster stands beside the
//! session's owner. The anchor of a queue is a session of a store alone. Notes of a node about itself stay with it.
//! Positions, and all else, are the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Fields, Kind, SessionRecord, SubscriptionRecord, key, put_number, split_key};
use crate::api::{NEVER_EXPIRES_S, SubscribeOptions};
use crate::broker::QUEUE_KEY;
use crate::cursor::Cursor;
use crate::far_group::{RootRecord, group_of_root, root_name};
use crate::group_reader::GroupRecord;
use crate::message::Qos;
use crate::name::SessionName;
use crate::owned::decode_will;
use crate::peers::stays;
use crate::route::{RouteFlags, topics_of_shared};
use crate::store::Record;
use crate::will::{Wait, WillRecord, encode_record, put_terms};

/// The owner of a record of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordOf<'a> {
    /// A session, by its name. It is of a client, of a queue's anchor, or of a front door.
    Session(SessionName),
    /// A shared subscription or a queue, by its whole filter.
    Group(&'a str),
    /// The retained message of a topic.
    Retained(&'a str),
    /// The node itself: a record of its front doors, by their key.
    Node(&'a [u8]),
    /// The node itself: by which rules its sessions were judged.
    Judged,
    /// A whole cluster.
    Shared,
}

/// The owner of a record, by its key; `None` for what is no key of the broker's.
#[must_use]
pub fn record_of(key: &[u8]) -> Option<RecordOf<'_>> {
    let (kind, name, rest) = split_key(key)?;
    Some(match kind {
        Kind::Group => RecordOf::Group(name),
        Kind::Retained => RecordOf::Retained(name),
        Kind::Node => RecordOf::Node(rest),
        Kind::Judged => RecordOf::Judged,
        Kind::Shared => RecordOf::Shared,
        _ => RecordOf::Session(SessionName::of_text(name)?),
    })
}

/// The key by which a store has a front door's record of a session, from its own key.
#[must_use]
pub fn key_of_door(session: &SessionName, own: &[u8]) -> Box<[u8]> {
    key(Kind::Door, session.text(), own)
}

/// The key by which lines have a record of a whole cluster, from the part that tells it from others.
#[must_use]
pub fn key_of_shared(own: &[u8]) -> Box<[u8]> {
    key(Kind::Shared, "", own)
}

/// The key by which a store has the retained message of a topic.
#[must_use]
pub fn key_of_retained(topic: &str) -> Box<[u8]> {
    key(Kind::Retained, topic, &[])
}

/// The records of one session of a cluster, by their keys.
pub type Records = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// A session as a cluster has it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CarriedSession {
    /// The will, where it is no record: of a session that has ended but for it.
    pub will: Option<Arc<[u8]>>,
    /// Its records. None where it has ended but for its will.
    pub records: Records,
}

impl CarriedSession {
    /// A session of a store, by its records. `None` where they are not valid.
    #[must_use]
    pub fn of_records(name: &SessionName, records: Records) -> Option<Self> {
        if let Some(session) = records.get(&key(Kind::Session, name.text(), &[])) {
            SessionRecord::decode(session)?;
            let will = None;
            return Some(Self { will, records });
        }
        // One that was due when the broker ended has a longer key.
        let of_will = key(Kind::Will, name.text(), &[]);
        let (_, record) =
            (records.range(of_will.clone()..)).find(|(key, _)| key.starts_with(&of_will))?;
        let will = WillRecord::decode(record)?;
        let mut bytes = Vec::new();
        // The session has ended, and so it is due when its client does not come back.
        put_number(&mut bytes, 0);
        put_terms(&mut bytes, will.expiry_s, will.is_given);
        will.message.encode(&mut bytes);
        Some(Self {
            will: Some(bytes.into()),
            records: Records::new(),
        })
    }

    /// The session of the root of a shared subscription or queue, with its name, from the record in a store. `None` where
    /// the record is not valid.
    #[must_use]
    pub fn of_group(filter: &str, record: &[u8]) -> Option<(SessionName, Self)> {
        let GroupRecord {
            is_kept, cursor, ..
        } = GroupRecord::decode(record)?;
        let name = root_name(filter);
        let session = SessionRecord {
            network: None,
            expiry_s: NEVER_EXPIRES_S,
            expires_at_ms: None,
        };
        let subscription = SubscriptionRecord {
            flags: RouteFlags::of(&SubscribeOptions {
                qos: Qos::ExactlyOnce,
                retain_as_published: true,
                ..SubscribeOptions::default()
            }),
            identifier: None,
            since: 0,
            rest: None,
        };
        let root = RootRecord {
            epoch: 1,
            ..RootRecord::default()
        };
        let topics = topics_of_shared(filter).as_bytes();
        let mut records: Records = [
            (key(Kind::Session, name.text(), &[]), session.encode()),
            (
                key(Kind::Subscription, name.text(), topics),
                subscription.encode(),
            ),
            (key(Kind::Cursor, name.text(), &[]), cursor.encode()),
            (key(Kind::Door, name.text(), RootRecord::KEY), root.encode()),
        ]
        .map(|(key, value)| (key, value.into()))
        .into();
        if is_kept {
            records.insert(key(Kind::Door, name.text(), QUEUE_KEY), [1].into());
        }
        let session = Self {
            records,
            ..Self::default()
        };
        Some((name, session))
    }

    /// Its records as a store has them: those of a session, or of a shared subscription whose root it is. `None` where
    /// they are not valid.
    #[must_use]
    pub fn into_records(self, name: &SessionName) -> Option<Vec<Record>> {
        if let Some(group) = group_of_root(name) {
            let cursor = self.records.get(&key(Kind::Cursor, name.text(), &[]));
            let cursor = Cursor::decode(cursor?)?;
            let record = GroupRecord {
                is_kept: self.is_queue(name),
                // Its members may have been sent what has come since.
                is_attended: true,
                cursor,
            };
            return Some(vec![(key(Kind::Group, group, &[]), record.encode().into())]);
        }
        let mut records = self.records;
        let of_will = key(Kind::Will, name.text(), &[]);
        if let Some(will) = self.will
            && !records.contains_key(&of_will)
        {
            let delay_s = u32::try_from(Fields::new(&will).number()?).ok()?;
            let (message, expiry_s, is_given) = decode_will(&will)?;
            let wait = (Wait::Connection, delay_s);
            let record = encode_record(wait, (expiry_s, is_given), &message);
            records.insert(of_will, record.into());
        }
        Some(records.into_iter().collect())
    }

    /// Whether it is the root of a queue.
    fn is_queue(&self, name: &SessionName) -> bool {
        self.records
            .contains_key(&key(Kind::Door, name.text(), QUEUE_KEY))
    }

    /// The topics of a queue whose root it is; `None` for all others.
    #[must_use]
    pub fn topics_of_queue<'a>(&self, name: &'a SessionName) -> Option<&'a str> {
        let group = group_of_root(name).filter(|_| self.is_queue(name))?;
        Some(topics_of_shared(group))
    }

    /// The filters that it subscribes to and other nodes are to know of.
    pub fn filters(&self) -> impl Iterator<Item = &str> {
        let all = self.records.keys().filter_map(|key| split_key(key));
        all.filter_map(|(kind, _, filter)| {
            let filter = std::str::from_utf8(filter).ok()?;
            // A shared one begins with `$`, too: its root wants the topics.
            (kind == Kind::Subscription && !stays(filter)).then_some(filter)
        })
    }

    /// The first position of the log that it needs; `None` where it reads nothing there.
    #[must_use]
    pub fn first_needed(&self, name: &SessionName) -> Option<u64> {
        let cursor = self.records.get(&key(Kind::Cursor, name.text(), &[]))?;
        Some(Cursor::decode(cursor)?.first())
    }
}

/// The records of the anchor of a queue, which is a session of a store, with that name and the queue's whole filter.
#[must_use]
pub fn anchor_records(name: &SessionName, filter: &str) -> [Record; 2] {
    let session = SessionRecord {
        network: None,
        expiry_s: NEVER_EXPIRES_S,
        expires_at_ms: None,
    };
    let subscription = SubscriptionRecord {
        flags: RouteFlags::of(&SubscribeOptions {
            qos: Qos::ExactlyOnce,
            keep: true,
            ..SubscribeOptions::default()
        }),
        identifier: None,
        since: 0,
        rest: None,
    };
    [
        (
            key(Kind::Session, name.text(), &[]),
            session.encode().into(),
        ),
        (
            key(Kind::Subscription, name.text(), filter.as_bytes()),
            subscription.encode().into(),
        ),
    ]
}

/// The whole filter of the shared subscription whose root a session is, by its name; `None` for a client's.
#[must_use]
pub fn group_named(name: &SessionName) -> Option<&str> {
    group_of_root(name)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::message::{Message, MessageHeader};

    fn named(id: &str) -> SessionName {
        SessionName::new(Some("ann"), id)
    }

    fn cursor() -> Cursor {
        Cursor {
            from: 70,
            unsettled: VecDeque::new(),
            settled: vec![72, 75],
            ..Cursor::default()
        }
    }

    #[test]
    fn a_group_becomes_a_root_and_a_group_again() {
        for is_kept in [false, true] {
            let filter = "$share/workers/queue/jobs";
            let record = GroupRecord {
                is_kept,
                is_attended: true,
                cursor: cursor(),
            };
            let (name, root) = CarriedSession::of_group(filter, &record.encode()).expect("valid");
            assert_eq!(group_named(&name), Some(filter));
            let topics = root.topics_of_queue(&name);
            assert_eq!(topics, is_kept.then_some("queue/jobs"));
            assert_eq!(root.filters().collect::<Vec<_>>(), ["queue/jobs"]);
            assert_eq!(root.first_needed(&name), Some(70));
            let back = root.into_records(&name).expect("valid");
            let expected = (key(Kind::Group, filter, &[]), record.encode().into());
            assert_eq!(back, [expected]);
        }
        assert_eq!(
            CarriedSession::of_group("$share/a/b", &[1]),
            None,
            "cut off"
        );
    }

    #[test]
    fn a_session_is_the_same_on_both_sides_but_for_the_place_of_its_will() {
        let header = MessageHeader::default();
        let message = Message::copy("gone", &[], b"x", header).expect("it fits");
        let session = SessionRecord {
            network: None,
            expiry_s: 60,
            expires_at_ms: None,
        };
        let of_session = (
            key(Kind::Session, named("c").text(), &[]),
            session.encode().into(),
        );
        let carried = |records: Vec<Record>| {
            CarriedSession::of_records(&named("c"), records.into_iter().collect())
        };
        let found = carried(vec![of_session.clone()]).expect("valid");
        assert_eq!(
            found.into_records(&named("c")),
            Some(vec![of_session.clone()])
        );

        // As the cluster has the will of a connection that is open.
        let mut will = vec![7];
        put_terms(&mut will, Some(30), true);
        message.encode(&mut will);
        let open = CarriedSession {
            will: Some(will.into()),
            records: [of_session.clone()].into(),
        };
        let records = open.into_records(&named("c")).expect("valid");
        assert_eq!(records.len(), 2);
        let kept = WillRecord::decode(&records[1].1).expect("a will");
        assert_eq!((kept.wait, kept.delay_s), (Wait::Connection, 7));
        assert_eq!((kept.expiry_s, kept.is_given), (Some(30), true));
        let again = carried(records.clone()).expect("valid");
        assert_eq!(again.will, None, "it stays a record of its session");
        assert_eq!(again.into_records(&named("c")), Some(records.clone()));

        // The session has ended, and the will alone is left.
        let lone = carried(vec![records[1].clone()]).expect("valid");
        assert!(lone.records.is_empty());
        let will = lone.will.clone().expect("a will");
        assert!(!crate::is_will_delayed(&will));
        let back = lone.into_records(&named("c")).expect("valid");
        let kept = WillRecord::decode(&back[0].1).expect("a will");
        assert_eq!((kept.expiry_s, kept.is_given), (Some(30), true));
        assert_eq!(kept.message.topic(), "gone");

        assert_eq!(carried(Vec::new()), None, "nothing says what it is");
        let cut = (of_session.0, Box::default());
        assert_eq!(carried(vec![cut]), None);
    }

    #[test]
    fn keys_say_whose_records_they_are() {
        let kinds = [
            (
                key(Kind::Cursor, named("c").text(), &[]),
                RecordOf::Session(named("c")),
            ),
            (
                key(Kind::Group, "$share/a/b", &[]),
                RecordOf::Group("$share/a/b"),
            ),
            (key_of_retained("a/b"), RecordOf::Retained("a/b")),
            (super::super::key_of_node(b"t"), RecordOf::Node(b"t")),
            (key(Kind::Judged, "", &[]), RecordOf::Judged),
            (key(Kind::Shared, "", b"k"), RecordOf::Shared),
            (
                key_of_door(&named("c"), b"i"),
                RecordOf::Session(named("c")),
            ),
        ];
        for (key, of) in &kinds {
            assert_eq!(record_of(key), Some(of.clone()));
        }
        assert_eq!(record_of(b"?\0"), None);
        assert_eq!(
            record_of(&key(Kind::Cursor, "c", &[])),
            None,
            "no session's name"
        );
    }

    #[test]
    fn filters_of_this_node_and_of_groups_are_nobody_elses() {
        let subscription = SubscriptionRecord {
            flags: RouteFlags::from_bits(1),
            identifier: None,
            since: 0,
            rest: None,
        };
        let filters = ["$SYS/#", "$share/g/a", "a/+"];
        let records = filters.map(|filter| {
            let key = key(Kind::Subscription, named("c").text(), filter.as_bytes());
            (key, subscription.encode().into())
        });
        let session = CarriedSession {
            records: records.into(),
            ..CarriedSession::default()
        };
        assert_eq!(session.filters().collect::<Vec<_>>(), ["a/+"]);
        assert_eq!(session.first_needed(&named("c")), None);
    }
}
