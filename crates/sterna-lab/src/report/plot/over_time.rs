//! Values over the time.

use std::fmt::Write as _;

use super::axis::{Axis, tick_label};
use super::{Frame, PANEL_HEIGHT, colour};

/// Form of the values of a series in the picture.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in super::super) enum Look {
    /// Each for itself.
    Dots,
    /// Each holds until the next one.
    Stairs,
}

/// Draws series of moments and values, on an axis that reaches to the longest time.
pub(super) fn draw(
    svg: &mut String,
    series: &[Vec<(f64, f64)>],
    look: Look,
    (axis, longest_s): (&Axis, f64),
    frame: &Frame,
) {
    let x_axis = Axis::new((0.0, longest_s.max(1e-9)), false);
    let place = |x: f64| (1.0 - x_axis.place(x)).mul_add(frame.width, frame.x);
    for tick in &x_axis.ticks {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            place(*tick),
            frame.y + PANEL_HEIGHT + 16.0,
            tick_label(*tick, &x_axis.ticks)
        );
    }
    for (index, points) in series.iter().enumerate() {
        let places = points.iter().map(|(x, value)| {
            let y = axis.place(*value).mul_add(PANEL_HEIGHT, frame.y);
            (place(*x), y)
        });
        match look {
            Look::Dots => dots(svg, places, colour(index)),
            Look::Stairs => stairs(svg, places, colour(index)),
        }
    }
}

fn dots(svg: &mut String, places: impl Iterator<Item = (f64, f64)>, colour: &str) {
    for (x, y) in places {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1.6\" fill=\"{colour}\" fill-opacity=\"0.6\"/>"
        );
    }
}

fn stairs(svg: &mut String, places: impl Iterator<Item = (f64, f64)>, colour: &str) {
    let mut path = String::new();
    for (x, y) in places {
        let _ = if path.is_empty() {
            write!(path, "M{x:.1} {y:.1}")
        } else {
            write!(path, "H{x:.1}V{y:.1}")
        };
    }
    if !path.is_empty() {
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.4\"/>"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_holds_until_the_next_one() {
        let mut svg = String::new();
        stairs(&mut svg, [(0.0, 9.0), (5.0, 4.0)].into_iter(), "red");
        assert!(svg.contains("d=\"M0.0 9.0H5.0V4.0\""), "{svg}");
        svg.clear();
        stairs(&mut svg, std::iter::empty(), "red");
        assert_eq!(svg, "");
    }
}
