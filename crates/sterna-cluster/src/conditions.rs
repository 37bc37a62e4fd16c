//! Facts about a node's part in its cluster that operators are told in words: at `/readyz`, and by `sterna cluster
//! status`. The engine's thread notes them, and any thread reads them. `docs/cluster.md` lists all words.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A fact that does not keep the node from its part, each kind at most once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Remark {
    /// The log has no room.
    FullLog,
    /// Nodes live that are not heard.
    Unheard,
    /// Streams have other numbers of copies than are set.
    Replicas,
    /// Nodes have other settings.
    Settings,
}

#[derive(Debug, Default)]
struct Words {
    /// Why the node has not joined.
    join: Option<String>,
    /// Which part of NATS has no quorum.
    quorum: Option<String>,
    /// Why NATS has taken nothing at last.
    unwritten: Option<String>,
    /// The subject of this node's own words, where they do not come back.
    deaf_to: Option<String>,
    remarks: BTreeMap<Remark, String>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Mutex<Words>);

impl Conditions {
    fn words(&self) -> MutexGuard<'_, Words> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes why the node has not joined yet.
    pub(crate) fn set_join(&self, why: String) {
        self.words().join = Some(why);
    }

    /// Notes what has no quorum; `None` for nothing.
    pub(crate) fn set_quorum(&self, what: Option<String>) {
        self.words().quorum = what;
    }

    /// Notes why NATS has taken nothing at last.
    pub(crate) fn set_unwritten(&self, why: String) {
        self.words().unwritten = Some(why);
    }

    /// Notes the subject of this node's own words that do not come back; `None` where they do. Whether that is another
    /// than before.
    pub(crate) fn set_deaf(&self, subject: Option<String>) -> bool {
        let mut words = self.words();
        let is_news = words.deaf_to != subject;
        words.deaf_to = subject;
        is_news
    }

    /// Notes a remark, or that there is none of its kind any more. Whether that is another than before.
    pub(crate) fn remark(&self, kind: Remark, text: Option<String>) -> bool {
        let mut words = self.words();
        let is_news = words.remarks.get(&kind) != text.as_ref();
        match text {
            Some(text) => drop(words.remarks.insert(kind, text)),
            None => drop(words.remarks.remove(&kind)),
        }
        is_news
    }

    /// All remarks, one sentence each.
    pub(crate) fn all_remarks(&self) -> Vec<String> {
        self.words().remarks.values().cloned().collect()
    }

    /// Those about how the node is at the moment, and not how it is set.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let words = self.words();
        let is_passing = |kind: &Remark| matches!(kind, Remark::FullLog | Remark::Unheard);
        let passing = words.remarks.iter().filter(|(kind, _)| is_passing(kind));
        passing.map(|(_, text)| text.clone()).collect()
    }

    pub(crate) fn not_joined(&self) -> String {
        let words = self.words();
        (words.join.as_ref()).map_or_else(
            || "the node has not joined".to_owned(),
            |why| format!("the node has not joined: {why}"),
        )
    }

    pub(crate) fn is_deaf(&self) -> bool {
        self.words().deaf_to.is_some()
    }

    pub(crate) fn deaf(&self) -> Option<String> {
        let words = self.words();
        let subject = words.deaf_to.as_ref()?;
        Some(format!(
            "this node is deaf: NATS brings back none of its own words to {subject}"
        ))
    }

    /// The part of NATS without a quorum.
    pub(crate) fn no_quorum(&self) -> Option<String> {
        let words = self.words();
        let what = words.quorum.as_ref()?;
        Some(format!("no quorum: {what}"))
    }

    pub(crate) fn takes_nothing(&self) -> String {
        let words = self.words();
        (words.unwritten.as_ref()).map_or_else(
            || "NATS takes no messages".to_owned(),
            |why| format!("NATS takes no messages: {why}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remark_is_news_once() {
        let conditions = Conditions::default();
        let full = || Some("full".to_owned());
        assert!(conditions.remark(Remark::FullLog, full()));
        assert!(!conditions.remark(Remark::FullLog, full()));
        assert_eq!(conditions.remarks(), ["full"]);
        assert!(conditions.remark(Remark::FullLog, None));
        assert!(!conditions.remark(Remark::FullLog, None));
        assert_eq!(conditions.remarks(), [""; 0]);
    }

    #[test]
    fn the_words_name_what_is_wrong() {
        let conditions = Conditions::default();
        assert_eq!(conditions.not_joined(), "the node has not joined");
        conditions.set_join("no room".to_owned());
        assert_eq!(conditions.not_joined(), "the node has not joined: no room");
        conditions.set_unwritten("full".to_owned());
        assert_eq!(conditions.takes_nothing(), "NATS takes no messages: full");
        assert!(conditions.set_deaf(Some("a.b".to_owned())) && conditions.is_deaf());
        let deaf = conditions.deaf().expect("it is");
        assert!(deaf.ends_with("to a.b"), "{deaf}");
        conditions.set_quorum(Some("X".to_owned()));
        assert_eq!(conditions.no_quorum().as_deref(), Some("no quorum: X"));
        conditions.set_quorum(None);
        assert_eq!(conditions.no_quorum(), None);
    }
}
