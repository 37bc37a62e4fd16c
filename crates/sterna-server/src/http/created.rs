//! Topics that clients have created.

use std::collections::HashMap;

use super::registry::{Registry, lock};
use crate::config::Http;
use crate::memory;
use crate::shares::{self, Owner, Quota, Shares};

/// Bytes of all topics together, for each topic that there may be.
const BYTES_PER_TOPIC: usize = 256;

/// A created topic beside its name.
const TOPIC_BYTES: u64 = 100;

/// First byte of the key of the record of a topic that was created.
pub(super) const TOPIC_RECORD: u8 = b'c';

#[derive(Debug, Default)]
pub(super) struct Topics {
    names: HashMap<Box<str>, Topic>,
    bytes: usize,
    shares: Shares,
}

#[derive(Debug)]
struct Topic {
    /// The append that keeps it; 0 for none.
    append: u64,
    /// Its maker.
    owner: Owner,
}

/// The outcome of a topic's creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Created {
    /// The topic was created, which this append keeps; 0 for none.
    New(u64),
    /// The topic existed already. Its creation is kept with this append; 0 for none.
    Existed(u64),
    /// The topics are as many, or as long, as the limits allow.
    TooMany,
    /// Those of the user are.
    TooManyOfUser,
}

impl Registry {
    /// Creates a topic of a user. All topics are limited by `http.maximum_topics`, and those of a user by
    /// `http.maximum_topics_per_user`. Both may have 256 bytes for each topic on average. `keep` has the store keep the
    /// topic with its owner, and returns the append. No other shard takes the topic for an existing one before.
    pub(crate) fn create(
        &self,
        config: &Http,
        (topic, user): (&str, Option<&str>),
        keep: impl FnOnce(&Owner) -> u64,
    ) -> Created {
        let most = |objects: u32| Quota {
            objects: objects as usize,
            bytes: (objects as usize).saturating_mul(BYTES_PER_TOPIC),
        };
        let mut topics = lock(&self.topics);
        if let Some(topic) = topics.names.get(topic) {
            return Created::Existed(topic.append);
        }
        let of_all = most(config.maximum_topics);
        if topics.names.len() >= of_all.objects || topics.bytes + topic.len() > of_all.bytes {
            return Created::TooMany;
        }
        let owner = shares::owner(user);
        let of_user = most(config.maximum_topics_per_user);
        if !topics.shares.have_room(&owner, topic.len(), of_user) {
            return Created::TooManyOfUser;
        }
        let append = keep(&owner);
        topics.add(topic, append, owner);
        Created::New(append)
    }

    /// Deletes a topic; false where none was created. `forget` has the store forget it, before another shard can create
    /// it anew.
    pub(crate) fn delete(&self, topic: &str, forget: impl FnOnce()) -> bool {
        let mut topics = lock(&self.topics);
        let removed = topics.names.remove(topic);
        let existed = removed.is_some();
        if let Some(removed) = removed {
            forget();
            topics.bytes -= topic.len();
            topics.shares.remove(&removed.owner, topic.len());
            debug_assert!(
                !topics.names.is_empty() || topics.bytes == 0,
                "bytes of topics that are not there"
            );
        }
        existed
    }

    /// Whether a topic was created.
    pub(crate) fn exists(&self, topic: &str) -> bool {
        lock(&self.topics).names.contains_key(topic)
    }
}

impl Topics {
    /// # Panics
    /// Where the bytes are not those of the names.
    pub(super) fn check(&self) {
        let bytes: usize = self.names.keys().map(|name| name.len()).sum();
        assert_eq!(self.bytes, bytes, "bytes of created topics");
    }

    /// Takes up a record that the store has kept.
    pub(super) fn restore(&mut self, topic: &[u8], owner: &[u8]) {
        if let Ok(topic) = std::str::from_utf8(topic)
            && let Some(owner) = shares::read_owner(owner)
            && !self.names.contains_key(topic)
        {
            self.add(topic, 0, owner);
        }
    }

    fn add(&mut self, name: &str, append: u64, owner: Owner) {
        let owner = self.shares.add(owner, name.len());
        self.bytes += name.len();
        self.names.insert(name.into(), Topic { append, owner });
    }
}

impl memory::Shared for Registry {
    fn bytes(&self, kind: memory::Kind) -> u64 {
        match kind {
            memory::Kind::Sessions => {
                let topics = lock(&self.topics);
                topics.names.len() as u64 * TOPIC_BYTES + topics.bytes as u64 + self.key_bytes()
            }
            _ => 0,
        }
    }
}

/// The key of the record of a topic that was created.
pub(crate) fn topic_record(topic: &str) -> Vec<u8> {
    let mut record = vec![TOPIC_RECORD];
    record.extend_from_slice(topic.as_bytes());
    record
}

#[cfg(test)]
mod tests {
    use sterna_broker::Eras;

    use super::*;

    fn config(most: u32) -> Http {
        Http {
            maximum_topics: most,
            ..Http::default()
        }
    }

    #[test]
    fn topics_are_created_once_and_up_to_a_limit() {
        let registry = Registry::default();
        let config = config(2);
        let mut appends = 0;
        let mut create = |topic: &str| {
            registry.create(&config, (topic, None), |_| {
                appends += 1;
                appends
            })
        };
        assert_eq!(create("a"), Created::New(1));
        assert_eq!(create("a"), Created::Existed(1));
        assert_eq!(create(&"b".repeat(600)), Created::TooMany);
        assert_eq!(create("b"), Created::New(2));
        assert_eq!(create("c"), Created::TooMany);
        assert!(registry.exists("b") && !registry.exists("c"));
        assert!(registry.delete("b", || ()) && !registry.delete("b", || ()));
        assert_eq!(create("c"), Created::New(3));
        assert_eq!(lock(&registry.topics).bytes, 2);
    }

    #[test]
    fn no_user_creates_all_topics_and_a_restart_frees_none() {
        let mut config = config(10);
        config.maximum_topics_per_user = 2;
        let registry = Registry::default();
        let mut records = Vec::new();
        let mut create = |registry: &Registry, user, topic: &str| {
            registry.create(&config, (topic, user), |owner| {
                records.push((topic_record(topic), owner.as_bytes().to_vec()));
                1
            })
        };
        for topic in ["a", "b"] {
            assert_eq!(create(&registry, Some("ann"), topic), Created::New(1));
        }
        assert_eq!(create(&registry, Some("ann"), "c"), Created::TooManyOfUser);
        assert_eq!(create(&registry, Some("ann"), "a"), Created::Existed(1));
        assert_eq!(create(&registry, None, "c"), Created::New(1));
        let long = "x".repeat(512);
        assert_eq!(
            create(&registry, Some("bob"), &long[..510]),
            Created::New(1)
        );
        assert_eq!(
            create(&registry, Some("bob"), &long),
            Created::TooManyOfUser
        );

        let restarted = Registry::default();
        let kept: Vec<_> = records.clone();
        let kept = kept.iter().map(|(key, value)| (&key[..], &value[..]));
        let damaged = topic_record("d");
        restarted.restore(
            &config,
            kept.chain([(&damaged[..], &b""[..])]),
            (0, &Eras::default()),
        );
        assert!(!restarted.exists("d"), "no record of a topic");
        let create = |user, topic| restarted.create(&config, (topic, user), |_| 1);
        assert_eq!(create(Some("ann"), "c"), Created::Existed(0));
        assert_eq!(create(Some("ann"), "e"), Created::TooManyOfUser);
        assert!(restarted.delete("a", || ()));
        assert_eq!(create(Some("ann"), "e"), Created::New(1));
        assert_eq!(create(Some("ann"), "f"), Created::TooManyOfUser);
    }
}
