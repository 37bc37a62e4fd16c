//! The rights of operators.

use crate::authorization::Subject;
use crate::config::ANONYMOUS;
use crate::identity::Identity;
use crate::policy::Policy;

/// A role; each has the rights of those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Role {
    /// Reads everything but the contents of messages.
    Viewer,
    /// Reads messages, and changes the state of the broker.
    Operator,
    /// Gives orders to the process.
    Admin,
}

impl Role {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// The role of a name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let roles = [Self::Viewer, Self::Operator, Self::Admin];
        roles.into_iter().find(|role| role.name() == name)
    }

    /// The role of a client, by its user (`None` for clients without a name), or by a group.
    ///
    /// A client without a name, also one with a certificate, has a role only where the listener admits
    /// `anonymous` clients. Where no users are configured, such a listener lets them view.
    pub(super) fn of(policy: &Policy, identity: &Identity, anonymous: bool) -> Option<Self> {
        let subject = Subject {
            user: identity.user(),
            standing: identity.standing().map(|own| &**own),
            ..Subject::default()
        };
        let is_in = |users: &[String], groups: &[String]| {
            let is_named = users.iter().any(|one| match subject.user {
                Some(user) => one == user && one != ANONYMOUS,
                None => anonymous && one == ANONYMOUS,
            });
            is_named || policy.rules.is_of(subject, groups)
        };
        let admin = &policy.admin;
        let is_somebody = anonymous || subject.user.is_some();
        if is_somebody && policy.rules.is_admin(subject) {
            Some(Self::Admin)
        } else if is_in(&admin.operators, &admin.operator_groups) {
            Some(Self::Operator)
        } else if is_in(&admin.viewers, &admin.viewer_groups) || (anonymous && !policy.has_users())
        {
            Some(Self::Viewer)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorization::Standing;
    use crate::config::{Config, Group};
    use crate::identity::Proof;

    /// A certificate without a name shows that its client is somebody's, and not an operator.
    #[test]
    fn anonymous_has_its_role_only_where_a_listener_admits_everybody() {
        let anonymous = || vec!["anonymous".to_owned()];
        let config = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            Policy::load(&config).expect("a policy")
        };
        for (policy, expected) in [
            (
                config(&|config| config.authorization.admins = anonymous()),
                Role::Admin,
            ),
            (
                config(&|config| config.admin.operators = anonymous()),
                Role::Operator,
            ),
            (
                config(&|config| config.admin.viewers = anonymous()),
                Role::Viewer,
            ),
        ] {
            for proof in [Proof::Nothing, Proof::Certificate] {
                let identity = Identity::nameless(proof);
                assert_eq!(Role::of(&policy, &identity, true), Some(expected));
                assert_eq!(Role::of(&policy, &identity, false), None, "{proof:?}");
            }
        }
    }

    #[test]
    fn groups_of_the_configuration_and_of_tokens_have_roles() {
        let mut config = Config::default();
        let group = |name: &str, user: &str| Group {
            name: name.to_owned(),
            users: vec![user.to_owned()],
        };
        config.authorization.groups = vec![
            group("owners", "ann"),
            group("shift", "oli"),
            group("monitors", "vic"),
        ];
        config.authorization.admin_groups = vec!["owners".to_owned()];
        config.admin.operator_groups = vec!["shift".to_owned()];
        config.admin.viewer_groups = vec!["monitors".to_owned()];
        assert_eq!(config.check(), Ok(()));
        let policy = Policy::load(&config).expect("a policy");
        let role = |identity: &Identity| Role::of(&policy, identity, false);
        for (user, group, expected) in [
            ("ann", "owners", Role::Admin),
            ("oli", "shift", Role::Operator),
            ("vic", "monitors", Role::Viewer),
        ] {
            assert_eq!(role(&Identity::of(user, Proof::Password)), Some(expected));
            let standing = Standing::new(&[group, "others"], Vec::new()).expect("a standing");
            let by_token = Identity::of("bob", Proof::Jwt).standing_as(standing);
            assert_eq!(role(&by_token), Some(expected), "{group}");
        }
        let others = Standing::new(&["others"], Vec::new()).expect("a standing");
        for nobody in [
            Identity::of("bob", Proof::Password),
            Identity::of("owners", Proof::Password),
            Identity::of("bob", Proof::Jwt).standing_as(others),
            Identity::NOBODY,
        ] {
            assert_eq!(role(&nobody), None, "{nobody:?}");
        }
        config.admin.operator_groups = vec!["nobody".to_owned()];
        config.authorization.admin_groups = vec!["none".to_owned()];
        let faults = config.check().expect_err("no such groups");
        assert_eq!(faults.len(), 2, "{faults:?}");
    }
}
