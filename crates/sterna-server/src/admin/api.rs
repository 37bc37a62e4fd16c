//! Requests of the admin API: the questions to shards, and the use of their answers.

use serde::Deserialize;
use serde_json::{Value, json};
use sterna_broker::SessionName;
use sterna_http::{Content, ExchangeId, Head, Request, Responses};

use super::answers::{give, give_page, give_value, missing, no_retained};
use super::call::Call;
use super::changes::{Change, outcome_of, target_of};
use super::desk::{Desk, Purpose};
use super::floor::client_of;
use super::message::message_value;
use super::openapi;
use super::role::Role;
use super::routes::Operation;
use super::rules::{explain, rules_value};
use crate::audit::Outcome;
use crate::certificate::CertificateUse;
use crate::control::{Order, Reloaded};
use crate::http::{ProblemKind as Kind, Trouble, names_etag};
use crate::identity::{Identity, Refusal};
use crate::mail::admin::{Answer, Ask, Body, Query, Whose, Window};
use crate::mail::ranking::{Best, MOST_AT_ONCE, Rank, RankBy};
use crate::mail::{AdminLetter, Mail};
use crate::metrics::LoginFailure;
use crate::node_clock::NodeClock;
use crate::sys::Process;

/// Entries of a page where nothing else is asked for.
pub(super) const DEFAULT_PAGE: u32 = 100;

/// The state of a page of things that several shards have in places.
#[derive(Debug)]
pub(super) struct Paging {
    pub(super) items: Vec<Value>,
    pub(super) shard: usize,
    pub(super) limit: usize,
    /// Places that a shard looks at in one turn.
    pub(super) scan: usize,
    /// Places that are still looked at for this page, where one turn is not enough.
    pub(super) left: usize,
    /// The filter behind which the rest of the first place begins.
    pub(super) behind: Option<Box<str>>,
    list: List,
    /// The first entries so far, of a list in an order.
    pub(super) best: Option<Best<Value>>,
}

/// The things that are listed by places.
#[derive(Debug)]
enum List {
    Clients(Whose),
    Ranked(Whose, RankBy, Option<Rank>),
    Sessions(Whose),
    /// Subscriptions of all sessions: those that get messages of a topic, those of a filter.
    Subscriptions(Option<Box<str>>, Option<Box<str>>),
}

/// A page that one shard, or a part of each, gives as a whole.
#[derive(Debug)]
pub(super) enum Whole {
    /// `next` is the last filter.
    Subscriptions,
    /// `next` is the place of the last message.
    Messages,
    /// Queues by name and filter, in order, and whether there are more.
    Queues(Vec<(Box<str>, String)>, bool),
    /// The first of these queues alone.
    Queue(Vec<(Box<str>, String)>),
}

/// An answer to a client that waits until its effect is kept.
#[derive(Debug)]
pub(crate) struct Done {
    pub(super) id: ExchangeId,
    pub(super) status: u16,
    pub(super) content: Option<Value>,
}

/// The conditions of a request that only reads.
#[derive(Debug, Default)]
pub(super) struct Condition {
    /// Values of `If-None-Match`.
    tags: Vec<Box<[u8]>>,
}

impl Condition {
    pub(super) fn of(head: &Head) -> Self {
        let mut tags = Vec::new();
        head.each_field("if-none-match", |value| tags.push(value.into()));
        Self { tags }
    }

    pub(super) fn has(&self, etag: &str) -> bool {
        self.tags.iter().any(|tag| names_etag(tag, etag))
    }
}

/// A request whose sender may send it.
#[derive(Debug)]
pub(super) struct Sent<'r> {
    pub(super) id: ExchangeId,
    pub(super) content: &'r [u8],
    pub(super) condition: Condition,
}

impl<'r> Sent<'r> {
    /// Reads its content.
    pub(super) fn read<T: Deserialize<'r>>(&self) -> Result<T, Trouble> {
        serde_json::from_slice(self.content)
            .map_err(|error| Trouble::new(Kind::InvalidContent, error.to_string()))
    }
}

/// A change has to show that no page of a browser made it by a form or a link. Those cannot set the type
/// JSON, or another field, without asking before.
fn check_intent(head: &Head) -> Result<(), Trouble> {
    let is_json = head.field("content-type").is_some_and(|value| {
        let essence = value.split(|byte| *byte == b';').next().unwrap_or_default();
        essence
            .trim_ascii()
            .eq_ignore_ascii_case(b"application/json")
    });
    if is_json || head.field("sterna-request").is_some() {
        return Ok(());
    }
    let detail = "a change has the field `content-type: application/json` or `sterna-request`";
    Err(Trouble::new(Kind::InvalidField, detail))
}

impl Desk<'_, '_> {
    /// Answers a request for the API, now or later; false where it waits for a verdict.
    pub(super) fn api(
        &mut self,
        out: &mut dyn Responses,
        request: &Request,
    ) -> Result<bool, Trouble> {
        let head = &request.head;
        let mut call = Call::read(head.method(), head.target())?;
        if call.route.method != "GET" {
            check_intent(head)?;
        }
        let Some(wanted) = call.route.role else {
            let document = Content::Shared(openapi::document());
            give(
                out,
                request.id,
                &Condition::of(head),
                document,
                openapi::etag(),
            );
            return Ok(true);
        };
        let Some(identity) = self.sender(head)? else {
            return Ok(false);
        };
        let role = self.role(&identity);
        let parameter = call.parameter("client").or_else(|| call.parameter("topic"));
        let mut change = Change {
            action: call.route.id,
            target: parameter.unwrap_or(&call.argument).to_owned(),
            peer: self.peer(),
            user: identity.user().map(str::to_owned),
            role,
            node: None,
            repeats: (self.cx.now_ms, self.cx.policy.repeats),
            detail: None,
        };
        if role.is_none_or(|role| role < wanted) {
            return Err(self.not_allowed(&change, wanted));
        }
        self.came_in(&identity);
        let round = self.round(&mut call, &request.content);
        let done = round.and_then(|round| {
            let condition = Condition::of(head);
            let Some(mut round) = round else {
                let sent = Sent {
                    id: request.id,
                    content: &request.content,
                    condition,
                };
                return self.operate(out, sent, &call, &identity, &mut change);
            };
            round.condition = condition;
            round.by = (change.user.clone(), role);
            if call.route.method != "GET" {
                change.target = target_of(&call, &request.content);
                round.change = Some(change.clone());
            }
            self.begin_round(out, request.id, Box::new(round));
            Ok(())
        });
        let done = done.map_err(|trouble| {
            if call.route.method == "GET" || trouble.is_logged() {
                return trouble;
            }
            self.log_change(&change, outcome_of(&trouble));
            trouble.logged()
        });
        done.map(|()| true)
    }

    /// The role of a sender does not reach. The login is good, so the action is refused.
    fn not_allowed(&self, change: &Change, wanted: Role) -> Trouble {
        let user = change.user.as_deref();
        if user.is_none() && self.cx.policy.has_users() {
            let detail = "the API asks for credentials";
            let challenge = crate::http::challenge(self.cx.policy);
            let trouble = Trouble::unauthenticated(detail, challenge);
            let failure = LoginFailure::Claim(Refusal::NoCredentials);
            return self.refuse_login(user, failure, trouble);
        }
        let has = match change.role {
            Some(role) => format!("the role {}", role.name()),
            None => "none".to_owned(),
        };
        // Without users there is no other name that a list could have.
        let anonymous = if user.is_none() && !self.cx.policy.has_users() {
            "; without users a list can name `anonymous`"
        } else {
            ""
        };
        let detail = format!(
            "this needs the role {}, and the sender has {has}: see admin.viewers, admin.operators and \
             authorization.admins{anonymous}",
            wanted.name()
        );
        self.log_change(change, Outcome::Refused(&detail));
        Trouble::new(Kind::Forbidden, detail).logged()
    }

    /// Does the requested operation. `change` learns its object where the request's content names that.
    pub(super) fn operate(
        &mut self,
        out: &mut dyn Responses,
        sent: Sent<'_>,
        call: &Call,
        identity: &Identity,
        change: &mut Change,
    ) -> Result<(), Trouble> {
        let id = sent.id;
        let limits = &self.cx.policy.admin;
        let (most, changes) = (limits.maximum_page, limits.maximum_changes);
        let limit = || call.limit(DEFAULT_PAGE, most);
        match call.route.operation {
            Operation::OpenApi => Ok(()),
            Operation::Me => {
                let role = self.role(identity).map(Role::name);
                let proof = identity.proof().name();
                let value = json!({ "user": identity.user(), "role": role, "proof": proof });
                give_value(out, id, &sent.condition, &value);
                Ok(())
            }
            Operation::Rules => {
                give_value(
                    out,
                    id,
                    &sent.condition,
                    &rules_value(&self.cx.policy.rules),
                );
                Ok(())
            }
            Operation::Explain => {
                let value = explain(&self.cx.policy.rules, call)?;
                give_value(out, id, &sent.condition, &value);
                Ok(())
            }
            Operation::Node => self.ask_all(id, Purpose::Node, &Ask::Figures),
            Operation::Clients => {
                let whose = whose(call)?;
                match call.parameter("sort") {
                    None => self.list(id, call, limit()?, List::Clients(whose)),
                    Some(order) => self.rank(id, call, limit()?, whose, order),
                }
            }
            Operation::Sessions => self.list(id, call, limit()?, List::Sessions(whose(call)?)),
            Operation::Client => {
                let (shard, client) = self.client(&call.argument)?;
                let purpose = Purpose::One(sent.condition, Kind::NoClient);
                self.ask_one(id, purpose, shard, Query::Client(client))
            }
            Operation::Disconnect => {
                let (shard, client) = self.client(&call.argument)?;
                let purpose = Purpose::Change(change.clone(), Kind::NoClient);
                self.ask_one(id, purpose, shard, Query::Disconnect(client))
            }
            Operation::Session => {
                let session = session_of(call);
                let shard = self.shard_of_session(&session)?;
                let purpose = Purpose::One(sent.condition, Kind::SessionBusy);
                let query = Query::Session(session);
                self.ask_one(id, purpose, shard, query)
            }
            Operation::EndSession => self.end_session(out, id, session_of(call), change),
            Operation::Subscriptions => {
                let session = session_of(call);
                let shard = self.shard_of_session(&session)?;
                let query = Query::Subscriptions {
                    session,
                    after: call.parameter("after").map(Into::into),
                    limit: limit()?,
                };
                let purpose = Purpose::Whole(Whole::Subscriptions, sent.condition);
                self.ask_one(id, purpose, shard, query)
            }
            Operation::AllSubscriptions => {
                let [topic, filter] = ["topic", "filter"].map(|name| call.parameter(name));
                let list = List::Subscriptions(topic.map(Into::into), filter.map(Into::into));
                self.list(id, call, limit()?, list)
            }
            Operation::Topic => self.topic(out, id, &call.argument, &sent.condition),
            Operation::Queues => {
                let registry = &self.admin.queues;
                let (queues, has_more) = registry.page(call.parameter("after"), limit()?);
                self.ask_queues(id, Whole::Queues(queues, has_more), sent.condition)
            }
            Operation::Queue => {
                let queue = self.queue(&call.argument)?;
                let queues = vec![(call.argument.as_str().into(), queue)];
                self.ask_queues(id, Whole::Queue(queues), sent.condition)
            }
            Operation::RemoveQueue => self.remove_queue(id, &call.argument, change),
            Operation::Messages => {
                let query = Query::Messages {
                    queue: self.queue(&call.argument)?.into(),
                    after: call.after(|text| text.parse().ok())?,
                    limit: limit()?,
                };
                self.ask_home(id, Purpose::Whole(Whole::Messages, sent.condition), query)
            }
            Operation::Purge => {
                let query = Query::Purge {
                    queue: self.queue(&call.argument)?.into(),
                    limit: call.limit(changes, changes)?,
                };
                self.ask_home(id, Purpose::Change(change.clone(), Kind::NoQueue), query)
            }
            Operation::Move => self.move_messages(&sent, call, change),
            Operation::Retained => self.retained(out, id, call, limit()?),
            Operation::RetainedMessage => {
                let now_ms = self.cx.now_ms;
                let message = self.cx.broker.retained(now_ms, &call.argument);
                let message = message.ok_or_else(no_retained)?;
                let most = limits.maximum_payload_bytes;
                give_value(out, id, &sent.condition, &message_value(&message, most));
                Ok(())
            }
            Operation::DeleteRetained => {
                let topic = call.argument.as_str();
                let (is_there, token) = self.cx.appended(|cx| cx.broker.clear_retained(topic));
                if !is_there {
                    return Err(no_retained());
                }
                self.log_change(change, Outcome::Done);
                let promise = self.promise().at(token);
                self.tell(out, promise, Done::new(id, 204, None));
                Ok(())
            }
            Operation::Publish => self.publish(out, &sent, identity, change),
            Operation::Store => {
                let store = self.admin.sources.store();
                let value = json!({ "is_enabled": store.is_some() });
                let value = store.map_or(value, |usage| {
                    json!({
                        "is_enabled": true,
                        "segments": usage.segments,
                        "log_bytes": usage.log_bytes,
                        "written_bytes": usage.written_bytes,
                        "unwritten_bytes": usage.unwritten_bytes,
                        "unsynced_frames": usage.unsynced_frames,
                        "failures": usage.failures,
                        "is_full": usage.is_full,
                        "damaged_places": usage.damaged_places,
                        "rewritten_segments": usage.rewritten_segments,
                        "rewrite_freed_bytes": usage.rewrite_freed_bytes,
                        "syncs": usage.syncs.buckets.iter().sum::<u64>(),
                        "sync_us": usage.syncs.sum_us,
                    })
                });
                give_value(out, id, &sent.condition, &value);
                Ok(())
            }
            Operation::Memory => {
                let process = Process::read();
                let kinds = self.admin.sources.memory(self.cx.memory, &process);
                let kinds: serde_json::Map<String, Value> = (kinds.into_iter())
                    .map(|(kind, bytes)| (format!("{kind}_bytes"), bytes.into()))
                    .collect();
                let value = json!({ "resident_bytes": process.resident_bytes, "kinds": kinds });
                give_value(out, id, &sent.condition, &value);
                Ok(())
            }
            Operation::Clock => {
                let clock = self.clock()?;
                give_value(out, id, &sent.condition, &clock.view());
                Ok(())
            }
            Operation::AcceptClock => {
                let clock = self.clock()?;
                clock.accept();
                let view = clock.view();
                self.log_change(change, Outcome::Done);
                self.cx.outbox.post(0, Mail::Clock);
                Done::new(id, 200, Some(view)).tell(out);
                Ok(())
            }
            Operation::Certificates => {
                let certificates = self.admin.sources.certificates();
                let items = certificates.iter().map(|certificate| {
                    json!({
                        "file": certificate.file.display().to_string(),
                        "is_authority": certificate.usage == CertificateUse::Authority,
                        "is_revocation_list": certificate.usage == CertificateUse::RevocationList,
                        "subject": certificate.subject,
                        "fingerprint": certificate.fingerprint,
                        "expires_s": Some(certificate.expires_s).filter(|at| *at != 0),
                        "is_for_development": certificate.development,
                    })
                });
                let value = json!({ "items": items.collect::<Vec<_>>() });
                give_value(out, id, &sent.condition, &value);
                Ok(())
            }
            Operation::Cluster => self.cluster(id, sent.condition),
            Operation::SetReplicas => self.set_replicas(id, &call.argument, change.clone()),
            Operation::Bans => self.bans(out, id, call, limit()?),
            Operation::Ban => self.ban(out, &sent, change),
            Operation::Lift => self.lift_ban(out, &sent, call, change),
            Operation::Trace => {
                self.log_change(change, Outcome::Done);
                self.trace(out, id, call, identity)
            }
            Operation::Reload => {
                let order = match call.parameter("dry_run") {
                    None => Order::Reload,
                    Some("yes") => {
                        "dry run".clone_into(&mut change.target);
                        Order::DryRun
                    }
                    Some(_) => {
                        let detail = "dry_run is \"yes\", or not there";
                        return Err(Trouble::new(Kind::InvalidParameter, detail));
                    }
                };
                self.order(id, order, change.clone())
            }
            Operation::EndSessionsOf => {
                let user = call.parameter("user").filter(|user| !user.is_empty());
                let is_nobodys = is_nobodys(call)?;
                if user.is_none() && !is_nobodys {
                    let detail = "whose sessions? Give the parameter \"user\", or nobody=yes";
                    return Err(Trouble::new(Kind::InvalidParameter, detail));
                }
                change.target = format!("of {}", user.unwrap_or("nobody"));
                let query = Query::EndSessionsOf {
                    user: user.map(Into::into),
                    from: 0,
                    ended: 0,
                    append: None,
                };
                let purpose = Purpose::Change(change.clone(), Kind::NoSession);
                self.ask_all(id, purpose, &Ask::Query(query))
            }
            Operation::Drain => self.order(id, Order::Drain, change.clone()),
        }
    }

    /// The node's clock.
    fn clock(&self) -> Result<&NodeClock, Trouble> {
        let detail = "nothing is kept over a restart, so no clock is: store.enabled is false";
        (self.admin.sources.clock()).ok_or_else(|| Trouble::new(Kind::NoResource, detail))
    }

    /// The shard and the connection that a name stands for.
    fn client(&self, name: &str) -> Result<(usize, sterna_net::ConnectionId), Trouble> {
        let shards = usize::from(self.cx.broker.directory().shards());
        client_of(name)
            .filter(|(shard, _)| *shard < shards)
            .ok_or_else(|| missing(Kind::NoClient))
    }

    pub(super) fn shard_of_session(&self, name: &SessionName) -> Result<usize, Trouble> {
        let shard = self.cx.broker.directory().shard_of(name);
        shard
            .map(|shard| usize::from(shard.0))
            .ok_or_else(|| missing(Kind::NoSession))
    }

    /// The shared subscription that a queue is.
    pub(super) fn queue(&self, name: &str) -> Result<String, Trouble> {
        let queue = self.admin.queues.shared_subscription(name);
        queue.ok_or_else(|| missing(Kind::NoQueue))
    }

    /// Asks shards, one after the other, for a page of the things that they have in places.
    fn list(
        &mut self,
        id: ExchangeId,
        call: &Call,
        limit: usize,
        list: List,
    ) -> Result<(), Trouble> {
        let shards = usize::from(self.cx.broker.directory().shards());
        let after = call.after(|text| {
            let mut parts = text.splitn(3, '.');
            let shard: usize = parts.next()?.parse().ok()?;
            let place: usize = parts.next()?.parse().ok()?;
            let behind = parts.next().filter(|behind| !behind.is_empty());
            Some((shard, place, behind.map(Into::into))).filter(|_| shard < shards)
        })?;
        let (shard, from, behind) = after.unwrap_or_default();
        let left = self.cx.policy.admin.maximum_scan as usize;
        let is_slow = matches!(list, List::Subscriptions(..));
        let paging = Paging {
            items: Vec::new(),
            shard,
            limit,
            scan: left.min(if is_slow { MOST_AT_ONCE } else { left }),
            left,
            behind,
            list,
            best: None,
        };
        let query = paging.query(from);
        self.ask_one(id, Purpose::Page(Box::new(paging)), shard, query)
    }

    /// Asks all shards, one after the other, for the first in an order.
    fn rank(
        &mut self,
        id: ExchangeId,
        call: &Call,
        limit: usize,
        whose: Whose,
        order: &str,
    ) -> Result<(), Trouble> {
        let order = RankBy::named(order).ok_or_else(|| {
            let names = RankBy::NAMES.map(|(name, _)| name).join(", ");
            Trouble::new(Kind::InvalidParameter, format!("`sort` is one of {names}"))
        })?;
        let after = call.after(Rank::parse)?;
        let left = self.cx.policy.admin.maximum_scan as usize;
        let paging = Paging {
            items: Vec::new(),
            shard: 0,
            limit,
            scan: left.min(MOST_AT_ONCE),
            left,
            behind: None,
            best: Some(Best::new(after.clone(), limit)),
            list: List::Ranked(whose, order, after),
        };
        let query = paging.query(0);
        self.ask_one(id, Purpose::Page(Box::new(paging)), 0, query)
    }

    pub(super) fn ask_one(
        &mut self,
        id: ExchangeId,
        purpose: Purpose,
        shard: usize,
        query: Query,
    ) -> Result<(), Trouble> {
        self.ask(id, purpose, shard..shard + 1, &Ask::Query(query))
    }

    /// Asks the shard that a queue is on, which only that knows.
    pub(super) fn ask_home(
        &mut self,
        id: ExchangeId,
        purpose: Purpose,
        query: Query,
    ) -> Result<(), Trouble> {
        self.ask_all(id, purpose, &Ask::Query(query))
    }

    fn ask_queues(
        &mut self,
        id: ExchangeId,
        whole: Whole,
        condition: Condition,
    ) -> Result<(), Trouble> {
        let (Whole::Queues(queues, _) | Whole::Queue(queues)) = &whole else {
            return Ok(());
        };
        let filters = queues.iter().map(|(_, filter)| filter.as_str().into());
        let query = Query::Queues(filters.collect());
        self.ask_all(id, Purpose::Whole(whole, condition), &Ask::Query(query))
    }

    fn retained(
        &self,
        out: &mut dyn Responses,
        id: ExchangeId,
        call: &Call,
        limit: usize,
    ) -> Result<(), Trouble> {
        let limits = &self.cx.policy.admin;
        let skip = call.after(|text| text.parse::<usize>().ok())?.unwrap_or(0);
        if skip > limits.maximum_scan as usize {
            let detail = "that many messages are not passed over (admin.maximum_scan): give a narrower filter";
            return Err(Trouble::new(Kind::InvalidParameter, detail));
        }
        let filter = call.parameter("filter").unwrap_or("#");
        let now_ms = self.cx.now_ms;
        let page = self.cx.broker.retained_page(now_ms, filter, skip, limit);
        let (messages, has_more) =
            page.ok_or_else(|| Trouble::new(Kind::InvalidFilter, "filter is not a topic filter"))?;
        let most = limits.maximum_payload_bytes;
        let items = messages.iter().map(|message| message_value(message, most));
        let next = has_more.then(|| (skip + messages.len()).to_string());
        give_page(out, id, items.collect(), next, &[]);
        Ok(())
    }

    /// The readers of a topic. The routes of all shards are here.
    fn topic(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        topic: &str,
        condition: &Condition,
    ) -> Result<(), Trouble> {
        let reach = self.cx.broker.reach(topic);
        let reach =
            reach.ok_or_else(|| Trouble::new(Kind::InvalidTopic, "this is no topic name"))?;
        let now_ms = self.cx.now_ms;
        let value = json!({
            "topic": topic,
            "matched": reach.matched,
            "shared_subscriptions": reach.shared,
            "queues": reach.queues,
            "nodes": reach.nodes,
            "is_retained": self.cx.broker.retained(now_ms, topic).is_some(),
        });
        give_value(out, id, condition, &value);
        Ok(())
    }

    /// Asks the engine of the cluster.
    fn cluster(&mut self, id: ExchangeId, condition: Condition) -> Result<(), Trouble> {
        self.ask_engine(id, Purpose::Cluster(condition), |asker, reply| {
            asker.ask(move |report| reply(Answer::Report(Box::new(report))))
        })
    }

    /// Has the engine of the cluster set the number of copies in NATS.
    fn set_replicas(
        &mut self,
        id: ExchangeId,
        replicas: &str,
        change: Change,
    ) -> Result<(), Trouble> {
        let number = replicas.parse().ok().filter(|n| (1..=5).contains(n));
        let number: usize = number.ok_or_else(|| {
            let detail = "NATS keeps 1 to 5 copies";
            Trouble::new(Kind::InvalidParameter, detail)
        })?;
        self.ask_engine(id, Purpose::Replicas(change), |asker, reply| {
            asker.set_replicas(number, move |done| {
                reply(Answer::Obeyed(done.map(|()| Reloaded::default())));
            })
        })
    }

    /// Asks the engine of the cluster something. `ask` returns false where that has ended.
    fn ask_engine(
        &mut self,
        id: ExchangeId,
        purpose: Purpose,
        ask: impl FnOnce(&sterna_cluster::Asker, Box<dyn FnOnce(Answer) + Send>) -> bool,
    ) -> Result<(), Trouble> {
        let asker = self.admin.sources.cluster_asker().cloned().ok_or_else(|| {
            let detail = "this broker is not a node of a cluster: cluster.nats is not set";
            Trouble::new(Kind::NoResource, detail)
        })?;
        let Some(reply) = self.cx.outbox.postbox(self.cx.shard) else {
            return Err(Trouble::new(Kind::Busy, "the process takes no questions"));
        };
        let shard = self.cx.shard;
        let number = self.open(id, purpose, shard..shard + 1)?;
        let is_asked = ask(
            &asker,
            Box::new(move |answer| {
                let body = Body::Answer {
                    number,
                    shard,
                    answer,
                };
                reply(Mail::Admin(Box::new(AdminLetter(body))));
            }),
        );
        if is_asked {
            return Ok(());
        }
        self.admin.gathers.withdraw(number);
        let detail = "the engine of the cluster has ended; the log says why";
        Err(Trouble::new(Kind::ClusterAway, detail))
    }
}

/// The choice of a list.
fn whose(call: &Call) -> Result<Whose, Trouble> {
    Ok(Whose {
        name: call.parameter("name").map(Into::into),
        user: call.parameter("user").map(Into::into),
        is_nobodys: is_nobodys(call)?,
    })
}

/// Whether sessions of clients without a user are meant.
fn is_nobodys(call: &Call) -> Result<bool, Trouble> {
    let detail = match (call.parameter("nobody"), call.parameter("user")) {
        (None, _) => return Ok(false),
        (Some("yes"), None) => return Ok(true),
        (Some("yes"), Some(_)) => "either user, or nobody=yes",
        (Some(_), _) => "nobody is \"yes\", or not there",
    };
    Err(Trouble::new(Kind::InvalidParameter, detail))
}

/// The session that a request is about.
fn session_of(call: &Call) -> SessionName {
    SessionName::new(call.parameter("user"), &call.argument)
}

impl Paging {
    /// The question to the shard, from a place on.
    pub(super) fn query(&self, from: usize) -> Query {
        let window = Window {
            from,
            limit: self.limit - self.items.len(),
            scan: self.scan,
        };
        match &self.list {
            List::Clients(whose) => Query::Clients {
                window,
                whose: whose.clone(),
            },
            List::Subscriptions(topic, filter) => Query::AllSubscriptions {
                window,
                behind: self.behind.clone(),
                topic: topic.clone(),
                filter: filter.clone(),
            },
            List::Ranked(whose, order, after) => Query::Ranked {
                window,
                whose: whose.clone(),
                order: *order,
                after: after.clone(),
            },
            List::Sessions(whose) => Query::Sessions {
                window,
                whose: whose.clone(),
            },
        }
    }
}
