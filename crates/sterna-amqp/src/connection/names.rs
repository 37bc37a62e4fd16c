//! Links by their names. An attach looks for the link of its name on the whole connection, which may have very many.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{LinkId, SessionId};
use crate::link::Link;
use crate::performatives::Role;

/// The link of each name and own role that the peer has attached last. It may have ended since, without the peer's
/// answer.
#[derive(Debug, Default)]
pub(crate) struct Names {
    senders: BTreeMap<Arc<str>, LinkId>,
    receivers: BTreeMap<Arc<str>, LinkId>,
}

impl Names {
    pub(crate) fn find(&self, name: &str, role: Role) -> Option<LinkId> {
        let links = match role {
            Role::Sender => &self.senders,
            Role::Receiver => &self.receivers,
        };
        links.get(name).copied()
    }

    fn of(&mut self, role: Role) -> &mut BTreeMap<Arc<str>, LinkId> {
        match role {
            Role::Sender => &mut self.senders,
            Role::Receiver => &mut self.receivers,
        }
    }

    /// The peer has attached a link of a session.
    pub(crate) fn note(&mut self, session: SessionId, link: &Link) {
        let handle = link.handle;
        let id = LinkId { session, handle };
        self.of(link.role).insert(Arc::clone(&link.name), id);
    }

    /// A link of a session is gone. Its name may be another link's by now.
    pub(crate) fn forget(&mut self, session: SessionId, link: &Link) {
        let handle = link.handle;
        let links = self.of(link.role);
        if links.get(&*link.name) == Some(&LinkId { session, handle }) {
            links.remove(&*link.name);
        }
    }
}
