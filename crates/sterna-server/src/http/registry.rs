//! State of HTTP that all shards share: topics that were created, and keys of requests that were done.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::digest::{Context, SHA256};
use sterna_broker::{Eras, Message, Once};
use sterna_cluster::Asker;
use sterna_cluster::requests::Begun;

use super::claim::Claim;
use super::created::{TOPIC_RECORD, Topics};
use crate::config::Http;
use crate::giving_way::{GivingWay, Owner, Place};

/// Topics and keys, behind short locks. Only requests that create, delete or look up topics, or that have a key,
/// take the locks.
#[derive(Debug, Default)]
pub struct Registry {
    pub(super) topics: Mutex<Topics>,
    keys: Mutex<Keys>,
    /// The way to other nodes, which may know keys; `None` where there are none.
    cluster: Option<Asker>,
}

/// Requests by their keys. An entry's size does not depend on what the client sent.
#[derive(Debug, Default)]
struct Keys {
    known: HashMap<KeyId, Known>,
    /// Keys by age.
    ages: BTreeMap<u64, KeyId>,
    /// Keys by those who use them.
    owners: GivingWay<KeyId>,
    next: u64,
    /// Requests that were done, and are forgotten, with their records.
    forgotten: Vec<(KeyRecord, Vec<u8>)>,
}

/// A key in both tables.
const KEY_BYTES: u64 = 220;

/// A digest of a user and a key.
type KeyId = [u8; 16];

#[derive(Debug)]
struct Known {
    age: u64,
    /// Its place among those of its owner, once it is known.
    place: Option<Place>,
    fingerprint: Fingerprint,
    expires_at_ms: u64,
    /// The status, and the append that has kept it; `None` while it is not done.
    done: Option<(u16, u64)>,
    /// The shard of that append: each shard of a cluster's node counts its own appends.
    shard: usize,
}

/// A digest of a request's message. Requests that differ in topic, fields or content have different digests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fingerprint([u8; 16]);

impl Fingerprint {
    pub(super) const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The fingerprint of a request's message. The time of the request plays no part.
    pub(crate) fn of(message: &Message) -> Self {
        let expiry_ms = message
            .expires_at_ms()
            .map(|at_ms| at_ms.saturating_sub(message.published_ms()));
        let [has_expiry, expiry] = [u64::from(expiry_ms.is_some()), expiry_ms.unwrap_or(0)];
        Self(digest(&[
            message.topic_bytes(),
            message.properties(),
            &[message.qos() as u8, message.retain().into()],
            &has_expiry.to_be_bytes(),
            &expiry.to_be_bytes(),
            message.payload(),
        ]))
    }
}

/// Half of the SHA-256 of several parts; no two lists of parts look the same to it.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut half = [0; 16];
    half.copy_from_slice(&context.finish().as_ref()[..16]);
    half
}

/// The state of a key when a request with it begins.
#[derive(Debug)]
pub(crate) enum Begin {
    /// The key is not known: the request is to be done.
    First(Ticket),
    /// The request was done: its status, and the append that keeps it, 0 for none.
    Replay(u16, u64),
    /// The key was used for another request.
    Reused,
    /// The earlier request with the key is not answered yet.
    InProgress,
    /// The cluster gives no answer.
    Away,
}

/// The right to do a request. Without [`done`](Self::done) its key is forgotten, so that it can be
/// tried again.
#[derive(Debug)]
pub(crate) struct Ticket {
    registry: Arc<Registry>,
    id: KeyId,
    age: u64,
    fingerprint: Fingerprint,
    expires_at_ms: u64,
    /// The question to the cluster about the key; `None` without a cluster.
    claim: Option<Claim>,
}

impl Ticket {
    /// The identity by which the log of a cluster recognizes the message, whichever node publishes it.
    pub(crate) fn once(&self) -> Option<Once> {
        let Some(Begun::First(round)) = self.claim.as_ref()?.answer() else {
            return None;
        };
        let session = self.id.first_chunk().copied().map(u64::from_be_bytes);
        Some(Once {
            session: session.unwrap_or_default(),
            round,
            packet_id: 0,
        })
    }

    /// The record by which the request is known after a restart, done with this status.
    pub(crate) fn record(&self, status: u16) -> (KeyRecord, Vec<u8>) {
        let value = value_of(self.fingerprint, self.expires_at_ms, status);
        (key_record(self.id), value)
    }

    /// The request was done with this status, which an append keeps; 0 for none.
    pub(crate) fn done(mut self, status: u16, token: u64) {
        if let Some(claim) = &mut self.claim {
            claim.done();
        }
        let mut keys = lock(&self.registry.keys);
        if let Some(known) = keys.known.get_mut(&self.id)
            && known.age == self.age
        {
            known.done = Some((status, token));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut keys = lock(&self.registry.keys);
        let known = keys.known.get(&self.id);
        if known.is_some_and(|known| known.age == self.age && known.done.is_none()) {
            keys.forget(self.id);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// The registry of a cluster's node; `None` makes that of a node that is alone.
    #[must_use]
    pub fn of_node(cluster: Option<Asker>) -> Self {
        Self {
            cluster,
            ..Self::default()
        }
    }

    /// Bytes of all keys of requests.
    pub(super) fn key_bytes(&self) -> u64 {
        lock(&self.keys).known.len() as u64 * KEY_BYTES
    }

    /// Looks at all topics and keys.
    ///
    /// # Panics
    /// Where a sum or an age does not agree with them.
    pub(super) fn check(&self) {
        lock(&self.topics).check();
        let keys = lock(&self.keys);
        assert_eq!(keys.ages.len(), keys.known.len(), "each key has one age");
        for (age, id) in &keys.ages {
            let known = keys.known.get(id);
            assert_eq!(
                known.map(|known| known.age),
                Some(*age),
                "an age is that of its key"
            );
            assert!(*age <= keys.next, "ages are given in order");
        }
    }

    /// The way to other nodes; `None` where there are none.
    pub(crate) const fn cluster(&self) -> Option<&Asker> {
        self.cluster.as_ref()
    }

    /// Whether records of keys are the cluster's.
    pub(crate) const fn is_in_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Asks the cluster about a user's key that is not known here. Also asks about a key that another shard has
    /// used, since its record may not be kept yet. `None` where there is nothing to ask.
    pub(crate) fn ask(
        &self,
        config: &Http,
        (user, key): (Option<&str>, &[u8]),
        fingerprint: impl FnOnce() -> Option<Fingerprint>,
        (shard, now_ms): (usize, u64),
        wake: impl FnOnce() + Send + 'static,
    ) -> Option<Claim> {
        let asker = self.cluster.as_ref()?;
        let id = key_id(user, key);
        let mut keys = lock(&self.keys);
        keys.expire(now_ms);
        let known = keys.known.get(&id);
        if known
            .is_some_and(|known| known.shard == shard || known.done.is_none_or(|done| done.1 == 0))
        {
            return None;
        }
        drop(keys);
        let kept_for_s = config.idempotency_window_s;
        Some(Claim::ask(
            asker,
            key_record(id),
            fingerprint()?,
            kept_for_s,
            wake,
        ))
    }

    /// Looks a user's key up, and remembers it for `http.idempotency_window_s` where it is not known. If there
    /// are more than `http.maximum_idempotency_keys`, the oldest of whoever has most is forgotten. In a cluster `claim` is the
    /// question that was [asked](Self::ask).
    ///
    /// `forget` has the store forget records. No other shard can begin with one of these keys, and keep a new record,
    /// before that.
    pub(crate) fn begin(
        self: &Arc<Self>,
        config: &Http,
        ((user, address), key): ((Option<&str>, Option<IpAddr>), &[u8]),
        fingerprint: Fingerprint,
        claim: Option<Claim>,
        (shard, now_ms): (usize, u64),
        forget: impl FnMut(&KeyRecord),
    ) -> Begin {
        let id = key_id(user, key);
        let mut keys = lock(&self.keys);
        keys.expire(now_ms);
        let of = (Owner::of(user, address), id);
        let begin = self.begin_with(&mut keys, config, of, fingerprint, claim, (shard, now_ms));
        self.forget(&mut keys, forget);
        begin
    }

    /// Forgets the records of requests that are not known any more. In a cluster each record is named by its content,
    /// because another node may have begun with its key anew.
    fn forget(&self, keys: &mut Keys, mut forget: impl FnMut(&KeyRecord)) {
        for (record, value) in keys.forgotten.drain(..) {
            forget(&record);
            if let Some(asker) = &self.cluster {
                asker.forget(&record, &value);
            }
        }
    }

    fn begin_with(
        self: &Arc<Self>,
        keys: &mut Keys,
        config: &Http,
        (owner, id): (Owner, KeyId),
        fingerprint: Fingerprint,
        claim: Option<Claim>,
        (shard, now_ms): (usize, u64),
    ) -> Begin {
        if let Some(known) = keys.known.get_mut(&id)
            && let Some(answer) = claim.as_ref().and_then(Claim::answer)
        {
            match answer {
                Begun::Away => return Begin::Away,
                Begun::Known { is_done: false, .. } if known.fingerprint == fingerprint => {
                    return Begin::InProgress;
                }
                // It is kept.
                _ => known.done = known.done.map(|(status, _)| (status, 0)),
            }
        }
        match keys.known.get(&id) {
            Some(known) if known.expires_at_ms <= now_ms => keys.forget(id),
            Some(known) => return known.begin(fingerprint),
            None => {}
        }
        if self.cluster.is_some() {
            match claim.as_ref().and_then(Claim::answer) {
                Some(Begun::First(_)) => {}
                Some(Begun::Known { is_done, value }) => {
                    let Some((_, known)) = read_known(&id, &value) else {
                        // It is being done: of it there is the fingerprint alone.
                        let is_it = *value == *fingerprint.as_bytes() && !is_done;
                        return if is_it {
                            Begin::InProgress
                        } else {
                            Begin::Reused
                        };
                    };
                    let begin = known.begin(fingerprint);
                    keys.know(owner, id, known);
                    return begin;
                }
                Some(Begun::Away) | None => return Begin::Away,
            }
        }
        while keys.known.len() >= config.maximum_idempotency_keys.max(1) as usize {
            let Some((_, oldest)) = keys.owners.first() else {
                break;
            };
            let oldest = *oldest;
            keys.forget(oldest);
        }
        let expires_at_ms = now_ms + u64::from(config.idempotency_window_s) * 1000;
        let known = Known {
            age: 0,
            place: None,
            fingerprint,
            expires_at_ms,
            done: None,
            shard,
        };
        keys.know(owner, id, known);
        let age = keys.next;
        Begin::First(Ticket {
            registry: Arc::clone(self),
            id,
            age,
            fingerprint,
            expires_at_ms,
            claim,
        })
    }

    /// Takes up the records that a store has kept; other records are passed over. No key is known for longer than
    /// the window from now on, also if the clock was set back.
    pub(crate) fn restore<'a>(
        &self,
        config: &Http,
        records: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        (now_ms, eras): (u64, &Eras),
    ) {
        let window_ms = u64::from(config.idempotency_window_s) * 1000;
        let most_ms = now_ms + window_ms;
        let (mut topics, mut keys) = (lock(&self.topics), lock(&self.keys));
        let mut known = Vec::new();
        for (key, value) in records {
            match key.split_first() {
                Some((&TOPIC_RECORD, topic)) => topics.restore(topic, value),
                Some((&KEY_RECORD, id)) => known.extend(read_known(id, value)),
                _ => {}
            }
        }
        // The oldest first.
        known.sort_unstable_by_key(|(_, known)| known.expires_at_ms);
        for (id, mut of) in known {
            let behind_ms = eras.behind_ms(of.expires_at_ms.saturating_sub(window_ms));
            of.expires_at_ms = of.expires_at_ms.saturating_add(behind_ms).min(most_ms);
            // Its owner has not been kept.
            keys.know(Owner::of(None, None), id, of);
        }
    }
}

/// First byte of the key of the record of a request's key.
const KEY_RECORD: u8 = b'k';

/// The key of the record of a request's key.
pub(crate) type KeyRecord = [u8; 17];

fn key_record(id: KeyId) -> KeyRecord {
    let mut record = [KEY_RECORD; 17];
    record[1..].copy_from_slice(&id);
    record
}

/// The value of the record of a request; see [`read_known`].
fn value_of(fingerprint: Fingerprint, expires_at_ms: u64, status: u16) -> Vec<u8> {
    let mut value = fingerprint.0.to_vec();
    value.extend_from_slice(&expires_at_ms.to_be_bytes());
    value.extend_from_slice(&status.to_be_bytes());
    value
}

/// A request as its record tells; see [`Ticket::record`].
fn read_known(id: &[u8], value: &[u8]) -> Option<(KeyId, Known)> {
    let (fingerprint, rest) = value.split_first_chunk()?;
    let (expires_at_ms, status) = rest.split_first_chunk()?;
    let known = Known {
        age: 0,
        place: None,
        fingerprint: Fingerprint(*fingerprint),
        expires_at_ms: u64::from_be_bytes(*expires_at_ms),
        done: Some((u16::from_be_bytes(status.try_into().ok()?), 0)),
        shard: 0,
    };
    Some((id.try_into().ok()?, known))
}

fn key_id(user: Option<&str>, key: &[u8]) -> KeyId {
    let is_named = [u8::from(user.is_some())];
    digest(&[&is_named, user.unwrap_or_default().as_bytes(), key])
}

impl Known {
    /// The answer to a request with this key and fingerprint.
    fn begin(&self, fingerprint: Fingerprint) -> Begin {
        if self.fingerprint != fingerprint {
            return Begin::Reused;
        }
        (self.done).map_or(Begin::InProgress, |(status, token)| {
            Begin::Replay(status, token)
        })
    }
}

impl Keys {
    /// Notes the state of a key.
    fn know(&mut self, owner: Owner, id: KeyId, mut known: Known) {
        self.next += 1;
        known.age = self.next;
        known.place = Some(self.owners.add(owner, id));
        self.ages.insert(known.age, id);
        self.known.insert(id, known);
        debug_assert_eq!(self.ages.len(), self.known.len(), "each key has one age");
    }

    /// Forgets the oldest keys whose time is over.
    fn expire(&mut self, now_ms: u64) {
        while let Some(oldest) = self.ages.first_entry() {
            let is_over = self
                .known
                .get(oldest.get())
                .is_none_or(|known| known.expires_at_ms <= now_ms);
            if !is_over {
                return;
            }
            let id = oldest.remove();
            self.remove(id);
        }
    }

    /// Removes a key that has no age any more.
    fn remove(&mut self, id: KeyId) {
        let Some(known) = self.known.remove(&id) else {
            return;
        };
        if let Some(place) = known.place {
            self.owners.remove(place);
        }
        if let Some((status, _)) = known.done {
            let value = value_of(known.fingerprint, known.expires_at_ms, status);
            self.forgotten.push((key_record(id), value));
        }
    }

    fn forget(&mut self, id: KeyId) {
        if let Some(known) = self.known.get(&id) {
            self.ages.remove(&known.age);
            self.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sterna_broker::{MessageHeader, Qos};

    use super::*;

    fn config(most: u32) -> Http {
        Http {
            maximum_topics: most,
            maximum_idempotency_keys: most,
            idempotency_window_s: 10,
            ..Http::default()
        }
    }

    fn fingerprint(payload: &str) -> Fingerprint {
        let header = MessageHeader::default();
        Fingerprint::of(&Message::copy("a", b"", payload.as_bytes(), header).unwrap())
    }

    fn begin(
        registry: &Arc<Registry>,
        config: &Http,
        key: (Option<&str>, &[u8]),
        payload: &str,
        now_ms: u64,
    ) -> Begin {
        let key = ((key.0, None), key.1);
        registry.begin(config, key, fingerprint(payload), None, (0, now_ms), |_| ())
    }

    #[test]
    fn a_request_is_done_once_in_its_window() {
        let registry = Arc::new(Registry::default());
        let config = config(10);
        let of = |user: Option<&str>, payload: &str, now_ms| {
            begin(&registry, &config, (user, b"key"), payload, now_ms)
        };
        let Begin::First(ticket) = of(Some("ann"), "x", 0) else {
            panic!("it is new");
        };
        assert!(matches!(of(Some("ann"), "x", 1), Begin::InProgress));
        assert!(matches!(of(Some("ann"), "y", 1), Begin::Reused));
        ticket.done(204, 0);
        assert!(matches!(of(Some("ann"), "x", 9_999), Begin::Replay(204, _)));
        assert!(matches!(of(Some("ann"), "y", 9_999), Begin::Reused));
        // Other users have keys of their own, and a request that was not done can be tried again.
        for user in [Some("bob"), Some(""), None] {
            for _ in 0..2 {
                assert!(matches!(of(user, "x", 9_999), Begin::First(_)), "{user:?}");
            }
        }
        assert!(matches!(of(Some("ann"), "x", 10_000), Begin::First(_)));
        assert!(lock(&registry.keys).ages.is_empty());
    }

    #[test]
    fn an_old_ticket_says_nothing_about_a_new_one() {
        let registry = Arc::new(Registry::default());
        let config = config(1);
        let of = |key: &[u8], now_ms| begin(&registry, &config, (None, key), "x", now_ms);
        let Begin::First(first) = of(b"a", 0) else {
            panic!("it is new");
        };
        let Begin::First(other) = of(b"b", 0) else {
            panic!("it is new");
        };
        let Begin::First(again) = of(b"a", 0) else {
            panic!("it had to make room");
        };
        first.done(204, 0);
        drop(other);
        assert!(matches!(of(b"a", 0), Begin::InProgress));
        again.done(503, 0);
        assert!(matches!(of(b"a", 0), Begin::Replay(503, _)));
    }

    /// A user with many keys loses the oldest of them, and nobody else's.
    #[test]
    fn the_keys_of_one_user_are_not_forgotten_for_those_of_another() {
        let registry = Arc::new(Registry::default());
        let config = config(10);
        let of = |user, key: &[u8]| begin(&registry, &config, (user, key), "x", 0);
        let Begin::First(ticket) = of(Some("ann"), b"own") else {
            panic!("it is new");
        };
        ticket.done(204, 0);
        for number in 0..1_000_u32 {
            let Begin::First(ticket) = of(Some("eve"), &number.to_be_bytes()) else {
                panic!("it is new");
            };
            ticket.done(204, 0);
        }
        assert!(matches!(of(Some("ann"), b"own"), Begin::Replay(204, _)));
        assert!(matches!(
            of(Some("eve"), &999_u32.to_be_bytes()),
            Begin::Replay(..)
        ));
        assert!(matches!(
            of(Some("eve"), &0_u32.to_be_bytes()),
            Begin::First(_)
        ));
        assert_eq!(lock(&registry.keys).known.len(), 9, "a ticket was dropped");
        registry.check();
    }

    #[test]
    fn what_is_forgotten_is_so_in_the_store_before_another_shard_begins_anew() {
        let registry = Arc::new(Registry::default());
        let config = config(1);
        let Begin::First(ticket) = begin(&registry, &config, (None, b"a"), "x", 0) else {
            panic!("it is new");
        };
        let (record, _) = ticket.record(204);
        ticket.done(204, 0);
        let mut forgotten = Vec::new();
        let forget = |record: &KeyRecord| {
            assert!(registry.keys.try_lock().is_err(), "another could begin");
            forgotten.push(*record);
        };
        let other = fingerprint("y");
        let begun = registry.begin(&config, ((None, None), b"b"), other, None, (0, 1), forget);
        assert!(matches!(begun, Begin::First(_)));
        assert_eq!(forgotten, [record]);
    }

    #[test]
    fn every_part_of_a_message_is_in_its_fingerprint() {
        let header = MessageHeader {
            published_ms: 5,
            expires_at_ms: Some(1_005),
            ..MessageHeader::default()
        };
        let make = |topic: &str, properties: &[u8], payload: &[u8], header| {
            Fingerprint::of(&Message::copy(topic, properties, payload, header).unwrap())
        };
        let later = MessageHeader {
            published_ms: 15,
            expires_at_ms: Some(1_015),
            ..header
        };
        let one = make("ab", b"cd", b"ef", header);
        assert_eq!(
            one,
            make("ab", b"cd", b"ef", later),
            "when it came plays no part"
        );
        let others = [
            make("abc", b"d", b"ef", header),
            make("ab", b"c", b"def", header),
            make("ab", b"cd", b"eg", header),
            make(
                "ab",
                b"cd",
                b"ef",
                MessageHeader {
                    qos: Qos::AtLeastOnce,
                    ..header
                },
            ),
            make(
                "ab",
                b"cd",
                b"ef",
                MessageHeader {
                    retain: true,
                    ..header
                },
            ),
            make(
                "ab",
                b"cd",
                b"ef",
                MessageHeader {
                    expires_at_ms: None,
                    ..header
                },
            ),
            make(
                "ab",
                b"cd",
                b"ef",
                MessageHeader {
                    expires_at_ms: Some(6),
                    ..header
                },
            ),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(one, *other, "{at}");
            assert!(!others[..at].contains(other), "{at}");
        }
    }

    proptest! {
        /// In whatever order requests come, none is done twice while its key is remembered. The number of
        /// remembered keys stays within the limit.
        #[test]
        fn keys_are_bounded_and_forgotten_in_order(
            steps in prop::collection::vec((0..12_u8, 0..2_u8, 0..4_000_u64, any::<bool>()), 0..80),
            most in 1..8_u32,
        ) {
            let registry = Arc::new(Registry::default());
            let config = config(most);
            // Key, content, until when; the oldest first.
            let mut model: Vec<(u8, u8, u64)> = Vec::new();
            let mut now_ms = 0;
            for (key, content, pause_ms, is_done) in steps {
                now_ms += pause_ms;
                model.retain(|&(_, _, until_ms)| until_ms > now_ms);
                let begin = begin(&registry, &config, (None, &[key]), &content.to_string(), now_ms);
                let known = model.iter().find(|&&(known, _, _)| known == key).copied();
                match (begin, known) {
                    (Begin::First(ticket), None) => {
                        if model.len() >= most as usize {
                            model.remove(0);
                        }
                        if is_done {
                            ticket.done(204, 0);
                            model.push((key, content, now_ms + 10_000));
                        }
                    }
                    (Begin::Replay(204, _), Some((_, same, _))) => prop_assert_eq!(same, content),
                    (Begin::Reused, Some((_, other, _))) => prop_assert_ne!(other, content),
                    (begin, known) => prop_assert!(false, "{begin:?} {known:?}"),
                }
                let keys = lock(&registry.keys);
                prop_assert_eq!(keys.known.len(), model.len());
                prop_assert_eq!(keys.ages.len(), model.len());
            }
        }
    }
}
