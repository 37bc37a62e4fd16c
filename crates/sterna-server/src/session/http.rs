//! State of an HTTP session: the ids by which its client acknowledges and resumes. Also the names of such
//! sessions.

use std::collections::VecDeque;

use sterna_broker::{Broker, SessionKey, SessionName};

use super::{HTTP_PREFIX, SessionState};

/// Most entries that an empty window keeps room for.
const SPARE_ENTRIES: usize = 64;

/// Messages that were sent to a client and not acknowledged, by the ids that the client knows. Ids
/// count up from 1, and mean the same on each connection as long as the session lives.
///
/// In a cluster, ids name positions in the cluster's log, which are the same at all nodes. Ids count from the
/// position at which the session began. A message that is not in the log has an id of its node.
///
/// The broker's ledger has the messages, by its tags, and in the same order. It may have fewer, for
/// example if a shared subscription has taken some back. So ids have gaps.
#[derive(Debug, Default)]
pub struct HttpSession {
    /// The id that was given last, of those that name no position.
    last_id: u64,
    /// The messages, in the order in which they were sent.
    sent: VecDeque<Sent>,
    /// Bytes of all these messages.
    bytes: u64,
    /// Ids up to this one may be given; a record says so.
    reserved: u64,
    /// In a cluster: how ids and positions belong together.
    places: Option<Places>,
    /// Whether the broker may have forgotten some of them, which it reads in the log again.
    has_forgotten: bool,
}

/// How ids and positions belong together.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// The position whose id is 1.
    first: u64,
    /// Ids behind this one are this node's.
    own: u64,
}

/// Ids from here on name no positions. All are exact in the numbers of JavaScript, up to 2^53.
const NODE_IDS: u64 = 1 << 52;

/// Bits of the ids in a node's own range, and the number of such ranges.
const OWN_ID_BITS: u32 = 32;
const OWN_RANGES: u64 = NODE_IDS >> OWN_ID_BITS;

/// The key of the record of ids. Its value is the last id that may have been given, or in a cluster the position
/// whose id is 1.
pub(crate) const IDS_KEY: &[u8] = b"i";

/// Ids that are reserved at once.
const RESERVED_IDS: u64 = 1 << 14;

/// A message that was sent and not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Sent {
    id: u64,
    /// Its name in the broker's ledger.
    tag: u64,
    /// Its place in the log, 0 for none.
    position: u64,
    bytes: u32,
}

/// Messages that a client has acknowledged.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Acknowledged {
    /// Their names in the broker's ledger.
    pub(crate) tags: Vec<u64>,
    /// Places in the log of those that may be missing there.
    pub(crate) places: Vec<u64>,
}

/// The limit on messages that are sent and not acknowledged, or that are remembered after they were sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) messages: usize,
    /// One message may have more.
    pub(crate) bytes: u64,
}

impl Places {
    /// The id of a message of the log.
    fn id_of(self, position: u64) -> Option<u64> {
        let id = position.checked_sub(self.first)? + 1;
        Some(id).filter(|&id| id < NODE_IDS)
    }

    /// The position that an id names.
    const fn position_of(self, id: u64) -> Option<u64> {
        if id == 0 || id >= NODE_IDS {
            return None;
        }
        self.first.checked_add(id - 1)
    }
}

/// The position that an id names, where the record of a session names the first position.
pub(crate) fn position_of(first: u64, id: u64) -> Option<u64> {
    Places { first, own: 0 }.position_of(id)
}

impl HttpSession {
    /// Whether a message was given an id. In a cluster another node may have given it: `end` is where the log ends.
    pub(crate) fn has_given(&self, id: u64, end: u64) -> bool {
        match self.places {
            Some(places) => match places.position_of(id) {
                Some(position) => position < end,
                None => places.own < id && id <= self.last_id,
            },
            None => id <= self.last_id,
        }
    }

    /// The position of the message that an id names; `None` where it is not in a cluster's log.
    pub(crate) fn position_of(&self, id: u64) -> Option<u64> {
        self.places?.position_of(id)
    }

    /// Goes on behind ids that were given before a restart.
    pub(crate) fn restore(&mut self, up_to: u64) {
        self.last_id = self.last_id.max(up_to);
        self.reserved = self.reserved.max(up_to);
    }

    /// Makes ids name positions of a cluster's log, where the position `first` has the id 1. `end` is where the
    /// log ends.
    pub(crate) fn name_places(&mut self, first: u64, end: u64) {
        if self.places.is_none() {
            // Another number than at other nodes, and at other times.
            let own = NODE_IDS + (((end >> 10) % OWN_RANGES) << OWN_ID_BITS);
            self.places = Some(Places { first, own });
            self.last_id = own;
        }
    }

    /// Whether ids name positions.
    pub(crate) const fn names_places(&self) -> bool {
        self.places.is_some()
    }

    /// Reserves more ids, long before they are used up. Returns the last reserved id, where a record is to keep
    /// it.
    pub(crate) const fn reserve(&mut self) -> Option<u64> {
        if self.places.is_some() || self.last_id + RESERVED_IDS / 2 < self.reserved {
            return None;
        }
        self.reserved = self.last_id + RESERVED_IDS;
        Some(self.reserved)
    }

    /// Whether no more may be sent until something is acknowledged.
    pub(crate) fn fills(&self, window: Window) -> bool {
        self.sent.len() >= window.messages || self.bytes >= window.bytes
    }

    /// Notes a message that is sent now, and gives it its id. `position` is its place in the log, 0 for none.
    pub(crate) fn sent(&mut self, tag: u64, position: u64, bytes: usize) -> u64 {
        let named = self.places.filter(|_| position != 0);
        let id = named.and_then(|places| places.id_of(position));
        let id = id.unwrap_or_else(|| {
            self.last_id += 1;
            self.last_id
        });
        let sent = Sent {
            id,
            tag,
            position,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        };
        self.bytes += u64::from(sent.bytes);
        self.sent.push_back(sent);
        self.check();
        id
    }

    /// The counted bytes are the sum of the entries' bytes.
    fn check(&self) {
        debug_assert_eq!(
            self.bytes,
            self.sent
                .iter()
                .map(|sent| u64::from(sent.bytes))
                .sum::<u64>(),
            "bytes that were sent and not acknowledged"
        );
    }

    /// Number of entries that were sent up to the one of an id, or up to the last before it.
    fn count_up_to(&self, id: u64) -> usize {
        let is_own = id >= NODE_IDS;
        let is_before = |known: &Sent| known.id <= id && (known.id >= NODE_IDS) == is_own;
        (self.sent.iter().rposition(is_before)).map_or(0, |at| at + 1)
    }

    /// Takes the oldest entry out if there is more than the window holds; `None` where there is not. It is
    /// for a session that remembers only the last messages.
    pub(crate) fn take_beyond(&mut self, window: Window) -> Option<u64> {
        let is_large = self.bytes > window.bytes && self.sent.len() > 1;
        if self.sent.len() <= window.messages && !is_large {
            return None;
        }
        let oldest = self.sent.pop_front()?;
        self.bytes -= u64::from(oldest.bytes);
        self.check();
        Some(oldest.tag)
    }

    /// The broker forgets messages that were sent, and reads them in the log again.
    pub(crate) const fn forget_sent(&mut self) {
        self.has_forgotten = true;
    }

    /// Takes out all entries up to an id. For an id that was never given, takes out the entries with lower ids.
    pub(crate) fn acknowledge_up_to(&mut self, id: u64) -> Acknowledged {
        let count = self.count_up_to(id);
        let mut rest = self.sent.split_off(count);
        std::mem::swap(&mut rest, &mut self.sent);
        self.bytes -= rest.iter().map(|sent| u64::from(sent.bytes)).sum::<u64>();
        self.check();
        self.shrink();
        self.acknowledged(rest)
    }

    /// Takes out the entries of some ids. Those that are acknowledged, or were never sent, are passed over.
    pub(crate) fn acknowledge(&mut self, ids: &[u64]) -> Acknowledged {
        let taken: Vec<Sent> = ids.iter().filter_map(|&id| self.take(id)).collect();
        self.check();
        self.shrink();
        self.acknowledged(taken)
    }

    fn take(&mut self, id: u64) -> Option<Sent> {
        let at = self.sent.iter().position(|known| known.id == id);
        let sent = self.sent.remove(at?)?;
        self.bytes -= u64::from(sent.bytes);
        Some(sent)
    }

    fn acknowledged(&self, sent: impl IntoIterator<Item = Sent>) -> Acknowledged {
        let mut acknowledged = Acknowledged::default();
        for one in sent {
            acknowledged.tags.push(one.tag);
            if self.has_forgotten && one.position != 0 {
                acknowledged.places.push(one.position);
            }
        }
        acknowledged
    }

    /// Keeps the messages that the broker still has, by tag, position and bytes, in the order in which they were
    /// sent. A message that was given no id gets one.
    pub(crate) fn keep(&mut self, ledger: impl IntoIterator<Item = (u64, u64, usize)>) {
        let mut known = std::mem::take(&mut self.sent);
        self.has_forgotten = false;
        self.bytes = 0;
        let mut unknown = Vec::new();
        for (tag, position, bytes) in ledger {
            // Both are in the same order, so entries that are passed over here are gone there.
            let at = known.iter().position(|known| known.tag == tag);
            match at.and_then(|at| known.drain(..=at).next_back()) {
                Some(sent) => {
                    self.bytes += u64::from(sent.bytes);
                    self.sent.push_back(sent);
                }
                None => unknown.push((tag, position, bytes)),
            }
        }
        for (tag, position, bytes) in unknown {
            self.sent(tag, position, bytes);
        }
        self.shrink();
    }

    /// Ids and tags of messages that were sent after an id and not acknowledged, in order.
    pub(crate) fn after(&self, id: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.count_up_to(id);
        self.sent.range(first..).map(|sent| (sent.id, sent.tag))
    }

    fn shrink(&mut self) {
        if self.sent.is_empty() {
            self.sent.shrink_to(SPARE_ENTRIES);
        }
    }
}

/// The value of a session's record of ids; 0 for none. It is the last id that may have been given, or in a
/// cluster the position whose id is 1.
pub(crate) fn reserved_ids(record: Option<&[u8]>) -> u64 {
    let up_to = record.and_then(|value| value.try_into().ok());
    // No session gives so many: what others write into NATS must not make the next one overflow.
    let up_to = up_to.map(u64::from_be_bytes);
    up_to.filter(|&id| i64::try_from(id).is_ok()).unwrap_or(0)
}

/// The name of the session of a user's subscription of HTTP.
pub(crate) fn session_name(user: Option<&str>, name: &str) -> SessionName {
    SessionName::new(user, &format!("{HTTP_PREFIX}{name}"))
}

/// The HTTP state of a session, made anew where it has none; `None` for an outdated key.
pub(crate) fn state_mut(
    broker: &mut Broker<SessionState>,
    session: SessionKey,
) -> Option<&mut HttpSession> {
    Some(as_http(broker.protocol_mut(session)?))
}

/// The HTTP state in a session's state. A state of another protocol is replaced: a session that was just made has
/// one.
pub(crate) fn as_http(state: &mut SessionState) -> &mut HttpSession {
    if !matches!(state, SessionState::Http(_)) {
        *state = SessionState::Http(Box::default());
    }
    match state {
        SessionState::Http(session) => session,
        SessionState::Mqtt(_) | SessionState::Amqp(_) => unreachable!("it was made one"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::session::is_reserved;

    #[derive(Clone, Debug)]
    enum Step {
        Sent,
        UpTo(u64),
        Exactly(u64),
        Beyond(usize, u64),
        /// The broker has lost every so many.
        Keep(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => Just(Step::Sent),
            1 => (0..60_u64).prop_map(Step::UpTo),
            2 => (0..60_u64).prop_map(Step::Exactly),
            1 => (0..10_usize, 0..100_u64).prop_map(|(messages, bytes)| Step::Beyond(messages, bytes)),
            1 => (1..5_usize).prop_map(Step::Keep),
        ]
    }

    /// No tag looks like its id.
    const fn tag_of(id: u64) -> u64 {
        id << 32 | 7
    }

    const fn bytes_of(id: u64) -> usize {
        (id * 7 % 31) as usize
    }

    fn bytes_in(model: &BTreeMap<u64, u64>) -> u64 {
        model.keys().map(|&id| bytes_of(id) as u64).sum()
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_of_ids(steps in prop::collection::vec(step(), 0..120)) {
            let mut session = HttpSession::default();
            let mut model = BTreeMap::new();
            let mut last_id = 0;
            for step in steps {
                match step {
                    Step::Sent => {
                        last_id += 1;
                        prop_assert_eq!(session.sent(tag_of(last_id), 0, bytes_of(last_id)), last_id);
                        model.insert(last_id, tag_of(last_id));
                    }
                    Step::UpTo(id) => {
                        let rest = model.split_off(&(id + 1));
                        let tags = session.acknowledge_up_to(id).tags;
                        prop_assert_eq!(tags, model.into_values().collect::<Vec<_>>());
                        model = rest;
                    }
                    Step::Exactly(id) => {
                        let tags = session.acknowledge(&[id]).tags;
                        prop_assert_eq!(tags, Vec::from_iter(model.remove(&id)));
                    }
                    Step::Beyond(messages, bytes) => {
                        while let Some(tag) = session.take_beyond(Window { messages, bytes }) {
                            prop_assert_eq!(model.pop_first().map(|(_, tag)| tag), Some(tag));
                        }
                        prop_assert!(model.len() <= messages);
                        prop_assert!(model.len() <= 1 || bytes_in(&model) <= bytes);
                    }
                    Step::Keep(every) => {
                        let mut at = 0;
                        model.retain(|_, _| {
                            at += 1;
                            at % every > 0 || every == 1
                        });
                        session.keep(model.iter().map(|(&id, &tag)| (tag, 0, bytes_of(id))));
                    }
                }
                let (messages, bytes) = (model.len(), bytes_in(&model));
                let fills = |messages, bytes| session.fills(Window { messages, bytes });
                prop_assert!(fills(messages, u64::MAX) && fills(usize::MAX, bytes));
                prop_assert!(!fills(messages + 1, bytes + 1));
                prop_assert_eq!(session.last_id, last_id);
                for from in [0, last_id / 2, last_id] {
                    let after: Vec<_> = session.after(from).collect();
                    let expected: Vec<_> = model.range(from + 1..).map(|(&id, &tag)| (id, tag)).collect();
                    prop_assert_eq!(after, expected);
                }
            }
        }
    }

    #[test]
    fn what_has_no_id_gets_one_behind_all_that_have() {
        let mut session = HttpSession::default();
        for tag in [10, 20, 30] {
            session.sent(tag, 0, 1);
        }
        session.keep([(5, 0, 1), (20, 0, 1), (25, 0, 1)]);
        let all: Vec<_> = session.after(0).collect();
        assert_eq!(all, [(2, 20), (4, 5), (5, 25)]);
    }

    #[test]
    fn ids_of_a_cluster_name_the_same_messages_at_every_node() {
        let first = 1_790_000_000_000_000_u64 << 10;
        let (mut here, mut there) = (HttpSession::default(), HttpSession::default());
        here.name_places(first, first);
        there.name_places(first, first + 9_000);
        // One of the log, a retained one, and two more of the log.
        let sent = [
            (1, first + 3),
            (2, 0),
            (3, first + 1_027),
            (4, first + 1_028),
        ];
        let ids = sent.map(|(tag, position)| here.sent(tag, position, 1));
        assert_eq!([ids[0], ids[2], ids[3]], [4, 1_028, 1_029]);
        assert!(ids[1] > NODE_IDS && ids[1] < 1 << 53);
        for id in [ids[0], ids[2], ids[3]] {
            assert_eq!(here.position_of(id), there.position_of(id));
            assert!(there.has_given(id, first + 9_000));
        }
        assert!(
            !there.has_given(ids[3], first + 1_028),
            "it is not there yet"
        );
        assert_eq!(
            (there.position_of(ids[1]), there.has_given(ids[1], u64::MAX)),
            (None, false)
        );
        let tags: Vec<u64> = here.after(ids[1]).map(|(_, tag)| tag).collect();
        assert_eq!(tags, [3, 4], "what was sent behind it");
        let tags = here.acknowledge_up_to(ids[2]).tags;
        assert_eq!(tags, [1, 2, 3], "and what was sent before it");
        assert_eq!(here.acknowledge(&[ids[3]]).tags, [4]);
        // Too far from the beginning for an exact number.
        let far = here.sent(5, first + (1 << 53), 1);
        assert!(far > ids[1] && here.position_of(far).is_none());
    }

    /// Others may have written the record into NATS.
    #[test]
    fn a_record_of_ids_that_no_session_has_given_is_none() {
        let highest = i64::MAX as u64;
        for (record, up_to) in [(7, 7), (highest, highest), (highest + 1, 0), (u64::MAX, 0)] {
            assert_eq!(reserved_ids(Some(&record.to_be_bytes())), up_to);
        }
        let mut session = HttpSession::default();
        session.restore(reserved_ids(Some(&u64::MAX.to_be_bytes())));
        assert!(session.reserve().is_some());
    }

    #[test]
    fn no_client_of_mqtt_has_a_name_of_http() {
        let name = session_name(Some("ann"), "~a");
        assert_eq!((name.user(), name.id()), (Some("ann"), "$http/~a"));
        assert!(is_reserved(name.id()) && !is_reserved("$http"));
    }
}
