//! Answers to clients that wait until their effects are kept.

use bytes::BytesMut;
use sterna_broker::SessionKey;
use sterna_mqtt::{Lane, PacketId, ReasonCode};
use sterna_net::StreamId;

use super::admission::Admission;
use super::client::{Client, State};
use super::quota::Why;
use super::{Door, log_end};
use crate::context::Context;
use crate::door::Promise;
use crate::session;

/// An answer to a client that waits until its effect is kept.
#[derive(Debug)]
pub(crate) enum Acknowledgement {
    /// Nothing: a message of QoS 0 only has its place among the waiting answers, so that its publisher is paced.
    Nothing,
    PubAck(Lane, PacketId, ReasonCode, Option<Why>),
    PubRec(Lane, PacketId, ReasonCode, Option<Why>),
    PubRel(Lane, PacketId, ReasonCode),
    PubComp(Lane, PacketId, ReasonCode),
    SubAck(Lane, PacketId, Box<[ReasonCode]>, Option<Why>),
    UnsubAck(Lane, PacketId, Box<[ReasonCode]>),
    /// The session is open; `true` where it was there before.
    ConnAck(SessionKey, bool, Box<Admission>),
    /// The end of a data stream, on which acknowledgements come before.
    Finish(StreamId),
}

impl Door {
    /// Acknowledges once an append is kept.
    pub(super) fn acknowledge_kept(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        token: u64,
        acknowledgement: Acknowledgement,
    ) {
        let promise = match acknowledgement {
            Acknowledgement::PubRel(..) | Acknowledgement::PubComp(..) => {
                Promise::once(cx, client.listener)
            }
            _ => Promise::on(cx, client.listener),
        };
        let promise = promise.at(token).bound(client.is_bound);
        self.acknowledge(cx, client, promise, acknowledgement);
    }

    /// Acknowledges what an earlier connection may have done, once all of that is kept.
    pub(super) fn acknowledge_again(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        acknowledgement: Acknowledgement,
    ) {
        let promise = Promise::again(cx).bound(client.is_bound);
        self.acknowledge(cx, client, promise, acknowledgement);
    }

    /// Writes an answer whose effect is kept now.
    pub(super) fn write_acknowledgement(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        acknowledgement: Acknowledgement,
    ) {
        match acknowledgement {
            Acknowledgement::Nothing => return,
            Acknowledgement::PubAck(lane, packet_id, reason, why) => {
                let reason = Why::reason(why.as_ref(), reason);
                match client.answering_lane(lane) {
                    Some(lane) => (client.engine).puback(lane, packet_id, reason, &mut self.out),
                    None => (client.engine).puback(lane, packet_id, reason, &mut BytesMut::new()),
                }
            }
            Acknowledgement::PubRec(lane, packet_id, reason, why) => {
                let reason = Why::reason(why.as_ref(), reason);
                let state = match client.state {
                    State::Live(session) => session::mqtt_mut(cx.broker, session),
                    _ => None,
                };
                let Some(state) = state else {
                    log_end(cx, client, "", "the session is gone");
                    return;
                };
                (client.engine).pubrec(state, lane, packet_id, reason, &mut self.out);
            }
            Acknowledgement::PubRel(lane, packet_id, reason) => {
                let lane = client.answering_lane(lane).unwrap_or(Lane::CONTROL);
                (client.engine).pubrel(lane, packet_id, reason, &mut self.out);
            }
            Acknowledgement::PubComp(lane, packet_id, reason) => {
                let Some(lane) = client.answering_lane(lane) else {
                    return;
                };
                (client.engine).pubcomp(lane, packet_id, reason, &mut self.out);
            }
            Acknowledgement::SubAck(lane, packet_id, codes, why) => {
                let lane = client.answering_lane(lane).unwrap_or(Lane::CONTROL);
                let why = why.as_ref().map(Why::detail);
                (client.engine).suback_with(lane, packet_id, &codes, why, &mut self.out);
            }
            Acknowledgement::UnsubAck(lane, packet_id, codes) => {
                let lane = client.answering_lane(lane).unwrap_or(Lane::CONTROL);
                (client.engine).unsuback(lane, packet_id, &codes, &mut self.out);
            }
            Acknowledgement::ConnAck(session, present, admission) => {
                return self.accept(cx, client, session, present, &admission);
            }
            Acknowledgement::Finish(stream) => {
                // Written answers go before the end of the stream.
                let is_mute = |stream| client.framers.is_mute(stream);
                self.out.flush(cx, client.id, is_mute);
                if stream.is_bidirectional() {
                    cx.net.finish(client.id, stream);
                }
                return Self::lane_gone(cx, client, stream);
            }
        }
        self.counts.messages_sent += 1;
    }
}
