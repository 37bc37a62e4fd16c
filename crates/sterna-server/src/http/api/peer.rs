//! The state of one connection.

use sterna_broker::{EndCause, SessionKey};
use sterna_http::{ExchangeId, Request};
use sterna_net::ConnectionId;

use super::acknowledge::Acknowledgement;
use super::credentials::Credentials;
use super::origin::Reader;
use super::subscription::Subscription;
use super::webtransport::Transport;
use crate::context::Context;
use crate::door::{Allowance, Asking, Promises, Sips, TooManyConnections};
use crate::http::claim::Claim;
use crate::identity::Identity;

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(super) connection: ConnectionId,
    pub(super) credentials: Credentials,
    /// Requests that wait, in the order in which they came.
    pub(super) held: Vec<Held>,
    pub(super) subscriptions: Vec<Subscription>,
    pub(super) transports: Vec<Transport>,
    /// Requests that another shard has been asked about.
    pub(super) asked: Vec<(ExchangeId, Reader)>,
    /// Answers that wait until their effects are kept.
    pub(crate) promises: Promises<Acknowledgement>,
    /// The pace of reading, with the allowance of the user who asked last.
    pub(crate) sips: Sips,
    /// Allowances of the connection's other users.
    others: Option<Box<Others>>,
    /// Whether the webhook is asked about the first request that waits for it.
    pub(super) asking: Asking,
    /// The number of the letter with the webhook's answer.
    pub(super) asked_by: u64,
    /// Questions to the cluster about keys of requests.
    pub(super) claims: Vec<Claimed>,
    /// Whether the connection came while newcomers were refused for want of memory.
    pub(super) is_newcomer: bool,
    /// Why the carrier ends a request or the connection in this step; `None` where the client does.
    pub(crate) turned_away_for: Option<EndCause>,
}

/// Allowances of a connection's users, except the user who asked last.
#[derive(Debug, Default)]
struct Others {
    /// Allowances of users who have something open.
    #[expect(clippy::vec_box, reason = "they come in boxes and leave in them")]
    allowances: Vec<Box<Allowance>>,
    /// The time until which the connection is not read because of them, in milliseconds.
    until_ms: u64,
}

/// A request whose key the cluster was asked about.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) exchange: ExchangeId,
    /// The number of the letter that says that there is an answer.
    pub(super) number: u64,
    pub(super) claim: Claim,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) request: Request,
    pub(super) until: Until,
}

/// The event that a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Until {
    /// The end of the handshake: it can be a replay until then.
    Confirmed,
    /// The verdict on a password.
    Verdict,
    /// The webhook's decision on the request.
    Answer,
    /// The cluster's answer about the request's key.
    Claimed,
    /// Room on the connection for a message.
    Room,
    /// Room in the queue of a reader.
    Reader,
}

impl Peer {
    /// A connection without any request.
    pub(crate) fn new(cx: &Context<'_>, connection: ConnectionId) -> Self {
        Self {
            connection,
            credentials: Credentials::default(),
            held: Vec::new(),
            subscriptions: Vec::new(),
            transports: Vec::new(),
            asked: Vec::new(),
            promises: Promises::default(),
            sips: Sips::begun(cx.now_ms),
            others: None,
            asking: Asking::default(),
            asked_by: 0,
            claims: Vec::new(),
            is_newcomer: cx.closed().is_some(),
            turned_away_for: None,
        }
    }

    /// Looks at the requests that wait, and at what is open.
    ///
    /// # Panics
    /// Where a request waits for nothing, or two have one response.
    pub(super) fn check(&self) {
        for held in &self.held {
            let waits = match held.until {
                Until::Claimed => {
                    let mut claims = self.claims.iter();
                    claims.any(|claimed| claimed.exchange == held.request.id)
                }
                Until::Answer => self.asking.is_waiting(),
                // The carrier, the checker and the broker know.
                Until::Confirmed | Until::Verdict | Until::Room | Until::Reader => true,
            };
            assert!(waits, "a request that is held waits for something");
        }
        for (at, one) in self.subscriptions.iter().enumerate() {
            let mut others = self.subscriptions[..at].iter();
            assert!(
                others.all(|other| other.consumer != one.consumer),
                "a subscription is a consumer of its own"
            );
        }
    }

    /// The user that a request of the connection has shown.
    pub(crate) fn name(&self) -> Option<&str> {
        self.credentials.name()
    }

    /// Whether the connection is not to be read because memory is short; see [`Sips::holds_back`].
    pub(crate) fn holds_back(&mut self, cx: &mut Context<'_>, partial_bytes: usize) -> bool {
        let connection = (self.connection, partial_bytes);
        self.sips
            .holds_back(cx, connection, self.credentials.name())
    }

    /// The users who have something open on the connection.
    pub(super) fn owners(&self) -> impl Iterator<Item = &Identity> {
        (self.transports.iter().map(|transport| &transport.identity))
            .chain(self.subscriptions.iter().map(|one| &one.identity))
    }

    /// The users of the connection: the one who asked last, and those who have something open.
    pub(crate) fn users(&self) -> impl Iterator<Item = Option<&str>> {
        std::iter::once(self.name()).chain(self.owners().map(Identity::user))
    }

    /// The number of a user's subscriptions.
    pub(super) fn subscriptions_of(&self, user: Option<&str>) -> usize {
        let are = |one: &&Subscription| one.identity.user() == user;
        self.subscriptions.iter().filter(are).count()
    }

    /// The sessions of its subscriptions.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionKey> {
        (self.subscriptions.iter()).map(|subscription| subscription.session)
    }

    /// Whether subscriptions or WebTransport sessions are open.
    pub(crate) fn has_open(&self) -> bool {
        !self.transports.is_empty() || !self.subscriptions.is_empty()
    }

    /// Admits a request of a user, as far as the user's limits go. Other users keep their seats.
    ///
    /// # Errors
    /// The user has as many connections as it may.
    pub(super) fn allow(
        &mut self,
        cx: &Context<'_>,
        identity: &Identity,
    ) -> Result<(), TooManyConnections> {
        self.turn_to(identity.user());
        self.sips.allow(cx, identity, self.connection, None)
    }

    /// The same for a user who is in already.
    pub(super) fn allow_again(&mut self, cx: &Context<'_>, identity: &Identity) {
        self.turn_to(identity.user());
        self.sips.allow_again(cx, identity, self.connection, None);
    }

    fn turn_to(&mut self, user: Option<&str>) {
        let theirs = self.others.as_mut().and_then(|others| {
            let allowances = &mut others.allowances;
            let at = (allowances.iter()).position(|allowance| allowance.user() == user)?;
            Some(allowances.swap_remove(at))
        });
        match self.sips.swap(theirs) {
            Some(mut before) if before.user() != user => {
                before.rest();
                let others = self.others.get_or_insert_default();
                let until_ms = before.paused_until_ms(others.until_ms);
                others.until_ms = until_ms.unwrap_or(others.until_ms);
                others.allowances.push(before);
            }
            Some(before) => drop(self.sips.swap(Some(before))),
            None => {}
        }
    }

    /// Gives back the allowances of users who have nothing open any more. Returns the time until which the
    /// connection is not to be read because of other users, in milliseconds.
    pub(crate) fn settle_others(&mut self, now_ms: u64) -> Option<u64> {
        let mut others = self.others.take()?;
        (others.allowances).retain(|one| self.owners().any(|owner| owner.user() == one.user()));
        let until_ms = Some(others.until_ms).filter(|until_ms| *until_ms > now_ms);
        if until_ms.is_some() || !others.allowances.is_empty() {
            self.others = Some(others);
        }
        until_ms
    }

    /// Reads the connection again: the limits by which its users published too fast are not in force any more.
    pub(crate) fn read_again(&mut self) {
        self.sips.read_again();
        if let Some(others) = &mut self.others {
            others.until_ms = 0;
        }
    }

    /// Bytes of the contents of requests that wait.
    pub(super) fn held_bytes(&self) -> usize {
        self.held
            .iter()
            .map(|held| held.request.content.len())
            .sum()
    }

    /// Whether so much waits for a reader that the connection is not read meanwhile. Less of it leaves the connection's own
    /// subscriptions alive.
    pub(crate) fn is_full(&self, cx: &Context<'_>) -> bool {
        let most_bytes = cx.policy.http.maximum_assembling_bytes as usize / 4;
        self.sips.is_held
            && (self.held_bytes() >= most_bytes || self.transports.iter().any(Transport::waits))
    }

    /// Whether requests or frames wait for a reader.
    pub(crate) fn waits_for_reader(&self) -> bool {
        self.held.iter().any(|held| held.until == Until::Reader)
            || self.transports.iter().any(Transport::waits)
    }

    /// Takes out the requests that wait for an event, in order.
    pub(super) fn take_held(&mut self, until: Until) -> Vec<Request> {
        let (taken, kept) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|held| held.until == until);
        self.held = kept;
        let taken: Vec<Held> = taken;
        taken.into_iter().map(|held| held.request).collect()
    }

    /// Takes out the question to the cluster about a request's key.
    pub(super) fn take_claim(&mut self, id: ExchangeId) -> Option<Claim> {
        let at = (self.claims.iter()).position(|claimed| claimed.exchange == id)?;
        Some(self.claims.swap_remove(at).claim)
    }

    /// The subscription that a response belongs to.
    pub(super) fn subscription_of(&self, id: ExchangeId) -> Option<usize> {
        (self.subscriptions.iter()).position(|subscription| subscription.exchange == id)
    }
}
