//! What the door keeps of a session: the ids by which its client acknowledges and resumes; and how
//! sessions are named.

use std::collections::VecDeque;

use sterna_broker::{Broker, SessionKey};

use crate::mapping::percent;
use crate::session::{HTTP_PREFIX, SessionState};

/// Most entries that an empty window keeps room for.
const SPARE_ENTRIES: usize = 64;

/// What was sent to a client and not acknowledged, by the ids that the client knows. They count up
/// from 1 and mean the same as long as the session lives, on whichever connection.
///
/// The broker's ledger has the messages, by its tags, and in the same order. It may have fewer: what
/// a shared subscription has taken back, for instance, so ids have gaps.
#[derive(Debug, Default)]
pub struct HttpSession {
    /// The id that was given last.
    last_id: u64,
    /// Ids and tags, the ids ascending.
    sent: VecDeque<(u64, u64)>,
}

impl HttpSession {
    /// The id that was given last; zero before the first.
    pub(crate) const fn last_id(&self) -> u64 {
        self.last_id
    }

    /// How much is sent and not acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.sent.len()
    }

    /// Notes what is sent now, and gives it its id.
    pub(crate) fn sent(&mut self, tag: u64) -> u64 {
        self.last_id += 1;
        self.sent.push_back((self.last_id, tag));
        self.last_id
    }

    /// Takes the oldest entry out if there are more than `most`, until there are not: for a session
    /// that remembers only the last messages.
    pub(crate) fn take_beyond(&mut self, most: usize) -> Option<u64> {
        if self.sent.len() <= most {
            return None;
        }
        let (_, tag) = self.sent.pop_front()?;
        Some(tag)
    }

    /// Takes out everything up to an id, and returns its tags. An id that was never given takes all.
    pub(crate) fn acknowledge_up_to(&mut self, id: u64) -> impl Iterator<Item = u64> + use<> {
        let count = self.sent.partition_point(|&(known, _)| known <= id);
        let mut rest = self.sent.split_off(count);
        std::mem::swap(&mut rest, &mut self.sent);
        self.shrink();
        rest.into_iter().map(|(_, tag)| tag)
    }

    /// Takes one entry out, and returns its tag; `None` where it is acknowledged, or was never sent.
    pub(crate) fn acknowledge(&mut self, id: u64) -> Option<u64> {
        let at = self.sent.binary_search_by_key(&id, |&(known, _)| known);
        let (_, tag) = self.sent.remove(at.ok()?)?;
        self.shrink();
        Some(tag)
    }

    /// Keeps what the broker still has, by its `tags` in the order in which they were sent. What it has
    /// and was given no id gets one.
    pub(crate) fn keep(&mut self, tags: impl IntoIterator<Item = u64>) {
        let mut known = std::mem::take(&mut self.sent);
        let mut unknown = Vec::new();
        for tag in tags {
            // Both are in the same order, so what is passed over here is gone there.
            let at = known.iter().position(|&(_, known)| known == tag);
            match at.and_then(|at| known.drain(..=at).next_back()) {
                Some(entry) => self.sent.push_back(entry),
                None => unknown.push(tag),
            }
        }
        for tag in unknown {
            self.sent(tag);
        }
        self.shrink();
    }

    /// Ids and tags of what was sent after an id and not acknowledged, in order.
    pub(crate) fn after(&self, id: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.sent.partition_point(|&(known, _)| known <= id);
        self.sent.range(first..).copied()
    }

    fn shrink(&mut self) {
        if self.sent.is_empty() {
            self.sent.shrink_to(SPARE_ENTRIES);
        }
    }
}

/// The client identifier of a subscription of HTTP: no two users' names meet, nor those of clients
/// without a user.
pub(crate) fn client_id(user: Option<&str>, name: &str) -> String {
    let mut client_id = String::from(HTTP_PREFIX);
    match user {
        None => {}
        // No other name becomes this.
        Some("") => client_id.push('%'),
        Some(user) => percent::encode(user.as_bytes(), percent::is_unreserved, &mut client_id),
    }
    client_id.push('/');
    client_id.push_str(name);
    client_id
}

/// The HTTP state of a session, made anew where it has none; `None` for an outdated key.
pub(crate) fn state_mut(
    broker: &mut Broker<SessionState>,
    session: SessionKey,
) -> Option<&mut HttpSession> {
    Some(as_http(broker.protocol_mut(session)?))
}

/// The HTTP state in a session's state, which becomes one if it is none: that of a session that was
/// just made is another protocol's.
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
        Beyond(usize),
        /// The broker has lost every so many.
        Keep(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => Just(Step::Sent),
            1 => (0..60_u64).prop_map(Step::UpTo),
            2 => (0..60_u64).prop_map(Step::Exactly),
            1 => (0..10_usize).prop_map(Step::Beyond),
            1 => (1..5_usize).prop_map(Step::Keep),
        ]
    }

    /// No tag looks like its id.
    const fn tag_of(id: u64) -> u64 {
        id << 32 | 7
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
                        prop_assert_eq!(session.sent(tag_of(last_id)), last_id);
                        model.insert(last_id, tag_of(last_id));
                    }
                    Step::UpTo(id) => {
                        let rest = model.split_off(&(id + 1));
                        let tags: Vec<_> = session.acknowledge_up_to(id).collect();
                        prop_assert_eq!(tags, model.into_values().collect::<Vec<_>>());
                        model = rest;
                    }
                    Step::Exactly(id) => {
                        prop_assert_eq!(session.acknowledge(id), model.remove(&id));
                    }
                    Step::Beyond(most) => {
                        while let Some(tag) = session.take_beyond(most) {
                            prop_assert_eq!(model.pop_first().map(|(_, tag)| tag), Some(tag));
                        }
                        prop_assert!(model.len() <= most);
                    }
                    Step::Keep(every) => {
                        let mut at = 0;
                        model.retain(|_, _| {
                            at += 1;
                            at % every > 0 || every == 1
                        });
                        session.keep(model.values().copied());
                    }
                }
                prop_assert_eq!(session.unacknowledged(), model.len());
                prop_assert_eq!(session.last_id(), last_id);
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
            session.sent(tag);
        }
        session.keep([5, 20, 25]);
        let all: Vec<_> = session.after(0).collect();
        assert_eq!(all, [(2, 20), (4, 5), (5, 25)]);
    }

    #[test]
    fn names_of_http_say_whose_they_are() {
        assert_eq!(client_id(None, "a"), "$http//a");
        assert_eq!(client_id(Some(""), "a"), "$http/%/a");
        assert_eq!(client_id(Some("ann"), "~a"), "$http/ann/~a");
        assert_eq!(client_id(Some("a/b"), "c"), "$http/a%2Fb/c");
        assert!(is_reserved("$http//a") && !is_reserved("$http"));
    }

    proptest! {
        #[test]
        fn names_of_two_users_never_meet(
            a in prop::option::of("[a%/+ é2F]{0,4}"), b in prop::option::of("[a%/+ é2F]{0,4}"),
            x in "[a-z~.]{1,3}", y in "[a-z~.]{1,3}",
        ) {
            let same = client_id(a.as_deref(), &x) == client_id(b.as_deref(), &y);
            prop_assert_eq!(same, (a, x) == (b, y));
        }
    }
}
