//! Publishers and subscribers: the workloads that count deliveries.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sterna_mqtt::{Framer, Packet, PacketId, PacketType, QoS, ReasonCode};

use super::links::{LinkEvent, LinkOptions, Links, Observer, Outbox};
use super::packets::{self, Login, Stamp, Template};
use super::{Credentials, new_latencies, sessions};
use crate::process::{self, Process, Usage};

/// Bytes that a connection may have waiting before its publisher holds back.
const MAX_PENDING_BYTES: usize = 1 << 20;
/// Unacknowledged messages of one publisher in an open loop: well below the packet identifiers.
const MAX_UNACKNOWLEDGED: u64 = 60_000;
/// Longest time to connect all clients.
const OPENING_LIMIT: Duration = Duration::from_secs(60);
/// A closed loop that hears nothing for so long takes its QoS 0 messages for lost.
const STALL: Duration = Duration::from_secs(2);
/// The same at QoS 1 and 2, where it is a failure of the broker.
const BROKEN: Duration = Duration::from_secs(15);
/// Longest wait for messages on their way when the measurement is over.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);
/// Closer than this to its due time a message is waited for without sleeping.
const SPIN: Duration = Duration::from_micros(300);

/// Publishers and their subscribers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// Publisher i to subscriber i.
    Pairs(usize),
    /// N publishers to one subscriber.
    FanIn(usize),
    /// One publisher to N subscribers.
    FanOut(usize),
    /// N publishers, and no subscriber that is connected.
    Unheard(usize),
}

impl Shape {
    fn publishers(self) -> usize {
        match self {
            Self::Pairs(n) | Self::FanIn(n) | Self::Unheard(n) => n,
            Self::FanOut(_) => 1,
        }
    }

    fn subscribers(self) -> usize {
        match self {
            Self::Pairs(n) | Self::FanOut(n) => n,
            Self::FanIn(_) => 1,
            Self::Unheard(_) => 0,
        }
    }

    /// Deliveries of one message.
    fn fan(self) -> u64 {
        match self {
            Self::FanOut(n) => n as u64,
            Self::Unheard(_) => 0,
            _ => 1,
        }
    }

    /// 19 bytes, for any number.
    fn topic(self, publisher: usize) -> String {
        match self {
            Self::Pairs(_) => format!("bench/pair/{publisher:08}"),
            Self::FanIn(_) => format!("bench/join/{publisher:08}"),
            Self::FanOut(_) => format!("bench/news/{publisher:08}"),
            Self::Unheard(_) => sessions::NEWS.to_owned(),
        }
    }

    fn filter(self, subscriber: usize) -> String {
        match self {
            Self::Pairs(_) => self.topic(subscriber),
            Self::FanIn(_) => "bench/join/+".to_owned(),
            Self::FanOut(_) | Self::Unheard(_) => self.topic(0),
        }
    }
}

/// When a publisher sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pace {
    /// As soon as fewer than this many of its messages are under way.
    Window(u32),
    /// N messages a second over all publishers, independent of arrivals.
    Rate(u32),
}

/// A workload.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) pace: Pace,
    pub(super) qos: QoS,
    pub(super) payload_bytes: usize,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
    pub(super) max_messages: u64,
    /// Connections that are opened at once.
    pub(super) at_once: usize,
    /// Never sleep while measuring.
    pub(super) busy_poll: bool,
    /// Sessions of subscribers outlive their connections.
    pub(super) durable: bool,
    /// Topics of messages that no connected subscriber gets.
    pub(super) own_topics: OwnTopics,
}

/// Messages for the filters that [`sessions`] gives to sessions of their own.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct OwnTopics {
    /// Number of these topics; 0 for the one topic of all.
    pub(super) count: u32,
    /// Every N-th message goes to one of them, the others to the topic of all.
    pub(super) every: u64,
}

impl OwnTopics {
    /// Number of the topic of the N-th message; `None` for the topic of all.
    fn of(self, message: u64) -> Option<u32> {
        if self.count == 0 || !message.is_multiple_of(self.every.max(1)) {
            return None;
        }
        // A prime, so that neighbours in time are not neighbours in number.
        let scattered = (message / self.every.max(1)).wrapping_mul(7919) % u64::from(self.count);
        u32::try_from(scattered).ok()
    }
}

/// Result of a workload.
pub(super) struct Outcome {
    pub(super) delivered: u64,
    /// Messages that the broker acknowledged to their publishers.
    pub(super) acknowledged: u64,
    /// From the sending of a message until it was acknowledged.
    pub(super) acknowledgements: Histogram<u64>,
    pub(super) lost: u64,
    pub(super) repeated: u64,
    pub(super) wall: Duration,
    pub(super) latencies: Histogram<u64>,
    pub(super) before: Usage,
    pub(super) after: Usage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Connecting,
    Subscribing,
    Ready,
}

struct Client {
    state: State,
    framer: Framer,
    /// Next sequence number expected from each publisher that it hears (subscribers).
    expected: Box<[u32]>,
}

struct Publisher {
    template: Template,
    sent: u64,
    delivered: u64,
    acknowledged: u64,
    /// Deliveries given up for lost.
    forgiven: u64,
    receive_maximum: u64,
    identifier: u16,
    /// When the message with an identifier was sent, nanoseconds since the run began.
    sent_at_ns: Box<[u64]>,
    is_queued: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    WarmUp,
    Measuring,
    Draining,
}

struct Flow<'a> {
    plan: &'a Plan,
    credentials: &'a Credentials,
    /// Subscribers first, then publishers.
    clients: Vec<Client>,
    publishers: Vec<Publisher>,
    /// Publishers that may be able to send.
    queued: Vec<usize>,
    ready: usize,
    phase: Phase,
    base: Instant,
    delivered: u64,
    acknowledged: u64,
    lost: u64,
    repeated: u64,
    latencies: Histogram<u64>,
    acknowledgements: Histogram<u64>,
    last_delivery: Instant,
    /// Messages of all publishers.
    sent: u64,
    /// Messages that were due so far in an open loop, and since when.
    due: u64,
    due_since: Instant,
    failure: Option<String>,
}

/// Runs the plan.
pub(super) fn run(
    plan: &Plan,
    options: &LinkOptions,
    credentials: &Credentials,
    broker: Option<Process>,
) -> Result<Outcome, String> {
    let mut out = Outbox::default();
    let total = plan.shape.subscribers() + plan.shape.publishers();
    let mut links = Links::new(options, total, &mut out)?;
    let mut flow = Flow::new(plan, credentials);
    flow.open_all(&mut links, &mut out)?;
    let outcome = flow.drive(&mut links, &mut out, broker);
    let now = Instant::now();
    for link in 0..total {
        out.packet(link, &packets::empty(PacketType::Disconnect));
        links.close(link, &mut out, now);
    }
    flow.failure = None;
    links
        .finish(&mut flow, &mut out, Duration::from_millis(500))
        .map_err(|e| e.to_string())?;
    outcome
}

fn usage(broker: Option<Process>) -> Usage {
    broker.map_or_else(
        || Usage {
            own_cpu: process::own_cpu(),
            ..Usage::default()
        },
        Process::usage,
    )
}

impl<'a> Flow<'a> {
    fn new(plan: &'a Plan, credentials: &'a Credentials) -> Self {
        let shape = plan.shape;
        let heard = if matches!(shape, Shape::FanIn(_)) {
            shape.publishers()
        } else {
            1
        };
        let client = |index| Client {
            state: State::New,
            framer: Framer::new(),
            expected: if index < shape.subscribers() {
                vec![0; heard].into_boxed_slice()
            } else {
                Box::default()
            },
        };
        let publisher = |index| Publisher {
            template: Template::new(
                credentials.version,
                &shape.topic(index),
                plan.qos,
                plan.payload_bytes,
            ),
            sent: 0,
            delivered: 0,
            acknowledged: 0,
            forgiven: 0,
            receive_maximum: MAX_UNACKNOWLEDGED,
            identifier: 0,
            sent_at_ns: vec![0; usize::from(u16::MAX) + 1].into_boxed_slice(),
            is_queued: true,
        };
        let now = Instant::now();
        Self {
            plan,
            credentials,
            clients: (0..shape.subscribers() + shape.publishers())
                .map(client)
                .collect(),
            publishers: (0..shape.publishers()).map(publisher).collect(),
            queued: (0..shape.publishers()).collect(),
            ready: 0,
            phase: Phase::Opening,
            base: now,
            delivered: 0,
            acknowledged: 0,
            lost: 0,
            repeated: 0,
            latencies: new_latencies(),
            acknowledgements: new_latencies(),
            last_delivery: now,
            sent: 0,
            due: 0,
            due_since: now,
            failure: None,
        }
    }

    fn open_all(&mut self, links: &mut Links, out: &mut Outbox) -> Result<(), String> {
        let mut started = 0;
        while self.ready < self.clients.len() {
            let now = Instant::now();
            while started < self.clients.len() && started - self.ready < self.plan.at_once {
                links
                    .open(started, out, now)
                    .map_err(|e| format!("cannot connect: {e}"))?;
                started += 1;
            }
            self.step(links, out, Some(Duration::from_millis(100)))?;
            if self.base.elapsed() > OPENING_LIMIT {
                return Err(format!(
                    "{} of {} connections were ready after {} s",
                    self.ready,
                    self.clients.len(),
                    OPENING_LIMIT.as_secs()
                ));
            }
        }
        Ok(())
    }

    /// One turn of the loop.
    fn step(
        &mut self,
        links: &mut Links,
        out: &mut Outbox,
        timeout: Option<Duration>,
    ) -> Result<(), String> {
        links.flush(self, out, Instant::now());
        links.turn(self, out, timeout).map_err(|e| e.to_string())?;
        self.failure.take().map_or(Ok(()), Err)
    }

    fn drive(
        &mut self,
        links: &mut Links,
        out: &mut Outbox,
        broker: Option<Process>,
    ) -> Result<Outcome, String> {
        self.base = Instant::now();
        self.last_delivery = self.base;
        self.due_since = self.base;
        self.phase = Phase::WarmUp;
        self.pump_until(links, out, self.base + self.plan.warm_up, u64::MAX)?;

        let before = usage(broker);
        let start = Instant::now();
        let (delivered, lost, repeated) = (self.delivered, self.lost, self.repeated);
        let acknowledged = self.acknowledged;
        self.latencies.reset();
        self.acknowledgements.reset();
        self.phase = Phase::Measuring;
        let enough = self.done().saturating_add(self.plan.max_messages);
        self.pump_until(links, out, start + self.plan.duration, enough)?;
        let wall = start.elapsed();
        let after = usage(broker);
        let delivered = self.delivered - delivered;
        let acknowledged = self.acknowledged - acknowledged;
        let acknowledgements = std::mem::replace(&mut self.acknowledgements, new_latencies());

        self.phase = Phase::Draining;
        let end = Instant::now() + DRAIN_LIMIT;
        while self.outstanding() > 0 && Instant::now() < end {
            self.step(links, out, Some(Duration::from_millis(20)))?;
        }
        let lost = self.lost - lost + self.outstanding();
        Ok(Outcome {
            delivered,
            acknowledged,
            acknowledgements,
            lost,
            repeated: self.repeated - repeated,
            wall,
            latencies: std::mem::replace(&mut self.latencies, new_latencies()),
            before,
            after,
        })
    }

    /// The count of the run: deliveries, or acknowledgements where there are none.
    const fn done(&self) -> u64 {
        match self.plan.shape {
            Shape::Unheard(_) => self.acknowledged,
            _ => self.delivered,
        }
    }

    /// Deliveries, or acknowledgements where there are none, that are still to come.
    fn outstanding(&self) -> u64 {
        let fan = self.plan.shape.fan();
        let of = |p: &Publisher| match fan {
            0 => p.sent - p.acknowledged,
            fan => (p.sent * fan).saturating_sub(p.delivered + p.forgiven),
        };
        self.publishers.iter().map(of).sum()
    }

    fn pump_until(
        &mut self,
        links: &mut Links,
        out: &mut Outbox,
        end: Instant,
        enough: u64,
    ) -> Result<(), String> {
        loop {
            let now = Instant::now();
            if now >= end || self.done() >= enough {
                return Ok(());
            }
            let mut timeout = end - now;
            match self.plan.pace {
                Pace::Window(window) => {
                    self.pump_window(out, now, window);
                    self.check_stall(now)?;
                    timeout = timeout.min(STALL);
                }
                Pace::Rate(rate) => {
                    let next = self.pump_rate(out, now, rate);
                    let left = next.saturating_duration_since(now);
                    timeout = timeout.min(left.saturating_sub(SPIN));
                }
            }
            if self.plan.busy_poll {
                timeout = Duration::ZERO;
            }
            self.step(links, out, Some(timeout))?;
        }
    }

    fn pump_window(&mut self, out: &mut Outbox, now: Instant, window: u32) {
        let mut queued = std::mem::take(&mut self.queued);
        for &index in &queued {
            self.publishers[index].is_queued = false;
            let fan = self.plan.shape.fan();
            let window = u64::from(window);
            let time_ns = self.since_base_ns(now);
            loop {
                let publisher = &self.publishers[index];
                let deliveries =
                    (publisher.sent * fan).saturating_sub(publisher.delivered + publisher.forgiven);
                let unacknowledged = publisher.sent - publisher.acknowledged;
                if fan > 0 && deliveries > (window - 1) * fan
                    || self.plan.qos.is_acknowledged()
                        && unacknowledged >= window.min(publisher.receive_maximum)
                {
                    break;
                }
                self.send(index, time_ns, out);
            }
        }
        queued.clear();
        if self.queued.is_empty() {
            self.queued = queued;
        }
    }

    /// Sends everything that is due; returns when the next message is.
    fn pump_rate(&mut self, out: &mut Outbox, now: Instant, rate: u32) -> Instant {
        let first_publisher = self.plan.shape.subscribers();
        loop {
            let due = self.due_since
                + Duration::from_nanos(self.due.saturating_mul(1_000_000_000) / u64::from(rate));
            if due > now {
                return due;
            }
            let index = (self.due % self.publishers.len() as u64) as usize;
            let publisher = &self.publishers[index];
            let unacknowledged = publisher.sent - publisher.acknowledged;
            if out.pending_bytes(first_publisher + index) > MAX_PENDING_BYTES
                || self.plan.qos.is_acknowledged() && unacknowledged >= publisher.receive_maximum
            {
                // Its lateness shows in the latency, which counts from the due time.
                return now + Duration::from_millis(1);
            }
            let time_ns = self.since_base_ns(due);
            self.send(index, time_ns, out);
            self.due += 1;
        }
    }

    fn since_base_ns(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.base).as_nanos() as u64
    }

    fn send(&mut self, index: usize, time_ns: u64, out: &mut Outbox) {
        let publisher = &mut self.publishers[index];
        publisher.identifier = publisher.identifier % u16::MAX + 1;
        publisher.sent_at_ns[usize::from(publisher.identifier)] = time_ns;
        if self.plan.own_topics.count > 0 {
            let tail = match self.plan.own_topics.of(self.sent) {
                Some(number) => sessions::own_topic(number),
                None => sessions::NEWS.to_owned(),
            };
            publisher.template.end_topic_with(&tail);
        }
        self.sent += 1;
        let stamp = Stamp {
            publisher: index as u32,
            sequence: publisher.sent as u32,
            time_ns,
        };
        publisher.sent += 1;
        let packet = publisher.template.stamped(publisher.identifier, stamp);
        out.packet(self.plan.shape.subscribers() + index, packet);
    }

    fn check_stall(&mut self, now: Instant) -> Result<(), String> {
        let silence = now.saturating_duration_since(self.last_delivery);
        if silence < STALL || self.outstanding() == 0 {
            return Ok(());
        }
        if self.plan.qos.is_acknowledged() {
            return if silence < BROKEN {
                Ok(())
            } else {
                Err(format!("nothing was delivered for {} s", silence.as_secs()))
            };
        }
        self.lost += self.outstanding();
        self.last_delivery = now;
        let fan = self.plan.shape.fan();
        for index in 0..self.publishers.len() {
            let publisher = &mut self.publishers[index];
            publisher.forgiven = (publisher.sent * fan).saturating_sub(publisher.delivered);
            self.queue(index);
        }
        Ok(())
    }

    fn queue(&mut self, index: usize) {
        let publisher = &mut self.publishers[index];
        if !publisher.is_queued {
            publisher.is_queued = true;
            self.queued.push(index);
        }
    }

    fn packet(&mut self, link: usize, packet: &Packet<'_>, out: &mut Outbox, now: Instant) {
        let answer = match packet {
            Packet::Publish(publish) => {
                self.arrived(link, publish.payload, now);
                let kind = if publish.qos == QoS::ExactlyOnce {
                    PacketType::PubRec
                } else {
                    PacketType::PubAck
                };
                publish.packet_id.map(|id| (kind, id))
            }
            Packet::PubRel(ack) => Some((PacketType::PubComp, ack.packet_id)),
            Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubComp(ack)
                if ack.reason.is_error() =>
            {
                self.refused("a message", ack.reason);
                None
            }
            Packet::PubRec(ack) => Some((PacketType::PubRel, ack.packet_id)),
            Packet::PubAck(ack) | Packet::PubComp(ack) => {
                if let Some(index) = link.checked_sub(self.plan.shape.subscribers()) {
                    self.acknowledged(index, ack.packet_id, now);
                }
                None
            }
            Packet::ConnAck(connack) if connack.reason.is_error() => {
                self.refused("the connection", connack.reason);
                None
            }
            Packet::ConnAck(connack) => {
                if let Some(index) = link.checked_sub(self.plan.shape.subscribers()) {
                    let limit = MAX_UNACKNOWLEDGED.min(connack.receive_maximum().into());
                    self.publishers[index].receive_maximum = limit;
                    self.clients[link].state = State::Ready;
                    self.ready += 1;
                } else {
                    self.clients[link].state = State::Subscribing;
                    let filter = self.plan.shape.filter(link);
                    let version = self.credentials.version;
                    out.packet(link, &packets::subscribe(version, &filter, self.plan.qos));
                }
                None
            }
            Packet::SubAck(suback) => {
                if let Some(code) = suback.codes().find(|code| code.is_error()) {
                    self.refused("a subscription", code);
                } else {
                    self.clients[link].state = State::Ready;
                    self.ready += 1;
                }
                None
            }
            Packet::Disconnect(disconnect) => {
                self.refused("to go on", disconnect.reason);
                None
            }
            _ => None,
        };
        if let Some((kind, id)) = answer {
            out.packet(link, &packets::acknowledgement(kind, id));
        }
    }

    fn acknowledged(&mut self, index: usize, identifier: PacketId, now: Instant) {
        let publisher = &mut self.publishers[index];
        publisher.acknowledged += 1;
        let sent_at_ns = publisher.sent_at_ns[usize::from(identifier.get())];
        self.acknowledged += 1;
        if matches!(self.plan.shape, Shape::Unheard(_)) {
            self.last_delivery = now;
        }
        let latency = self.since_base_ns(now).saturating_sub(sent_at_ns);
        self.acknowledgements.saturating_record(latency);
        self.queue(index);
    }

    fn refused(&mut self, what: &str, why: ReasonCode) {
        self.failure = Some(format!("the broker refused {what}: {why:?}"));
    }

    fn arrived(&mut self, link: usize, payload: &[u8], now: Instant) {
        let Some(stamp) = Stamp::of(payload) else {
            return;
        };
        let index = stamp.publisher as usize;
        let Some(publisher) = self.publishers.get_mut(index) else {
            return;
        };
        let expected = &mut self.clients[link].expected;
        let heard = if expected.len() > 1 { index } else { 0 };
        let Some(expected) = expected.get_mut(heard) else {
            return;
        };
        if stamp.sequence < *expected {
            self.repeated += 1;
            return;
        }
        *expected = stamp.sequence + 1;
        publisher.delivered += 1;
        self.delivered += 1;
        self.last_delivery = now;
        let latency = self.since_base_ns(now).saturating_sub(stamp.time_ns);
        self.latencies.saturating_record(latency);
        self.queue(index);
    }
}

impl Observer for Flow<'_> {
    fn link_event(&mut self, link: usize, event: LinkEvent<'_>, out: &mut Outbox, now: Instant) {
        match event {
            LinkEvent::Open => {
                self.clients[link].state = State::Connecting;
                let client_id = self.credentials.client_id(link);
                let login = Login {
                    client_id: &client_id,
                    durable: self.plan.durable && link < self.plan.shape.subscribers(),
                    ..self.credentials.login()
                };
                out.packet(link, &packets::connect(login));
            }
            LinkEvent::Bytes(bytes) => {
                let mut framer = std::mem::take(&mut self.clients[link].framer);
                let version = self.credentials.version;
                let result = packets::read(&mut framer, version, bytes, &mut |packet| {
                    self.packet(link, packet, out, now);
                });
                self.clients[link].framer = framer;
                if let Err(why) = result {
                    self.failure = Some(why);
                }
            }
            LinkEvent::Closed(why) => {
                let what = match self.clients[link].state {
                    State::New => "cannot connect",
                    State::Connecting => "no CONNACK",
                    State::Subscribing => "no SUBACK",
                    State::Ready => "lost a connection",
                };
                self.failure = Some(format!("{what}: {why}"));
            }
        }
    }
}
