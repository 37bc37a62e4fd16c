//! From shards to NATS: messages of a turn are sorted by node, and go there in batches.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sterna_broker::{
    Change, Destination, Message, NodeSet, Outbound, Outgoing, PeerGate, Recipients,
};

use super::{Core, lanes, log, regions, retained};
use crate::commits::Part;
use crate::port::FromShard;
use crate::table::OUTSIDE;
use crate::wire::{self, EncodedRun};

/// Gives the room of a turn back when nothing of it waits any more.
#[derive(Debug)]
pub(super) struct Charge {
    gate: Arc<PeerGate>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.gate.release(self.bytes);
    }
}

/// Runs for a node, as many as it takes: none is larger than a batch unless one message is.
#[derive(Debug, Default)]
struct Runs(Vec<EncodedRun>);

impl Runs {
    /// Appends records, each with its length in front.
    fn push(&mut self, shard: u16, mut records: &[u8], most_bytes: usize) {
        while !records.is_empty() {
            if let Some(last) = self.0.last_mut() {
                records = last.push_fitting(records, most_bytes);
            }
            if !records.is_empty() {
                self.0.push(EncodedRun::new(shard));
            }
        }
    }
}

/// Runs of several turns for all nodes, to be sent without an answer.
type Live = BTreeMap<usize, Vec<EncodedRun>>;

impl Core {
    /// Takes what shards hand over, in its order.
    pub(super) async fn take_from_shards(self: Rc<Self>) {
        loop {
            let letters = self.inbound.take();
            if letters.is_empty() {
                self.inbound.arrived.notified().await;
                continue;
            }
            let mut live = Live::new();
            // Room is given back when what is sent without an answer is sent.
            let mut charges = Vec::new();
            for letter in letters {
                match letter {
                    FromShard::Messages {
                        shard,
                        outbound,
                        changes,
                    } => charges.push(self.sort(shard, outbound, changes, &mut live)),
                    FromShard::Unreadable { kind, place, error } => {
                        self.cannot_read(kind, place, error);
                    }
                    FromShard::Read { shard, request } => {
                        self.spawn(Rc::clone(&self).read_log(shard, request));
                    }
                    FromShard::Ownership { shard, notes } => self.note_ownership(shard, notes),
                    FromShard::GroupLetters { shard, letters } => {
                        self.send_group_letters(shard, letters);
                    }
                    FromShard::Interest(interest) => self.note_interest(interest),
                    FromShard::HasTold { shard, told, next } => {
                        self.spawn(Rc::clone(&self).told_again(shard, told, next));
                    }
                    FromShard::Ask(reply) => {
                        let core = Rc::clone(&self);
                        self.spawn(async move { (reply.0)(core.report().await) });
                    }
                    FromShard::Key(order) => self.take_key_order(order),
                    FromShard::Question {
                        client_id,
                        question,
                        reply,
                    } => self.spawn(Rc::clone(&self).ask_owner(client_id, question, reply)),
                    FromShard::Drain => self.spawn(Rc::clone(&self).say_that_it_drains()),
                    FromShard::Stop => self.stopping.notify_one(),
                }
            }
            self.send_live(live).await;
            drop(charges);
        }
    }

    /// Sorts what a shard had for other nodes in one turn.
    fn sort(
        &self,
        shard: usize,
        outbound: Outbound,
        changes: Vec<Change>,
        live: &mut Live,
    ) -> Rc<Charge> {
        let Outbound {
            token,
            encoded,
            outgoing,
        } = outbound;
        let charge = Rc::new(Charge {
            gate: Arc::clone(&self.gate),
            bytes: encoded.bytes() + outgoing.iter().map(Outgoing::bytes).sum::<u64>(),
        });
        let part = self.commits.borrow_mut()[shard].open(shard, token);
        let most_bytes = self.batch_bytes();
        let (mut scratch, number) = (Vec::new(), shard as u16);
        let mut live_runs = BTreeMap::<usize, Runs>::new();
        let mut sure_runs = BTreeMap::<usize, Runs>::new();
        let has_outside = self.has_outside();
        let mut push = |recipients: Recipients, records: &[u8]| {
            let is_inside = |node: &usize| !has_outside || *node != OUTSIDE;
            for node in recipients.at_most_once.iter().filter(is_inside) {
                (live_runs.entry(node).or_default()).push(number, records, most_bytes);
            }
            for node in recipients.acknowledged.iter().filter(is_inside) {
                (sure_runs.entry(node).or_default()).push(number, records, most_bytes);
            }
        };
        for (recipients, records) in encoded.parts() {
            push(recipients, records);
        }
        let mut last_exported = None::<Arc<Message>>;
        for Outgoing {
            message,
            destination,
            settles,
        } in outgoing
        {
            let crosses = has_outside && self.settings.crosses(message.topic());
            let destination = match destination {
                // A message of another region may be on its way that is older than this end of it.
                Destination::Absent if crosses => Destination::RetainedQuietly,
                other => other,
            };
            let message = if crosses {
                regions::dated(message)
            } else {
                message
            };
            let is_known = (last_exported.as_ref()).is_some_and(|last| Arc::ptr_eq(last, &message));
            if has_outside && !is_known && self.leaves(&message, destination) {
                let waits = message.qos().is_acknowledged();
                self.export(regions::Waiting {
                    message: Arc::clone(&message),
                    shard: number,
                    name: log::name_in(destination, &message),
                    is_quiet: destination == Destination::RetainedQuietly,
                    part: waits.then(|| self.another(part)),
                    _charge: Rc::clone(&charge),
                });
                last_exported = Some(Arc::clone(&message));
            }
            match destination {
                Destination::Nodes(recipients) => {
                    let mut one = EncodedRun::new(number);
                    one.push(&message, &mut scratch);
                    push(recipients, one.records());
                }
                Destination::Log { once, following } => {
                    if settles.is_some() {
                        let end = self.log.view.end();
                        self.commits.borrow_mut()[shard].appends_from(part, end);
                    }
                    self.log.push(log::Item::Message(log::Waiting {
                        message,
                        shard: number,
                        once,
                        settles,
                        following,
                        part: self.another(part),
                        _charge: Rc::clone(&charge),
                    }));
                }
                Destination::Retained { .. } | Destination::RetainedQuietly => {
                    let waits = message.qos().is_acknowledged();
                    let reached = match destination {
                        Destination::Retained { reached } => self.names_of(reached),
                        _ => String::new(),
                    };
                    self.retain(retained::Waiting {
                        message,
                        shard: number,
                        serial: 0,
                        is_quiet: destination == Destination::RetainedQuietly,
                        reached,
                        over: retained::Over::Any,
                        part: waits.then(|| self.another(part)),
                        _charge: Rc::clone(&charge),
                    });
                }
                Destination::Restored | Destination::Absent => {
                    let is_restored = destination == Destination::Restored;
                    let waits = !is_restored && message.qos().is_acknowledged();
                    self.restore(retained::Waiting {
                        message,
                        shard: number,
                        serial: 0,
                        is_quiet: true,
                        reached: String::new(),
                        over: if is_restored {
                            retained::Over::Nothing
                        } else {
                            retained::Over::Unknown
                        },
                        part: waits.then(|| self.another(part)),
                        _charge: Rc::clone(&charge),
                    });
                }
            }
        }
        for (node, Runs(runs)) in live_runs {
            live.entry(node).or_default().extend(runs);
        }
        for (node, Runs(runs)) in sure_runs {
            let lane = self.lane(node);
            for run in runs {
                let Some(lane) = &lane else {
                    // It went for good since the shard has looked.
                    self.gate.count_dropped(run.messages() as u64);
                    continue;
                };
                let parcel = lanes::Parcel {
                    run,
                    part: Some(self.another(part)),
                    _charge: Some(Rc::clone(&charge)),
                };
                lane.push(parcel);
            }
        }
        if !changes.is_empty() {
            let part = self.another(part);
            self.log.push(log::Item::Records { changes, part });
        }
        self.close(part);
        charge
    }

    /// Whether a message goes to other regions.
    fn leaves(&self, message: &Message, destination: Destination) -> bool {
        match destination {
            Destination::Nodes(recipients) => {
                recipients.acknowledged.contains(OUTSIDE)
                    || recipients.at_most_once.contains(OUTSIDE)
            }
            Destination::Log { .. }
            | Destination::Retained { .. }
            | Destination::RetainedQuietly => self.settings.crosses(message.topic()),
            // Other regions keep what they have.
            Destination::Restored | Destination::Absent => false,
        }
    }

    /// The names of nodes, with blanks between them.
    fn names_of(&self, nodes: NodeSet) -> String {
        let table = self.table.borrow();
        let names: Vec<_> = (nodes.iter())
            .filter_map(|node| table.node(node))
            .map(|(name, _)| name)
            .collect();
        names.join(" ")
    }

    fn another(&self, part: Part) -> Part {
        self.commits.borrow_mut()[part.shard].add(part);
        part
    }

    /// Sends what may be missed: it is dropped while there is no connection.
    async fn send_live(&self, live: Live) {
        let limit = Duration::from_millis(self.settings.answer_timeout_ms);
        for (number, runs) in live {
            let name = self.table.borrow().node(number).map(|(name, _)| name);
            let mut runs = runs.as_slice();
            while !runs.is_empty() {
                let (batch, rest) = runs.split_at(in_one_batch(runs, self.batch_bytes()));
                runs = rest;
                let messages: usize = batch.iter().map(EncodedRun::messages).sum();
                let is_sent = match &name {
                    Some(name) if self.status.is_connected() => {
                        let payload = self.batch(batch);
                        let bytes = payload.len();
                        let subject = format!("to.{name}.{}", self.settings.node);
                        let subject = self.settings.subject(&subject);
                        let sent = self.client.publish(subject, payload);
                        let is_sent = matches!(tokio::time::timeout(limit, sent).await, Ok(Ok(())));
                        if is_sent {
                            self.count_sent(messages, bytes);
                        }
                        is_sent
                    }
                    _ => false,
                };
                if !is_sent {
                    self.gate.count_dropped(messages as u64);
                }
            }
        }
    }

    /// A batch in the highest version that all nodes read.
    pub(super) fn batch<'a>(
        &self,
        runs: impl IntoIterator<Item = &'a EncodedRun> + Clone,
    ) -> Bytes {
        wire::batch(self.table.borrow().version(), runs)
    }

    pub(super) fn count_sent(&self, messages: usize, bytes: usize) {
        self.status.sent_messages.add(messages as u64);
        self.status.sent_batches.add(1);
        self.status.sent_bytes.add(bytes as u64);
    }
}

/// How many of some runs fit a batch; at least one.
pub(super) fn in_one_batch<'a>(
    runs: impl IntoIterator<Item = &'a EncodedRun>,
    most_bytes: usize,
) -> usize {
    let mut bytes = 1;
    let fitting = runs.into_iter().take_while(|run| {
        bytes += run.bytes();
        bytes <= most_bytes
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_batches_keep_their_limit_unless_a_message_is_larger() {
        let mut runs = Runs::default();
        let mut records = Vec::new();
        for bytes in [400, 400, 400, 5_000, 10] {
            let mut one = EncodedRun::new(3);
            one.push_record(&vec![0; bytes]);
            records.extend_from_slice(one.records());
        }
        // Wherever turns end: a run goes on with the next one's.
        let (first, rest) = records.split_at(402);
        runs.push(3, first, 1_000);
        runs.push(3, rest, 1_000);
        let messages: Vec<usize> = runs.0.iter().map(EncodedRun::messages).collect();
        assert_eq!(messages, [2, 1, 1, 1]);
        assert_eq!(in_one_batch(&runs.0, 1_000), 1);
        assert_eq!(in_one_batch(&runs.0, 1_300), 2);
        assert_eq!(in_one_batch(&runs.0[2..], 1_000), 1);
        assert_eq!(in_one_batch(&runs.0, 1_000_000), 4);
    }
}
