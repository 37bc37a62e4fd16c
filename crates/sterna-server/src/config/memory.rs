//! The ceiling of memory, and where the stages below it begin.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Broker;

/// The least ceiling, in bytes: the program itself has to fit.
pub(crate) const LEAST_CEILING_BYTES: u64 = 64 << 20;

/// The memory that the process may take: N bytes, or a share of the system's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryCeiling {
    /// Bytes.
    Bytes(u64),
    /// Percent of the least of the machine's memory, the limits of the control groups, and the limit on
    /// addresses.
    Percent(u8),
}

/// Units of sizes, and their bytes.
const UNITS: [(&str, u64); 5] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("B", 1),
];

impl MemoryCeiling {
    /// Reads `80%`, `512 MiB` or a number of bytes.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.trim().parse().ok()?;
            return (1..=100)
                .contains(&percent)
                .then_some(Self::Percent(percent));
        }
        let (number, unit_bytes) = UNITS
            .into_iter()
            .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)))
            .unwrap_or((text, 1));
        let number: u64 = number.trim().parse().ok()?;
        number.checked_mul(unit_bytes).map(Self::Bytes)
    }
}

impl fmt::Display for MemoryCeiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes} B"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Serialize for MemoryCeiling {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MemoryCeiling {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ceiling;

        impl Visitor<'_> for Ceiling {
            type Value = MemoryCeiling;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a share such as \"80%\", a size such as \"512 MiB\", or a number of bytes",
                )
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<MemoryCeiling, E> {
                Ok(MemoryCeiling::Bytes(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<MemoryCeiling, E> {
                let unexpected = de::Unexpected::Signed(bytes);
                let bytes = u64::try_from(bytes);
                let bytes = bytes.map_err(|_| E::invalid_value(unexpected, &self))?;
                Ok(MemoryCeiling::Bytes(bytes))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<MemoryCeiling, E> {
                MemoryCeiling::parse(text)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(Ceiling)
    }
}

impl Broker {
    /// Beginnings of the stages of short memory, in percent of the ceiling, in their order.
    #[must_use]
    pub const fn memory_stages_percent(&self) -> [u8; 4] {
        [
            self.memory_pause_percent,
            self.memory_move_percent,
            self.memory_drop_percent,
            self.memory_refuse_percent,
        ]
    }

    /// The faults of the settings of memory, each a sentence that names one setting.
    pub(super) fn memory_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let MemoryCeiling::Bytes(bytes) = self.memory_ceiling
            && bytes < LEAST_CEILING_BYTES
        {
            problems.push(format!(
                "broker.memory_ceiling is at least {} MiB",
                LEAST_CEILING_BYTES >> 20
            ));
        }
        let stages = self.memory_stages_percent();
        if !stages.is_sorted() || stages[3] > 100 {
            problems.push(
                "broker.memory_pause_percent, memory_move_percent, memory_drop_percent and \
                 memory_refuse_percent rise, up to 100"
                    .to_owned(),
            );
        }
        if !(1..=stages[0]).contains(&self.memory_retained_percent) {
            problems.push(
                "broker.memory_retained_percent is at least 1, and at most memory_pause_percent"
                    .to_owned(),
            );
        }
        for (name, percent) in [
            ("wills", self.memory_wills_percent),
            ("subscriptions", self.memory_subscriptions_percent),
            ("replay", self.memory_replay_percent),
        ] {
            if !(1..=stages[0]).contains(&percent) {
                problems.push(format!(
                    "broker.memory_{name}_percent is at least 1, and at most memory_pause_percent"
                ));
            }
        }
        if !(1..stages[0]).contains(&self.memory_hysteresis_percent) {
            problems.push(
                "broker.memory_hysteresis_percent is at least 1, and less than memory_pause_percent"
                    .to_owned(),
            );
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_is_a_share_or_a_size() {
        for (text, expected) in [
            ("80%", Some(MemoryCeiling::Percent(80))),
            (" 5 % ", Some(MemoryCeiling::Percent(5))),
            ("512 MiB", Some(MemoryCeiling::Bytes(512 << 20))),
            ("2GiB", Some(MemoryCeiling::Bytes(2 << 30))),
            ("77", Some(MemoryCeiling::Bytes(77))),
            ("77 B", Some(MemoryCeiling::Bytes(77))),
            ("0%", None),
            ("101%", None),
            ("-1", None),
            ("5 MB", None),
            ("99999999999 TiB", None),
        ] {
            assert_eq!(MemoryCeiling::parse(text), expected, "{text}");
            if let Some(ceiling) = expected {
                assert_eq!(MemoryCeiling::parse(&ceiling.to_string()), Some(ceiling));
            }
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        assert_eq!(Broker::default().memory_problems(), [""; 0]);
        let broker = Broker {
            memory_ceiling: MemoryCeiling::Bytes(1 << 20),
            memory_move_percent: 10,
            memory_retained_percent: 71,
            memory_hysteresis_percent: 0,
            ..Broker::default()
        };
        let problems = broker.memory_problems();
        assert_eq!(problems.len(), 4, "{problems:?}");
    }
}
