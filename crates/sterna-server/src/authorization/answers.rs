//! The webhook's answers about single actions.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Subject;
use super::recent::Recent;
use crate::config::ActionName;
use crate::giving_way::Owner;

/// An answer about an action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Allowed,
    /// It is denied, with the reason that the service gives.
    Denied(Option<Arc<str>>),
    /// There was none that counts, for this cause.
    Failed(Arc<str>),
}

/// The answers of a webhook, remembered for a while. They are asked for each action, so to look one up
/// allocates nothing.
#[derive(Debug)]
pub(crate) struct Answers {
    recent: Mutex<Recent<Key, Answer, Instant>>,
    /// Nobody else knows their secrets, so nobody finds two actions with the same key.
    hashers: [RandomState; 2],
    allow: Duration,
    deny: Duration,
    /// Lookups that found an answer, and that found none.
    hits: AtomicU64,
    misses: AtomicU64,
}

/// The key of an action, of the same size for a topic of any length.
type Key = [u64; 2];

impl Answers {
    /// An empty table for at most `most` answers. Those that allow and those that deny last for
    /// `allow` and `deny`.
    pub(crate) fn new(most: usize, allow: Duration, deny: Duration) -> Self {
        Self {
            recent: Mutex::new(Recent::new(most)),
            hashers: [RandomState::new(), RandomState::new()],
            allow,
            deny,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Lookups that found an answer, and that found none.
    pub(crate) fn lookups(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.hits), load(&self.misses))
    }

    /// Goes on with the count of those before it.
    pub(crate) fn count_on(&self, before: &Self) {
        let (hits, misses) = before.lookups();
        self.hits.fetch_add(hits, Ordering::Relaxed);
        self.misses.fetch_add(misses, Ordering::Relaxed);
    }

    /// Whether an action is allowed, if that was said lately, and for how long that holds.
    pub(crate) fn get(
        &self,
        subject: Subject<'_>,
        action: ActionName,
        topic: &str,
    ) -> Option<(bool, Duration)> {
        self.get_at(subject, action, topic, Instant::now())
    }

    fn get_at(
        &self,
        subject: Subject<'_>,
        action: ActionName,
        topic: &str,
        now: Instant,
    ) -> Option<(bool, Duration)> {
        let key = self.key(subject.user, subject.client, action, topic);
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let found = recent.get_until(&key, now);
        let count = found.map_or(&self.misses, |_| &self.hits);
        count.fetch_add(1, Ordering::Relaxed);
        found.map(|(answer, until)| (*answer == Answer::Allowed, until.duration_since(now)))
    }

    /// The answer about an action, if there was one lately.
    pub(crate) fn recall(
        &self,
        subject: Subject<'_>,
        action: ActionName,
        topic: &str,
    ) -> Option<Answer> {
        let key = self.key(subject.user, subject.client, action, topic);
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.get(&key, Instant::now()).cloned()
    }

    /// Remembers an answer.
    pub(crate) fn add(
        &self,
        user: Option<&str>,
        client: &str,
        action: ActionName,
        topic: &str,
        answer: Answer,
    ) {
        let time = match answer {
            Answer::Allowed => self.allow,
            Answer::Denied(_) | Answer::Failed(_) => self.deny,
        };
        let key = self.key(user, client, action, topic);
        let until = Instant::now() + time;
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // A user without a name is known by its client.
        let owner = user.map_or_else(|| Owner::by(client), |user| Owner::of(Some(user), None));
        recent.add(owner, key, answer, until);
    }

    /// Answers that are kept.
    pub(crate) fn len(&self) -> usize {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.len()
    }

    fn key(&self, user: Option<&str>, client: &str, action: ActionName, topic: &str) -> Key {
        let action = (user, client, action as u8, topic);
        [0, 1].map(|half| self.hashers[half].hash_one(action))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_of_one_client_action_and_topic_and_end() {
        let second = Duration::from_secs(1);
        let answers = Answers::new(64, 60 * second, second);
        let now = Instant::now();
        let ann = Subject {
            user: Some("ann"),
            client: "c",
            ..Subject::default()
        };
        let nobody = Subject { user: None, ..ann };
        let (publish, subscribe) = (ActionName::Publish, ActionName::Subscribe);
        answers.add(ann.user, "c", publish, "a", Answer::Allowed);
        answers.add(ann.user, "c", publish, "b", Answer::Denied(None));
        for (subject, action, topic, after, expected) in [
            (ann, publish, "a", 0, Some(true)),
            (ann, publish, "a", 59, Some(true)),
            (ann, publish, "a", 61, None),
            (ann, publish, "b", 0, Some(false)),
            (ann, publish, "b", 2, None),
            (ann, subscribe, "a", 0, None),
            (nobody, publish, "a", 0, None),
            (Subject { client: "d", ..ann }, publish, "a", 0, None),
        ] {
            let found = answers.get_at(subject, action, topic, now + after * second);
            let found = found.map(|(is_allowed, _)| is_allowed);
            assert_eq!(found, expected, "{subject:?} {topic} {after}");
        }
        for number in 0..1000 {
            answers.add(None, "", publish, &number.to_string(), Answer::Allowed);
        }
        assert_eq!(answers.len(), 64);
    }
}
