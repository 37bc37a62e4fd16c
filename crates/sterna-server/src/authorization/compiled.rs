//! Rules as they are asked: taken apart when they are loaded.

use rustc_hash::FxHashSet;

use super::conditions::{Conditions, MessageKind};
use super::pattern::Pattern;
use super::{Reading, Standing, Subject};
use crate::config::{ANONYMOUS, ActionName, Authorization, Durability, Effect, Listener, Rule};

/// A rule, taken apart.
#[derive(Clone, Debug)]
pub(super) struct Compiled {
    /// Its place in the configuration; `None` for one of the broker's own.
    pub(super) place: Option<usize>,
    pub(super) users: Users,
    /// Empty for every client.
    pub(super) clients: FxHashSet<Box<str>>,
    pub(super) effect: Effect,
    pub(super) is_idempotent: bool,
    /// Further conditions, which few rules have.
    pub(super) conditions: Option<Box<Conditions>>,
    pub(super) durability: Option<Durability>,
    pub(super) patterns: Box<[Pattern]>,
}

/// The users that a rule is about.
#[derive(Clone, Debug, Default)]
pub(super) struct Users {
    pub(super) anonymous: bool,
    /// Every client with a name.
    pub(super) named: bool,
    pub(super) names: FxHashSet<Box<str>>,
    /// Groups, for clients that belong to one by a token or the webhook.
    pub(super) groups: FxHashSet<Box<str>>,
}

/// The rules for a client: the broker's own come first, then those given to the client, then the configuration's.
pub(super) fn all_rules<'a>(
    own: &'a [Compiled],
    rules: &'a [Compiled],
) -> impl Iterator<Item = &'a Compiled> {
    let of_broker = rules.iter().take_while(|rule| rule.place.is_none()).count();
    let (first, rest) = rules.split_at(of_broker);
    first.iter().chain(own).chain(rest)
}

/// The first rule that fits a topic name.
pub(super) fn deciding<'a>(
    own: &'a [Compiled],
    rules: &'a [Compiled],
    subject: Subject<'_>,
    topic: &str,
    kind: MessageKind,
) -> Option<&'a Compiled> {
    all_rules(own, rules).find(|rule| {
        rule.is_for(subject, kind)
            && rule.patterns.iter().any(|pattern| {
                if rule.effect == Effect::Allow {
                    pattern.allows(subject, topic)
                } else {
                    pattern.denies(subject, topic)
                }
            })
    })
}

pub(super) fn is_about(rule: &Rule, action: ActionName) -> bool {
    if rule.actions.is_empty() {
        // A right to publish and subscribe is no right to take away what others have.
        return action != ActionName::Delete || rule.effect == Effect::Deny;
    }
    rule.actions.contains(&action)
}

impl Compiled {
    pub(super) fn new(
        place: usize,
        rule: &Rule,
        config: &Authorization,
        listeners: &[Listener],
    ) -> Self {
        Self {
            place: Some(place),
            users: Users::of(&rule.users, &rule.groups, config),
            clients: (rule.clients.iter())
                .map(|name| name.as_str().into())
                .collect(),
            effect: rule.effect,
            is_idempotent: rule.idempotent,
            conditions: Conditions::of(rule, config, listeners).map(Box::new),
            durability: rule.durability,
            patterns: rule
                .topics
                .iter()
                .map(|topic| Pattern::new(topic))
                .collect(),
        }
    }

    /// A rule of the broker's own.
    pub(super) fn own(users: &Users, is_allowed: bool, topics: &str) -> Self {
        let effect = if is_allowed {
            Effect::Allow
        } else {
            Effect::Deny
        };
        let rule = Rule {
            effect,
            topics: vec![topics.to_owned()],
            ..Rule::default()
        };
        Self::given(users, &rule)
    }

    /// A rule that is not of the configuration.
    pub(super) fn given(users: &Users, rule: &Rule) -> Self {
        Self {
            place: None,
            users: users.clone(),
            clients: FxHashSet::default(),
            effect: rule.effect,
            is_idempotent: false,
            conditions: None,
            durability: None,
            patterns: (rule.topics.iter())
                .map(|topic| Pattern::new(topic))
                .collect(),
        }
    }

    /// The reading of an action that the rule fits. A rule that asks lets an action through that it fits only by
    /// unknown facts. The webhook is asked about it as soon as they are known.
    pub(super) fn reading(&self, subject: Subject<'_>, kind: MessageKind) -> Reading {
        match self.effect {
            Effect::Deny => Reading::Refused,
            Effect::Ask if self.holds(subject, kind, false) => Reading::Asked,
            Effect::Allow | Effect::Ask => Reading::Whole,
        }
    }

    pub(super) fn is_for(&self, subject: Subject<'_>, kind: MessageKind) -> bool {
        self.users.have_where(subject, self.effect != Effect::Deny)
            && (self.clients.is_empty() || self.clients.contains(subject.client))
            && self.holds(subject, kind, self.effect != Effect::Deny)
    }

    pub(super) fn holds(&self, subject: Subject<'_>, kind: MessageKind, unknown: bool) -> bool {
        (self.conditions.as_ref()).is_none_or(|conditions| conditions.hold(subject, kind, unknown))
    }
}

impl Users {
    pub(super) const EVERYBODY: Self = Self {
        anonymous: true,
        named: true,
        names: FxHashSet::with_hasher(rustc_hash::FxBuildHasher),
        groups: FxHashSet::with_hasher(rustc_hash::FxBuildHasher),
    };

    /// The users that a rule or a limit names.
    pub(super) fn of(users: &[String], groups: &[String], config: &Authorization) -> Self {
        if users.is_empty() && groups.is_empty() {
            return Self::EVERYBODY;
        }
        let of_groups = (config.groups.iter()).filter(|group| groups.contains(&group.name));
        let of_groups = of_groups.flat_map(|group| &group.users);
        Self {
            anonymous: false,
            named: users.iter().any(|name| name == "*"),
            names: (users.iter().chain(of_groups))
                .map(|name| name.as_str().into())
                .collect(),
            groups: (groups.iter()).map(|name| name.as_str().into()).collect(),
        }
    }

    /// The users that the configuration calls administrators, by name or by group.
    pub(super) fn admins(config: &Authorization) -> Self {
        let is_nameless = |name: &&String| *name == ANONYMOUS;
        let by_group = match &config.admin_groups[..] {
            [] => Self::default(),
            groups => Self::of(&[], groups, config),
        };
        let named = config.admins.iter().filter(|name| !is_nameless(name));
        Self {
            anonymous: config.admins.iter().any(|name| is_nameless(&name)),
            named: false,
            names: (named.map(|name| name.as_str().into()))
                .chain(by_group.names)
                .collect(),
            groups: by_group.groups,
        }
    }

    /// Whether a client is one of them, by its name or its groups.
    pub(super) fn have(&self, subject: Subject<'_>) -> bool {
        self.have_where(subject, false)
    }

    /// The same. Whether a client whose groups are not known is one of them is what `suits` it.
    pub(super) fn have_where(&self, subject: Subject<'_>, suits: bool) -> bool {
        let by_group = |own: &Standing| own.is_of(&self.groups, suits);
        self.has(subject.user) || subject.standing.is_some_and(by_group)
    }

    pub(super) fn has(&self, user: Option<&str>) -> bool {
        user.map_or(self.anonymous, |user| {
            self.named || self.names.contains(user)
        })
    }
}
