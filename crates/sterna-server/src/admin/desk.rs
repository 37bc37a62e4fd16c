//! One connection's requests: `/metrics`, `/healthz`, `/readyz`, the page, and the rights of senders to use the
//! API.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use sterna_http::{Application, Content, ExchangeId, Fault, Head, Refusal, Request, Responses};
use sterna_net::{ConnectionId, Pages};

use super::Admin;
use super::api::{Condition, Done, Paging, Whole};
use super::changes::Change;
use super::gather::{Asked, Gathered};
use super::role::Role;
use super::round::Round;
use super::routes;
use crate::audit;
use crate::config::Protocol;
use crate::context::Context;
use crate::control::Order;
use crate::door::Promises;
use crate::http::{
    Credentials, ProblemKind as Kind, Trouble, Verdict, claimed_user, fail, respond,
};
use crate::identity::{Identity, Outcome};
use crate::mail::admin::{Answer, Ask, Body};
use crate::mail::{AdminLetter, Mail};
use crate::memory::Stage;
use crate::metrics::{Figures, LoginFailure, Meters, Scrape};
use crate::node_clock::NodeClock;
use crate::policy::ListenerPolicy;
use crate::repeats::brief;

/// The methods of every resource.
const METHODS: &str = "GET, HEAD";
/// No cache may keep an answer.
const NOT_STORED: (&str, &[u8]) = ("cache-control", b"no-store");

/// A resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Resource {
    /// Liveness of the process.
    Health,
    /// Readiness of all shards for clients.
    Readiness,
    Metrics,
    /// A file of the page.
    Page,
    /// The admin API.
    Api,
}

/// The use of the shards' answers.
#[derive(Debug)]
pub(super) enum Purpose {
    Ready,
    Scrape,
    Node,
    /// The next part of a page.
    Page(Box<Paging>),
    /// A page as it is.
    Whole(Whole, Condition),
    /// One thing; the problem where there is none.
    One(Condition, Kind),
    /// The state of the cluster.
    Cluster(Condition),
    /// Another number of copies in NATS.
    Replicas(Change),
    /// A change; the problem where there is nothing to change.
    Change(Change, Kind),
    /// An order to the process.
    Order(Order, Change),
    /// A request to nodes of the cluster.
    Nodes(Box<Round>),
}

impl Purpose {
    /// Whether the question has effects, also where nobody waits for the answers.
    pub(super) fn is_change(&self) -> bool {
        match self {
            Self::Change(..) | Self::Order(..) | Self::Replicas(..) => true,
            Self::Nodes(round) => round.change.is_some(),
            _ => false,
        }
    }

    /// The name of somebody who is asked, by the place among them.
    pub(super) fn asked_name(&self, place: usize) -> String {
        match self {
            Self::Nodes(round) => round.asked_name(place),
            _ => format!("shard {place}"),
        }
    }

    /// Shards have answered a question, and nobody waits for that any more. A change is a line of the audit log all
    /// the same. `meters` are those of the shard.
    pub(super) fn end_unheard(self, meters: &Meters, answers: Vec<Answer>) {
        match self {
            Self::Change(change, kind) => drop(change.found(meters, kind, answers)),
            Self::Order(order, change) => {
                drop(change.obeyed(meters, answers, order == Order::Reload));
            }
            Self::Replicas(change) => drop(change.obeyed(meters, answers, false)),
            Self::Nodes(round) => round.end_unheard(meters, answers),
            _ => {}
        }
    }
}

impl Resource {
    /// The resource of a path; the query is ignored.
    fn of(target: &str) -> Option<Self> {
        match target.split('?').next().unwrap_or_default() {
            "/healthz" => Some(Self::Health),
            "/readyz" => Some(Self::Readiness),
            "/metrics" => Some(Self::Metrics),
            "/" => Some(Self::Page),
            path if path.starts_with("/page/") => Some(Self::Page),
            path if path.starts_with(routes::PREFIX) => Some(Self::Api),
            _ => None,
        }
    }
}

/// The method and the path of a request, for the log.
fn asked_by(head: &Head) -> Arc<(Box<str>, Box<str>)> {
    let path = head.target().split('?').next().unwrap_or_default();
    Arc::new((brief(head.method()).into(), brief(path).into()))
}

/// Contents of requests that wait, in bytes.
pub(super) fn held_bytes(held: &[Request]) -> usize {
    held.iter().map(|request| request.content.len()).sum()
}

/// The door for one connection and one step.
pub(super) struct Desk<'a, 'b> {
    pub(super) connection: ConnectionId,
    pub(super) admin: &'a mut Admin,
    pub(super) is_stopping: bool,
    pub(super) cx: &'a mut Context<'b>,
    pub(super) credentials: &'a mut Credentials,
    pub(super) held: &'a mut Vec<Request>,
    pub(super) promises: &'a mut Promises<Done>,
    /// The request that is answered now.
    pub(super) asked: Asked,
}

impl Desk<'_, '_> {
    /// Answers a request, or keeps it until it can be answered.
    fn consider(&mut self, out: &mut dyn Responses, request: Request) {
        let id = request.id;
        self.asked = Some(asked_by(&request.head));
        match self.answer(out, &request) {
            Ok(true) => {}
            Ok(false) => {
                let held_bytes = held_bytes(self.held) + request.content.len();
                if held_bytes <= self.cx.policy.http.maximum_assembling_bytes as usize {
                    return self.held.push(request);
                }
                let trouble = Trouble::new(Kind::Busy, "too much waits on this connection");
                self.refused(out, id, &trouble);
            }
            Err(trouble) => self.refused(out, id, &trouble),
        }
    }

    pub(super) fn refused(&self, out: &mut dyn Responses, id: ExchangeId, trouble: &Trouble) {
        if !trouble.is_logged() {
            let (user, detail) = (self.credentials.name(), trouble.detail());
            let line = (self.cx).repeats(self.connection, user.unwrap_or_default(), detail);
            if let Some(line) = line {
                let asked = self.asked.as_deref();
                tracing::info!(
                    peer = line.peer,
                    user,
                    method = asked.map(|(method, _)| &**method),
                    path = asked.map(|(_, path)| &**path),
                    status = trouble.status(),
                    detail,
                    more = line.more,
                    "admin request refused"
                );
            }
        }
        fail(out, id, &None, trouble);
    }

    /// Answers a request, now or when all shards have; false where it waits for a verdict.
    fn answer(&mut self, out: &mut dyn Responses, request: &Request) -> Result<bool, Trouble> {
        let head = &request.head;
        let resource = Resource::of(head.target());
        self.admit_host(head)?;
        // Any page may lead to a public resource.
        if resource != Some(Resource::Page) {
            Self::admit_origin(head)?;
        }
        let resource = resource.ok_or_else(|| {
            let detail = "there are /, /metrics, /healthz, /readyz and /admin/v1";
            Trouble::new(Kind::NoResource, detail)
        })?;
        if resource == Resource::Api {
            return self.api(out, request);
        }
        if !METHODS.split(", ").any(|method| method == head.method()) {
            return Err(Trouble::method(METHODS));
        }
        match resource {
            Resource::Health => {
                say(out, request.id, 200, "ok\n");
                Ok(true)
            }
            Resource::Readiness if self.is_stopping => {
                say(out, request.id, 503, "draining\n");
                Ok(true)
            }
            Resource::Readiness if self.cx.memory.stage() >= Stage::RefuseNewcomers => {
                say(out, request.id, 503, "memory is short: refuse-newcomers\n");
                Ok(true)
            }
            Resource::Readiness => self
                .ask_all(request.id, Purpose::Ready, &Ask::Presence)
                .map(|()| true),
            Resource::Page => self.page(out, request).map(|()| true),
            Resource::Metrics | Resource::Api => {
                let Some(identity) = self.sender(head)? else {
                    return Ok(false);
                };
                if !self.listener().anonymous && self.role(&identity).is_none() {
                    let detail = "the user has no role: see admin.viewers, admin.operators and authorization.admins";
                    let trouble = Trouble::new(Kind::Forbidden, detail);
                    let failure = LoginFailure::NotAuthorized;
                    return Err(self.refuse_login(identity.user(), failure, trouble));
                }
                self.came_in(&identity);
                self.ask_all(request.id, Purpose::Scrape, &Ask::Scrape)
                    .map(|()| true)
            }
        }
    }

    /// The address at the other end of the connection, as long as that is open.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.cx.net.info(self.connection).map(|info| info.peer)
    }

    /// The policy of the connection's listener.
    fn listener(&self) -> ListenerPolicy {
        let info = self.cx.net.info(self.connection);
        (self.cx.policy).listener(info.map_or(0, |info| info.listener))
    }

    /// A file of the page, which is the same on every listener that has it.
    fn page(&self, out: &mut dyn Responses, request: &Request) -> Result<(), Trouble> {
        let head = &request.head;
        let path = head.target().split('?').next().unwrap_or_default();
        let file = Some(path).filter(|_| self.cx.policy.http.page);
        let file = file.and_then(crate::http::page_resource);
        let file =
            file.ok_or_else(|| Trouble::new(Kind::NoResource, "there is nothing by this name"))?;
        let (status, content) = if Condition::of(head).has(&file.etag) {
            (304, Content::Empty)
        } else {
            let content = bytes::Bytes::from_static(file.content);
            (200, Content::Shared(content))
        };
        respond(out, request.id, &None, status, &file.fields(), content);
        Ok(())
    }

    /// Checks the name by which a request addresses the listener (DNS rebinding).
    fn admit_host(&self, head: &Head) -> Result<(), Trouble> {
        let is_on_loopback = self.listener().loopback;
        if Pages::default().is_host(is_on_loopback, head.authority().unwrap_or_default()) {
            return Ok(());
        }
        let detail = "on loopback the listener is `localhost` or an address";
        Err(Trouble::new(Kind::Host, detail))
    }

    /// Checks the page of a browser that sent a request: only pages of the server's own origin may.
    fn admit_origin(head: &Head) -> Result<(), Trouble> {
        let authority = head.authority().unwrap_or_default();
        let (origin, site) = (head.field("origin"), head.field("sec-fetch-site"));
        let admitted = Pages::default().admit(origin, site, authority);
        admitted.map(|_| ()).map_err(|_| {
            let detail = "pages of other origins may not read this";
            Trouble::new(Kind::Origin, detail)
        })
    }

    /// The sender of a request; `None` where the sender is not known yet.
    pub(super) fn sender(&mut self, head: &Head) -> Result<Option<Identity>, Trouble> {
        self.admin.claims += 1;
        let claim = self.admin.claims;
        let shown = head.field("authorization");
        let verdict =
            (self.credentials).judge(self.cx, &self.admin.key, self.connection, claim, shown);
        match verdict {
            Verdict::Known(identity) => Ok(Some(identity)),
            Verdict::Wait => Ok(None),
            Verdict::Refused(refusal, trouble) => {
                let failure = LoginFailure::Claim(refusal);
                let user = claimed_user(self.cx.policy, head);
                let login = self.login().by(user.as_deref());
                login.refused(failure, trouble.detail());
                Err(trouble.logged())
            }
        }
    }

    /// The role of a sender; `None` for none.
    pub(super) fn role(&self, identity: &Identity) -> Option<Role> {
        Role::of(self.cx.policy, identity, self.listener().anonymous)
    }

    /// Notes a sender that may not come in.
    pub(super) fn refuse_login(
        &self,
        user: Option<&str>,
        failure: LoginFailure,
        trouble: Trouble,
    ) -> Trouble {
        self.login().by(user).refused(failure, trouble.detail());
        trouble.logged()
    }

    /// The login of the request that is answered now.
    fn login(&self) -> audit::Login<'_> {
        let login = audit::Login::of(self.cx, self.connection, Protocol::Admin);
        match self.asked.as_deref() {
            Some((method, path)) => login.asking((method, path)),
            None => login,
        }
    }

    /// Notes a sender that may come in.
    pub(super) fn came_in(&mut self, identity: &Identity) {
        if self.credentials.admitted(identity) {
            let login = audit::Login::of(self.cx, self.connection, Protocol::Admin);
            login.accepted(identity);
        }
    }

    /// Asks all shards.
    pub(super) fn ask_all(
        &mut self,
        exchange: ExchangeId,
        purpose: Purpose,
        ask: &Ask,
    ) -> Result<(), Trouble> {
        let shards = usize::from(self.cx.broker.directory().shards());
        self.ask(exchange, purpose, 0..shards, ask)
    }

    /// Asks some shards.
    pub(super) fn ask(
        &mut self,
        exchange: ExchangeId,
        purpose: Purpose,
        shards: Range<usize>,
        ask: &Ask,
    ) -> Result<(), Trouble> {
        let number = self.open(exchange, purpose, shards.clone())?;
        for shard in shards {
            self.post(number, shard, ask.clone());
        }
        Ok(())
    }

    /// Opens a question to some shards; returns its number.
    pub(super) fn open(
        &mut self,
        exchange: ExchangeId,
        purpose: Purpose,
        shards: Range<usize>,
    ) -> Result<u64, Trouble> {
        let timeout_ms = self.cx.policy.admin.gather_timeout_ms;
        let deadline_ms = self.cx.now_ms + u64::from(timeout_ms);
        self.open_until(exchange, purpose, shards, deadline_ms)
    }

    /// The same with another deadline, in milliseconds since the Unix epoch.
    pub(super) fn open_until(
        &mut self,
        exchange: ExchangeId,
        purpose: Purpose,
        shards: Range<usize>,
        deadline_ms: u64,
    ) -> Result<u64, Trouble> {
        let limits = &self.cx.policy.admin;
        if self.admin.gathers.len() >= limits.maximum_gathers as usize {
            let detail = "as many requests are open as admin.maximum_gathers";
            return Err(Trouble::new(Kind::Busy, detail));
        }
        let asker = (self.connection, exchange);
        let number = (self.admin.gathers).open(asker, purpose, shards, deadline_ms);
        self.admin.gathers.note_asked(&self.asked);
        Ok(number)
    }

    /// Sends a question to a shard.
    pub(super) fn post(&mut self, number: u64, shard: usize, ask: Ask) {
        let letter = AdminLetter(Body::Question {
            from: self.cx.shard,
            number,
            ask,
        });
        self.cx.outbox.post(shard, Mail::Admin(Box::new(letter)));
    }

    /// All shards that were asked have answered.
    pub(super) fn gathered(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        gathered: Gathered<Purpose>,
    ) {
        let answers = gathered.answers;
        self.asked = gathered.asked;
        match gathered.purpose {
            Purpose::Ready => {
                let clocks = self.admin.sources.wrong_clocks();
                if let Some(trouble) = self.admin.sources.cluster_trouble() {
                    let clocks = clocks.map_or_else(String::new, |clocks| format!(" ({clocks})"));
                    return say(out, id, 503, &format!("cluster: {trouble}{clocks}\n"));
                }
                let stage = self.cx.memory.stage();
                let memory = Some(stage).filter(|stage| *stage != Stage::Normal);
                let memory = memory.map(|stage| format!("memory is short: {stage}"));
                let doubt = self.admin.sources.clock().and_then(NodeClock::doubt);
                let doubt = doubt.map(|doubt| doubt.sentence().to_owned());
                let remarks = self.admin.sources.cluster_remarks().into_iter();
                let remarks = remarks.chain(clocks);
                let remarks = remarks.map(|remark| format!("cluster: {remark}"));
                let remarks: Vec<String> = memory.into_iter().chain(doubt).chain(remarks).collect();
                let text = if remarks.is_empty() {
                    "ready\n".to_owned()
                } else {
                    format!("ready, but {}\n", remarks.join("; "))
                };
                say(out, id, 200, &text);
            }
            Purpose::Scrape => self.scraped(out, id, figures(answers)),
            Purpose::Node => self.describe_node(out, id, &figures(answers)),
            Purpose::Page(paging) => {
                self.found_page(out, id, paging, answers, gathered.deadline_ms);
            }
            Purpose::Whole(whole, condition) => {
                self.found_whole(out, id, whole, &condition, answers);
            }
            Purpose::One(condition, kind) => self.found_one(out, id, (&condition, kind), answers),
            Purpose::Cluster(condition) => self.reported(out, id, &condition, answers),
            Purpose::Replicas(change) => match change.obeyed(self.cx.meters, answers, false) {
                Ok(_) => Done::new(id, 204, None).tell(out),
                Err(why) => self.refused(out, id, &Trouble::new(Kind::Conflict, why).logged()),
            },
            Purpose::Change(change, kind) => self.found_change(out, id, (change, kind), answers),
            Purpose::Order(order, change) => self.obeyed(out, id, (order, &change), answers),
            Purpose::Nodes(round) => self.round_answered(out, id, round, answers),
        }
    }

    /// Writes the page of metrics.
    fn scraped(&self, out: &mut dyn Responses, id: ExchangeId, figures: Vec<Figures>) {
        let checks = (self.cx.checker).map_or(0, |checker| checker.open_checks() as u64);
        let directory = Arc::clone(self.cx.broker.directory());
        let shared = (directory, Arc::clone(self.cx.memory));
        let sources = Arc::clone(&self.admin.sources);
        let policy = self.cx.policy;
        let answering = (Arc::clone(&policy.webhook), Arc::clone(&policy.issuer));
        match Scrape::new(sources, figures, shared, checks, answering).page() {
            Ok(page) => {
                let fields = [("content-type", Scrape::MEDIA_TYPE.as_bytes()), NOT_STORED];
                respond(out, id, &None, 200, &fields, Content::Shared(page.into()));
            }
            Err(error) => {
                tracing::error!(%error, "metrics could not be written");
                let detail = "metrics could not be written";
                self.refused(out, id, &Trouble::new(Kind::Busy, detail));
            }
        }
    }

    /// Answers requests whose time is over.
    pub(super) fn give_up(&mut self, out: &mut dyn Responses) {
        let now_ms = self.cx.now_ms;
        let (outlasts, name) = (Purpose::is_change, Purpose::asked_name);
        let overdue = (self.admin.gathers).overdue(self.connection, now_ms, outlasts, name);
        for unanswered in overdue {
            let missing = unanswered.missing.join(", ");
            let detail = format!("no answer within admin.gather_timeout_ms of {missing}");
            tracing::warn!(missing, "no answer in time");
            self.asked = unanswered.asked;
            self.refused(out, unanswered.exchange, &Trouble::new(Kind::Busy, detail));
        }
    }

    /// The verdict on a password.
    pub(super) fn judged(&mut self, out: &mut dyn Responses, number: u64, outcome: Outcome) {
        if !(self.credentials).decided(self.cx.policy, number, outcome) {
            return;
        }
        for request in std::mem::take(self.held) {
            self.consider(out, request);
        }
        self.credentials.answered();
    }
}

/// The counts that shards have answered with.
fn figures(answers: Vec<Answer>) -> Vec<Figures> {
    let figures = answers.into_iter().filter_map(|answer| match answer {
        Answer::Figures(figures) => Some(*figures),
        _ => None,
    });
    figures.collect()
}

/// A short answer in words.
fn say(out: &mut dyn Responses, id: ExchangeId, status: u16, text: &str) {
    let fields = [
        ("content-type", &b"text/plain; charset=utf-8"[..]),
        NOT_STORED,
    ];
    respond(
        out,
        id,
        &None,
        status,
        &fields,
        Content::Whole(text.as_bytes()),
    );
}

impl Application for Desk<'_, '_> {
    fn request(&mut self, out: &mut dyn Responses, request: Request) {
        self.consider(out, request);
    }

    fn refuse(&mut self, out: &mut dyn Responses, id: ExchangeId, head: &Head, refusal: Refusal) {
        self.asked = Some(asked_by(head));
        self.refused(out, id, &Trouble::of(refusal, self.is_stopping));
    }

    fn gone(&mut self, _: &mut dyn Responses, id: ExchangeId) {
        self.held.retain(|request| request.id != id);
        (self.admin.gathers).leave(self.connection, Some(id), Purpose::is_change);
        self.end_traces(Some(id));
    }

    fn writable(&mut self, _: &mut dyn Responses) {
        // Every response but a trace is given as a whole, and a trace waits for nobody.
    }

    fn half_closed(&mut self, out: &mut dyn Responses) {
        self.show_life_of_traces(out);
    }

    fn stop(&mut self, out: &mut dyn Responses) {
        self.held.clear();
        self.finish_traces(out);
    }

    fn turned_away(&mut self, _: Fault, code: &str, detail: &str) {
        let name = self.credentials.name().unwrap_or_default();
        let Some(line) = self.cx.repeats(self.connection, name, detail) else {
            return;
        };
        tracing::warn!(
            peer = line.peer,
            user = self.credentials.name(),
            code,
            detail,
            more = line.more,
            "admin client turned away"
        );
    }
}
