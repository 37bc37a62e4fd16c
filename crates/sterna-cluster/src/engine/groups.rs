//! Letters about shared subscriptions and queues between nodes, and which processes may be sure of what they have.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use sterna_broker::{GroupLetter, Peer, Share, group_of_letter};

use super::{Core, lanes};
use crate::owners::Process;
use crate::port::ToShard;
use crate::wire::{EncodedRun, Kind};

/// Time in which sessions of a node that is gone are another's, beyond its absence.
const LINGER_MS: u64 = 15_000;

/// The last roll that shards were told: this process, and the others that may be sure of their sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Roll {
    own: Peer,
    sure: Option<Vec<Peer>>,
}

fn peer(process: Process) -> Peer {
    Peer {
        node: process.node,
        incarnation: process.incarnation,
    }
}

impl Core {
    /// Sends letters of a shard to the nodes that are to have them, each after those before it.
    pub(super) fn send_group_letters(&self, shard: usize, letters: Vec<GroupLetter>) {
        let mut runs = BTreeMap::<usize, Vec<EncodedRun>>::new();
        let table = self.table.borrow();
        for GroupLetter { to, record } in letters {
            for node in table.heard_of(to.as_deref()) {
                let runs = runs.entry(node).or_default();
                let is_full = |run: &EncodedRun| run.bytes() + record.len() > self.batch_bytes();
                if runs.last().is_none_or(is_full) {
                    runs.push(EncodedRun::of(shard as u16, Kind::Letters));
                }
                if let Some(run) = runs.last_mut() {
                    run.push_record(&record);
                }
            }
        }
        drop(table);
        for (node, runs) in runs {
            let Some(lane) = self.lane(node) else {
                continue;
            };
            for run in runs {
                lane.push(lanes::Parcel {
                    run,
                    part: None,
                    _charge: None,
                });
            }
        }
    }

    /// Brings letters of another node to the shards that are the homes of their groups.
    pub(super) fn received_letters(&self, node: &str, subject: &str, letters: Vec<Vec<u8>>) {
        let node: Arc<str> = node.into();
        let shards = self.settings.shards as u16;
        let mut by_shard = BTreeMap::<u16, Vec<Vec<u8>>>::new();
        for record in letters {
            match group_of_letter(&record).map(|group| Share::home(group, shards)) {
                Some(home) => by_shard.entry(home).or_default().push(record),
                None => self.cannot_read("letter", subject, "it is about no group"),
            }
        }
        for (shard, letters) in by_shard {
            let node = Arc::clone(&node);
            self.post(usize::from(shard), ToShard::GroupLetters { node, letters });
        }
    }

    /// Letters of another node were lost.
    pub(super) fn missed_letters(&self, node: &str) {
        for shard in 0..self.settings.shards {
            let node = node.into();
            self.post(shard, ToShard::GroupLettersMissed { node });
        }
    }

    /// Tells shards which processes may be sure of what they have, where that has changed.
    pub(super) fn tell_roll(self: &Rc<Self>, now_ms: u64) {
        let roll = {
            let owners = self.owners.borrow();
            // A node that is not sure itself knows nothing new of others.
            if !owners.is_sure(now_ms) {
                return;
            }
            let sure = owners.may_be_sure(now_ms);
            Roll {
                own: peer(owners.own().clone()),
                sure: sure.map(|sure| sure.into_iter().map(peer).collect()),
            }
        };
        let mut known = self.roll.borrow_mut();
        if known.as_ref() == Some(&roll) {
            return;
        }
        let linger_ms = self.settings.absence_ms + LINGER_MS;
        for shard in 0..self.settings.shards {
            self.post(
                shard,
                ToShard::Roll {
                    own: roll.own.clone(),
                    sure: roll.sure.clone(),
                    linger_ms,
                },
            );
        }
        *known = Some(roll);
    }
}
