//! Tables as comma-separated values.

use std::fmt::Write as _;

use super::table::{Column, Values};

/// A table as text (RFC 4180). A missing number is an empty field.
pub(super) fn text(columns: &[Column]) -> String {
    let names: Vec<String> = columns.iter().map(|column| field(&column.name)).collect();
    let mut text = names.join(",") + "\n";
    let rows = columns.first().map_or(0, |column| match &column.values {
        Values::Text(values) => values.len(),
        Values::Whole(values) => values.len(),
        Values::Number(values) => values.len(),
    });
    for row in 0..rows {
        for (place, column) in columns.iter().enumerate() {
            if place > 0 {
                text.push(',');
            }
            // Writing to a String does not fail.
            let _ = match &column.values {
                Values::Text(values) => text.write_str(&field(&values[row])),
                Values::Whole(values) => write!(text, "{}", values[row]),
                Values::Number(values) => {
                    values[row].map_or(Ok(()), |value| write!(text, "{value}"))
                }
            };
        }
        text.push('\n');
    }
    text
}

/// RFC 4180, section 2: quoted where it has to be.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;
    use crate::campaign::{Campaign, Plan};
    use crate::measure::{Sample, Verdict};

    #[test]
    fn rows_have_as_many_fields_as_the_heading() {
        let (campaign, _) = Campaign::find("mqtt-jeddou-2022").unwrap();
        let plan = Plan::new(&campaign, true, 1, &[]).unwrap();
        let mut first = Sample::of(&plan.runs[0], "tun", 1, Verdict::Sound);
        first.metrics.insert("total_s".into(), 1.25);
        first.series.insert("delay_ms".into(), vec![2.5, 3.0]);
        let reason = "he said: \"late\", twice".to_owned();
        let mut second = Sample::of(&plan.runs[1], "tun", 2, Verdict::Failed { reason });
        second.metrics.insert("bytes".into(), 3.0);
        let samples = [first, second];
        let runs = text(&table::runs(&samples));
        let lines: Vec<&str> = runs.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].ends_with("reason,bytes,total_s"));
        assert!(lines[1].ends_with("sound,,,1.25"));
        assert!(lines[2].ends_with("failed,\"he said: \"\"late\"\", twice\",3,"));
        let commas = |line: &str| line.matches(',').count();
        assert_eq!(commas(lines[0]), commas(lines[1]));
        assert_eq!(
            text(&table::values(&samples)),
            "run,series,place,value\n0,delay_ms,0,2.5\n0,delay_ms,1,3\n"
        );
    }
}
