//! The ends of connections and streams.

use std::net::SocketAddr;

use sterna_broker::{Close, ConsumerId, EndCause, EvictReason, SessionKey, SessionName, WillFate};
use sterna_mqtt::packet::Disconnect;
use sterna_mqtt::server::Refuse;
use sterna_mqtt::{Lane, ReasonCode};
use sterna_net::{ConnectionId, StreamEnd, StreamId};
use thin_vec::ThinVec;

use super::acknowledge::Acknowledgement;
use super::client::{Client, State, connection};
use super::{Door, log_end};
use crate::context::Context;
use crate::door::{Early, Held};
use crate::inspect;
use crate::repeats::brief;
use crate::session;

impl Door {
    /// The client's DISCONNECT.
    pub(super) fn disconnected(
        cx: &mut Context<'_>,
        client: &mut Client,
        disconnect: &Disconnect<'_>,
    ) {
        // [MQTT-3.14.4-3] [MQTT311-3.1.2-10] [MQTT311-3.14.4-3]
        // Whatever comes after it is not looked at, and the transport is closed.
        // [MQTT311-3.14.4-1] [MQTT311-3.14.4-2]
        let will = if disconnect.discards_will() {
            WillFate::Discard
        } else {
            WillFate::Publish
        };
        let most_s = cx.policy.mqtt.maximum_session_expiry_s;
        let expiry_s = disconnect
            .session_expiry_s()
            .map(|seconds| seconds.min(most_s));
        tracing::debug!(
            client = &*client.name,
            reason = disconnect.reason.name(),
            "disconnected"
        );
        let close = Close {
            will,
            expiry_s,
            ..Close::NORMAL
        };
        Self::close_session(cx, client, close);
    }

    /// The connection was lost, or ends because of an error: the will is due. [MQTT-3.1.2-10]
    /// [MQTT311-3.1.2-8] [MQTT311-3.1.2-12] [MQTT311-3.1.4-1]
    pub(super) fn lost(cx: &mut Context<'_>, client: &mut Client, cause: EndCause) {
        let close = if client.early == Early::Over {
            Close::of(cause)
        } else {
            // Its CONNECT may have been a replay, whose sender is not the one who left the will.
            Close {
                will: WillFate::Discard,
                ..Close::of(cause)
            }
        };
        Self::close_session(cx, client, close);
    }

    fn close_session(cx: &mut Context<'_>, client: &mut Client, close: Close) {
        if matches!(client.state, State::Live(_)) && tracing::enabled!(tracing::Level::DEBUG) {
            inspect::log_path(cx, client.id, &client.name);
        }
        let state = std::mem::replace(&mut client.state, State::Ended);
        client.held = ThinVec::new();
        client.promises.clear();
        let session = match state {
            State::Opening(opening) => opening.0,
            State::Opened(session) | State::Live(session) => session,
            _ => return,
        };
        cx.broker.close(cx.now_ms, session, close);
    }

    /// Ends a connection for a reason of the broker's own, with a line for the operator.
    pub(super) fn turn_away(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        reason: ReasonCode,
        detail: &str,
    ) {
        log_end(cx, client, reason.name(), detail);
        let refuse = Refuse {
            reason_string: Some(detail),
            ..Refuse::default()
        };
        client.engine.disconnect(reason, &refuse, &mut self.out);
        Self::lost(cx, client, cause_of(reason));
    }

    /// Ends a connection whose token has expired.
    pub(super) fn expired(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        let detail = "the token has expired";
        self.turn_away(cx, client, ReasonCode::MaximumConnectTime, detail);
    }

    /// Ends a connection that may not have been let in by now.
    pub(super) fn send_away(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        reason: ReasonCode,
        detail: &str,
    ) {
        if matches!(client.state, State::Live(_)) {
            return self.turn_away(cx, client, reason, detail);
        }
        log_end(cx, client, reason.name(), detail);
        let refuse = Refuse {
            reason_string: Some(detail),
            ..Refuse::default()
        };
        (client.engine).refuse(reason, &refuse, &mut self.out);
        Self::lost(cx, client, cause_of(reason));
    }

    /// The broker has given the session to another connection.
    pub(crate) fn evicted(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        reason: EvictReason,
        by: Option<SocketAddr>,
    ) {
        self.with_client(cx, connection(consumer), |door, cx, client| {
            if reason == EvictReason::TakenOver
                && matches!(client.state, State::Opening(_) | State::Opened(_))
            {
                // The broker has taken the session already.
                return door.refuse_overtaken(cx, client);
            }
            // [MQTT-3.1.4-3] [MQTT311-3.1.4-2]
            let reason = match reason {
                EvictReason::TakenOver => ReasonCode::SessionTakenOver,
                EvictReason::Administrative => ReasonCode::AdministrativeAction,
                EvictReason::ClusterAway => return door.refuse_unclaimed(cx, client),
                EvictReason::TooLarge
                | EvictReason::StoreFull
                | EvictReason::FarBehind
                | EvictReason::SelectorTooDear
                | EvictReason::MemoryShort => ReasonCode::QuotaExceeded,
            };
            if reason == ReasonCode::SessionTakenOver {
                let session = SessionName::new(client.identity.user(), &client.name);
                cx.log_taken_over(client.id, &session, by);
            }
            tracing::debug!(
                client = &*client.name,
                reason = reason.name(),
                "disconnected"
            );
            client
                .engine
                .disconnect(reason, &Refuse::default(), &mut door.out);
            // The broker has taken the session already.
            client.state = State::Ended;
            client.promises.clear();
        });
    }

    /// Subscriptions of a client have ended because their topic has. The protocol has no word for it.
    pub(crate) fn unsubscribed(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        _session: SessionKey,
    ) {
        self.with_client(cx, connection(consumer), |_, _, client| {
            tracing::debug!(client = &*client.name, "a topic's subscriptions have ended");
        });
    }

    /// A subscription of a client has lost its right.
    pub(crate) fn lost_right(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        self.with_client(cx, connection(consumer), |door, cx, client| {
            if !matches!(client.state, State::Ended) {
                let lost = cx.broker.first_resting(session);
                let detail = lost.map_or_else(
                    || "the rules do not allow a subscription any more".to_owned(),
                    |filter| {
                        format!(
                            "the rules do not allow to subscribe to `{}` any more",
                            brief(&filter)
                        )
                    },
                );
                door.send_away(cx, client, ReasonCode::NotAuthorized, &detail);
            }
        });
    }

    /// Tells a client goodbye.
    pub(super) fn say_goodbye(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        let server_reference = cx.policy.mqtt.server_reference.as_deref();
        let reason = if server_reference.is_some() {
            ReasonCode::UseAnotherServer
        } else {
            ReasonCode::ServerShuttingDown
        };
        let refuse = Refuse {
            reason_string: None,
            server_reference,
        };
        client.engine.disconnect(reason, &refuse, &mut self.out);
        if cx.policy.wills_end_with_broker {
            return Self::lost(cx, client, EndCause::Stop);
        }
        // Its session and its will stay as they are, so that the next start finds them as after a crash.
        client.held = ThinVec::new();
        client.promises.clear();
        client.state = State::Ended;
    }

    /// A peer has ended one side of a stream. A client that reads no more of one goes on to send there;
    /// answers and messages take the control stream.
    pub(crate) fn stream_ended(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        stream: StreamId,
        end: StreamEnd,
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            if end == StreamEnd::Finished {
                return door.finished(cx, client, stream);
            }
            let name = &*client.name;
            tracing::debug!(client = name, stream = stream.0, ?end, "stream ended");
            if stream == StreamId::FIRST {
                Self::lost(cx, client, EndCause::Lost);
            } else if matches!(end, StreamEnd::Aborted(_)) {
                client.held.retain(|held| held.stream() != stream);
                // The client may want to open another in its place, which the transport permits
                // when both directions have ended.
                if stream.is_bidirectional() {
                    cx.net.finish(client.id, stream);
                }
                Self::lane_gone(cx, client, stream);
            } else {
                client.framers.mute(stream);
                door.send_again(cx, client, Lane(stream.0));
            }
        });
    }

    pub(super) fn finished(&mut self, cx: &mut Context<'_>, client: &mut Client, stream: StreamId) {
        if matches!(client.state, State::Ended) {
            return;
        }
        // A whole session can come in one flight, its end included, before CONNECT is decided.
        if client.holds(stream) || !client.accepts(Lane(stream.0)) {
            self.hold(cx, client, Held::Finished(stream));
        } else if stream == StreamId::FIRST {
            // Without DISCONNECT before it this is a lost connection.
            Self::lost(cx, client, EndCause::Lost);
        } else {
            self.acknowledge_kept(cx, client, 0, Acknowledgement::Finish(stream));
        }
    }

    /// Forgets a data stream. The session's state does not depend on it.
    pub(super) fn lane_gone(cx: &mut Context<'_>, client: &mut Client, stream: StreamId) {
        client.framers.forget(stream);
        let session = client
            .session()
            .and_then(|session| session::mqtt_mut(cx.broker, session));
        client.engine.lane_closed(session, Lane(stream.0));
    }
}

/// The cause of an end for which a client is told this.
pub(super) const fn cause_of(reason: ReasonCode) -> EndCause {
    match reason {
        ReasonCode::KeepAliveTimeout => EndCause::Lost,
        ReasonCode::Banned => EndCause::Banned,
        ReasonCode::NotAuthorized | ReasonCode::MaximumConnectTime => EndCause::NotAllowed,
        ReasonCode::QuotaExceeded | ReasonCode::ServerBusy | ReasonCode::ConnectionRateExceeded => {
            EndCause::Limit
        }
        _ => EndCause::Violation,
    }
}
