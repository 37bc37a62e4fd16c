//! Which packets are lost: a setting with a memory.

use super::random::Random;
use super::settings::Loss;

/// Decides packet by packet.
#[derive(Debug)]
pub(super) struct LossProcess {
    kind: Loss,
    random: Random,
    /// Gilbert-Elliott: whether the state is the bad one.
    is_bad: bool,
    /// Burst: number of its packets still to come.
    burst_left: u32,
    /// Pattern: which packet is next.
    position: usize,
}

impl LossProcess {
    pub(super) const fn new(kind: Loss, random: Random) -> Self {
        Self {
            kind,
            random,
            is_bad: false,
            burst_left: 0,
            position: 0,
        }
    }

    /// Another kind from the next packet on, with the same stream of random numbers.
    pub(super) fn change(&mut self, kind: Loss) {
        if self.kind != kind {
            self.is_bad = false;
            self.burst_left = 0;
            self.position = 0;
            self.kind = kind;
        }
    }

    /// Whether the next packet is lost. Each packet takes two random numbers with any kind of loss. A
    /// change of the kind during a run therefore does not shift the numbers of later packets.
    pub(super) fn next(&mut self) -> bool {
        let (first, second) = (self.random.unit(), self.random.unit());
        match &self.kind {
            Loss::None => false,
            Loss::Independent { probability } => first < *probability,
            Loss::GilbertElliott {
                to_bad,
                to_good,
                loss_good,
                loss_bad,
            } => {
                let change = if self.is_bad { to_good } else { to_bad };
                if second < *change {
                    self.is_bad = !self.is_bad;
                }
                first < if self.is_bad { *loss_bad } else { *loss_good }
            }
            Loss::Burst {
                probability,
                packets,
            } => {
                if self.burst_left == 0 && first < *probability {
                    self.burst_left = *packets;
                }
                let is_lost = self.burst_left > 0;
                self.burst_left = self.burst_left.saturating_sub(1);
                is_lost
            }
            Loss::Pattern { lost, repeat } => {
                if self.position >= lost.len() && *repeat {
                    self.position = 0;
                }
                let is_lost = lost.get(self.position).copied().unwrap_or(false);
                self.position = self.position.saturating_add(1);
                is_lost
            }
        }
    }
}
