//! The report as a page and as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::best::Line;
use super::claims::{Agreement, Answer};
use super::{Report, statistics};
use crate::measure::program::Build;
use crate::measure::{Sample, Verdict};

/// Rows of the lists of marked and failed runs; of more only their number is said.
const MAX_LISTED: usize = 40;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#1c1c1c;background:#fff;max-width:1120px;margin:2em auto;padding:0 1em}\
h1{font-size:1.6em;margin-bottom:.2em}h2{margin-top:2em;border-bottom:1px solid #ddd}\
table{border-collapse:collapse;width:100%;font-size:.88em}th,td{text-align:left;vertical-align:top;\
padding:.35em .6em;border-bottom:1px solid #e2e2e2}th{background:#f6f6f6}\
td.agree{color:#00664a;font-weight:600}td.disagree{color:#a83600;font-weight:600}td.undecided{color:#7a5b00;font-weight:600}\
figure{margin:1.5em 0}figcaption{font-weight:600;margin-bottom:.4em}svg{max-width:100%;height:auto}\
.warning{background:#fff4d6;border-left:4px solid #e69f00;padding:.5em 1em}code{background:#f3f3f3;padding:0 .2em}\
dt{font-weight:600}.wide{overflow-x:auto}";

/// Text above the table of claims.
const BRACKETS: &str = "In round brackets: 95 % confidence intervals. Repetitions are drawn anew, with all their runs \
                        and messages; values of transports are compared within repetitions. A verdict needs the \
                        whole interval on one side, in each cell of the claim. In square brackets: other readings, \
                        which have no say in the verdict.";

/// Text beside the figures.
const FORMS: &str = "Boxes: quartiles, dot at the median, whiskers at the 5th and 95th percentile, circles outside of \
                     them, in black the 95 % confidence interval of the mean. Error bars of others: 95 % confidence \
                     intervals.";

/// The heading of the table of bests.
const BEST: &str = "Each transport at its best";
/// The explanation of that table.
const BEST_MEANS: &str = "Of all ways to use TCP that were measured the one with the lowest value, the same of QUIC, and QUIC's \
                          value by TCP's. Where the interval of the ratio holds 1, neither is faster.";
/// Its columns.
const BEST_HEADINGS: [&str; 6] = [
    "what",
    "TCP's best",
    "value",
    "QUIC's best",
    "value",
    "QUIC by TCP",
];

fn best_fields(line: &Line) -> [&str; 6] {
    [
        &line.what,
        &line.tcp,
        &line.tcp_value,
        &line.quic,
        &line.quic_value,
        &line.ratio,
    ]
}

/// How many claims were answered in which way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally {
    pub(super) agree: usize,
    pub(super) disagree: usize,
    pub(super) undecided: usize,
    pub(super) not_tested: usize,
}

impl Tally {
    fn text(&self) -> String {
        format!(
            "{} claims: {} agree, {} disagree, {} undecided, {} are no test (inputs, rows that cannot \
             fail, or without a value)",
            self.agree + self.disagree + self.undecided + self.not_tested,
            self.agree,
            self.disagree,
            self.undecided,
            self.not_tested
        )
    }
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Text in a cell of a table of Markdown.
pub(super) fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

impl Report {
    /// Warnings for the reader, at the top.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.manifest.warnings.clone();
        let [sound, unsound, incomplete, failed] = self.counts();
        if !self.manifest.optimised {
            warnings.push(
                "the program was built without optimisation: CPU times and what is bound by them \
                 are too high"
                    .into(),
            );
        }
        if self.manifest.quick {
            warnings.push(
                "the short form: few repetitions and few messages, so intervals are wide and rare \
                 events are missing"
                    .into(),
            );
        }
        if unsound > 0 {
            warnings.push(format!(
                "{unsound} of {} samples were out of tolerance and are {}",
                sound + unsound + incomplete + failed,
                if self.with_unsound {
                    "shown all the same, as was asked for"
                } else {
                    "left out"
                }
            ));
        }
        if incomplete > 0 {
            warnings.push(format!(
                "in {incomplete} runs a reliable transport lost messages: they are no successes, are \
                 left out, and no claim about their cells agrees"
            ));
        }
        if failed > 0 {
            warnings.push(format!("{failed} runs failed; they are listed below"));
        }
        warnings
    }

    /// Number of claims with each answer.
    pub(super) fn tally(&self) -> Tally {
        let count = |agreement| {
            self.answers
                .iter()
                .filter(|answer| answer.agreement == agreement)
                .count()
        };
        Tally {
            agree: count(Agreement::Agree),
            disagree: count(Agreement::Disagree),
            undecided: count(Agreement::Undecided),
            not_tested: count(Agreement::NotTested),
        }
    }

    /// The runs, their machine and their program.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let manifest = &self.manifest;
        let [sound, unsound, incomplete, failed] = self.counts();
        let in_force = self.in_force();
        let machine = &manifest.machine;
        let known = |value: Option<f64>, unit: &str| {
            value.map_or_else(|| "unknown".into(), |value| format!("{value:.1}{unit}"))
        };
        let mut facts = vec![
            (
                "Campaign",
                format!("{} version {}", manifest.campaign, manifest.version),
            ),
            ("Repeats", self.campaign.paper.clone()),
            ("Command", format!("`{}`", manifest.command)),
            ("Seed", manifest.seed.to_string()),
            (
                "Program",
                format!(
                    "Sterna {}{}",
                    manifest.program,
                    if manifest.optimised {
                        ""
                    } else {
                        ", not optimised"
                    }
                ),
            ),
            (
                "Builds",
                manifest
                    .builds
                    .iter()
                    .map(describe)
                    .collect::<Vec<_>>()
                    .join("; "),
            ),
            (
                "Samples",
                format!(
                    "{sound} sound, {unsound} out of tolerance, {incomplete} incomplete, {failed} \
                     failed"
                ),
            ),
            (
                "Machine",
                format!(
                    "{} cores of {}, Linux {}, load {}, CPU pressure {} at the start",
                    machine.cores,
                    machine
                        .processor
                        .as_deref()
                        .unwrap_or("an unknown processor"),
                    machine.kernel,
                    known(machine.load, ""),
                    known(machine.pressure_percent, " %")
                ),
            ),
            ("Emulator", self.emulator()),
            ("In force", in_force.join(". ")),
        ];
        facts.retain(|(_, text)| !text.is_empty());
        facts
    }

    /// For each transport the settings in force, from the valid runs.
    fn in_force(&self) -> Vec<String> {
        let mut all: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for name in self.manifest.in_force.keys() {
            all.entry(name).or_default();
        }
        for sample in &self.samples {
            // The run's own word for the congestion control is one of tolerance, not of interest.
            if let (Verdict::Sound, Some(tls)) = (&sample.verdict, sample.in_force.get("tls")) {
                all.entry(&sample.transport).or_default().insert(tls);
            }
        }
        all.into_iter()
            .map(|(name, tls)| {
                let tls = Vec::from_iter(tls).join(", or ");
                let control = self.manifest.in_force.get(name).cloned();
                let mut facts = vec![tls, control.unwrap_or_default()];
                facts.retain(|fact| !fact.is_empty());
                format!("{name}: {}", facts.join("; "))
            })
            .collect()
    }

    /// Properties of the links during the valid runs.
    fn emulator(&self) -> String {
        let values = |metric: &str| -> Vec<f64> {
            let all: Vec<f64> = self
                .samples
                .iter()
                .filter(|sample| sample.verdict == Verdict::Sound)
                .filter_map(|sample| sample.metrics.get(metric).copied())
                .collect();
            statistics::sorted(&all)
        };
        let late = values("link_late_p99_ms");
        let worst = values("link_late_max_ms");
        match (late.last(), worst.last()) {
            (Some(late), Some(worst)) => format!(
                "{}; in sound runs 99 % of the packets were late by {:.3} ms at most (median of the \
                 runs {:.3} ms), the latest packet of all by {worst:.1} ms",
                self.manifest.emulator,
                late,
                statistics::percentile(&values("link_late_p99_ms"), 0.5)
            ),
            _ => self.manifest.emulator.clone(),
        }
    }

    /// Runs that do not count, with the reason.
    fn marked(&self) -> Vec<String> {
        let of = |sample: &Sample| match &sample.verdict {
            Verdict::Sound => None,
            Verdict::Unsound { reasons } => Some(format!(
                "{} (out of tolerance after {} attempts): {}",
                sample.key(),
                sample.attempts,
                reasons.join("; ")
            )),
            Verdict::Incomplete { reason } => {
                Some(format!("{} (incomplete): {reason}", sample.key()))
            }
            Verdict::Failed { reason } => Some(format!(
                "{} (failed after {} attempts): {reason}",
                sample.key(),
                sample.attempts
            )),
        };
        let mut all: Vec<String> = self.samples.iter().filter_map(of).collect();
        if all.len() > MAX_LISTED {
            let more = all.len() - MAX_LISTED;
            all.truncate(MAX_LISTED);
            all.push(format!("and {more} more; samples.csv has them all"));
        }
        all
    }

    /// The report as a part of a page whose heading is of this level.
    pub(super) fn chapter_html(&self, level: usize) -> String {
        let below = level + 1;
        let mut page = format!(
            "<h{level} id=\"{}\">{}</h{level}>\n",
            self.campaign.name,
            escape(&self.campaign.title)
        );
        // Writing to a String does not fail, here and below.
        for warning in self.warnings() {
            let _ = writeln!(page, "<p class=\"warning\">{}</p>", escape(&warning));
        }
        let _ = writeln!(page, "<p>{}</p>\n<dl>", escape(&self.tally().text()));
        for (name, text) in self.facts() {
            let text = escape(&text);
            let text = match text
                .strip_prefix('`')
                .and_then(|text| text.strip_suffix('`'))
            {
                Some(code) => format!("<code>{code}</code>"),
                None => text,
            };
            let _ = writeln!(page, "<dt>{name}</dt><dd>{text}</dd>");
        }
        page.push_str("</dl>\n");
        if !self.campaign.notes.is_empty() {
            let _ = writeln!(
                page,
                "<h{below}>How the paper was understood</h{below}>\n<ul>"
            );
            for note in &self.campaign.notes {
                let _ = writeln!(page, "<li>{}</li>", escape(note));
            }
            page.push_str("</ul>\n");
        }
        let _ = writeln!(
            page,
            "<h{below}>Paper and ours</h{below}>\n<p>{BRACKETS}</p>\n<div class=\"wide\">\
             <table><tr><th></th><th>claim</th>\
             <th>where</th><th>paper</th><th>ours</th><th>verdict</th><th>why, and notes</th></tr>",
        );
        for answer in &self.answers {
            let _ = writeln!(page, "{}", row(answer));
        }
        page.push_str("</table></div>\n");
        if !self.bests.is_empty() {
            let _ = writeln!(
                page,
                "<h{below}>{BEST}</h{below}>\n<p>{BEST_MEANS}</p>\n<div class=\"wide\"><table><tr>"
            );
            for heading in BEST_HEADINGS {
                let _ = write!(page, "<th>{heading}</th>");
            }
            page.push_str("</tr>\n");
            for line in &self.bests {
                let fields = best_fields(line).map(escape).join("</td><td>");
                let _ = writeln!(page, "<tr><td>{fields}</td></tr>");
            }
            page.push_str("</table></div>\n");
        }
        let _ = writeln!(page, "<h{below}>Figures</h{below}>");
        for drawing in &self.drawings {
            let _ = writeln!(
                page,
                "<figure><figcaption>Figure {}: {}</figcaption>\n{}</figure>",
                escape(&drawing.id),
                escape(&drawing.title),
                drawing.svg
            );
        }
        let _ = writeln!(page, "<p>{FORMS}</p>");
        for (heading, lines) in self.lists() {
            let _ = writeln!(page, "<h{below}>{heading}</h{below}>\n<ul>");
            for line in lines {
                let _ = writeln!(page, "<li>{}</li>", escape(&line));
            }
            page.push_str("</ul>\n");
        }
        page
    }

    /// The report as a part of a text whose heading is of this level.
    pub(super) fn chapter_markdown(&self, level: usize) -> String {
        let (above, below) = ("#".repeat(level), "#".repeat(level + 1));
        let mut text = format!("{above} {}\n\n", self.campaign.title);
        for warning in self.warnings() {
            let _ = writeln!(text, "> **Note:** {warning}\n");
        }
        let _ = writeln!(text, "{}\n\n| | |\n|---|---|", self.tally().text());
        for (name, fact) in self.facts() {
            let _ = writeln!(text, "| {name} | {} |", cell(&fact));
        }
        text.push('\n');
        if !self.campaign.notes.is_empty() {
            let _ = writeln!(text, "{below} How the paper was understood\n");
            for note in &self.campaign.notes {
                let _ = writeln!(text, "- {note}");
            }
            text.push('\n');
        }
        let _ = writeln!(
            text,
            "{below} Paper and ours\n\n{BRACKETS}\n\n\
             | | claim | where | paper | ours | verdict | why, and notes |\n\
             |---|---|---|---|---|---|---|",
        );
        for answer in &self.answers {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                answer.id,
                cell(&answer.text),
                cell(&answer.place),
                cell(&answer.paper),
                cell(&answer.ours),
                answer.agreement.name(),
                cell(&answer.why)
            );
        }
        if !self.bests.is_empty() {
            let _ = writeln!(
                text,
                "\n{below} {BEST}\n\n{BEST_MEANS}\n\n| {} |\n{}|",
                BEST_HEADINGS.join(" | "),
                "|---".repeat(BEST_HEADINGS.len())
            );
            for line in &self.bests {
                let fields = best_fields(line).map(cell).join(" | ");
                let _ = writeln!(text, "| {fields} |");
            }
        }
        let _ = writeln!(text, "\n{below} Figures\n\n{FORMS}\n");
        for drawing in &self.drawings {
            let _ = writeln!(
                text,
                "{below}# Figure {}: {}\n\n![Figure {}](figures/{}-{}.svg)\n",
                drawing.id, drawing.title, drawing.id, self.campaign.name, drawing.id
            );
        }
        for (heading, lines) in self.lists() {
            let _ = writeln!(text, "{below} {heading}\n");
            for line in lines {
                let _ = writeln!(text, "- {line}");
            }
            text.push('\n');
        }
        text
    }

    /// Lists at the end, if they have entries.
    fn lists(&self) -> impl Iterator<Item = (&'static str, Vec<String>)> {
        [
            ("Runs that do not count", self.marked()),
            (
                "Calibration before the campaign",
                self.manifest.calibration.clone(),
            ),
        ]
        .into_iter()
        .filter(|(_, lines)| !lines.is_empty())
    }
}

/// A page with this title and body.
pub(super) fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n{body}</body></html>\n"
    )
}

fn row(answer: &Answer) -> String {
    let class = match answer.agreement {
        Agreement::Agree => "agree",
        Agreement::Disagree => "disagree",
        Agreement::Undecided => "undecided",
        Agreement::NotTested => "none",
    };
    format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}</td>\
         <td>{}</td></tr>",
        escape(&answer.id),
        escape(&answer.text),
        escape(&answer.place),
        escape(&answer.paper),
        escape(&answer.ours),
        answer.agreement.name(),
        escape(&answer.why)
    )
}
/// A program's build in a line.
fn describe(build: &Build) -> String {
    let compiler = build.compiler.as_deref().unwrap_or("an unknown compiler");
    // Enough digits to tell builds apart; all are in the campaign's description.
    let digits = build.sha256.get(..16).unwrap_or(&build.sha256);
    format!(
        "{} of {} bytes, SHA-256 {digits}…, by rustc {compiler}",
        build.program, build.bytes
    )
}
