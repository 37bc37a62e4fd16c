//! Changes by operators: messages, sessions, and the process.

use std::fmt::Write as _;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use sterna_broker::{Message, MessageHeader, Publication, Publisher, Qos, Retention, SessionName};
use sterna_http::{ExchangeId, Responses};
use sterna_mqtt::{Property, PropertyBuf, topic};

use super::answers::{elsewhere, missing, one, queue_elsewhere, sum_of};
use super::api::{Done, Sent};
use super::bans::target_of_ban;
use super::call::Call;
use super::desk::{Desk, Purpose};
use super::floor::end_session_here;
use super::role::Role;
use super::routes::Operation;
use crate::audit::{self, Outcome};
use crate::authorization::{MessageKind, Subject};
use crate::context::NOT_RETAINED;
use crate::control::{Obeyed, Order, OrderLetter};
use crate::door::Promise;
use crate::http::{ProblemKind as Kind, Trouble};
use crate::identity::Identity;
use crate::mail::admin::{Answer, Body, Query};
use crate::mail::{AdminLetter, Mail};
use crate::metrics::Meters;
use crate::repeats::RepeatLimits;
use crate::session::amqp::topic_of_queue;
use crate::session::topics::fault_of_name;
use crate::session::{QUEUE_PREFIX, anchor_of};

/// A change that an operator makes, for the audit log.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) action: &'static str,
    pub(super) target: String,
    pub(super) peer: Option<SocketAddr>,
    pub(super) user: Option<String>,
    /// `None` for a sender without a role, who is refused.
    pub(super) role: Option<Role>,
    /// The node that its sender has asked, which has the line of the audit log; `None` for this one.
    pub(super) node: Option<String>,
    /// The time, in milliseconds since the Unix epoch, and how often lines about it may be alike.
    pub(super) repeats: (u64, RepeatLimits),
    /// The change in more words than its object; `None` where that says all.
    pub(super) detail: Option<String>,
}

/// The content of `POST /queues/{queue}/move`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    to: String,
    limit: Option<u32>,
}

/// The content of `POST /publish`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Publish {
    topic: String,
    payload: Option<String>,
    payload_base64: Option<String>,
    #[serde(default)]
    qos: u8,
    #[serde(default)]
    retain: bool,
    content_type: Option<String>,
    expiry_s: Option<u32>,
}

/// The object of a change, as its request names it.
pub(super) fn target_of(call: &Call, content: &[u8]) -> String {
    match call.route.operation {
        Operation::EndSessionsOf => format!("of {}", call.parameter("user").unwrap_or("nobody")),
        Operation::Move => {
            let to = serde_json::from_slice(content)
                .map_or_else(|_| String::new(), |wanted: Move| wanted.to);
            format!("{} to {to}", call.argument)
        }
        Operation::Ban => target_of_ban(content),
        Operation::EndSession if let Some(user) = call.parameter("user") => {
            format!("{} of {user}", call.argument)
        }
        _ => call.argument.clone(),
    }
}

/// The end of a change that is answered like this.
pub(super) fn outcome_of(trouble: &Trouble) -> Outcome<'_> {
    let detail = trouble.detail();
    if trouble.status() == 404 {
        Outcome::Nothing(detail)
    } else {
        Outcome::Refused(detail)
    }
}

impl Change {
    /// Shards have made the change, or have not found its object. A line of the audit log says so; `meters` are those
    /// of the shard. Returns what they tell of it.
    ///
    /// # Errors
    /// `kind` where there is nothing to change, or another reason.
    pub(super) fn found(
        mut self,
        meters: &Meters,
        kind: Kind,
        answers: Vec<Answer>,
    ) -> Result<Value, Trouble> {
        let away = elsewhere(&answers).map(queue_elsewhere);
        let ended = sum_of(&answers, "sessions");
        let Some(mut value) = one(answers) else {
            let trouble = away.unwrap_or_else(|| missing(kind));
            self.log(meters, outcome_of(&trouble));
            return Err(trouble.logged());
        };
        if let Some(sessions) = value.get_mut("sessions") {
            *sessions = ended.into();
        }
        self.learn(&value);
        self.log(meters, Outcome::Done);
        Ok(value)
    }

    /// Adds what is known of its object once it is made.
    pub(super) fn learn(&mut self, value: &Value) {
        if let Some(name) = value["name"].as_str() {
            let _ = write!(self.target, " {name}");
        }
        if let Some(sessions) = value["sessions"].as_u64() {
            let _ = write!(self.target, ", {sessions} sessions");
        }
        if let Some(messages) = value["messages"].as_u64() {
            let _ = write!(self.target, ", {messages} messages");
        }
    }

    /// The process has obeyed an order, or not. A line of the audit log says so; `meters` are those of the shard. `is_told`
    /// tells that the process has a line about a refusal.
    pub(super) fn obeyed(&self, meters: &Meters, answers: Vec<Answer>, is_told: bool) -> Obeyed {
        let obeyed = answers.into_iter().find_map(|answer| match answer {
            Answer::Obeyed(obeyed) => Some(obeyed),
            _ => None,
        });
        let is_told = is_told && obeyed.is_some();
        let obeyed = obeyed.unwrap_or_else(|| Err("the process has not answered".to_owned()));
        let outcome = match &obeyed {
            Ok(_) => Outcome::Done,
            // The line has the whole text, which may be long.
            Err(_) if is_told => Outcome::Refused("the line `reload refused` says why"),
            Err(why) => Outcome::Refused(why),
        };
        self.log(meters, outcome);
        obeyed
    }

    /// A line of the audit log about the change, and why it was refused, if it was. `meters` are those of the shard.
    pub(super) fn log(&self, meters: &Meters, outcome: Outcome<'_>) {
        if let Some(node) = &self.node {
            tracing::info!(
                node,
                user = self.user.as_deref(),
                action = self.action,
                on = self.target,
                is_done = matches!(outcome, Outcome::Done),
                "a node asks for an operator's action, and has its audit line"
            );
            return;
        }
        let action = audit::Action {
            name: self.action,
            target: &self.target,
            peer: self.peer,
            user: self.user.as_deref(),
            role: self.role.map(Role::name),
            repeats: self.repeats,
            detail: self.detail.as_deref(),
        };
        action.log(meters, outcome);
    }
}

impl Desk<'_, '_> {
    pub(super) fn end_session(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        session: SessionName,
        change: &Change,
    ) -> Result<(), Trouble> {
        if session.id().starts_with(QUEUE_PREFIX) {
            let detail = "this session keeps a queue, which it would take with it";
            return Err(Trouble::new(Kind::Conflict, detail));
        }
        let shard = self.shard_of_session(&session)?;
        // An answer to a node has no promise of a listener to wait for.
        if shard != self.cx.shard || self.is_of_node() {
            let purpose = Purpose::Change(change.clone(), Kind::SessionBusy);
            let query = Query::EndSession {
                session,
                append: None,
            };
            return self.ask_one(id, purpose, shard, query);
        }
        let now_ms = self.cx.now_ms;
        let Some(append) = end_session_here(self.cx, now_ms, &session) else {
            return Err(missing(Kind::SessionBusy));
        };
        self.log_change(change, Outcome::Done);
        let promise = self.promise().at(append);
        self.tell(out, promise, Done::new(id, 204, None));
        Ok(())
    }

    pub(super) fn remove_queue(
        &mut self,
        id: ExchangeId,
        name: &str,
        change: &Change,
    ) -> Result<(), Trouble> {
        self.queue(name)?;
        let conflict = |detail| Err(Trouble::new(Kind::Conflict, detail));
        if self.admin.queues.is_declared(name) {
            return conflict("the configuration declares this queue, or takes it for dead letters");
        }
        if self.cx.broker.is_in_cluster() {
            return conflict("a queue of a cluster is on all of its nodes, and is not removed");
        }
        let shard = self.shard_of_session(&anchor_of(name))?;
        let purpose = Purpose::Change(change.clone(), Kind::SessionBusy);
        let query = Query::RemoveQueue {
            name: name.into(),
            append: None,
        };
        self.ask_one(id, purpose, shard, query)
    }

    pub(super) fn move_messages(
        &mut self,
        sent: &Sent<'_>,
        call: &Call,
        change: &mut Change,
    ) -> Result<(), Trouble> {
        let wanted: Move = sent.read()?;
        change.target = format!("{} to {}", change.target, wanted.to);
        let most = self.cx.policy.admin.maximum_changes;
        // The sender does not know the setting, so a higher limit is lowered to it.
        let limit = wanted.limit.unwrap_or(most).min(most);
        if limit == 0 {
            let detail = "limit is a number from 1 on".to_owned();
            return Err(Trouble::new(Kind::InvalidContent, detail));
        }
        let queue = self.queue(&call.argument)?;
        self.queue(&wanted.to)?;
        if wanted.to == call.argument || !self.admin.queues.takes_its_topic(&wanted.to) {
            let detail = "the other queue is the same, or takes messages by a filter of its own";
            return Err(Trouble::new(Kind::Conflict, detail));
        }
        let query = Query::Move {
            queue: queue.into(),
            topic: topic_of_queue(&wanted.to).into(),
            limit: limit as usize,
            moved: 0,
        };
        let purpose = Purpose::Change(change.clone(), Kind::NoQueue);
        self.ask_home(sent.id, purpose, query)
    }

    pub(super) fn publish(
        &mut self,
        out: &mut dyn Responses,
        sent: &Sent<'_>,
        identity: &Identity,
        change: &mut Change,
    ) -> Result<(), Trouble> {
        let wanted: Publish = sent.read()?;
        change.target.clone_from(&wanted.topic);
        self.publish_message(out, sent.id, identity, &wanted)?;
        self.log_change(change, Outcome::Done);
        Ok(())
    }

    fn publish_message(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        identity: &Identity,
        wanted: &Publish,
    ) -> Result<(), Trouble> {
        let now_ms = self.cx.now_ms;
        let invalid = |detail: &'static str| Trouble::new(Kind::InvalidContent, detail);
        topic::check_name(&wanted.topic)
            .map_err(|error| Trouble::new(Kind::InvalidTopic, error.detail()))?;
        let subject = Subject {
            user: identity.user(),
            client: "",
            origin: self.cx.origin(self.connection),
            standing: identity.standing().map(|own| &**own),
        };
        let kind = MessageKind::new(wanted.qos, wanted.retain, false);
        if !(self.cx.policy.rules).may_publish(subject, &wanted.topic, kind) {
            let detail = "the rules forbid to publish to this topic";
            return Err(Trouble::new(Kind::Forbidden, detail));
        }
        let qos = Qos::from_u8(wanted.qos).ok_or_else(|| invalid("qos is 0, 1 or 2"))?;
        let payload = match (&wanted.payload, &wanted.payload_base64) {
            (Some(_), Some(_)) => return Err(invalid("either payload or payload_base64")),
            (Some(text), None) => text.clone().into_bytes(),
            (None, Some(text)) => {
                let payload = STANDARD.decode(text);
                payload.map_err(|_| invalid("payload_base64 is not base64"))?
            }
            (None, None) => Vec::new(),
        };
        let mut properties = PropertyBuf::new();
        if let Some(content_type) = &wanted.content_type {
            let pushed = properties.push(Property::ContentType(content_type));
            pushed.map_err(|error| {
                Trouble::new(Kind::InvalidContent, format!("content_type: {error}"))
            })?;
        }
        let header = MessageHeader {
            qos,
            retain: wanted.retain,
            published_ms: now_ms,
            expires_at_ms: wanted.expiry_s.map(|s| now_ms + u64::from(s) * 1000),
        };
        let properties = properties.properties().raw();
        let message = Message::copy(&wanted.topic, properties, &payload, header)
            .map_err(|_| invalid("the message is too large"))?;
        let publisher = Publisher {
            user: identity.user(),
            address: None,
        };
        let publication = Publication {
            publisher: Some(publisher),
            ..Publication::new(None, message)
        };
        let name = publisher.user.unwrap_or_default();
        let routed = self.cx.publish_at_once(name, publication);
        if let Some(why) = routed.refused {
            return Err(Trouble::of_publication(why));
        }
        let (kind, detail) = match routed.retention {
            Retention::InvalidTopic => (
                Kind::InvalidTopic,
                fault_of_name(&wanted.topic, self.cx.broker.limits()),
            ),
            Retention::Refused => (Kind::RetainedFull, NOT_RETAINED),
            Retention::NotAsked | Retention::Stored | Retention::Cleared | Retention::Absent => {
                let done = Done::new(
                    id,
                    200,
                    Some(self.said_by_node(json!({ "matched": routed.matched }))),
                );
                let listener = self.listener_index();
                let promise = Promise::of_message(self.cx, listener, subject, &wanted.topic, kind);
                self.tell(out, promise.at(routed.token), done);
                return Ok(());
            }
        };
        Err(Trouble::new(kind, detail))
    }

    /// Gives the process an order.
    pub(super) fn order(
        &mut self,
        id: ExchangeId,
        order: Order,
        change: Change,
    ) -> Result<(), Trouble> {
        let (Some(orders), Some(reply)) = (
            self.admin.sources.orders(),
            self.cx.outbox.postbox(self.cx.shard),
        ) else {
            return Err(Trouble::new(Kind::Busy, "the process takes no orders"));
        };
        let orders = orders.clone();
        let shard = self.cx.shard;
        let number = self.open(id, Purpose::Order(order, change), shard..shard + 1)?;
        let letter = OrderLetter::new(order, move |obeyed| {
            let answer = Answer::Obeyed(obeyed);
            let body = Body::Answer {
                number,
                shard,
                answer,
            };
            reply(Mail::Admin(Box::new(AdminLetter(body))));
        });
        if orders.give(letter) {
            return Ok(());
        }
        self.admin.gathers.withdraw(number);
        Err(Trouble::new(
            Kind::Busy,
            "the process has other orders to obey",
        ))
    }

    fn listener_index(&self) -> u16 {
        let info = self.cx.net.info(self.connection);
        info.map_or(0, |info| info.listener)
    }

    /// Waits as the connection's listener says; for nothing yet.
    pub(super) fn promise(&self) -> Promise {
        Promise::on(self.cx, self.listener_index())
    }

    /// Tells a client of a change once it is kept.
    pub(super) fn tell(&mut self, out: &mut dyn Responses, promise: Promise, done: Done) {
        if let Some(done) = self.promises.make(self.cx, promise, done) {
            done.tell(out);
        }
    }

    /// A line of the audit log about a change, and why it was refused, if it was.
    pub(super) fn log_change(&self, change: &Change, outcome: Outcome<'_>) {
        change.log(self.cx.meters, outcome);
    }
}
