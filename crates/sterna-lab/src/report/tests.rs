use std::collections::BTreeMap;
use std::fs;

use super::*;
use crate::calibrate::Machine;
use crate::campaign::Plan;
use Agreement::{Agree, Disagree, NotTested, Undecided};

const TEXT: &str = r#"
name = "made-up"
version = 1
title = "Made <up>"
paper = "none"
notes = ["a | b"]

[[transport]]
name = "tls"
label = "TLS"
scheme = "mqtts"

[[transport]]
name = "quic"
label = "QUIC"
scheme = "mqtt+quic"

[[grid]]
name = "g"
links = ["wifi", "lte"]
loss = ["0%", "5%"]
transports = ["tls", "quic"]
payload_bytes = [100]
repetitions = 6
workload = { kind = "stop-and-wait", messages = 10 }

[[figure]]
id = "1"
opening = true
title = "ratio"
grid = "g"
form = "box"
metric = "total_s"
unit = "ratio"
x = "loss"
panels = "link"
ratio = ["quic", "tls"]

[[figure]]
id = "2"
title = "times"
grid = "g"
form = "timeline"
metric = "round_trip_ms"
unit = "ms"
x = "loss"
only = { link = "wifi", loss = "5%" }

[[figure]]
id = "3"
title = "window"
grid = "g"
form = "congestion"
metric = "flow"
unit = "kB"
x = "loss"
panels = "transport"
only = { link = "wifi", loss = "5%" }

[[best]]
title = "whole time"
grid = "g"
metric = "total_s"
unit = "s"
each = ["link", "loss"]
tcp = ["tls"]
quic = ["quic"]

[[claim]]
id = "1"
text = "reduction"
where = "w"
paper = "40 %"
check = { kind = "value", grid = "g", metric = "total_s", at = { transport = "quic", loss = "5%" }, against = { transport = "tls", loss = "5%" }, reduction = true, each = ["link"], least = [35.0], most = [45.0], unit = "%" }

[[claim]]
id = "2"
text = "order"
where = "w"
paper = "always"
check = { kind = "order", grid = "g", metric = "total_s", lower = { transport = "quic" }, higher = { transport = "tls" }, each = ["link", "loss"] }

[[claim]]
id = "3"
text = "rise"
where = "w"
paper = "yes"
check = { kind = "order", grid = "g", metric = "total_s", lower = { transport = "quic" }, higher = { transport = "tls" }, each = ["link"], rise = "loss" }

[[claim]]
id = "4"
text = "trend of the ratio"
where = "w"
paper = "falls"
check = { kind = "trend", grid = "g", metric = "total_s", at = { transport = "quic" }, against = { transport = "tls" }, along = "loss", each = ["link"], expect = "falls" }

[[claim]]
id = "5"
text = "pooled"
where = "w"
paper = "60 values"
check = { kind = "value", grid = "g", metric = "round_trip_ms.count", at = { transport = "quic", link = "lte", loss = "0%" }, least = [60], most = [60] }
untested = "cannot fail"

[[claim]]
id = "8"
text = "difference"
where = "w"
paper = "4 s"
check = { kind = "value", grid = "g", metric = "total_s", at = { transport = "quic", link = "wifi", loss = "5%" }, against = { transport = "tls", link = "wifi", loss = "5%" }, difference = true, least = [3.9], most = [4.1], unit = "s" }

[[claim]]
id = "6"
text = "no such metric"
where = "w"
paper = "x"
check = { kind = "value", grid = "g", metric = "warp_s", least = [0.0] }

[[claim]]
id = "9"
text = "near a bound"
where = "w"
paper = "x"
check = { kind = "value", grid = "g", metric = "total_s", at = { transport = "tls", link = "wifi", loss = "0%" }, most = [5.025] }
shown = [{ kind = "value", grid = "g", metric = "total_s.max", at = { transport = "tls", link = "wifi", loss = "0%" }, most = [5.0], unit = "s at most" }]

[[claim]]
id = "10"
text = "trend of one value"
where = "w"
paper = "rises"
check = { kind = "trend", grid = "g", metric = "total_s", at = { transport = "tls", link = "wifi" }, along = "loss", from = "5%", expect = "rises" }

[[claim]]
id = "7"
text = "input"
where = "w"
paper = "x"
check = { kind = "stated", reason = "set so" }
"#;

/// Times of one run. With loss TCP takes 10 s; QUIC takes 6 s on WiFi, and 9.9 s on LTE. Without loss
/// QUIC is slower on LTE, and faster elsewhere.
fn total_s(sample: &Sample) -> f64 {
    let noise = f64::from(sample.repetition) * 0.01;
    noise
        + match (
            sample.link.as_str(),
            sample.loss.as_str(),
            sample.transport.as_str(),
        ) {
            ("wifi", "5%", "quic") => 6.0,
            ("lte", "5%", "quic") => 9.9,
            ("lte", "0%", "quic") => 5.5,
            (_, "5%", _) => 10.0,
            (_, _, "quic") => 4.5,
            _ => 5.0,
        }
}

fn report(with_unsound: bool) -> Report {
    let campaign = Campaign::parse(TEXT).unwrap();
    let plan = Plan::new(&campaign, false, 1, &[]).unwrap();
    let mut samples: Vec<Sample> = plan
        .runs
        .iter()
        .map(|run| {
            let mut sample = Sample::of(run, "tun", 0, Verdict::Sound);
            sample.metrics.insert("total_s".into(), total_s(&sample));
            sample.metrics.insert("link_late_p99_ms".into(), 0.2);
            sample.metrics.insert("link_late_max_ms".into(), 0.9);
            sample.series.insert("round_trip_ms".into(), vec![25.0; 10]);
            if sample.transport == "quic" {
                let flow = ["flow_at_ms", "flow_sent_bytes"].map(|name| (name.into(), vec![9.0]));
                sample.series.extend(flow);
            }
            sample
        })
        .collect();
    // A sample that would turn everything over, and does not count.
    let mut unsound = samples[0].clone();
    unsound.metrics.insert("total_s".into(), 1e6);
    unsound.verdict = Verdict::Unsound {
        reasons: vec!["late".into()],
    };
    samples.push(unsound);
    let mut failed = samples[1].clone();
    failed.verdict = Verdict::Failed {
        reason: "no <broker>".into(),
    };
    samples.push(failed);
    let mut incomplete = samples
        .iter()
        .find(|sample| (sample.transport.as_str(), sample.loss.as_str()) == ("tls", "0%"))
        .unwrap()
        .clone();
    incomplete.repetition = 9;
    incomplete.verdict = Verdict::Incomplete {
        reason: "3 of 10 messages did not arrive".into(),
    };
    samples.push(incomplete);
    let manifest = Manifest {
        campaign: "made-up".into(),
        version: 1,
        text: TEXT.into(),
        brokers: Vec::new(),
        devices: Vec::new(),
        builds: Vec::new(),
        seed: 1,
        quick: false,
        emulator: "tun".into(),
        command: "sterna-lab run made-up".into(),
        program: "0".into(),
        optimised: true,
        machine: Machine::look(),
        warnings: Vec::new(),
        calibration: vec!["wifi: true".into()],
        in_force: BTreeMap::new(),
    };
    Report::new(campaign, manifest, samples, with_unsound)
}

#[test]
fn claims_are_answered_from_sound_samples() {
    let report = report(false);
    let answer = |id: &str| {
        report
            .answers()
            .iter()
            .find(|answer| answer.id == id)
            .unwrap()
    };
    let agreements: Vec<Agreement> = report
        .answers()
        .iter()
        .map(|answer| answer.agreement)
        .collect();
    assert_eq!(
        agreements,
        [
            Disagree, Disagree, Undecided, Undecided, NotTested, Agree, NotTested, Undecided,
            NotTested, NotTested
        ]
    );
    assert!(
        answer("1").ours.starts_with("wifi: 39.9 (39.83 to"),
        "{}",
        answer("1").ours
    );
    assert!(answer("1").why.contains("lte: below the paper's range"));
    assert!(
        answer("2")
            .ours
            .starts_with("of 4, 2 agree, 1 disagree, 1 undecided"),
        "{}",
        answer("2").ours
    );
    assert!(answer("2").why.contains("lte, loss 0%: the other way"));
    // On WiFi from 5 to 10 and from 4.5 to 6; on LTE QUIC rises by 4.4 and TCP by 5.
    assert!(answer("3").ours.starts_with("of 2, 1 agree"));
    assert!(
        answer("4").ours.contains("wifi: 0.9, 0.6"),
        "{}",
        answer("4").ours
    );
    assert_eq!(answer("5").ours, "60 (60 to 60)");
    assert_eq!(answer("5").why, "not counted: cannot fail");
    assert!(answer("10").why.contains("two values along loss"));
    assert!(answer("8").ours.starts_with("4 ("), "{}", answer("8").ours);
    assert!(answer("6").why.contains("warp_s"));
    // A run of TLS on WiFi without loss has lost messages.
    assert!(
        answer("3").why.contains("wifi: 2 runs failed or lost"),
        "{}",
        answer("3").why
    );
    assert_eq!(answer("7").why, "set so");
    assert!(
        answer("9").why.contains("on both sides"),
        "{}",
        answer("9").why
    );
    assert!(
        answer("9").ours.ends_with("; [5.05 s at most]"),
        "{}",
        answer("9").ours
    );
    assert_eq!(report.counts(), [48, 1, 1, 1]);
}

#[test]
fn unsound_samples_count_only_if_that_is_asked_for_and_said() {
    let page = report(false).chapter_html(1);
    assert!(page.contains("are left out"));
    let with = report(true);
    assert!(with.chapter_html(1).contains("as was asked for"));
    let ours = |report: &Report| report.answers()[0].ours.clone();
    // The first sample is one of WiFi without loss, which claim 1 does not look at.
    assert_eq!(ours(&with), ours(&report(false)));
    assert_ne!(with.answers()[3].ours, report(false).answers()[3].ours);
}

#[test]
fn the_page_is_whole_and_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let files = Collection::of(vec![report(false)])
        .write(folder.path())
        .unwrap();
    let page = fs::read_to_string(&files.html).unwrap();
    for wanted in [
        "<h1 id=\"made-up\">Made &lt;up&gt;",
        "no &lt;broker&gt;",
        "<code>sterna-lab run made-up</code>",
        "wifi: true",
        "late by 0.200 ms at most",
        "</body></html>",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
    assert_eq!(page.matches("<svg ").count(), 3);
    // TCP's window is the kernel's: it has no panel.
    let window = fs::read_to_string(&files.figures[2]).unwrap();
    assert!(window.contains(">QUIC<") && !window.contains(">TLS<"));
    assert!(!window.contains("no sound sample"));
    assert!(!page.contains("NaN"));
    let text = fs::read_to_string(&files.markdown).unwrap();
    // Of WiFi with loss: 10 s and 6 s.
    let best = text.lines().find(|line| line.contains("wifi, 5%")).unwrap();
    assert!(
        best.starts_with("| whole time: wifi, 5% | TLS | 10.0"),
        "{best}"
    );
    assert!(
        best.contains("| QUIC | 6.0") && best.contains(" | 0.601 ("),
        "{best}"
    );
    assert!(text.contains("| 7 | input | w | x | – | – | set so |"));
    assert!(text.contains("![Figure 1](figures/made-up-1.svg)"));
    assert_eq!((files.figures.len(), files.csv.len()), (3, 1));
    for path in files.figures.iter().chain(&files.csv) {
        assert!(path.exists());
    }
}

#[test]
fn several_campaigns_are_chapters_of_one_page() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = report(false);
    other.campaign.name = "other".into();
    let files = Collection::of(vec![report(false), other])
        .write(folder.path())
        .unwrap();
    let text = fs::read_to_string(&files.markdown).unwrap();
    // Ten claims of each: one agrees, two do not, three are undecided, four are no test.
    for name in ["made-up", "other"] {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("| {name} |")));
        assert!(
            line.unwrap().ends_with("| 48 | 3 | 1 | 2 | 3 | 4 |"),
            "{line:?}"
        );
    }
    assert_eq!(text.matches("\n## Made").count(), 2);
    assert!(text.contains("![Figure 1](figures/other-1.svg)"));
    // Before the first chapter.
    let opening = text.find("![other, figure 1: ratio](figures/other-1.svg)");
    assert!(opening < text.find("\n## Made"), "{opening:?}");
    let page = fs::read_to_string(&files.html).unwrap();
    assert!(page.contains("<a href=\"#other\">other</a>"));
    assert_eq!(page.matches("<svg ").count(), 8);
    assert_eq!((files.figures.len(), files.csv.len()), (6, 2));
}

#[test]
fn results_without_a_campaign_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = Collection::read(folder.path(), false).unwrap_err();
    assert!(
        error.to_string().contains("no campaign's results"),
        "{error}"
    );
}
