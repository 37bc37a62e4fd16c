//! The answers to requests.
//!
//! `admission.rs` decides on requests. It uses `origin.rs` (the host that a request names, and the page that sent
//! it) and `credentials.rs` (the request's sender). `target.rs` and `plan.rs` read requests. `topics.rs` and
//! `publish.rs` answer at once. `open.rs` begins subscriptions, `deliver.rs` carries messages to them, `clock.rs`
//! looks after them, and `end.rs` ends them. `sessions.rs` serves clients that acknowledge, on whichever shard
//! the session is. `webtransport.rs` publishes and subscribes on one session. `acknowledge.rs` sends answers
//! whose effects are kept.

mod accept;
mod acknowledge;
mod admission;
mod answer;
mod ask;
mod clock;
mod credentials;
mod deliver;
mod end;
mod open;
mod origin;
mod peer;
mod plan;
mod publish;
mod sessions;
mod subscription;
mod target;
mod topics;
mod webtransport;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use ring::hmac;
use rustc_hash::FxHashMap;
use sterna_broker::ConsumerId;
use sterna_http::{ExchangeId, Head, Refusal, Responses};
use sterna_net::ConnectionId;

use super::problem::ProblemKind;
use super::registry::Registry;
use crate::context::{Context, Cure};
use crate::door::Promise;
use crate::repeats::brief;
use crate::sys::Counts;
pub(crate) use acknowledge::Acknowledgement;
pub(crate) use answer::{Trouble, fail, respond};
pub(crate) use credentials::{Credentials, Verdict, challenge, claimed_user};
pub(crate) use peer::Peer;
pub(crate) use sessions::Reply;
use sessions::Told;

pub(crate) use subscription::is_consumer;
pub(crate) use topics::names_etag;

/// A shard's state of all its HTTP clients.
#[derive(Debug)]
pub(crate) struct Api {
    registry: Arc<Registry>,
    /// The connection of each subscription, by the consumer that the broker knows it as.
    consumers: FxHashMap<ConsumerId, ConnectionId>,
    next_consumer: u64,
    /// Password checks that were started.
    checks: u64,
    /// For digests of credentials; it lives and dies with the shard.
    key: hmac::Key,
    counts: Counts,
    /// The bytes that a step writes to one response.
    buffer: BytesMut,
    /// Work for others that is done, and that the store does not have yet, in its order.
    untold: VecDeque<(Promise, Told)>,
    stopping: bool,
}

impl Api {
    /// The API of a shard on which nobody is connected.
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        let mut secret = [0; 32];
        // Without randomness the digests are merely not secret; nobody sees them.
        let _ = getrandom::fill(&mut secret);
        Self {
            registry,
            consumers: FxHashMap::default(),
            next_consumer: 0,
            checks: 0,
            key: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            counts: Counts::default(),
            buffer: BytesMut::new(),
            untold: VecDeque::new(),
            stopping: false,
        }
    }

    /// The counts so far; the bytes of connections are counted where they are carried.
    pub(crate) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Subscriptions, each of which is a connected session of the broker.
    pub(crate) fn consumers(&self) -> usize {
        self.consumers.len()
    }

    /// Looks at the subscriptions and requests of all connections, and at what all shards share.
    ///
    /// # Panics
    /// Where something does not agree with what it stands for.
    pub(crate) fn check<'a>(&self, peers: impl Iterator<Item = &'a Peer>) {
        let mut subscriptions = 0;
        for peer in peers {
            peer.check();
            for subscription in &peer.subscriptions {
                assert_eq!(
                    self.connection_of(subscription.consumer),
                    Some(peer.connection),
                    "the door finds a subscription"
                );
            }
            subscriptions += peer.subscriptions.len();
        }
        assert_eq!(
            self.consumers.len(),
            subscriptions,
            "each consumer is a subscription"
        );
        self.registry.check();
    }

    /// Where a consumer is.
    pub(crate) fn connection_of(&self, consumer: ConsumerId) -> Option<ConnectionId> {
        self.consumers.get(&consumer).copied()
    }

    /// Forgets the consumers of a connection whose sessions the broker has closed.
    pub(crate) fn forget_consumers(&mut self, connection: ConnectionId) {
        self.consumers.retain(|_, place| *place != connection);
    }

    /// Answers a request that its carrier turns away.
    pub(crate) fn refuse(
        &mut self,
        cx: &Context<'_>,
        peer: &Peer,
        out: &mut dyn Responses,
        id: ExchangeId,
        head: Option<&Head>,
        refusal: Refusal,
    ) {
        let reader = head.and_then(|head| {
            let authority = head.authority().unwrap_or_default();
            origin::admit(&cx.policy.pages, head, authority).ok()?
        });
        let trouble = Trouble::of(refusal, self.stopping);
        log_refusal(cx, peer.connection, peer.name(), head, &trouble);
        self.counts.messages_received += 1;
        self.counts.messages_sent += 1;
        fail(out, id, &reader, &trouble);
    }
}

/// The path of a request, for the log: a secret may follow it.
fn path_of(head: &Head) -> &str {
    let target = head.target();
    brief(target.split_once('?').map_or(target, |(path, _)| path))
}

/// A line for the operator about a request that was refused; `head` is that of it, where that is still there.
fn log_refusal(
    cx: &Context<'_>,
    connection: ConnectionId,
    user: Option<&str>,
    head: Option<&Head>,
    trouble: &Trouble,
) {
    if trouble.is_logged() {
        return;
    }
    let peer = (cx.net.info(connection)).map(|info| tracing::field::display(info.peer));
    let (status, detail) = (trouble.status(), trouble.detail());
    let (method, path) = (head.map(|head| brief(head.method())), head.map(path_of));
    // A question whether something exists is not refused when the answer is no. A path that nobody serves is a mistake.
    if status == 404 && trouble.kind() != ProblemKind::NoResource {
        tracing::debug!(
            peer,
            user,
            method,
            path,
            status,
            detail,
            "HTTP request refused"
        );
    } else if let Some(line) = cx.repeats(connection, user.unwrap_or_default(), detail) {
        let Cure { held_as, freed_by } = Cure::of(cx.memory, detail, user);
        tracing::info!(
            peer,
            user,
            method,
            path,
            status,
            detail,
            held_as,
            freed_by = freed_by.as_deref(),
            more = line.more,
            "HTTP request refused"
        );
    }
}
