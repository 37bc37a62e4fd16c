//! Session state that outlives connections (MQTT 5.0, section 4.1): Packet Identifiers and the
//! state of each delivery. One type for both ends.
//!
//! *Outgoing* are all identifiers that this end uses, in the order of sending. Each has the
//! caller's `tag`: a broker's delivery, a client's publication or request. *Incoming* are
//! identifiers of QoS 2 messages that were received and not yet released.
//!
//! The state lasts as long as the caller keeps it ([MQTT-4.1.0-1], [MQTT-3.1.2-23],
//! [MQTT311-3.1.2-5]). [`MqttSession::restored`] makes it anew from identifiers that the caller has
//! stored.
//!
//! An empty session holds no heap memory after [`MqttSession::compact`].

mod content;
mod incoming;
mod inherited;
mod named;
mod outgoing;

pub use content::{Content, ReceivedId};
pub use incoming::Received;
pub use outgoing::{AckError, AwaitedAck, Stage};

use incoming::Incoming;
use outgoing::Outbox;

use crate::{Lane, PacketId, ReasonCode};

/// The state of one MQTT session at one end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MqttSession {
    outgoing: Outbox,
    incoming: Incoming,
}

impl MqttSession {
    /// A new session without state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A session from stored state. `received` are the QoS 2 messages that were
    /// received and not released. The second list has messages that the peer has and whose PUBCOMP
    /// is due. It has their tags, in the order of sending. Of two with one identifier the first
    /// counts.
    #[must_use]
    pub fn restored(
        received: impl Iterator<Item = ReceivedId>,
        handed_over: impl Iterator<Item = (PacketId, u64)>,
    ) -> Self {
        let mut outgoing = Outbox::default();
        for (packet_id, tag) in handed_over {
            outgoing.allocate_as(packet_id, tag, Stage::Release, false);
        }
        Self {
            outgoing,
            incoming: Incoming::of_earlier(received),
        }
    }

    /// A client's session that an earlier process began, and of which this one knows nothing: any
    /// identifier may belong to a message with QoS 2 that the server received and that was not
    /// released. New ones take only identifiers that the server has released before this end's eyes
    /// ([`MqttSession::ask_for_identifiers`]).
    #[must_use]
    pub fn inherited() -> Self {
        Self {
            outgoing: Outbox::inherited(),
            incoming: Incoming::default(),
        }
    }

    /// The server had no session from before, so this one is no longer an inherited one.
    pub fn disinherit(&mut self) {
        self.outgoing.disinherit();
    }

    /// Prepares for a new connection that continues the session. All unacknowledged messages are to
    /// be sent again, unanswered requests are forgotten, and lanes start again.
    ///
    /// `server::Connection::accept` and its counterpart of the client call it.
    pub fn begin_connection(&mut self) {
        self.outgoing.begin_connection();
        self.incoming.begin_connection();
    }

    /// All received messages with QoS 2 count as acknowledged, for an end that hands them on as they
    /// come. Without it, those without a PUBREC stay so on the next connection.
    pub fn mark_all_received(&mut self) {
        // [MQTT-4.3.3-10]
        self.incoming.mark_all_received();
    }

    /// The application acknowledges a message with QoS 2 of an earlier connection, whose repetition is
    /// yet to come.
    pub fn mark_earlier_received(&mut self, packet_id: PacketId) {
        self.incoming.mark_earlier(packet_id);
    }

    /// Discards all state: the session starts again.
    pub fn clear(&mut self) {
        // [MQTT-3.1.2-4] [MQTT311-3.1.2-6]
        self.outgoing.clear();
        self.incoming.clear();
    }

    /// Whether nothing is under way in either direction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outgoing.len() == 0 && self.incoming.len() == 0
    }

    /// Gives memory back that an idle session does not need.
    pub fn compact(&mut self) {
        self.outgoing.compact();
    }

    /// Counts everything again; for tests, after each of their steps.
    ///
    /// # Panics
    ///
    /// If a count differs from the entries that it counts.
    pub fn check(&self) {
        self.outgoing.check();
        self.incoming.check();
    }

    // ---- Outgoing --------------------------------------------------------------------------

    /// Takes the next free Packet Identifier; `None` if all are in use. Identifiers are unique in
    /// the session, on any lane. In an inherited session there is none for a message with QoS 2
    /// before the server has released one.
    pub fn allocate(&mut self, tag: u64, stage: Stage) -> Option<PacketId> {
        self.outgoing.allocate(tag, stage)
    }

    /// Whether there may be an identifier for a message with QoS 2. If there is none, see
    /// [`MqttSession::ask_for_identifiers`].
    #[must_use]
    pub fn has_identifier(&self) -> bool {
        self.outgoing.has_released()
    }

    /// In an inherited session without a released identifier: takes up to `most` whose PUBREL is to
    /// be sent now. Their PUBCOMPs release them. None while earlier ones are awaited.
    pub fn ask_for_identifiers(&mut self, tag: u64, most: usize) -> Vec<PacketId> {
        self.outgoing.ask_for_identifiers(tag, most)
    }

    /// Whether PUBREL was sent for an identifier of [`MqttSession::ask_for_identifiers`], and its
    /// PUBCOMP is awaited.
    #[must_use]
    pub fn is_asked(&self, packet_id: PacketId) -> bool {
        self.outgoing.is_asked(packet_id)
    }

    /// Gives an identifier back under which nothing was written.
    pub fn take_back(&mut self, packet_id: PacketId) {
        let taken = self.outgoing.remove(packet_id);
        if taken.is_some_and(|taken| taken.stage == Stage::PublishQoS2) {
            self.outgoing.give_back(packet_id);
        }
    }

    /// Takes this very Packet Identifier; false where it is in use.
    pub fn allocate_as(&mut self, packet_id: PacketId, tag: u64, stage: Stage) -> bool {
        self.outgoing.allocate_as(packet_id, tag, stage, true)
    }

    /// The first Packet Identifier from one on that is not in use; behind the last follows the first. `None` if all are
    /// in use.
    #[must_use]
    pub fn free_from(&self, packet_id: PacketId) -> Option<PacketId> {
        self.outgoing.free_from(packet_id)
    }

    /// The use of an identifier.
    #[must_use]
    pub fn outgoing(&self, packet_id: PacketId) -> Option<AwaitedAck> {
        self.outgoing.get(packet_id)
    }

    /// All unacknowledged packets, in the order in which they were first sent.
    pub fn unacknowledged(&self) -> impl Iterator<Item = AwaitedAck> + '_ {
        self.outgoing.iter()
    }

    /// Number of outgoing identifiers in use.
    #[must_use]
    pub fn outgoing_len(&self) -> usize {
        self.outgoing.len()
    }

    /// Number of QoS 1 and 2 messages that were sent on this connection and are not yet
    /// acknowledged. They count against the receiver's Receive Maximum.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.outgoing.in_flight()
    }

    /// Distance between the oldest unacknowledged and the newest identifier. A sender stops before
    /// it grows far beyond the receiver's Receive Maximum.
    #[must_use]
    pub fn span(&self) -> usize {
        self.outgoing.span()
    }

    /// The next delivery of an earlier connection, or a lost lane, that is to be sent again, in the original order.
    /// `None` when all have been sent. Follow it with [`MqttSession::mark_resent`] or
    /// [`MqttSession::forget_outgoing`].
    pub fn next_resend(&mut self) -> Option<AwaitedAck> {
        self.outgoing.next_resend()
    }

    /// Whether [`MqttSession::next_resend`] has more.
    #[must_use]
    pub fn has_resends(&self) -> bool {
        self.outgoing.has_resends()
    }

    /// The delivery has been sent again on this connection.
    pub fn mark_resent(&mut self, packet_id: PacketId) {
        self.outgoing.mark_resent(packet_id);
    }

    /// The last packet of an identifier, PUBLISH or PUBREL, was sent on this lane. Without it, it was control.
    pub fn sent_on(&mut self, packet_id: PacketId, lane: Lane) {
        self.outgoing.sent_on(packet_id, lane);
    }

    /// The peer reads a lane of the current connection no more: unacknowledged messages that were sent on it are to
    /// be sent again ([`MqttSession::next_resend`]), before new ones. Calls `released` with the identifiers whose PUBREL
    /// was sent there, in the order of the messages.
    pub fn resend_lane(&mut self, lane: Lane, released: impl FnMut(PacketId)) {
        self.outgoing.lane_lost(lane, released);
    }

    /// Gives an identifier up without an acknowledgement, and returns its use. The peer may have a
    /// message with QoS 2 under it, which has to be released first (`client::Connection::give_up`).
    pub fn forget_outgoing(&mut self, packet_id: PacketId) -> Option<AwaitedAck> {
        self.outgoing.remove(packet_id)
    }

    /// A PUBACK arrived. Returns the tag.
    ///
    /// # Errors
    ///
    /// Tells that the identifier is not in use, or for something else.
    pub fn puback(&mut self, packet_id: PacketId) -> Result<u64, AckError> {
        self.outgoing.finish(packet_id, Stage::PublishQoS1)
    }

    /// A PUBREC arrived. Returns the tag, and whether it is the first one. Then the message has been handed
    /// over. With an error code it is refused, and the identifier is free. Answer a success with PUBREL in
    /// either case.
    ///
    /// # Errors
    ///
    /// Tells that the identifier is not in use, or for something else.
    pub fn pubrec(
        &mut self,
        packet_id: PacketId,
        reason: ReasonCode,
    ) -> Result<(u64, bool), AckError> {
        self.outgoing.pubrec(packet_id, reason)
    }

    /// A PUBCOMP arrived. Returns the tag.
    ///
    /// # Errors
    ///
    /// Tells that the identifier is not in use, or for something else.
    pub fn pubcomp(&mut self, packet_id: PacketId) -> Result<u64, AckError> {
        let tag = self.outgoing.finish(packet_id, Stage::Release)?;
        self.outgoing.give_back(packet_id);
        Ok(tag)
    }

    /// A SUBACK (`Stage::Subscribe`) or UNSUBACK (`Stage::Unsubscribe`) arrived. Returns the tag.
    ///
    /// # Errors
    ///
    /// Tells that the identifier is not in use, or for something else.
    pub fn answered(&mut self, packet_id: PacketId, stage: Stage) -> Result<u64, AckError> {
        self.outgoing.finish(packet_id, stage)
    }

    // ---- Incoming QoS 2 --------------------------------------------------------------------

    /// A PUBLISH with QoS 2 arrived. Lanes may have identifiers of their own. But messages received on an earlier
    /// connection, or on a lost lane, may come again on every lane. There `dup`, the DUP flag, and the content tell
    /// them from new ones.
    pub fn receive(
        &mut self,
        lane: Lane,
        packet_id: PacketId,
        dup: bool,
        content: Content,
    ) -> Received {
        self.incoming.receive(lane, packet_id, dup, content)
    }

    /// A PUBREC with success was sent, or waits for its turn: a repeated PUBLISH is answered without being delivered.
    pub fn mark_received(&mut self, lane: Lane, packet_id: PacketId) {
        self.incoming.mark_received(lane, packet_id);
    }

    /// A received message is not accepted, and its PUBREC with an error may be sent later. Should the connection
    /// end before that, the next PUBLISH with the identifier is a new message. A repetition on this connection
    /// waits for the PUBREC.
    pub fn mark_refused(&mut self, lane: Lane, packet_id: PacketId) {
        // [MQTT-4.3.3-9]
        self.incoming.mark_refused(lane, packet_id);
    }

    /// The lane for the answer to a received message that came on `lane`. It may have come again on another since. `None`
    /// where that lane is lost.
    #[must_use]
    pub fn answer_lane(&self, lane: Lane, packet_id: PacketId) -> Option<Lane> {
        self.incoming.answer_lane(lane, packet_id)
    }

    /// Forgets a received message that was answered by a PUBREC with an error, or could not be
    /// accepted. The next PUBLISH with the identifier is a new message.
    pub fn forget_received(&mut self, lane: Lane, packet_id: PacketId) {
        // [MQTT-4.3.3-9]
        self.incoming.forget(lane, packet_id);
    }

    /// A PUBREL arrived. Returns the message that it releases, and whether its PUBREC had been sent;
    /// `None` if there is none. The identifier is free afterwards.
    pub fn release(&mut self, lane: Lane, packet_id: PacketId) -> Option<(ReceivedId, bool)> {
        // [MQTT-4.3.3-12]
        self.incoming.release(lane, packet_id)
    }

    /// Forgets the oldest received message with this identifier that is of an earlier connection or a lost lane.
    pub fn displace_received(&mut self, packet_id: PacketId) -> Option<ReceivedId> {
        self.incoming.displace(packet_id)
    }

    /// A lane of the current connection is lost: messages received on it can be completed on any
    /// lane, and do not count as in flight until they come again.
    pub fn lane_closed(&mut self, lane: Lane) {
        self.incoming.lane_closed(lane);
    }

    /// Number of incoming QoS 2 messages.
    #[must_use]
    pub fn incoming_len(&self) -> usize {
        self.incoming.len()
    }

    /// Number of these that came on lanes that are open. They count against the Receive
    /// Maximum of this end.
    #[must_use]
    pub fn incoming_in_flight(&self) -> usize {
        self.incoming.in_flight()
    }
}
