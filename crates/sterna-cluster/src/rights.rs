//! The rights that a node needs in NATS, and those that NATS refuses to it. No input or output here.
//!
//! A node proves its rights before it takes part, and again after each reconnect. NATS answers an attempt that it does
//! not permit with a *violation*, which names the subject. An attempt without one is permitted. Each attempt harms
//! nobody: what it publishes is stored nowhere, and means nothing to other nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::settings::Settings;
use crate::subject::matches;
use crate::subjects;

/// In place of another node's name, or of a digest: nothing has it, for it is no name.
const NOBODY: &str = "~";

/// Refused rights that are remembered.
const MOST_REFUSED: usize = 256;

/// Refused rights that a sentence names.
const MOST_NAMED: usize = 3;

/// Subjects of the answers that a node waits for.
const ANSWERS: &str = "_INBOX.>";

/// Which way messages of a subject go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Way {
    Subscribe,
    Publish,
}

/// A right to a subject, or to a pattern of subjects.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Right {
    pub(crate) way: Way,
    pub(crate) subject: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            Way::Subscribe => "subscribe",
            Way::Publish => "publish",
        };
        write!(f, "{way} to {}", self.subject.escape_debug())
    }
}

impl Right {
    /// The right that a server of NATS refuses, by its words; `None` where they are about something else.
    pub(crate) fn refused_by(words: &str) -> Option<Self> {
        let rest = words
            .trim_matches('\'')
            .strip_prefix("Permissions Violation for ")?;
        let way = if rest.starts_with("Subscription to ") {
            Way::Subscribe
        } else if rest.starts_with("Publish ") {
            Way::Publish
        } else {
            return None;
        };
        let subject = rest.split('"').nth(1)?;
        Some(Self {
            way,
            subject: subject.to_owned(),
        })
    }
}

/// How a right is tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Trial {
    /// A subscription, which ends at once.
    Subscription,
    /// A message without content, which nobody is the reader of, or which readers pass over.
    Message,
    /// A message for a stream, under a condition that cannot hold: it is not stored.
    Unstored,
    /// A question to JetStream, with a body that changes nothing.
    Question(String),
}

/// A right that a node needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// With the subject that is tried.
    pub(crate) right: Right,
    /// The subjects that are needed, for operators.
    said: String,
    pub(crate) trial: Trial,
}

impl Need {
    fn new(trial: Trial, subject: String) -> Self {
        let way = match trial {
            Trial::Subscription => Way::Subscribe,
            _ => Way::Publish,
        };
        Self {
            said: subject.replace(NOBODY, "*"),
            right: Right { way, subject },
            trial,
        }
    }

    fn said(self, said: String) -> Self {
        Self { said, ..self }
    }

    /// Whether its trial has servers of NATS agree on something, or look through all streams.
    pub(crate) fn is_work(&self) -> bool {
        let verbs = [".PURGE.", ".CREATE.", ".UPDATE.", ".LIST"];
        let is_question = matches!(self.trial, Trial::Question(_));
        is_question && verbs.iter().any(|verb| self.right.subject.contains(verb))
    }
}

/// A subject by a topic.
type OfTopic = fn(&str) -> String;

/// All rights that a node needs. `inbox` is a subject of its own for answers.
pub(crate) fn needs(settings: &Settings, inbox: &str) -> Vec<Need> {
    let node = &*settings.node;
    let own = |rest: &str| settings.subject(rest);
    let mut needs = Vec::new();
    needs.push(Need::new(Trial::Subscription, format!("{inbox}.*")).said(ANSWERS.to_owned()));
    needs.push(Need::new(Trial::Message, format!("{inbox}.{NOBODY}")).said(ANSWERS.to_owned()));
    let heard = [
        subjects::alive("*"),
        subjects::to(node, "*"),
        subjects::give(node, 0, "*"),
        subjects::ASK.to_owned(),
        subjects::DRAIN.to_owned(),
        subjects::EXPORT.to_owned(),
        subjects::CLOCK.to_owned(),
        subjects::door(node),
        subjects::asked_for(node),
        subjects::ended(node),
    ];
    needs.extend(heard.map(|rest| Need::new(Trial::Subscription, own(&rest))));
    let told = [
        subjects::alive(node),
        subjects::to(NOBODY, node),
        subjects::give(NOBODY, 0, node),
        subjects::ASK.to_owned(),
        subjects::DRAIN.to_owned(),
        subjects::CLOCK.to_owned(),
        subjects::door(NOBODY),
        subjects::asked_for(NOBODY),
        subjects::ended(NOBODY),
    ];
    needs.extend(told.map(|rest| Need::new(Trial::Message, own(&rest))));
    let stored = [
        subjects::join(node),
        subjects::want(NOBODY, NOBODY),
        subjects::ban(NOBODY),
        subjects::inbox(NOBODY, node),
        subjects::kept(NOBODY),
        subjects::session(NOBODY),
        subjects::floor(NOBODY),
        subjects::mark(node),
        subjects::log(subjects::TOGETHER),
    ];
    needs.extend(stored.map(|rest| Need::new(Trial::Unstored, own(&rest))));
    let mut by_topic: Vec<OfTopic> = vec![subjects::log, subjects::retained];
    if let Some(region) = settings
        .region
        .as_ref()
        .filter(|own| !own.remotes.is_empty())
    {
        let [retained, other]: [OfTopic; 2] = [
            |place| subjects::out(subjects::OUT_KINDS[0], place),
            |place| subjects::out(subjects::OUT_KINDS[1], place),
        ];
        by_topic.extend([retained, other]);
        let heard = own(&subjects::taken("*"));
        needs.push(Need::new(Trial::Subscription, heard));
        for remote in &region.remotes {
            let taken = settings.subject_of(&remote.name, &subjects::taken(&region.name));
            needs.push(Need::new(Trial::Message, taken));
            let came = own(&subjects::came(&remote.name));
            needs.push(Need::new(Trial::Unstored, came));
        }
    }
    for of_topic in by_topic {
        // No topic is empty.
        let of_topics = Need::new(Trial::Unstored, own(&of_topic("t.%")));
        needs.push(of_topics.said(own(&of_topic("t.>"))));
        let long = format!("long.{NOBODY}");
        needs.push(Need::new(Trial::Unstored, own(&of_topic(&long))));
    }
    needs.extend(questions(settings));
    needs
}

/// The questions to JetStream that a node has.
fn questions(settings: &Settings) -> Vec<Need> {
    let mut streams = vec!["NODES", "INBOX", "RETAINED", "LOG", "KEPT", "SESSIONS"];
    let regions = settings.region.as_ref();
    if regions.is_some_and(|region| !region.remotes.is_empty()) {
        streams.push("OUT");
    }
    let ask = |verb: &str, rest: String, body: String| {
        Need::new(Trial::Question(body), format!("$JS.API.{verb}.{rest}"))
    };
    let mut needs = vec![Need::new(
        Trial::Question(r#"{"offset":0,"subject":"~"}"#.to_owned()),
        "$JS.API.STREAM.LIST".to_owned(),
    )];
    for kind in streams {
        let stream = settings.stream(kind);
        // The name in the body is another than that in the subject.
        let another = format!(r#"{{"name":"{NOBODY}"}}"#);
        needs.push(ask("STREAM.INFO", stream.clone(), String::new()));
        needs.push(ask("STREAM.CREATE", stream.clone(), another.clone()));
        needs.push(ask("STREAM.UPDATE", stream.clone(), another));
        // Messages below the first, with a subject of nobody's.
        let nobodys = settings.subject(NOBODY);
        let nothing = format!(r#"{{"filter":"{nobodys}","seq":1}}"#);
        needs.push(ask("STREAM.PURGE", stream.clone(), nothing));
        let behind = format!(r#"{{"seq":{}}}"#, i64::MAX);
        needs.push(ask("STREAM.MSG.GET", stream.clone(), behind.clone()));
        needs.push(ask("DIRECT.GET", stream.clone(), behind));
        if matches!(kind, "KEPT" | "SESSIONS" | "NODES") {
            let subject = format!("{stream}.{nobodys}");
            needs.push(ask("DIRECT.GET", subject, String::new()));
        }
        if !matches!(kind, "KEPT" | "OUT") {
            let another = format!(r#"{{"stream_name":"{NOBODY}","config":{{}}}}"#);
            needs.push(ask("CONSUMER.CREATE", stream.clone(), another));
            let consumer = format!("{stream}.{NOBODY}");
            needs.push(ask("CONSUMER.MSG.NEXT", consumer, String::new()));
        }
    }
    needs
}

/// The rights that NATS refuses, by what it last said.
#[derive(Debug, Default)]
struct Refused {
    /// Each with the proof in which it was refused last.
    rights: BTreeMap<Right, u64>,
    /// The number of the proof.
    proof: u64,
    /// The words to operators in place of a subject that was tried.
    said: BTreeMap<Right, String>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    refused: Mutex<Refused>,
    /// Number of the connection for which all rights were proved; 0 for none.
    proved_for: AtomicU64,
    /// Whether the server may have ended subscriptions of this connection, or have begun some not at all.
    lacks_subscriptions: AtomicBool,
}

impl Rights {
    fn refused(&self) -> MutexGuard<'_, Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// NATS refuses a right. Whether that is news.
    pub(crate) fn is_refused(&self, right: Right) -> bool {
        if right.way == Way::Subscribe {
            self.lacks_subscriptions.store(true, Ordering::Release);
        }
        self.proved_for.store(0, Ordering::Release);
        let mut refused = self.refused();
        let proof = refused.proof;
        if refused.rights.len() >= MOST_REFUSED && !refused.rights.contains_key(&right) {
            return false;
        }
        refused.rights.insert(right, proof).is_none()
    }

    /// Begins a proof, and returns what is to be tried: all needs, and what was refused beside them.
    pub(crate) fn begin(&self, needs: Vec<Need>, settings: &Settings) -> Vec<Need> {
        let mut refused = self.refused();
        refused.proof += 1;
        refused.said = (needs.iter())
            .map(|need| (need.right.clone(), need.said.clone()))
            .collect();
        let is_known = |right: &Right| needs.iter().any(|need| need.right == *right);
        let own = settings.subject("");
        let others = refused.rights.keys().filter(|right| {
            // A question to JetStream is tried with a body of its own, or not at all.
            !is_known(right) && right.subject.starts_with(&own)
        });
        let others = others.map(|right| {
            let trial = match right.way {
                Way::Subscribe => Trial::Subscription,
                Way::Publish => Trial::Unstored,
            };
            Need::new(trial, right.subject.clone())
        });
        let others: Vec<Need> = others.collect();
        drop(refused);
        needs.into_iter().chain(others).collect()
    }

    /// All has been tried, and NATS has told of each violation. Whether none is left.
    pub(crate) fn end(&self) -> bool {
        let mut refused = self.refused();
        let proof = refused.proof;
        refused.rights.retain(|_, last| *last >= proof);
        refused.rights.is_empty()
    }

    /// All rights are proved on a connection. False where the connection lacks subscriptions that it has a right to by
    /// now: it is to be begun anew.
    pub(crate) fn are_proved(&self, connects: u64) -> bool {
        let lacks = self.lacks_subscriptions.swap(false, Ordering::AcqRel);
        if !lacks {
            self.proved_for.store(connects, Ordering::Release);
        }
        !lacks
    }

    /// Whether all rights were proved on the connection of a number, and none was refused since.
    pub(crate) fn hold_for(&self, connects: u64) -> bool {
        connects != 0 && self.proved_for.load(Ordering::Acquire) == connects
    }

    /// Whether NATS may answer this node.
    pub(crate) fn has_answers(&self) -> bool {
        let refused = self.refused();
        let mut rights = refused.rights.keys();
        !rights.any(|right| right.way == Way::Subscribe && matches(ANSWERS, &right.subject))
    }

    /// The refused rights in a sentence; `None` where there are none.
    pub(crate) fn sentence(&self) -> Option<String> {
        let refused = self.refused();
        let mut named: Vec<String> = Vec::new();
        for right in refused.rights.keys() {
            let subject = if matches(ANSWERS, &right.subject) {
                ANSWERS.to_owned()
            } else {
                let said = refused.said.get(right);
                said.unwrap_or(&right.subject).clone()
            };
            let way = right.way;
            let text = Right { way, subject }.to_string();
            if !named.contains(&text) {
                named.push(text);
            }
        }
        let more = named.len().saturating_sub(MOST_NAMED);
        named.truncate(MOST_NAMED);
        let named = Some(named.join(", ")).filter(|named| !named.is_empty())?;
        let more = match more {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        Some(format!(
            "NATS does not permit this node to {named}{more}: see \"Rights in NATS\" in docs/cluster-wire.md"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(way: Way, subject: &str) -> Right {
        Right {
            way,
            subject: subject.to_owned(),
        }
    }

    #[test]
    fn the_words_of_nats_name_a_right() {
        for (words, expected) in [
            (
                r#"Permissions Violation for Subscription to "sterna.c.alive.*""#,
                Some(right(Way::Subscribe, "sterna.c.alive.*")),
            ),
            (
                r#"'Permissions Violation for Subscription to "a.B" (sid "4")'"#,
                Some(right(Way::Subscribe, "a.B")),
            ),
            (
                r#"Permissions Violation for Publish to "sterna.c.ask""#,
                Some(right(Way::Publish, "sterna.c.ask")),
            ),
            ("Permissions Violation for Publish", None),
            ("Maximum Payload Violation", None),
        ] {
            assert_eq!(Right::refused_by(words), expected, "{words}");
        }
    }

    #[test]
    fn a_right_that_was_refused_is_tried_again_until_it_is_not() {
        let (settings, rights) = (Settings::sample(None), Rights::default());
        let begin = || rights.begin(needs(&settings, "_INBOX.x"), &settings);
        let all = begin().len();
        assert!(rights.end() && rights.are_proved(1) && rights.hold_for(1));
        assert!(!rights.hold_for(2), "it is another connection");

        // A topic of its own has no right, which no trial has tried.
        let narrow = right(Way::Publish, "sterna.c.log.t.secret");
        assert!(rights.is_refused(narrow.clone()) && !rights.is_refused(narrow.clone()));
        assert!(!rights.hold_for(1));
        let sentence = rights.sentence().expect("refused");
        assert!(
            sentence.contains("publish to sterna.c.log.t.secret"),
            "{sentence}"
        );
        let tried = begin();
        assert_eq!(tried.len(), all + 1);
        assert!(tried.iter().any(|need| need.right == narrow));
        rights.is_refused(narrow);
        assert!(!rights.end(), "it is refused still");
        begin();
        assert!(rights.end() && rights.are_proved(1));
        assert_eq!((rights.sentence(), begin().len()), (None, all));
    }

    #[test]
    fn a_connection_whose_subscriptions_were_refused_is_begun_anew() {
        let rights = Rights::default();
        rights.is_refused(right(Way::Subscribe, "_INBOX.abc.*"));
        assert!(!rights.has_answers());
        let sentence = rights.sentence().expect("refused");
        assert!(sentence.contains("subscribe to _INBOX.>:"), "{sentence}");
        rights.begin(Vec::new(), &Settings::sample(None));
        assert!(rights.end() && rights.has_answers());
        assert!(!rights.are_proved(3), "its subscriptions are gone");
        assert!(rights.are_proved(4));
    }

    /// A purge without a body would take all.
    #[test]
    fn no_trial_asks_jetstream_for_a_change() {
        let settings = Settings::sample(None);
        for need in needs(&settings, "_INBOX.x") {
            let Trial::Question(body) = &need.trial else {
                assert!(!need.right.subject.starts_with("$JS."), "{need:?}");
                continue;
            };
            let changes = ["PURGE", "CREATE", "UPDATE"];
            if changes.iter().any(|verb| need.right.subject.contains(verb)) {
                assert!(body.starts_with('{') && body.contains('~'), "{need:?}");
            }
        }
        let purge = right(Way::Publish, "$JS.API.STREAM.PURGE.STERNA_other_LOG");
        let rights = Rights::default();
        rights.is_refused(purge);
        assert_eq!(
            rights.begin(Vec::new(), &settings),
            [],
            "its body is not known"
        );
    }
}
