//! The allowance of a client: its seat among its user's connections, and its rate of publishing.

use std::sync::Arc;

use sterna_net::ConnectionId;

use super::Sips;
use crate::authorization::Subject;
use crate::config::{Exceeded, Limit, Protocol};
use crate::context::Context;
use crate::identity::Identity;
use crate::pace::{Lease, Rates};
use crate::seats::Seat;

/// See the module.
#[derive(Debug)]
pub(crate) struct Allowance {
    limit: Arc<Limit>,
    seat: Seat,
    lease: Lease,
    /// The time until which the client itself is not read, in milliseconds: its part of its user's debt.
    until_ms: u64,
    /// Whether it has published, or wanted to.
    has_begun: bool,
    /// Whether its first message waits for its user's debt.
    waits: bool,
    /// The last moment to look again that the door was told, in milliseconds.
    wake_ms: u64,
}

/// Why a client may not come in: its user has as many connections as it may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooManyConnections;

impl TooManyConnections {
    /// Says so in words.
    pub(crate) const DETAIL: &str =
        "the user has reached its limit of connections (authorization.limit.connections)";
}

impl Allowance {
    /// The allowance of a client of this name; `None` for any amount. `before` is the allowance until now on its
    /// connection.
    ///
    /// # Errors
    /// Its user has as many connections as it may, and the client is not in already (`is_in`). A client with a
    /// seat of the same user keeps it.
    pub(crate) fn of(
        cx: &Context<'_>,
        identity: &Identity,
        client: &Arc<str>,
        before: Option<Box<Self>>,
        is_in: bool,
    ) -> Result<Option<Box<Self>>, TooManyConnections> {
        let user = identity.owner().user;
        let Some(limit) = limit_of(cx, identity) else {
            return Ok(None);
        };
        let now_ms = cx.now_ms;
        let kept = before.filter(|before| before.seat.is_of(identity.user(), client));
        if let Some(mut kept) = kept {
            kept.change(limit, now_ms);
            return Ok(Some(kept));
        }
        let most = limit.connections.filter(|_| !is_in);
        let away = cx.policy.rules.source().maximum_remembered_users;
        let seat = cx.seats.take(user, client, most, (now_ms, away));
        let seat = seat.ok_or(TooManyConnections)?;
        seat.pace().change(&Rates::of(limit), now_ms);
        Ok(Some(Box::new(Self {
            limit: Arc::clone(limit),
            lease: Lease::default(),
            seat,
            until_ms: 0,
            has_begun: false,
            waits: false,
            wake_ms: 0,
        })))
    }

    /// Another limit is in force: the client waits no longer than its user's debt lasts by that limit.
    fn change(&mut self, limit: &Arc<Limit>, now_ms: u64) {
        self.rest();
        let (pace, rates) = (self.seat.pace(), Rates::of(limit));
        self.limit = Arc::clone(limit);
        pace.change(&rates, now_ms);
        self.until_ms = self.until_ms.min(pace.paid_ms(&rates));
        self.look_again(now_ms);
    }

    /// Ends the wait of the first message, if it is over.
    fn look_again(&mut self, now_ms: u64) {
        self.waits &= self.until_ms > now_ms;
    }

    /// Whether a message, and the input behind it, has to wait. It does if it is the first of its connection, and
    /// its user has a debt. A client cannot escape its pause by a new connection.
    fn must_wait(&mut self, now_ms: u64) -> bool {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if is_first && self.limit.exceeded == Exceeded::Pause {
            self.until_ms = self.seat.pace().paid_ms(&self.rates());
            self.waits = self.until_ms > now_ms;
        }
        self.waits
    }

    /// Whether it is the allowance of this client by the rules in force.
    fn is_for(&self, cx: &Context<'_>, identity: &Identity) -> bool {
        let limit = limit_of(cx, identity);
        self.seat.user() == identity.user()
            && limit.is_some_and(|limit| Arc::ptr_eq(limit, &self.limit))
    }

    /// Whether a message may be published that the lease does not pay. A client that cannot be told of a refusal
    /// (`is_told`) is not read for a while instead. Input that was read already counts as a debt. A connection that is
    /// paused adds to the debt up to half its limit: the rest is for the user's other connections.
    fn takes(&mut self, now_ms: u64, bytes: usize, is_told: bool) -> bool {
        let bytes = bytes as u64;
        let (pace, rates) = (self.seat.pace(), &self.rates());
        if pace.lend(rates, now_ms, &mut self.lease, bytes) {
            return true;
        }
        let pauses = !is_told || self.limit.exceeded == Exceeded::Pause;
        let may_owe_ms = match pauses {
            true if self.until_ms > now_ms => rates.debt_ms() / 2,
            true => rates.debt_ms(),
            false => 0,
        };
        if !pace.admits(rates, now_ms.saturating_add(may_owe_ms)) {
            if pauses {
                self.until_ms = self.until_ms.max(pace.paid_ms(rates));
            }
            return false;
        }
        let paid_ms = pace.take(rates, now_ms, bytes);
        self.until_ms = if pauses { paid_ms } else { 0 };
        true
    }

    /// Whether the client may come in with a will, which its user owes from now on. So nothing refuses the will when
    /// it is due.
    fn takes_will(&self, now_ms: u64, bytes: usize) -> bool {
        let (pace, rates) = (self.seat.pace(), &self.rates());
        let is_within = pace.admits(rates, now_ms.saturating_add(rates.debt_ms()));
        if is_within {
            pace.take(rates, now_ms, bytes as u64);
        }
        is_within
    }

    /// Gives back the bytes that were lent in advance: another user of the connection has its turn.
    pub(crate) fn rest(&mut self) {
        let rates = self.rates();
        (self.seat.pace()).give_back(&rates, &mut self.lease);
    }

    /// The rates of the limit. They are reckoned again where a message pays by itself; most pay out of the lease.
    fn rates(&self) -> Rates {
        Rates::of(&self.limit)
    }

    /// The user of the allowance.
    pub(crate) fn user(&self) -> Option<&str> {
        self.seat.user()
    }

    /// The time until which the client is not to be read, in milliseconds.
    pub(crate) fn paused_until_ms(&self, now_ms: u64) -> Option<u64> {
        Some(self.until_ms).filter(|until_ms| *until_ms > now_ms)
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.rest();
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
    /// Sets the allowance of a client from now on, by its identity. A client with a `name` takes the seat of an
    /// older connection of that name.
    ///
    /// # Errors
    /// Its user has as many connections as it may.
    pub(crate) fn allow(
        &mut self,
        cx: &Context<'_>,
        identity: &Identity,
        connection: ConnectionId,
        name: Option<&Arc<str>>,
    ) -> Result<(), TooManyConnections> {
        self.set_allowance(cx, identity, (connection, name), false)
    }

    /// The same by other rules for a client that is in, and stays in.
    pub(crate) fn allow_again(
        &mut self,
        cx: &Context<'_>,
        identity: &Identity,
        connection: ConnectionId,
        name: Option<&Arc<str>>,
    ) {
        // Nothing refuses it.
        let _ = self.set_allowance(cx, identity, (connection, name), true);
    }

    fn set_allowance(
        &mut self,
        cx: &Context<'_>,
        identity: &Identity,
        (connection, name): (ConnectionId, Option<&Arc<str>>),
        is_in: bool,
    ) -> Result<(), TooManyConnections> {
        self.forget_principal();
        if (self.allowance.as_ref()).is_some_and(|allowance| allowance.is_for(cx, identity)) {
            return Ok(());
        }
        let before = self.allowance.take();
        if limit_of(cx, identity).is_none() {
            return Ok(());
        }
        // No name of a client has such a character.
        let own = || {
            let (slot, generation) = (connection.slot, connection.generation);
            format!("\0{}.{slot}.{generation}", cx.shard).into()
        };
        let name = name.map_or_else(own, Arc::clone);
        self.allowance = Allowance::of(cx, identity, &name, before, is_in)?;
        Ok(())
    }

    /// Replaces the allowance in force by another user's, and returns the former. A connection can be of several
    /// users in turn.
    pub(crate) fn swap(&mut self, allowance: Option<Box<Allowance>>) -> Option<Box<Allowance>> {
        std::mem::replace(&mut self.allowance, allowance)
    }

    /// The client publishes: whether it may, as far as its rate goes. `is_told` says whether it would be told of a
    /// refusal. The door counts a refused message.
    #[inline]
    pub(crate) fn published(
        &mut self,
        cx: &Context<'_>,
        protocol: Protocol,
        bytes: usize,
        is_told: bool,
    ) -> bool {
        self.publishes = true;
        self.tally.received += 1;
        let Some(allowance) = &mut self.allowance else {
            return true;
        };
        let now_ms = cx.now_ms;
        allowance.has_begun = true;
        if allowance.lease.pays(now_ms, bytes as u64) {
            return true;
        }
        Self::pays(allowance, cx, protocol, (now_ms, bytes, is_told))
    }

    /// See [`published`](Self::published): for a message that the lease does not pay.
    fn pays(
        allowance: &mut Allowance,
        cx: &Context<'_>,
        protocol: Protocol,
        (now_ms, bytes, is_told): (u64, usize, bool),
    ) -> bool {
        let was_paused = allowance.paused_until_ms(now_ms).is_some();
        let is_within = allowance.takes(now_ms, bytes, is_told);
        if !was_paused && allowance.paused_until_ms(now_ms).is_some() {
            cx.meters.rate_paused(protocol);
        }
        is_within
    }

    /// A client comes in with a will of this payload: whether it may, as far as its user's rate goes.
    pub(crate) fn takes_will(&self, cx: &Context<'_>, bytes: usize) -> bool {
        (self.allowance.as_ref()).is_none_or(|own| own.takes_will(cx.now_ms, bytes))
    }

    /// Whether the message that comes now, and the input behind it, has to wait. Nothing of it is done before.
    #[inline]
    pub(crate) fn must_wait(&mut self, cx: &Context<'_>, protocol: Protocol) -> bool {
        let Some(allowance) = &mut self.allowance else {
            return false;
        };
        if allowance.has_begun && !allowance.waits {
            return false;
        }
        let waits = allowance.must_wait(cx.now_ms);
        if waits {
            cx.meters.rate_paused(protocol);
        }
        waits
    }

    /// Whether a message waits so, or for a reader.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_held || (self.allowance.as_ref()).is_some_and(|allowance| allowance.waits)
    }

    /// Ends that, if it is over. The wait for a reader is where the client `is_held` no more.
    pub(super) fn look_again(&mut self, now_ms: u64, is_held: impl FnOnce() -> bool) {
        self.is_held = self.is_held && is_held();
        if let Some(allowance) = &mut self.allowance {
            allowance.look_again(now_ms);
        }
    }

    /// Reads a client again that published too fast by limits that are not in force any more. Its next message
    /// shows its user, and pays that user's debt.
    pub(crate) fn read_again(&mut self) {
        if let Some(allowance) = &mut self.allowance {
            (allowance.until_ms, allowance.waits) = (0, false);
        }
    }

    /// The time until which the client is not read because it has published too fast, in milliseconds.
    pub(crate) fn paused_until_ms(&self, now_ms: u64) -> Option<u64> {
        self.allowance.as_ref()?.paused_until_ms(now_ms)
    }

    /// The time to look at the client again because of that, if the door does not know it.
    pub(super) fn next_look_ms(&mut self, now_ms: u64) -> Option<u64> {
        let allowance = self.allowance.as_mut()?;
        let until_ms = allowance.paused_until_ms(now_ms)?;
        let is_known = std::mem::replace(&mut allowance.wake_ms, until_ms) == until_ms;
        (!is_known).then_some(until_ms)
    }

    /// Looks at the time until which the client is not read; `is_noted` says whether the door looks again then.
    ///
    /// # Panics
    /// Where it does not.
    pub(super) fn check(&self, now_ms: u64, is_noted: impl FnOnce(u64) -> bool) {
        if let Some(until_ms) = self.paused_until_ms(now_ms) {
            assert!(
                is_noted(until_ms),
                "the door reads a client again that was too fast"
            );
        }
        let is_due = self.is_held || self.paused_until_ms(now_ms).is_some();
        assert!(
            is_due || !self.is_waiting(),
            "a message waits while its client is not read"
        );
    }

    /// Subscriptions that the client may have.
    pub(crate) fn most_subscriptions(&self) -> Option<usize> {
        let limit = &self.allowance.as_ref()?.limit;
        limit.subscriptions.map(|most| most as usize)
    }
}
