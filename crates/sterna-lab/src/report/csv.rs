//! The metrics of all samples as one table.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::campaign::Axis;
use crate::measure::{Sample, Verdict};

/// One row a sample, one column a metric; series are in the JSON lines only.
pub(super) fn table(samples: &[Sample]) -> String {
    let metrics: BTreeSet<&str> = samples
        .iter()
        .flat_map(|sample| sample.metrics.keys().map(String::as_str))
        .collect();
    let mut text = String::from(
        "grid,link,loss,delay,rate,transport,qos,payload_bytes,interval,messages,repetition,seed,attempts,emulator,\
         began_s,tls,congestion,verdict,reason",
    );
    for metric in &metrics {
        text.push(',');
        text.push_str(metric);
    }
    text.push('\n');
    for sample in samples {
        text.push_str(&field(&sample.grid));
        for axis in [
            Axis::Link,
            Axis::Loss,
            Axis::Delay,
            Axis::Rate,
            Axis::Transport,
            Axis::Qos,
        ] {
            text.push(',');
            text.push_str(&field(&sample.value(axis)));
        }
        let in_force = |name: &str| field(sample.in_force.get(name).map_or("", String::as_str));
        let (verdict, reason) = match &sample.verdict {
            Verdict::Sound => ("sound", String::new()),
            Verdict::Unsound { reasons } => ("unsound", reasons.join("; ")),
            Verdict::Incomplete { reason } => ("incomplete", reason.clone()),
            Verdict::Failed { reason } => ("failed", reason.clone()),
        };
        // Writing to a String does not fail.
        let _ = write!(
            text,
            ",{},{},{},{},{},{},{},{},{},{},{verdict},{}",
            sample.payload_bytes,
            field(&sample.interval),
            sample.messages,
            sample.repetition,
            sample.seed,
            sample.attempts,
            field(&sample.emulator),
            sample.began_s,
            in_force("tls"),
            in_force("congestion"),
            field(&reason)
        );
        for metric in &metrics {
            text.push(',');
            if let Some(value) = sample.metrics.get(*metric) {
                let _ = write!(text, "{value}");
            }
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
    use super::*;
    use crate::campaign::{Campaign, Plan};

    #[test]
    fn rows_have_as_many_fields_as_the_heading() {
        let (campaign, _) = Campaign::find("mqtt-jeddou-2022").unwrap();
        let plan = Plan::new(&campaign, true, 1, &[]).unwrap();
        let mut first = Sample::of(&plan.runs[0], "tun", 1, Verdict::Sound);
        first.metrics.insert("total_s".into(), 1.25);
        let reason = "he said: \"late\", twice".to_owned();
        let mut second = Sample::of(&plan.runs[1], "tun", 2, Verdict::Failed { reason });
        second.metrics.insert("bytes".into(), 3.0);
        let text = table(&[first, second]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].ends_with("reason,bytes,total_s"));
        assert!(lines[1].ends_with("sound,,,1.25"));
        assert!(lines[2].ends_with("failed,\"he said: \"\"late\"\", twice\",3,"));
        let commas = |line: &str| line.matches(',').count();
        assert_eq!(commas(lines[0]), commas(lines[1]));
    }
}
