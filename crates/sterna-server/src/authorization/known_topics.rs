//! Decisions of the rules, and of the webhook, about the topics that a client published to last. A device publishes to
//! few topics, so a message costs a comparison instead of all rules and two digests.

use std::ptr;
use std::sync::Arc;

use super::{MessageKind, Reading, Rules, Standing, Subject};
use crate::config::ActionName;

/// Topics of one client that are kept.
const TOPICS: usize = 4;
/// The longest topic that is kept, in bytes.
const LONGEST_BYTES: usize = 256;
/// After this time the webhook's answer is looked up again, in milliseconds.
const ASKED_MS: u64 = 1_000;

/// See the module. It belongs to one connection, whose client's name does not change. Decisions for one address are to
/// be [forgotten](Self::forget) when the client comes from another.
#[derive(Debug, Default)]
pub(crate) struct KnownTopics {
    kept: Option<Box<Kept>>,
}

#[derive(Debug)]
struct Kept {
    /// The rules that decided, and the client. With any other of these, nothing is known.
    rules: u64,
    user: Option<Arc<str>>,
    standing: Option<Arc<Standing>>,
    topics: Vec<Topic>,
    /// The place that the next topic takes.
    next: usize,
}

#[derive(Debug)]
struct Topic {
    name: String,
    kind: u8,
    until_ms: u64,
    is_allowed: bool,
}

/// The identity of a client, as it can be kept.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Owner<'a> {
    /// The user's name, if it has one.
    pub(crate) user: Option<&'a Arc<str>>,
    /// The authority's groups and rules for it, beside the name.
    pub(crate) standing: Option<&'a Arc<Standing>>,
}

impl Kept {
    #[inline]
    fn is_about(&self, rules: &Rules, owner: Owner<'_>) -> bool {
        // Memory that is kept cannot be given to others, so the same place is the same value.
        let place = |user: Option<&Arc<str>>| user.map_or(ptr::null(), |user| user.as_ptr());
        let standing = |own: Option<&Arc<Standing>>| own.map_or(ptr::null(), Arc::as_ptr);
        self.rules == rules.lists.number
            && place(self.user.as_ref()) == place(owner.user)
            && standing(self.standing.as_ref()) == standing(owner.standing)
    }
}

impl KnownTopics {
    /// Forgets all: the client speaks from another address.
    pub(crate) fn forget(&mut self) {
        self.kept = None;
    }

    /// Whether a client may publish a message to a topic, if that was said and still holds. The number is that of the
    /// message's [kind](MessageKind::number).
    #[inline]
    pub(crate) fn find(
        &self,
        rules: &Rules,
        owner: Owner<'_>,
        (topic, number): (&[u8], u8),
        now_ms: u64,
    ) -> Option<bool> {
        let kept = self.kept.as_ref()?;
        if !kept.is_about(rules, owner) {
            return None;
        }
        let kind = rules.seen(number);
        let mut topics = kept.topics.iter();
        let found = topics.find(|known| {
            known.kind == kind && now_ms < known.until_ms && known.name.as_bytes() == topic
        })?;
        Some(found.is_allowed)
    }

    fn keep(
        &mut self,
        rules: &Rules,
        owner: Owner<'_>,
        (topic, kind): (&str, u8),
        (is_allowed, until_ms): (bool, u64),
    ) {
        if topic.len() > LONGEST_BYTES {
            return;
        }
        if !(self.kept.as_ref()).is_some_and(|kept| kept.is_about(rules, owner)) {
            self.kept = Some(Box::new(Kept {
                rules: rules.lists.number,
                user: owner.user.cloned(),
                standing: owner.standing.cloned(),
                topics: Vec::new(),
                next: 0,
            }));
        }
        let Some(kept) = &mut self.kept else { return };
        if kept.topics.len() < TOPICS {
            // Most clients publish to one.
            kept.topics.reserve_exact(1);
            kept.topics.push(Topic {
                name: topic.to_owned(),
                kind,
                until_ms,
                is_allowed,
            });
            return;
        }
        let place = &mut kept.topics[kept.next % TOPICS];
        kept.next = (kept.next + 1) % TOPICS;
        // Its memory is used again.
        place.name.clear();
        place.name.push_str(topic);
        (place.kind, place.until_ms, place.is_allowed) = (kind, until_ms, is_allowed);
    }
}

impl Rules {
    /// As [`may_publish`](Self::may_publish), for each message of a connection. The subject is asked for where
    /// nothing is known; the owner is its.
    #[inline]
    pub(crate) fn may_publish_again<'a>(
        &self,
        known_topics: &mut KnownTopics,
        (owner, subject): (Owner<'_>, impl FnOnce() -> Subject<'a>),
        topic: &str,
        kind: MessageKind,
        now_ms: u64,
    ) -> bool {
        if self.lists.publish.is_empty() && owner.standing.is_none() {
            let is_plain = self.lists.default_allow && topic.as_bytes().first() != Some(&b'$');
            return is_plain || self.may_publish(subject(), topic, kind);
        }
        let about = (topic.as_bytes(), kind.number());
        match known_topics.find(self, owner, about, now_ms) {
            Some(is_allowed) => is_allowed,
            None => self.may_publish_now(known_topics, (owner, subject()), topic, kind, now_ms),
        }
    }

    /// The same where nothing is known.
    fn may_publish_now(
        &self,
        known_topics: &mut KnownTopics,
        (owner, subject): (Owner<'_>, Subject<'_>),
        topic: &str,
        kind: MessageKind,
        now_ms: u64,
    ) -> bool {
        let said = match self.decide_publish(subject, topic, kind).0 {
            Reading::Asked => {
                let Some((is_allowed, left)) = self.answer_for(subject, ActionName::Publish, topic)
                else {
                    return false;
                };
                let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                (is_allowed, now_ms.saturating_add(left_ms.min(ASKED_MS)))
            }
            reading => (reading == Reading::Whole, u64::MAX),
        };
        let kind = self.seen(kind.number());
        known_topics.keep(self, owner, (topic, kind), said);
        said.0
    }

    /// The properties of a message that the rules look at, as a number.
    #[inline]
    fn seen(&self, number: u8) -> u8 {
        if self.lists.look_at_messages {
            number
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Answer, Answers, GivenRule, Origin};
    use super::*;
    use crate::config::{Authorization, Effect, Rule};

    fn rule(effect: Effect, topic: &str) -> Rule {
        Rule {
            effect,
            topics: vec![topic.to_owned()],
            ..Rule::default()
        }
    }

    fn rules(rules: Vec<Rule>) -> Rules {
        Rules::new(
            &Authorization {
                default_allow: false,
                rules,
                ..Authorization::default()
            },
            &[],
        )
    }

    const KIND: MessageKind = MessageKind::new(0, false, false);
    const NUMBER: u8 = KIND.number();

    #[test]
    fn what_was_said_holds_for_the_same_rules_user_origin_standing_and_kind() {
        let mut of_qos = rule(Effect::Allow, "q");
        of_qos.qos = vec![0];
        let first = rules(vec![
            rule(Effect::Deny, "no"),
            of_qos,
            rule(Effect::Allow, "%u/#"),
        ]);
        let same = rules(vec![rule(Effect::Deny, "#")]);
        let given: GivenRule = serde_json::from_str(r#"{"topics": ["more"]}"#).expect("a rule");
        let standing = Standing::new(&[], vec![given]).expect("a standing");
        let names: [Arc<str>; 2] = ["ann".into(), "bob".into()];
        let owner = |at: usize| Owner {
            user: Some(&names[at]),
            standing: None,
        };
        let ann = Subject {
            user: Some(&names[0]),
            client: "c",
            ..Subject::default()
        };
        let bob = Subject {
            user: Some(&names[1]),
            ..ann
        };
        let (of_ann, of_bob) = (owner(0), owner(1));
        let of_given = Owner {
            standing: Some(&standing),
            ..of_ann
        };
        let given = Subject {
            standing: Some(&standing),
            ..ann
        };
        let late = MessageKind::new(1, false, false);
        let mut known = KnownTopics::default();
        // Each twice: when it is said, and when it is known.
        for (rules, subject, own, topic, kind, expected) in [
            (&first, ann, of_ann, "ann/t", KIND, true),
            (&first, ann, of_ann, "no", KIND, false),
            (&first, ann, of_ann, "q", KIND, true),
            (&first, ann, of_ann, "q", late, false),
            (&first, bob, of_bob, "ann/t", KIND, false),
            (&first, ann, of_ann, "ann/t", KIND, true),
            (&first, ann, of_ann, "more", KIND, false),
            (&first, given, of_given, "more", KIND, true),
            (&first, ann, of_ann, "more", KIND, false),
            (&same, ann, of_ann, "ann/t", KIND, false),
        ] {
            for _ in 0..2 {
                let said = rules.may_publish_again(&mut known, (own, || subject), topic, kind, 7);
                assert_eq!(said, expected, "{subject:?} {topic}");
                let about = (topic.as_bytes(), kind.number());
                assert_eq!(known.find(rules, own, about, 7), Some(expected));
            }
        }
        assert_eq!(known.find(&first, of_ann, (b"ann/t", NUMBER), 7), None);
        for number in 0..100 {
            let topic = format!("ann/{number}");
            assert!(!same.may_publish_again(&mut known, (of_ann, || ann), &topic, KIND, 7));
        }
        let kept = known.kept.as_ref().expect("what was said");
        assert_eq!(kept.topics.len(), TOPICS);
        let long = "x".repeat(LONGEST_BYTES + 1);
        assert!(!same.may_publish_again(&mut known, (of_ann, || ann), &long, KIND, 7));
        assert_eq!(
            known.find(&same, of_ann, (long.as_bytes(), NUMBER), 7),
            None
        );
    }

    #[test]
    fn nothing_is_known_of_a_client_that_has_moved() {
        let mut of_address = rule(Effect::Deny, "#");
        of_address.addresses = vec!["192.0.2.0/24".parse().expect("a prefix")];
        let rules = rules(vec![of_address, rule(Effect::Allow, "#")]);
        let from = |address: [u8; 4]| Subject {
            client: "c",
            origin: Origin {
                address: Some(address.into()),
                ..Origin::UNKNOWN
            },
            ..Subject::default()
        };
        let mut known = KnownTopics::default();
        for (address, expected) in [([198, 51, 100, 1], true), ([192, 0, 2, 1], false)] {
            known.forget();
            let who = (Owner::default(), || from(address));
            assert_eq!(
                rules.may_publish_again(&mut known, who, "t", KIND, 7),
                expected
            );
        }
    }

    #[test]
    fn kinds_have_numbers_of_their_own() {
        let flags = [None, Some(false), Some(true)];
        let mut numbers = std::collections::HashSet::new();
        for qos in [None, Some(0), Some(1), Some(2)] {
            for (retain, early_data) in flags.iter().flat_map(|a| flags.map(|b| (*a, b))) {
                let kind = MessageKind {
                    qos,
                    retain,
                    early_data,
                };
                assert!(numbers.insert(kind.number()));
            }
        }
        assert_eq!(MessageKind::UNKNOWN.number(), 0);
        for (qos, bits) in (0..3).flat_map(|qos| (0..4).map(move |bits| (qos, bits))) {
            let (retain, early_data) = (bits & 2 != 0, bits & 1 != 0);
            let kind = MessageKind::new(qos, retain, early_data);
            assert_eq!(
                MessageKind::number_of(qos, retain, early_data),
                kind.number()
            );
        }
    }

    #[test]
    fn an_answer_is_known_for_a_moment_and_none_is_not_known() {
        let minute = Duration::from_secs(60);
        let answers = Arc::new(Answers::new(9, minute, Duration::from_millis(300)));
        let rules = rules(vec![rule(Effect::Ask, "#")]).with_answers(Arc::clone(&answers));
        let name: Arc<str> = "ann".into();
        let of_ann = Owner {
            user: Some(&name),
            standing: None,
        };
        let ann = Subject {
            user: Some(&name),
            client: "c",
            ..Subject::default()
        };
        let mut known = KnownTopics::default();
        let may = |known: &mut KnownTopics, topic, now_ms| {
            rules.may_publish_again(known, (of_ann, || ann), topic, KIND, now_ms)
        };
        assert!(!may(&mut known, "a", 0));
        assert_eq!(known.find(&rules, of_ann, (b"a", NUMBER), 0), None);
        answers.add(ann.user, "c", ActionName::Publish, "a", Answer::Allowed);
        answers.add(
            ann.user,
            "c",
            ActionName::Publish,
            "b",
            Answer::Denied(None),
        );
        assert!(may(&mut known, "a", 0) && !may(&mut known, "b", 0));
        assert_eq!(known.find(&rules, of_ann, (b"a", NUMBER), 999), Some(true));
        assert_eq!(known.find(&rules, of_ann, (b"a", NUMBER), 1_000), None);
        assert_eq!(known.find(&rules, of_ann, (b"b", NUMBER), 301), None);
    }
}
