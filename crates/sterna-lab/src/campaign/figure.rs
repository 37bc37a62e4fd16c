//! Figures of a report.

use serde::Deserialize;

use super::{Axis, Filter};

/// A figure, in a form that the paper has.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The paper's number, `4` or `7a`.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Where its samples come from.
    pub grid: String,
    /// Its form.
    pub form: Form,
    /// Which of a sample's values: a metric, or a series with [`Form::Box`].
    pub metric: String,
    /// Unit of the other axis.
    pub unit: String,
    /// Along which cells are laid out.
    pub x: Axis,
    /// Axis with a colour for each value.
    #[serde(default = "transport_axis")]
    pub series: Axis,
    /// Axis with a panel for each value.
    #[serde(default)]
    pub panels: Option<Axis>,
    /// Which cells.
    #[serde(default)]
    pub only: Filter,
    /// Draw the ratio of two transports, repetition by repetition: of the first to the second.
    #[serde(default)]
    pub ratio: Option<[String; 2]>,
    /// A logarithmic axis.
    #[serde(default)]
    pub log: bool,
    /// Whether it opens a report of several campaigns, before all else.
    #[serde(default)]
    pub opening: bool,
}

const fn transport_axis() -> Axis {
    Axis::Transport
}

/// The forms.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// Box, whiskers at the 5th and 95th percentile, and the values outside of them.
    Box,
    /// Bars with confidence intervals.
    Bars,
    /// Lines with confidence intervals.
    Lines,
    /// Each message of the first sound run of each series over the time.
    Timeline,
    /// Window, bytes in flight, sent, acknowledged and lost, and arrived messages, over the time.
    /// Of the first sound, watched run in each panel.
    Congestion,
}
