//! Differences between the cells of a grid.

use serde::{Deserialize, Serialize};

/// A property that distinguishes the cells of a grid.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// The profile of the link.
    Link,
    /// Its loss.
    Loss,
    /// The transport.
    Transport,
    /// The quality of service.
    Qos,
    /// The length of messages.
    PayloadBytes,
    /// The time between them.
    Interval,
    /// Addition to the link's delay.
    Delay,
    /// Its rate.
    Rate,
    /// Number of messages.
    Messages,
}

impl Axis {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Link,
        Self::Loss,
        Self::Transport,
        Self::Qos,
        Self::PayloadBytes,
        Self::Interval,
        Self::Delay,
        Self::Rate,
        Self::Messages,
    ];

    /// Text below a figure.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Loss => "loss",
            Self::Transport => "transport",
            Self::Qos => "QoS",
            Self::PayloadBytes => "message length, bytes",
            Self::Interval => "interval",
            Self::Delay => "added delay",
            Self::Rate => "rate",
            Self::Messages => "messages",
        }
    }
}

/// Some cells of a grid: those with these values.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// The profile of the link.
    pub link: Option<String>,
    /// Its loss.
    pub loss: Option<String>,
    /// The transport.
    pub transport: Option<String>,
    /// The quality of service.
    pub qos: Option<u8>,
    /// The length of messages.
    pub payload_bytes: Option<u32>,
    /// The time between them.
    pub interval: Option<String>,
    /// Addition to the link's delay.
    pub delay: Option<String>,
    /// Its rate.
    pub rate: Option<String>,
    /// Number of messages.
    pub messages: Option<u32>,
}

impl Filter {
    /// The value that is asked for on an axis.
    #[must_use]
    pub fn value(&self, axis: Axis) -> Option<String> {
        match axis {
            Axis::Link => self.link.clone(),
            Axis::Loss => self.loss.clone(),
            Axis::Transport => self.transport.clone(),
            Axis::Qos => self.qos.map(|qos| qos.to_string()),
            Axis::PayloadBytes => self.payload_bytes.map(|bytes| bytes.to_string()),
            Axis::Interval => self.interval.clone(),
            Axis::Delay => self.delay.clone(),
            Axis::Rate => self.rate.clone(),
            Axis::Messages => self.messages.map(|count| count.to_string()),
        }
    }

    /// The same with one more value. Values that the axis cannot have match nothing.
    #[must_use]
    pub fn with(&self, axis: Axis, value: &str) -> Self {
        let mut filter = self.clone();
        let text = Some(value.to_owned());
        match axis {
            Axis::Link => filter.link = text,
            Axis::Loss => filter.loss = text,
            Axis::Transport => filter.transport = text,
            Axis::Qos => filter.qos = Some(value.parse().unwrap_or(u8::MAX)),
            Axis::PayloadBytes => filter.payload_bytes = Some(value.parse().unwrap_or(u32::MAX)),
            Axis::Interval => filter.interval = text,
            Axis::Delay => filter.delay = text,
            Axis::Rate => filter.rate = text,
            Axis::Messages => filter.messages = Some(value.parse().unwrap_or(u32::MAX)),
        }
        filter
    }
}
