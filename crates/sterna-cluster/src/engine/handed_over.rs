//! Sessions that have gone to another node, until what is kept of them is that node's.
//!
//! The new owner knows what such a session wants, and what it needs of the log, when it has read what is kept. While NATS
//! does not say that, nobody would put messages into the log for the session, and what it has there would be removed. So
//! the earlier owner goes on with both.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Core;
use crate::owners::Key;

/// How often is looked whether sessions are their new owners'.
const LOOK: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HandedOver(HashMap<Key, Session>);

#[derive(Debug)]
struct Session {
    /// The epoch of this node's ownership.
    epoch: u64,
    /// No reader of this node needed anything of the log before this position.
    need: u64,
    since_ms: u64,
    /// Until when the new owner may have yet to tell; `None` while it has not what is kept.
    until_ms: Option<u64>,
}

impl HandedOver {
    /// A session of this node is another's.
    fn begin(&mut self, now_ms: u64, key: Key, epoch: u64, need: u64) {
        let session = self.0.entry(key).or_insert(Session {
            epoch,
            need,
            since_ms: now_ms,
            until_ms: None,
        });
        // It may have come back, and gone again.
        session.epoch = epoch;
        session.need = session.need.min(need);
        session.until_ms = None;
    }

    /// Sessions whose new owners have yet to write what is kept, and this node's epochs.
    fn unwritten(&self) -> Vec<(Key, u64)> {
        let all = self.0.iter();
        let unwritten = all.filter(|(_, session)| session.until_ms.is_none());
        unwritten
            .map(|(key, session)| (*key, session.epoch))
            .collect()
    }

    /// The new owner of a session has what is kept, or the session has ended. The owner tells what it wants until a time.
    fn written(&mut self, key: Key, epoch: u64, until_ms: u64) {
        if let Some(session) = self.0.get_mut(&key).filter(|known| known.epoch == epoch) {
            session.until_ms = Some(until_ms);
        }
    }

    /// Forgets sessions whose new owners have told.
    fn look(&mut self, now_ms: u64) {
        (self.0).retain(|_, session| session.until_ms.is_none_or(|until_ms| now_ms < until_ms));
    }

    /// The lowest position of the log that one of them needs.
    pub(super) fn need(&self) -> Option<u64> {
        self.0.values().map(|session| session.need).min()
    }

    /// Since when the first of them has been another node's: of what ended here since, it may want something.
    pub(super) fn since_ms(&self) -> Option<u64> {
        self.0.values().map(|session| session.since_ms).min()
    }
}

impl Core {
    /// A session of this node is another's. Only what is kept is of interest.
    pub(super) fn has_gone(&self, key: Key) {
        let epoch = self.kept.borrow().get(&key).map(super::kept::Kept::epoch);
        if let Some(epoch) = epoch {
            let (now_ms, need) = (self.now_ms(), self.log.view.needed());
            (self.handed_over.borrow_mut()).begin(now_ms, key, epoch, need);
        }
    }

    /// Looks whether sessions are their new owners'.
    pub(super) async fn look_after_handed_over(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let unwritten = self.handed_over.borrow().unwritten();
            for some in unwritten.chunks(self.settings.maximum_in_flight) {
                let looks = some.iter().copied().map(async |(key, epoch)| {
                    let is_written = self.is_written_since(key, epoch).await;
                    (key, epoch, is_written)
                });
                for (key, epoch, is_written) in join_all(looks).await {
                    if is_written {
                        let until_ms = self.now_ms() + self.settings.claim_timeout_ms;
                        (self.handed_over.borrow_mut()).written(key, epoch, until_ms);
                    }
                }
            }
            let now_ms = self.now_ms();
            self.handed_over.borrow_mut().look(now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_held_until_its_new_owner_has_written_and_told() {
        let (one, other) = ([1; 16], [2; 16]);
        let mut handed = HandedOver::default();
        assert_eq!((handed.need(), handed.since_ms()), (None, None));
        handed.begin(100, one, 7, 900);
        handed.begin(200, other, 8, 800);
        handed.look(1_000_000);
        assert_eq!((handed.need(), handed.since_ms()), (Some(800), Some(100)));
        handed.written(other, 8, 5_000);
        assert_eq!(handed.unwritten(), [(one, 7)]);
        handed.look(4_999);
        assert_eq!(handed.need(), Some(800), "the new owner has yet to tell");
        handed.look(5_000);
        assert_eq!(handed.need(), Some(900));
        // It comes back, and goes again.
        handed.begin(6_000, one, 12, 950);
        handed.written(one, 7, 7_000);
        handed.look(8_000);
        assert_eq!(handed.unwritten(), [(one, 12)], "that was the owner before");
        assert_eq!((handed.need(), handed.since_ms()), (Some(900), Some(100)));
        handed.written(one, 12, 9_000);
        handed.look(9_000);
        assert_eq!((handed.need(), handed.since_ms()), (None, None));
    }
}
