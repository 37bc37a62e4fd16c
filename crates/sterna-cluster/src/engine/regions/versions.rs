//! Retained messages of several regions: all agree on the newest.
//!
//! Each region has a last retained message of a topic, as its NATS has them. The newest of these by the time of
//! publication counts; of two with one time, the region's name decides. The result is the same in each region when
//! it has heard of all.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Time for which a node remembers that a region has cleared a topic.
const CLEARED: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The place of a retained message that came by among those of all regions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) enum Standing {
    /// It is the newest: it stays.
    Newest,
    /// Another region's is newer.
    Older,
    /// As [`Older`](Self::Older), and it has taken the place of a newer one until now: that of this region is to be
    /// retained.
    Overtaken(String),
}

/// A region's last retained message of a topic.
#[derive(Clone, Debug)]
struct Version {
    region: String,
    published_ms: u64,
    /// When it can be forgotten: it has expired, or nobody remembers that it was cleared.
    until_ms: u64,
    /// Whether the topic has none there.
    is_empty: bool,
    /// Its place in this region's stream.
    position: u64,
}

impl Version {
    /// Where this region's stream has it.
    fn in_stream(&self, topic: &str) -> Cleared {
        Cleared {
            topic: topic.into(),
            region: self.region.clone(),
            position: self.position,
        }
    }
}

/// A region's retained message that has expired, that another region has cleared, or a later one of its region has replaced. NATS keeps it
/// until it is removed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Cleared {
    pub(super) topic: Box<str>,
    pub(super) region: String,
    pub(super) position: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(in super::super) struct Versions {
    topics: HashMap<Box<str>, Vec<Version>>,
    /// Topics with a new message of a region, by the region: what lies before it is to be removed.
    replaced: HashSet<(Box<str>, String)>,
    /// When was last looked what can be forgotten.
    looked_ms: u64,
}

/// Time between two looks at what can be forgotten, in milliseconds.
const LOOK_MS: u64 = 60_000;

/// Time after which what was cleared is removed. A region's clock may have been behind before that.
const SETTLED_MS: u64 = 3_600_000;

impl Versions {
    /// Notes a region's last message of a topic, which expires at a time or is empty. `position` is its place in this
    /// region's stream.
    pub(in super::super) fn note(
        &mut self,
        topic: &str,
        (region, position): (&str, u64),
        published_ms: u64,
        expires_at_ms: Option<u64>,
        is_empty: bool,
    ) -> Standing {
        let cleared_ms = CLEARED.as_millis() as u64;
        let until_ms = if is_empty {
            published_ms.saturating_add(cleared_ms)
        } else {
            expires_at_ms.unwrap_or(u64::MAX)
        };
        let version = Version {
            region: region.to_owned(),
            published_ms,
            until_ms,
            is_empty,
            position,
        };
        let versions = self.topics.entry(topic.into()).or_default();
        let before = newest(versions).map(|newest| newest.region.clone());
        versions.retain(|known| known.region != region);
        versions.push(version);
        match newest(versions) {
            Some(newest) if newest.region != region => match before {
                Some(before) if before == region => Standing::Overtaken(newest.region.clone()),
                _ => Standing::Older,
            },
            _ => Standing::Newest,
        }
    }

    /// Notes that another region's message of a topic has come: those before it are to be removed.
    pub(in super::super) fn replaces(&mut self, topic: &str, region: &str) {
        (self.replaced).insert((topic.into(), region.to_owned()));
    }

    /// Takes what was replaced since the last time.
    pub(super) fn take_replaced(&mut self) -> Vec<Cleared> {
        let replaced = std::mem::take(&mut self.replaced);
        let last = replaced.into_iter().filter_map(|(topic, region)| {
            let mut versions = self.topics.get(&topic)?.iter();
            let position = versions.find(|known| known.region == region)?.position - 1;
            Some(Cleared {
                topic,
                region,
                position,
            })
        });
        last.collect()
    }

    /// The region whose message of a topic is the newest.
    pub(in super::super) fn newest(&self, topic: &str) -> Option<&str> {
        newest(self.topics.get(topic)?).map(|newest| &*newest.region)
    }

    /// Forgets what was over at a time, now and then. Returns what is to be removed from the stream of this region,
    /// `own`, by then: copies of other regions' messages that have expired, and those that would be back when the message
    /// that has cleared them is over.
    pub(super) fn forget_before(&mut self, now_ms: u64, own: &str) -> Vec<Cleared> {
        let mut cleared = Vec::new();
        if now_ms.abs_diff(self.looked_ms) < LOOK_MS {
            return cleared;
        }
        self.looked_ms = now_ms;
        self.topics.retain(|topic, versions| {
            let last = newest(versions).filter(|newest| newest.is_empty).cloned();
            let over = versions.extract_if(.., |version| version.until_ms <= now_ms);
            // The end of an own one is written by its node.
            let over = over.filter(|version| version.region != own);
            cleared.extend(over.map(|version| version.in_stream(topic)));
            if let Some(last) = last {
                if last.until_ms <= now_ms {
                    return false;
                }
                if last.published_ms.saturating_add(SETTLED_MS) <= now_ms {
                    let others = versions.iter().filter(|version| !version.is_empty);
                    cleared.extend(others.map(|version| version.in_stream(topic)));
                }
            }
            !versions.is_empty()
        });
        cleared
    }

    /// This region's stream does not have a message any more that another region has cleared.
    pub(super) fn was_removed(&mut self, cleared: &Cleared) {
        if let Some(versions) = self.topics.get_mut(&cleared.topic) {
            versions.retain(|known| {
                known.region != cleared.region || known.position != cleared.position
            });
        }
    }
}

fn newest(versions: &[Version]) -> Option<&Version> {
    versions
        .iter()
        .max_by_key(|version| (version.published_ms, &version.region))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three regions hear of the same messages in orders of their own, each region's in its order, and agree.
    #[test]
    fn whatever_comes_first_all_regions_agree() {
        let sent = [
            ("a", vec![10, 40, 35]),
            ("b", vec![20, 36]),
            ("c", vec![36, 30]),
        ];
        for seed in 0..500_usize {
            let (mut versions, mut retained) = (Versions::default(), None);
            let mut left: Vec<_> = sent
                .iter()
                .map(|(region, all)| (*region, &all[..]))
                .collect();
            let mut pick = seed;
            while !left.is_empty() {
                let at = pick % left.len();
                pick = pick / 3 + seed % 7;
                let (region, all) = left[at];
                let standing = versions.note("t", (region, 0), all[0], None, false);
                match standing {
                    Standing::Newest => retained = Some((region.to_owned(), all[0])),
                    Standing::Older => {}
                    Standing::Overtaken(by) => {
                        // NATS has this message of that region.
                        let known = versions.topics["t"].iter().find(|one| one.region == by);
                        retained = known.map(|one| (by, one.published_ms));
                    }
                }
                if all.len() == 1 {
                    left.remove(at);
                } else {
                    left[at].1 = &all[1..];
                }
            }
            assert_eq!(retained, Some(("b".to_owned(), 36)), "seed {seed}");
            assert_eq!(versions.newest("t"), Some("b"));
        }
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut versions = Versions::default();
        versions.note("kept", ("a", 1), 5, None, false);
        versions.note("expires", ("a", 2), 5, Some(100_000), false);
        versions.note("cleared", ("a", 3), 5, None, true);
        versions.note("own", ("own", 9), 5, Some(100_000), false);
        // The end of an own message is a record, and the copy of another region's is removed.
        let over = versions.forget_before(200_000, "own");
        let of_a = Cleared {
            topic: "expires".into(),
            region: "a".into(),
            position: 2,
        };
        assert_eq!(over, [of_a]);
        assert_eq!(versions.topics.len(), 2);
        versions.forget_before(5 + CLEARED.as_millis() as u64, "own");
        assert_eq!(versions.newest("kept"), Some("a"));
        assert_eq!(versions.topics.len(), 1);
    }

    #[test]
    fn what_another_region_has_cleared_is_removed_and_forgotten() {
        let mut versions = Versions::default();
        let day_ms = 24 * 3_600_000;
        let ways = [("a", 1, 5, false), ("b", 2, 10, true), ("c", 3, 7, false)];
        for (region, position, published_ms, is_empty) in ways {
            versions.note("t", (region, position), published_ms, None, is_empty);
        }
        assert_eq!(
            versions.forget_before(LOOK_MS, "own"),
            [],
            "it may not be settled"
        );
        let mut cleared = versions.forget_before(day_ms, "own");
        cleared.sort_by_key(|one| one.position);
        let of = |region: &str, position| Cleared {
            topic: "t".into(),
            region: region.into(),
            position,
        };
        assert_eq!(cleared, [of("a", 1), of("c", 3)]);
        versions.was_removed(&cleared[0]);
        // It has published anew since.
        versions.note("t", ("c", 4), 8, None, false);
        versions.was_removed(&cleared[1]);
        assert_eq!(versions.forget_before(2 * day_ms, "own"), [of("c", 4)]);
        assert_eq!(versions.newest("t"), Some("b"));
        // Another node removes it, or nobody does.
        versions.forget_before(10 + CLEARED.as_millis() as u64 + LOOK_MS, "own");
        assert!(versions.topics.is_empty(), "{versions:?}");
    }

    /// Its time comes from NATS.
    #[test]
    fn what_was_cleared_at_the_end_of_time_is_looked_at_as_all_else() {
        let mut versions = Versions::default();
        versions.note("t", ("a", 1), u64::MAX, None, true);
        assert_eq!(versions.forget_before(24 * 3_600_000, "own"), []);
    }

    #[test]
    fn what_is_newer_than_a_clear_stays() {
        let mut versions = Versions::default();
        versions.note("t", ("a", 1), 20, None, false);
        versions.note("t", ("b", 2), 10, None, true);
        assert_eq!(versions.forget_before(24 * 3_600_000, "own"), []);
        versions.forget_before(10 + CLEARED.as_millis() as u64 + LOOK_MS, "own");
        assert_eq!(versions.newest("t"), Some("a"));
    }
}
