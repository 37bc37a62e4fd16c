//! Connections that are held, and connections that come and go.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sterna_mqtt::{Framer, Packet, PacketType};

use super::links::{LinkEvent, LinkOptions, Links, Observer, Outbox};
use super::packets::{self, Login};
use super::{Credentials, new_latencies};
use crate::process::{Process, Usage};

/// Opened and held before the first reading, so that growth does not contain the broker's one-time
/// allocations.
const WARM_CONNECTIONS: usize = 10;
/// Connections made before the first reading of the connect workload.
const WARM_CONNECTS: u64 = 50;
/// Time for a broker to finish the work of the last connection.
const SETTLE: Duration = Duration::from_millis(300);
/// Longest wait for the answers to the final PINGREQ.
const PING_LIMIT: Duration = Duration::from_secs(5);

/// Result of holding connections.
pub(super) struct Held {
    /// Connections between the first and the second reading.
    pub(super) connections: u64,
    /// Of all connections, those that answered a ping at the end.
    pub(super) alive: u64,
    pub(super) opened_in: Duration,
    pub(super) lasted: Duration,
    pub(super) before: Usage,
    pub(super) opened: Usage,
    pub(super) after: Usage,
}

/// Result of repeated connecting.
pub(super) struct Connected {
    pub(super) connects: u64,
    pub(super) failed: u64,
    pub(super) first_failure: Option<String>,
    pub(super) wall: Duration,
    pub(super) latencies: Histogram<u64>,
    pub(super) before: Usage,
    pub(super) after: Usage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Job {
    Hold,
    ComeAndGo,
}

struct Peer {
    framer: Framer,
    since: Instant,
    /// The identifier of the client, new for each connect.
    number: usize,
}

struct Door<'a> {
    job: Job,
    credentials: &'a Credentials,
    peers: Vec<Peer>,
    ready: u64,
    failed: u64,
    first_failure: Option<String>,
    alive: u64,
    /// Links whose connection is over and can be used again.
    vacant: Vec<usize>,
    latencies: Histogram<u64>,
}

/// Opens `connections` (`at_once` at a time) and holds them.
pub(super) fn hold(
    connections: usize,
    at_once: usize,
    duration: Duration,
    limit: Duration,
    options: &LinkOptions,
    credentials: &Credentials,
    broker: Option<Process>,
) -> Result<Held, String> {
    let mut out = Outbox::default();
    let total = connections + WARM_CONNECTIONS;
    let mut links = Links::new(options, total, &mut out)?;
    let mut door = Door::new(Job::Hold, total, credentials);
    let usage = || broker.map(Process::usage).unwrap_or_default();
    let end = Instant::now() + limit;
    door.open_to(WARM_CONNECTIONS, at_once, end, &mut links, &mut out)?;
    door.wait(SETTLE, &mut links, &mut out)?;
    let before = usage();
    let start = Instant::now();
    door.open_to(total, at_once, end, &mut links, &mut out)?;
    let opened_in = start.elapsed();
    door.wait(SETTLE, &mut links, &mut out)?;
    let opened = usage();
    let start = Instant::now();
    door.wait(duration, &mut links, &mut out)?;
    let held_for = start.elapsed();
    let after = usage();
    for link in 0..total {
        out.packet(link, &packets::empty(PacketType::PingReq));
    }
    let end = Instant::now() + PING_LIMIT;
    while door.alive + door.failed < total as u64 && Instant::now() < end {
        door.step(Duration::from_millis(20), &mut links, &mut out)?;
    }
    let now = Instant::now();
    for link in 0..total {
        out.packet(link, &packets::empty(PacketType::Disconnect));
        links.close(link, &mut out, now);
    }
    let _ = links.finish(&mut door, &mut out, SETTLE);
    Ok(Held {
        connections: connections as u64,
        alive: door.alive,
        opened_in,
        lasted: held_for,
        before,
        opened,
        after,
    })
}

/// Connects `connects` times, `at_once` at a time, for at most `limit`.
pub(super) fn come_and_go(
    connects: u64,
    at_once: usize,
    limit: Duration,
    options: &LinkOptions,
    credentials: &Credentials,
    broker: Option<Process>,
) -> Result<Connected, String> {
    let mut out = Outbox::default();
    let mut links = Links::new(options, at_once, &mut out)?;
    let mut door = Door::new(Job::ComeAndGo, at_once, credentials);
    door.vacant = (0..at_once).collect();
    let usage = || broker.map(Process::usage).unwrap_or_default();
    let end = Instant::now() + limit;
    door.connect_until(WARM_CONNECTS.min(connects), end, &mut links, &mut out)?;
    door.wait(SETTLE, &mut links, &mut out)?;
    let (warm, warm_failed) = (door.ready, door.failed);
    door.latencies.reset();
    let before = usage();
    let start = Instant::now();
    door.connect_until(warm + warm_failed + connects, end, &mut links, &mut out)?;
    let wall = start.elapsed();
    door.wait(SETTLE, &mut links, &mut out)?;
    let after = usage();
    let _ = links.finish(&mut door, &mut out, SETTLE);
    Ok(Connected {
        connects: door.ready - warm,
        failed: door.failed - warm_failed,
        first_failure: door.first_failure,
        wall,
        latencies: door.latencies,
        before,
        after,
    })
}

impl<'a> Door<'a> {
    fn new(job: Job, links: usize, credentials: &'a Credentials) -> Self {
        let since = Instant::now();
        let peer = |number| Peer {
            framer: Framer::new(),
            since,
            number,
        };
        Self {
            job,
            credentials,
            peers: (0..links).map(peer).collect(),
            ready: 0,
            failed: 0,
            first_failure: None,
            alive: 0,
            vacant: Vec::new(),
            latencies: new_latencies(),
        }
    }

    fn step(
        &mut self,
        timeout: Duration,
        links: &mut Links,
        out: &mut Outbox,
    ) -> Result<(), String> {
        links.flush(self, out, Instant::now());
        links
            .turn(self, out, Some(timeout))
            .map_err(|e| e.to_string())
    }

    fn wait(
        &mut self,
        duration: Duration,
        links: &mut Links,
        out: &mut Outbox,
    ) -> Result<(), String> {
        let end = Instant::now() + duration;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.step(left, links, out)?;
        }
    }

    fn open_to(
        &mut self,
        total: usize,
        at_once: usize,
        end: Instant,
        links: &mut Links,
        out: &mut Outbox,
    ) -> Result<(), String> {
        let mut started = (self.ready + self.failed) as usize;
        while ((self.ready + self.failed) as usize) < total {
            let now = Instant::now();
            while started < total && started - ((self.ready + self.failed) as usize) < at_once {
                self.peers[started].since = now;
                links
                    .open(started, out, now)
                    .map_err(|e| format!("cannot connect: {e}"))?;
                started += 1;
            }
            self.step(Duration::from_millis(50), links, out)?;
            if let Some(why) = &self.first_failure {
                return Err(format!(
                    "connection {} of {total}: {why}",
                    self.ready + self.failed
                ));
            }
            if Instant::now() > end {
                return Err(format!(
                    "{} of {total} connections when time was up",
                    self.ready
                ));
            }
        }
        Ok(())
    }

    fn connect_until(
        &mut self,
        count: u64,
        end: Instant,
        links: &mut Links,
        out: &mut Outbox,
    ) -> Result<(), String> {
        let mut started = self.ready + self.failed;
        while self.ready + self.failed < count {
            let now = Instant::now();
            if now > end {
                return Err(format!(
                    "{} of {count} connects when time was up",
                    self.ready
                ));
            }
            for link in std::mem::take(&mut self.vacant) {
                // The connection of before has its DISCONNECT queued.
                links.close(link, out, now);
                if started == count {
                    self.vacant.push(link);
                    continue;
                }
                started += 1;
                let peer = &mut self.peers[link];
                *peer = Peer {
                    framer: Framer::new(),
                    since: now,
                    number: started as usize,
                };
                links
                    .open(link, out, now)
                    .map_err(|e| format!("cannot connect: {e}"))?;
            }
            self.step(Duration::from_millis(50), links, out)?;
        }
        let now = Instant::now();
        for &link in &self.vacant {
            links.close(link, out, now);
        }
        Ok(())
    }

    fn fail(&mut self, link: usize, why: String) {
        self.failed += 1;
        self.first_failure.get_or_insert(why);
        if self.job == Job::ComeAndGo {
            self.vacant.push(link);
        }
    }
}

impl Observer for Door<'_> {
    fn link_event(&mut self, link: usize, event: LinkEvent<'_>, out: &mut Outbox, now: Instant) {
        match event {
            LinkEvent::Open => {
                let client_id = self.credentials.client_id(self.peers[link].number);
                let login = Login {
                    client_id: &client_id,
                    ..self.credentials.login()
                };
                out.packet(link, &packets::connect(login));
            }
            LinkEvent::Bytes(bytes) => {
                let mut framer = std::mem::take(&mut self.peers[link].framer);
                let version = self.credentials.version;
                let result =
                    packets::read(&mut framer, version, bytes, &mut |packet| match packet {
                        Packet::ConnAck(connack) if connack.reason.is_error() => {
                            self.fail(link, format!("refused: {:?}", connack.reason));
                        }
                        Packet::ConnAck(_) => {
                            self.ready += 1;
                            let latency = now.saturating_duration_since(self.peers[link].since);
                            self.latencies.saturating_record(latency.as_nanos() as u64);
                            if self.job == Job::ComeAndGo {
                                out.packet(link, &packets::empty(PacketType::Disconnect));
                                self.vacant.push(link);
                            }
                        }
                        Packet::PingResp => self.alive += 1,
                        _ => {}
                    });
                self.peers[link].framer = framer;
                if let Err(why) = result {
                    self.fail(link, why);
                }
            }
            LinkEvent::Closed(why) => {
                // After its CONNACK the end of a connection that comes and goes is in order.
                if self.job == Job::Hold || !self.vacant.contains(&link) {
                    self.fail(link, why.to_owned());
                }
            }
        }
    }
}
