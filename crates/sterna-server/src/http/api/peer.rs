//! What is kept of one connection.

use sterna_broker::SessionKey;
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
use crate::memory::Stage;

/// What is kept of one connection.
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
    /// What the client is told once it is kept.
    pub(crate) promises: Promises<Acknowledgement>,
    /// With the allowance of the user who has asked last.
    pub(crate) sips: Sips,
    /// What other users left when they asked.
    others: Option<Box<Others>>,
    /// Whether the webhook is asked about the first request that waits for it.
    pub(super) asking: Asking,
    /// The number of the letter with the answer.
    pub(super) asked_by: u64,
    /// What the cluster was asked about keys of requests.
    pub(super) claims: Vec<Claimed>,
    /// It came when newcomers were refused for want of memory.
    pub(super) is_newcomer: bool,
}

/// What other users of a connection have than who has asked last.
#[derive(Debug, Default)]
struct Others {
    /// Of those who have something open.
    #[expect(clippy::vec_box, reason = "they come in boxes and leave in them")]
    allowances: Vec<Box<Allowance>>,
    /// Until when the connection is not read because of them, in milliseconds.
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

/// What a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Until {
    /// The end of the handshake: it can be a replay until then.
    Confirmed,
    /// The verdict on a password.
    Verdict,
    /// The webhook's word on what it is for.
    Answer,
    /// The cluster's word on its key.
    Claimed,
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
            sips: Sips::begun(cx.net.now_ms()),
            others: None,
            asking: Asking::default(),
            asked_by: 0,
            claims: Vec::new(),
            is_newcomer: cx.memory.stage() >= Stage::RefuseNewcomers,
        }
    }

    /// The user whom a request of the connection has shown.
    pub(crate) fn name(&self) -> Option<&str> {
        self.credentials.name()
    }

    /// Who has something open on the connection.
    pub(super) fn owners(&self) -> impl Iterator<Item = &Identity> {
        (self.transports.iter().map(|transport| &transport.identity))
            .chain(self.subscriptions.iter().map(|one| &one.identity))
    }

    /// The users that the connection is of: who has asked last, and who has something open.
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

    /// A user asks for something, as far as the user's limits go. The seats of others stay theirs.
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

    /// The same for a user who is in.
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

    /// Gives back what users had who have nothing open any more. Returns until when the connection is not to be read
    /// because of others, in milliseconds.
    pub(crate) fn settle_others(&mut self, now_ms: u64) -> Option<u64> {
        let mut others = self.others.take()?;
        (others.allowances).retain(|one| self.owners().any(|owner| owner.user() == one.user()));
        let until_ms = Some(others.until_ms).filter(|until_ms| *until_ms > now_ms);
        if until_ms.is_some() || !others.allowances.is_empty() {
            self.others = Some(others);
        }
        until_ms
    }

    /// Reads the connection again, whoever has published too fast by limits that are not in force any more.
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

    /// Takes out what waits for something, in order.
    pub(super) fn take_held(&mut self, until: Until) -> Vec<Request> {
        let (taken, kept) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|held| held.until == until);
        self.held = kept;
        let taken: Vec<Held> = taken;
        taken.into_iter().map(|held| held.request).collect()
    }

    /// Takes out what the cluster was asked about the key of a request.
    pub(super) fn take_claim(&mut self, id: ExchangeId) -> Option<Claim> {
        let at = (self.claims.iter()).position(|claimed| claimed.exchange == id)?;
        Some(self.claims.swap_remove(at).claim)
    }

    /// The subscription that a response belongs to.
    pub(super) fn subscription_of(&self, id: ExchangeId) -> Option<usize> {
        (self.subscriptions.iter()).position(|subscription| subscription.exchange == id)
    }
}
