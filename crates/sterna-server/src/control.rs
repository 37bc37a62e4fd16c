//! Orders to the process that a front door passes on, and failures for which it should end: a shard can neither
//! reload the configuration nor end the process.

use std::fmt;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use sterna_broker::LostRights;

/// Orders that may wait for the process; more are refused.
const MAXIMUM_WAITING: usize = 16;

/// Why the process should end though nobody has asked for it, a sentence each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// A thread has failed. A failed shard serves no client, and others may be served wrongly.
    Bug(String),
    /// The data directory is not this broker's any more: what it writes from now on harms whoever has it.
    Robbed(String),
    /// The cluster goes on without this node: what is published here reaches no other node.
    LeftOut(String),
    /// The node of a cluster goes by a wrong clock. It has to stop in order, and to begin anew with the wall clock as that is
    /// then.
    Anew(String),
}

/// Told while shards live: who holds it does not keep others from hearing of their end.
pub(crate) type Report = Weak<Sender<Failure>>;

/// Held by a thread that the process cannot do without: a panic there ends the process.
#[derive(Debug)]
pub(crate) struct Needed {
    name: &'static str,
    report: Report,
}

impl Needed {
    /// For a thread of this name.
    pub(crate) fn new(name: &'static str, report: &Report) -> Self {
        Self {
            name,
            report: Weak::clone(report),
        }
    }
}

impl Drop for Needed {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(report) = self.report.upgrade()
        {
            let why = format!("the thread {} has panicked, which is a bug", self.name);
            // Nobody may be listening.
            let _ = report.send(Failure::Bug(why));
        }
    }
}

/// An order to the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Read the configuration and the files that it names again, and put them in force.
    Reload,
    /// Read them, and say what a reload would do.
    DryRun,
    /// Take no new clients, tell those that are there goodbye, and end, as after SIGTERM.
    Drain,
}

/// The effects of a reload.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Reloaded {
    /// The names of settings of the configuration that changed and need a restart.
    pub unchanged: Vec<String>,
    /// The rights that subscriptions lose by it.
    pub lost: LostRights,
    /// Whether sessions that are away are still to be judged by the new rules. Until they are, what is published may not be
    /// kept for one that has got a right back.
    pub is_judging: bool,
}

/// A word that is still to come: it is said when the last copy is dropped.
#[derive(Clone, Debug)]
pub struct Awaited {
    _said: Sender<()>,
}

impl Awaited {
    /// The word, and the end at which somebody waits. It hangs up when the word is said.
    pub(crate) fn new() -> (Self, Receiver<()>) {
        let (sender, receiver) = channel();
        (Self { _said: sender }, receiver)
    }
}

/// The result of an order. `Ok` has its effects, `Err` the reason of a refusal.
pub type Obeyed = Result<Reloaded, String>;

/// An order, and the way to answer it.
pub struct OrderLetter {
    /// The order.
    pub order: Order,
    reply: Box<dyn FnOnce(Obeyed) + Send>,
}

impl fmt::Debug for OrderLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderLetter")
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

impl OrderLetter {
    /// An order whose result goes to `reply`.
    pub(crate) fn new(order: Order, reply: impl FnOnce(Obeyed) + Send + 'static) -> Self {
        let reply = Box::new(reply);
        Self { order, reply }
    }

    /// Tells the result to the sender of the order.
    pub fn answer(self, obeyed: Obeyed) {
        (self.reply)(obeyed);
    }
}

/// The end at the process, which takes orders as they come.
pub type Waiting = Receiver<OrderLetter>;

/// The way for orders to the process.
#[derive(Clone, Debug)]
pub(crate) struct Orders(SyncSender<OrderLetter>);

impl Orders {
    /// The way, and its end at the process.
    pub(crate) fn new() -> (Self, Waiting) {
        let (sender, receiver) = sync_channel(MAXIMUM_WAITING);
        (Self(sender), receiver)
    }

    /// Gives an order; false where as many wait as may, or nobody takes them.
    pub(crate) fn give(&self, letter: OrderLetter) -> bool {
        self.0.try_send(letter).is_ok()
    }
}
