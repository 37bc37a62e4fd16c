//! Sessions that outlive their connections: made in any number, and returned to.

use std::ops::Range;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::json;
use sterna_mqtt::{Framer, Packet, PacketType, QoS};

use super::links::{LinkEvent, LinkOptions, Links, Observer, Outbox};
use super::packets::{self, Login};
use super::report::{Report, float};
use super::{Credentials, new_latencies};
use crate::process::{Process, Usage};

/// The topic that all sessions want that have no filter of their own.
pub(super) const NEWS: &str = "bench/news/00000000";
/// Sessions made before the first reading, so that growth does not contain one-time allocations.
const WARM_SESSIONS: u32 = 10;
/// Client identifiers of those begin here.
const WARM_NUMBER: u32 = 4_000_000_000;
/// Time for a broker to finish the work of the last connection.
const SETTLE: Duration = Duration::from_millis(500);

/// The topic of the session with this number, and its filter. As long as [`NEWS`].
pub(super) fn own_topic(number: u32) -> String {
    format!("bench/away/{number:08}")
}

/// Sessions to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Making {
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) own_filters: bool,
    /// Connections at the same time.
    pub(super) at_once: usize,
    pub(super) limit: Duration,
}

/// Sessions that were made.
pub(super) struct Made {
    /// Asked for.
    wanted: u32,
    /// Number of those that were made before the time was up, and are away.
    count: u32,
    /// Why there are no more; `None` where there are all, or the time was up.
    failure: Option<String>,
    took: Duration,
    before: Usage,
    after: Usage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// No connection.
    Vacant,
    Connecting,
    Subscribing,
}

struct Peer {
    framer: Framer,
    number: u32,
    state: State,
}

struct Maker<'a> {
    plan: Making,
    credentials: &'a Credentials,
    peers: Vec<Peer>,
    done: u32,
    /// Links whose session is made.
    over: Vec<usize>,
    failure: Option<String>,
}

/// Makes the sessions, `at_once` at a time, and leaves them.
pub(super) fn make(
    plan: &Making,
    options: &LinkOptions,
    credentials: &Credentials,
    broker: Option<Process>,
) -> Result<Made, String> {
    let usage = || broker.map(Process::usage).unwrap_or_default();
    let warm = Making {
        first: WARM_NUMBER,
        count: WARM_SESSIONS,
        ..*plan
    };
    if let (_, Some(why)) = Maker::make_all(warm, options, credentials)? {
        return Err(why);
    }
    std::thread::sleep(SETTLE);
    let before = usage();
    let start = Instant::now();
    let (count, failure) = Maker::make_all(*plan, options, credentials)?;
    let took = start.elapsed();
    std::thread::sleep(SETTLE);
    Ok(Made {
        wanted: plan.count,
        count,
        failure,
        took,
        before,
        after: usage(),
    })
}

impl Maker<'_> {
    /// Makes the sessions of a plan until its time is up or one cannot be made. Returns their number,
    /// and the reason for the one that cannot.
    fn make_all(
        plan: Making,
        options: &LinkOptions,
        credentials: &Credentials,
    ) -> Result<(u32, Option<String>), String> {
        let mut out = Outbox::default();
        let mut links = Links::new(options, plan.at_once, &mut out)?;
        let vacant = || Peer {
            framer: Framer::new(),
            number: 0,
            state: State::Vacant,
        };
        let mut maker = Maker {
            plan,
            credentials,
            peers: std::iter::repeat_with(vacant).take(plan.at_once).collect(),
            done: 0,
            over: (0..plan.at_once).collect(),
            failure: None,
        };
        let end = Instant::now() + plan.limit;
        let mut started = 0;
        while maker.done < plan.count {
            let now = Instant::now();
            if now > end {
                break;
            }
            for link in std::mem::take(&mut maker.over) {
                // The connection of before has its DISCONNECT queued.
                links.close(link, &mut out, now);
                if started == plan.count {
                    continue;
                }
                maker.peers[link] = Peer {
                    number: plan.first + started,
                    ..vacant()
                };
                started += 1;
                links
                    .open(link, &mut out, now)
                    .map_err(|e| format!("cannot connect: {e}"))?;
            }
            links.flush(&mut maker, &mut out, Instant::now());
            links
                .turn(&mut maker, &mut out, Some(Duration::from_millis(50)))
                .map_err(|e| e.to_string())?;
            if maker.failure.is_some() {
                break;
            }
        }
        let now = Instant::now();
        for link in 0..plan.at_once {
            links.close(link, &mut out, now);
        }
        let failure = maker.failure.take();
        let _ = links.finish(&mut maker, &mut out, SETTLE);
        Ok((maker.done, failure))
    }

    fn packet(&mut self, link: usize, packet: &Packet<'_>, out: &mut Outbox) {
        let peer = &mut self.peers[link];
        match packet {
            Packet::ConnAck(connack) if connack.reason.is_error() => {
                self.failure = Some(format!("refused: {:?}", connack.reason));
            }
            Packet::ConnAck(_) => {
                peer.state = State::Subscribing;
                let filter = if self.plan.own_filters {
                    own_topic(peer.number % 100_000_000)
                } else {
                    NEWS.to_owned()
                };
                let version = self.credentials.version;
                let subscribe = packets::subscribe(version, &filter, QoS::AtLeastOnce);
                out.packet(link, &subscribe);
            }
            Packet::SubAck(suback) => {
                if let Some(code) = suback.codes().find(|code| code.is_error()) {
                    self.failure = Some(format!("the broker refused a subscription: {code:?}"));
                }
                peer.state = State::Vacant;
                out.packet(link, &packets::empty(PacketType::Disconnect));
                self.done += 1;
                self.over.push(link);
            }
            _ => {}
        }
    }
}

impl Observer for Maker<'_> {
    fn link_event(&mut self, link: usize, event: LinkEvent<'_>, out: &mut Outbox, _now: Instant) {
        match event {
            LinkEvent::Open => {
                let peer = &mut self.peers[link];
                peer.state = State::Connecting;
                out.packet(link, &connect(self.credentials, peer.number));
            }
            LinkEvent::Bytes(bytes) => {
                let mut framer = std::mem::take(&mut self.peers[link].framer);
                let version = self.credentials.version;
                let result = packets::read(&mut framer, version, bytes, &mut |packet| {
                    self.packet(link, packet, out);
                });
                self.peers[link].framer = framer;
                if let Err(why) = result {
                    self.failure = Some(why);
                }
            }
            LinkEvent::Closed(why) => {
                let what = match self.peers[link].state {
                    State::Connecting => "no CONNACK",
                    State::Subscribing => "no SUBACK",
                    // After its session is made, the end of a connection is in order.
                    State::Vacant if self.over.contains(&link) => return,
                    State::Vacant => "cannot connect",
                };
                self.failure = Some(format!("{what}: {why}"));
            }
        }
    }
}

/// CONNECT to the session with this number.
fn connect(credentials: &Credentials, number: u32) -> Vec<u8> {
    let client_id = credentials.client_id(number as usize);
    packets::connect(Login {
        client_id: &client_id,
        durable: true,
        ..credentials.login()
    })
}

/// Sessions that were returned to.
pub(super) struct Woken {
    sessions: u64,
    messages: u64,
    /// From the begin of the connection until the first message.
    first: Histogram<u64>,
    /// From there until the last one that was waited for.
    last: Histogram<u64>,
}

struct Sleeper<'a> {
    credentials: &'a Credentials,
    framer: Framer,
    number: u32,
    since: Instant,
    received: u64,
    first: Option<Duration>,
    failure: Option<String>,
}

/// Returns to each session in turn, and takes `messages` messages from each.
pub(super) fn wake(
    numbers: Range<u32>,
    messages: u64,
    limit: Duration,
    options: &LinkOptions,
    credentials: &Credentials,
) -> Result<Woken, String> {
    let mut woken = Woken {
        sessions: 0,
        messages: 0,
        first: new_latencies(),
        last: new_latencies(),
    };
    for number in numbers {
        let mut out = Outbox::default();
        let mut links = Links::new(options, 1, &mut out)?;
        let since = Instant::now();
        let mut sleeper = Sleeper {
            credentials,
            framer: Framer::new(),
            number,
            since,
            received: 0,
            first: None,
            failure: None,
        };
        links
            .open(0, &mut out, since)
            .map_err(|e| format!("cannot connect: {e}"))?;
        while sleeper.received < messages {
            links.flush(&mut sleeper, &mut out, Instant::now());
            links
                .turn(&mut sleeper, &mut out, Some(Duration::from_millis(50)))
                .map_err(|e| e.to_string())?;
            if let Some(why) = sleeper.failure.take() {
                return Err(format!("session {number}: {why}"));
            }
            if since.elapsed() > limit {
                return Err(format!(
                    "session {number} got {} of {messages} messages in {} s",
                    sleeper.received,
                    limit.as_secs()
                ));
            }
        }
        let last = since.elapsed();
        out.packet(0, &packets::empty(PacketType::Disconnect));
        links.flush(&mut sleeper, &mut out, Instant::now());
        links.close(0, &mut out, Instant::now());
        let _ = links.finish(&mut sleeper, &mut out, SETTLE);
        woken.sessions += 1;
        woken.messages += sleeper.received;
        let first = sleeper.first.unwrap_or(last);
        woken.first.saturating_record(first.as_nanos() as u64);
        woken.last.saturating_record(last.as_nanos() as u64);
    }
    Ok(woken)
}

impl Sleeper<'_> {
    fn packet(&mut self, packet: &Packet<'_>, out: &mut Outbox, now: Instant) {
        match packet {
            Packet::ConnAck(connack) if connack.reason.is_error() => {
                self.failure = Some(format!("refused: {:?}", connack.reason));
            }
            Packet::ConnAck(connack) if !connack.session_present => {
                self.failure = Some("the broker has no session of it".to_owned());
            }
            Packet::Publish(publish) => {
                self.received += 1;
                self.first.get_or_insert_with(|| now - self.since);
                if let Some(id) = publish.packet_id {
                    out.packet(0, &packets::acknowledgement(PacketType::PubAck, id));
                }
            }
            _ => {}
        }
    }
}

impl Observer for Sleeper<'_> {
    fn link_event(&mut self, link: usize, event: LinkEvent<'_>, out: &mut Outbox, now: Instant) {
        match event {
            LinkEvent::Open => out.packet(link, &connect(self.credentials, self.number)),
            LinkEvent::Bytes(bytes) => {
                let mut framer = std::mem::take(&mut self.framer);
                let version = self.credentials.version;
                let result = packets::read(&mut framer, version, bytes, &mut |packet| {
                    self.packet(packet, out, now);
                });
                self.framer = framer;
                if let Err(why) = result {
                    self.failure = Some(why);
                }
            }
            LinkEvent::Closed(why) => self.failure = Some(format!("lost the connection: {why}")),
        }
    }
}

/// Tells what was made, and what it costs the broker.
pub(super) fn report_made(report: &mut Report, made: &Made) {
    report.fact("workload", json!("sessions"));
    report.fact("wanted", json!(made.wanted));
    report.fact("sessions", json!(made.count));
    if let Some(why) = &made.failure {
        report.fact("failure", json!(why));
    }
    report.figure("wall_s", made.took.as_secs_f64(), "time", "s");
    let count = u64::from(made.count.max(1));
    if made.after.resident_bytes > 0 {
        let grown = made
            .after
            .resident_bytes
            .saturating_sub(made.before.resident_bytes);
        let each = float(grown / 64) * 64.0 / float(count);
        report.figure("bytes_held", each, "broker memory", "bytes a session");
    }
    report.usage(&made.before, &made.after, count, "session");
    report.written(&made.before, &made.after, count);
}

/// Tells how long it took to get what waited.
pub(super) fn report_woken(report: &mut Report, woken: &Woken) {
    report.fact("workload", json!("wake"));
    report.fact("sessions", json!(woken.sessions));
    report.fact("delivered", json!(woken.messages));
    report.percentiles("first_us", "until the first message", &woken.first);
    report.percentiles("last_us", "until the last message", &woken.last);
}
