//! What one shard runs: the front doors over one broker.

use std::sync::Arc;

use sterna_broker::{Broker, ConsumerId, Event, Message, MessageHeader, Publication, ShardId};
use sterna_net::{Chunk, CloseReason, ConnectionId, Handler, Network, StreamId};

use crate::amqp;
use crate::config::Protocol;
use crate::context::Context;
use crate::http;
use crate::identity::Checker;
use crate::inspect::Paths;
use crate::mail::{Mail, Outbox};
use crate::mqtt;
use crate::policy::Policy;
use crate::session::SessionState;
use crate::sys::{Board, Counts, Reporter};
use crate::tracer::Tracer;

/// The handler of one shard.
#[derive(Debug)]
pub struct Shard {
    number: usize,
    broker: Broker<SessionState>,
    mqtt: mqtt::Door,
    amqp: amqp::Door,
    http: http::Door,
    paths: Paths,
    policy: Arc<Policy>,
    checker: Option<Checker>,
    tracer: Option<Tracer>,
    outbox: Box<dyn Outbox>,
    sys: Sys,
    stopping: bool,
}

/// The front doors for one step. A connection belongs to one of them from its first moment.
struct Doors<'a> {
    mqtt: &'a mut mqtt::Door,
    amqp: &'a mut amqp::Door,
    http: &'a mut http::Door,
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

/// What a shard is made of.
#[derive(Debug)]
pub struct Parts {
    /// Number of the shard, from 0.
    pub number: usize,
    /// What all shards share.
    pub directory: Arc<sterna_broker::Directory>,
    /// This shard's handle on the store.
    pub store: Box<dyn sterna_broker::Store>,
    /// What all shards know of AMQP.
    pub amqp: Arc<amqp::Registry>,
    /// What all shards know of HTTP.
    pub http: Arc<http::Registry>,
    /// What all shards know of messages that may come twice.
    pub repetitions: Arc<mqtt::Repetitions>,
    /// What clients may do.
    pub policy: Arc<Policy>,
    /// Checks passwords; without it nobody with a password gets in.
    pub checker: Option<Checker>,
    /// Writes traces of connections; without it none are written.
    pub tracer: Option<Tracer>,
    /// The way to all shards.
    pub outbox: Box<dyn Outbox>,
    /// Where counts are gathered.
    pub board: Arc<Board>,
    /// Milliseconds between two updates of `$SYS`; 0 turns it off.
    pub sys_interval_ms: u64,
    /// Bytes queued towards a client above which its queue is no longer drained.
    pub high_watermark_bytes: usize,
}

impl Shard {
    /// A shard with nothing connected, at `now_ms`.
    #[must_use]
    pub fn new(parts: Parts, now_ms: u64) -> Self {
        let number = parts.number;
        let mut broker = Broker::new(
            ShardId(number as u16),
            Arc::clone(&parts.directory),
            parts.store,
        );
        broker.set_rights(Arc::clone(&parts.policy) as _);
        broker.restore(now_ms);
        let amqp = amqp::Door::new(parts.amqp, parts.high_watermark_bytes);
        if number == 0 {
            amqp.make_queues(&mut broker, &parts.policy.amqp, now_ms);
        }
        Self {
            number,
            broker,
            mqtt: mqtt::Door::new(parts.repetitions, parts.high_watermark_bytes),
            amqp,
            http: http::Door::new(parts.http, parts.high_watermark_bytes),
            paths: Paths::default(),
            policy: parts.policy,
            checker: parts.checker,
            tracer: parts.tracer,
            outbox: parts.outbox,
            sys: Sys {
                board: parts.board,
                interval_ms: parts.sys_interval_ms,
                next_ms: (parts.sys_interval_ms > 0).then_some(now_ms),
                reporter: (number == 0).then(|| Reporter::new(now_ms)),
                sockets: 0,
                retained: parts.directory,
            },
            stopping: false,
        }
    }

    /// The broker's view of this shard, for tests and administration.
    #[must_use]
    pub const fn broker(&self) -> &Broker<SessionState> {
        &self.broker
    }

    /// The doors, and what they need for one step.
    fn doors<'a>(&'a mut self, net: &'a mut dyn Network) -> Doors<'a> {
        Doors {
            mqtt: &mut self.mqtt,
            amqp: &mut self.amqp,
            http: &mut self.http,
            paths: &mut self.paths,
            cx: Context {
                net,
                broker: &mut self.broker,
                policy: &self.policy,
                checker: self.checker.as_ref(),
                tracer: self.tracer.as_ref(),
                outbox: &mut *self.outbox,
                shard: self.number,
            },
        }
    }

    fn report_sys(&mut self, now_ms: u64) {
        let counters = self.broker.counters();
        let mut door = self.mqtt.counts();
        door.add(&self.amqp.counts());
        door.add(&self.http.counts());
        let (links, amqp_clients) = self.amqp.links_and_clients();
        let (subscriptions, http_clients) = self.http.subscriptions_and_clients();
        let counts = Counts {
            // Each link on which an AMQP client receives, and each subscription of HTTP, is a session
            // of its own.
            clients_connected: (counters.sessions_connected + (amqp_clients + http_clients) as u64)
                .saturating_sub((links + subscriptions) as u64),
            clients_disconnected: counters
                .sessions
                .saturating_sub(counters.sessions_connected),
            clients_expired: counters.sessions_expired,
            sockets: self.sys.sockets,
            publish_dropped: counters.dropped_full
                + counters.dropped_late
                + counters.dropped_expired
                + counters.dropped_away
                + counters.dropped_dead
                + counters.refused_messages,
            queued_messages: counters.stored_messages,
            queued_bytes: counters.stored_bytes,
            subscriptions: counters.subscriptions,
            ..door
        };
        self.sys.board.post(self.number, counts);
        let Some(reporter) = &mut self.sys.reporter else {
            return;
        };
        let (messages, bytes) = self.sys.retained.retained();
        let total = self.sys.board.total();
        for (topic, value) in reporter.report(now_ms, &total, (messages as u64, bytes as u64)) {
            let header = MessageHeader {
                retain: true,
                published_ms: now_ms,
                ..MessageHeader::default()
            };
            let topic = format!("$SYS/broker/{topic}");
            if let Ok(message) = Message::copy(&topic, &[], value.as_bytes(), header) {
                self.broker.publish(
                    now_ms,
                    Publication {
                        origin: None,
                        message,
                    },
                );
            }
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
        } else {
            Protocol::Http
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

/// The protocol of a connection that opens: what it has said, or what its listener is for.
fn spoken(cx: &Context<'_>, connection: ConnectionId) -> Protocol {
    let Some(info) = cx.net.info(connection) else {
        return Protocol::Mqtt;
    };
    match &*info.protocol {
        b"amqp" => Protocol::Amqp,
        b"h3" => Protocol::Http,
        b"" | b"http/1.1" | b"h2" => cx.policy.listener(info.listener).protocol,
        _ => Protocol::Mqtt,
    }
}

impl Handler for Shard {
    type Mail = Mail;

    fn opened(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        self.sys.sockets += 1;
        let mut doors = self.doors(net);
        match spoken(&doors.cx, connection) {
            Protocol::Mqtt => doors.mqtt.opened(&mut doors.cx, connection),
            Protocol::Amqp => doors.amqp.opened(&mut doors.cx, connection),
            Protocol::Http => doors.http.opened(&mut doors.cx, connection),
        }
    }

    fn received(&mut self, net: &mut dyn Network, connection: ConnectionId, chunk: Chunk<'_>) {
        let mut doors = self.doors(net);
        of_connection!(doors, connection, received(chunk));
    }

    fn confirmed(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        let mut doors = self.doors(net);
        of_connection!(doors, connection, confirmed());
    }

    fn migrated(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        let mut doors = self.doors(net);
        of_connection!(doors, connection, migrated());
    }

    fn datagram(&mut self, net: &mut dyn Network, connection: ConnectionId, chunk: Chunk<'_>) {
        let mut doors = self.doors(net);
        match doors.of_connection(connection) {
            Protocol::Mqtt => doors.mqtt.datagram(&mut doors.cx, connection, chunk),
            Protocol::Http => doors.http.datagram(&mut doors.cx, connection, chunk),
            // It has no use for them.
            Protocol::Amqp => {}
        }
    }

    fn stream_finished(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        stream: StreamId,
    ) {
        let mut doors = self.doors(net);
        of_connection!(doors, connection, stream_finished(stream));
    }

    fn stream_aborted(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        stream: StreamId,
        code: u64,
    ) {
        let mut doors = self.doors(net);
        of_connection!(doors, connection, stream_aborted(stream, code));
    }

    fn stream_stopped(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        stream: StreamId,
        code: u64,
    ) {
        let mut doors = self.doors(net);
        of_connection!(doors, connection, stream_stopped(stream, code));
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
        let now_ms = net.now_ms();
        for letter in mail.drain(..) {
            match letter {
                Mail::Broker(letter) => self.broker.mail(now_ms, *letter),
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
                        cx,
                        ..
                    } = &mut doors;
                    match protocol {
                        Protocol::Mqtt => mqtt.judged(cx, connection, outcome),
                        Protocol::Amqp => amqp.judged(cx, connection, outcome),
                        Protocol::Http => http.judged(cx, connection, number, outcome),
                    }
                }
                Mail::Http(letter) => {
                    let mut doors = self.doors(net);
                    doors.http.mail(&mut doors.cx, *letter);
                }
                Mail::Policy(policy) => {
                    let grants_like = policy.grants_like(&self.policy);
                    self.policy = policy;
                    if !grants_like {
                        self.broker.set_rights(Arc::clone(&self.policy) as _);
                    }
                    let mut doors = self.doors(net);
                    doors.mqtt.policy_changed(&mut doors.cx);
                    doors.amqp.policy_changed(&mut doors.cx);
                    doors.http.policy_changed(&mut doors.cx);
                    if !grants_like {
                        self.broker.judge(now_ms);
                    }
                }
                Mail::Stop => {
                    self.stopping = true;
                    let mut doors = self.doors(net);
                    doors.mqtt.stop(&mut doors.cx);
                    doors.amqp.stop(&mut doors.cx);
                    doors.http.stop(&mut doors.cx);
                }
            }
        }
    }

    fn timeout(&mut self, net: &mut dyn Network) {
        let now_ms = net.now_ms();
        self.broker.timeout(now_ms);
        let mut doors = self.doors(net);
        doors.mqtt.timeout(&mut doors.cx);
        doors.amqp.timeout(&mut doors.cx);
        doors.http.timeout(&mut doors.cx);
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
            (amqp.name_of(connection))
                .or_else(|| http.name_of(connection))
                .or_else(|| mqtt.name_of(connection))
        });
    }

    fn end_of_turn(&mut self, net: &mut dyn Network) {
        while let Some(event) = self.broker.next_event() {
            let mut doors = self.doors(net);
            match event {
                Event::Evicted { consumer, reason } => {
                    of_consumer!(doors, consumer, evicted(reason));
                }
                Event::Opened {
                    consumer,
                    session,
                    present,
                } => of_consumer!(doors, consumer, session_opened(session, present)),
                Event::Unsubscribed { consumer, session } => {
                    of_consumer!(doors, consumer, unsubscribed(session));
                }
                Event::Drained { consumer, session } => {
                    doors.amqp.drained(&mut doors.cx, consumer, session);
                }
            }
        }
        while let Some((consumer, session)) = self.broker.next_ready() {
            let mut doors = self.doors(net);
            of_consumer!(doors, consumer, deliver(session));
        }
        if self.broker.has_mail() {
            for (shard, letter) in self.broker.take_mail() {
                self.outbox
                    .post(usize::from(shard.0), Mail::Broker(Box::new(letter)));
            }
        }
        self.outbox.flush();
    }

    fn deadline_ms(&self) -> Option<u64> {
        [
            self.broker.deadline_ms(),
            self.mqtt.timers.next_ms(),
            self.amqp.timers.next_ms(),
            self.http.timers.next_ms(),
            self.paths.deadline_ms(),
            self.sys.next_ms,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn finished(&self) -> bool {
        self.stopping
            && self.mqtt.clients.is_empty()
            && self.amqp.clients.is_empty()
            && self.http.clients.is_empty()
    }
}
