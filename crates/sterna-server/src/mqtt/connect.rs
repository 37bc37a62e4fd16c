//! CONNECT and AUTH: the admission of clients.

use std::borrow::Cow;

use sterna_broker::Outcome as Settled;
use sterna_broker::{
    EndCause, OpenError, OpenSession, Opened, SessionKey, SessionName, Unacknowledged,
};
use sterna_mqtt::packet::{Auth, Connect};
use sterna_mqtt::server::{Accept, Refuse};
use sterna_mqtt::{MqttSession, ReasonCode};
use sterna_net::ConnectionId;
use thin_vec::ThinVec;

use super::acknowledge::Acknowledgement;
use super::admission::{Admission, DATAGRAMS_PROPERTY};
use super::ask::{ACTION, RENEWAL};
use super::client::{Client, Renewal, State, connection, consumer};
use super::received::received_id;
use super::{Door, log_end};
use crate::audit::Login;
use crate::authorization::{Denial, MessageKind, Subject};
use crate::config::{ActionName, Protocol};
use crate::context::{Closed, Context, STORE_FULL, TOO_MANY_SESSIONS};
use crate::door::{Early, TooManyConnections};
use crate::identity::{Identity, Outcome, Refusal};
use crate::judge::{Claim, Verdict, check_ban, finish, is_banned, is_unproved, judge, loggable};
use crate::last_refusal::note_disagreement;
use crate::metrics::LoginFailure;
use crate::repeats::brief;
use crate::session::topics::fault_of_name;
use crate::session::{self, command_that_ends, packet_id_at};

/// The claim of a CONNECT about its client.
///
/// # Errors
/// Why that cannot be looked at.
pub(super) fn claim_of<'a>(connect: &Connect<'a>) -> Result<Claim<'a>, &'static str> {
    let properties = &connect.properties;
    // An empty password proves nothing, so it is none beside a method.
    let method = properties.authentication_method();
    let password = connect
        .password
        .filter(|it| method.is_none() || !it.is_empty());
    Ok(match (method, connect.user_name, password) {
        (None, None, None) => Claim::Nothing,
        (None, Some(user), password) => Claim::Password(user, password.unwrap_or_default()),
        (None, None, Some(password)) => Claim::Password("", password),
        (Some(method), _, None) => {
            Claim::Exchange(method, properties.authentication_data().unwrap_or_default())
        }
        // Each proof that is shown must hold, and one that nobody looks at would not.
        (Some(_), _, Some(_)) => return Err("a password beside an authentication method"),
    })
}

impl Door {
    pub(super) fn connect(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        connect: &Connect<'_>,
    ) {
        let listener = cx.policy.listener(client.listener);
        let keep_alive_s = listener.server_keep_alive_s;
        let now_ms = cx.now_ms;
        let admission = match Admission::new(connect, &cx.policy.mqtt, keep_alive_s, now_ms) {
            Ok(admission) => admission,
            Err((reason, detail)) => {
                let failure = failure_of(reason);
                let login =
                    Login::of(cx, client.id, Protocol::Mqtt).named(brief(connect.client_id));
                let user = claim_of(connect)
                    .ok()
                    .and_then(|claim| loggable(cx.policy, claim));
                login.by(user).refused(failure, detail);
                return self.end_refused(client, reason, detail);
            }
        };
        client.name = admission.client_id.as_str().into();
        client.is_named = !admission.assigned;
        let claim = match claim_of(connect) {
            Ok(claim) => claim,
            Err(detail) => return self.refuse(cx, client, ReasonCode::NotAuthorized, detail),
        };
        let user_name = connect.user_name.filter(|name| !name.is_empty());
        match judge(cx, client.id, 0, claim) {
            Verdict::Known(identity)
                if matches!(claim, Claim::Exchange(..))
                    && user_name.is_some()
                    && user_name != identity.user() =>
            {
                let names = [identity.user(), user_name].map(Option::unwrap_or_default);
                disagree(cx, client, names);
                self.refuse_claim(cx, client, user_name, Refusal::Disagreement);
            }
            Verdict::Known(identity) => self.admit(cx, client, admission, identity),
            // The token's user is not known yet, so the user name cannot be compared with it.
            Verdict::Pending(_) if matches!(claim, Claim::Exchange(..)) && user_name.is_some() => {
                self.refuse_claim(cx, client, user_name, Refusal::Disagreement);
            }
            Verdict::Pending(pending) => {
                client.state = State::Password(Box::new((admission, pending)));
            }
            Verdict::Challenge(exchange, _)
                if user_name.is_some_and(|user| user != exchange.user()) =>
            {
                disagree(cx, client, [exchange.user(), user_name.unwrap_or_default()]);
                self.refuse_claim(cx, client, user_name, Refusal::Disagreement);
            }
            Verdict::Challenge(exchange, challenge) => {
                client.state = State::Exchange(Box::new((admission, *exchange)));
                client.engine.auth(
                    ReasonCode::ContinueAuthentication,
                    Some(challenge.as_bytes()),
                    &mut self.out,
                );
            }
            Verdict::Refused(refusal) => {
                let name = match claim {
                    Claim::Exchange(..) => user_name,
                    _ => loggable(cx.policy, claim),
                };
                self.refuse_claim(cx, client, name, refusal);
            }
        }
    }

    /// The verdict on a claim that took longer.
    pub(crate) fn judged(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        number: u64,
        outcome: Outcome,
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            match number {
                ACTION => {
                    client.asking.answered();
                    match std::mem::replace(&mut client.state, State::New) {
                        State::Asking(asking) => {
                            let (admission, identity) = *asking;
                            let name = (!admission.assigned).then_some(&*admission.client_id);
                            if is_banned(cx, client.id, &identity, name) {
                                let banned = Refusal::Banned;
                                return door.refuse_claim(cx, client, identity.user(), banned);
                            }
                            door.admit_asked(cx, client, admission, identity);
                        }
                        other => client.state = other,
                    }
                    return;
                }
                RENEWAL => return door.renewed(cx, client, outcome),
                _ => {}
            }
            match std::mem::replace(&mut client.state, State::New) {
                State::Password(password) => {
                    let (admission, pending) = *password;
                    let claimed = pending.claimed();
                    match pending.decided(&cx.policy.users, &cx.policy.webhook, outcome) {
                        Ok(identity) => door.admit(cx, client, admission, identity),
                        Err(refusal) => {
                            door.refuse_claim(cx, client, claimed.user(), refusal);
                        }
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
        if let State::Exchange(begun) = std::mem::replace(&mut client.state, State::New) {
            let (mut admission, exchange) = *begun;
            let user = exchange.user().to_owned();
            match finish(cx, client.id, exchange, data) {
                Ok((identity, last)) => {
                    admission.authentication_data = Some(last);
                    self.admit(cx, client, admission, identity);
                }
                Err(refusal) => self.refuse_claim(cx, client, Some(&user), refusal),
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
            match judge(cx, client.id, RENEWAL, claim) {
                Verdict::Pending(pending) => {
                    client.renewal = Some(Box::new(Renewal::Asked(pending)));
                    return;
                }
                Verdict::Challenge(exchange, challenge) => {
                    client.renewal = Some(Box::new(Renewal::Exchange(*exchange)));
                    let challenge = Some(challenge.as_bytes());
                    client.engine.auth(
                        ReasonCode::ContinueAuthentication,
                        challenge,
                        &mut self.out,
                    );
                    return;
                }
                Verdict::Known(identity) if Self::is_still(cx, client, &identity) => {
                    return self.renew(cx, client, identity);
                }
                _ => {}
            }
        } else if let Some(Renewal::Exchange(exchange)) = client.renewal.take().map(|own| *own)
            && let Ok((identity, last)) = finish(cx, client.id, exchange, data)
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

    /// The webhook's word on a client that proves itself again.
    fn renewed(&mut self, cx: &mut Context<'_>, client: &mut Client, outcome: Outcome) {
        let is_asked = matches!(client.renewal.as_deref(), Some(Renewal::Asked(_)));
        let renewal = client.renewal.take_if(|_| is_asked);
        let Some(Renewal::Asked(pending)) = renewal.map(|own| *own) else {
            return;
        };
        if !matches!(client.state, State::Live(_)) {
            return;
        }
        match pending.decided(&cx.policy.users, &cx.policy.webhook, outcome) {
            Ok(identity) if Self::is_still(cx, client, &identity) => {
                self.renew(cx, client, identity);
            }
            _ => {
                let detail = "re-authentication failed";
                self.turn_away(cx, client, ReasonCode::NotAuthorized, detail);
            }
        }
    }

    /// A client has proved itself again: its new identity holds from now on.
    fn renew(&mut self, cx: &mut Context<'_>, client: &mut Client, identity: Identity) {
        let is_like = client.identity.standing() == identity.standing();
        client.identity = identity;
        cx.policy.note_standing(&mut client.identity, &client.name);
        if let Some(session) = client.session()
            && !is_like
        {
            cx.broker.judge_again(cx.now_ms, session);
            let name = Some(&client.name);
            (client.sips).allow_again(cx, &client.identity, client.id, name);
        }
        self.set_next_timer(client);
        client.engine.auth(ReasonCode::Success, None, &mut self.out);
    }

    /// Whether a client that proves itself again is the same user, and may still have its identifier.
    fn is_still(cx: &Context<'_>, client: &Client, identity: &Identity) -> bool {
        client.identity.user() == identity.user()
            && (!client.is_named || cx.policy.may_have_client_id(identity, &client.name))
    }

    /// Looks at a client when it is due next, if that is earlier than it was to be looked at.
    fn set_next_timer(&mut self, client: &mut Client) {
        if let Some(next_ms) = client.next_ms()
            && next_ms < client.timer_ms
        {
            self.set_timer(client, next_ms);
        }
    }

    fn refuse_claim(
        &mut self,
        cx: &Context<'_>,
        client: &mut Client,
        user: Option<&str>,
        refusal: Refusal,
    ) {
        // [MQTT-4.12.0-1] [MQTT-4.12.0-4]
        let reason = match refusal {
            // A token may be the password, and HTTP has one status for both.
            Refusal::Password | Refusal::Token => ReasonCode::BadUserNameOrPassword,
            Refusal::Method => ReasonCode::BadAuthenticationMethod,
            Refusal::Slowed => ReasonCode::ConnectionRateExceeded,
            Refusal::Busy => ReasonCode::ServerBusy,
            Refusal::Unavailable | Refusal::Webhook => ReasonCode::ServerUnavailable,
            Refusal::Banned => ReasonCode::Banned,
            _ => ReasonCode::NotAuthorized,
        };
        let login = Login::of(cx, client.id, Protocol::Mqtt).named(&client.name);
        let login = login.by(user);
        login.refused(LoginFailure::Claim(refusal), refusal.detail());
        self.end_refused(client, reason, refusal.detail());
    }

    /// Refuses a CONNECT. [MQTT-3.1.4-2] [MQTT-3.2.2-7] [MQTT311-3.1.4-3]
    fn refuse(&mut self, cx: &Context<'_>, client: &mut Client, reason: ReasonCode, detail: &str) {
        Self::login_of(cx, client).refused(failure_of(reason), detail);
        self.end_refused(client, reason, detail);
    }

    /// The rules or the webhook refuse the will.
    fn refuse_will(&mut self, cx: &Context<'_>, client: &mut Client, topic: &str, denial: &Denial) {
        let detail = format!("the will for {:?}: {}", brief(topic), denial.detail());
        Self::login_of(cx, client).refused(LoginFailure::NotAuthorized, &detail);
        let told = match denial.of_webhook() {
            Some(words) => format!("the will: {words}").into(),
            None => Cow::from("the will's topic is not allowed"),
        };
        self.end_refused(client, ReasonCode::NotAuthorized, &told);
    }

    /// The login of a client whose user is known.
    fn login_of<'a>(cx: &'a Context<'_>, client: &'a Client) -> Login<'a> {
        let login = Login::of(cx, client.id, Protocol::Mqtt).named(&client.name);
        login.by(client.identity.user())
    }

    fn end_refused(&mut self, client: &mut Client, reason: ReasonCode, detail: &str) {
        let refuse = Refuse {
            reason_string: Some(detail),
            ..Refuse::default()
        };
        client.engine.refuse(reason, &refuse, &mut self.out);
        // [MQTT-3.1.4-6] [MQTT311-3.1.4-5] held input is not looked at
        client.held = ThinVec::new();
        client.state = State::Ended;
    }

    /// Opens the session of a client that may come in: the one that its identifier names, or a new one.
    /// [MQTT-3.1.3-2] [MQTT-3.1.4-4] [MQTT311-3.1.2-4] [MQTT311-3.1.2-5] [MQTT311-3.1.2-6]
    /// [MQTT311-3.1.3-2] [MQTT311-3.1.4-2]
    fn admit(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        admission: Admission,
        identity: Identity,
    ) {
        let name = (!admission.assigned).then_some(&*admission.client_id);
        if let Err(refusal) = check_ban(cx, client.id, &identity, name) {
            return self.refuse_claim(cx, client, identity.user(), refusal);
        }
        client.owes_login = is_unproved(cx, client.id);
        self.admit_asked(cx, client, admission, identity);
    }

    /// Counts the login of a client that was let in before its address was known.
    pub(super) fn count_login(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        if !std::mem::take(&mut client.owes_login) || matches!(client.state, State::Ended) {
            return;
        }
        let name = client.is_named.then_some(&*client.name);
        if let Err(refusal) = check_ban(cx, client.id, &client.identity, name) {
            self.send_away(cx, client, ReasonCode::Banned, refusal.detail());
        }
    }

    /// Keeps the will of a client that was let in before it could be no replay.
    pub(super) fn keep_will(cx: &mut Context<'_>, client: &Client) {
        let session = match &client.state {
            State::Opening(opening) => opening.0,
            State::Opened(session) | State::Live(session) => *session,
            _ => return,
        };
        cx.broker.keep_will(cx.now_ms, session);
    }

    /// The same for a client that no ban keeps out, and that may have waited for the webhook.
    fn admit_asked(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        mut admission: Admission,
        identity: Identity,
    ) {
        if !admission.assigned
            && !cx
                .policy
                .may_have_client_id(&identity, &admission.client_id)
        {
            let detail = "the client identifier is not one of the user's";
            client.identity = identity;
            return self.refuse(cx, client, ReasonCode::NotAuthorized, detail);
        }
        if let Some(will) = &admission.will {
            let subject = Subject {
                user: identity.user(),
                client: &client.name,
                origin: cx.origin(client.id),
                standing: identity.standing().map(|own| &**own),
            };
            let about = (will.message.topic(), MessageKind::of(&will.message));
            let letter = (client.id, ACTION);
            if (client.asking).must_wait(cx, letter, subject, ActionName::Publish, about) {
                client.state = State::Asking(Box::new((admission, identity)));
                return;
            }
            client.asking.passed();
        }
        if let Some(closed) = cx.closed() {
            let reason = match closed {
                Closed::MemoryShort => ReasonCode::QuotaExceeded,
                Closed::WrongClock | Closed::UnknownClock => ReasonCode::ServerUnavailable,
            };
            return self.refuse(cx, client, reason, closed.detail());
        }
        client.identity = identity;
        cx.policy.note_standing(&mut client.identity, &client.name);
        if client
            .sips
            .allow(cx, &client.identity, client.id, Some(&client.name))
            .is_err()
        {
            let detail = TooManyConnections::DETAIL;
            return self.refuse(cx, client, ReasonCode::QuotaExceeded, detail);
        }
        if let Some(will) = &mut admission.will {
            let topic = will.message.topic();
            let kind = MessageKind::of(&will.message);
            let subject = client.subject(cx);
            if !(cx.policy.rules).may_publish(subject, topic, kind) {
                let denial = (cx.policy.rules).denial(subject, ActionName::Publish, topic, kind);
                let topic = topic.to_owned();
                return self.refuse_will(cx, client, &topic, &denial);
            }
            let unaided = Subject {
                standing: None,
                ..subject
            };
            will.is_given = subject.standing.is_some()
                && !(cx.policy.rules).may_publish_still(unaided, topic, kind);
            if !client.sips.takes_will(cx, will.message.payload().len()) {
                let detail = "the user owes more messages than it may (authorization.limit.debt_s), and the will is one";
                return self.refuse(cx, client, ReasonCode::QuotaExceeded, detail);
            }
        }
        let mut will = admission.will.take();
        if let Some(will) = &mut will {
            will.is_unproved = client.early != Early::Over;
        }
        client.is_bound = admission.expiry_s > 0;
        let will_fault =
            (will.as_ref()).map(|will| fault_of_name(will.message.topic(), cx.broker.limits()));
        let (opened, token) = cx.appended(|cx| {
            let connection = client.id;
            cx.open(
                connection,
                OpenSession {
                    name: SessionName::new(client.identity.user(), &admission.client_id),
                    clean_start: admission.clean_start,
                    expiry_s: admission.expiry_s,
                    consumer: consumer(client.id),
                    will,
                    on_demand: false,
                    selector: None,
                },
            )
        });
        match opened {
            Ok(Opened::Ready { session, present }) => {
                self.welcome(cx, client, session, (present, token), admission);
            }
            Ok(Opened::Pending { session }) => {
                client.state = State::Opening(Box::new((session, admission)));
            }
            Err(OpenError::InvalidWillTopic) => {
                let detail = format!("the will: {}", will_fault.unwrap_or_default());
                self.refuse(cx, client, ReasonCode::TopicNameInvalid, &detail);
            }
            Err(OpenError::TakenOver) => self.refuse_overtaken(cx, client),
            Err(OpenError::ClusterAway) => self.refuse_unclaimed(cx, client),
            Err(OpenError::TooManySessions) => {
                let detail = cx.why_full(TOO_MANY_SESSIONS);
                self.refuse(cx, client, ReasonCode::QuotaExceeded, detail);
            }
            Err(OpenError::StoreFull) => {
                self.refuse(cx, client, ReasonCode::QuotaExceeded, STORE_FULL);
            }
            Err(OpenError::WillTooLarge) => {
                let detail = "the will is larger than what the cluster can keep";
                self.refuse(cx, client, ReasonCode::PacketTooLarge, detail);
            }
            Err(OpenError::TooManyWills) => {
                let detail = cx.why_full(
                    "too many wills (broker.maximum_will_bytes, broker.memory_wills_percent)",
                );
                self.refuse(cx, client, ReasonCode::QuotaExceeded, detail);
            }
        }
    }

    /// Another connection has claimed the session since, on this node or another.
    pub(super) fn refuse_overtaken(&mut self, cx: &Context<'_>, client: &mut Client) {
        client.promises.clear();
        let detail = "another connection has taken the session over";
        let session = SessionName::new(client.identity.user(), &client.name);
        let freed_by = command_that_ends(&session);
        let login = Self::login_of(cx, client).freed_by(&freed_by);
        login.refused(LoginFailure::Protocol, detail);
        self.end_refused(client, ReasonCode::UnspecifiedError, detail);
    }

    /// It is not known whether another node has the session.
    pub(super) fn refuse_unclaimed(&mut self, cx: &Context<'_>, client: &mut Client) {
        let detail = "the cluster cannot say which node has the session";
        self.refuse(cx, client, ReasonCode::ServerUnavailable, detail);
    }

    /// A session has come from another shard, or no other node has it.
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
                State::Opening(opening) if opening.0 == session => {
                    let (_, admission) = *opening;
                    // A new session that ends with its connection builds on nothing: in a cluster its client is
                    // let in without NATS, whatever else waits for that.
                    let builds_on = present || client.is_bound || cx.fence.is_none();
                    let token = if builds_on { cx.broker.token() } else { 0 };
                    door.welcome(cx, client, session, (present, token), admission);
                }
                other => client.state = other,
            },
        );
    }

    /// A session is open. Its client is told once the session and the effects of its earlier connections are
    /// kept. This connection builds on them.
    fn welcome(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        session: SessionKey,
        (present, token): (bool, u64),
        admission: Admission,
    ) {
        client.state = State::Opened(session);
        client.is_resumed = present;
        cx.note_origin(client.id, session);
        let token = if present { cx.broker.token() } else { token };
        let welcome = Acknowledgement::ConnAck(session, present, Box::new(admission));
        let mut unsettled = cx.broker.unacknowledged(session).into_iter();
        if unsettled.any(|entry| matches!(entry, Unacknowledged::HandedOver { .. })) {
            // PUBREL follows at once.
            self.acknowledge_again(cx, client, welcome);
        } else {
            self.acknowledge_kept(cx, client, token, welcome);
        }
    }

    /// Sends the CONNACK, before anything else, and the session's waiting messages. [MQTT-3.1.4-5]
    pub(super) fn accept(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        session: SessionKey,
        present: bool,
        admission: &Admission,
    ) {
        if !matches!(client.state, State::Opened(open) if open == session) {
            return;
        }
        client.state = State::Live(session);
        if present {
            restore(cx, session);
        }
        let Some(state) = session::mqtt_mut(cx.broker, session) else {
            return;
        };
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
            .accept(state, &accept, cx.now_ms, &mut self.out)
            .is_err()
        {
            log_end(
                cx,
                client,
                "Packet too large",
                "the client takes not even CONNACK",
            );
            return Self::lost(cx, client, EndCause::Limit);
        }
        self.counts.connections += 1;
        self.counts.messages_sent += 1;
        let login = Login::of(cx, client.id, Protocol::Mqtt).named(&client.name);
        login.accepted(&client.identity);
        self.set_next_timer(client);
        client.trace(cx);
        self.resend(cx, client);
        // Waiting messages had no receiver until now.
        cx.broker.unpark(session);
    }
}

/// Notes the names of an exchange and of the field User Name, which have to be the same one.
fn disagree(cx: &Context<'_>, client: &Client, [proved, said]: [&str; 2]) {
    let names = [("the exchange names", proved), ("the user name is", said)];
    note_disagreement(cx, client.id, names);
}

/// Takes up the kept state of a session after a restart: received messages of QoS 2, and those that were handed
/// over. [MQTT-4.1.0-1] [MQTT-4.4.0-1]
fn restore(cx: &mut Context<'_>, session: SessionKey) {
    let records = cx.broker.take_records(session);
    let is_new = session::mqtt(cx.broker, session).is_some_and(MqttSession::is_empty);
    if !is_new {
        return;
    }
    let received = records.iter().filter_map(|(key, _)| received_id(key));
    let mut handed_over = Vec::new();
    let mut sent = Vec::new();
    for entry in cx.broker.unacknowledged(session) {
        match entry {
            Unacknowledged::HandedOver { tag, position } if position > 0 => {
                handed_over.push((packet_id_at(position), tag));
            }
            // The client cannot be told by which identifier.
            Unacknowledged::HandedOver { tag, .. } => sent.push((tag, Settled::Accepted)),
            Unacknowledged::Sent(delivery) => sent.push((delivery.tag, Settled::Released)),
        }
    }
    let restored = MqttSession::restored(received, handed_over.into_iter());
    if let Some(state) = session::mqtt_mut(cx.broker, session) {
        *state = restored;
    }
    // The latest first, so that they keep their order.
    for (tag, outcome) in sent.into_iter().rev() {
        cx.broker.settle(cx.now_ms, session, tag, outcome);
    }
}

/// The kind of a refused login, by its code.
const fn failure_of(reason: ReasonCode) -> LoginFailure {
    match reason {
        ReasonCode::NotAuthorized => LoginFailure::NotAuthorized,
        ReasonCode::QuotaExceeded => LoginFailure::Quota,
        _ => LoginFailure::Protocol,
    }
}
