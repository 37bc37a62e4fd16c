//! Numbers as people read them.

use super::statistics::Estimate;

/// Three significant digits or so: more is noise.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    let text = if size >= 1000.0 {
        format!("{value:.0}")
    } else if size >= 100.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        in_thousands(&text)
    }
}

/// Digits of a whole number in groups of three, from five digits on.
fn in_thousands(text: &str) -> String {
    let digits = text.trim_start_matches('-').len();
    let mut grouped = String::with_capacity(text.len() + digits / 3);
    for (index, character) in text.chars().enumerate() {
        let left = text.len() - index;
        if digits > 4 && left < digits && left.is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(character);
    }
    grouped
}

/// A value with its interval.
pub(super) fn with_interval(estimate: &Estimate) -> String {
    match estimate.interval() {
        Some((low, high)) => format!(
            "{} ({} to {})",
            number(estimate.value),
            number(low),
            number(high)
        ),
        _ => number(estimate.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(number(0.61), "0.61");
        assert_eq!(number(25.5), "25.5");
        assert_eq!(number(119.96), "120");
        assert_eq!(number(12_345.6), "12,346");
        assert_eq!(number(-123_456.0), "-123,456");
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(1234.0), "1234");
        assert_eq!(number(-0.5), "-0.5");
        assert_eq!(number(100.0), "100");
        assert_eq!(number(0.0), "0");
    }
}
