//! Pictures as SVG, without anything from outside: the same on paper, in a browser, in a repository.

mod axis;
mod over_time;

use std::fmt::Write as _;

use axis::{Axis, tick_label};
pub(super) use over_time::Look;

use super::statistics::{Estimate, percentile, sorted};

/// Colours that people with a colour-vision deficiency tell apart (Okabe and Ito), then the same
/// darker, and lighter.
const COLOURS: [&str; 18] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#003f62", "#753400",
    "#00573f", "#704360", "#7f5700", "#2f6380", "#7fb8d8", "#eaae7f", "#7fceb9", "#e5bcd3",
    "#f2cf7f", "#aad9f4",
];
/// Width of a panel's plot for few categories, in pixels; each further category makes it wider.
const PANEL_WIDTH: f64 = 250.0;
/// Width of a box or bar.
const SLOT_WIDTH: f64 = 15.0;
const PANEL_HEIGHT: f64 = 200.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 52.0;
/// Of a line of the title.
const TITLE_HEIGHT: f64 = 20.0;
/// Mean width of a character of the title in the widest of usual fonts (DejaVu Sans Bold). Readers'
/// fonts differ, and text that is too wide is cut off.
const TITLE_CHARACTER_WIDTH: f64 = 10.0;
/// Of a line of the legend.
const LEGEND_HEIGHT: f64 = 24.0;
/// Width of a picture beyond which panels go to the next row.
const MAX_WIDTH: f64 = 1080.0;
/// Points outside of the whiskers that are drawn of one box: the farthest ones.
const MAX_OUTLIERS: usize = 60;
/// Mean width of a character in the widest of usual fonts (DejaVu Sans).
const CHARACTER_WIDTH: f64 = 6.8;
/// Of a line of the vertical axis' title.
const LINE_HEIGHT: f64 = 13.0;

/// A picture.
#[derive(Clone, Debug)]
pub(super) struct Picture {
    pub(super) title: String,
    /// The title of the vertical axis: the quantity and its unit.
    pub(super) y_title: String,
    /// Title at the horizontal axis.
    pub(super) x_title: String,
    pub(super) log: bool,
    /// Whether all panels have one scale.
    pub(super) same_scale: bool,
    /// Meaning of each colour.
    pub(super) series: Vec<String>,
    pub(super) panels: Vec<Panel>,
}

/// A part of it with axes of its own.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) content: Content,
}

/// Its content.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Marks over categories: for each series as many as there are categories.
    Categories {
        names: Vec<String>,
        marks: Vec<Vec<Option<Mark>>>,
        /// Whether marks of a series are joined.
        joined: bool,
        /// The place of the first series in the legend.
        first: usize,
    },
    /// Values over the time, for each series.
    OverTime(Vec<Vec<(f64, f64)>>, Look),
}

/// Marks over a category.
#[derive(Clone, Debug)]
pub(super) enum Mark {
    /// Quartiles, whiskers at 5 and 95 %, and the values outside of them; in black the interval of the mean.
    Box(Quantiles, Option<Estimate>),
    /// From zero to a value, with its interval.
    Bar(Estimate),
    /// A value with its interval.
    Point(Estimate),
}

/// Values of a box.
#[derive(Clone, Debug)]
pub(super) struct Quantiles {
    /// At 5, 25, 50, 75 and 95 %.
    at: [f64; 5],
    outliers: Vec<f64>,
}

impl Quantiles {
    /// Of these values; none without any.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let values = sorted(values);
        let at = [0.05, 0.25, 0.5, 0.75, 0.95].map(|part| percentile(&values, part));
        let mut outliers: Vec<f64> = values
            .iter()
            .copied()
            .filter(|value| *value < at[0] || *value > at[4])
            .collect();
        // Both ends of the range are where one looks first.
        if outliers.len() > MAX_OUTLIERS {
            let low = MAX_OUTLIERS / 4;
            let rest = outliers.len() - (MAX_OUTLIERS - low);
            outliers.drain(low..rest);
        }
        Some(Self { at, outliers })
    }
}

impl Mark {
    /// Range that must fit into the picture.
    fn range(&self) -> (f64, f64) {
        match self {
            Self::Box(quantiles, mean) => {
                let limits = mean.iter().flat_map(|mean| [mean.least(), mean.most()]);
                let values = quantiles.outliers.iter().copied().chain(limits);
                values.fold((quantiles.at[0], quantiles.at[4]), |(low, high), value| {
                    (low.min(value), high.max(value))
                })
            }
            // Impossible values of a bar are not shown: an interval of few values may reach below
            // zero.
            Self::Bar(estimate) => (0.0_f64.min(estimate.value), estimate.most()),
            Self::Point(estimate) => (estimate.least(), estimate.most()),
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Where a panel's plot is.
struct Frame {
    x: f64,
    y: f64,
    width: f64,
}

/// Where a name of the legend is.
struct Entry {
    x: f64,
    y: f64,
    width: f64,
}

impl Picture {
    /// The picture as one SVG element.
    pub(super) fn svg(&self) -> String {
        let widths: Vec<f64> = self.panels.iter().map(Panel::width).collect();
        let mut rows: Vec<Vec<usize>> = Vec::new();
        let mut used = 0.0;
        for (index, width) in widths.iter().enumerate() {
            let whole = width + LEFT + RIGHT;
            match rows.last_mut() {
                Some(row) if used + whole <= MAX_WIDTH => row.push(index),
                _ => {
                    rows.push(vec![index]);
                    used = 0.0;
                }
            }
            used += whole;
        }
        let row_width = |row: &Vec<usize>| -> f64 {
            row.iter().map(|index| widths[*index] + LEFT + RIGHT).sum()
        };
        let mut legend = self.legend();
        let entries = legend.iter().map(|entry| entry.x + entry.width);
        let width = rows
            .iter()
            .map(row_width)
            .chain(entries)
            .fold(0.0, f64::max);
        let title = self.title_lines((width - LEFT).max(PANEL_WIDTH));
        let title_height = (title.len() as f64).mul_add(TITLE_HEIGHT, 6.0);
        for entry in &mut legend {
            entry.y += title_height;
        }
        let title_width = title.iter().map(|line| {
            let characters = line.chars().count() as f64;
            characters.mul_add(TITLE_CHARACTER_WIDTH, LEFT + RIGHT)
        });
        let width = title_width.fold(width, f64::max);
        let row_height = TOP + PANEL_HEIGHT + BOTTOM;
        let legend_height = legend
            .last()
            .map_or(title_height, |entry| entry.y + LEGEND_HEIGHT);
        let height = (rows.len() as f64).mul_add(row_height, legend_height);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" \
             font-family=\"sans-serif\" font-size=\"11\">\n<title>{}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
            escape(&self.title)
        );
        for (index, line) in title.iter().enumerate() {
            let _ = writeln!(
                svg,
                "<text x=\"{LEFT}\" y=\"{:.0}\" font-size=\"14\" font-weight=\"bold\">{}</text>",
                (index as f64 + 1.0) * TITLE_HEIGHT,
                escape(line)
            );
        }
        self.explain(&legend, &mut svg);
        for (row_index, row) in rows.iter().enumerate() {
            let mut x = LEFT;
            for index in row {
                let frame = Frame {
                    x,
                    y: (row_index as f64).mul_add(row_height, legend_height + TOP),
                    width: widths[*index],
                };
                self.panel(&mut svg, &self.panels[*index], &frame);
                x += widths[*index] + LEFT + RIGHT;
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// The title in lines of this width.
    fn title_lines(&self, width: f64) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in self.title.split_ascii_whitespace() {
            match lines.last_mut() {
                Some(line)
                    if (line.len() + word.len() + 1) as f64 * TITLE_CHARACTER_WIDTH <= width =>
                {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(word.to_owned()),
            }
        }
        lines
    }

    /// The longest time of all panels: they have one axis of time, so that they can be compared.
    fn longest_s(&self) -> f64 {
        let series = self.panels.iter().filter_map(|panel| match &panel.content {
            Content::OverTime(series, _) => Some(series),
            Content::Categories { .. } => None,
        });
        series
            .flatten()
            .flatten()
            .map(|(at_s, _)| *at_s)
            .fold(0.0, f64::max)
    }

    /// Where each series' name stands, in as many lines as it takes; nothing for a single series.
    fn legend(&self) -> Vec<Entry> {
        let (mut x, mut y) = (LEFT, 0.0);
        let names = self.series.iter().filter(|_| self.series.len() > 1);
        names
            .map(|name| {
                let width = (name.chars().count() as f64).mul_add(CHARACTER_WIDTH, 34.0);
                if x > LEFT && x + width > MAX_WIDTH {
                    (x, y) = (LEFT, y + LEGEND_HEIGHT);
                }
                let entry = Entry { x, y, width };
                x += width;
                entry
            })
            .collect()
    }

    // Writing to a String does not fail, here and below.
    fn explain(&self, legend: &[Entry], svg: &mut String) {
        for (index, (entry, name)) in legend.iter().zip(&self.series).enumerate() {
            let _ = writeln!(
                svg,
                "<rect x=\"{:.0}\" y=\"{:.0}\" width=\"12\" height=\"12\" fill=\"{}\"/>\
                 <text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
                entry.x,
                entry.y + 7.0,
                colour(index),
                entry.x + 17.0,
                entry.y + 17.0,
                escape(name)
            );
        }
    }

    fn panel(&self, svg: &mut String, panel: &Panel, frame: &Frame) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-weight=\"bold\">{}</text>",
            frame.x + frame.width / 2.0,
            frame.y - 9.0,
            escape(&panel.title)
        );
        let range = panel.content.range().map(|own| {
            let others = self.panels.iter().filter(|_| self.same_scale);
            others
                .filter_map(|other| other.content.range())
                .fold(own, union)
        });
        let Some(range) = range else {
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{PANEL_HEIGHT}\" fill=\"none\" \
                 stroke=\"#bbb\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" \
                 fill=\"#777\">no sound sample</text>",
                frame.x,
                frame.y,
                frame.width,
                frame.x + frame.width / 2.0,
                frame.y + PANEL_HEIGHT / 2.0
            );
            return;
        };
        let axis = Axis::new(range, self.log);
        self.scale(svg, &axis, frame);
        match &panel.content {
            Content::Categories {
                names,
                marks,
                joined,
                first,
            } => categories(svg, names, marks, (*joined, *first), &axis, frame),
            Content::OverTime(series, look) => {
                over_time::draw(svg, series, *look, (&axis, self.longest_s()), frame);
            }
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#444\">{}</text>",
            frame.x + frame.width / 2.0,
            frame.y + PANEL_HEIGHT + 42.0,
            escape(&self.x_title)
        );
    }

    fn scale(&self, svg: &mut String, axis: &Axis, frame: &Frame) {
        for tick in &axis.ticks {
            let y = axis.place(*tick).mul_add(PANEL_HEIGHT, frame.y);
            let _ = writeln!(
                svg,
                "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e4e4e4\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#444\">{}</text>",
                frame.x,
                frame.x + frame.width,
                frame.x - 5.0,
                y + 4.0,
                if axis.log {
                    super::numbers::number(*tick)
                } else {
                    tick_label(*tick, &axis.ticks)
                }
            );
        }
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{PANEL_HEIGHT}\" fill=\"none\" \
             stroke=\"#999\"/>",
            frame.x, frame.y, frame.width
        );
        let y = frame.y + PANEL_HEIGHT / 2.0;
        let most = (PANEL_HEIGHT + BOTTOM) / CHARACTER_WIDTH;
        // From the axis to the left, and the last line is next to it.
        for (index, line) in in_lines(&self.y_title, most).iter().rev().enumerate() {
            let x = (index as f64).mul_add(-LINE_HEIGHT, frame.x - 52.0);
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" fill=\"#444\" \
                 transform=\"rotate(-90 {x:.1} {y:.1})\">{}</text>",
                escape(line)
            );
        }
        if axis.is_cut() {
            let _ = writeln!(
                svg,
                "<path class=\"cut\" d=\"M{:.1} {:.1}l-4 -3 8 -4 -8 -4 4 -3\" fill=\"#fff\" stroke=\"#444\">\
                 <title>the axis does not begin at zero</title></path>",
                frame.x,
                frame.y + PANEL_HEIGHT - 1.0
            );
        }
    }
}

impl Panel {
    fn width(&self) -> f64 {
        match &self.content {
            Content::Categories {
                names,
                marks,
                joined: false,
                ..
            } => {
                let slots = names.len() as f64 * (marks.len() as f64 + 1.0);
                // Each category is as wide as the longest name needs.
                let lines = names.iter().flat_map(|name| in_lines(name, LONG));
                let longest = lines.map(|line| line.chars().count()).max();
                let label = (longest.unwrap_or(0) as f64).mul_add(CHARACTER_WIDTH, 12.0);
                let labels = names.len() as f64 * label;
                PANEL_WIDTH.max(slots * SLOT_WIDTH).max(labels)
            }
            Content::Categories { .. } => PANEL_WIDTH,
            Content::OverTime(..) => MAX_WIDTH.min(680.0),
        }
    }
}

/// Most characters of a category's name in one line.
const LONG: f64 = 16.0;

/// A text in one line, or in two where it has more than `most` characters. It is divided at the blank
/// next to its middle.
fn in_lines(name: &str, most: f64) -> Vec<&str> {
    let middle = name.len() / 2;
    let blanks = name.match_indices(' ').map(|(at, _)| at);
    match blanks.min_by_key(|at| at.abs_diff(middle)) {
        Some(at) if name.len() as f64 > most => vec![&name[..at], &name[at + 1..]],
        _ => vec![name],
    }
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// The range that holds both.
fn union((low, high): (f64, f64), (least, most): (f64, f64)) -> (f64, f64) {
    (low.min(least), high.max(most))
}

impl Content {
    /// Range that must fit; `None` without a value.
    fn range(&self) -> Option<(f64, f64)> {
        let join =
            |range: Option<(f64, f64)>, more| Some(range.map_or(more, |range| union(range, more)));
        match self {
            Self::Categories { marks, .. } => marks
                .iter()
                .flatten()
                .flatten()
                .map(Mark::range)
                .fold(None, join),
            Self::OverTime(series, _) => series
                .iter()
                .flatten()
                .map(|(_, value)| (*value, *value))
                .fold(None, join),
        }
    }
}

fn categories(
    svg: &mut String,
    names: &[String],
    marks: &[Vec<Option<Mark>>],
    (joined, first): (bool, usize),
    axis: &Axis,
    frame: &Frame,
) {
    let step = frame.width / names.len().max(1) as f64;
    for (index, name) in names.iter().enumerate() {
        for (line, text) in in_lines(name, LONG).into_iter().enumerate() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                (index as f64 + 0.5).mul_add(step, frame.x),
                (line as f64).mul_add(12.0, frame.y + PANEL_HEIGHT + 16.0),
                escape(text)
            );
        }
    }
    let slot = if joined {
        0.0
    } else {
        step / (marks.len() as f64 + 1.0)
    };
    let middle = (marks.len() as f64 - 1.0) / 2.0;
    for (series, marks) in marks.iter().enumerate() {
        let offset = (series as f64 + 1.0) * slot;
        let mut line: Vec<(f64, f64)> = Vec::new();
        for (index, mark) in marks.iter().enumerate() {
            let Some(mark) = mark else { continue };
            let x = if joined {
                // Side by side, so that intervals do not hide each other.
                (series as f64 - middle).mul_add(3.0, (index as f64 + 0.5).mul_add(step, frame.x))
            } else {
                (index as f64).mul_add(step, frame.x) + offset
            };
            let y = |value: f64| axis.place(value).mul_add(PANEL_HEIGHT, frame.y);
            if let Mark::Point(estimate) = mark {
                line.push((x, y(estimate.value)));
            }
            draw(
                svg,
                mark,
                x,
                slot.min(40.0) * 0.7,
                &y,
                colour(first + series),
            );
        }
        if joined && line.len() > 1 {
            let path: Vec<String> = line.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>",
                path.join(" "),
                colour(first + series)
            );
        }
    }
}

/// One mark, `width` wide, around `x`.
fn draw(svg: &mut String, mark: &Mark, x: f64, width: f64, y: &impl Fn(f64) -> f64, colour: &str) {
    let vertical = |svg: &mut String, from: f64, to: f64, colour: &str| {
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
            y(from),
            y(to)
        );
    };
    let cap = |svg: &mut String, at: f64, half: f64, colour: &str| {
        let at = y(at);
        let _ = writeln!(
            svg,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{colour}\"/>",
            x - half,
            x + half
        );
    };
    match mark {
        Mark::Box(quantiles, mean) => {
            let [p5, p25, p50, p75, p95] = quantiles.at;
            vertical(svg, p5, p25, colour);
            vertical(svg, p75, p95, colour);
            cap(svg, p5, width / 3.0, colour);
            cap(svg, p95, width / 3.0, colour);
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
                 fill=\"{colour}\" fill-opacity=\"0.25\" stroke=\"{colour}\"/>",
                x - width / 2.0,
                y(p75),
                // Never nothing, or it would not be seen.
                (y(p25) - y(p75)).max(0.8)
            );
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2.4\" fill=\"{colour}\"/>",
                y(p50)
            );
            for outlier in &quantiles.outliers {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"1.4\" fill=\"none\" \
                     stroke=\"{colour}\" stroke-opacity=\"0.7\"/>",
                    y(*outlier)
                );
            }
            if let Some(mean) = mean {
                error_bar(svg, mean, &vertical, &cap, "#222");
            }
        }
        Mark::Bar(estimate) => {
            let top = y(estimate.value.max(0.0));
            let bottom = y(estimate.value.min(0.0));
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
                 fill=\"{colour}\" fill-opacity=\"0.75\"/>",
                x - width / 2.0,
                bottom - top
            );
            error_bar(svg, estimate, &vertical, &cap, "#222");
        }
        Mark::Point(estimate) => {
            error_bar(svg, estimate, &vertical, &cap, colour);
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                y(estimate.value)
            );
        }
    }
}

fn error_bar(
    svg: &mut String,
    estimate: &Estimate,
    vertical: &impl Fn(&mut String, f64, f64, &str),
    cap: &impl Fn(&mut String, f64, f64, &str),
    colour: &str,
) {
    if let (Some(low), Some(high)) = (estimate.low, estimate.high) {
        vertical(svg, low, high, colour);
        cap(svg, low, 3.0, colour);
        cap(svg, high, 3.0, colour);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(mark: fn(Estimate) -> Mark) -> Picture {
        let estimate = |value| Estimate {
            value,
            low: Some(value - 1.0),
            high: Some(value + 1.0),
            repetitions: 9,
        };
        Picture {
            title: "a < b".into(),
            y_title: "delay, ms".into(),
            x_title: "loss".into(),
            log: false,
            same_scale: false,
            series: vec!["TCP".into(), "QUIC".into()],
            panels: vec![Panel {
                title: "wifi".into(),
                content: Content::Categories {
                    names: vec!["0%".into(), "5%".into()],
                    marks: vec![
                        vec![Some(mark(estimate(10.0))), Some(mark(estimate(30.0)))],
                        vec![Some(mark(estimate(10.0))), None],
                    ],
                    joined: true,
                    first: 0,
                },
            }],
        }
    }

    #[test]
    fn pictures_are_whole_and_escaped() {
        for mark in [Mark::Bar as fn(Estimate) -> Mark, Mark::Point] {
            let svg = picture(mark).svg();
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
            assert!(svg.contains("a &lt; b"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
            for name in [
                "TCP",
                "QUIC",
                "wifi",
                "0%",
                "5%",
                "delay, ms",
                "loss",
                "a &lt; b",
            ] {
                assert!(svg.contains(&format!(">{name}</text>")), "{name}");
            }
        }
        let points = picture(Mark::Point).svg();
        assert_eq!(points.matches("r=\"3\"").count(), 3);
        // Points begin at 9, bars at zero.
        assert!(points.contains("class=\"cut\""));
        assert!(!picture(Mark::Bar).svg().contains("class=\"cut\""));
    }

    #[test]
    fn many_series_take_more_lines_and_colours_of_their_own() {
        let mut picture = picture(Mark::Point);
        picture.series = (0..16)
            .map(|index| format!("a transport, number {index}"))
            .collect();
        let legend = picture.legend();
        assert_eq!(legend.len(), 16);
        assert!(
            legend
                .iter()
                .all(|entry| entry.x + entry.width <= MAX_WIDTH)
        );
        assert!(legend[0].y < legend[15].y);
        let svg = picture.svg();
        let colours: std::collections::BTreeSet<_> = (0..16).map(colour).collect();
        assert_eq!(colours.len(), 16);
        assert!(colours.iter().all(|colour| svg.contains(*colour)));
    }

    #[test]
    fn a_box_has_quartiles_whiskers_and_few_outliers() {
        let values: Vec<f64> = (0..2001).map(f64::from).collect();
        let quantiles = Quantiles::of(&values).unwrap();
        let at: Vec<String> = quantiles.at.iter().map(f64::to_string).collect();
        assert_eq!(at, ["100", "500", "1000", "1500", "1900"]);
        assert_eq!(quantiles.outliers.len(), MAX_OUTLIERS);
        assert!((quantiles.outliers[0]).abs() < 1e-9);
        assert_eq!(quantiles.outliers.last(), Some(&2000.0));
        assert!(Quantiles::of(&[]).is_none());
    }

    #[test]
    fn a_box_has_the_interval_of_the_mean() {
        let values: Vec<f64> = (0..9).map(f64::from).collect();
        let mean = Estimate {
            value: 4.0,
            low: Some(-2.0),
            high: Some(12.0),
            repetitions: 5,
        };
        let mark = Mark::Box(Quantiles::of(&values).unwrap(), Some(mean));
        assert_eq!(mark.range(), (-2.0, 12.0));
        let mut svg = String::new();
        draw(&mut svg, &mark, 5.0, 8.0, &|value| value, "#0072b2");
        assert_eq!(svg.matches("stroke=\"#222\"").count(), 3, "{svg}");
    }

    #[test]
    fn no_text_is_wider_than_its_place() {
        let mut picture = picture(Mark::Point);
        picture.title = "Figure 6b: The same with a client that waits for each answer".into();
        picture.y_title = "variation of the one-way delay, standard deviation / mean".into();
        let svg = picture.svg();
        let width: f64 = svg
            .split_once("width=\"")
            .unwrap()
            .1
            .split_once('"')
            .unwrap()
            .0
            .parse()
            .unwrap();
        let lines = picture.title_lines((width - LEFT).max(PANEL_WIDTH));
        assert!(lines.len() > 1);
        for line in lines {
            assert!(
                (line.len() as f64).mul_add(TITLE_CHARACTER_WIDTH, LEFT) <= width,
                "{line}"
            );
        }
        for line in svg.lines().filter(|line| line.contains("rotate(-90")) {
            let text = line.split_once('>').unwrap().1.split_once('<').unwrap().0;
            let long = text.len() as f64 * CHARACTER_WIDTH;
            assert!(long <= TOP + PANEL_HEIGHT + BOTTOM, "{text}");
        }
        assert_eq!(svg.matches("rotate(-90").count(), 2);
    }

    #[test]
    fn panels_have_one_axis_of_time() {
        let mut picture = picture(Mark::Point);
        let panel = |last_s: f64| Panel {
            title: String::new(),
            content: Content::OverTime(vec![vec![(0.0, 1.0), (last_s, 2.0)]], Look::Stairs),
        };
        picture.panels = vec![panel(3.0), panel(8.0)];
        assert_eq!(picture.svg().matches(">8</text>").count(), 2);
    }

    #[test]
    fn long_names_of_categories_take_two_lines() {
        assert_eq!(in_lines("5%", LONG), ["5%"]);
        assert_eq!(
            in_lines("TLS 1.3 on TCP, resumed", LONG),
            ["TLS 1.3 on", "TCP, resumed"]
        );
        assert_eq!(
            in_lines("averylongnamewithoutblanks", LONG),
            ["averylongnamewithoutblanks"]
        );
    }

    #[test]
    fn long_titles_take_several_lines() {
        let mut picture = picture(Mark::Point);
        picture.title = "word ".repeat(100);
        let lines = picture.title_lines(MAX_WIDTH);
        assert!(lines.len() > 1);
        assert_eq!(
            lines
                .iter()
                .map(|line| line.matches("word").count())
                .sum::<usize>(),
            100
        );
    }

    #[test]
    fn a_panel_without_samples_says_so() {
        let mut picture = picture(Mark::Point);
        picture.panels[0].content = Content::OverTime(vec![Vec::new()], Look::Dots);
        assert!(picture.svg().contains("no sound sample"));
    }
}
