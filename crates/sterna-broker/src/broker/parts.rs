//! Routing a message from where its parts lie.
//!
//! It is made a [`Message`](crate::Message) where a reader of this node wants it. One that nobody wants, or only other nodes,
//! goes from its publisher's packet into what the turn has for them.

use super::Broker;
use super::publish::{NO_TOPIC_NAME, Routing};
use crate::api::{Companions, DoorState, Publication, Routed, SessionKey};
use crate::message::{InvalidMessage, MessageParts};

impl<P: DoorState> Broker<P> {
    /// As [`publish`](Self::publish), of a message that lies elsewhere. It is copied where a reader of this node may want
    /// it. `origin` and `companions` are those of [`Publication`].
    ///
    /// # Errors
    /// [`InvalidMessage`] as [`Message::copy`](crate::Message::copy): nothing is published. A message that nobody here wants is
    /// not looked at so closely.
    pub fn publish_parts(
        &mut self,
        now_ms: u64,
        origin: Option<SessionKey>,
        parts: MessageParts<'_>,
        companions: Companions<'_>,
    ) -> Result<Routed, InvalidMessage> {
        // Before it is judged: somebody may have made a queue on another shard.
        self.catch_up();
        let before = self.appends();
        let routed = if self.is_plain(&parts) {
            self.publish_plain(now_ms, origin, parts)
        } else {
            match parts.to_message() {
                Ok(message) => {
                    let publication = Publication {
                        origin,
                        publisher: None,
                        message,
                        companions,
                    };
                    return Ok(self.publish(now_ms, publication));
                }
                Err(invalid) => Err(invalid),
            }
        };
        let ended = self.published(now_ms, before, routed.unwrap_or_default());
        routed.map(|_| ended)
    }

    /// Whether a message can have no other way than to readers who are here, and to other nodes. Most are so: of QoS 0, not
    /// retained, for no queue that is kept. Nobody watches their road.
    #[inline]
    fn is_plain(&self, parts: &MessageParts<'_>) -> bool {
        !parts.qos().is_acknowledged()
            && !parts.retain()
            && self.queues.road.is_none()
            && !self.index.has_kept_groups()
            && !self.directory.has_full_queues()
    }

    fn publish_plain(
        &mut self,
        now_ms: u64,
        origin: Option<SessionKey>,
        mut parts: MessageParts<'_>,
    ) -> Result<Routed, InvalidMessage> {
        if let Some(session) = origin.and_then(|key| self.queues.attended(key)) {
            parts.set_origin(session.origin);
        }
        self.queues.counters.received_messages += 1;
        self.queues.counters.received_bytes += parts.payload().len() as u64;
        self.spread_parts(now_ms, parts)
    }

    /// Delivers a message by the index as it is, and puts it aside for other nodes. It is in no log, and leaves its topic's
    /// retained message as it is. The index has caught up.
    pub(super) fn spread_parts(
        &mut self,
        now_ms: u64,
        mut parts: MessageParts<'_>,
    ) -> Result<Routed, InvalidMessage> {
        let limits = &self.queues.limits;
        let Some(answer) = self.index.look_up(parts.topic_bytes(), limits) else {
            return Ok(NO_TOPIC_NAME);
        };
        let matches = self.index.matches_at(answer);
        if matches.total == 0 && self.queues.road.is_none() {
            let peers = (self.peers.as_deref_mut()).filter(|peers| !peers.is_from_peer);
            let nodes = matches.peers.nodes();
            let Some(peers) = peers.filter(|_| !nodes.is_empty()) else {
                self.queues.counters.unmatched_messages += 1;
                return Ok(Routed::default());
            };
            parts.stamp(now_ms);
            if let Some(token) = peers.encode(parts, matches.peers) {
                self.last_append.handed_over(token);
                return Ok(Routed {
                    matched: nodes.len(),
                    ..Routed::default()
                });
            }
        }
        let is_shared = matches.targets() > 1;
        let mut message = parts.to_message()?;
        self.prepare(now_ms, &mut message, is_shared);
        Ok(self.spread_to(now_ms, answer, message, Routing::PLAIN))
    }
}
