//! The front doors: the table of a door's clients, their deadlines, the output of a step, and the guard around
//! each step. [`Service`] is the part that a protocol adds.
//!
//! A step works on one client, which is out of its place meanwhile. A panic in a step ends that client like a
//! lost connection. Its will is published, and its sessions are away or ended. Output that the step had gathered
//! reaches no other client. A panic that belongs to no client ends the shard, and so does one in the end of a
//! client's sessions.

mod allowance;
mod asking;
mod check;
mod clients;
mod framers;
mod held;
mod outgoing;
mod overload;
mod promises;
mod timers;

use std::fmt::Debug;
use std::hash::Hash;
use std::net::IpAddr;

use sterna_broker::{Close, Committed, ConsumerId, EndCause, SessionKey};
use sterna_net::{CloseReason, ConnectionId, contain};

use crate::authorization::KnownTopics;
use crate::context::Context;
use crate::inspect;
use crate::sys::Counts;
pub(crate) use allowance::{Allowance, TooManyConnections};
pub(crate) use asking::Asking;
pub(crate) use clients::Clients;
pub(crate) use framers::Framers;
pub(crate) use held::{Early, Held, held_bytes, hold_early, note_early};
pub(crate) use outgoing::StepOutput;
pub(crate) use overload::{LIGHT_BYTES, Sips, Weighed, most_unread_bytes};
use promises::Awaited;
pub(crate) use promises::{Promise, Promises};
pub(crate) use timers::Timers;

/// The front door of one shard for one service.
#[derive(Debug)]
pub(crate) struct Door<S: Service> {
    /// The service's state beside its clients.
    pub(crate) service: S,
    pub(crate) clients: Clients<S::Id, S::Client>,
    pub(crate) timers: Timers<S::Id>,
    /// Clients that are not read for a while, because they publish too fast.
    paused: Timers<S::Id>,
    awaited: Awaited<S::Id>,
    /// The output of the step under way.
    pub(crate) out: StepOutput,
    pub(crate) counts: Counts,
    pub(crate) high_watermark_bytes: usize,
    pub(crate) stopping: bool,
    /// Bytes that the door keeps of all clients.
    kept_bytes: u64,
}

/// The part of a door that a protocol adds. A client is at the other end of a connection, or of nothing that the
/// transports know. In the latter case it has identifiers of its own.
pub(crate) trait Service: Sized {
    /// Whether a client ends in order by ending its connection, because its protocol has no other word for it.
    const ENDS_WITH_ITS_CONNECTION: bool = false;

    /// Whether the last input of a client counts that is gone while it waits for a reader whose queue is half full.
    const IS_READ_TO_ITS_END: bool = false;

    /// The identifier of a client; its connection, if it has one.
    type Id: Copy + Eq + Hash + Ord + Debug + Into<Option<ConnectionId>>;
    /// The state of a client.
    type Client;
    /// An answer to a client that may have to wait until its effect is kept.
    type Acknowledgement;

    /// The state of a client that comes; `None` if the client is gone already.
    fn greet(door: &mut Door<Self>, cx: &mut Context<'_>, id: Self::Id) -> Option<Self::Client>;

    /// Begins a step.
    fn begin(door: &mut Door<Self>, cx: &mut Context<'_>, client: &mut Self::Client) {
        let _ = (door, cx, client);
    }

    /// Ends a step: hands over its output, sets the next deadline, and decides whether the client is read. While the
    /// door is `stopping` it is not.
    fn settle(door: &mut Door<Self>, cx: &mut Context<'_>, client: &mut Self::Client);

    /// The answers that wait until their effects are kept.
    fn promises(client: &mut Self::Client) -> &mut Promises<Self::Acknowledgement>;

    /// Sends an answer whose effect is kept.
    fn acknowledge(
        door: &mut Door<Self>,
        cx: &mut Context<'_>,
        client: &mut Self::Client,
        acknowledgement: Self::Acknowledgement,
    );

    /// The deadline of a client has passed; it has none until the next is set.
    fn due(door: &mut Door<Self>, cx: &mut Context<'_>, client: &mut Self::Client);

    /// Another policy is in force.
    fn policy_changed(door: &mut Door<Self>, cx: &mut Context<'_>, client: &mut Self::Client);

    /// Tells a client goodbye.
    fn stop(door: &mut Door<Self>, cx: &mut Context<'_>, client: &mut Self::Client);

    /// A client is gone: ends all that it has in the broker. It may have ended before.
    fn lost(
        door: &mut Door<Self>,
        cx: &mut Context<'_>,
        client: &mut Self::Client,
        cause: EndCause,
    );

    /// Ends the carrier of a client; because of a fault of the broker's own if `failed`.
    fn hang_up(cx: &mut Context<'_>, id: Self::Id, failed: bool);

    /// An administrator or a ban ends a client's connection.
    fn dismiss(
        door: &mut Door<Self>,
        cx: &mut Context<'_>,
        client: &mut Self::Client,
        cause: EndCause,
    ) {
        Self::lost(door, cx, client, cause);
        let (id, _) = Self::timer(client);
        Self::hang_up(cx, id, false);
    }

    /// Whether the broker knows a client as this consumer.
    fn is_consumer_of(&self, consumer: ConsumerId, id: Self::Id) -> bool;

    /// Forgets the consumers of a client whose sessions the broker has closed.
    fn forget_consumers(&mut self, id: Self::Id) {
        let _ = id;
    }

    /// The name of a client that is connected.
    fn name(client: &Self::Client) -> Option<&str>;

    /// The user of a client; `None` for a client without a name, or one that has shown none yet.
    fn user(client: &Self::Client) -> Option<&str>;

    /// The identifier of a client, and the deadline of its entry among the timers; older entries are void.
    fn timer(client: &mut Self::Client) -> (Self::Id, &mut u64);

    /// Bytes that are kept of partly arrived packets, messages and requests.
    fn partial_bytes(client: &Self::Client) -> usize;

    /// Bytes that the door itself keeps of a client: partly arrived input, and other state that the client can
    /// make it keep.
    fn kept_bytes(client: &Self::Client) -> usize {
        Self::partial_bytes(client)
    }

    /// Shows each session that a client has in the broker.
    fn each_session(client: &Self::Client, visit: &mut dyn FnMut(SessionKey)) {
        let _ = (client, visit);
    }

    /// The rules' decisions on the topics that a client publishes to, where they are remembered.
    fn known_topics(client: &mut Self::Client) -> Option<&mut KnownTopics> {
        let _ = client;
        None
    }

    /// The reading of a client while memory is short, and its allowance.
    fn sips(client: &mut Self::Client) -> &mut Sips;

    /// Ends a client because memory is short and it holds more than others.
    fn shed(door: &mut Door<Self>, cx: &mut Context<'_>, client: &mut Self::Client);

    /// Looks at what only this service keeps, of itself and of its clients; for tests, between two steps.
    ///
    /// # Panics
    /// Where something does not agree with what it stands for.
    fn check(door: &Door<Self>);

    /// Counts that are kept elsewhere than in the door.
    fn counts(&self) -> Counts {
        Counts::default()
    }
}

impl<S: Service> Door<S> {
    /// A door without clients. Above `high_watermark_bytes` towards a client its queue is not drained.
    pub(crate) fn open_for(service: S, high_watermark_bytes: usize) -> Self {
        Self {
            service,
            clients: Clients::default(),
            timers: Timers::default(),
            paused: Timers::default(),
            awaited: Awaited::default(),
            out: StepOutput::default(),
            counts: Counts::default(),
            high_watermark_bytes,
            stopping: false,
            kept_bytes: 0,
        }
    }

    /// Bytes that the door keeps of all clients.
    pub(crate) const fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    fn forget_kept(&mut self, bytes: u64) {
        debug_assert!(self.kept_bytes >= bytes, "what a client has is in the sum");
        self.kept_bytes = self.kept_bytes.saturating_sub(bytes);
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts {
            bytes_sent: self.out.sent_bytes,
            ..self.counts
        };
        counts.add(&self.service.counts());
        counts
    }

    /// The name of a client that is connected.
    pub(crate) fn name_of(&self, id: S::Id) -> Option<&str> {
        S::name(self.clients.get(id)?)
    }

    /// The name of a client that is connected, and its user.
    pub(crate) fn name_and_user(&self, id: S::Id) -> Option<(&str, Option<&str>)> {
        let client = self.clients.get(id)?;
        Some((S::name(client)?, S::user(client)))
    }

    /// A client comes.
    pub(crate) fn opened(&mut self, cx: &mut Context<'_>, id: S::Id) {
        if self.stopping {
            S::hang_up(cx, id, false);
            return;
        }
        match contain(|| S::greet(self, cx, id)) {
            Ok(Some(client)) => {
                self.clients.insert(id, client);
                self.with_client(cx, id, |_, _, _| {});
            }
            Ok(None) => {}
            Err(panic) => self.fail(cx, id, None, &panic),
        }
    }

    /// Takes a client out of the table for one step, and hands over the output of the step.
    pub(crate) fn with_client(
        &mut self,
        cx: &mut Context<'_>,
        id: S::Id,
        step: impl FnOnce(&mut Self, &mut Context<'_>, &mut S::Client),
    ) {
        let Some(mut client) = self.clients.take(id) else {
            return;
        };
        let before_bytes = S::kept_bytes(&client) as u64;
        // One that did not come to be published.
        cx.holding.take_passage();
        let done = contain(|| {
            S::begin(self, cx, &mut client);
            step(self, cx, &mut client);
            let now_ms = cx.now_ms;
            let is_held = || id.into().is_some_and(|id| cx.holding.waits(id));
            S::sips(&mut client).look_again(now_ms, is_held);
            S::settle(self, cx, &mut client);
            self.awaited.note(cx, id, S::promises(&mut client));
            if let Some(look_ms) = S::sips(&mut client).next_look_ms(cx.now_ms) {
                self.paused.set(id, look_ms);
            }
        });
        self.forget_kept(before_bytes);
        match done {
            Ok(()) => {
                let kept_bytes = S::kept_bytes(&client) as u64;
                if self.clients.put_back(id, client) {
                    self.kept_bytes += kept_bytes;
                }
            }
            Err(panic) => self.fail(cx, id, Some(client), &panic),
        }
    }

    /// Sends an answer once its promise is kept, behind the answers that wait already.
    #[inline]
    pub(crate) fn acknowledge(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut S::Client,
        promise: Promise,
        acknowledgement: S::Acknowledgement,
    ) {
        if let Some(now) = S::promises(client).make(cx, promise, acknowledgement) {
            S::acknowledge(self, cx, client, now);
        }
    }

    /// The store has come further: acknowledgements that waited for it leave.
    pub(crate) fn committed(&mut self, cx: &mut Context<'_>) {
        let committed = cx.broker.committed();
        for id in self.awaited.take_fenced(cx) {
            self.acknowledge_kept_of(cx, id, committed);
        }
        while let Some(id) = self.awaited.next(committed) {
            self.acknowledge_kept_of(cx, id, committed);
        }
        self.awaited.ask_again(cx);
    }

    fn acknowledge_kept_of(&mut self, cx: &mut Context<'_>, id: S::Id, committed: Committed) {
        self.with_client(cx, id, |door, cx, client| {
            S::promises(client).looked_at();
            while let Some(kept) = S::promises(client).next_kept(cx, committed) {
                S::acknowledge(door, cx, client, kept);
            }
        });
    }

    /// A step with each client.
    fn with_all(
        &mut self,
        cx: &mut Context<'_>,
        mut step: impl FnMut(&mut Self, &mut Context<'_>, &mut S::Client),
    ) {
        let ids: Vec<S::Id> = self.clients.ids().collect();
        for id in ids {
            self.with_client(cx, id, &mut step);
        }
    }

    /// Looks at a client at `deadline_ms`, instead of at its earlier deadline.
    pub(crate) fn set_timer(&mut self, client: &mut S::Client, deadline_ms: u64) {
        let (id, timer_ms) = S::timer(client);
        *timer_ms = deadline_ms;
        self.timers.set(id, deadline_ms);
    }

    /// When [`timeout`](Self::timeout) is to be called.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        let deadlines = [self.timers.next_ms(), self.paused.next_ms()];
        deadlines.into_iter().flatten().min()
    }

    /// Looks at clients whose time may be over.
    pub(crate) fn timeout(&mut self, cx: &mut Context<'_>) {
        let now_ms = cx.now_ms;
        while let Some((_, id)) = self.paused.pop_due(now_ms) {
            // The step's end lets the transport read.
            self.with_client(cx, id, |_, _, _| {});
        }
        while let Some((deadline_ms, id)) = self.timers.pop_due(now_ms) {
            let Some(client) = self.clients.get_mut(id) else {
                continue;
            };
            let (_, timer_ms) = S::timer(client);
            if *timer_ms == deadline_ms {
                *timer_ms = u64::MAX;
                self.with_client(cx, id, S::due);
            }
        }
    }

    /// A client may go on whose wait for a reader is over.
    pub(crate) fn go_on(&mut self, cx: &mut Context<'_>, id: S::Id) {
        // The step's end looks at the input that waits.
        self.with_client(cx, id, |_, _, _| {});
    }

    /// A client has moved to another address, which is returned.
    pub(crate) fn migrated(&mut self, cx: &mut Context<'_>, id: S::Id) -> Option<IpAddr>
    where
        S: Service<Id = ConnectionId>,
    {
        let mut address = None;
        self.with_client(cx, id, |_, cx, client| {
            address = cx.address(id);
            if let Some(known) = S::known_topics(client) {
                known.forget();
            }
            note_origins::<S>(cx, id, client);
            if let Some(name) = S::name(client) {
                inspect::log_move(cx, id, name);
            }
        });
        address
    }

    /// An administrator or a ban ends a client's connection; false where it is not here.
    pub(crate) fn dismiss(&mut self, cx: &mut Context<'_>, id: S::Id, cause: EndCause) -> bool {
        let is_here = self.clients.has(id);
        self.with_client(cx, id, |door, cx, client| {
            S::dismiss(door, cx, client, cause);
        });
        is_here
    }

    /// Another policy is in force.
    pub(crate) fn policy_changed(&mut self, cx: &mut Context<'_>)
    where
        S: Service<Id = ConnectionId>,
    {
        self.with_all(cx, |door, cx, client| {
            let (id, _) = S::timer(client);
            note_origins::<S>(cx, id, client);
            S::policy_changed(door, cx, client);
        });
    }

    /// Reads no more of any client, so that the answers that wait for the store come to an end. New clients are
    /// turned away.
    pub(crate) fn stop_reading(&mut self, cx: &mut Context<'_>) {
        self.stopping = true;
        // The end of each later step leaves them unread, too.
        self.with_all(cx, |_, _, _| {});
    }

    /// Whether no acknowledgement waits for the store.
    pub(crate) fn is_drained(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Tells every client goodbye; new clients are turned away.
    pub(crate) fn stop(&mut self, cx: &mut Context<'_>) {
        self.stopping = true;
        self.with_all(cx, S::stop);
    }

    /// A client is gone.
    pub(crate) fn closed(&mut self, cx: &mut Context<'_>, id: S::Id, reason: &CloseReason) {
        if S::IS_READ_TO_ITS_END && id.into().is_some_and(|id| cx.exhaust_hold(id)) {
            // Its last messages go by the rule of the queue.
            self.go_on(cx, id);
        }
        let Some(mut client) = self.clients.remove(id) else {
            return;
        };
        forget_hold(cx, id);
        self.forget_kept(S::kept_bytes(&client) as u64);
        if let Some(name) = S::name(&client) {
            tracing::debug!(client = name, ?reason, "connection lost");
        }
        let cause = match reason {
            CloseReason::Peer { .. } if S::ENDS_WITH_ITS_CONNECTION => EndCause::Client,
            CloseReason::Shutdown => EndCause::Stop,
            CloseReason::Local => EndCause::Limit,
            _ => EndCause::Lost,
        };
        if let Err(panic) = contain(|| S::lost(self, cx, &mut client, cause)) {
            self.fail(cx, id, Some(client), &panic);
        }
    }

    /// Ends a client in whose step something panicked. The client's own state may be in disorder, so its sessions
    /// are found in the broker. A panic in their end is not contained.
    #[cold]
    fn fail(
        &mut self,
        cx: &mut Context<'_>,
        id: S::Id,
        client: Option<Box<S::Client>>,
        panic: &str,
    ) {
        let name = client.as_deref().and_then(S::name);
        tracing::error!(
            ?id,
            client = name,
            panic,
            "a panic ended a client; this is a bug"
        );
        self.out.clear();
        let ended = contain(|| {
            if let Some(mut client) = client {
                S::lost(self, cx, &mut client, EndCause::Fault);
            }
        });
        if let Err(panic) = ended {
            tracing::error!(?id, panic, "another panic in the client's end");
        }
        self.out.clear();
        self.clients.remove(id);
        forget_hold(cx, id);
        let service = &self.service;
        cx.broker.close_all(
            cx.now_ms,
            |consumer| service.is_consumer_of(consumer, id),
            Close::of(EndCause::Fault),
        );
        self.service.forget_consumers(id);
        S::hang_up(cx, id, true);
    }
}

/// A client that is gone waits for no reader.
fn forget_hold(cx: &mut Context<'_>, id: impl Into<Option<ConnectionId>>) {
    if let Some(connection) = id.into() {
        cx.end_hold(connection, true);
    }
}

/// Tells the broker from where a client speaks, for each of its sessions.
fn note_origins<S: Service>(cx: &mut Context<'_>, id: ConnectionId, client: &S::Client) {
    if cx.policy.rules.look_at_origins() {
        S::each_session(client, &mut |session| cx.note_origin(id, session));
    }
}
