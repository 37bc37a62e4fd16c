//! What an operator may do.

use crate::config::ANONYMOUS;
use crate::policy::Policy;

/// A role; each has the rights of those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Role {
    /// Reads everything but the contents of messages.
    Viewer,
    /// Reads messages, and changes what is in the broker.
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

    /// The role of a user, or of a client without a name where that is `None`.
    ///
    /// Where nobody can show who they are, because no users are configured, a listener that admits
    /// `anonymous` clients lets them view.
    pub(super) fn of(policy: &Policy, user: Option<&str>, anonymous: bool) -> Option<Self> {
        let is_in = |users: &[String]| {
            users.iter().any(|one| match user {
                Some(user) => one == user && one != ANONYMOUS,
                None => one == ANONYMOUS,
            })
        };
        if policy.rules.is_admin(user) {
            Some(Self::Admin)
        } else if is_in(&policy.admin.operators) {
            Some(Self::Operator)
        } else if is_in(&policy.admin.viewers) || (anonymous && !policy.has_users()) {
            Some(Self::Viewer)
        } else {
            None
        }
    }
}
