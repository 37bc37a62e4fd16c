//! A connection's memory of its path, kept beside the ticket that the client returns with.
//!
//! The TLS library issues and takes tickets deep inside the processing of a packet, and reports
//! neither. Its store is one for all connections. So [`PathSessions`], which stands before that
//! store, leaves a note on the thread. A handshake's messages are processed in one call, without
//! other work in it.

use std::cell::RefCell;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::StoresServerSessions;
use sterna_quic::SavedPath;

/// The name of a ticket in the store.
pub(super) type Ticket = Box<[u8]>;

/// Effects of a call on the store.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// The last ticket that was issued: clients use the newest first. Others of the same connection carry no memory: it
    /// must not be used twice (RFC 9959, section 3.5).
    pub(super) issued: Option<Ticket>,
    /// The memory of the used ticket.
    pub(super) path: Option<SavedPath>,
    /// Whether a session is only taken out to be put back.
    updating: bool,
}

/// Held while a session is out of its store to be put back, and by a taker for good. Otherwise a
/// client that returns while its last connection ends would not find its ticket.
static UPDATES: RwLock<()> = RwLock::new(());

thread_local! {
    static NOTED: RefCell<Noted> = RefCell::default();
}

/// Notes on this thread since the last call.
pub(super) fn noted() -> Noted {
    NOTED.take()
}

/// Puts the memory of a path beside a ticket, unless the ticket was used already.
pub(super) fn remember(sessions: &dyn StoresServerSessions, ticket: &[u8], path: SavedPath) {
    let _alone = UPDATES.write().unwrap_or_else(PoisonError::into_inner);
    NOTED.with_borrow_mut(|noted| noted.updating = true);
    // Looked at first: a ticket that is taken and not there counts as one that a client showed.
    if sessions.get(ticket).is_some()
        && let Some(session) = sessions.take(ticket)
    {
        NOTED.with_borrow_mut(|noted| noted.path = Some(path));
        sessions.put(ticket.to_vec(), session);
    }
    NOTED.take();
}

/// A store in whose values the memory of the path precedes the session.
#[derive(Debug)]
pub(super) struct PathSessions {
    sessions: Arc<dyn StoresServerSessions>,
}

impl PathSessions {
    pub(super) fn new(sessions: Arc<dyn StoresServerSessions>) -> Self {
        Self { sessions }
    }
}

/// Splits a value into the memory and the session.
fn split(mut value: Vec<u8>) -> Option<(Option<SavedPath>, Vec<u8>)> {
    let (&length, _) = value.split_first()?;
    let end = 1 + usize::from(length);
    if value.len() < end {
        return None;
    }
    let session = value.split_off(end);
    Some((SavedPath::decode(&value[1..]), session))
}

impl StoresServerSessions for PathSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let path = NOTED.with_borrow(|noted| noted.path);
        let path = path.map(|path| path.encode());
        let path: &[u8] = path.as_ref().map_or(&[], |path| path);
        let joined = [&[path.len() as u8], path, &value].concat();
        let name = key.clone();
        let kept = self.sessions.put(key, joined);
        if kept {
            NOTED.with_borrow_mut(|noted| noted.issued = Some(name.into_boxed_slice()));
        }
        kept
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        split(self.sessions.get(key)?).map(|(_, session)| session)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let updating = NOTED.with_borrow(|noted| noted.updating);
        let _alone = (!updating).then(|| UPDATES.read().unwrap_or_else(PoisonError::into_inner));
        let (path, session) = split(self.sessions.take(key)?)?;
        NOTED.with_borrow_mut(|noted| noted.path = path);
        Some(session)
    }

    fn can_cache(&self) -> bool {
        self.sessions.can_cache()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::TicketStore;

    fn path(window: u64) -> SavedPath {
        SavedPath {
            rtt_us: 600_000,
            min_rtt_us: 590_000,
            congestion_window_bytes: window,
            mtu_bytes: 1_200,
            saved_at_ms: 1_700_000_000_000,
        }
    }

    #[test]
    fn a_path_is_remembered_with_the_last_ticket_until_that_is_used() {
        let store = Arc::new(TicketStore::new(10));
        let sessions = PathSessions::new(store.clone());
        for key in [[2; 32], [1; 32]] {
            assert!(sessions.put(key.to_vec(), b"session".to_vec()));
        }
        let noted = noted();
        assert_eq!(noted.issued.as_deref(), Some(&[1; 32][..]));
        assert_eq!(noted.path, None);
        remember(&sessions, &[1; 32], path(50_000));
        remember(&sessions, &[1; 32], path(60_000));
        assert_eq!(store.usage().sessions, 2);
        assert_eq!(sessions.get(&[1; 32]).as_deref(), Some(&b"session"[..]));
        assert_eq!(sessions.take(&[1; 32]).as_deref(), Some(&b"session"[..]));
        assert_eq!(super::noted().path, Some(path(60_000)));
        assert_eq!(sessions.take(&[2; 32]).as_deref(), Some(&b"session"[..]));
        assert_eq!(super::noted().path, None);
        // It is used: nothing comes back.
        remember(&sessions, &[1; 32], path(70_000));
        assert_eq!(sessions.take(&[1; 32]), None);
        assert_eq!(store.usage().sessions, 0);
    }

    /// An existing ticket is found, also while its memory is updated.
    #[test]
    fn a_ticket_is_never_missing_while_it_is_updated() {
        let sessions = Arc::new(PathSessions::new(Arc::new(TicketStore::new(10))));
        for _ in 0..200 {
            assert!(sessions.put(vec![1; 32], b"session".to_vec()));
            noted();
            let updating = sessions.clone();
            let thread = std::thread::spawn(move || {
                for window in 0..20 {
                    remember(&*updating, &[1; 32], path(50_000 + window));
                }
            });
            assert_eq!(sessions.take(&[1; 32]).as_deref(), Some(&b"session"[..]));
            thread.join().expect("no panic");
            assert_eq!(sessions.take(&[1; 32]), None, "used once");
        }
    }

    #[test]
    fn what_another_version_wrote_is_no_session_or_no_path() {
        let store = Arc::new(TicketStore::new(10));
        let sessions = PathSessions::new(store.clone());
        store.put(vec![1; 32], vec![]);
        store.put(vec![2; 32], vec![200, 1, 2]);
        store.put(vec![3; 32], vec![2, 9, 9, 7]);
        assert_eq!(sessions.take(&[1; 32]), None);
        assert_eq!(sessions.take(&[2; 32]), None);
        assert_eq!(sessions.take(&[3; 32]), Some(vec![7]));
        assert_eq!(noted().path, None);
    }
}
