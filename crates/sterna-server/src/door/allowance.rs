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
use crate::seats::Seat;

/// See the module.
#[derive(Debug)]
pub(crate) struct Allowance {
    limit: Arc<Limit>,
    seat: Seat,
    messages: Option<Bucket>,
    bytes: Option<Bucket>,
    /// The last moment to look again that the door was told, in milliseconds.
    wake_ms: u64,
    /// Its debt is paid by a pause.
    pauses: bool,
}

/// Why a client may not come in: its user has as many connections as it may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooManyConnections;

impl TooManyConnections {
    /// Says so in words.
    pub(crate) const DETAIL: &str = "the user has as many connections as it may";
}

/// A token bucket, which may run into debt: what was read already is not given back.
#[derive(Debug)]
struct Bucket {
    per_s: u32,
    /// Thousandths of a token.
    most_m: i64,
    level_m: i64,
    filled_ms: u64,
}

impl Bucket {
    fn new(per_s: u32, burst_s: u32, now_ms: u64) -> Self {
        let most_m = i64::from(per_s) * i64::from(burst_s) * 1000;
        Self {
            per_s,
            most_m,
            level_m: most_m,
            filled_ms: now_ms,
        }
    }

    fn fill(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.filled_ms).min(i64::MAX as u64) as i64;
        let filled_m = passed_ms.saturating_mul(i64::from(self.per_s));
        self.level_m = self.level_m.saturating_add(filled_m).min(self.most_m);
        self.filled_ms = self.filled_ms.max(now_ms);
    }

    fn take(&mut self, tokens: u64) {
        let tokens_m = i64::try_from(tokens)
            .unwrap_or(i64::MAX)
            .saturating_mul(1000);
        self.level_m = self.level_m.saturating_sub(tokens_m);
    }

    /// When it is out of debt, in milliseconds.
    fn ready_ms(&self) -> u64 {
        let debt_m = self.level_m.min(0).unsigned_abs();
        self.filled_ms + debt_m.div_ceil(u64::from(self.per_s))
    }

    /// Begins where another ends: its debt lasts as long, and there is no burst.
    fn follow(&mut self, ready_ms: u64) {
        let debt_ms = ready_ms.saturating_sub(self.filled_ms).min(i64::MAX as u64) as i64;
        self.level_m = -debt_ms.saturating_mul(i64::from(self.per_s));
    }
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
        let now_ms = cx.net.now_ms();
        let ready_ms = before.as_deref().map(Self::ready_ms);
        let seat = match before {
            Some(before) if before.seat.is_of(user, client) => Some(before.seat),
            _ => {
                let most = limit.connections.filter(|_| !is_in);
                cx.seats.take(user, client, most)
            }
        };
        let bucket = |per_s: Option<u32>| {
            let mut bucket = Bucket::new(per_s?, limit.burst_s, now_ms);
            if let Some(ready_ms) = ready_ms {
                bucket.follow(ready_ms);
            }
            Some(bucket)
        };
        Ok(Some(Box::new(Self {
            limit: Arc::clone(limit),
            seat: seat.ok_or(TooManyConnections)?,
            messages: bucket(limit.messages_per_s),
            bytes: bucket(limit.bytes_per_s),
            wake_ms: 0,
            pauses: true,
        })))
    }

    /// Whether it is what this client may use by the rules in force.
    fn is_for(&self, cx: &Context<'_>, identity: &Identity) -> bool {
        let limit = limit_of(cx, identity);
        self.seat.user() == identity.user()
            && limit.is_some_and(|limit| Arc::ptr_eq(limit, &self.limit))
    }

    /// When it may publish again, in milliseconds.
    fn ready_ms(&self) -> u64 {
        let buckets = self.messages.iter().chain(&self.bytes);
        buckets.map(Bucket::ready_ms).max().unwrap_or(0)
    }

    /// Whether a message may be published. A client that cannot be told of a refusal (`is_told`) is not read
    /// for a while instead.
    fn takes(&mut self, now_ms: u64, bytes: usize, is_told: bool) -> bool {
        let buckets = self.messages.iter_mut().chain(&mut self.bytes);
        buckets.for_each(|bucket| bucket.fill(now_ms));
        self.pauses = !is_told || self.limit.exceeded == Exceeded::Pause;
        let has = |bucket: &Option<Bucket>, least_m| {
            (bucket.as_ref()).is_none_or(|bucket| bucket.level_m >= least_m)
        };
        let is_within = has(&self.messages, 1000) && has(&self.bytes, 1);
        if !self.pauses && !is_within {
            return false;
        }
        if let Some(messages) = &mut self.messages {
            messages.take(1);
        }
        if let Some(of_bytes) = &mut self.bytes {
            of_bytes.take(bytes as u64);
        }
        true
    }

    /// Until when the client is not to be read, in milliseconds.
    fn paused_until_ms(&self, now_ms: u64) -> Option<u64> {
        Some(self.ready_ms()).filter(|ready_ms| self.pauses && *ready_ms > now_ms)
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
