//! Letters to a shard from other shards and from the control thread.

pub(crate) mod admin;
pub(crate) mod amqp;
pub(crate) mod http;
pub(crate) mod ranking;

use std::fmt;
use std::sync::Arc;

use sterna_cluster::ToShard;
use sterna_net::{ConnectionId, Courier};

use crate::control::Awaited;
use crate::identity::{Identity, Refusal};
use crate::policy::Policy;
use crate::session::SessionState;
use crate::weighing::Weighing;
pub use admin::AdminLetter;
pub use amqp::AmqpLetter;
pub use http::HttpLetter;

/// A letter to a shard.
#[derive(Debug)]
pub enum Mail {
    /// From another shard's broker.
    Broker(Box<sterna_broker::Mail<SessionState>>),
    /// The verdict on a client that took longer: on a password, or by the webhook.
    Judged {
        /// The connection that waits for it.
        connection: ConnectionId,
        /// The number of its claim, where there can be several.
        number: u64,
        /// The client's identity, or `None` where it is the claimed one; or the reason of a refusal.
        outcome: Result<Option<Identity>, Refusal>,
    },
    /// A word about an AMQP link that is attached anew.
    Amqp(Box<AmqpLetter>),
    /// A question about an HTTP session, or its answer.
    Http(Box<HttpLetter>),
    /// The store has come further: with appends, or with messages that were asked for.
    Store,
    /// From the engine of the cluster: messages and wishes of other nodes.
    Cluster(Box<ToShard>),
    /// A question to all shards, or the answer of one.
    Admin(Box<AdminLetter>),
    /// Another stage of short memory is in force.
    Memory,
    /// All shards have restored their share of the store.
    Restored,
    /// Bans have changed.
    Bans,
    /// Another node has made a ban, or has ended one; for the first shard.
    Ban(Box<sterna_cluster::BanRecord>),
    /// An operator has accepted the wall clock.
    Clock,
    /// Say what a policy would take, that is not in force.
    Weigh(Box<Weighing>),
    /// A new policy is in force.
    Policy(Arc<Policy>),
    /// Drop this when all sessions are judged by the policies that came before: who has the other end waits for that.
    Judging(Awaited),
    /// Say that the broker is not ready for new clients: it will stop.
    Drain,
    /// Tell clients goodbye and end.
    Stop,
    /// From another shard: all that it sends before its farewell of this round, from 0, has come.
    Farewell(usize),
}

/// The way to all shards. Real shards have a [`Courier`]; a simulation carries mail its own way.
pub trait Outbox: Send + fmt::Debug {
    /// Puts a letter aside for a shard.
    fn post(&mut self, shard: usize, letter: Mail);

    /// Whether letters were put aside, as far as that is known.
    fn has_letters(&self) -> bool {
        true
    }

    /// Sends the letters that were put aside.
    fn flush(&mut self);

    /// Letters that a shard has not taken yet, as far as that is known.
    fn backlog(&self, shard: usize) -> usize {
        let _ = shard;
        0
    }

    /// A way for other threads to write to a shard; `None` where there are no other threads.
    fn postbox(&self, shard: usize) -> Option<Box<dyn FnOnce(Mail) + Send>>;
}

/// Letters between real shards.
#[derive(Debug)]
pub struct Letters {
    courier: Courier<Mail>,
}

impl Letters {
    /// Letters carried by this courier.
    #[must_use]
    pub const fn new(courier: Courier<Mail>) -> Self {
        Self { courier }
    }
}

impl Outbox for Letters {
    fn post(&mut self, shard: usize, letter: Mail) {
        self.courier.post(shard, letter);
    }

    fn has_letters(&self) -> bool {
        self.courier.has_letters()
    }

    fn flush(&mut self) {
        self.courier.flush();
    }

    fn backlog(&self, shard: usize) -> usize {
        self.courier.backlog(shard)
    }

    fn postbox(&self, shard: usize) -> Option<Box<dyn FnOnce(Mail) + Send>> {
        let mut courier = self.courier.clone();
        Some(Box::new(move |letter| {
            courier.post(shard, letter);
            courier.flush();
        }))
    }
}
