//! The byte streams of one connection, and which of them a message takes.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use sterna_mqtt::session::Stage;
use sterna_mqtt::{Framer, Lane, LaneWriter, ReasonCode};

use super::connection::Link;
use super::{Done, Driver};
use crate::client::Published;
use crate::error::Error;
use crate::message::{Priority, Publish};
use crate::options::Streams;
use crate::transport::carrier;
use crate::transport::outlet::Waiter;
use crate::transport::quic::CONTROL_PRIORITY;
use crate::transport::{Channel, Quic};

/// Topics of mode `per-topic` that found no stream of their own and stay on control.
const MAX_SHARING_TOPICS: usize = 4_096;
/// Idle time after which a topic's stream gives way to another topic's.
const LANE_IDLE_MS: u64 = 1_000;

/// Longest wait of a topic for a stream of its own, besides three round trips.
const STREAM_PATIENCE_MS: u64 = 250;

/// Purpose of a stream.
#[derive(PartialEq, Eq)]
pub(super) enum Purpose {
    /// CONNECT, requests, and all data without another lane.
    Control,
    /// The messages of one topic.
    Topic(String),
    /// A single message.
    Single,
    /// Messages that must not delay others.
    Bulk,
}

/// MQTT's state of each byte stream.
pub(super) struct LaneState {
    pub(super) framer: Framer,
    purpose: Purpose,
    /// Messages with QoS 1 and 2 that are not acknowledged yet.
    unanswered: usize,
    used_ms: u64,
}

impl LaneState {
    pub(super) fn new(purpose: Purpose, now_ms: u64) -> Self {
        Self {
            framer: Framer::new(),
            purpose,
            unanswered: 0,
            used_ms: now_ms,
        }
    }
}

pub(super) type Lanes = carrier::Lanes<LaneState, Done<Published>>;
pub(super) type Carrier = carrier::Carrier<LaneState, Done<Published>>;
type LaneIo = carrier::LaneIo<LaneState, Done<Published>>;

/// A message with QoS 0 counts as published when it was handed to the transport.
impl Waiter for Done<Published> {
    fn handed_over(self, outcome: Result<(), Arc<io::Error>>) {
        let published = Published {
            reason: ReasonCode::Success,
        };
        let _ = self.send(outcome.map(|()| published).map_err(Error::Lost));
    }
}

impl LaneWriter for Lanes {
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
        self.buffer_of(lane.0)
    }
}

/// Use of a connection's streams.
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
    /// Writes what there is to write. True when there was progress.
    pub(super) fn write(
        &mut self,
        driver: &mut Driver,
        cx: &mut Context<'_>,
    ) -> Result<bool, Error> {
        let before = self.carrier.sent_bytes;
        let progress = self.carrier.write(cx).map_err(Error::Lost)?;
        while let Some(at) = self.carrier.lanes.0.iter().position(|io| io.ended) {
            self.lane_lost(driver, at);
        }
        if self.carrier.sent_bytes > before {
            self.connection.sent(driver.clock.now_ms());
        }
        Ok(progress)
    }

    /// Streams that were opened for early data that the server rejected take their new places, in
    /// order, before anything else is opened.
    pub(super) fn open_again(&mut self, cx: &mut Context<'_>) {
        for io in &mut self.carrier.lanes.0 {
            if let Channel::Quic(stream) = &mut io.outlet.channel {
                // Errors come back with the next write or read.
                let _ = stream.poll_ready(cx);
            }
        }
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneIo {
        let at = self.carrier.lanes.at(lane.0);
        &mut self.carrier.lanes.0[at.unwrap_or(0)]
    }

    /// A message that will be acknowledged was put into the buffer of a lane.
    pub(super) fn note_sent(&mut self, lane: Lane) {
        self.lane(lane).state.unanswered += 1;
    }

    /// A message without an acknowledgement was put into the buffer of a lane, after this number of
    /// bytes.
    pub(super) fn note_unacknowledged(
        &mut self,
        lane: Lane,
        behind: usize,
        done: Option<Done<Published>>,
    ) {
        let io = self.lane(lane);
        debug_assert!(
            io.outlet.buffer.len() >= behind,
            "a message is behind what was there"
        );
        let bytes = io.outlet.buffer.len().saturating_sub(behind);
        io.outlet.note(bytes, done);
        io.outlet.ending |= io.state.purpose == Purpose::Single;
    }

    /// A stream that was opened for one message is of no use to it.
    pub(super) fn note_unused(&mut self, lane: Lane) {
        let io = self.lane(lane);
        io.outlet.ending |= io.state.purpose == Purpose::Single && io.state.unanswered == 0;
    }

    /// A message that went out on `lane` has been acknowledged.
    pub(super) fn note_answered(&mut self, lane: Lane) {
        let io = self.lane(lane);
        io.state.unanswered = io.state.unanswered.saturating_sub(1);
        self.note_unused(lane);
    }

    /// A stream besides the first has ended or was aborted. Its unacknowledged messages are sent
    /// again on control, and the connection continues without it.
    pub(super) fn lane_lost(&mut self, driver: &mut Driver, at: usize) {
        let io = self.carrier.remove(at);
        let lane = Lane(io.id);
        self.connection.lane_closed(&mut driver.session, lane);
        if io.state.unanswered == 0 {
            return;
        }
        tracing::debug!(
            stream = lane.0,
            messages = io.state.unanswered,
            "stream lost"
        );
        let unacknowledged: Vec<_> = driver.session.unacknowledged().collect();
        for outgoing in unacknowledged {
            if let Some(sent) = driver.sent.get_mut(&outgoing.tag)
                && sent.lane == lane
            {
                sent.lane = Lane::CONTROL;
                self.has_resent = true;
                self.lane(Lane::CONTROL).state.unanswered += 1;
                self.orphans.push(outgoing);
            }
        }
        if self.connection.is_connected() {
            self.send_orphans(driver);
        }
    }

    /// Sends again, on control, what lost streams carried. Only after the server has accepted the
    /// connection: its limits are unknown before.
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
                    .release_again(outgoing.packet_id, self.carrier.lanes.control());
                continue;
            }
            let Some(sent) = driver.sent.get(&outgoing.tag) else {
                continue;
            };
            let message = super::requests::view(&sent.publication.message);
            let again = self.connection.resend(
                &mut driver.session,
                outgoing,
                &message,
                self.carrier.lanes.control(),
            );
            if let Err(error) = again {
                let control = self.carrier.lanes.control();
                (self.connection).give_up(&mut driver.session, outgoing, control);
                if let Some(sent) = driver.sent.remove(&outgoing.tag) {
                    sent.publication.finish(Err(error.into()));
                }
            }
        }
    }

    /// Ends the streams besides the first one. True when the server has all of their data: the
    /// DISCONNECT on the first one must not overtake messages.
    pub(super) fn finish_further_lanes(&mut self) -> bool {
        let further = &mut self.carrier.lanes.0[1..];
        for io in &mut *further {
            io.outlet.ending = true;
        }
        further.iter().all(|io| io.outlet.is_finished())
    }

    /// Bytes that wait on the lane of bulk messages.
    pub(super) fn bulk_bytes(&self) -> usize {
        let mut lanes = self.carrier.lanes.0.iter();
        let bulk = lanes.find(|io| io.state.purpose == Purpose::Bulk);
        bulk.unwrap_or(&self.carrier.lanes.0[0]).outlet.buffer.len()
    }

    // ---- Choosing --------------------------------------------------------------------------

    /// The lane for a message; `None` if it must wait for one.
    pub(super) fn lane_for(
        &mut self,
        driver: &Driver,
        message: &Publish,
        cx: &mut Context<'_>,
    ) -> Option<Lane> {
        if self.carrier.quic.is_none() {
            return Some(Lane::CONTROL);
        }
        let most = usize::from(driver.options.max_streams);
        let now_ms = driver.clock.now_ms();
        if driver.options.streams == Streams::PerTopic && self.is_behind(driver, message.topic()) {
            return Some(Lane::CONTROL);
        }
        match driver.options.streams {
            Streams::PerTopic => self.lane_of_topic(message, most, now_ms, cx),
            Streams::PerPublish => {
                let priority = message.priority.of_stream();
                if self.carrier.lanes.0.len() <= most
                    && let Some(lane) = self.open_lane(Purpose::Single, priority, now_ms, cx)
                {
                    return Some(lane);
                }
                // The end of other lanes makes room, as soon as the server says so. A server that
                // allows none leaves only control.
                (self.carrier.opened == 1).then_some(Lane::CONTROL)
            }
            Streams::Priority if message.is_bulk() => {
                let bulk = self.carrier.lanes.0.iter().find_map(|io| {
                    let is_bulk = io.state.purpose == Purpose::Bulk && !io.outlet.ending;
                    is_bulk.then_some(Lane(io.id))
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

    /// Whether messages of a topic that were sent again, on control, are not acknowledged yet. Another stream would
    /// overtake them.
    fn is_behind(&mut self, driver: &Driver, topic: &str) -> bool {
        if !self.has_resent {
            return false;
        }
        let mut on_control = (driver.sent.values())
            .filter(|sent| sent.lane == Lane::CONTROL)
            .peekable();
        self.has_resent = on_control.peek().is_some();
        on_control.any(|sent| sent.publication.message.topic() == topic)
    }

    /// The topic's own stream. At the limit of streams, the one that was used least recently ends,
    /// if it is idle. The topic waits for that, because a message must not overtake an earlier one
    /// of its topic. If all are busy the topic stays on control.
    fn lane_of_topic(
        &mut self,
        message: &Publish,
        most: usize,
        now_ms: u64,
        cx: &mut Context<'_>,
    ) -> Option<Lane> {
        let topic = message.topic();
        let own = |io: &&mut LaneIo| matches!(&io.state.purpose, Purpose::Topic(of) if of == topic);
        if let Some(io) = self.carrier.lanes.0.iter_mut().find(own) {
            io.state.used_ms = now_ms;
            return (!io.outlet.ending).then_some(Lane(io.id));
        }
        if self.sharing.topics.contains(topic) {
            return Some(Lane::CONTROL);
        }
        if self.carrier.lanes.0.len() <= most {
            let purpose = Purpose::Topic(topic.to_owned());
            let priority = message.priority.of_stream();
            if let Some(lane) = self.open_lane(purpose, priority, now_ms, cx) {
                self.sharing.wait_until_ms = None;
                self.sharing.gave_up = false;
                return Some(lane);
            }
            // Servers allow a few at first, and more as these come into use.
            if !self.sharing.gave_up {
                let rtt = self.carrier.quic.as_ref().map_or(Duration::ZERO, Quic::rtt);
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
        let lanes = &mut self.carrier.lanes.0;
        // One is on its way out already.
        if lanes.iter().any(|io| io.outlet.ending) {
            return None;
        }
        let is_idle = |io: &&mut LaneIo| {
            io.state.purpose != Purpose::Control
                && io.state.unanswered == 0
                && io.outlet.buffer.is_empty()
                && now_ms >= io.state.used_ms + LANE_IDLE_MS
        };
        let idle = lanes.iter_mut().filter(is_idle);
        if let Some(oldest) = idle.min_by_key(|io| io.state.used_ms) {
            oldest.outlet.ending = true;
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
        let state = LaneState::new(purpose, now_ms);
        match self.carrier.poll_open(priority, state, cx) {
            Poll::Ready(id) => id.map(Lane),
            Poll::Pending => None,
        }
    }
}
