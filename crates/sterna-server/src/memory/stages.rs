//! The broker's measures when memory runs short, in stages, from harmless to hard.

use std::fmt;

use sterna_broker::Pressure;

/// A stage of short memory. Each stage includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum Stage {
    /// There is enough.
    #[default]
    Normal,
    /// Clients of heavy principals that publish are not read.
    PausePublishers,
    /// Messages that wait for sessions and are in the log leave memory. Heavy principals get no new sessions,
    /// subscriptions and wills.
    MoveToLog,
    /// Messages that wait are dropped by their queues' policy, and new ones are refused. No client that publishes is read.
    /// Clients of the heaviest principal are ended.
    Drop,
    /// New clients are refused.
    RefuseNewcomers,
}

impl Stage {
    /// All stages but the normal one, in their order.
    pub const SHORT: [Self; 4] = [
        Self::PausePublishers,
        Self::MoveToLog,
        Self::Drop,
        Self::RefuseNewcomers,
    ];

    /// Name of the stage in the log and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::PausePublishers => "pause-publishers",
            Self::MoveToLog => "move-to-log",
            Self::Drop => "drop",
            Self::RefuseNewcomers => "refuse-newcomers",
        }
    }

    /// Number of the stage: 0 for the normal one.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The stage of a number.
    pub(crate) const fn of_number(number: u8) -> Self {
        match number {
            0 => Self::Normal,
            1 => Self::PausePublishers,
            2 => Self::MoveToLog,
            3 => Self::Drop,
            _ => Self::RefuseNewcomers,
        }
    }

    /// Its demand on the broker's queues.
    pub(crate) const fn pressure(self) -> Pressure {
        match self {
            Self::Normal => Pressure::None,
            Self::PausePublishers => Pressure::Settle,
            Self::MoveToLog => Pressure::MoveToLog,
            Self::Drop => Pressure::Drop,
            Self::RefuseNewcomers => Pressure::Refuse,
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where stages begin and end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Thresholds {
    /// Of each stage, where it begins, in bytes; rising.
    begin_bytes: [u64; Stage::SHORT.len()],
    /// How far below its beginning a stage ends, in bytes.
    hysteresis_bytes: u64,
}

impl Thresholds {
    /// Thresholds in percent of a ceiling.
    pub(crate) fn of(
        ceiling_bytes: u64,
        percent: [u8; Stage::SHORT.len()],
        hysteresis: u8,
    ) -> Self {
        let part = |percent: u8| {
            let bytes = u128::from(ceiling_bytes) * u128::from(percent) / 100;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        Self {
            begin_bytes: percent.map(part),
            hysteresis_bytes: part(hysteresis),
        }
    }

    /// The stage after another, with this number of bytes in use.
    pub(crate) fn next(&self, stage: Stage, used_bytes: u64) -> Stage {
        let stages = Stage::SHORT.iter().zip(self.begin_bytes);
        let reached = stages.filter(|(of, begin_bytes)| {
            let end_bytes = begin_bytes.saturating_sub(self.hysteresis_bytes);
            used_bytes
                >= if **of <= stage {
                    end_bytes
                } else {
                    *begin_bytes
                }
        });
        reached.map(|(of, _)| *of).next_back().unwrap_or_default()
    }

    /// Where the stage ends in which messages are dropped, in bytes.
    pub(crate) const fn drop_end_bytes(&self) -> u64 {
        self.begin_bytes[Stage::Drop as usize - 1].saturating_sub(self.hysteresis_bytes)
    }

    /// Where the first stage ends, in bytes.
    pub(crate) const fn first_end_bytes(&self) -> u64 {
        self.begin_bytes[0].saturating_sub(self.hysteresis_bytes)
    }

    /// Where the first stage begins, in bytes.
    pub(crate) const fn first_bytes(&self) -> u64 {
        self.begin_bytes[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_begins_at_its_threshold_and_ends_below_it() {
        let thresholds = Thresholds::of(1_000, [70, 80, 90, 95], 5);
        let mut stage = Stage::Normal;
        for (used_bytes, expected) in [
            (699, Stage::Normal),
            (700, Stage::PausePublishers),
            (650, Stage::PausePublishers),
            (649, Stage::Normal),
            (800, Stage::MoveToLog),
            (760, Stage::MoveToLog),
            (749, Stage::PausePublishers),
            (1_200, Stage::RefuseNewcomers),
            (900, Stage::RefuseNewcomers),
            (899, Stage::Drop),
            (849, Stage::MoveToLog),
            (10, Stage::Normal),
        ] {
            stage = thresholds.next(stage, used_bytes);
            assert_eq!(stage, expected, "{used_bytes}");
        }
    }

    #[test]
    fn numbers_and_names_are_those_of_the_stages() {
        for (number, stage) in Stage::SHORT.into_iter().enumerate() {
            assert_eq!(Stage::of_number(stage.number()), stage);
            assert_eq!(usize::from(stage.number()), number + 1);
        }
        assert_eq!(Stage::of_number(0), Stage::Normal);
    }
}
