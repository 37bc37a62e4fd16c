//! Topic names and topic filters (MQTT 5.0, sections 4.7 and 4.8.2).
//!
//! The broker checks what it is given, although the engines have done so. Front doors of other protocols
//! map their addresses to topics, and an invalid filter must not get into the index.

use crate::limits::Limits;

/// A topic filter taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Filter<'a> {
    /// Whether it came as `$share/NAME/FILTER`.
    pub(crate) shared: bool,
    /// The part that topics are matched against.
    pub(crate) topics: &'a str,
    /// Whether it has wildcards.
    pub(crate) wild: bool,
}

impl<'a> Filter<'a> {
    /// Takes a filter apart; `None` where it is not valid or beyond the limits.
    pub(crate) fn parse(filter: &'a str, limits: &Limits) -> Option<Self> {
        if filter.len() > limits.topic_bytes {
            return None;
        }
        let (shared, topics) = match filter.strip_prefix("$share/") {
            // [MQTT-4.8.2-1] [MQTT-4.8.2-2]
            Some(rest) => {
                let (name, topics) = rest.split_once('/')?;
                if name.is_empty() || name.contains(['+', '#', '\0']) {
                    return None;
                }
                (true, topics)
            }
            None => (false, filter),
        };
        let wild = check(topics, limits, true)?;
        Some(Self {
            shared,
            topics,
            wild,
        })
    }
}

/// Bytes of a text and its first levels that every subscription and retained message is counted with.
const SHORT_BYTES: usize = 64;
const SHORT_LEVELS: usize = 4;
/// Bytes of a level in a tree: its node, its place among the children and names, its text.
const LEVEL_BYTES: usize = 160;

/// About the bytes that a text takes beyond those of a short one. The text is a long filter on `shards` shards, or
/// a long topic in one tree.
pub(crate) fn extra_bytes(text: &str, shards: usize) -> usize {
    let levels = 1 + text.bytes().filter(|byte| *byte == b'/').count();
    let text_bytes = text.len().saturating_sub(SHORT_BYTES);
    let tree_bytes = text_bytes + levels.saturating_sub(SHORT_LEVELS) * LEVEL_BYTES;
    text_bytes + tree_bytes * shards
}

/// Where bridges of Mosquitto say whether they are connected: topics of clients below the broker's own.
const BRIDGE_STATES: &str = "$SYS/broker/connection/+/state";

/// Whether a topic is the broker's own, so that no client publishes there, and nothing of it outlives the process.
#[must_use]
pub fn is_of_broker(topic: &str) -> bool {
    topic.starts_with("$SYS/") && !sterna_topic::matches(BRIDGE_STATES, topic)
}

/// Whether a topic name is one, within the limits. [MQTT-4.7.0-1] [MQTT-3.3.2-2]
pub(crate) fn is_topic(topic: &str, limits: &Limits) -> bool {
    check(topic, limits, false).is_some()
}

/// Whether the text has wildcards, or `None` where it is not valid.
fn check(text: &str, limits: &Limits, wildcards_allowed: bool) -> Option<bool> {
    // [MQTT-4.7.3-1] [MQTT-4.7.3-2] [MQTT-4.7.3-3] [MQTT311-4.7.3-3]
    if text.is_empty() || text.len() > limits.topic_bytes || text.len() > 65_535 {
        return None;
    }
    let bytes = text.as_bytes();
    let mut levels = 1;
    let mut wild = false;
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            0 => return None,
            b'/' => levels += 1,
            // [MQTT-4.7.1-1] [MQTT-4.7.1-2]
            b'+' | b'#' => {
                let starts = at == 0 || bytes[at - 1] == b'/';
                let ends = match bytes.get(at + 1) {
                    None => true,
                    Some(&next) => byte == b'+' && next == b'/',
                };
                if !(wildcards_allowed && starts && ends) {
                    return None;
                }
                wild = true;
            }
            _ => {}
        }
    }
    (levels <= limits.topic_levels).then_some(wild)
}

/// The first level of a topic or filter.
pub(crate) fn first_level(text: &str) -> &str {
    text.split_once('/').map_or(text, |(first, _)| first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(filter: &str) -> Option<Filter<'_>> {
        Filter::parse(filter, LIMITS.get_or_init(Limits::default))
    }

    static LIMITS: std::sync::OnceLock<Limits> = std::sync::OnceLock::new();

    /// [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] [MQTT-4.7.3-2]
    #[test]
    fn wildcards_stand_alone_in_their_level() {
        for good in [
            "#", "+", "a/#", "+/#", "/", "a/+/b", "+/+", "/+", "a//b", "$SYS/#", " ",
        ] {
            assert!(parse(good).is_some(), "{good}");
        }
        for bad in ["", "a#", "#/a", "a/#/b", "a+", "+a", "a/b+/c", "\0", "a/\0"] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }

    /// [MQTT-4.8.2-1] [MQTT-4.8.2-2]
    #[test]
    fn share_names_have_no_wildcards_and_a_filter_follows() {
        let shared = parse("$share/group/a/+").unwrap();
        assert_eq!(
            shared,
            Filter {
                shared: true,
                topics: "a/+",
                wild: true
            }
        );
        assert_eq!(parse("$share/group//").unwrap().topics, "/");
        for bad in [
            "$share/",
            "$share/group",
            "$share/group/",
            "$share//a",
            "$share/g+/a",
            "$share/#/a",
        ] {
            assert!(parse(bad).is_none(), "{bad}");
        }
        assert!(!parse("$shared/group/a").unwrap().shared);
    }

    /// [MQTT-4.7.0-1] [MQTT-4.7.3-3] [MQTT311-4.7.3-3] and attack 9: a filter of 65,535 slashes.
    #[test]
    fn names_have_no_wildcards_and_limits_hold() {
        let mut limits = Limits::default();
        assert!(is_topic("a/b", &limits) && is_topic("/", &limits) && is_topic("$SYS/a", &limits));
        for bad in ["", "a/+", "#", "a\0"] {
            assert!(!is_topic(bad, &limits), "{bad}");
        }
        let deep = "/".repeat(65_535);
        assert!(!is_topic(&deep, &limits));
        assert!(Filter::parse(&deep, &limits).is_none());
        limits.topic_levels = 65_536;
        assert!(is_topic(&deep, &limits));
        assert!(Filter::parse(&deep, &limits).is_some());
        assert!(!is_topic(&"a".repeat(65_536), &limits));
    }
}
