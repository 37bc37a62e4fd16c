//! Why consumers leave, and what waits because they were lost.

use sterna_broker::{EndCause, HoldBack};

use super::figures::Figures;
use super::page::Page;

/// Writes the counters.
pub(super) fn write(page: &mut Page<'_>, figures: &[Figures], ends: &[u64; EndCause::ALL.len()]) {
    let mut sums = [0; HoldBack::ALL.len()];
    for of_shard in figures {
        for (sum, number) in sums.iter_mut().zip(of_shard.broker.held_back) {
            *sum += number;
        }
    }
    page.counters(
        "sterna_messages_held_back",
        "Messages of shared subscriptions that waited before they were delivered again, by reason",
        ["reason"],
        HoldBack::ALL.map(|reason| ([reason.name()], sums[reason as usize])),
    );
    page.counters(
        "sterna_consumers_ended",
        "Connections, links and subscriptions that have left their sessions, by cause",
        ["cause"],
        EndCause::ALL.map(|cause| ([cause.name()], ends[cause.number()])),
    );
}
