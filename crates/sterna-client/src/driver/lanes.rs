//! The byte streams of one connection, and which of them a message takes.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use sterna_mqtt::session::Stage;
use sterna_mqtt::{Framer, Lane, LaneWriter, ReasonCode};

use super::link::Link;
use super::{Done, Driver};
use crate::client::Published;
use crate::error::Error;
use crate::message::{Priority, Publish};
use crate::options::Streams;
use crate::transport::outlet::{Outlet, Waiter};
use crate::transport::quic::CONTROL_PRIORITY;
use crate::transport::{Channel, Quic};

/// Topics of mode `per-topic` that found no stream of their own and stay on control.
const MAX_SHARING_TOPICS: usize = 4_096;
/// A topic's stream that carried nothing for so long gives way to another topic's.
const LANE_IDLE_MS: u64 = 1_000;

/// How long a topic waits for a stream of its own, besides three round trips.
const STREAM_PATIENCE_MS: u64 = 250;

/// What a stream is for.
#[derive(PartialEq, Eq)]
pub(super) enum Purpose {
    /// CONNECT, requests, and whatever has no other place.
    Control,
    /// The messages of one topic.
    Topic(String),
    /// A single message.
    Single,
    /// What must not hold up anything else.
    Bulk,
}

/// One byte stream of the connection.
pub(super) struct LaneIo {
    pub(super) lane: Lane,
    pub(super) outlet: Outlet<Done<Published>>,
    pub(super) framer: Framer,
    /// What was read while the application had no room for messages.
    pub(super) unread: BytesMut,
    purpose: Purpose,
    /// Messages with QoS 1 and 2 that are not acknowledged yet.
    unanswered: usize,
    used_ms: u64,
}

impl LaneIo {
    pub(super) fn new(lane: Lane, channel: Channel, purpose: Purpose, now_ms: u64) -> Self {
        Self {
            lane,
            outlet: Outlet::new(channel),
            framer: Framer::new(),
            unread: BytesMut::new(),
            purpose,
            unanswered: 0,
            used_ms: now_ms,
        }
    }
}

/// A message with QoS 0 counts as published when it was handed to the transport.
impl Waiter for Done<Published> {
    fn handed_over(self, outcome: Result<(), Arc<io::Error>>) {
        let published = Published {
            reason: ReasonCode::Success,
        };
        let _ = self.send(outcome.map(|()| published).map_err(Error::Lost));
    }
}

/// What is to be sent on one lane.
struct OutLane {
    lane: Lane,
    bytes: BytesMut,
    /// Nothing more may be added: the stream ends behind what is there.
    ending: bool,
}

/// What is to be sent, by lane; the lanes are in the order of [`Link::lanes`].
pub(super) struct LaneBuffers(Vec<OutLane>);

impl LaneBuffers {
    pub(super) fn new() -> Self {
        let mut out = Self(Vec::new());
        out.push(Lane::CONTROL);
        out
    }

    fn push(&mut self, lane: Lane) {
        self.0.push(OutLane {
            lane,
            bytes: BytesMut::new(),
            ending: false,
        });
    }

    pub(super) fn control(&mut self) -> &mut BytesMut {
        &mut self.0[0].bytes
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.0.iter().map(|out| out.bytes.len()).sum()
    }

    pub(super) fn control_bytes(&self) -> usize {
        self.0[0].bytes.len()
    }
}

impl LaneWriter for LaneBuffers {
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
        // A lane that is gone or going is answered on the control lane.
        let at = self
            .0
            .iter()
            .position(|out| out.lane == lane && !out.ending)
            .unwrap_or(0);
        &mut self.0[at].bytes
    }
}

/// How a connection's streams are used.
#[derive(Default)]
pub(super) struct Sharing {
    /// Topics that stay on control because there was no stream for them.
    topics: HashSet<String>,
    /// Bulk stays on control because there was no stream for it.
    bulk: bool,
    /// The server has no room for another stream; until then a topic waits for it.
    pub(super) wait_until_ms: Option<u64>,
    /// It had none until then.
    pub(super) gave_up: bool,
}

impl Link {
    /// Writes what there is to write. True when something was taken.
    pub(super) fn write(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut wrote = false;
        let mut at = 0;
        while at < self.lanes.len() {
            let outlet = &mut self.lanes[at].outlet;
            let before = outlet.sent_bytes();
            let result = outlet.write(&mut self.out.0[at].bytes, cx);
            self.packet_bytes_sent += outlet.sent_bytes() - before;
            match result {
                Ok(some) => {
                    wrote |= some;
                    if at > 0 && self.out.0[at].ending && self.out.0[at].bytes.is_empty() {
                        let _ = self.lanes[at].outlet.poll_end(cx);
                    }
                    at += 1;
                }
                Err(error) if at == 0 => return Err(error),
                Err(_) => self.lane_lost(driver, at),
            }
        }
        if wrote {
            self.connection.sent(driver.clock.now_ms());
        }
        Ok(wrote)
    }

    /// Streams that were opened for early data that the server rejected take their new places, in
    /// order, before anything else is opened.
    pub(super) fn open_again(&mut self, cx: &mut Context<'_>) {
        for io in &mut self.lanes {
            if let Channel::Quic(stream) = &mut io.outlet.channel {
                // Errors come back with the next write or read.
                let _ = stream.poll_ready(cx);
            }
        }
    }

    fn at(&self, lane: Lane) -> usize {
        let found = self.lanes.iter().position(|io| io.lane == lane);
        found.unwrap_or(0)
    }

    /// A message that will be acknowledged was put into the buffer of a lane.
    pub(super) fn note_sent(&mut self, lane: Lane) {
        let at = self.at(lane);
        self.lanes[at].unanswered += 1;
    }

    /// A message without an acknowledgement was put into the buffer of a lane, behind so many bytes.
    pub(super) fn note_unacknowledged(
        &mut self,
        lane: Lane,
        behind: usize,
        done: Option<Done<Published>>,
    ) {
        let at = self.at(lane);
        let io = &mut self.lanes[at];
        let buffered = self.out.0[at].bytes.len();
        let bytes = buffered.saturating_sub(behind);
        io.outlet.note(buffered, bytes, done);
        if io.purpose == Purpose::Single {
            self.out.0[at].ending = true;
        }
    }

    /// A stream that was opened for one message is of no use to it.
    pub(super) fn note_unused(&mut self, lane: Lane) {
        let at = self.at(lane);
        let io = &self.lanes[at];
        if io.purpose == Purpose::Single && io.unanswered == 0 {
            self.out.0[at].ending = true;
        }
    }

    /// A message that went out on `lane` has been acknowledged.
    pub(super) fn note_answered(&mut self, lane: Lane) {
        let at = self.at(lane);
        let io = &mut self.lanes[at];
        io.unanswered = io.unanswered.saturating_sub(1);
        if io.purpose == Purpose::Single && io.unanswered == 0 {
            self.out.0[at].ending = true;
        }
    }

    /// A stream besides the first has ended or was aborted: what was not acknowledged on it is sent
    /// again on control, and the connection goes on without it.
    pub(super) fn lane_lost(&mut self, driver: &mut Driver, at: usize) {
        let mut io = self.lanes.remove(at);
        self.out.0.remove(at);
        let lane = io.lane;
        io.outlet.lose_written();
        self.unacknowledged += io.outlet.unacknowledged();
        self.connection.lane_closed(&mut driver.session, lane);
        if io.unanswered == 0 {
            return;
        }
        tracing::debug!(stream = lane.0, messages = io.unanswered, "stream lost");
        let unacknowledged: Vec<_> = driver.session.unacknowledged().collect();
        for outgoing in unacknowledged {
            if let Some(sent) = driver.sent.get_mut(&outgoing.tag)
                && sent.lane == lane
            {
                sent.lane = Lane::CONTROL;
                self.lanes[0].unanswered += 1;
                self.orphans.push(outgoing);
            }
        }
        if self.connection.is_connected() {
            self.send_orphans(driver);
        }
    }

    /// Sends again, on control, what lost streams carried. Not before the server has accepted the
    /// connection: until then nobody knows what it takes.
    pub(super) fn send_orphans(&mut self, driver: &mut Driver) {
        for outgoing in std::mem::take(&mut self.orphans) {
            let known = driver.session.outgoing(outgoing.packet_id);
            let Some(stage) = known
                .filter(|known| known.tag == outgoing.tag)
                .map(|known| known.stage)
            else {
                continue;
            };
            if stage == Stage::Release {
                self.connection
                    .release_again(outgoing.packet_id, self.out.control());
                continue;
            }
            let Some(sent) = driver.sent.get(&outgoing.tag) else {
                continue;
            };
            let message = super::requests::view(&sent.publication.message);
            let again =
                self.connection
                    .resend(&mut driver.session, outgoing, &message, self.out.control());
            if let Err(error) = again {
                driver.session.forget_outgoing(outgoing.packet_id);
                if let Some(sent) = driver.sent.remove(&outgoing.tag) {
                    sent.publication.finish(Err(error.into()));
                }
            }
        }
    }

    /// Ends the streams besides the first one, and tells when the server has all that was written
    /// to them: the DISCONNECT on the first one must not overtake messages.
    pub(super) fn finish_further_lanes(&mut self, cx: &mut Context<'_>) -> bool {
        let mut finished = true;
        for at in 1..self.lanes.len() {
            self.out.0[at].ending = true;
            finished &=
                self.out.0[at].bytes.is_empty() && self.lanes[at].outlet.poll_end(cx).is_ready();
        }
        finished
    }

    /// Writes what is still to be said at the end, as far as it goes without waiting.
    pub(super) fn write_last(&mut self, cx: &mut Context<'_>) {
        for (io, out) in self.lanes.iter_mut().zip(&mut self.out.0) {
            let _ = io.outlet.write(&mut out.bytes, cx);
        }
    }

    /// Bytes that wait on the lane of bulk messages.
    pub(super) fn bulk_bytes(&self) -> usize {
        let at = self.lanes.iter().position(|io| io.purpose == Purpose::Bulk);
        self.out.0[at.unwrap_or(0)].bytes.len()
    }

    // ---- Choosing --------------------------------------------------------------------------

    /// The lane for a message; none when it must wait for one.
    pub(super) fn lane_for(
        &mut self,
        driver: &Driver,
        message: &Publish,
        cx: &mut Context<'_>,
    ) -> Option<Lane> {
        if self.quic.is_none() {
            return Some(Lane::CONTROL);
        }
        let most = usize::from(driver.options.max_streams);
        let now_ms = driver.clock.now_ms();
        match driver.options.streams {
            Streams::PerTopic => self.lane_of_topic(message, most, now_ms, cx),
            Streams::PerPublish => {
                let priority = message.priority.of_stream();
                if self.lanes.len() <= most
                    && let Some(lane) = self.open_lane(Purpose::Single, priority, now_ms, cx)
                {
                    return Some(lane);
                }
                // The end of others makes room, as soon as the server says so; where it allows none
                // at all, control has to do.
                (self.streams == 1).then_some(Lane::CONTROL)
            }
            Streams::Priority if message.is_bulk() => {
                let bulk = self.lanes.iter().zip(&self.out.0).find_map(|(io, out)| {
                    (io.purpose == Purpose::Bulk && !out.ending).then_some(io.lane)
                });
                if bulk.is_some() || self.sharing.bulk {
                    return bulk.or(Some(Lane::CONTROL));
                }
                let priority = Priority::Bulk.of_stream();
                let opened = self.open_lane(Purpose::Bulk, priority, now_ms, cx);
                // Later messages must not overtake those that are on control already.
                self.sharing.bulk = opened.is_none();
                opened.or(Some(Lane::CONTROL))
            }
            Streams::Single | Streams::Priority => Some(Lane::CONTROL),
        }
    }

    /// The topic's own stream. Where there are as many as may be, the one that was used least
    /// recently ends, if nothing is under way on it; the topic waits for that, because a message
    /// must not overtake an earlier one of its topic. If all are busy the topic stays on control.
    fn lane_of_topic(
        &mut self,
        message: &Publish,
        most: usize,
        now_ms: u64,
        cx: &mut Context<'_>,
    ) -> Option<Lane> {
        let topic = message.topic();
        let own = |io: &LaneIo| matches!(&io.purpose, Purpose::Topic(of) if of == topic);
        if let Some(at) = self.lanes.iter().position(own) {
            self.lanes[at].used_ms = now_ms;
            return (!self.out.0[at].ending).then(|| self.lanes[at].lane);
        }
        if self.sharing.topics.contains(topic) {
            return Some(Lane::CONTROL);
        }
        if self.lanes.len() <= most {
            let purpose = Purpose::Topic(topic.to_owned());
            let priority = message.priority.of_stream();
            if let Some(lane) = self.open_lane(purpose, priority, now_ms, cx) {
                self.sharing.wait_until_ms = None;
                self.sharing.gave_up = false;
                return Some(lane);
            }
            // Servers allow a few at first, and more as these come into use.
            if !self.sharing.gave_up {
                let rtt = self.quic.as_ref().map_or(Duration::ZERO, Quic::rtt);
                let patience_ms = 3 * rtt.as_millis() as u64 + STREAM_PATIENCE_MS;
                self.sharing
                    .wait_until_ms
                    .get_or_insert(now_ms + patience_ms);
                return None;
            }
        }
        if self.sharing.topics.len() >= MAX_SHARING_TOPICS {
            return Some(Lane::CONTROL);
        }
        // One is on its way out already.
        if self.out.0.iter().any(|out| out.ending) {
            return None;
        }
        let idle = |(at, io): &(usize, &LaneIo)| {
            io.purpose != Purpose::Control
                && io.unanswered == 0
                && self.out.0[*at].bytes.is_empty()
                && now_ms >= io.used_ms + LANE_IDLE_MS
        };
        let oldest = self
            .lanes
            .iter()
            .enumerate()
            .filter(idle)
            .min_by_key(|(_, io)| io.used_ms);
        if let Some((at, _)) = oldest {
            self.out.0[at].ending = true;
            let _ = self.lanes[at].outlet.poll_end(cx);
            return None;
        }
        self.sharing.topics.insert(topic.to_owned());
        Some(Lane::CONTROL)
    }

    fn open_lane(
        &mut self,
        purpose: Purpose,
        priority: i32,
        now_ms: u64,
        cx: &mut Context<'_>,
    ) -> Option<Lane> {
        debug_assert!(priority < CONTROL_PRIORITY);
        let Poll::Ready(Ok(stream)) = self.quic.as_mut()?.poll_open(priority, cx) else {
            return None;
        };
        // The n-th stream of a client in both directions (RFC 9000 section 2.1).
        let lane = Lane(stream.number() * 4);
        let channel = Channel::Quic(Box::pin(stream));
        self.lanes.push(LaneIo::new(lane, channel, purpose, now_ms));
        self.out.push(lane);
        self.streams += 1;
        Some(lane)
    }
}
