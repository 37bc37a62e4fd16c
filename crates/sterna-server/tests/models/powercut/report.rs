//! What was found in a run, and its report.

use std::fmt::Write as _;

use sterna_ledger::{Counts, Ledger, Promise, Protocol};

use crate::powercut::world::Settings;

/// The ledger of a run, and counts beside it.
#[derive(Debug)]
pub struct Outcome {
    pub ledger: Ledger,
    pub cuts: u32,
    pub kills: u32,
    pub lost_connections: u64,
    pub clock_jumps: u64,
    pub comparisons: u64,
    /// Segments of the log that were rewritten to what sleepers need.
    pub rewritten_segments: u64,
}

impl Outcome {
    pub fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            cuts: 0,
            kills: 0,
            lost_connections: 0,
            clock_jumps: 0,
            comparisons: 0,
            rewritten_segments: 0,
        }
    }

    pub fn is_clean(&self) -> bool {
        self.ledger.all_breaches() == 0
    }

    /// Whether acknowledged messages were lost.
    pub fn is_losing(&self) -> bool {
        self.broken(Promise::Kept) > 0
    }

    fn broken(&self, promise: Promise) -> u64 {
        let each = Protocol::ALL.map(|protocol| self.ledger.breaches(promise, protocol));
        each.iter().sum()
    }

    /// Whether enough was done to show something, by each protocol.
    pub fn is_busy(&self, cuts: u32) -> bool {
        let counts = Protocol::ALL.map(|protocol| self.ledger.counts(protocol));
        let is_used = |counts: &Counts| counts.acknowledged > 0 && counts.delivered > 0;
        let [acknowledged, delivered] = [
            counts.iter().map(|counts| counts.acknowledged).sum::<u64>(),
            counts.iter().map(|counts| counts.delivered).sum(),
        ];
        let least = u64::from(cuts);
        self.cuts == cuts
            && acknowledged > least
            && delivered > 4 * least
            && self.rewritten_segments > least / 12
            && counts.iter().all(is_used)
    }

    pub fn report(&self, settings: &Settings) -> String {
        let mut text = format!(
            "{} power cuts and {} kills, seed {}, durability {:?}{}\n",
            self.cuts,
            self.kills,
            settings.seed,
            settings.durability,
            if settings.is_early {
                ", acknowledged early"
            } else {
                ""
            },
        );
        for protocol in Protocol::ALL {
            let counts = self.ledger.counts(protocol);
            let _ = writeln!(
                text,
                "  {protocol:30} {:>9} acknowledged, {} delivered",
                counts.acknowledged, counts.delivered
            );
        }
        let counts = Protocol::ALL.map(|protocol| self.ledger.counts(protocol));
        let sum = |of: fn(&Counts) -> u64| counts.iter().map(of).sum();
        let counts = [
            ("lost connections", self.lost_connections),
            ("jumps of the wall clock", self.clock_jumps),
            ("comparisons", self.comparisons),
            ("rewritten segments", self.rewritten_segments),
            ("acknowledged", sum(|counts| counts.acknowledged)),
            (
                "of these in the last interval",
                sum(|counts| counts.excused),
            ),
            ("delivered", sum(|counts| counts.delivered)),
        ];
        for (name, count) in counts {
            let _ = writeln!(text, "  {name:30} {count:>9}");
        }
        for promise in Promise::ALL {
            let _ = writeln!(
                text,
                "  {:30} {:>9}",
                promise.breach(),
                self.broken(promise)
            );
        }
        for violation in self.ledger.violations() {
            let _ = writeln!(text, "  {violation}");
        }
        text
    }
}
