//! The admission of requests, by sender, resource and time. Every request passes through here.

use sterna_http::{Content, ExchangeId, Head, Request, Responses};
use sterna_mqtt::topic;

use super::answer::{Trouble, fail, respond};
use super::ask;
use super::credentials::{self, Verdict, claimed_user};
use super::open::Asker;
use super::origin::{self, ALLOWED_FIELDS, Reader};
use super::peer::{Claimed, Held, Peer, Until};
use super::plan::Plan;
use super::publish::is_key;
use super::target::{Resource, Target, TargetError};
use super::topics::has_etag;
use super::{Api, log_refusal, path_of};
use crate::audit::Login;
use crate::authorization::Rules;
use crate::config::{EarlyData, Http, HttpEarlyDataRefusal, Protocol};
use crate::context::{Closed, Context};
use crate::door::TooManyConnections;
use crate::http::fields::{Fields, unknown_field};
use crate::http::problem::ProblemKind as Kind;
use crate::http::registry::Fingerprint;
use crate::http::{openapi, page};
use crate::identity::{Identity, Outcome};
use crate::judge::check_ban;
use crate::mail::Mail;
use crate::mapping::message_from_http;
use crate::metrics::LoginFailure;

/// The decision about a request for now.
enum Admitted {
    /// The request is to be answered.
    Now(Identity),
    /// The request waits.
    Later(Until),
}

/// The methods of a resource, as `Allow` names them.
fn allowed(resource: &Resource) -> &'static str {
    match resource {
        Resource::Page | Resource::OpenApi => "GET, HEAD, OPTIONS",
        Resource::Topics => "GET, OPTIONS",
        Resource::Topic(_) => "GET, HEAD, PUT, DELETE, POST, OPTIONS",
        Resource::Session(_) => "GET, HEAD, DELETE, OPTIONS",
        Resource::Acknowledgement(_) => "POST, OPTIONS",
    }
}

/// Whether a request is one for a WebTransport session.
pub(super) fn asks_session(head: &Head) -> bool {
    head.method() == "CONNECT" && head.protocol() == Some("webtransport")
}

/// Whether a request is one for a retained message.
fn asks_last(target: &Target<'_>, head: &Head) -> bool {
    let is_last = |parameter| matches!(parameter, Ok((name, _)) if name == "last");
    head.method() == "GET" && target.parameters().any(is_last)
}

/// The decision about a request in early data that may not be answered at once.
fn too_early<'a>(
    http: &Http,
    target: Target<'a>,
) -> Result<Option<(Target<'a>, Admitted)>, Trouble> {
    match http.early_data_refusal {
        HttpEarlyDataRefusal::Wait => Ok(Some((target, Admitted::Later(Until::Confirmed)))),
        HttpEarlyDataRefusal::Status => {
            let detail = "the request came in early data and may be a replay";
            Err(Trouble::new(Kind::TooEarly, detail))
        }
    }
}

/// Whether a resource has the method of a request.
fn has_method(resource: &Resource, head: &Head) -> bool {
    if asks_session(head) {
        return matches!(resource, Resource::Topics | Resource::Topic(_));
    }
    allowed(resource)
        .split(", ")
        .any(|method| method == head.method())
}

/// Whether a request may be answered although it may be a replay, or may have been held back (RFC 8470, section 4).
/// A key makes a second message harmless, but rules that ask for early data may forbid the first.
fn is_replay_safe(target: &Target<'_>, head: &Head, rules: &Rules) -> bool {
    match head.method() {
        "GET" => !takes_messages(target, head),
        "HEAD" | "OPTIONS" => true,
        "POST" => {
            matches!(target.resource, Resource::Topic(_))
                && head.field("idempotency-key").is_some()
                && !rules.look_at_early_data()
        }
        _ => false,
    }
}

/// Whether a GET goes on with a session, which takes it from the response before and may acknowledge messages, or takes
/// messages from other readers.
fn takes_messages(target: &Target<'_>, head: &Head) -> bool {
    let is_shared = |filter: &str| topic::is_shared(filter);
    head.field("last-event-id").is_some()
        || matches!(&target.resource, Resource::Topic(filter) if is_shared(filter))
        || target.parameters().any(|parameter| {
            matches!(parameter, Ok((name, value))
                if name == "session" || (name == "filter" && is_shared(&value)))
        })
}

impl Api {
    /// A request has come.
    pub(crate) fn request(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        request: Request,
    ) {
        self.counts.messages_received += 1;
        self.consider(cx, peer, out, request);
    }

    /// Early data can no longer be a replay.
    pub(crate) fn confirmed(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
    ) {
        for held in &mut peer.held {
            held.request.early = false;
        }
        for request in peer.take_held(Until::Confirmed) {
            self.consider(cx, peer, out, request);
        }
    }

    /// There is room again on the connection: requests for a message go on.
    pub(super) fn resume_held(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
    ) {
        for request in peer.take_held(Until::Room) {
            self.consider(cx, peer, out, request);
        }
    }

    /// The wait for a reader is over: requests and frames that waited go on.
    pub(crate) fn go_on(&mut self, cx: &mut Context<'_>, peer: &mut Peer, out: &mut dyn Responses) {
        for request in peer.take_held(Until::Reader) {
            self.consider(cx, peer, out, request);
        }
        self.read_on(cx, peer, out);
    }

    /// The verdict on credentials that took longer.
    pub(crate) fn judged(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        number: u64,
        outcome: Outcome,
    ) {
        if peer.asked_by == number && peer.asking.answered() {
            for request in peer.take_held(Until::Answer) {
                self.consider(cx, peer, out, request);
            }
            return;
        }
        if peer.claims.iter().any(|claim| claim.number == number) {
            for request in peer.take_held(Until::Claimed) {
                self.consider(cx, peer, out, request);
            }
            return;
        }
        if !peer.credentials.decided(cx.policy, number, outcome) {
            return;
        }
        for request in peer.take_held(Until::Verdict) {
            self.consider(cx, peer, out, request);
        }
        peer.credentials.answered();
    }

    /// Answers a request, or keeps it until it can be answered.
    fn consider(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        request: Request,
    ) {
        let id = request.id;
        let mut reader = None;
        let closed = cx.closed().filter(|_| peer.is_newcomer);
        peer.is_newcomer = closed.is_some();
        let admitted = match closed {
            None => self.admit(cx, peer, &request, &mut reader, out),
            Some(closed) => {
                let kind = match closed {
                    Closed::MemoryShort => Kind::MemoryShort,
                    Closed::WrongClock | Closed::UnknownClock => Kind::ClusterAway,
                };
                Err(Trouble::new(kind, closed.detail()))
            }
        };
        let admitted = match admitted {
            Ok(Some((target, Admitted::Now(_)))) if self.must_hold(cx, peer, &target, &request) => {
                Ok(Some((target, Admitted::Later(Until::Reader))))
            }
            other => other,
        };
        let answered = match admitted {
            Ok(None) => return,
            Ok(Some((_, Admitted::Later(until)))) => {
                if until == Until::Confirmed {
                    cx.meters.early_data_held(Protocol::Http);
                }
                let held_bytes = peer.held_bytes() + request.content.len();
                if held_bytes <= cx.policy.http.maximum_assembling_bytes as usize {
                    peer.held.push(Held { request, until });
                    return;
                }
                Err(Trouble::new(
                    Kind::Busy,
                    "too much waits on this connection",
                ))
            }
            Ok(Some((target, Admitted::Now(identity)))) => {
                let asker = Asker {
                    id,
                    reader: reader.clone(),
                    is_session: asks_session(&request.head),
                    identity,
                };
                self.answer(cx, peer, out, &target, asker, &request)
            }
            Err(trouble) => Err(trouble),
        };
        // The rest of the claim is of no use any more.
        drop(peer.take_claim(id));
        if let Err(trouble) = answered {
            log_refusal(
                cx,
                peer.connection,
                peer.name(),
                Some(&request.head),
                &trouble,
            );
            self.counts.messages_sent += 1;
            fail(out, id, &reader, &trouble);
        }
    }

    /// Decides whether a request is answered now; `None` where it is answered already.
    fn admit<'a>(
        &mut self,
        cx: &Context<'_>,
        peer: &mut Peer,
        request: &'a Request,
        reader: &mut Reader,
        out: &mut dyn Responses,
    ) -> Result<Option<(Target<'a>, Admitted)>, Trouble> {
        if self.stopping {
            return Err(Trouble::new(Kind::Stopping, "the broker is stopping"));
        }
        let (head, http) = (&request.head, &cx.policy.http);
        let info = cx.net.info(peer.connection);
        let listener = cx.policy.listener(info.map_or(0, |info| info.listener));
        let Some(authority) = head.authority() else {
            return Err(Trouble::new(
                Kind::InvalidField,
                "the field host is missing",
            ));
        };
        if !cx.policy.pages.is_host(listener.loopback, authority) {
            let detail =
                "this is not a name of the broker; http.hosts is the list of those that are";
            return Err(Trouble::new(Kind::Host, detail));
        }
        let target = Target::parse(head.target()).map_err(|error| match error {
            TargetError::Unknown => Trouble::new(Kind::NoResource, "there is nothing by this name"),
            TargetError::Topic => {
                Trouble::new(Kind::InvalidTopic, "the topic is not percent-encoded UTF-8")
            }
            TargetError::Session => Trouble::new(
                Kind::InvalidParameter,
                "the name of a session is 1 to 64 letters, digits, `.`, `_` and `-`",
            ),
        })?;
        let is_open = matches!(target.resource, Resource::Page | Resource::OpenApi);
        match origin::admit(&cx.policy.pages, head, authority) {
            Ok(admitted) => *reader = admitted,
            // A public resource may be shown by any page.
            Err(_) if is_open => {}
            Err(detail) => return Err(Trouble::new(Kind::Origin, detail)),
        }
        if head
            .protocol()
            .is_some_and(|protocol| protocol != "webtransport")
        {
            let detail = "the only protocol of CONNECT is webtransport";
            return Err(Trouble::new(Kind::NotImplemented, detail));
        }
        if !has_method(&target.resource, head) {
            return Err(Trouble::method(allowed(&target.resource)));
        }
        if head.method() == "OPTIONS" {
            self.options(out, request.id, reader, &target.resource, head);
            return Ok(None);
        }
        if is_open {
            return self
                .open_resource(cx, out, request, reader, &target)
                .map(|()| None);
        }
        if !is_replay_safe(&target, head, &cx.policy.rules) {
            // Every value counts (RFC 8470, section 5.1).
            if head.field("early-data").is_some() {
                let detail = "what forwarded the request has it from early data";
                return Err(Trouble::new(Kind::TooEarly, detail));
            }
            // A rule may want it to wait.
            let is_all =
                listener.early_data == EarlyData::All && !cx.policy.rules.look_at_early_data();
            if request.early && !is_all {
                return too_early(http, target);
            }
        }
        let shown = credentials::shown(cx.policy, head, &target)?;
        if request.early && credentials::wait_for_proof(cx, peer.connection, shown.as_deref()) {
            return too_early(http, target);
        }
        if request.early && listener.early_data == EarlyData::Off {
            return Ok(Some((target, Admitted::Later(Until::Confirmed))));
        }
        self.checks += 1;
        let (key, number) = (&self.key, self.checks);
        let verdict = (peer.credentials).judge(cx, key, peer.connection, number, shown.as_deref());
        let connection = peer.connection;
        let asked = (head.method(), path_of(head));
        let login = Login::of(cx, connection, Protocol::Http).asking(asked);
        let admitted = match verdict {
            Verdict::Known(mut identity) => {
                if let Err(refusal) = check_ban(cx, connection, &identity, None) {
                    login
                        .by(identity.user())
                        .refused(LoginFailure::Claim(refusal), refusal.detail());
                    return Err(Trouble::new(Kind::Forbidden, refusal.detail()).logged());
                }
                cx.policy.note_standing(&mut identity, "");
                if peer.allow(cx, &identity).is_err() {
                    let detail = TooManyConnections::DETAIL;
                    login
                        .by(identity.user())
                        .refused(LoginFailure::Quota, detail);
                    return Err(Trouble::new(Kind::TooManyRequests, detail).logged());
                }
                if peer.credentials.admitted(&identity) {
                    login.accepted(&identity);
                }
                // An earlier request waits for the webhook, and keeps its place.
                let mut waits = peer.asking.is_waiting();
                if !waits && ask::must_ask(cx, peer, self.checks, &identity, &target, request) {
                    waits = true;
                    peer.asked_by = self.checks;
                }
                if waits {
                    Admitted::Later(Until::Answer)
                } else if self.must_claim(cx, peer, &identity, &target, request) {
                    Admitted::Later(Until::Claimed)
                } else if asks_last(&target, head) && !out.has_room(request.id) {
                    // The answers to one packet of requests may be larger than all else on the connection.
                    Admitted::Later(Until::Room)
                } else {
                    Admitted::Now(identity)
                }
            }
            Verdict::Wait => Admitted::Later(Until::Verdict),
            Verdict::Refused(refusal, trouble) => {
                let failure = LoginFailure::Claim(refusal);
                let user = claimed_user(cx.policy, head);
                login.by(user.as_deref()).refused(failure, trouble.detail());
                return Err(trouble.logged());
            }
        };
        Ok(Some((target, admitted)))
    }

    /// Whether a request has to wait until the cluster says whether its key was used at another node.
    fn must_claim(
        &self,
        cx: &Context<'_>,
        peer: &mut Peer,
        identity: &Identity,
        target: &Target<'_>,
        request: &Request,
    ) -> bool {
        if !self.registry.is_in_cluster() {
            return false;
        }
        if let Some(known) = peer
            .claims
            .iter()
            .find(|known| known.exchange == request.id)
        {
            return known.claim.answer().is_none();
        }
        let head = &request.head;
        let (Resource::Topic(topic), "POST") = (&target.resource, head.method()) else {
            return false;
        };
        let (Some(key), Some(post)) = (
            head.field("idempotency-key").filter(|key| is_key(key)),
            cx.outbox.postbox(cx.shard),
        ) else {
            return false;
        };
        let (connection, number, now_ms) = (peer.connection, self.checks, cx.now_ms);
        let wake = move || {
            post(Mail::Judged {
                connection,
                number,
                outcome: Ok(None),
            });
        };
        // An invalid message is refused when the request is answered.
        let fingerprint = || {
            let message = message_from_http(&Fields(head), topic, &request.content, now_ms);
            message.ok().map(|message| Fingerprint::of(&message))
        };
        let http = &cx.policy.http;
        let asked = (self.registry).ask(
            http,
            (identity.user(), key),
            fingerprint,
            (cx.shard, now_ms),
            wake,
        );
        let Some(claim) = asked else {
            return false;
        };
        let waits = claim.answer().is_none();
        peer.claims.push(Claimed {
            exchange: request.id,
            number,
            claim,
        });
        waits
    }

    /// Answers OPTIONS: the allowed methods and fields, also for pages of other origins.
    fn options(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        reader: &Reader,
        resource: &Resource,
        head: &Head,
    ) {
        let allow = allowed(resource).as_bytes();
        let mut fields: Vec<(&str, &[u8])> = vec![("allow", allow)];
        if reader.is_some() && head.field("access-control-request-method").is_some() {
            fields.push(("access-control-allow-methods", allow));
            fields.push(("access-control-allow-headers", ALLOWED_FIELDS.as_bytes()));
            fields.push(("access-control-max-age", b"600"));
        }
        self.counts.messages_sent += 1;
        respond(out, id, reader, 204, &fields, Content::Empty);
    }

    /// Serves a resource that anybody may read.
    fn open_resource(
        &mut self,
        cx: &Context<'_>,
        out: &mut dyn Responses,
        request: &Request,
        reader: &Reader,
        target: &Target<'_>,
    ) -> Result<(), Trouble> {
        let head = &request.head;
        let found = match target.resource {
            Resource::Page if cx.policy.http.page => page::resource(target.path),
            Resource::OpenApi => Some(openapi::resource()),
            _ => None,
        };
        let file =
            found.ok_or_else(|| Trouble::new(Kind::NoResource, "there is nothing by this name"))?;
        self.counts.messages_sent += 1;
        let (status, content) = if has_etag(head, &file.etag) {
            (304, Content::Empty)
        } else {
            (
                200,
                Content::Shared(bytes::Bytes::from_static(file.content)),
            )
        };
        respond(out, request.id, reader, status, &file.fields(), content);
        Ok(())
    }

    /// Answers a request whose sender is known.
    fn answer(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        target: &Target<'_>,
        asker: Asker,
        request: &Request,
    ) -> Result<(), Trouble> {
        let head = &request.head;
        if let Some(detail) = unknown_field(head) {
            return Err(Trouble::new(Kind::InvalidField, detail));
        }
        let is_read = matches!(head.method(), "GET" | "CONNECT");
        match &target.resource {
            Resource::Topics | Resource::Topic(_) if is_read => {
                match Plan::read(&cx.policy.http, target, head, asker.is_session)? {
                    Plan::Last => self.last(cx, peer, out, target, &asker, head),
                    Plan::Subscribe(plan) if asker.is_session => {
                        self.session(cx, peer, out, target, asker, *plan)
                    }
                    Plan::Subscribe(plan) => self.subscribe(cx, peer, out, target, asker, *plan),
                }
            }
            Resource::Topic(topic) => match head.method() {
                "POST" => self.post(cx, peer, out, target, topic, &asker, request),
                _ => self.topic(cx, peer, out, target, topic, &asker, request),
            },
            Resource::Session(name) | Resource::Acknowledgement(name) => {
                self.about_session(cx, peer, out, target, name, asker, request)
            }
            Resource::Topics | Resource::Page | Resource::OpenApi => Err(Trouble::new(
                Kind::NoResource,
                "there is nothing by this name",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::http::api::target::ROUTES;
    use crate::http::openapi::OPENAPI;

    /// The router and the OpenAPI document know the same paths and methods. HEAD and OPTIONS go without saying,
    /// but may be described.
    #[test]
    fn every_route_is_described_and_nothing_else() {
        let document: Value = serde_json::from_str(OPENAPI).expect("a document");
        assert_eq!(document["openapi"], "3.1.0");
        let paths = document["paths"].as_object().expect("paths");
        let described: BTreeSet<&str> = paths.keys().map(String::as_str).collect();
        let routed: BTreeSet<&str> = ROUTES.iter().map(|(template, _)| *template).collect();
        assert_eq!(described, routed);
        for (template, operations) in paths {
            let path = template.replace(['{', '}'], "");
            let target = Target::parse(&path).expect("a route");
            let methods: BTreeSet<String> = allowed(&target.resource)
                .split(", ")
                .map(str::to_lowercase)
                .collect();
            let described: BTreeSet<String> = (operations.as_object())
                .into_iter()
                .flat_map(|operations| operations.keys().cloned())
                .collect();
            assert!(described.is_subset(&methods), "{template}: {described:?}");
            let left: Vec<_> = methods.difference(&described).collect();
            assert!(
                left.iter()
                    .all(|method| ["head", "options"].contains(&method.as_str())),
                "{template}: {left:?} is not described"
            );
        }
    }
}
