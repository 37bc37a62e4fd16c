//! Taking over what nodes have left that are gone.

use std::collections::HashMap;
use std::sync::Arc;

use sterna_broker::is_will_delayed;

use super::work::{Op, Work};
use super::{Action, Held, Key, Known, Owners, Process, Record};

/// A node whose records are looked at, as it was when that began.
#[derive(Debug)]
pub(super) struct Sweeping {
    incarnation: u64,
    /// Whether this process is gone, too, and not only those before it.
    is_gone: bool,
}

impl<S: Copy> Owners<S> {
    /// Whether the sessions of a process have ended.
    pub(super) fn is_gone(&self, now_ms: u64, process: &Process) -> bool {
        if process.node == self.own.node {
            return process.incarnation < self.own.incarnation;
        }
        let Some(began_ms) = self.began_ms else {
            return false;
        };
        match self.nodes.get(&process.node) {
            Some(known) if known.incarnation > process.incarnation => true,
            Some(known) if known.incarnation == process.incarnation => {
                known.has_left || known.seen_ms + self.terms.absence_ms <= now_ms
            }
            Some(_) => false,
            None => began_ms + self.terms.absence_ms <= now_ms,
        }
    }

    /// Looks at all records if a node is gone. The first of those that are here does it at once; others follow
    /// if it did not.
    pub(super) fn sweep(&mut self, now_ms: u64) {
        let Some(began_ms) = self.began_ms else {
            return;
        };
        if self.is_scanning || now_ms < self.next_scan_ms || !self.is_sure(now_ms) {
            return;
        }
        let (absence_ms, grace_ms) = (self.terms.absence_ms, self.terms.grace_ms());
        let is_gone = |known: &Known| known.has_left || known.seen_ms + absence_ms <= now_ms;
        let is_due = |known: &Known| {
            (known.has_leftovers && known.since_ms + grace_ms <= now_ms)
                || (!known.is_swept && is_gone(known))
        };
        let due = (self.nodes.iter()).filter(|(_, known)| is_due(known));
        let sweeping: HashMap<Arc<str>, Sweeping> = due
            .map(|(name, known)| {
                let sweeping = Sweeping {
                    incarnation: known.incarnation,
                    is_gone: is_gone(known),
                };
                (Arc::clone(name), sweeping)
            })
            .collect();
        let earlier = !self.has_swept_earlier && began_ms + grace_ms <= now_ms;
        let unknown = !self.has_swept_unknown && began_ms + absence_ms <= now_ms;
        if sweeping.is_empty() && !unknown && !earlier {
            return;
        }
        let lease_ms = self.terms.lease_ms;
        let before = (self.nodes.iter()).filter(|(name, known)| {
            **name < self.own.node && !known.has_left && known.seen_ms + lease_ms > now_ms
        });
        let rank = before.count() as u64;
        // Each node that comes before has this long for it.
        let waits = rank > 0 && self.next_scan_ms == 0;
        self.next_scan_ms = now_ms + grace_ms * rank.max(1);
        if waits {
            return;
        }
        self.is_scanning = true;
        self.skipped_in_scan = false;
        self.scanned_to = self.old_to;
        self.sweeping = sweeping;
        self.actions.push(Action::Scan);
    }

    /// A record that a scan has found.
    pub fn scanned(&mut self, now_ms: u64, sequence: u64, key: Key, record: Record) {
        if record.is_over || self.is_below_floor(sequence, &record.owner) {
            // The node that wrote the end may be gone, too.
            return self.actions.push(Action::Remove { key, sequence });
        }
        if !self.is_gone(now_ms, &record.owner) {
            return;
        }
        if (self.held.get(&key)).is_some_and(|held| held.epoch > sequence) {
            // It was written over since.
            return;
        }
        let is_at_work = self.work.contains_key(&key) || self.held.contains_key(&key);
        // It may have been taken from an owner that is still sure of it.
        let is_young = sequence > self.old_to;
        if is_young || is_at_work || !self.is_sure(now_ms) {
            self.skipped_in_scan = true;
            return;
        }
        let sweep = Op::Sweep {
            sequence,
            record,
            until_ms: 0,
        };
        self.enqueue(now_ms, key, sweep);
    }

    /// The record by which this node takes a session over comes by: the session is this node's. An owner that was
    /// taken for gone may be back, and sure of it.
    pub(super) fn sweep_passed(&mut self, now_ms: u64, sequence: u64, key: Key) {
        let Some(work) = self.work.get_mut(&key) else {
            return;
        };
        let Some(Op::Sweep {
            record, until_ms, ..
        }) = work.ops.front_mut()
        else {
            return;
        };
        if !record.is_kept {
            return;
        }
        let (owner, until_ms) = (record.owner.clone(), *until_ms);
        let name = record.name.clone();
        let will = record.will.take();
        work.ops[0] = Op::Adopt { name, will };
        (work.serial, work.attempt) = (0, 0);
        self.held.insert(
            key,
            Held {
                epoch: sequence,
                has_will: false,
                is_kept: true,
                is_kept_untold: false,
            },
        );
        self.remember(now_ms, key);
        let until_ms = if owner == self.own {
            until_ms
        } else {
            until_ms.max(self.harmless_from_ms(now_ms, &owner))
        };
        if until_ms <= now_ms {
            return self.begin(now_ms, key);
        }
        self.wait_for_owner(key, sequence, until_ms);
    }

    /// The owner of a session that was to be taken over is back. Its sessions are looked at again if it goes.
    pub(super) fn leave_to(&mut self, now_ms: u64, key: Key, owner: &Process) {
        if let Some(known) = self.nodes.get_mut(&owner.node) {
            known.is_swept = false;
        }
        (self.swept)
            .retain(|swept| swept.node != owner.node || swept.incarnation < owner.incarnation);
        self.finish(now_ms, key);
    }

    /// Publishes the will of a session that was taken over, and is another node's by now. Its client came back there,
    /// which does not stop a will without a delay [MQTT-3.1.3-9].
    pub(super) fn publish_swept_will(&mut self, key: Key) {
        let front = (self.work.get_mut(&key)).and_then(|work| work.ops.front_mut());
        let (name, will) = match front {
            Some(Op::Sweep { record, .. }) => {
                let will = record.will.take();
                (record.name.clone(), will)
            }
            Some(Op::Adopt { name, will }) => (name.clone(), will.take()),
            _ => return,
        };
        if let Some(will) = will.filter(|will| !is_will_delayed(will)) {
            let testator = Some(name.clone());
            self.actions.push(Action::Publish {
                name,
                will,
                testator,
            });
        }
    }

    /// A scan is over; `is_complete` says whether all records were looked at.
    pub fn has_scanned(&mut self, now_ms: u64, is_complete: bool) {
        self.is_scanning = false;
        let sweeping = std::mem::take(&mut self.sweeping);
        self.next_scan_ms = now_ms + self.terms.grace_ms();
        if !is_complete || self.skipped_in_scan {
            return;
        }
        self.next_scan_ms = 0;
        self.swept_to = self.swept_to.min(self.scanned_to);
        let absence_ms = self.terms.absence_ms;
        if !std::mem::replace(&mut self.has_swept_earlier, true) {
            let incarnation = self.own.incarnation.saturating_sub(1);
            self.swept.push(Process {
                incarnation,
                ..self.own.clone()
            });
        }
        self.has_swept = true;
        if (self.began_ms).is_some_and(|began_ms| began_ms + absence_ms <= now_ms) {
            self.has_swept_unknown = true;
        }
        for (node, begun) in sweeping {
            if let Some(known) = self.nodes.get_mut(&node) {
                // One that is back by now goes on with what it has.
                let is_gone =
                    begun.is_gone && (known.has_left || known.seen_ms + absence_ms <= now_ms);
                if known.incarnation == begun.incarnation {
                    known.has_leftovers = false;
                    // Records of a process that lived then, and has died since, are still to be looked at.
                    known.is_swept |= is_gone;
                }
                self.swept.push(Process {
                    node,
                    incarnation: begun.incarnation - u64::from(!is_gone),
                });
            }
        }
    }

    /// Tells whose records were all looked at, when what was begun with them is done.
    pub(super) fn tell_swept(&mut self) {
        if self.has_swept && !self.work.values().any(Work::takes_over) {
            self.has_swept = false;
            self.actions.push(Action::Swept {
                processes: std::mem::take(&mut self.swept),
                has_unknown: self.has_swept_unknown,
                position: std::mem::replace(&mut self.swept_to, u64::MAX),
            });
        }
    }
}
