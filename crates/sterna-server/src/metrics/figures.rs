//! One shard's answer to a question for metrics.

use sterna_broker::Counters;

use super::drops::DropTable;
use crate::config::Protocol;
use crate::holding;
use crate::sys::Counts;

/// The counters of a shard's doors and of its broker, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// By protocol, in the order of [`Protocol::OF_MESSAGES`].
    pub(crate) doors: [Counts; Protocol::OF_MESSAGES.len()],
    /// The shard's part of `$SYS`.
    pub(crate) sys: Counts,
    pub(crate) broker: Counters,
    pub(crate) drops: DropTable,
    pub(crate) holding: holding::Figures,
    /// Letters of other threads that the shard has not taken yet.
    pub(crate) letters: u64,
}
