//! Bans of clients for a while: by hand, or for their behaviour. One list for all doors and shards.
//!
//! A ban names a user, a client, addresses, or several of these, which then must all fit. Each is filed under the
//! most telling of its names, so that a look at a client looks at few. They are kept as records of the node. In a cluster
//! those by hand are the cluster's, and come from there to nodes that start later.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use sterna_broker::Eras;
use sterna_cluster::BanRecord;

use crate::config::{self, AddressPrefix};
use crate::giving_way::{GivingWay, Owner, Table};
use crate::identity::origin;

/// The first byte of the key of a ban's record.
const RECORD: u8 = b'b';

/// The cause of bans by hand.
pub(crate) const BY_HAND: &str = "operator";

/// The subject of a ban: at least one of these, and all of them must fit.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Banned {
    /// The name of a user.
    pub(crate) user: Option<Box<str>>,
    /// Client identifier of MQTT, container-id of AMQP.
    pub(crate) client: Option<Box<str>>,
    /// An address or a prefix.
    pub(crate) address: Option<AddressPrefix>,
    /// Only clients without the name of a user. `user` cannot say that, where `None` is anybody.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) nameless: bool,
}

impl fmt::Display for Banned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.user.as_ref().map(|user| format!("user {user}")));
        parts.extend(
            self.client
                .as_ref()
                .map(|client| format!("client {client}")),
        );
        parts.extend(self.address.map(|address| format!("address {address}")));
        parts.extend(self.nameless.then(|| "no user name".to_owned()));
        f.write_str(&parts.join(", "))
    }
}

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Ban {
    /// The subject of the ban.
    pub(crate) banned: Banned,
    /// Why, in words.
    pub(crate) reason: Box<str>,
    /// The cause: `operator`, `flapping` or `guessing`.
    pub(crate) cause: Box<str>,
    /// When it was made, in milliseconds since the Unix epoch.
    pub(crate) since_ms: u64,
    /// When it ends, in milliseconds since the Unix epoch; `None` for never.
    pub(crate) until_ms: Option<u64>,
}

/// A client before the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newcomer<'a> {
    pub(crate) user: Option<&'a str>,
    /// `None` if it has no name of its own, or has not said it.
    pub(crate) client: Option<&'a str>,
    pub(crate) address: Option<IpAddr>,
}

/// There are as many bans as there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyBans;

impl Banned {
    fn is(&self, who: Newcomer<'_>) -> bool {
        let is_name = |banned: &Option<Box<str>>, name: Option<&str>| {
            banned.is_none() || banned.as_deref() == name
        };
        is_name(&self.user, who.user)
            && !(self.nameless && who.user.is_some())
            && is_name(&self.client, who.client)
            && (self.address)
                .is_none_or(|banned| who.address.is_some_and(|address| banned.contains(address)))
    }

    /// Whether it has the same names.
    fn names_same(&self, other: &Self) -> bool {
        self.user == other.user && self.client == other.client && self.address == other.address
    }

    /// Whether it names anybody.
    pub(crate) const fn is_empty(&self) -> bool {
        self.user.is_none() && self.client.is_none() && self.address.is_none()
    }

    /// Where it is filed; `None` among the prefixes.
    fn place(&self) -> Option<Place<'_>> {
        if let Some(client) = &self.client {
            return Some(Place::Client(self.user.as_deref(), client));
        }
        if let Some(user) = &self.user {
            return Some(Place::User(user));
        }
        let address = self.address?;
        let first = address.first();
        let is_one = address == AddressPrefix::from(first) || address == origin_prefix(first);
        is_one.then_some(Place::Address(first))
    }
}

/// The prefix of the addresses that are one host's.
fn origin_prefix(address: IpAddr) -> AddressPrefix {
    AddressPrefix::of(origin(address), if address.is_ipv4() { 32 } else { 64 })
}

/// The key that a ban is filed under.
#[derive(Clone, Copy, Debug, Hash)]
enum Place<'a> {
    User(&'a str),
    /// A client of a user; of any without one.
    Client(Option<&'a str>, &'a str),
    /// One address, or the first of a host's.
    Address(IpAddr),
}

/// Logins of one client.
#[derive(Clone, Copy, Debug, Default)]
struct Logins {
    since_ms: u64,
    count: u32,
}

#[derive(Debug)]
struct List {
    bans: BTreeMap<u64, Ban>,
    /// By the hashes of their places: a look needs no copy of a name. Bans that are found there may be of others.
    places: HashMap<u64, Vec<u64>>,
    prefixes: Vec<u64>,
    next: u64,
    /// Bans whose records are to be written or removed.
    changed: Vec<u64>,
    /// Bans by hand that other nodes are to know, and ends of such.
    told: Vec<BanRecord>,
    logins: Table<u64, Logins>,
}

/// The list of bans, one for all shards.
#[derive(Debug)]
pub struct Bans {
    list: Mutex<List>,
    /// Number of bans, so that nobody looks where there are none.
    count: AtomicUsize,
    /// Number of those that name addresses.
    of_addresses: AtomicUsize,
    hashing: RandomState,
}

impl Default for Bans {
    fn default() -> Self {
        let list = List {
            bans: BTreeMap::new(),
            places: HashMap::new(),
            prefixes: Vec::new(),
            next: 1,
            changed: Vec::new(),
            told: Vec::new(),
            logins: Table::new(),
        };
        Self {
            list: Mutex::new(list),
            count: AtomicUsize::new(0),
            of_addresses: AtomicUsize::new(0),
            hashing: RandomState::new(),
        }
    }
}

impl List {
    fn key(&self, place: Place<'_>) -> u64 {
        self.places.hasher().hash_one(place)
    }

    fn insert(&mut self, id: u64, ban: Ban) {
        match ban.banned.place().map(|place| self.key(place)) {
            Some(place) => self.places.entry(place).or_default().push(id),
            None => self.prefixes.push(id),
        }
        self.next = self.next.max(id + 1);
        self.bans.insert(id, ban);
    }

    fn remove(&mut self, id: u64) -> Option<Ban> {
        let ban = self.bans.remove(&id)?;
        self.changed.push(id);
        match ban.banned.place().map(|place| self.key(place)) {
            Some(place) => {
                if let Some(ids) = self.places.get_mut(&place) {
                    ids.retain(|known| *known != id);
                    if ids.is_empty() {
                        self.places.remove(&place);
                    }
                }
            }
            None => self.prefixes.retain(|known| *known != id),
        }
        Some(ban)
    }

    /// Ends the oldest ban of whoever has most of those that nobody has made by hand. False where there is none.
    fn make_room(&mut self) -> bool {
        let mut order = GivingWay::default();
        for (id, ban) in &self.bans {
            if &*ban.cause != BY_HAND {
                let address = ban.banned.address.map(AddressPrefix::first);
                order.add(Owner::of(ban.banned.user.as_deref(), address), *id);
            }
        }
        order.pop().and_then(|id| self.remove(id)).is_some()
    }

    fn expire(&mut self, now_ms: u64) {
        let ends = self
            .bans
            .iter()
            .filter_map(|(id, ban)| Some((*id, ban.until_ms?)));
        let over: Vec<(u64, u64)> = ends.filter(|(_, until_ms)| *until_ms <= now_ms).collect();
        for (id, until_ms) in over {
            if let Some(ban) = self.remove(id) {
                self.tell(&ban, Some(until_ms));
            }
        }
    }

    /// Notes that other nodes are to know a ban by hand, or that it has ended at a time.
    fn tell(&mut self, ban: &Ban, ended_ms: Option<u64>) {
        if &*ban.cause != BY_HAND {
            return;
        }
        self.told.push(BanRecord {
            name: serde_json::to_string(&ban.banned).unwrap_or_default(),
            at_ms: ended_ms.unwrap_or(ban.since_ms),
            is_end: ended_ms.is_some(),
            ban: serde_json::to_vec(ban).unwrap_or_default().into(),
        });
    }

    fn same(&self, banned: &Banned) -> Option<u64> {
        let mut bans = self.bans.iter();
        bans.find_map(|(id, known)| (known.banned == *banned).then_some(*id))
    }

    fn find(&self, now_ms: u64, who: Newcomer<'_>) -> Option<u64> {
        let address = who.address.map(|address| address.to_canonical());
        let who = Newcomer { address, ..who };
        let of_user = who.client.filter(|_| who.user.is_some());
        let places = [
            who.user.map(Place::User),
            who.client.map(|client| Place::Client(None, client)),
            of_user.map(|client| Place::Client(who.user, client)),
            address.map(Place::Address),
            address
                .filter(IpAddr::is_ipv6)
                .map(|address| Place::Address(origin(address))),
        ];
        let places = places.iter().flatten();
        let filed = places.filter_map(|place| self.places.get(&self.key(*place)));
        let mut ids = filed.flatten().chain(&self.prefixes);
        let holds = |id: &&u64| {
            self.bans.get(id).is_some_and(|ban| {
                ban.until_ms.is_none_or(|until_ms| until_ms > now_ms) && ban.banned.is(who)
            })
        };
        ids.find(holds).copied()
    }
}

impl Bans {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_count(&self, list: &List) {
        self.count.store(list.bans.len(), Ordering::Relaxed);
        let names_address = |ban: &&Ban| ban.banned.address.is_some();
        let of_addresses = list.bans.values().filter(names_address).count();
        self.of_addresses.store(of_addresses, Ordering::Relaxed);
    }

    /// The ban that keeps a client out.
    pub(crate) fn find(&self, now_ms: u64, who: Newcomer<'_>) -> Option<u64> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.list().find(now_ms, who)
    }

    /// A ban by its number.
    pub(crate) fn get(&self, id: u64) -> Option<Ban> {
        self.list().bans.get(&id).cloned()
    }

    /// Whether there is a ban that names addresses. One that has ended may count.
    pub(crate) fn look_at_addresses(&self) -> bool {
        self.of_addresses.load(Ordering::Relaxed) > 0
    }

    /// The number of the newest ban; 0 before the first.
    pub(crate) fn newest(&self) -> u64 {
        self.list().next - 1
    }

    /// Adds a ban. One of the same names takes the place of the older one. Returns its number.
    ///
    /// # Errors
    /// There are as many as there may be.
    pub(crate) fn add(
        &self,
        limits: &config::Bans,
        now_ms: u64,
        ban: Ban,
    ) -> Result<u64, TooManyBans> {
        let mut list = self.list();
        list.expire(now_ms);
        if let Some(id) = list.same(&ban.banned) {
            list.remove(id);
        }
        if list.bans.len() >= limits.maximum_bans as usize && !list.make_room() {
            self.note_count(&list);
            return Err(TooManyBans);
        }
        let id = list.next;
        list.tell(&ban, None);
        list.insert(id, ban);
        list.changed.push(id);
        self.note_count(&list);
        Ok(id)
    }

    /// Takes up a ban of another node, or the end of one. True where that is news here.
    ///
    /// # Errors
    /// It is another one than there may be.
    pub(crate) fn learn(
        &self,
        limits: &config::Bans,
        now_ms: u64,
        record: &BanRecord,
    ) -> Result<bool, TooManyBans> {
        let Ok(ban) = serde_json::from_slice::<Ban>(&record.ban) else {
            return Ok(false);
        };
        let mut list = self.list();
        list.expire(now_ms);
        let same = list.same(&ban.banned);
        let known_ms = same
            .and_then(|id| list.bans.get(&id))
            .map(|known| known.since_ms);
        let is_news = if record.is_end {
            let is_later = known_ms.is_some_and(|known_ms| known_ms <= record.at_ms);
            is_later && same.and_then(|id| list.remove(id)).is_some()
        } else {
            let is_over = ban.until_ms.is_some_and(|until_ms| until_ms <= now_ms);
            let is_later = known_ms.is_none_or(|known_ms| known_ms < ban.since_ms);
            let is_news = is_later && !is_over;
            match same.and_then(|id| list.bans.get_mut(&id)) {
                // Operators know its number.
                Some(known) if is_news => *known = ban,
                None if is_news => {
                    if list.bans.len() >= limits.maximum_bans as usize && !list.make_room() {
                        return Err(TooManyBans);
                    }
                    let id = list.next;
                    list.insert(id, ban);
                }
                _ => {}
            }
            is_news
        };
        self.note_count(&list);
        Ok(is_news)
    }

    /// Ends bans whose time is over. Returns when the next one ends.
    pub(crate) fn expire(&self, now_ms: u64) -> Option<u64> {
        let mut list = self.list();
        list.expire(now_ms);
        self.note_count(&list);
        list.bans.values().filter_map(|ban| ban.until_ms).min()
    }

    /// The bans by hand since the last call that other nodes are to know, and ends of such.
    pub(crate) fn take_told(&self) -> Vec<BanRecord> {
        std::mem::take(&mut self.list().told)
    }

    /// Ends a ban; `None` if there is none of this number.
    pub(crate) fn lift(&self, now_ms: u64, id: u64) -> Option<(u64, Ban)> {
        let mut list = self.list();
        let lifted = list.remove(id);
        if let Some(ban) = &lifted {
            list.tell(ban, Some(now_ms));
        }
        self.note_count(&list);
        drop(list);
        lifted.map(|ban| (id, ban))
    }

    /// Ends the ban of these names; `None` if there is none.
    pub(crate) fn lift_same(&self, now_ms: u64, banned: &Banned) -> Option<(u64, Ban)> {
        let list = self.list();
        let mut bans = list.bans.iter();
        let id = bans.find_map(|(id, known)| known.banned.names_same(banned).then_some(*id));
        drop(list);
        self.lift(now_ms, id?)
    }

    /// Up to `limit` bans behind the number `after`, and whether there are more.
    pub(crate) fn page(&self, now_ms: u64, after: u64, limit: usize) -> (Vec<(u64, Ban)>, bool) {
        let mut list = self.list();
        list.expire(now_ms);
        self.note_count(&list);
        let mut behind = list.bans.range(after.saturating_add(1)..);
        let page = behind.by_ref().take(limit);
        let page = page.map(|(id, ban)| (*id, ban.clone())).collect();
        (page, behind.next().is_some())
    }

    /// Counts a login of a client; true where it has come too often.
    pub(crate) fn flaps(&self, limits: &config::Bans, now_ms: u64, who: Newcomer<'_>) -> bool {
        if limits.flapping_logins == 0 {
            return false;
        }
        // A client without a user's name is another one on each host.
        let host = who.address.filter(|_| who.user.is_none()).map(origin);
        let key = self.hashing.hash_one((who.user, who.client, host));
        let mut list = self.list();
        let owner = Owner::of(who.user, who.address);
        let logins = list
            .logins
            .entry(owner, key, limits.maximum_flapping_entries as usize);
        let window_ms = u64::from(limits.flapping_window_s) * 1000;
        if now_ms.saturating_sub(logins.since_ms) >= window_ms {
            *logins = Logins {
                since_ms: now_ms,
                count: 0,
            };
        }
        logins.count += 1;
        let flaps = logins.count > limits.flapping_logins;
        if flaps {
            logins.count = 0;
        }
        flaps
    }

    /// The records that have changed since the last call: their values, and `None` for those to remove.
    pub(crate) fn take_changed(&self) -> Vec<([u8; 9], Option<Vec<u8>>)> {
        let mut list = self.list();
        let changed = std::mem::take(&mut list.changed);
        let of = |id: u64| {
            let value = list
                .bans
                .get(&id)
                .map(|ban| serde_json::to_vec(ban).unwrap_or_default());
            (record(id), value)
        };
        changed.into_iter().map(of).collect()
    }

    /// Takes up the records of an earlier process. A ban lasts for its whole time from now on at most, also if
    /// the clock was set back.
    pub(crate) fn restore<'a>(
        &self,
        records: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        (now_ms, eras): (u64, &Eras),
    ) {
        let mut list = self.list();
        for (key, value) in records {
            if let Some((&RECORD, id)) = key.split_first()
                && let Ok(id) = id.try_into()
                && let Ok(mut ban) = serde_json::from_slice::<Ban>(value)
            {
                let since_ms = ban.since_ms;
                let begins_ms = (since_ms.saturating_add(eras.behind_ms(since_ms))).min(now_ms);
                let until_ms = ban.until_ms;
                ban.until_ms =
                    until_ms.map(|until_ms| begins_ms + until_ms.saturating_sub(since_ms));
                list.insert(u64::from_be_bytes(id), ban);
            }
        }
        self.note_count(&list);
    }
}

fn record(id: u64) -> [u8; 9] {
    let mut key = [RECORD; 9];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}

/// The ban of a client that comes and goes too fast.
pub(crate) fn of_flapping(limits: &config::Bans, now_ms: u64, who: Newcomer<'_>) -> Ban {
    let banned = Banned {
        user: who.user.map(Into::into),
        client: who.client.map(Into::into),
        address: (who.address.filter(|_| who.user.is_none())).map(origin_prefix),
        // Any name may be given as the client's own, also one that a user's client has.
        nameless: who.user.is_none(),
    };
    Ban {
        banned,
        reason: format!(
            "more than {} logins within {} s",
            limits.flapping_logins, limits.flapping_window_s
        )
        .into(),
        cause: "flapping".into(),
        since_ms: now_ms,
        until_ms: Some(now_ms + u64::from(limits.flapping_ban_s) * 1000),
    }
}

/// The ban of an address that guesses.
pub(crate) fn of_guessing(limits: &config::Bans, now_ms: u64, address: IpAddr) -> Ban {
    Ban {
        banned: Banned {
            address: Some(origin_prefix(address.to_canonical())),
            ..Banned::default()
        },
        reason: format!("{} wrong credentials", limits.guessing_failures).into(),
        cause: "guessing".into(),
        since_ms: now_ms,
        until_ms: Some(now_ms + u64::from(limits.guessing_ban_s) * 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who<'a>(user: &'a str, client: &'a str, address: &str) -> Newcomer<'a> {
        Newcomer {
            user: Some(user).filter(|user| !user.is_empty()),
            client: Some(client),
            address: address.parse().ok(),
        }
    }

    fn ban(user: &str, client: &str, address: &str, until_ms: Option<u64>) -> Ban {
        let name = |name: &str| Some(name.into()).filter(|_| !name.is_empty());
        Ban {
            banned: Banned {
                user: name(user),
                client: name(client),
                address: address.parse().ok(),
                nameless: false,
            },
            reason: "test".into(),
            cause: BY_HAND.into(),
            since_ms: 0,
            until_ms,
        }
    }

    #[test]
    fn a_ban_lasts_for_its_whole_time_at_most_if_the_clock_is_set_back() {
        let made = Bans::default();
        let mut one = ban("ann", "", "", Some(1_060));
        one.since_ms = 1_000;
        made.add(&config::Bans::default(), 1_000, one)
            .expect("room");
        let kept = made.take_changed();
        let kept = kept
            .iter()
            .map(|(key, value)| (&key[..], value.as_deref().expect("a value")));
        for (now_ms, end_ms) in [(1_030, 1_060), (1_000, 1_060), (500, 560)] {
            let restored = Bans::default();
            restored.restore(kept.clone(), (now_ms, &Eras::default()));
            let ann = who("ann", "c", "10.0.0.1");
            assert!(restored.find(end_ms - 1, ann).is_some());
            assert_eq!(restored.find(end_ms, ann), None);
        }
    }

    #[test]
    fn all_names_of_a_ban_must_fit_until_it_ends() {
        for (banned, yes, no) in [
            ("ann,,", "ann,x,192.0.2.1", "bob,ann,192.0.2.1"),
            (",c,", "ann,c,192.0.2.1", "c,x,192.0.2.1"),
            (",,192.0.2.1", "a,c,::ffff:192.0.2.1", "a,c,192.0.2.2"),
            (",,10.0.0.0/8", ",c,10.9.9.9", ",c,11.9.9.9"),
            (",,2001:db8::/64", ",c,2001:db8::7", ",c,2001:db8:0:1::7"),
            (",,2001:db8::7", ",c,2001:db8::7", ",c,2001:db8::8"),
            ("ann,c,10.0.0.0/8", "ann,c,10.0.0.1", "ann,d,10.0.0.1"),
            ("ann,c,10.0.0.0/8", "ann,c,10.0.0.1", "ann,c,11.0.0.1"),
        ] {
            // User, client, address.
            let names = |text: &'static str| {
                let mut names = text.split(',');
                [(); 3].map(|()| names.next().unwrap_or_default())
            };
            let [user, client, address] = names(banned);
            let banned = ban(user, client, address, None);
            let [yes, no] = [yes, no].map(|text| {
                let [user, client, address] = names(text);
                who(user, client, address)
            });
            let bans = Bans::default();
            let id = bans
                .add(&config::Bans::default(), 0, banned.clone())
                .expect("room");
            assert_eq!(bans.find(0, yes), Some(id), "{banned:?} {yes:?}");
            assert_eq!(bans.find(0, no), None, "{banned:?} {no:?}");
            // The kept records say the same.
            let kept = bans.take_changed();
            let restored = Bans::default();
            restored.restore(
                kept.iter()
                    .map(|(key, value)| (&key[..], value.as_deref().expect("a value"))),
                (0, &Eras::default()),
            );
            assert_eq!(restored.find(0, yes), Some(id));
            assert_eq!(bans.newest(), id);
            assert!(bans.lift(0, id).is_some() && bans.lift(0, id).is_none());
            assert_eq!(bans.newest(), id, "none is new");
            assert_eq!(bans.find(0, yes), None);
            assert_eq!(bans.take_changed(), [(record(id), None)]);
            let list = bans.list();
            assert!(list.places.is_empty() && list.prefixes.is_empty());
        }
        let bans = Bans::default();
        bans.add(&config::Bans::default(), 0, ban("ann", "", "", Some(10)))
            .expect("room");
        assert!(
            bans.find(9, who("ann", "", "")).is_some()
                && bans.find(10, who("ann", "", "")).is_none()
        );
        assert!(bans.page(10, 0, 9).0.is_empty());
    }

    /// A user who is banned under many names fills the list for nobody else.
    #[test]
    fn bans_by_behaviour_make_room_and_those_by_hand_do_not() {
        let limits = config::Bans {
            maximum_bans: 10,
            ..config::Bans::default()
        };
        let by_behaviour = |user: &str, client: &str| Ban {
            cause: "flapping".into(),
            ..ban(user, client, "", Some(1_000))
        };
        let bans = Bans::default();
        let by_hand = bans
            .add(&limits, 0, ban("ann", "", "", None))
            .expect("room");
        let other = (bans.add(&limits, 0, by_behaviour("bob", "b"))).expect("room");
        for number in 0..100 {
            let client = format!("c{number}");
            (bans.add(&limits, 0, by_behaviour("eve", &client))).expect("its own make room");
        }
        let late = bans
            .add(&limits, 0, ban("dan", "", "", None))
            .expect("room");
        let (page, _) = bans.page(0, 0, 99);
        assert_eq!(page.len(), 10);
        for id in [by_hand, other, late] {
            assert!(page.iter().any(|(known, _)| *known == id), "{id}");
        }
        assert!(bans.find(0, who("eve", "c99", "")).is_some());
        assert!(bans.find(0, who("eve", "c0", "")).is_none());
    }

    #[test]
    fn bans_are_bounded_and_the_same_one_is_one() {
        let limits = config::Bans {
            maximum_bans: 2,
            ..config::Bans::default()
        };
        let bans = Bans::default();
        let first = bans.add(&limits, 0, ban("a", "", "", None)).expect("room");
        let again = bans
            .add(&limits, 0, ban("a", "", "", Some(5)))
            .expect("the same");
        assert_ne!(first, again);
        bans.add(&limits, 0, ban("b", "", "", None)).expect("room");
        assert_eq!(
            bans.add(&limits, 0, ban("c", "", "", None)),
            Err(TooManyBans)
        );
        assert!(
            bans.add(&limits, 5, ban("c", "", "", None)).is_ok(),
            "the first is over"
        );
        let (page, has_more) = bans.page(5, 0, 1);
        assert!(page.len() == 1 && has_more);
        let (page, has_more) = bans.page(5, page[0].0, 1);
        assert!(page.len() == 1 && !has_more);
    }

    #[test]
    fn a_ban_by_hand_is_that_of_the_cluster_until_it_ends_anywhere() {
        let limits = config::Bans::default();
        let (here, late) = (Bans::default(), Bans::default());
        let since = |since_ms, until_ms| Ban {
            since_ms,
            ..ban("ann", "", "", until_ms)
        };
        let ann = who("ann", "", "");
        here.add(&limits, 10, since(10, None)).expect("room");
        here.add(&limits, 10, of_flapping(&limits, 10, who("bob", "", "")))
            .expect("room");
        let told = here.take_told();
        assert_eq!(told.len(), 1, "behaviour is of one node");
        let learn = |record| late.learn(&limits, 20, record).expect("room");
        assert!(learn(&told[0]) && !learn(&told[0]));
        let number = late.find(20, ann).expect("a ban");
        assert!(late.take_told().is_empty(), "its maker has told it");
        // It is made again, and its number stays.
        here.add(&limits, 30, since(30, Some(90))).expect("room");
        let again = here.take_told();
        assert!(learn(&again[0]) && !learn(&told[0]));
        assert_eq!(late.find(89, ann), Some(number));
        // The end of an earlier ban ends no later one.
        let earlier = BanRecord {
            at_ms: 29,
            is_end: true,
            ..again[0].clone()
        };
        assert!(!learn(&earlier));
        here.lift_same(40, &since(0, None).banned).expect("a ban");
        let ended = here.take_told();
        assert!(ended[0].is_end && learn(&ended[0]) && late.find(40, ann).is_none());
        // All nodes tell of the end in time alike.
        let ends = [&here, &late].map(|bans| {
            assert!(bans.learn(&limits, 50, &again[0]).expect("room"));
            assert_eq!(bans.expire(89), Some(90));
            assert_ne!(bans.expire(95), Some(90));
            bans.take_told()
        });
        assert_eq!((ends[0][0].at_ms, ends[0][0].is_end), (90, true));
        assert_eq!(ends[0], ends[1]);
        assert!(
            !late.learn(&limits, 95, &again[0]).expect("room"),
            "it is over"
        );
    }

    #[test]
    fn a_nameless_client_that_flaps_takes_no_user_along() {
        let limits = config::Bans::default();
        let bans = Bans::default();
        let nameless = who("", "pump", "192.0.2.1");
        let id = bans.add(&limits, 0, of_flapping(&limits, 0, nameless));
        let kept = bans.take_changed();
        let kept = kept
            .iter()
            .map(|(key, value)| (&key[..], value.as_deref().expect("a value")));
        let restored = Bans::default();
        restored.restore(kept, (0, &Eras::default()));
        for bans in [bans, restored] {
            assert_eq!(bans.find(0, nameless), id.ok());
            assert_eq!(bans.find(0, who("ann", "pump", "192.0.2.1")), None);
        }
    }

    #[test]
    fn who_comes_too_often_flaps() {
        let limits = config::Bans {
            flapping_logins: 3,
            flapping_window_s: 10,
            ..config::Bans::default()
        };
        let bans = Bans::default();
        let flaps =
            |now_ms, user, client, address| bans.flaps(&limits, now_ms, who(user, client, address));
        for (now_ms, expected) in [(0, false), (1, false), (2, false), (3, true), (4, false)] {
            assert_eq!(flaps(now_ms, "ann", "c", "192.0.2.1"), expected, "{now_ms}");
        }
        for address in [
            "192.0.2.1",
            "192.0.2.2",
            "192.0.2.3",
            "192.0.2.4",
            "192.0.2.5",
        ] {
            assert!(
                !flaps(0, "", "c", address),
                "nobody's client is another one elsewhere"
            );
        }
        for now_ms in [0, 4_000, 8_000, 12_000, 16_000, 20_000] {
            assert!(!flaps(now_ms, "slow", "c", "192.0.2.1"));
        }
    }
}
