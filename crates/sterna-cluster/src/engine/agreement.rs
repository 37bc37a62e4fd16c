//! Settings that all nodes of a cluster should have alike: each node tells its own, and who differs is named.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::Core;
use crate::conditions::Remark;
use crate::report::NodeWord;
use crate::settings::Settings;

/// The pause after a node has come, before all are asked: several may come at once.
const PAUSE: Duration = Duration::from_secs(1);

/// The settings of a node that others are to have, too, by their names.
pub(super) fn shared(settings: &Settings) -> BTreeMap<String, String> {
    let region = settings.region.as_ref();
    let number = |number: u64| number.to_string();
    let remotes = region.map(|region| {
        let remotes = region.remotes.iter();
        let mut remotes: Vec<String> = remotes
            .map(|one| format!("{} in {}", one.name, one.domain))
            .collect();
        remotes.sort();
        remotes.join(", ")
    });
    let topics = region.map(|region| {
        let mut topics = region.topics.clone();
        topics.sort();
        topics.join(", ")
    });
    let all = [
        ("replicas", Some(number(settings.replicas as u64))),
        ("lease_ms", Some(number(settings.lease_ms))),
        ("session_lease_ms", Some(number(settings.session_lease_ms))),
        ("absence_ms", Some(number(settings.absence_ms))),
        ("maximum_inbox_bytes", Some(number(settings.inbox_bytes))),
        ("maximum_log_bytes", Some(number(settings.log_bytes))),
        ("region_topics", topics),
        ("remote_regions", remotes),
        (
            "maximum_region_bytes",
            region.map(|region| number(region.waiting_bytes)),
        ),
        (
            "region_full",
            region.map(|region| {
                if region.refuses_when_full {
                    "refuse"
                } else {
                    "discard_oldest"
                }
                .to_owned()
            }),
        ),
    ];
    let set = all
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    set.collect()
}

/// A sentence for each setting that nodes have differently. A node that does not say has no part in it.
pub(super) fn differences<'a>(nodes: impl Iterator<Item = &'a NodeWord>) -> Vec<String> {
    let mut settings: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for word in nodes {
        for (name, value) in &word.settings {
            let values = settings.entry(name).or_default();
            values.entry(value).or_default().push(&word.node);
        }
    }
    let differing = settings.into_iter().filter(|(_, values)| values.len() > 1);
    let sentences = differing.map(|(name, values)| {
        let each = values.into_iter().map(|(value, mut nodes)| {
            nodes.sort_unstable();
            format!("{value} on {}", nodes.join(", "))
        });
        let each: Vec<String> = each.collect();
        format!("nodes differ in cluster.{name}: {}", each.join("; "))
    });
    sentences.collect()
}

impl Core {
    /// Compares settings when a node has come.
    pub(super) async fn compare_settings(self: Rc<Self>) {
        loop {
            self.node_came.notified().await;
            tokio::time::sleep(PAUSE).await;
            let within = Duration::from_millis(self.settings.answer_timeout_ms);
            let words = self.ask_nodes(within).await;
            let own = self.word();
            self.note_differences(words.values().chain([&own]));
        }
    }

    /// Notes what nodes have differently, and says what is news.
    pub(super) fn note_differences<'a>(&self, words: impl Iterator<Item = &'a NodeWord>) {
        let differences = differences(words).join(". ");
        let text = Some(differences.clone()).filter(|text| !text.is_empty());
        if self.status.conditions.remark(Remark::Settings, text) && !differences.is_empty() {
            tracing::warn!("{differences}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_other_settings_are_named() {
        let word = |node: &str, absence_ms| NodeWord {
            node: node.to_owned(),
            settings: shared(&Settings {
                absence_ms,
                ..Settings::sample(None)
            }),
            ..NodeWord::default()
        };
        let silent = NodeWord {
            node: "d".to_owned(),
            ..NodeWord::default()
        };
        let alike = [word("a", 60_000), word("b", 60_000), silent];
        assert_eq!(differences(alike.iter()), [""; 0]);
        let other = [word("b", 60_000), word("c", 5_000), word("a", 60_000)];
        assert_eq!(
            differences(other.iter()),
            ["nodes differ in cluster.absence_ms: 5000 on c; 60000 on a, b"]
        );
    }
}
