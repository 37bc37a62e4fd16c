//! Faults of the way between clients and the broker, in force for everybody at once.

use std::fmt;

use crate::link::Random;

/// The weather at the gates: treatment of everything that passes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Weather {
    /// Everything passes.
    #[default]
    Clear,
    /// Connections break, and datagrams are dropped.
    Cut,
    /// Nothing passes. Connections stay, and go on afterwards.
    Partition,
    /// Clients lose their connections, and the broker does not hear of it. Of datagrams, no answer passes.
    HalfOpen,
    /// Datagrams are lost, doubled, late and changed. Bytes are late, and those of TLS are changed.
    Disturbed,
    /// Datagrams come from another address from now on, the Nth of them.
    Moved(u32),
}

impl Weather {
    /// All that is not clear.
    pub(super) const FAULTS: usize = 5;

    /// The Nth fault of a run.
    pub(super) fn choose(random: &mut Random, number: u32) -> Self {
        match random.next_u64() % Self::FAULTS as u64 {
            0 => Self::Cut,
            1 => Self::Partition,
            2 => Self::HalfOpen,
            3 => Self::Disturbed,
            _ => Self::Moved(number),
        }
    }

    /// Its place among the faults.
    pub(super) const fn index(self) -> Option<usize> {
        match self {
            Self::Clear => None,
            Self::Cut => Some(0),
            Self::Partition => Some(1),
            Self::HalfOpen => Some(2),
            Self::Disturbed => Some(3),
            Self::Moved(_) => Some(4),
        }
    }

    /// Names of the faults, by their places.
    pub(super) const NAMES: [&'static str; Self::FAULTS] = [
        "cuts",
        "partitions",
        "half-open peers",
        "disturbances",
        "changes of address",
    ];
}

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.index().map_or("clear", |index| Self::NAMES[index]))
    }
}

/// Changes one bit.
pub(super) fn flip(random: &mut Random, bytes: &mut [u8]) {
    if !bytes.is_empty() {
        let bit = random.next_u64() as usize % (8 * bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}
