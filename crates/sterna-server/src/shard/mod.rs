//! One shard: the front doors over one broker.

mod bans;
mod check;
mod clock;
mod handshakes;
mod report;
mod shortage;
mod stopping;

use std::sync::Arc;

use sterna_broker::{Broker, ConsumerId, CrowdedReader, Event, ShardId};
use sterna_cluster::ToShard;
use sterna_net::{
    Chunk, CloseReason, ConnectionId, FailedHandshake, Handler, Network, StreamEnd, StreamId,
};

use crate::admin;
use crate::amqp;
use crate::audit;
use crate::bans::Bans;
use crate::cluster::Member;
use crate::config::{OnLostRight, Protocol};
use crate::context::Context;
use crate::control::Awaited;
use crate::holding::Holding;
use crate::http;
use crate::identity::Checker;
use crate::inspect::Paths;
use crate::mail::admin::{Body, Query};
use crate::mail::{AdminLetter, Mail, Outbox};
use crate::memory::Memory;
use crate::metrics::{Meters, Sources, Survey, Watcher};
use crate::mqtt;
use crate::policy::Policy;
use crate::rights::InForce;
use crate::seats::Seats;
use crate::session::SessionState;
use crate::sys::{Board, Reporter};
use crate::tracer::Tracer;
use crate::watch::Eye;
use shortage::Shortage;
use stopping::{Farewells, Stopping};

/// The handler of one shard.
#[derive(Debug)]
pub struct Shard {
    number: usize,
    broker: Broker<SessionState>,
    mqtt: mqtt::Door,
    amqp: amqp::Door,
    http: http::Door,
    admin: admin::Door,
    paths: Paths,
    meters: Arc<Meters>,
    survey: Survey,
    policy: Arc<Policy>,
    checker: Option<Checker>,
    bans: Arc<Bans>,
    seats: Arc<Seats>,
    holding: Holding,
    tracer: Option<Tracer>,
    outbox: Box<dyn Outbox>,
    cluster: Option<Member>,
    sys: Sys,
    stopping: Stopping,
    farewells: Farewells,
    /// Queries of the admin API that wait for the store: the shard that asks, the number of the question there.
    unanswered: Vec<(usize, u64, Query)>,
    found: Found,
    memory: Arc<Memory>,
    shortage: Shortage,
    /// Dropped when all sessions are judged by the policy in force: a reload waits for that.
    judging: Vec<Awaited>,
    bans_round: bans::Round,
    /// When the first shard looks at the clocks again.
    clock_next_ms: Option<u64>,
    /// Since when nothing is read, for this shard is ahead of another one.
    ahead_since_ms: Option<u64>,
}

/// How long nothing is read at most while this shard is ahead of another one, in milliseconds.
const AHEAD_MS: u64 = 100;
/// The parts in which messages are delivered before the end of a turn, where queues are half full.
const DRAIN_PARTS: u64 = 8;

/// The front doors for one step. A connection belongs to one of them from its first moment.
struct Doors<'a> {
    mqtt: &'a mut mqtt::Door,
    amqp: &'a mut amqp::Door,
    http: &'a mut http::Door,
    admin: &'a mut admin::Door,
    paths: &'a mut Paths,
    cx: Context<'a>,
}

/// Calls a connection's door.
macro_rules! of_connection {
    ($doors:ident, $connection:ident, $call:ident($($argument:expr),*)) => {
        match $doors.of_connection($connection) {
            Protocol::Mqtt => $doors.mqtt.$call(&mut $doors.cx, $connection $(, $argument)*),
            Protocol::Amqp => $doors.amqp.$call(&mut $doors.cx, $connection $(, $argument)*),
            Protocol::Http => $doors.http.$call(&mut $doors.cx, $connection $(, $argument)*),
            Protocol::Admin => $doors.admin.$call(&mut $doors.cx, $connection $(, $argument)*),
        }
    };
}

/// Calls a consumer's door.
macro_rules! of_consumer {
    ($doors:ident, $consumer:ident, $call:ident($($argument:expr),*)) => {
        match of_consumer($consumer) {
            Protocol::Mqtt => $doors.mqtt.$call(&mut $doors.cx, $consumer $(, $argument)*),
            Protocol::Amqp => $doors.amqp.$call(&mut $doors.cx, $consumer $(, $argument)*),
            Protocol::Http => $doors.http.$call(&mut $doors.cx, $consumer $(, $argument)*),
            // It consumes nothing.
            Protocol::Admin => {}
        }
    };
}

/// State of the `$SYS` topics on one shard.
#[derive(Debug)]
struct Sys {
    board: Arc<Board>,
    interval_ms: u64,
    next_ms: Option<u64>,
    /// Only the first shard publishes.
    reporter: Option<Reporter>,
    sockets: u64,
    retained: Arc<sterna_broker::Directory>,
}

/// Parts of a shard.
#[derive(Debug)]
pub struct Parts {
    /// Number of the shard, from 0.
    pub number: usize,
    /// The broker's part that all shards share.
    pub directory: Arc<sterna_broker::Directory>,
    /// This shard's handle on the store.
    pub store: Box<dyn sterna_broker::Store>,
    /// The state of AMQP that all shards share.
    pub amqp: Arc<amqp::Registry>,
    /// The state of HTTP that all shards share.
    pub http: Arc<http::Registry>,
    /// Messages that may come twice, for all shards.
    pub repetitions: Arc<mqtt::Repetitions>,
    /// Settings and rights of clients.
    pub policy: Arc<Policy>,
    /// Checks passwords; without it nobody with a password gets in.
    pub checker: Option<Checker>,
    /// Bans, for all shards.
    pub bans: Arc<Bans>,
    /// Connections of users that have a limit of them, of all shards.
    pub seats: Arc<Seats>,
    /// Writes traces of connections; without it none are written.
    pub tracer: Option<Tracer>,
    /// The way to all shards.
    pub outbox: Box<dyn Outbox>,
    /// The shard's part in a cluster; `None` where there are no other nodes.
    pub cluster: Option<Member>,
    /// Gathers the counts of all shards.
    pub board: Arc<Board>,
    /// Sources of metrics.
    pub sources: Arc<Sources>,
    /// The account of the process's memory, one for all shards; without it there is no ceiling.
    pub memory: Option<Arc<Memory>>,
    /// Milliseconds between two updates of `$SYS`; 0 turns it off.
    pub sys_interval_ms: u64,
    /// Bytes queued towards a client above which its queue is no longer drained.
    pub high_watermark_bytes: usize,
}

/// State that a shard has found in its store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Number of sessions.
    pub sessions: usize,
    /// Number of records that could not be understood, of all shards; they were left out.
    pub unsound_records: usize,
    /// The position of the next message in the log.
    pub next_position: u64,
}

impl Shard {
    /// Has the broker look whether this node of a cluster is sure of its sessions.
    fn look_at_fence(&mut self, net: &dyn Network) {
        if let Some(member) = &self.cluster {
            member.look_at_fence(&mut self.broker, net.now_ms());
        }
    }

    /// A shard with nothing connected, at `now_ms`, that has restored its share of the store. All shards are to
    /// be made before one of them runs.
    #[must_use]
    pub fn new(mut parts: Parts, now_ms: u64) -> Self {
        let number = parts.number;
        let next_position = parts.store.next_position();
        let mut broker = Broker::new(
            ShardId(number as u16),
            Arc::clone(&parts.directory),
            parts.store,
        );
        if let Some(member) = &parts.cluster {
            member.join(&mut broker);
        }
        broker.set_rights(InForce::of(&parts.policy, &parts.bans));
        broker.set_keeping(parts.policy.exactly_once);
        let meters = parts.sources.meters(number);
        broker.set_loss_watcher(Box::new(Watcher(Arc::clone(&meters))));
        if meters.watch.is_on() {
            broker.watch_road(Some(Box::new(Eye(Arc::clone(&meters.watch)))));
        }
        let restored = broker.restore(now_ms);
        if number == 0 {
            let records = restored.node_records.iter();
            let records = records.map(|(key, value)| (&**key, &**value));
            let dating = (now_ms, parts.directory.eras());
            (parts.http).restore(&parts.policy.http, records.clone(), dating);
            (parts.bans).restore(records.clone(), dating);
            parts.amqp.restore(records, now_ms);
        }
        let queues = Arc::clone(&parts.amqp);
        let amqp = amqp::Door::new(parts.amqp, parts.high_watermark_bytes);
        amqp.restore_queues(&mut broker, &parts.policy.amqp, now_ms);
        broker.read_restored();
        let memory = parts.memory.unwrap_or_else(|| {
            let shards = usize::from(parts.directory.shards());
            Arc::new(Memory::unlimited(shards, Arc::clone(&parts.directory)))
        });
        memory.include(vec![Arc::clone(&queues) as _, Arc::clone(&parts.http) as _]);
        // It is read when all shards have come as far as this one.
        parts.outbox.post(number, Mail::Restored);
        parts.outbox.flush();
        let has_clock = number == 0 && parts.sources.clock().is_some();
        let found = Found {
            sessions: restored.sessions,
            unsound_records: restored.unsound_records,
            next_position,
        };
        Self {
            number,
            broker,
            mqtt: mqtt::Door::new(parts.repetitions, parts.high_watermark_bytes),
            amqp,
            http: http::Door::new(parts.http, parts.high_watermark_bytes),
            admin: admin::Door::new(parts.sources, queues, parts.high_watermark_bytes),
            paths: Paths::default(),
            meters,
            survey: Survey::default(),
            policy: parts.policy,
            checker: parts.checker,
            bans: parts.bans,
            seats: parts.seats,
            holding: Holding::default(),
            bans_round: bans::Round::default(),
            clock_next_ms: has_clock.then_some(now_ms),
            ahead_since_ms: None,
            tracer: parts.tracer,
            outbox: parts.outbox,
            cluster: parts.cluster,
            sys: Sys {
                board: parts.board,
                interval_ms: parts.sys_interval_ms,
                next_ms: (parts.sys_interval_ms > 0).then_some(now_ms),
                reporter: (number == 0).then(|| Reporter::new(now_ms)),
                sockets: 0,
                retained: parts.directory,
            },
            stopping: Stopping::No,
            farewells: Farewells::default(),
            found,
            unanswered: Vec::new(),
            memory,
            shortage: Shortage::default(),
            judging: Vec::new(),
        }
    }

    /// State that the shard has found in its store.
    #[must_use]
    pub const fn found(&self) -> Found {
        self.found
    }

    /// The broker's view of this shard, for tests and administration.
    #[must_use]
    pub const fn broker(&self) -> &Broker<SessionState> {
        &self.broker
    }

    /// Whether clients wait for the next turn, with messages that go to many.
    #[must_use]
    pub fn has_line(&self) -> bool {
        self.holding.line.figures().0 > 0
    }

    /// Tells consumers what has happened to them, and drains the queues of those that can take something.
    fn drain(&mut self, net: &mut dyn Network) {
        while let Some(event) = self.broker.next_event() {
            let mut doors = self.doors(net);
            match event {
                Event::Evicted {
                    consumer,
                    reason,
                    by,
                } => {
                    of_consumer!(doors, consumer, evicted(reason, by));
                }
                Event::Opened {
                    consumer,
                    session,
                    present,
                } => of_consumer!(doors, consumer, session_opened(session, present)),
                Event::Unsubscribed { consumer, session } => {
                    of_consumer!(doors, consumer, unsubscribed(session));
                }
                Event::LostRight { consumer, session } => {
                    if doors.cx.policy.on_lost_right == OnLostRight::Disconnect {
                        of_consumer!(doors, consumer, lost_right(session));
                    }
                }
                Event::Drained { consumer, session } => {
                    doors.amqp.drained(&mut doors.cx, consumer, session);
                }
            }
        }
        let found = self.broker.take_found_queues();
        if !found.is_empty() {
            let mut doors = self.doors(net);
            doors.amqp.queues_found(&mut doors.cx, &found);
        }
        for name in self.broker.take_adopted() {
            let mut doors = self.doors(net);
            doors.amqp.session_adopted(&mut doors.cx, &name);
        }
        // A part in any case: a queue may be half full.
        let most = self.broker.limits().copies_per_turn;
        let until = most.max(self.broker.deliveries_of_turn() + most.div_ceil(DRAIN_PARTS));
        loop {
            while self.broker.deliveries_of_turn() < until
                && let Some((consumer, session)) = self.broker.next_ready()
            {
                let mut doors = self.doors(net);
                of_consumer!(doors, consumer, deliver(session));
            }
            let released = self.broker.take_released();
            if released.is_empty() {
                break;
            }
            for reader in released {
                self.release(net, reader);
            }
        }
    }

    /// A reader's queue has drained: clients that wait for it go on, one after the other, until it is half full again.
    fn release(&mut self, net: &mut dyn Network, reader: CrowdedReader) {
        while let Some(connection) = self.holding.first_of(reader)
            && !self.broker.still_holds(reader)
        {
            self.let_go(net, connection);
        }
    }

    /// A client waits for no reader any more.
    fn let_go(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        let mut doors = self.doors(net);
        doors.cx.end_hold(connection, false);
        of_connection!(doors, connection, go_on());
    }

    /// Clients that wait for this turn go on, one after the other, until its copies are made. The first does in any case.
    fn serve_line(&mut self, net: &mut dyn Network) {
        let most = self.broker.limits().copies_per_turn;
        while let Some(connection) = self.holding.line.next() {
            (self.holding.line).begin_part(self.broker.copies_of_turn(), most);
            let mut doors = self.doors(net);
            of_connection!(doors, connection, go_on());
            self.drain_if_crowded(net);
            if self.broker.copies_of_turn() >= most {
                break;
            }
        }
        self.holding.line.end_part();
    }

    /// Lets clients go on that have waited as long as they may.
    fn end_holds(&mut self, net: &mut dyn Network) {
        let now_ms = net.now_ms();
        while let Some(connection) = self.holding.next_due(now_ms) {
            self.let_go(net, connection);
        }
    }

    /// The same within a turn, once a queue is half full: more may come in this turn than it has places.
    fn drain_if_crowded(&mut self, net: &mut dyn Network) {
        if self.broker.take_crowded() {
            self.drain(net);
        }
    }

    /// The doors, with the context of one step.
    fn doors<'a>(&'a mut self, net: &'a mut dyn Network) -> Doors<'a> {
        let now_ms = net.now_ms();
        if self.meters.watch.is_on() {
            self.meters.watch.turn(now_ms);
        }
        Doors {
            mqtt: &mut self.mqtt,
            amqp: &mut self.amqp,
            http: &mut self.http,
            admin: &mut self.admin,
            paths: &mut self.paths,
            cx: Context {
                net,
                now_ms,
                broker: &mut self.broker,
                policy: &self.policy,
                checker: self.checker.as_ref(),
                bans: &self.bans,
                seats: &self.seats,
                tracer: self.tracer.as_ref(),
                outbox: &mut *self.outbox,
                holding: &mut self.holding,
                memory: &self.memory,
                meters: &self.meters,
                shard: self.number,
                fence: self.cluster.as_ref().map(Member::fence),
            },
        }
    }
}

impl Doors<'_> {
    /// The protocol of a connection that is known.
    fn of_connection(&self, connection: ConnectionId) -> Protocol {
        // One look for MQTT's messages, which are the smallest and most.
        if self.mqtt.clients.has(connection) {
            Protocol::Mqtt
        } else if self.amqp.clients.has(connection) {
            Protocol::Amqp
        } else if self.http.clients.has(connection) {
            Protocol::Http
        } else {
            Protocol::Admin
        }
    }
}

/// The protocol of a consumer.
fn of_consumer(consumer: ConsumerId) -> Protocol {
    if http::is_consumer(consumer) {
        Protocol::Http
    } else if amqp::is_consumer(consumer) {
        Protocol::Amqp
    } else {
        Protocol::Mqtt
    }
}

impl Handler for Shard {
    type Mail = Mail;

    fn opened(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        let mut doors = self.doors(net);
        let info = doors.cx.net.info(connection);
        let protocol = info.map_or(Protocol::Mqtt, |info| doors.cx.policy.spoken(info));
        match protocol {
            Protocol::Mqtt => doors.mqtt.opened(&mut doors.cx, connection),
            Protocol::Amqp => doors.amqp.opened(&mut doors.cx, connection),
            Protocol::Http => doors.http.opened(&mut doors.cx, connection),
            Protocol::Admin => doors.admin.opened(&mut doors.cx, connection),
        }
        // Connections of operators carry no message.
        self.sys.sockets += u64::from(protocol != Protocol::Admin);
    }

    fn handshake_failed(&mut self, net: &mut dyn Network, failed: FailedHandshake) {
        handshakes::tell_failed(&self.meters, &self.policy, net.now_ms(), &failed);
    }

    fn takes_input(&mut self, net: &mut dyn Network) -> bool {
        if self.broker.has_delivered() {
            return false;
        }
        if !self.broker.is_ahead() {
            self.ahead_since_ms = None;
            return true;
        }
        let now_ms = net.now_ms();
        let since_ms = *self.ahead_since_ms.get_or_insert(now_ms);
        let is_patient = now_ms.saturating_sub(since_ms) < AHEAD_MS;
        if !is_patient {
            // One read, so that clients are heard also where the other shard stands still.
            self.ahead_since_ms = None;
        }
        !is_patient
    }

    fn takes_ends(&mut self, _: &mut dyn Network) -> bool {
        !self.broker.has_copied()
    }

    fn received(&mut self, net: &mut dyn Network, connection: ConnectionId, chunk: Chunk<'_>) {
        let mut doors = self.doors(net);
        of_connection!(doors, connection, received(chunk));
        self.drain_if_crowded(net);
    }

    fn confirmed(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        let mut doors = self.doors(net);
        of_connection!(doors, connection, confirmed());
    }

    fn migrated(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        let mut doors = self.doors(net);
        let address = of_connection!(doors, connection, migrated());
        doors.end_if_banned(connection, address);
    }

    fn datagram(&mut self, net: &mut dyn Network, connection: ConnectionId, chunk: Chunk<'_>) {
        let mut doors = self.doors(net);
        match doors.of_connection(connection) {
            Protocol::Mqtt => doors.mqtt.datagram(&mut doors.cx, connection, chunk),
            Protocol::Http => doors.http.datagram(&mut doors.cx, connection, chunk),
            // They have no use for them.
            Protocol::Amqp | Protocol::Admin => {}
        }
        self.drain_if_crowded(net);
    }

    fn stream_ended(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        stream: StreamId,
        end: StreamEnd,
    ) {
        let mut doors = self.doors(net);
        of_connection!(doors, connection, stream_ended(stream, end));
    }

    fn writable(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        let mut doors = self.doors(net);
        of_connection!(doors, connection, writable());
    }

    fn closed(&mut self, net: &mut dyn Network, connection: ConnectionId, reason: &CloseReason) {
        let mut doors = self.doors(net);
        of_connection!(doors, connection, closed(reason));
    }

    fn mail(&mut self, net: &mut dyn Network, mail: &mut Vec<Mail>) {
        // A letter may follow from a lapse of the fence that this shard has not seen yet.
        self.look_at_fence(net);
        let now_ms = net.now_ms();
        for letter in mail.drain(..) {
            match letter {
                Mail::Broker(letter) => {
                    if self.meters.watch.is_on() {
                        self.meters.watch.turn(now_ms);
                    }
                    self.broker.mail(now_ms, *letter);
                }
                Mail::Judged {
                    connection,
                    number,
                    outcome,
                } => {
                    let mut doors = self.doors(net);
                    let protocol = doors.of_connection(connection);
                    let Doors {
                        mqtt,
                        amqp,
                        http,
                        admin,
                        cx,
                        ..
                    } = &mut doors;
                    match protocol {
                        Protocol::Mqtt => mqtt.judged(cx, connection, number, outcome),
                        Protocol::Amqp => amqp.judged(cx, connection, outcome),
                        Protocol::Http => http.judged(cx, connection, number, outcome),
                        Protocol::Admin => admin.judged(cx, connection, number, outcome),
                    }
                }
                Mail::Amqp(letter) => {
                    let mut doors = self.doors(net);
                    doors.amqp.mail(&mut doors.cx, *letter);
                }
                Mail::Http(letter) => {
                    let mut doors = self.doors(net);
                    doors.http.mail(&mut doors.cx, *letter);
                }
                Mail::Store => {
                    self.broker.poll_store(now_ms);
                    self.answer_anew(net);
                    let mut doors = self.doors(net);
                    if doors.cx.fence.is_some() {
                        doors.mqtt.note_kept(&doors.cx);
                    }
                    doors.mqtt.committed(&mut doors.cx);
                    doors.amqp.committed(&mut doors.cx);
                    doors.http.committed(&mut doors.cx);
                    doors.http.tell_kept(&mut doors.cx);
                    doors.admin.committed(&mut doors.cx);
                }
                Mail::Cluster(letter) => {
                    if let ToShard::Exporting(by) = &*letter {
                        audit::cluster_exported(by);
                    }
                    if let Some(member) = &mut self.cluster {
                        member.mail(&mut self.broker, now_ms, *letter);
                    }
                }
                Mail::Admin(letter) => match letter.0 {
                    Body::Question { from, number, ask } => {
                        self.answer(net, from, number, ask);
                    }
                    Body::Watch {
                        from,
                        number,
                        subject,
                    } => {
                        let most_per_s = self.policy.admin.maximum_trace_events_per_s;
                        self.meters.watch.turn(now_ms);
                        (self.meters.watch).begin(from, number, subject, most_per_s);
                        let eye = Eye(Arc::clone(&self.meters.watch));
                        self.broker.watch_road(Some(Box::new(eye)));
                    }
                    Body::Unwatch { from, number } => {
                        if !self.meters.watch.end(from, number) {
                            self.broker.watch_road(None);
                        }
                    }
                    body @ (Body::Answer { .. }
                    | Body::Seen(_)
                    | Body::Asked { .. }
                    | Body::Traced { .. }) => {
                        let mut doors = self.doors(net);
                        doors.admin.mail(&mut doors.cx, AdminLetter(body));
                    }
                },
                Mail::Bans => self.bans_changed(net),
                Mail::Ban(record) => self.learn_ban(now_ms, &record),
                Mail::Clock => self.keep_clock(false),
                Mail::Memory => self.memory_changed(net),
                Mail::Restored => {
                    self.broker.all_restored(now_ms);
                }
                Mail::Weigh(weighing) => {
                    if let Some(rest) = weighing.go_on(&self.broker, &self.bans) {
                        self.outbox.post(self.number, Mail::Weigh(rest));
                        self.outbox.flush();
                    }
                }
                Mail::Judging(told) => self.judging.push(told),
                Mail::Policy(policy) => {
                    let grants_like = policy.grants_like(&self.policy);
                    self.policy = policy;
                    self.broker.set_keeping(self.policy.exactly_once);
                    if !grants_like {
                        self.broker
                            .set_rights(InForce::of(&self.policy, &self.bans));
                    }
                    let mut doors = self.doors(net);
                    doors.mqtt.policy_changed(&mut doors.cx);
                    doors.amqp.policy_changed(&mut doors.cx);
                    doors.http.policy_changed(&mut doors.cx);
                    doors.admin.policy_changed(&mut doors.cx);
                    if !grants_like {
                        self.broker.judge(now_ms);
                    }
                }
                Mail::Drain => self.admin.service.is_draining = true,
                Mail::Stop if self.stopping == Stopping::No => {
                    let until_ms = now_ms + self.policy.drain_ms;
                    let look_ms = until_ms;
                    self.stopping = Stopping::Draining { until_ms, look_ms };
                    // A client that goes now may have said goodbye, which is not read any more.
                    self.broker.leave_wills();
                    let mut doors = self.doors(net);
                    doors.mqtt.stop_reading(&mut doors.cx);
                    doors.amqp.stop_reading(&mut doors.cx);
                    doors.http.stop_reading(&mut doors.cx);
                    // It goes on, to say that the shard is not ready.
                    doors.admin.service.is_draining = true;
                }
                Mail::Stop => {}
                Mail::Farewell(round) => self.hear_farewell(round),
            }
            self.drain_if_crowded(net);
        }
        self.stop_if_drained(net);
    }

    fn timeout(&mut self, net: &mut dyn Network) {
        let now_ms = net.now_ms();
        if self.meters.watch.is_on() {
            self.meters.watch.turn(now_ms);
        }
        self.broker.timeout(now_ms);
        self.answer_anew(net);
        self.survey.look(net, &self.meters);
        let mut doors = self.doors(net);
        doors.mqtt.timeout(&mut doors.cx);
        doors.amqp.timeout(&mut doors.cx);
        doors.amqp.forget_departed(&mut doors.cx);
        doors.amqp.look_at_nodes(&mut doors.cx);
        doors.http.timeout(&mut doors.cx);
        doors.admin.timeout(&mut doors.cx);
        doors.admin.look_after_far_traces(&mut doors.cx);
        self.stop_if_drained(net);
        self.relieve(net);
        self.end_holds(net);
        self.end_banned(net);
        self.look_at_clock(net);
        if self.sys.next_ms.is_some_and(|next_ms| next_ms <= now_ms) {
            self.report_sys(now_ms);
            self.sys.next_ms = Some(now_ms + self.sys.interval_ms);
            let mut doors = self.doors(net);
            let connections = doors.mqtt.clients.ids().chain(doors.amqp.clients.ids());
            let connections = connections.chain(doors.http.clients.ids());
            doors.paths.begin(&mut doors.cx, connections);
        }
        let mut doors = self.doors(net);
        let (mqtt, amqp, http) = (&*doors.mqtt, &*doors.amqp, &*doors.http);
        doors.paths.report(&mut doors.cx, |connection| {
            (amqp.name_and_user(connection))
                .or_else(|| http.name_and_user(connection))
                .or_else(|| mqtt.name_and_user(connection))
        });
    }

    fn begin_of_turn(&mut self, net: &mut dyn Network) {
        // Clients' bytes may have waited while the process stood still, and doors answer them at once.
        self.look_at_fence(net);
        self.broker.begin_turn(|| net.now_ms());
        if let Some(member) = &mut self.cluster
            && member.has_late()
        {
            member.take_late(&mut self.broker, net.now_ms());
            self.drain_if_crowded(net);
        }
        self.serve_line(net);
    }

    fn end_of_turn(&mut self, net: &mut dyn Network) {
        self.look_at_fence(net);
        self.drain(net);
        self.end_if_all_is_heard(net);
        if let Some(member) = &self.cluster {
            let is_leaving = matches!(self.stopping, Stopping::Leaving(_) | Stopping::Over);
            let is_stopping = (self.stopping != Stopping::No, is_leaving);
            let has_letters = self.broker.has_mail() || self.outbox.has_letters();
            let is_unseen = net.ends_unseen() && !has_letters;
            member.end_of_turn(&mut self.broker, is_stopping, is_unseen);
        }
        self.broker.flush_store();
        if !self.judging.is_empty() && !self.broker.is_judging() {
            self.judging.clear();
        }
        if self.broker.has_mail() {
            for (shard, letter) in self.broker.take_mail() {
                self.outbox
                    .post(usize::from(shard.0), Mail::Broker(Box::new(letter)));
            }
        }
        if self.meters.watch.is_on() {
            for events in self.meters.watch.take() {
                let (from, letter) = (events.from, AdminLetter(Body::Seen(events)));
                self.outbox.post(from, Mail::Admin(Box::new(letter)));
            }
        }
        self.account();
        self.say_farewell();
        self.outbox.flush();
    }

    fn deadline_ms(&self) -> Option<u64> {
        let deadlines = [
            self.broker.deadline_ms(),
            self.mqtt.deadline_ms(),
            self.amqp.deadline_ms(),
            self.amqp.departed_ms(),
            self.amqp.nodes_ms(),
            self.http.deadline_ms(),
            self.admin.deadline_ms(),
            self.admin.far_traces_ms(),
            self.survey.deadline_ms(),
            self.paths.deadline_ms(),
            self.sys.next_ms,
            self.shortage.next_ms,
            self.bans_round.deadline_ms(),
            self.clock_next_ms,
            self.holding.deadline_ms(),
            self.has_more_to_end().then_some(0),
            (self.has_line() || self.cluster.as_ref().is_some_and(Member::has_late)).then_some(0),
            self.broker.has_ready().then_some(0),
            // More in the next turn.
            self.shortage.is_relieving.then_some(0),
            self.stopping.deadline_ms(),
        ];
        // Each turn asks, and this needs no branch for each of them.
        let each = deadlines.iter().map(|due_ms| due_ms.unwrap_or(u64::MAX));
        each.min().filter(|due_ms| *due_ms != u64::MAX)
    }

    fn finished(&self) -> bool {
        self.stopping == Stopping::Over
            && self.mqtt.clients.is_empty()
            && self.amqp.clients.is_empty()
            && self.http.clients.is_empty()
            && self.admin.clients.is_empty()
    }
}
