//! Nodes of a cluster with members of a shared subscription, or consumers of a queue, in virtual time. There are nodes that
//! die or stand still, letters that are late or lost, and a model of the log, the records and the owners. From a seed come
//! all of these.
//!
//! What a member has is checked: a message is with one at a time, and none that was acknowledged is missing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use sterna_broker::{
    Change, ClaimRefusal, Close, ConsumerId, Delivery, GroupLetter, Limits, OpenSession, Opened,
    Outcome, Ownership, Peer, PeerGate, Qos, QueueRules, Record, Routed, SessionName, Share,
    group_of_letter, name_of,
};

use crate::cluster::{Client, message, named, qos, text};
use crate::log_node::{Log, LogNode, Records, SHARDS, record_list};
use crate::random::Random;

pub(crate) const NODES: usize = 3;
pub(crate) const GROUP: &str = "$share/g/t";
/// The topic of a queue's dead letters.
pub(crate) const DEAD: &str = "dead";
const LINGER_MS: u64 = 3_600_000;

/// A letter between nodes, and whether one before it was lost.
type Posted = (Vec<u8>, bool);

pub(crate) struct Member {
    pub(crate) client: Client,
    /// Sent and not acknowledged: tag and number of the message.
    pub(crate) unsettled: VecDeque<(u64, u64)>,
}

pub(crate) struct Node {
    own: Peer,
    pub(crate) site: LogNode,
    /// The epoch in which it has the root, or had it as far as it knows.
    pub(crate) epoch: u64,
    pub(crate) members: Vec<Member>,
    is_paused: bool,
    /// Whether it was given up while it stood still, and is to find that out.
    has_lapsed: bool,
    lapses: u64,
}

#[derive(Default)]
struct Register {
    epoch: u64,
    records: Records,
    owner: Option<Peer>,
}

pub(crate) struct World {
    random: Random,
    with_fence: bool,
    /// Of a queue: its rules.
    rules: Option<QueueRules>,
    limits: Limits,
    pub(crate) log: Log,
    register: Register,
    pub(crate) nodes: Vec<Node>,
    incarnations: u64,
    sure: BTreeSet<Peer>,
    mail: BTreeMap<(usize, usize), VecDeque<Posted>>,
    names: u64,
    pub(crate) published: u64,
    waiting: Vec<(usize, usize, u64, u64)>,
    pub(crate) acknowledged: BTreeSet<u64>,
    /// Who has a message: its node's process, and its client.
    pub(crate) holders: BTreeMap<u64, (Peer, Client)>,
    pub(crate) done: BTreeMap<u64, usize>,
    roots: BTreeSet<u64>,
    fault: Option<String>,
    /// Whether members take all that they get.
    pub(crate) takes_all: bool,
    /// Bytes of the largest letter between nodes.
    pub(crate) largest_letter: usize,
}

/// The largest body that can be brought to another node.
pub(crate) const LARGEST_BODY_BYTES: usize = 100_000;

impl World {
    pub(crate) fn new(seed: u64, with_fence: bool) -> Self {
        Self::with(seed, with_fence, None, Limits::default())
    }

    pub(crate) fn with(
        seed: u64,
        with_fence: bool,
        rules: Option<QueueRules>,
        limits: Limits,
    ) -> Self {
        let mut world = Self {
            rules,
            limits,
            random: Random::from_seed(seed),
            with_fence,
            log: Log::default(),
            register: Register::default(),
            nodes: Vec::new(),
            incarnations: 0,
            sure: BTreeSet::new(),
            mail: BTreeMap::new(),
            names: 0,
            published: 0,
            waiting: Vec::new(),
            acknowledged: BTreeSet::new(),
            holders: BTreeMap::new(),
            done: BTreeMap::new(),
            roots: BTreeSet::new(),
            fault: None,
            takes_all: false,
            largest_letter: 0,
        };
        for at in 0..NODES {
            let node = world.start(at);
            world.nodes.push(node);
        }
        for at in 0..NODES {
            world.tell_roll(at);
        }
        world
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn start(&mut self, at: usize) -> Node {
        let limits = Limits {
            group_window: 2,
            // One node has less room than its members want.
            branch_messages: if at == 0 { 3 } else { 16 },
            ..self.limits.clone()
        };
        let gate = PeerGate::new(1 << 30);
        gate.set_largest_body_bytes(LARGEST_BODY_BYTES as u64);
        self.incarnations += 1;
        let own = Peer {
            node: format!("n{at}").into(),
            incarnation: self.incarnations,
        };
        self.sure.insert(own.clone());
        let mut site = LogNode::start(&self.log, limits, gate);
        if let Some(rules) = &self.rules {
            let now_ms = site.cluster.now_ms;
            let broker = site.cluster.broker(0);
            let declared = broker.declare_queue(now_ms, GROUP, rules.clone());
            declared.expect("a valid queue");
            site.cluster.collect(0);
            site.cluster.run();
        }
        Node {
            own,
            site,
            epoch: 0,
            members: Vec::new(),
            is_paused: false,
            has_lapsed: false,
            lapses: 0,
        }
    }

    pub(crate) fn tell_roll(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let (own, sure): (_, Vec<Peer>) = (node.own.clone(), self.sure.iter().cloned().collect());
        for shard in 0..SHARDS {
            let now_ms = node.site.cluster.now_ms;
            (node.site.cluster.broker(shard)).set_roll(
                now_ms,
                own.clone(),
                Some(sure.clone()),
                LINGER_MS,
            );
            node.site.cluster.collect(shard);
        }
        self.end_turn(at);
    }

    /// The end of a turn of all shards of a node.
    pub(crate) fn end_turn(&mut self, at: usize) {
        for _ in 0..3 {
            let site = &mut self.nodes[at].site;
            site.poll_stores();
            site.cluster.run();
            self.settle_claims(at);
        }
        let site = &mut self.nodes[at].site;
        let mut letters = Vec::new();
        for shard in 0..SHARDS {
            letters.extend(site.cluster.broker(shard).take_group_letters());
            site.hand_over(shard);
            site.cluster.collect(shard);
        }
        for GroupLetter { to, record } in letters {
            self.largest_letter = self.largest_letter.max(record.len());
            for other in (0..NODES).filter(|&other| other != at) {
                let is_for = to.as_ref().is_none_or(|to| **to == *format!("n{other}"));
                if is_for {
                    let mail = self.mail.entry((at, other)).or_default();
                    mail.push_back((record.clone(), false));
                }
            }
        }
    }

    /// Members' sessions are nobody else's; the root is whose it may be.
    fn settle_claims(&mut self, at: usize) {
        for note in std::mem::take(&mut self.nodes[at].site.cluster.notes) {
            match note {
                Ownership::Claim {
                    session,
                    if_free,
                    name,
                    ..
                } => {
                    let home = Share::home(name.text(), SHARDS);
                    if !if_free {
                        continue; // see `join`
                    }
                    let own = self.nodes[at].own.clone();
                    let owner = self.register.owner.clone();
                    let is_anothers =
                        owner.is_some_and(|owner| owner != own && self.sure.contains(&owner));
                    let records = (!is_anothers).then(|| self.take_records(at));
                    let cluster = &mut self.nodes[at].site.cluster;
                    let now_ms = cluster.now_ms;
                    let broker = cluster.broker(home);
                    if let Some(records) = records {
                        broker.session_restored(now_ms, session, records);
                    } else {
                        let refusal = Err(ClaimRefusal::TakenOver);
                        broker.session_claimed(now_ms, session, refusal);
                    }
                    cluster.collect(home);
                    cluster.run();
                }
                Ownership::Release { name }
                    if name.id().starts_with('\0')
                        && self.register.owner.as_ref() == Some(&self.nodes[at].own) =>
                {
                    self.register.owner = None;
                }
                _ => {}
            }
        }
    }

    fn take_records(&mut self, at: usize) -> Vec<Record> {
        self.take_turns(at, usize::MAX);
        self.register.epoch += 1;
        self.roots.insert(self.register.epoch);
        self.nodes[at].epoch = self.register.epoch;
        self.register.owner = Some(self.nodes[at].own.clone());
        self.nodes[at]
            .site
            .records
            .clone_from(&self.register.records);
        // It has seen the log as far as its predecessor can have.
        let end = self.log.lock().expect("unharmed").len();
        self.follow(at, end);
        record_list(&self.register.records)
    }

    /// The model takes some turns of a node, in their order.
    pub(crate) fn take_turns(&mut self, at: usize, count: usize) {
        let is_of_root = |change: &Change| {
            name_of(&change.key)
                .and_then(SessionName::of_text)
                .is_some_and(|name| name.id().starts_with('\0'))
        };
        for _ in 0..count {
            let node = &mut self.nodes[at];
            let Some(is_changed) = node.site.take_turn(is_of_root) else {
                break;
            };
            let is_late = node.epoch < self.register.epoch && self.with_fence;
            if is_changed && !is_late {
                self.register.records.clone_from(&node.site.records);
            }
        }
        let site = &self.nodes[at].site;
        self.waiting.retain(|&(node, shard, token, which)| {
            let waits = node != at || !site.has_kept(shard, token);
            if !waits {
                self.acknowledged.insert(which);
            }
            waits
        });
    }

    pub(crate) fn follow(&mut self, at: usize, count: usize) {
        for _ in 0..count {
            let site = &mut self.nodes[at].site;
            if !site.follow() {
                break;
            }
            site.cluster.run();
        }
    }

    pub(crate) fn publish(&mut self, at: usize) {
        // Before the group is there nobody wants it.
        if !self.register.records.is_empty() {
            self.publish_now(at);
        }
    }

    /// Publishes a text at a node.
    pub(crate) fn publish_text(&mut self, at: usize, payload: &str, level: Qos) -> Routed {
        let cluster = &mut self.nodes[at].site.cluster;
        let routed = cluster.send(0, None, message("t", payload, level, false));
        cluster.run();
        self.end_turn(at);
        routed
    }

    pub(crate) fn publish_now(&mut self, at: usize) {
        let shard = self.below(u64::from(SHARDS)) as u16;
        self.published += 1;
        let number = self.published;
        let node = &mut self.nodes[at];
        let message = message("t", &number.to_string(), Qos::AtLeastOnce, false);
        let routed = node.site.cluster.send(shard, None, message);
        assert!(routed.token > 0, "somebody wants it in the log");
        self.waiting
            .push((at, usize::from(shard), routed.token, number));
        self.end_turn(at);
    }

    pub(crate) fn deliver(&mut self, from: usize, to: usize) {
        let Some((record, follows_lost)) =
            self.mail.get_mut(&(from, to)).and_then(VecDeque::pop_front)
        else {
            return;
        };
        let home = Share::home(group_of_letter(&record).expect("a letter"), SHARDS);
        let node: Arc<str> = format!("n{from}").into();
        let cluster = &mut self.nodes[to].site.cluster;
        let now_ms = cluster.now_ms;
        if follows_lost {
            for shard in 0..SHARDS {
                cluster.broker(shard).group_letters_missed(now_ms, &node);
                cluster.collect(shard);
            }
        }
        assert!(cluster.broker(home).group_letter(now_ms, &node, &record));
        cluster.collect(home);
        self.end_turn(to);
    }

    /// All letters for a node arrive.
    fn deliver_all(&mut self, to: usize) {
        for from in (0..NODES).filter(|&from| from != to) {
            while (self.mail.get(&(from, to))).is_some_and(|mail| !mail.is_empty()) {
                self.deliver(from, to);
            }
        }
    }

    /// All that is under way arrives at the nodes that do not stand still, and nobody reads.
    pub(crate) fn calm_down(&mut self) {
        for _ in 0..20 {
            for at in 0..NODES {
                if self.nodes[at].is_paused {
                    continue;
                }
                self.take_turns(at, usize::MAX);
                self.follow(at, usize::MAX);
                self.nodes[at].site.cluster.pass(100);
                self.end_turn(at);
                self.deliver_all(at);
            }
        }
    }

    /// A node dies, and another process starts in its place. The others hear of it.
    pub(crate) fn replace(&mut self, at: usize) {
        self.kill(at);
        self.lease_over();
        for other in 0..NODES {
            self.tell_roll(other);
        }
        self.calm_down();
    }

    /// Others take a process for gone that lives, and hear of it again.
    pub(crate) fn doubt(&mut self, at: usize) {
        let own = self.nodes[at].own.clone();
        for is_sure in [false, true] {
            if is_sure {
                self.sure.insert(own.clone());
            } else {
                self.sure.remove(&own);
            }
            for other in (0..NODES).filter(|&other| other != at) {
                self.tell_roll(other);
            }
        }
    }

    /// A node dies, and another process starts in its place. The root's node has heard of the new one, and gives messages
    /// to the old one meanwhile. The letter comes to the new one, which has attended `attendances` times. Returns what the
    /// new one's member is sent by that, and all that members have when the old one is gone.
    pub(crate) fn give_to_the_process_before(&mut self, attendances: u64) -> [Vec<String>; 2] {
        for at in [0, 1] {
            self.join(at);
            self.calm_down();
        }
        let owner = self.owner();
        let other = 1 - owner;
        self.kill_within_lease(other, false);
        self.join(other);
        self.end_turn(other);
        for _ in 0..attendances {
            // It seeks the root, which says that it is there.
            self.tell_roll(other);
            self.deliver(other, owner);
        }
        for number in 1..=4 {
            self.publish_text(owner, &number.to_string(), Qos::AtLeastOnce);
        }
        self.take_turns(owner, usize::MAX);
        self.follow(owner, usize::MAX);
        self.end_turn(owner);
        self.deliver_all(other);
        let early: Vec<String> = self.take(other, 0).iter().map(text).collect();
        self.lease_over();
        for at in 0..NODES {
            self.tell_roll(at);
        }
        self.calm_down();
        let mut had = early.clone();
        for at in [owner, other] {
            had.extend(self.take(at, 0).iter().map(text));
        }
        had.sort_unstable();
        [early, had]
    }

    /// A second member comes to a node whose branch has attended anew and waits for the answer. How many of six messages
    /// members of the root's node and of the other one have then.
    pub(crate) fn join_before_the_answer(&mut self) -> [usize; 2] {
        for at in [0, 1] {
            self.join(at);
            self.calm_down();
        }
        let owner = self.owner();
        let other = 1 - owner;
        let cluster = &mut self.nodes[other].site.cluster;
        for shard in 0..SHARDS {
            let now_ms = cluster.now_ms;
            (cluster.broker(shard)).group_letters_missed(now_ms, &format!("n{owner}"));
            cluster.collect(shard);
        }
        self.join(other);
        self.end_turn(other);
        self.calm_down();
        for number in 1..=6 {
            self.publish_text(owner, &number.to_string(), Qos::AtLeastOnce);
        }
        self.calm_down();
        let both: usize = (0..2).map(|which| self.take(other, which).len()).sum();
        [self.take(owner, 0).len(), both]
    }

    /// Whether a node has the root.
    pub(crate) const fn has_root(&self) -> bool {
        self.register.owner.is_some()
    }

    /// The node that has the root.
    pub(crate) fn owner(&self) -> usize {
        let owner = self.register.owner.as_ref().expect("a node has the root");
        let mut nodes = self.nodes.iter();
        (nodes.position(|node| node.own == *owner)).expect("its process lives")
    }

    /// What a member can be sent now.
    pub(crate) fn take(&mut self, at: usize, which: usize) -> Vec<Delivery> {
        let client = self.nodes[at].members[which].client;
        let deliveries = self.nodes[at].site.cluster.take(client);
        self.end_turn(at);
        deliveries
    }

    /// A delivery of a member ends, and what follows happens.
    pub(crate) fn settle(&mut self, at: usize, which: usize, tag: u64, outcome: Outcome) {
        self.settle_all(at, which, vec![(tag, outcome)]);
    }

    /// The same for deliveries that end in one turn.
    pub(crate) fn settle_all(&mut self, at: usize, which: usize, ended: Vec<(u64, Outcome)>) {
        let client = self.nodes[at].members[which].client;
        for (tag, outcome) in ended {
            self.nodes[at].site.cluster.settle(client, tag, outcome);
        }
        self.end_turn(at);
        self.calm_down();
    }

    /// A letter does not arrive, which is noticed by the next.
    fn lose(&mut self, from: usize, to: usize) {
        if let Some(mail) = self.mail.get_mut(&(from, to))
            && mail.len() > 1
        {
            mail.pop_front();
            mail[0].1 = true;
        }
    }

    pub(crate) fn join(&mut self, at: usize) {
        self.names += 1;
        let name = format!("m{}", self.names);
        self.join_as(at, &name, false);
        if let Some(member) = self.nodes[at].members.last() {
            let client = member.client;
            let level = qos(Qos::AtLeastOnce);
            let cluster = &mut self.nodes[at].site.cluster;
            cluster.subscribe(client, GROUP, level);
        }
    }

    /// A client comes that is no member yet.
    pub(crate) fn join_as(&mut self, at: usize, name: &str, on_demand: bool) {
        let shard = self.below(u64::from(SHARDS)) as u16;
        let cluster = &mut self.nodes[at].site.cluster;
        let request = OpenSession {
            name: SessionName::new(None, name),
            clean_start: true,
            expiry_s: 0,
            consumer: ConsumerId::default(),
            will: None,
            on_demand,
            selector: None,
        };
        let (consumer, opened) = cluster.start_request(shard, request);
        cluster.run();
        let (Opened::Pending { session } | Opened::Ready { session, .. }) = opened;
        let now_ms = cluster.now_ms;
        cluster
            .broker(shard)
            .session_claimed(now_ms, session, Ok(()));
        cluster.collect(shard);
        cluster.run();
        let client = Client {
            shard,
            key: session,
            consumer,
            present: false,
        };
        self.nodes[at].members.push(Member {
            client,
            unsettled: VecDeque::new(),
        });
    }

    fn members(&self) -> usize {
        self.nodes.iter().map(|node| node.members.len()).sum()
    }

    pub(crate) fn leave(&mut self, at: usize) {
        let count = self.nodes[at].members.len();
        // A group ends with the last member that its root has heard of.
        let is_quiet = self.mail.values().all(VecDeque::is_empty)
            && self.nodes.iter().all(|node| !node.is_paused);
        if count == 0 || self.members() < 2 || (count == 1 && !is_quiet) {
            return;
        }
        let which = self.below(count as u64) as usize;
        self.leave_now(at, which);
    }

    /// A member's connection is lost.
    pub(crate) fn leave_now(&mut self, at: usize, which: usize) {
        self.leave_with(at, which, Close::LOST);
    }

    /// A member's connection ends.
    pub(crate) fn leave_with(&mut self, at: usize, which: usize, close: Close) {
        let member = self.nodes[at].members.swap_remove(which);
        for (_, number) in member.unsettled {
            self.holders.remove(&number);
        }
        self.nodes[at].site.cluster.close(member.client, close);
        self.end_turn(at);
    }

    /// Members of a node read, and acknowledge some of it.
    pub(crate) fn read(&mut self, at: usize) {
        let own = self.nodes[at].own.clone();
        for which in 0..self.nodes[at].members.len() {
            let client = self.nodes[at].members[which].client;
            for _ in 0..self.below(4) {
                let Some(delivery) = self.nodes[at].site.cluster.next(client) else {
                    break;
                };
                self.nodes[at].site.cluster.run();
                let number: u64 = text(&delivery).parse().expect("a number");
                if let Some((peer, holder)) = self.holders.get(&number)
                    && self.sure.contains(peer)
                {
                    let text = format!(
                        "{number} is with {holder:?} of {peer:?}, and {client:?} of {own:?}"
                    );
                    self.fault.get_or_insert(text);
                }
                self.holders.insert(number, (own.clone(), client));
                self.nodes[at].members[which]
                    .unsettled
                    .push_back((delivery.tag, number));
            }
            for _ in 0..self.below(4) {
                let outcome = self.outcome();
                let member = &mut self.nodes[at].members[which];
                let Some((tag, number)) = member.unsettled.pop_front() else {
                    break;
                };
                self.nodes[at].site.cluster.settle(client, tag, outcome);
                if (self.holders.get(&number))
                    .is_some_and(|(_, holder)| holder.consumer == client.consumer)
                {
                    self.holders.remove(&number);
                }
                if outcome == Outcome::Accepted {
                    *self.done.entry(number).or_default() += 1;
                }
            }
        }
        self.end_turn(at);
    }

    /// How a delivery ends. Members of a group that is no queue take what they get.
    fn outcome(&mut self) -> Outcome {
        if self.rules.is_none() || self.takes_all {
            return Outcome::Accepted;
        }
        match self.below(16) {
            0 => Outcome::Rejected(0x80),
            1 => Outcome::Released,
            2..=4 => Outcome::Failed,
            5 => Outcome::Undeliverable,
            _ => Outcome::Accepted,
        }
    }

    /// The numbers of messages that are dead letters in the log, with how many there are of each.
    pub(crate) fn dead_letters(&self) -> BTreeMap<u64, usize> {
        let mut found = BTreeMap::new();
        for number in self.letters() {
            *found.entry(number).or_default() += 1;
        }
        found
    }

    /// The numbers of the dead letters, in the order of the log.
    pub(crate) fn letters(&self) -> Vec<u64> {
        let log = self.log.lock().expect("unharmed");
        let letters = log.iter().filter(|message| message.topic() == DEAD);
        let number = |payload: &[u8]| {
            let text = String::from_utf8_lossy(payload);
            text.split(' ').next().and_then(|one| one.parse().ok())
        };
        letters
            .map(|message| number(message.payload()).expect("a number"))
            .collect()
    }

    pub(crate) fn kill(&mut self, at: usize) {
        self.waiting.retain(|&(node, ..)| node != at);
        let members = std::mem::take(&mut self.nodes[at].members);
        for (_, number) in members.into_iter().flat_map(|member| member.unsettled) {
            self.holders.remove(&number);
        }
        let node = self.start(at);
        self.nodes[at] = node;
        self.tell_roll(at);
    }

    /// The lease of processes is over that are dead or stand still.
    pub(crate) fn lease_over(&mut self) {
        for node in &mut self.nodes {
            node.has_lapsed |= node.is_paused;
        }
        let live: BTreeSet<Peer> = (self.nodes.iter())
            .filter(|node| !node.is_paused)
            .map(|node| node.own.clone())
            .collect();
        self.sure.retain(|peer| live.contains(peer));
    }

    /// A node dies, and another process starts in its place. The lease of the one that died is over, or is not.
    pub(crate) fn kill_within_lease(&mut self, at: usize, is_over: bool) {
        let own = self.nodes[at].own.clone();
        self.kill(at);
        if is_over {
            self.sure.remove(&own);
        }
        for other in 0..NODES {
            self.tell_roll(other);
        }
    }

    fn go_on(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.is_paused = false;
        if !std::mem::take(&mut node.has_lapsed) {
            return;
        }
        self.sure.insert(node.own.clone());
        // What its members were sent may be others' by now, and settles nothing then. Roots say which, later.
        let sent = node.members.iter().flat_map(|member| &member.unsettled);
        for (_, number) in sent {
            if (self.holders.get(number)).is_some_and(|(peer, _)| *peer == node.own) {
                self.holders.remove(number);
            }
        }
        if !self.with_fence {
            return;
        }
        node.lapses += 1;
        let (lapses, now_ms) = (node.lapses, node.site.cluster.now_ms);
        let is_lost = node.epoch != 0 && self.register.owner.as_ref() != Some(&node.own);
        for shard in 0..SHARDS {
            node.site
                .cluster
                .broker(shard)
                .look_at_fence(now_ms, true, lapses);
            if is_lost {
                let root = named(&format!("\0{GROUP}"));
                node.site.cluster.broker(shard).lose_session(now_ms, &root);
            }
            node.site.cluster.collect(shard);
        }
        node.site.cluster.run();
        // Its members send and settle meanwhile as they like.
        self.read(at);
        let node = &mut self.nodes[at];
        for shard in 0..SHARDS {
            node.site
                .cluster
                .broker(shard)
                .look_at_fence(now_ms, false, lapses);
            node.site.cluster.collect(shard);
        }
        self.end_turn(at);
    }

    pub(crate) fn step(&mut self) {
        let at = self.below(NODES as u64) as usize;
        let other = (at + 1 + self.below(NODES as u64 - 1) as usize) % NODES;
        if self.nodes[at].is_paused {
            if self.below(3) == 0 {
                self.lease_over();
            } else if self.below(6) == 0 {
                self.go_on(at);
            }
            return;
        }
        match self.below(40) {
            0..=7 => self.publish(at),
            8..=9 => {
                let count = self.below(4) as usize;
                self.take_turns(at, count);
                self.end_turn(at);
            }
            10..=13 => {
                let count = self.below(8) as usize;
                self.follow(at, count);
                self.end_turn(at);
            }
            14..=19 => self.read(at),
            20..=29 => {
                for _ in 0..self.below(4) {
                    self.deliver(other, at);
                }
            }
            30 if self.nodes[at].members.len() < 3 => {
                self.join(at);
                self.end_turn(at);
            }
            31 => self.leave(at),
            32 if self.below(4) == 0 => self.kill(at),
            33 if self.below(3) == 0 => self.nodes[at].is_paused = true,
            34 => self.lease_over(),
            35 => self.tell_roll(at),
            36 if self.below(2) == 0 => self.lose(other, at),
            _ => {
                let for_ms = self.below(800);
                self.nodes[at].site.cluster.pass(for_ms);
                self.end_turn(at);
            }
        }
        for broker in &self.nodes[at].site.cluster.brokers {
            broker.check();
        }
    }

    /// Everything comes to rest, and members read all of it.
    pub(crate) fn rest(&mut self) {
        self.takes_all = true;
        for at in 0..NODES {
            if self.nodes[at].is_paused {
                self.lease_over();
                self.go_on(at);
            }
        }
        self.lease_over();
        for at in 0..NODES {
            self.tell_roll(at);
            self.join(at);
            self.end_turn(at);
        }
        for _ in 0..60 {
            for at in 0..NODES {
                self.take_turns(at, usize::MAX);
                self.follow(at, usize::MAX);
                self.nodes[at].site.cluster.pass(100);
                self.end_turn(at);
                self.deliver_all(at);
                self.read(at);
            }
        }
    }

    pub(crate) fn judge(&mut self) -> Option<String> {
        if self.fault.is_some() {
            return self.fault.take();
        }
        let dead = self.dead_letters();
        let missing = (self.acknowledged.iter())
            .find(|number| !self.done.contains_key(number) && !dead.contains_key(number));
        missing.map(|number| {
            let holder = self.holders.get(number);
            format!("{number} was acknowledged and is not done; {holder:?} has it")
        })
    }
}
