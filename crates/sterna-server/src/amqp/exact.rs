//! Clients' sending links on which deliveries come exactly once (receiver settle mode second).
//!
//! Deliveries taken on such a link are remembered until the sender has settled them. They are remembered by the
//! link's name, not by its connection. So the next link of that name, on any shard, tells the sender which
//! deliveries were taken. A link has one owner at a time. When a link is attached anew, its earlier attachment
//! takes nothing any more. The earlier connection may live on, with deliveries that are read later.
//!
//! For a sender that wants its target to keep the unsettled state, the store has a record of each delivery. The
//! record is in one frame with the message. So the same holds over a restart.
//!
//! In a cluster the link is also a session of the broker (`claims.rs`), which has the records. So the same holds
//! at every node, and a link has one owner in the cluster.

use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;
use sterna_amqp::link::{DeliveryTag, Unsettled};
use sterna_amqp::messaging::DeliveryStateBuf;

use super::departed::{Deadline, Departed, Gauge, Most, state_bytes};
use super::registry::{LinkKey, lock};
use crate::giving_way::Owner;

/// The first byte of the key of a record: a delivery was taken and is not settled.
const RECORD: u8 = b'u';

/// The keys of records that a store is to forget.
pub(super) type Forgotten = Vec<Vec<u8>>;

/// The links of all clients, wherever they are attached.
#[derive(Debug, Default)]
pub(super) struct ExactLinks {
    links: Mutex<Links>,
    gauge: Gauge,
}

#[derive(Debug, Default)]
struct Links {
    known: FxHashMap<LinkKey, Arc<Mutex<Taken>>>,
    /// Those that are attached nowhere.
    departed: Departed,
    /// The number of the last attachment.
    last: u64,
}

/// The deliveries taken on a link.
#[derive(Debug, Default)]
struct Taken {
    /// The number of the attachment that may take more; 0 for none.
    owner: u64,
    /// Its place among departed links; `None` while it is attached.
    deadline: Option<Deadline>,
    deliveries: Vec<Delivery>,
    /// The last append of one of them.
    token: u64,
}

#[derive(Debug)]
struct Delivery {
    tag: DeliveryTag,
    /// Its number in the owner's session; `None` until the owner has taken it up again.
    id: Option<u32>,
    state: DeliveryStateBuf,
    is_recorded: bool,
}

/// The keeper of the records of deliveries taken on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Recorded {
    /// None: there are no records.
    Nowhere,
    /// The node.
    OnNode,
    /// The link's session in a cluster.
    InSession,
}

/// A link that is attached.
#[derive(Clone, Debug)]
pub(super) struct ExactLink {
    key: LinkKey,
    taken: Arc<Mutex<Taken>>,
    number: u64,
    recorded: Recorded,
}

/// Why a delivery is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotTaken {
    /// The link was attached anew elsewhere.
    Stolen,
    /// The link has as many unsettled deliveries as it may.
    Full,
}

/// The decision on a delivery: its state, the append that it waits for, and a result for the caller.
pub(super) struct Decided<R> {
    pub(super) state: DeliveryStateBuf,
    pub(super) token: u64,
    pub(super) result: R,
}

impl Delivery {
    fn bytes(&self) -> usize {
        size_of::<Self>() + state_bytes(&self.state)
    }
}

impl Taken {
    /// Forgets all deliveries. Returns the keys under which the node has their records.
    fn clear(&mut self, key: &LinkKey) -> Forgotten {
        let deliveries = std::mem::take(&mut self.deliveries);
        let recorded = deliveries.iter().filter(|delivery| delivery.is_recorded);
        recorded
            .map(|delivery| record_key(key, &delivery.tag))
            .collect()
    }
}

impl Links {
    fn forget(&mut self, key: &LinkKey) -> Forgotten {
        let Some(taken) = self.known.remove(key) else {
            return Forgotten::new();
        };
        let mut taken = lock(&taken);
        self.unset_deadline(&mut taken);
        taken.clear(key)
    }

    /// Forgets links whose time is up, and those beyond `most` that would be forgotten first.
    fn forget_late(&mut self, now_ms: u64, most: Most) -> Forgotten {
        let mut forgotten = Forgotten::new();
        while let Some(key) = self.departed.late(now_ms, most) {
            forgotten.extend(self.forget(&key));
        }
        forgotten
    }

    fn set_deadline(
        &mut self,
        (owner, key): (Owner, LinkKey),
        taken: &mut Taken,
        deadline_ms: u64,
    ) {
        taken.deliveries.shrink_to_fit();
        let deliveries = taken.deliveries.iter().map(Delivery::bytes);
        taken.deadline = Some(self.departed.add(owner, key, deadline_ms, deliveries.sum()));
    }

    fn unset_deadline(&mut self, taken: &mut Taken) {
        if let Some(deadline) = taken.deadline.take() {
            self.departed.remove(deadline);
        }
    }
}

impl ExactLinks {
    /// The bytes of links that are attached nowhere, and when the first is to be forgotten.
    pub(super) const fn gauge(&self) -> &Gauge {
        &self.gauge
    }

    /// Looks at the links that are attached nowhere.
    ///
    /// # Panics
    /// Where a sum or a place does not agree with them.
    pub(super) fn check(&self) {
        let links = lock(&self.links);
        let mut count = 0;
        for (deadline, key) in links.departed.check() {
            let place = links.known.get(key).and_then(|taken| lock(taken).deadline);
            assert_eq!(
                place,
                Some(deadline),
                "a link that is to be forgotten is known"
            );
            count += 1;
        }
        let known = links.known.values();
        let departed = known.filter(|taken| lock(taken).deadline.is_some());
        assert_eq!(
            departed.count(),
            count,
            "each departed link is forgotten at some time"
        );
        let bytes = links.departed.bytes();
        assert_eq!(self.gauge.bytes(), bytes, "the gauge of departed links");
    }

    /// Forgets links whose time is up, and those beyond `most` that would be forgotten first.
    pub(super) fn forget_late(&self, now_ms: u64, most: Most) -> Forgotten {
        let mut links = lock(&self.links);
        let forgotten = links.forget_late(now_ms, most);
        self.gauge.set(&links.departed);
        forgotten
    }

    /// Whether a link is attached, or deliveries of it are remembered.
    pub(super) fn knows(&self, key: &LinkKey) -> bool {
        lock(&self.links).known.contains_key(key)
    }

    /// Attaches a link, and takes it from where it was attached before. Returns the link, its unsettled
    /// deliveries, the append that keeps them, and the keys of records to forget.
    pub(super) fn attach(
        &self,
        key: LinkKey,
        recorded: Recorded,
        now_ms: u64,
    ) -> (ExactLink, Vec<Unsettled>, u64, Forgotten) {
        let mut links = lock(&self.links);
        let forgotten = links.forget_late(now_ms, Most::ANY);
        links.last += 1;
        let number = links.last;
        let shared = Arc::clone(links.known.entry(key.clone()).or_default());
        let mut of_link = lock(&shared);
        links.unset_deadline(&mut of_link);
        self.gauge.set(&links.departed);
        of_link.owner = number;
        for delivery in &mut of_link.deliveries {
            delivery.id = None;
        }
        let deliveries = of_link.deliveries.iter();
        let unsettled = deliveries
            .map(|delivery| Unsettled {
                tag: delivery.tag,
                token: 0,
                state: Some(delivery.state.clone()),
            })
            .collect();
        let token = of_link.token;
        drop(of_link);
        let link = ExactLink {
            key,
            taken: shared,
            number,
            recorded,
        };
        (link, unsettled, token, forgotten)
    }

    /// A link is attached no longer. Its unsettled deliveries are remembered until `deadline_ms`; `None` forgets
    /// them at once. Beyond `most` links, those that would be forgotten first are forgotten now.
    pub(super) fn detach(
        &self,
        (owner, link): (Owner, &ExactLink),
        deadline_ms: Option<u64>,
        now_ms: u64,
        most: Most,
    ) -> Forgotten {
        let mut links = lock(&self.links);
        let mut taken = lock(&link.taken);
        if taken.owner != link.number {
            return Forgotten::new(); // it is attached elsewhere
        }
        taken.owner = 0;
        match deadline_ms {
            Some(deadline_ms) if !taken.deliveries.is_empty() => {
                links.set_deadline((owner, link.key.clone()), &mut taken, deadline_ms);
                drop(taken);
                let forgotten = links.forget_late(now_ms, most);
                self.gauge.set(&links.departed);
                forgotten
            }
            _ => {
                drop(taken);
                links.forget(&link.key)
            }
        }
    }

    /// Replaces the deliveries of a link that another node had, or nobody: the records of the link's session name
    /// them.
    pub(super) fn replace<'a>(&self, key: &LinkKey, records: impl Iterator<Item = &'a [u8]>) {
        let mut links = lock(&self.links);
        let taken = Arc::clone(links.known.entry(key.clone()).or_default());
        let mut taken = lock(&taken);
        links.unset_deadline(&mut taken);
        self.gauge.set(&links.departed);
        let tags = records.filter_map(|record| match record.split_first() {
            Some((&RECORD, tag)) => DeliveryTag::new(tag),
            _ => None,
        });
        taken.deliveries = tags
            .map(|tag| Delivery {
                tag,
                id: None,
                state: DeliveryStateBuf::Accepted,
                is_recorded: true,
            })
            .collect();
        taken.token = 0;
    }

    /// Takes up the deliveries that a store has records of, which are remembered until `deadline_ms`; other
    /// records are passed over.
    pub(super) fn restore<'a>(&self, keys: impl Iterator<Item = &'a [u8]>, deadline_ms: u64) {
        let mut links = lock(&self.links);
        for (key, tag) in keys.filter_map(read_key) {
            let taken = Arc::clone(links.known.entry(key.clone()).or_default());
            let mut taken = lock(&taken);
            let delivery = Delivery {
                tag,
                id: None,
                state: DeliveryStateBuf::Accepted,
                is_recorded: true,
            };
            let bytes = delivery.bytes();
            taken.deliveries.push(delivery);
            match taken.deadline {
                None => {
                    let owner = Owner::of(key.user.as_deref(), None);
                    links.set_deadline((owner, key), &mut taken, deadline_ms);
                }
                Some(deadline) => links.departed.grow(deadline, bytes),
            }
        }
        self.gauge.set(&links.departed);
    }
}

impl ExactLink {
    /// Takes a delivery, and remembers its outcome. Nobody else attaches the link meanwhile. `most` is how many may
    /// be unsettled, with those of earlier attachments.
    ///
    /// # Errors
    /// [`NotTaken`]: then it must not be published.
    pub(super) fn take<R>(
        &self,
        tag: DeliveryTag,
        id: u32,
        most: usize,
        decide: impl FnOnce(Option<Vec<u8>>) -> Decided<R>,
    ) -> Result<R, NotTaken> {
        let mut taken = lock(&self.taken);
        if taken.owner != self.number {
            return Err(NotTaken::Stolen);
        }
        if taken.deliveries.len() >= most {
            return Err(NotTaken::Full);
        }
        let is_recorded = self.recorded != Recorded::Nowhere;
        let record = is_recorded.then(|| self.record(&tag));
        let decided = decide(record);
        taken.token = taken.token.max(decided.token);
        taken.deliveries.push(Delivery {
            tag,
            id: Some(id),
            state: decided.state,
            is_recorded,
        });
        Ok(decided.result)
    }

    /// The key of the record of a delivery.
    fn record(&self, tag: &DeliveryTag) -> Vec<u8> {
        match self.recorded {
            Recorded::InSession => [&[RECORD], tag.as_bytes()].concat(),
            Recorded::OnNode | Recorded::Nowhere => record_key(&self.key, tag),
        }
    }

    /// Whether something is not settled.
    pub(super) fn has_unsettled(&self) -> bool {
        !lock(&self.taken).deliveries.is_empty()
    }

    /// Number of its unsettled deliveries, with those of earlier attachments.
    pub(super) fn unsettled(&self) -> u32 {
        lock(&self.taken).deliveries.len() as u32
    }

    /// Another node has the link: nothing more is taken here.
    pub(super) fn lose(&self) {
        let mut taken = lock(&self.taken);
        if taken.owner == self.number {
            taken.owner = 0;
            taken.deliveries.clear();
        }
    }

    /// Whether it remembers a delivery.
    pub(super) fn knows(&self, tag: &DeliveryTag) -> bool {
        let taken = lock(&self.taken);
        taken.deliveries.iter().any(|known| known.tag == *tag)
    }

    /// The sender has taken a delivery up again, by another number.
    pub(super) fn resumed(&self, tag: &DeliveryTag, id: u32) {
        let mut taken = lock(&self.taken);
        let owns = taken.owner == self.number;
        let known = taken.deliveries.iter_mut().find(|known| known.tag == *tag);
        if let Some(known) = known.filter(|_| owns) {
            known.id = Some(id);
        }
    }

    /// The sender has settled the deliveries that are meant. Returns the keys of their records.
    fn settle(&self, is_meant: impl Fn(&Delivery) -> bool) -> Forgotten {
        let mut taken = lock(&self.taken);
        if taken.owner != self.number {
            return Forgotten::new();
        }
        let settled = taken.deliveries.extract_if(.., |known| is_meant(known));
        let recorded = settled.filter(|delivery| delivery.is_recorded);
        recorded
            .map(|delivery| self.record(&delivery.tag))
            .collect()
    }

    /// The sender has settled a delivery, by its number.
    pub(super) fn settled(&self, id: u32) -> Forgotten {
        self.settle(|known| known.id == Some(id))
    }

    /// The sender has settled a delivery of before.
    pub(super) fn settled_before(&self, tag: &DeliveryTag) -> Forgotten {
        self.settle(|known| known.tag == *tag)
    }

    /// The sender has none of the earlier deliveries left.
    pub(super) fn settled_all(&self) -> Forgotten {
        self.settle(|_| true)
    }
}

/// The key of the record of a delivery: user, container and name of its link, and its tag.
fn record_key(link: &LinkKey, tag: &DeliveryTag) -> Vec<u8> {
    let mut key = vec![RECORD, u8::from(link.user.is_some())];
    for part in [
        link.user.as_deref().unwrap_or_default(),
        &link.container,
        &link.name,
    ] {
        key.extend((part.len() as u32).to_be_bytes());
        key.extend(part.as_bytes());
    }
    key.extend(tag.as_bytes());
    key
}

/// The link and the delivery of a record; `None` for other records.
fn read_key(key: &[u8]) -> Option<(LinkKey, DeliveryTag)> {
    let (&[RECORD, has_user], mut rest) = key.split_first_chunk()? else {
        return None;
    };
    let mut part = || {
        let (bytes, after) = rest.split_first_chunk()?;
        let (part, after) = after.split_at_checked(u32::from_be_bytes(*bytes) as usize)?;
        rest = after;
        std::str::from_utf8(part).ok().map(Box::from)
    };
    let (user, container, name) = (part()?, part()?, part()?);
    let key = LinkKey {
        user: (has_user > 0).then_some(user),
        container,
        name,
    };
    Some((key, DeliveryTag::new(rest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> LinkKey {
        LinkKey {
            user: Some("u".into()),
            container: "c".into(),
            name: name.into(),
        }
    }

    fn tag(bytes: &[u8]) -> DeliveryTag {
        DeliveryTag::new(bytes).unwrap()
    }

    fn accepted(token: u64) -> impl FnOnce(Option<Vec<u8>>) -> Decided<()> {
        move |_| Decided {
            state: DeliveryStateBuf::Accepted,
            token,
            result: (),
        }
    }

    #[test]
    fn a_link_has_one_owner_who_knows_what_the_one_before_took() {
        let links = ExactLinks::default();
        let (old, unsettled, ..) = links.attach(key("a"), Recorded::OnNode, 0);
        assert_eq!(unsettled, []);
        old.take(tag(b"1"), 0, 10, accepted(7)).unwrap();
        old.take(tag(b"2"), 1, 10, accepted(9)).unwrap();
        assert_eq!(old.settled(0).len(), 1, "its record is forgotten");
        let full = old.take(tag(b"3"), 2, 1, accepted(0));
        assert_eq!(full, Err(NotTaken::Full));
        let (new, unsettled, token, _) = links.attach(key("a"), Recorded::OnNode, 0);
        let tags: Vec<_> = unsettled.iter().map(|one| one.tag.as_bytes()).collect();
        assert_eq!((tags, token), (vec![&b"2"[..]], 9));
        assert!(
            old.take(tag(b"3"), 2, 10, accepted(0)).is_err(),
            "it was stolen"
        );
        assert!(old.settled(1).is_empty(), "it is not its any more");
        assert!(
            links
                .detach((Owner::of(None, None), &old), None, 0, Most::ANY)
                .is_empty()
        );
        assert!(new.knows(&tag(b"2")));
        new.resumed(&tag(b"2"), 5);
        assert_eq!(new.settled(5).len(), 1);
    }

    #[test]
    fn links_are_forgotten_in_time_and_in_number_with_their_records() {
        let links = ExactLinks::default();
        let two = Most {
            links: 2,
            ..Most::ANY
        };
        for (name, deadline_ms) in [("a", 100), ("b", 200), ("c", 300)] {
            let (link, ..) = links.attach(key(name), Recorded::OnNode, 0);
            link.take(tag(b"1"), 0, 10, accepted(1)).unwrap();
            let forgotten = links.detach((Owner::of(None, None), &link), Some(deadline_ms), 0, two);
            assert_eq!(forgotten.len(), usize::from(name == "c"), "a makes room");
        }
        let (_, unsettled, _, forgotten) = links.attach(key("c"), Recorded::OnNode, 250);
        assert_eq!(unsettled.len(), 1);
        let expected = record_key(&key("b"), &tag(b"1"));
        assert_eq!(forgotten, [expected]);
    }

    #[test]
    fn links_are_forgotten_by_their_bytes_which_are_those_of_departed_ones() {
        let links = ExactLinks::default();
        let bytes = || links.gauge().bytes();
        let mut of_one = 0;
        for (name, deadline_ms) in [("a", 100), ("b", 200)] {
            let (link, ..) = links.attach(key(name), Recorded::OnNode, 0);
            link.take(tag(b"1"), 0, 10, accepted(1)).unwrap();
            let before = bytes();
            links.detach(
                (Owner::of(None, None), &link),
                Some(deadline_ms),
                0,
                Most::ANY,
            );
            of_one = bytes() - before;
            assert!(of_one > size_of::<Delivery>(), "{of_one}");
        }
        assert_eq!(links.gauge().due_ms(), Some(1_000), "a whole second");
        let most = Most {
            bytes: of_one,
            ..Most::ANY
        };
        assert_eq!(links.forget_late(0, most).len(), 1, "the first goes");
        assert_eq!(bytes(), of_one);
        let (_, unsettled, ..) = links.attach(key("b"), Recorded::OnNode, 0);
        assert_eq!((unsettled.len(), bytes()), (1, 0), "it has not departed");
        assert_eq!(links.gauge().due_ms(), None);
        let records = [&b"1"[..], b"2"].map(|name| record_key(&key("c"), &tag(name)));
        links.restore(records.iter().map(Vec::as_slice), 300);
        assert_eq!(bytes(), of_one + size_of::<Delivery>());
        assert_eq!(links.forget_late(300, Most::ANY).len(), 2);
        assert_eq!(bytes(), 0);
    }

    #[test]
    fn a_link_of_a_cluster_is_what_its_session_has_records_of() {
        let links = ExactLinks::default();
        let (here, ..) = links.attach(key("a"), Recorded::InSession, 0);
        here.take(tag(b"1"), 0, 10, accepted(7)).unwrap();
        here.lose();
        assert!(
            here.take(tag(b"2"), 1, 10, accepted(8)).is_err(),
            "it is lost"
        );
        assert!(
            links
                .detach((Owner::of(None, None), &here), Some(100), 0, Most::ANY)
                .is_empty()
        );
        let records = [&b"u2"[..], b"u3", b"e", b""];
        links.replace(&key("a"), records.into_iter());
        let (again, unsettled, token, _) = links.attach(key("a"), Recorded::InSession, 0);
        let tags: Vec<_> = unsettled.iter().map(|one| one.tag.as_bytes()).collect();
        assert_eq!((tags, token), (vec![&b"2"[..], b"3"], 0));
        assert_eq!(again.settled_before(&tag(b"3")), [b"u3".to_vec()]);
        assert!(again.has_unsettled());
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let links = ExactLinks::default();
        let tag = tag(b"\x00tag");
        let mut nobody = key("b");
        nobody.user = None;
        let records = [record_key(&key("a"), &tag), record_key(&nobody, &tag)];
        let others = [b"k0123456789abcdef".to_vec(), vec![RECORD], Vec::new()];
        let all = records.iter().chain(&others).map(Vec::as_slice);
        links.restore(all, 100);
        for key in [key("a"), nobody] {
            let (link, unsettled, ..) = links.attach(key, Recorded::OnNode, 0);
            assert_eq!(unsettled[0].tag, tag);
            assert_eq!(unsettled[0].state, Some(DeliveryStateBuf::Accepted));
            assert_eq!(link.settled_before(&tag).len(), 1);
        }
    }
}
