//! Records that entries of the log settle. Each is told with its entry, and remembered until it is kept.

use async_nats::HeaderMap;
use sterna_broker::{Records, Settles as Wanted};

use super::reading::Head;
use super::{Waiting, position, sequence};
use crate::commits::Commits;
use crate::engine::sessions::key_of;
use crate::engine::{Core, Retry};
use crate::owners::Key;
use crate::requests;
use crate::subjects;
use crate::tail::{self, Settled, Settles};

impl Core {
    /// The header's line of a message's entry; `None` where the message settles nothing.
    pub(super) fn line_of(&self, waiting: &Waiting) -> Option<String> {
        let record = match &**waiting.settles.as_ref()? {
            Wanted::Session {
                name,
                round,
                key: record,
            } => {
                let key = key_of(name);
                Settles::Session {
                    key,
                    epoch: self.owners.borrow().epoch(key)?,
                    round: *round,
                    record: record.clone(),
                }
            }
            Wanted::Shared { key, value } => {
                let key = requests::key_of(key);
                let (round, kept_for_s) =
                    self.requests.borrow().get(&key)?.mine()?.round_and_time();
                Settles::Request {
                    key,
                    round,
                    kept_for_s,
                    value: value.clone(),
                }
            }
        };
        let by = self.owners.borrow().own().clone();
        Settled { by, record }.line()
    }

    /// An entry of the log says what it settles.
    pub(super) fn note_settled(&self, sequence: u64, headers: Option<&HeaderMap>) {
        let line = headers.and_then(|headers| headers.get(tail::HEADER));
        let Some(settled) = line.and_then(|line| Settled::parse(line.as_str())) else {
            return;
        };
        let has_forgotten = (self.log.tail.borrow_mut()).saw(position(sequence, 0), settled);
        if has_forgotten && !self.log.has_forgotten.replace(true) {
            tracing::warn!(
                most = self.settings.maximum_unsettled_entries,
                "more was published exactly once than is remembered until its records are kept \
                 (cluster.maximum_unsettled_entries): if its node dies now, it may come twice"
            );
        }
    }

    /// A process has kept all records of what it has appended up to a position.
    pub(in crate::engine) fn note_settled_to(
        &self,
        node: &str,
        incarnation: u64,
        position: u64,
        lives: bool,
    ) {
        let mut tail = self.log.tail.borrow_mut();
        if lives {
            tail.kept(node, incarnation, position);
        } else {
            tail.had_kept(node, incarnation, position);
        }
    }

    /// All records are kept of what this process has appended before this position.
    pub(super) fn settled_to(&self) -> u64 {
        // Messages handed over after this get later positions.
        let end = self.log.view.end();
        let commits = self.commits.borrow();
        let unsettled = commits.iter().filter_map(Commits::first_unsettled);
        unsettled.fold(end, u64::min)
    }

    /// The same for this node's marks: its earlier starts count as long as others do not have all that they have
    /// left.
    pub(in crate::engine) fn own_settled_to(&self) -> u64 {
        let tail = self.log.tail.borrow();
        let earlier = tail.kept_earlier(&self.settings.node, self.incarnation.get());
        self.settled_to().min(earlier.unwrap_or(u64::MAX))
    }

    /// Waits until everything is known of the tail that is in the log now.
    pub(in crate::engine) async fn know_tail(&self) {
        self.wait_for_end_of_log().await;
        let _reads = self.log.tail_reading.lock().await;
        let mut retry = Retry::new();
        while let Err(why) = self.read_tail().await {
            tracing::debug!(why, "the tail of the log is read again");
            self.status.failed_attempts.add(1);
            retry.wait().await;
        }
    }

    /// Reads the tail in front of a position, of a log that this does not follow.
    pub(in crate::engine) async fn read_tail_to(&self, end: u64) -> Result<(), String> {
        self.log.tail.borrow_mut().begin(end);
        self.read_tail().await
    }

    /// Reads what came by before this node followed the log.
    async fn read_tail(&self) -> Result<(), String> {
        let missing = self.log.tail.borrow().missing();
        let Some((from, to)) = missing else {
            return Ok(());
        };
        let mut head = Head::new(self.settings.subject(&subjects::log(">")));
        let mut next = sequence(from).max(1);
        while let Some(entry) = self.next_of(&mut head, next).await? {
            if position(entry.sequence, 0) >= to {
                break;
            }
            self.note_settled(entry.sequence, Some(&entry.headers));
            next = entry.sequence + 1;
        }
        self.log.tail.borrow_mut().has_read(from);
        Ok(())
    }

    /// Adds to a session's records what its last owner did not come to write. `epoch` is that of the owner that wrote
    /// them.
    pub(in crate::engine) fn amend(&self, key: Key, epoch: u64, records: &mut Records) {
        let added = self.log.tail.borrow().amend(key, epoch, records);
        if added > 0 {
            tracing::info!(
                added,
                "the log has what a session has published, and whose records its earlier node did not write"
            );
        }
    }

    /// The front door's record of a request that the log has in a round, and for how many seconds it is kept.
    pub(in crate::engine) fn published(&self, key: Key, round: u64) -> Option<(Box<[u8]>, u64)> {
        self.log.tail.borrow().request(key, round)
    }

    /// Requests that processes of a node have published, up to an incarnation, with their rounds.
    pub(in crate::engine) fn requests_of(&self, node: &str, incarnation: u64) -> Vec<(Key, u64)> {
        self.log.tail.borrow().requests_of(node, incarnation)
    }
}
