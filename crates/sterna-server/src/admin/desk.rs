//! The resources `/metrics`, `/healthz` and `/readyz`.

use std::sync::Arc;

use sterna_http::{Application, Content, ExchangeId, Head, Refusal, Request, Responses};
use sterna_net::{ConnectionId, Pages};

use super::Admin;
use super::gather::Gathered;
use crate::audit;
use crate::config::Protocol;
use crate::context::Context;
use crate::http::{Credentials, ProblemKind as Kind, Trouble, Verdict, fail, respond};
use crate::identity::{Identity, Outcome};
use crate::mail::admin::{Ask, Body};
use crate::mail::{AdminLetter, Mail};
use crate::memory::Stage;
use crate::metrics::{LoginFailure, Scrape};

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
}

impl Resource {
    /// The resource of a path; the query is ignored.
    fn of(target: &str) -> Option<Self> {
        match target.split('?').next().unwrap_or_default() {
            "/healthz" => Some(Self::Health),
            "/readyz" => Some(Self::Readiness),
            "/metrics" => Some(Self::Metrics),
            _ => None,
        }
    }
}

/// The door for one connection and one step.
pub(super) struct Desk<'a, 'b> {
    pub(super) connection: ConnectionId,
    pub(super) admin: &'a mut Admin,
    pub(super) is_stopping: bool,
    pub(super) cx: &'a mut Context<'b>,
    pub(super) credentials: &'a mut Credentials,
    pub(super) held: &'a mut Vec<Request>,
}

impl Desk<'_, '_> {
    /// Answers a request, or keeps it until it can be answered.
    fn consider(&mut self, out: &mut dyn Responses, request: Request) {
        let id = request.id;
        match self.answer(out, &request) {
            Ok(true) => {}
            Ok(false) => self.held.push(request),
            Err(trouble) => self.refused(out, id, &trouble),
        }
    }

    fn refused(&self, out: &mut dyn Responses, id: ExchangeId, trouble: &Trouble) {
        let info = self.cx.net.info(self.connection);
        tracing::info!(
            peer = info.map(|info| tracing::field::display(info.peer)),
            user = self.credentials.name(),
            status = trouble.status(),
            detail = trouble.detail(),
            "admin request refused"
        );
        fail(out, id, &None, trouble);
    }

    /// Answers a request, now or when all shards have; false where it waits for a verdict.
    fn answer(&mut self, out: &mut dyn Responses, request: &Request) -> Result<bool, Trouble> {
        let head = &request.head;
        self.admit_page(head)?;
        let resource = Resource::of(head.target());
        let resource = resource.ok_or_else(|| {
            let detail = "there are /metrics, /healthz and /readyz";
            Trouble::new(Kind::NoResource, detail)
        })?;
        if !METHODS.split(", ").any(|method| method == head.method()) {
            return Err(Trouble::method(METHODS));
        }
        let ask = match resource {
            Resource::Health => {
                say(out, request.id, 200, "ok\n");
                return Ok(true);
            }
            Resource::Readiness if self.is_stopping => {
                say(out, request.id, 503, "stopping\n");
                return Ok(true);
            }
            Resource::Readiness if self.cx.memory.stage() >= Stage::RefuseNewcomers => {
                say(out, request.id, 503, "memory is short: refuse-newcomers\n");
                return Ok(true);
            }
            Resource::Readiness => Ask::Presence,
            Resource::Metrics => {
                if !self.may_read(head)? {
                    return Ok(false);
                }
                Ask::Figures
            }
        };
        self.ask(request.id, ask)?;
        Ok(true)
    }

    /// Checks the page of a browser that sent a request: only pages of the server's own origin may.
    fn admit_page(&self, head: &Head) -> Result<(), Trouble> {
        let info = self.cx.net.info(self.connection);
        let listener = info.map_or(0, |info| info.listener);
        let is_on_loopback = self.cx.policy.listener(listener).loopback;
        let authority = head.authority().unwrap_or_default();
        let pages = Pages::default();
        if !pages.is_host(is_on_loopback, authority) {
            let detail = "on loopback the listener is `localhost` or an address";
            return Err(Trouble::new(Kind::Host, detail));
        }
        let (origin, site) = (head.field("origin"), head.field("sec-fetch-site"));
        let admitted = pages.admit(origin, site, authority);
        admitted.map(|_| ()).map_err(|_| {
            let detail = "pages of other origins may not read this";
            Trouble::new(Kind::Origin, detail)
        })
    }

    /// Whether the sender of a request may read metrics; false where it is not known yet.
    fn may_read(&mut self, head: &Head) -> Result<bool, Trouble> {
        self.admin.claims += 1;
        let claim = self.admin.claims;
        let verdict =
            (self.credentials).judge(self.cx, &self.admin.key, self.connection, claim, head);
        match verdict {
            Verdict::Known(identity) => self.admit(&identity).map(|()| true),
            Verdict::Wait => Ok(false),
            Verdict::Refused(refusal, trouble) => {
                let failure = LoginFailure::Claim(refusal);
                let login = audit::Login::of(self.cx, self.connection, Protocol::Admin);
                login.refused(failure, trouble.detail());
                Err(trouble)
            }
        }
    }

    fn admit(&mut self, identity: &Identity) -> Result<(), Trouble> {
        let info = self.cx.net.info(self.connection);
        let listener = self
            .cx
            .policy
            .listener(info.map_or(0, |info| info.listener));
        let user = identity.user();
        if !listener.anonymous && !self.cx.policy.rules.is_admin(user) {
            let login = audit::Login::of(self.cx, self.connection, Protocol::Admin);
            let detail = "the user is not among authorization.admins";
            login.by(user).refused(LoginFailure::NotAuthorized, detail);
            return Err(Trouble::new(Kind::Forbidden, detail));
        }
        if self.credentials.admitted(identity) {
            let login = audit::Login::of(self.cx, self.connection, Protocol::Admin);
            login.accepted(identity);
        }
        Ok(())
    }

    /// Asks all shards.
    fn ask(&mut self, exchange: ExchangeId, ask: Ask) -> Result<(), Trouble> {
        let limits = &self.cx.policy.admin;
        if self.admin.gathers.len() >= limits.maximum_gathers as usize {
            let detail = "as many requests are open as admin.maximum_gathers";
            return Err(Trouble::new(Kind::Busy, detail));
        }
        let deadline_ms = self.cx.net.now_ms() + u64::from(limits.gather_timeout_ms);
        let shards = usize::from(self.cx.broker.directory().shards());
        let asker = (self.connection, exchange);
        let number = self.admin.gathers.open(asker, ask, shards, deadline_ms);
        for shard in 0..shards {
            let letter = AdminLetter(Body::Question {
                from: self.cx.shard,
                number,
                ask,
            });
            self.cx.outbox.post(shard, Mail::Admin(Box::new(letter)));
        }
        Ok(())
    }

    /// All shards have answered.
    pub(super) fn gathered(&self, out: &mut dyn Responses, gathered: Gathered) {
        let id = gathered.exchange;
        if gathered.ask == Ask::Presence {
            if let Some(trouble) = self.admin.sources.cluster_trouble() {
                return say(out, id, 503, &format!("cluster: {trouble}\n"));
            }
            let stage = self.cx.memory.stage();
            return if stage == Stage::Normal {
                say(out, id, 200, "ready\n");
            } else {
                say(
                    out,
                    id,
                    200,
                    &format!("ready, but memory is short: {stage}\n"),
                );
            };
        }
        let checks = (self.cx.checker).map_or(0, |checker| checker.open_checks() as u64);
        let directory = Arc::clone(self.cx.broker.directory());
        let shared = (directory, Arc::clone(self.cx.memory));
        let sources = Arc::clone(&self.admin.sources);
        match Scrape::new(sources, gathered.figures, shared, checks).page() {
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
        let now_ms = self.cx.net.now_ms();
        for unanswered in self.admin.gathers.overdue(self.connection, now_ms) {
            let shards = unanswered.shards.iter().map(usize::to_string);
            let shards = shards.collect::<Vec<_>>().join(", ");
            let detail = format!("no answer within admin.gather_timeout_ms of shard {shards}");
            tracing::warn!(shards, "shards do not answer in time");
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

    fn refuse(&mut self, out: &mut dyn Responses, id: ExchangeId, _: &Head, refusal: Refusal) {
        self.refused(out, id, &Trouble::of(refusal, self.is_stopping));
    }

    fn gone(&mut self, _: &mut dyn Responses, id: ExchangeId) {
        self.held.retain(|request| request.id != id);
        self.admin.gathers.forget(self.connection, Some(id));
    }

    fn writable(&mut self, _: &mut dyn Responses) {
        // Every response is given as a whole.
    }

    fn stop(&mut self, _: &mut dyn Responses) {
        self.held.clear();
    }

    fn turned_away(&mut self, code: &str, detail: &str) {
        let info = self.cx.net.info(self.connection);
        tracing::warn!(
            peer = info.map(|info| tracing::field::display(info.peer)),
            user = self.credentials.name(),
            code,
            detail,
            "admin client turned away"
        );
    }
}
