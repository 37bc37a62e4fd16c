//! From shards to NATS: messages of a turn are sorted by node, and go there in batches.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sterna_broker::{
    Change, Destination, Encoded, EncodedPart, Message, NodeSet, Outbound, Outgoing, PeerGate,
    Recipients,
};

use super::{Core, lanes, log, regions, retained};
use crate::commits::Part;
use crate::port::FromShard;
use crate::subjects;
use crate::table::OUTSIDE;
use crate::wire::{self, EncodedRun, Records};

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
    /// Appends records of some messages.
    fn push(&mut self, shard: u16, mut records: Records<'_>, most_bytes: usize) {
        let last = self.0.last_mut();
        if last.is_some_and(|last| last.push_all(records, most_bytes)) {
            return;
        }
        while !records.bytes.is_empty() {
            if let Some(last) = self.0.last_mut() {
                records = last.push_fitting(records, most_bytes);
            }
            if !records.bytes.is_empty() {
                self.0.push(EncodedRun::new(shard));
            }
        }
    }
}

/// The fewest bytes of a turn whose own memory is sent. The client of NATS copies smaller payloads anyway. To copy them
/// into a batch with others costs less than one more message of NATS does.
const OWN_BATCH_BYTES: usize = 4_096;

/// Messages for a node that are sent without an answer.
#[derive(Debug)]
pub(super) enum Live {
    /// They go into a batch, with what is beside them.
    Run(EncodedRun),
    /// They are a batch.
    Batch { payload: Bytes, messages: usize },
}

impl Live {
    const fn run(&self) -> Option<&EncodedRun> {
        match self {
            Self::Run(run) => Some(run),
            Self::Batch { .. } => None,
        }
    }
}

/// Messages of several turns for all nodes, of each in their order.
pub(super) type LiveByNode = BTreeMap<usize, Vec<Live>>;

/// The recipients and number of a turn's messages, where its memory becomes a batch. `None` where it does not: an
/// acknowledgement waits, recipients differ, or it is too small or too large.
fn own_batch(turn: &Encoded, most_bytes: usize) -> Option<EncodedPart> {
    let bytes = wire::bytes_of_turn(turn);
    (turn.only_part())
        .filter(|part| part.recipients.acknowledged.is_empty())
        .filter(|_| (OWN_BATCH_BYTES..=most_bytes).contains(&bytes))
}

/// Messages of one turn of a shard, by the nodes that get them.
#[derive(Debug)]
struct ByNode {
    shard: u16,
    /// The version of the wire form.
    version: u8,
    /// The most bytes of a batch.
    most_bytes: usize,
    /// The number of other regions, which have another way; none where there are none.
    outside: NodeSet,
    /// A batch that is before all runs, and the number of its messages.
    batch: Option<(NodeSet, Bytes, usize)>,
    live: BTreeMap<usize, Runs>,
    sure: BTreeMap<usize, Runs>,
}

impl ByNode {
    const fn new(shard: u16, version: u8, most_bytes: usize, outside: NodeSet) -> Self {
        Self {
            shard,
            version,
            most_bytes,
            outside,
            batch: None,
            live: BTreeMap::new(),
            sure: BTreeMap::new(),
        }
    }

    /// Takes what the turn has encoded, before all else of it.
    fn take(&mut self, turn: Encoded) {
        if let Some(part) = own_batch(&turn, self.most_bytes) {
            let nodes = part.recipients.at_most_once;
            let payload = wire::batch_of_turn(self.version, self.shard, turn);
            self.batch = Some((nodes, payload, part.messages));
            return;
        }
        for (part, bytes) in turn.parts() {
            let records = Records {
                bytes,
                count: part.messages,
            };
            self.push(part.recipients, records);
        }
    }

    /// Takes records of some messages.
    fn push(&mut self, recipients: Recipients, records: Records<'_>) {
        for (runs, nodes) in [
            (&mut self.live, recipients.at_most_once),
            (&mut self.sure, recipients.acknowledged),
        ] {
            for node in nodes.without(self.outside).iter() {
                let runs = runs.entry(node).or_default();
                runs.push(self.shard, records, self.most_bytes);
            }
        }
    }

    /// Puts what waits for no answer behind that of earlier turns. Returns all other runs.
    fn sort_into(self, live: &mut LiveByNode) -> impl Iterator<Item = (usize, EncodedRun)> {
        if let Some((nodes, payload, messages)) = self.batch {
            for node in nodes.without(self.outside).iter() {
                let payload = payload.clone();
                let batch = Live::Batch { payload, messages };
                live.entry(node).or_default().push(batch);
            }
        }
        for (node, Runs(runs)) in self.live {
            let runs = runs.into_iter().map(Live::Run);
            live.entry(node).or_default().extend(runs);
        }
        let sure = self.sure.into_iter();
        sure.flat_map(|(node, Runs(runs))| runs.into_iter().map(move |run| (node, run)))
    }
}

/// The next batch for a node, the number of its messages, and all behind it.
fn next_batch(version: u8, most_bytes: usize, waiting: &[Live]) -> Option<(Bytes, usize, &[Live])> {
    if let Live::Batch { payload, messages } = waiting.first()? {
        return Some((payload.clone(), *messages, &waiting[1..]));
    }
    let runs = waiting.iter().map_while(Live::run);
    let count = in_one_batch(runs.clone(), most_bytes);
    let runs = runs.take(count);
    let messages = runs.clone().map(EncodedRun::messages).sum();
    Some((wire::batch(version, runs), messages, &waiting[count..]))
}

impl Core {
    /// Takes what shards hand over, in its order.
    pub(super) async fn take_from_shards(self: Rc<Self>) {
        loop {
            let letters = self.inbound.take();
            if letters.is_empty() {
                self.inbound.arrived.notified().await;
                continue;
            }
            let mut live = LiveByNode::new();
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
                    FromShard::Bans(records) => self.keep_bans(records),
                    FromShard::HasTold { shard, told, next } => {
                        self.spawn(Rc::clone(&self).told_again(shard, told, next));
                    }
                    FromShard::Ask(reply) => {
                        let core = Rc::clone(&self);
                        self.spawn(async move { (reply.0)(core.report().await) });
                    }
                    FromShard::SetReplicas(replicas, reply) => {
                        let core = Rc::clone(&self);
                        self.spawn(async move { (reply.0)(core.set_replicas(replicas).await) });
                    }
                    FromShard::Key(order) => self.take_key_order(order),
                    FromShard::Question {
                        name,
                        question,
                        reply,
                    } => self.spawn(Rc::clone(&self).ask_owner(name, question, reply)),
                    FromShard::AskNode(question) => {
                        self.spawn(Rc::clone(&self).ask_node(question));
                    }
                    FromShard::Drain => self.spawn(Rc::clone(&self).say_that_it_drains()),
                    FromShard::Stop { by } => {
                        self.stops_by.set(Some(by));
                        self.stopping.notify_one();
                    }
                }
            }
            self.send_live(live).await;
            drop(charges);
        }
    }

    /// Sorts what a shard had for other nodes in one turn.
    pub(super) fn sort(
        &self,
        shard: usize,
        outbound: Outbound,
        changes: Vec<Change>,
        live: &mut LiveByNode,
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
        let number = shard as u16;
        let has_outside = self.has_outside();
        let mut outside = NodeSet::EMPTY;
        if has_outside {
            outside.insert(OUTSIDE);
        }
        let version = self.version();
        let mut by_node = ByNode::new(number, version, self.batch_bytes(), outside);
        by_node.take(encoded);
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
                regions::dated(message, self.wall_ms())
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
                    one.push(&message, false);
                    by_node.push(recipients, one.as_records());
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
        for (node, run) in by_node.sort_into(live) {
            let Some(lane) = self.lane(node) else {
                // It went for good since the shard has looked.
                self.gate.count_dropped(run.messages() as u64);
                continue;
            };
            lane.push(lanes::Parcel {
                run,
                part: Some(self.another(part)),
                _charge: Some(Rc::clone(&charge)),
            });
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

    /// The next batch for a node, the number of its messages, and all behind it.
    pub(super) fn next_live<'a>(&self, waiting: &'a [Live]) -> Option<(Bytes, usize, &'a [Live])> {
        next_batch(self.version(), self.batch_bytes(), waiting)
    }

    /// Sends what may be missed: it is dropped while there is no connection.
    async fn send_live(&self, live: LiveByNode) {
        for (number, waiting) in live {
            let name = self.table.borrow().node(number).map(|(name, _)| name);
            let mut waiting = waiting.as_slice();
            while let Some((payload, messages, rest)) = self.next_live(waiting) {
                waiting = rest;
                let bytes = payload.len();
                let is_sent = match &name {
                    Some(name) if self.status.is_connected() => self.publish(name, payload).await,
                    _ => false,
                };
                if is_sent {
                    self.count_sent(messages, bytes);
                } else {
                    self.gate.count_dropped(messages as u64);
                }
            }
        }
    }

    /// Whether the client of NATS has taken a batch for a node.
    async fn publish(&self, node: &str, payload: Bytes) -> bool {
        let limit = Duration::from_millis(self.settings.answer_timeout_ms);
        let subject = subjects::to(node, &self.settings.node);
        let sent = (self.client).publish(self.settings.subject(&subject), payload);
        matches!(tokio::time::timeout(limit, sent).await, Ok(Ok(())))
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
    use sterna_broker::MessageHeader;

    use super::*;

    const MOST_BYTES: usize = 20_000;

    fn set(nodes: &[usize]) -> NodeSet {
        let mut set = NodeSet::EMPTY;
        for node in nodes {
            set.insert(*node);
        }
        set
    }

    fn to(at_most_once: &[usize], acknowledged: &[usize]) -> Recipients {
        Recipients {
            acknowledged: set(acknowledged),
            at_most_once: set(at_most_once),
        }
    }

    /// A turn with a message for each of some recipients. Their topics begin with a name, and end with a number.
    fn turn(name: &str, payload_bytes: usize, recipients: &[Recipients]) -> Encoded {
        let mut turn = Encoded::default();
        for (number, recipients) in recipients.iter().enumerate() {
            let topic = format!("{name}{number}");
            let payload = vec![7; payload_bytes];
            let message = Message::copy(&topic, &[], &payload, MessageHeader::default());
            turn.push(message.expect("it fits").parts(), *recipients, 1, false);
        }
        turn
    }

    /// The topics of each batch that a node gets of some turns of a shard, with the batches' payloads.
    fn sent(live: &LiveByNode, node: usize) -> Vec<(String, Bytes)> {
        let mut batches = Vec::new();
        let mut waiting = live.get(&node).map_or(&[][..], Vec::as_slice);
        while let Some((payload, messages, rest)) = next_batch(1, MOST_BYTES, waiting) {
            waiting = rest;
            assert!(payload.len() <= MOST_BYTES);
            let runs = wire::read(wire::READS, &payload).expect("it is a batch");
            let found = runs.iter().flat_map(|run| &run.messages);
            let topics: Vec<&str> = found.map(Message::topic).collect();
            assert_eq!(topics.len(), messages);
            batches.push((topics.join(" "), payload));
        }
        batches
    }

    fn topics(live: &LiveByNode, node: usize) -> Vec<String> {
        let batches = sent(live, node).into_iter();
        batches.map(|(topics, _)| topics).collect()
    }

    /// Sorts turns. Returns what waits for no answer, and the messages of each other run, with its node.
    fn sorted(turns: Vec<Encoded>, outside: NodeSet) -> (LiveByNode, Vec<(usize, usize)>) {
        let (mut live, mut sure) = (LiveByNode::new(), Vec::new());
        for turn in turns {
            let mut by_node = ByNode::new(3, 1, MOST_BYTES, outside);
            by_node.take(turn);
            let runs = by_node.sort_into(&mut live);
            sure.extend(runs.map(|(node, run)| (node, run.messages())));
        }
        (live, sure)
    }

    #[test]
    fn a_turn_for_the_same_nodes_is_one_batch_for_all_of_them_without_a_copy() {
        let recipients = [to(&[1, 4, 63], &[]); 3];
        let large = turn("a", 5_000, &recipients);
        let records = large.parts().next().map(|(_, records)| records.as_ptr());
        let (live, sure) = sorted(vec![large], set(&[63]));
        assert!(sure.is_empty());
        assert_eq!(live.len(), 2, "other regions have another way");
        for node in [1, 4] {
            let batches = sent(&live, node);
            assert_eq!(batches.len(), 1);
            let (topics, payload) = &batches[0];
            assert_eq!(topics, "a0 a1 a2");
            let memory = payload.as_ptr_range();
            assert!(memory.contains(&records.expect("a part")));
        }
    }

    #[test]
    fn only_a_turn_that_fits_and_waits_for_nothing_is_a_batch_by_itself() {
        let [one, other] = [to(&[1], &[]), to(&[2], &[])];
        let is_own = |turn: &Encoded, most_bytes| own_batch(turn, most_bytes).is_some();
        let large = turn("a", 5_000, &[one, one]);
        let bytes = wire::bytes_of_turn(&large);
        assert!(is_own(&large, bytes));
        assert!(!is_own(&large, bytes - 1), "it is too large");
        assert!(!is_own(&turn("a", 5_000, &[one, other]), MOST_BYTES));
        let sure = to(&[], &[1]);
        for recipients in [sure, to(&[1], &[2])] {
            assert!(!is_own(&turn("a", 5_000, &[recipients]), MOST_BYTES));
        }
        let overhead = wire::bytes_of_turn(&turn("a", 4_000, &[one])) - 4_000;
        let of_bytes = |bytes| turn("a", bytes - overhead, &[one]);
        assert!(is_own(&of_bytes(OWN_BATCH_BYTES), MOST_BYTES));
        assert!(!is_own(&of_bytes(OWN_BATCH_BYTES - 1), MOST_BYTES));
        assert!(!is_own(&Encoded::default(), MOST_BYTES));
    }

    #[test]
    fn turns_keep_their_order_on_the_way_to_each_node() {
        let [one, other, both] = [to(&[1], &[]), to(&[2], &[]), to(&[1, 2], &[])];
        let turns = vec![
            turn("a", 10, &[one, other]),
            turn("b", 10, &[both, one]),
            turn("c", 5_000, &[both]),
            turn("d", 5_000, &[both, both]),
            turn("e", 10, &[other]),
            turn("f", 5_000, &[one, other, to(&[1], &[2])]),
            turn("g", 9_000, &[both, both, both]),
            turn("h", 10, &[to(&[], &[1, 2])]),
        ];
        let (live, sure) = sorted(turns, NodeSet::EMPTY);
        assert_eq!(
            topics(&live, 1),
            ["a0 b0 b1", "c0", "d0 d1", "f0 f2", "g0 g1", "g2"]
        );
        assert_eq!(
            topics(&live, 2),
            ["a1 b0", "c0", "d0 d1", "e0 f1", "g0 g1", "g2"]
        );
        assert_eq!(sure, [(2, 1), (1, 1), (2, 1)]);
        assert!(topics(&live, 3).is_empty());
    }

    #[test]
    fn runs_and_batches_keep_their_limit_unless_a_message_is_larger() {
        let mut runs = Runs::default();
        let mut records = Vec::new();
        for bytes in [400, 400, 400, 5_000, 10] {
            let mut one = EncodedRun::new(3);
            one.push_record(&vec![0; bytes]);
            records.extend_from_slice(one.as_records().bytes);
        }
        // Wherever turns end: a run goes on with the next one's.
        let (first, rest) = records.split_at(402);
        let records = |bytes, count| Records { bytes, count };
        runs.push(3, records(first, 1), 1_000);
        runs.push(3, records(rest, 4), 1_000);
        let messages: Vec<usize> = runs.0.iter().map(EncodedRun::messages).collect();
        assert_eq!(messages, [2, 1, 1, 1]);
        assert_eq!(in_one_batch(&runs.0, 1_000), 1);
        assert_eq!(in_one_batch(&runs.0, 1_300), 2);
        assert_eq!(in_one_batch(&runs.0[2..], 1_000), 1);
        assert_eq!(in_one_batch(&runs.0, 1_000_000), 4);
    }
}
