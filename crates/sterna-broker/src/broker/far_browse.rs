//! A look at a queue of the cluster: the root's node answers, wherever the browser is.

use std::sync::Arc;

use super::Broker;
use crate::api::DoorState;
use crate::far_group::{LETTER_BYTES, Looking, Owner, Peer, Word};
use crate::mail::{Address, Browse, Browsed, Letter};
use crate::message::Message;

impl<P: DoorState> Broker<P> {
    /// The number of the queue that a root of this shard has, by its whole filter.
    pub(super) fn queue_of_root(&self, name: &str) -> Option<u32> {
        let root = self.roots.get(name).filter(|root| root.is_known)?;
        root.queue.as_ref().map(|queue| queue.group)
    }

    // On the shard of a browser's queue.

    /// A browser of this node asks for more of a queue. True where the root is asked, and answers later.
    pub(super) fn is_looked_at_afar(&mut self, browse: &mut Browse) -> bool {
        let Some(name) = self.queues.branches.name(browse.group).cloned() else {
            return false;
        };
        if let Some(group) = self.queue_of_root(&name) {
            browse.group = group;
            return false;
        }
        let looking = Looking {
            address: browse.from,
            attendance: browse.attendance,
            after: browse.after,
        };
        let Some(branch) = self.queues.branches.get_mut(&name) else {
            return false;
        };
        branch.look(looking, browse.limit);
        if branch.is_welcome {
            self.ask_to_see(&name, looking, browse.limit);
        }
        true
    }

    fn ask_to_see(&mut self, name: &Arc<str>, looking: Looking, limit: u32) {
        let branch = self.queues.branches.get(name);
        if let Some(Owner { peer, epoch }) = branch.and_then(|branch| branch.owner.clone()) {
            let word = Word::Look {
                epoch,
                looking,
                limit,
            };
            self.tell_of_group(name, Some(&peer), word);
        }
    }

    /// The root knows the branch: it is asked what waits to be seen.
    pub(super) fn look_on(&mut self, name: &Arc<str>) {
        let branch = self.queues.branches.get(name);
        for (looking, limit) in branch.map(|one| one.looks.clone()).unwrap_or_default() {
            self.ask_to_see(name, looking, limit);
        }
    }

    /// Another root has the queue, and the places in it are others. So a browser in the midst of it has come to the
    /// end.
    pub(super) fn end_looks(&mut self, name: &Arc<str>) {
        let Some(branch) = self.queues.branches.get_mut(name) else {
            return;
        };
        let ended = branch
            .looks
            .extract_if(.., |(looking, _)| looking.after.is_some());
        for (looking, _) in ended.collect::<Vec<_>>() {
            let end = Looking {
                after: None,
                ..looking
            };
            self.show(end, Vec::new());
        }
    }

    /// The root has answered.
    pub(super) fn has_seen(&mut self, name: &str, looking: Looking, messages: Vec<Arc<Message>>) {
        let Some(branch) = self.queues.branches.get_mut(name) else {
            return;
        };
        let is_it = |(known, _): &mut (Looking, u32)| {
            known.address == looking.address && known.attendance == looking.attendance
        };
        // Asked twice, it has one answer.
        if branch.looks.extract_if(.., is_it).count() > 0 {
            self.show(looking, messages);
        }
    }

    fn show(&mut self, looking: Looking, messages: Vec<Arc<Message>>) {
        let Looking {
            address,
            attendance,
            after,
        } = looking;
        let Address {
            shard,
            slot,
            generation,
        } = address;
        if shard >= self.directory.shards() {
            return;
        }
        self.send(
            shard,
            Letter::Browsed(Box::new(Browsed {
                slot,
                generation,
                attendance,
                messages,
                after,
            })),
        );
    }

    // On the shard of the root.

    /// A member of a branch elsewhere asks for more of a queue.
    pub(super) fn looked_at_from(
        &mut self,
        now_ms: u64,
        name: &Arc<str>,
        from: &Peer,
        looking: Looking,
        limit: u32,
    ) {
        let Some(group) = self.queue_of_root(name) else {
            return;
        };
        self.far.next_looker = self.far.next_looker.wrapping_add(1).max(1);
        let looker = self.far.next_looker;
        (self.far.lookers).insert(looker, (Arc::clone(name), from.clone(), looking));
        self.browse_queue(
            now_ms,
            Browse {
                group,
                after: looking.after,
                limit,
                attendance: looking.attendance,
                from: looking.address,
                looker,
            },
        );
    }

    /// Answers a browser on another node with as many messages as fit a letter. False where it is one of this node.
    pub(super) fn answer_looker(
        &mut self,
        looker: u32,
        messages: &[(u64, Arc<Message>)],
        more_after: Option<u64>,
    ) -> bool {
        if looker == 0 {
            return false;
        }
        let Some((name, peer, looking)) = self.far.lookers.remove(&looker) else {
            return true;
        };
        let Some(epoch) = self.roots.get(&name).map(|root| root.epoch) else {
            return true;
        };
        let mut after = more_after;
        let (mut seen, mut bytes) = (Vec::new(), 0);
        for (tag, message) in messages {
            let size = message.body_bytes();
            if bytes > 0 && bytes + size > LETTER_BYTES {
                break;
            }
            bytes += size;
            seen.push(Arc::clone(message));
            if seen.len() < messages.len() {
                after = Some(*tag);
            } else {
                after = more_after;
            }
        }
        let looking = Looking { after, ..looking };
        let word = Word::Seen {
            epoch,
            looking,
            messages: seen,
        };
        self.tell_of_group(&name, Some(&peer), word);
        true
    }
}
