//! CONNECT and AUTH: who gets in.

use sterna_broker::{OpenError, OpenSession, Opened, SessionKey};
use sterna_mqtt::ReasonCode;
use sterna_mqtt::packet::{Auth, Connect};
use sterna_mqtt::server::{Accept, Refuse};
use sterna_net::ConnectionId;

use super::admission::{Admission, DATAGRAMS_PROPERTY};
use super::client::{Client, State, connection, consumer};
use super::{Door, log_end};
use crate::context::Context;
use crate::identity::{Identity, Outcome, Refusal};
use crate::judge::{Claim, Verdict, finish, judge};
use crate::session;

impl Door {
    pub(super) fn connect(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        connect: &Connect<'_>,
    ) {
        let listener = cx.policy.listener(client.listener);
        let keep_alive_s = listener.server_keep_alive_s;
        let now_ms = cx.net.now_ms();
        let admission = match Admission::new(connect, &cx.policy.mqtt, keep_alive_s, now_ms) {
            Ok(admission) => Box::new(admission),
            Err((reason, detail)) => return self.refuse(cx, client, reason, detail),
        };
        client.name = admission.client_id.as_str().into();
        client.is_named = !admission.assigned;
        let claim = match (
            connect.properties.authentication_method(),
            connect.user_name,
            connect.password,
        ) {
            (None, None, None) => Claim::Nothing,
            (None, Some(user), password) => Claim::Password(user, password.unwrap_or_default()),
            (None, None, Some(password)) => Claim::Password("", password),
            (Some(method), _, None) => {
                let first = connect.properties.authentication_data().unwrap_or_default();
                Claim::Exchange(method, first)
            }
            // Each proof that is shown must hold, and one that nobody looks at would not.
            (Some(_), _, Some(_)) => {
                let detail = "a password beside an authentication method";
                return self.refuse(cx, client, ReasonCode::NotAuthorized, detail);
            }
        };
        match judge(cx, client.id, 0, claim) {
            Verdict::Known(identity) => self.admit(cx, client, admission, identity),
            Verdict::Pending(pending) => {
                client.state = State::Password(admission, Box::new(pending));
            }
            Verdict::Challenge(exchange, _)
                if connect
                    .user_name
                    .is_some_and(|user| user != exchange.user()) =>
            {
                self.refuse_claim(cx, client, Refusal::Disagreement);
            }
            Verdict::Challenge(exchange, challenge) => {
                client.state = State::Exchange(admission, exchange);
                client.engine.auth(
                    ReasonCode::ContinueAuthentication,
                    Some(challenge.as_bytes()),
                    &mut self.out,
                );
            }
            Verdict::Refused(refusal) => self.refuse_claim(cx, client, refusal),
        }
    }

    /// The verdict on a claim that took longer.
    pub(crate) fn judged(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        outcome: Outcome,
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            match std::mem::replace(&mut client.state, State::New) {
                State::Password(admission, pending) => {
                    match pending.decided(&cx.policy.users, outcome) {
                        Ok(identity) => door.admit(cx, client, admission, identity),
                        Err(refusal) => door.refuse_claim(cx, client, refusal),
                    }
                }
                other => client.state = other,
            }
        });
    }

    /// A step of an enhanced authentication.
    pub(super) fn auth(&mut self, cx: &mut Context<'_>, client: &mut Client, auth: &Auth<'_>) {
        let data = auth.properties.authentication_data().unwrap_or_default();
        if matches!(client.state, State::Live(_)) {
            return self.reauthenticate(cx, client, auth.reason, data);
        }
        if let State::Exchange(mut admission, exchange) =
            std::mem::replace(&mut client.state, State::New)
        {
            match finish(cx, client.id, *exchange, data) {
                Ok((identity, last)) => {
                    admission.authentication_data = Some(last);
                    self.admit(cx, client, admission, identity);
                }
                Err(refusal) => self.refuse_claim(cx, client, refusal),
            }
        }
    }

    fn reauthenticate(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        reason: ReasonCode,
        data: &[u8],
    ) {
        if reason == ReasonCode::ReAuthenticate {
            let method = client.engine.authentication_method().unwrap_or_default();
            let claim = Claim::Exchange(method, data);
            if let Verdict::Challenge(exchange, challenge) = judge(cx, client.id, 0, claim) {
                client.reauthentication = Some(exchange);
                let challenge = Some(challenge.as_bytes());
                client
                    .engine
                    .auth(ReasonCode::ContinueAuthentication, challenge, &mut self.out);
                return;
            }
        } else if let Some(exchange) = client.reauthentication.take()
            && let Ok((identity, last)) = finish(cx, client.id, *exchange, data)
            && client.identity.user() == identity.user()
        {
            client
                .engine
                .auth(ReasonCode::Success, Some(last.as_bytes()), &mut self.out);
            return;
        }
        // [MQTT-4.12.1-2]
        self.turn_away(
            cx,
            client,
            ReasonCode::NotAuthorized,
            "re-authentication failed",
        );
    }

    fn refuse_claim(&mut self, cx: &Context<'_>, client: &mut Client, refusal: Refusal) {
        // [MQTT-4.12.0-1] [MQTT-4.12.0-4]
        let reason = match refusal {
            Refusal::Password => ReasonCode::BadUserNameOrPassword,
            Refusal::Method => ReasonCode::BadAuthenticationMethod,
            Refusal::Slowed => ReasonCode::ConnectionRateExceeded,
            Refusal::Busy => ReasonCode::ServerBusy,
            Refusal::Unavailable => ReasonCode::ServerUnavailable,
            _ => ReasonCode::NotAuthorized,
        };
        self.refuse(cx, client, reason, refusal.detail());
    }

    /// Refuses a CONNECT. [MQTT-3.1.4-2] [MQTT-3.2.2-7] [MQTT311-3.1.4-3]
    fn refuse(&mut self, cx: &Context<'_>, client: &mut Client, reason: ReasonCode, detail: &str) {
        log_end(cx.net, client, reason.name(), detail);
        let refuse = Refuse {
            reason_string: Some(detail),
            ..Refuse::default()
        };
        client.engine.refuse(reason, &refuse, &mut self.out);
        // [MQTT-3.1.4-6] [MQTT311-3.1.4-5] what was held is not looked at
        client.held = Vec::new();
        client.state = State::Ended;
    }

    /// Opens the session of a client that may come in: the one that its identifier names, or a new one.
    /// [MQTT-3.1.3-2] [MQTT-3.1.4-4] [MQTT311-3.1.2-4] [MQTT311-3.1.2-5] [MQTT311-3.1.2-6]
    /// [MQTT311-3.1.3-2] [MQTT311-3.1.4-2]
    fn admit(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        mut admission: Box<Admission>,
        identity: Identity,
    ) {
        if !admission.assigned
            && !cx
                .policy
                .may_have_client_id(identity.user(), &admission.client_id)
        {
            let detail = "the client identifier is not one of the user's";
            return self.refuse(cx, client, ReasonCode::NotAuthorized, detail);
        }
        client.identity = identity;
        if let Some(will) = &admission.will {
            let topic = will.message.topic();
            if !cx.policy.rules.may_publish(client.subject(), topic) {
                let detail = "the will's topic is not allowed";
                return self.refuse(cx, client, ReasonCode::NotAuthorized, detail);
            }
        }
        let opened = cx.broker.open(
            cx.net.now_ms(),
            OpenSession {
                client_id: &admission.client_id,
                user: client.identity.user(),
                clean_start: admission.clean_start,
                expiry_s: admission.expiry_s,
                consumer: consumer(client.id),
                will: admission.will.take(),
                on_demand: false,
                selector: None,
            },
        );
        match opened {
            Ok(Opened::Ready { session, present }) => {
                self.accept(cx, client, session, present, &admission);
            }
            Ok(Opened::Pending { session }) => client.state = State::Opening(session, admission),
            Err(OpenError::InvalidWillTopic) => {
                self.refuse(cx, client, ReasonCode::TopicNameInvalid, "the will's topic");
            }
            Err(OpenError::TakenOver) => {
                let detail = "another connection has taken the session over";
                self.refuse(cx, client, ReasonCode::UnspecifiedError, detail);
            }
            Err(OpenError::OtherUser) => {
                let detail = "the client identifier is another user's";
                self.refuse(cx, client, ReasonCode::NotAuthorized, detail);
            }
            Err(OpenError::TooManySessions) => {
                self.refuse(cx, client, ReasonCode::QuotaExceeded, "too many sessions");
            }
            Err(OpenError::TooManyWills) => {
                self.refuse(cx, client, ReasonCode::QuotaExceeded, "too many wills");
            }
        }
    }

    /// A session has come from another shard.
    pub(crate) fn session_opened(
        &mut self,
        cx: &mut Context<'_>,
        consumer: sterna_broker::ConsumerId,
        session: SessionKey,
        present: bool,
    ) {
        self.with_client(
            cx,
            connection(consumer),
            |door, cx, client| match std::mem::replace(&mut client.state, State::New) {
                State::Opening(awaited, admission) if awaited == session => {
                    door.accept(cx, client, session, present, &admission);
                }
                other => client.state = other,
            },
        );
    }

    /// Sends the CONNACK, before anything else, and what the session has waiting. [MQTT-3.1.4-5]
    /// [MQTT311-3.1.4-4] [MQTT311-3.2.0-1]
    fn accept(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        session: SessionKey,
        present: bool,
        admission: &Admission,
    ) {
        client.state = State::Live(session);
        let snapshot = cx.broker.take_snapshot(session);
        let Some(state) = session::mqtt_mut(cx.broker, session) else {
            return;
        };
        if let Some(snapshot) = snapshot
            && let Ok(restored) = sterna_mqtt::MqttSession::restore(&snapshot)
        {
            *state = restored;
        }
        client.datagrams = admission.asks_datagrams
            && cx.policy.mqtt.datagrams
            && cx.net.datagram_bytes(client.id) > 0;
        let user_properties: &[_] = if client.datagrams {
            &[DATAGRAMS_PROPERTY]
        } else {
            &[]
        };
        let accept = Accept {
            session_present: present,
            assigned_client_id: admission.assigned.then_some(&admission.client_id),
            keep_alive_s: admission.server_keep_alive_s,
            session_expiry_s: admission.expiry_reduced.then_some(admission.expiry_s),
            response_information: cx.policy.mqtt.response_information.as_deref(),
            authentication_data: admission.authentication_data.as_deref().map(str::as_bytes),
            reason_string: None,
            user_properties,
        };
        if client
            .engine
            .accept(state, &accept, cx.net.now_ms(), &mut self.out)
            .is_err()
        {
            log_end(
                cx.net,
                client,
                "Packet too large",
                "the client takes not even CONNACK",
            );
            return Self::lost(cx, client);
        }
        self.counts.connections += 1;
        self.counts.messages_sent += 1;
        let peer = cx
            .net
            .info(client.id)
            .map(|info| (info.peer, info.transport));
        tracing::debug!(
            peer = peer.map(|(peer, _)| tracing::field::display(peer)),
            transport = peer.map(|(_, transport)| tracing::field::debug(transport)),
            client = &*client.name,
            user = client.identity.user(),
            proof = ?client.identity.proof(),
            session_present = present,
            "connected"
        );
        if let Some(deadline_ms) = client.engine.deadline_ms()
            && deadline_ms < client.timer_ms
        {
            self.set_timer(client, deadline_ms);
        }
        client.trace(cx);
        self.resend(cx, client);
    }
}
