//! An authority's words on a client beside its name: groups, and rules of the client's own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustc_hash::FxHashSet;
use serde::Deserialize;

use super::{Compiled, Users, is_about};
use crate::config::{ActionName, Effect, Rule};

/// Groups, and rules, of one client.
const MAXIMUM_ENTRIES: usize = 64;
/// Longest name of a group, in bytes.
const MAXIMUM_GROUP_BYTES: usize = 1024;

/// Groups and rules of a client, as the issuer of its token or the webhook has said. Its own rules are
/// asked before those of the configuration.
#[derive(Debug, Default)]
pub struct Standing {
    groups: FxHashSet<Box<str>>,
    pub(super) publish: Box<[Compiled]>,
    pub(super) subscribe: Box<[Compiled]>,
    pub(super) delete: Box<[Compiled]>,
    source: Vec<Rule>,
    is_any: bool,
}

/// A rule as a token or the webhook gives it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenRule {
    #[serde(default)]
    effect: Effect,
    #[serde(default)]
    actions: Vec<ActionName>,
    topics: Vec<String>,
}

impl PartialEq for Standing {
    fn eq(&self, other: &Self) -> bool {
        self.groups == other.groups && self.source == other.source && self.is_any == other.is_any
    }
}

impl Eq for Standing {}

impl Standing {
    /// Whether a rule is one of these.
    pub(super) fn has(&self, rule: &Compiled) -> bool {
        let all = [&self.publish, &self.subscribe, &self.delete];
        all.iter()
            .any(|list| list.iter().any(|own| std::ptr::eq(own, rule)))
    }

    /// Of these groups, with these rules.
    ///
    /// # Errors
    /// When there are too many, a rule has no topics, a topic is no filter, or a rule asks.
    pub(crate) fn new(groups: &[&str], rules: Vec<GivenRule>) -> Result<Arc<Self>, &'static str> {
        if groups.len() > MAXIMUM_ENTRIES || rules.len() > MAXIMUM_ENTRIES {
            return Err("it has more than 64 groups or rules");
        }
        if (groups.iter()).any(|name| name.is_empty() || name.len() > MAXIMUM_GROUP_BYTES) {
            return Err("a group has no name, or one of more than 1024 bytes");
        }
        let mut source = Vec::new();
        for rule in rules {
            let is_filter = |topic: &String| sterna_mqtt::topic::check_filter(topic).is_ok();
            if rule.topics.is_empty()
                || rule.topics.len() > MAXIMUM_ENTRIES
                || !rule.topics.iter().all(is_filter)
            {
                return Err("a rule has no topics, more than 64, or one that is no filter");
            }
            if rule.effect == Effect::Ask {
                return Err("a rule of a client cannot ask");
            }
            source.push(Rule {
                effect: rule.effect,
                actions: rule.actions,
                topics: rule.topics,
                ..Rule::default()
            });
        }
        let compiled = |action| -> Box<[Compiled]> {
            let about = source.iter().filter(move |rule| is_about(rule, action));
            about
                .map(|rule| Compiled::given(&Users::EVERYBODY, rule))
                .collect()
        };
        Ok(Arc::new(Self {
            groups: groups.iter().map(|name| (*name).into()).collect(),
            publish: compiled(ActionName::Publish),
            subscribe: compiled(ActionName::Subscribe),
            delete: compiled(ActionName::Delete),
            source,
            is_any: false,
        }))
    }

    /// That of a client that is away: it may have any groups when it comes back, and no rules of its own. A fact that is
    /// not known suits the client.
    pub(crate) fn any() -> Arc<Self> {
        Arc::new(Self {
            is_any: true,
            ..Self::default()
        })
    }

    /// Whether it is of one of some groups; that of a client that is away where that `suits` it.
    pub(super) fn is_of(&self, groups: &FxHashSet<Box<str>>, suits: bool) -> bool {
        let has = || self.groups.iter().any(|name| groups.contains(name));
        !groups.is_empty() && if self.is_any { suits } else { has() }
    }
}

/// The standings of a user's clients, by their identifiers: one for all connections that have the same, the latest
/// last.
type Clients = HashMap<Box<str>, Vec<Weak<Standing>>>;

/// The standing of all connected clients that have one, by user and client identifier. Questions about a
/// session have no connection at hand.
#[derive(Debug, Default)]
pub struct Standings {
    /// Of each user, its clients.
    users: Mutex<HashMap<Box<str>, Clients>>,
    /// Entries, those of clients that are gone among them.
    count: AtomicUsize,
    /// Entries at which those are looked for next.
    limit: AtomicUsize,
}

impl Standings {
    /// A client has come in, with a standing that is to live as long as its connection. It becomes that of another
    /// connection of this client which has the same.
    ///
    /// Other connections of this client may live on, also where this one is refused or ends first.
    pub(crate) fn note(&self, user: &str, client: &str, standing: &mut Arc<Standing>) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let clients = users.entry(user.into()).or_default();
        let living = clients.entry(client.into()).or_default();
        let mut shared = None;
        living.retain(|one| match one.upgrade() {
            Some(one) if one == *standing => {
                shared = Some(one);
                false
            }
            other => other.is_some(),
        });
        let is_known = shared.is_some();
        if let Some(shared) = shared {
            *standing = shared;
        }
        living.push(Arc::downgrade(standing));
        if is_known {
            return;
        }
        let added = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if added > self.limit.load(Ordering::Relaxed) {
            users.retain(|_, clients| {
                clients.retain(|_, living| {
                    living.retain(|standing| standing.strong_count() > 0);
                    !living.is_empty()
                });
                !clients.is_empty()
            });
            let left: usize = users.values().flat_map(HashMap::values).map(Vec::len).sum();
            self.count.store(left, Ordering::Relaxed);
            self.limit
                .store(2 * left + MAXIMUM_ENTRIES, Ordering::Relaxed);
        }
    }

    /// The standing of a client that is connected: the latest, where its connections have several.
    pub(crate) fn of(&self, user: Option<&str>, client: &str) -> Option<Arc<Standing>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let living = users.get(user?)?.get(client)?;
        living.iter().rev().find_map(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standings_end_with_their_clients() {
        let standings = Standings::default();
        let given = || Standing::new(&["a"], Vec::new()).unwrap();
        let mut kept = given();
        standings.note("ann", "c", &mut kept);
        assert!(standings.of(Some("ann"), "c").is_some());
        assert!(standings.of(Some("ann"), "d").is_none() && standings.of(None, "c").is_none());
        for number in 0..10_000 {
            standings.note(&number.to_string(), "c", &mut given());
        }
        let users = standings.users.lock().unwrap().len();
        assert!(users < 200, "{users}");
        assert!(standings.of(Some("ann"), "c").is_some());
        drop(kept);
        assert!(standings.of(Some("ann"), "c").is_none());
    }

    /// A connection that is refused, or ends, takes nothing from another of the same client.
    #[test]
    fn the_standing_of_one_connection_outlives_another() {
        let standings = Standings::default();
        let of = |group: &str| Standing::new(&[group], Vec::new()).unwrap();
        let found = || standings.of(Some("ann"), "c");
        let mut first = of("a");
        standings.note("ann", "c", &mut first);
        let mut same = of("a");
        standings.note("ann", "c", &mut same);
        assert!(Arc::ptr_eq(&first, &same), "connections share it");
        drop(same);
        assert_eq!(found().as_ref(), Some(&first));
        let mut other = of("b");
        standings.note("ann", "c", &mut other);
        assert_eq!(found().as_ref(), Some(&other), "the latest");
        drop(other);
        assert_eq!(found().as_ref(), Some(&first));
        for _ in 0..1_000 {
            standings.note("ann", "c", &mut of("a"));
            standings.note("ann", "c", &mut of("b"));
        }
        assert_eq!(found().as_ref(), Some(&first));
        let entries = standings.users.lock().unwrap()["ann"]["c"].len();
        assert!(entries <= 2, "{entries}");
    }

    #[test]
    fn what_is_given_is_checked() {
        let rules = |text: &str| -> Vec<GivenRule> { serde_json::from_str(text).unwrap() };
        for (text, is_good) in [
            (r#"[{"topics":["a/#"]}]"#, true),
            (r#"[{"topics":[]}]"#, false),
            (r#"[{"topics":["a#"]}]"#, false),
            (r#"[{"topics":["a"],"effect":"ask"}]"#, false),
            (
                r#"[{"topics":["a"],"effect":"deny","actions":["publish"]}]"#,
                true,
            ),
        ] {
            assert_eq!(Standing::new(&[], rules(text)).is_ok(), is_good, "{text}");
        }
        let long = "x".repeat(1025);
        for groups in [&["a"; 65][..], &[""], &[&long]] {
            assert!(Standing::new(groups, Vec::new()).is_err());
        }
        assert!(serde_json::from_str::<GivenRule>(r#"{"topics":["a"],"users":["b"]}"#).is_err());
    }
}
