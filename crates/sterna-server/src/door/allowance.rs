//! What a client may use, by who it is: its seat among its user's connections, and how fast it may publish.

use std::borrow::Cow;
use std::sync::Arc;

use sterna_net::ConnectionId;

use super::Sips;
use crate::authorization::Subject;
use crate::config::{Exceeded, Limit, Protocol};
use crate::context::Context;
use crate::identity::Identity;
use crate::metrics::DropReason;
use crate::pace::{Lease, Rates};
use crate::seats::Seat;

/// See the module.
#[derive(Debug)]
pub(crate) struct Allowance {
    limit: Arc<Limit>,
    rates: Rates,
    seat: Seat,
    lease: Lease,
    /// Until when the client itself is not read, in milliseconds: its part of what its user owes.
    until_ms: u64,
    /// The last moment to look again that the door was told, in milliseconds.
    wake_ms: u64,
}

/// Why a client may not come in: its user has as many connections as it may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooManyConnections;

impl TooManyConnections {
    /// Says so in words.
    pub(crate) const DETAIL: &str = "the user has as many connections as it may";
}

impl Allowance {
    /// What a client of this name may use; `None` for any amount. `before` is what it had until now on its
    /// connection.
    ///
    /// # Errors
    /// Its user has as many connections as it may, and the client is not in already (`is_in`). One that had a seat
    /// of the same user keeps it.
    pub(crate) fn of(
        cx: &Context<'_>,
        identity: &Identity,
        client: &str,
        before: Option<Box<Self>>,
        is_in: bool,
    ) -> Result<Option<Box<Self>>, TooManyConnections> {
        let user = identity.user();
        let Some(limit) = limit_of(cx, identity) else {
            return Ok(None);
        };
        let kept = before.filter(|before| before.seat.is_of(user, client));
        let (seat, until_ms) = if let Some(before) = kept {
            (Some(before.seat), before.until_ms)
        } else {
            let most = limit.connections.filter(|_| !is_in);
            let away = cx.policy.rules.source().maximum_remembered_users;
            let now_ms = cx.net.now_ms();
            (cx.seats.take(user, client, most, (now_ms, away)), 0)
        };
        Ok(Some(Box::new(Self {
            limit: Arc::clone(limit),
            rates: Rates::of(limit),
            lease: Lease::default(),
            seat: seat.ok_or(TooManyConnections)?,
            until_ms,
            wake_ms: 0,
        })))
    }

    /// Whether it is what this client may use by the rules in force.
    fn is_for(&self, cx: &Context<'_>, identity: &Identity) -> bool {
        let limit = limit_of(cx, identity);
        self.seat.user() == identity.user()
            && limit.is_some_and(|limit| Arc::ptr_eq(limit, &self.limit))
    }

    /// Whether a message may be published. A client that cannot be told of a refusal (`is_told`) is not read
    /// for a while instead.
    fn takes(&mut self, now_ms: u64, bytes: usize, is_told: bool) -> bool {
        let bytes = bytes as u64;
        let (pace, rates) = (self.seat.pace(), &self.rates);
        if pace.lend(rates, now_ms, &mut self.lease, bytes) {
            return true;
        }
        let pauses = !is_told || self.limit.exceeded == Exceeded::Pause;
        if !pauses && !pace.admits(rates, now_ms) {
            return false;
        }
        let paid_ms = pace.take(rates, now_ms, bytes);
        self.until_ms = if pauses { paid_ms } else { 0 };
        true
    }

    /// Until when the client is not to be read, in milliseconds.
    fn paused_until_ms(&self, now_ms: u64) -> Option<u64> {
        Some(self.until_ms).filter(|until_ms| *until_ms > now_ms)
    }
}

/// The limit of a client by the rules in force.
fn limit_of<'a>(cx: &Context<'a>, identity: &Identity) -> Option<&'a Arc<Limit>> {
    cx.policy.rules.limit_of(Subject {
        user: identity.user(),
        standing: identity.standing().map(|own| &**own),
        ..Subject::default()
    })
}

impl Sips {
    /// What a client may use from now on, by who it is. One with a `name` takes the seat of an older connection of
    /// that name.
    ///
    /// # Errors
    /// Its user has as many connections as it may.
    pub(crate) fn allow(
        &mut self,
        cx: &Context<'_>,
        identity: &Identity,
        connection: ConnectionId,
        name: Option<&str>,
    ) -> Result<(), TooManyConnections> {
        self.set_allowance(cx, identity, (connection, name), false)
    }

    /// The same by other rules for a client that is in, and stays in.
    pub(crate) fn allow_again(
        &mut self,
        cx: &Context<'_>,
        identity: &Identity,
        connection: ConnectionId,
        name: Option<&str>,
    ) {
        // Nothing refuses it.
        let _ = self.set_allowance(cx, identity, (connection, name), true);
    }

    fn set_allowance(
        &mut self,
        cx: &Context<'_>,
        identity: &Identity,
        (connection, name): (ConnectionId, Option<&str>),
        is_in: bool,
    ) -> Result<(), TooManyConnections> {
        if (self.allowance.as_ref()).is_some_and(|allowance| allowance.is_for(cx, identity)) {
            return Ok(());
        }
        let before = self.allowance.take();
        if limit_of(cx, identity).is_none() {
            return Ok(());
        }
        // No name of a client has such a character.
        let own = || {
            format!(
                "\0{}.{}.{}",
                cx.shard, connection.slot, connection.generation
            )
        };
        let name = name.map_or_else(|| Cow::Owned(own()), Cow::Borrowed);
        self.allowance = Allowance::of(cx, identity, &name, before, is_in)?;
        Ok(())
    }

    /// The client publishes: whether it may, as far as its rate goes. `is_told` says whether it would be told of a
    /// refusal.
    pub(crate) fn published(
        &mut self,
        cx: &Context<'_>,
        protocol: Protocol,
        bytes: usize,
        is_told: bool,
    ) -> bool {
        self.publishes = true;
        let Some(allowance) = &mut self.allowance else {
            return true;
        };
        let now_ms = cx.net.now_ms();
        let was_paused = allowance.paused_until_ms(now_ms).is_some();
        let is_within = allowance.takes(now_ms, bytes, is_told);
        if !is_within {
            cx.meters.drops.count(protocol, DropReason::RateExceeded);
        } else if !was_paused && allowance.paused_until_ms(now_ms).is_some() {
            cx.meters.rate_paused(protocol);
        }
        is_within
    }

    /// Until when the client is not read because it has published too fast, in milliseconds.
    pub(crate) fn paused_until_ms(&self, now_ms: u64) -> Option<u64> {
        self.allowance.as_ref()?.paused_until_ms(now_ms)
    }

    /// When the client is to be looked at again because of that, if the door does not know.
    pub(super) fn next_look_ms(&mut self, now_ms: u64) -> Option<u64> {
        let allowance = self.allowance.as_mut()?;
        let until_ms = allowance.paused_until_ms(now_ms)?;
        let is_known = std::mem::replace(&mut allowance.wake_ms, until_ms) == until_ms;
        (!is_known).then_some(until_ms)
    }

    /// Subscriptions that the client may have.
    pub(crate) fn most_subscriptions(&self) -> Option<usize> {
        let limit = &self.allowance.as_ref()?.limit;
        limit.subscriptions.map(|most| most as usize)
    }
}
