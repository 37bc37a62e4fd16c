//! The reports of several campaigns as one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::page::{cell, escape, page};
use super::{Drawing, Files, Report, Row, csv, parquet, table};
use crate::measure::store;

/// Title of the page.
const TITLE: &str = "The lab's results: the papers and ours";

/// A format of tables for other programs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// Comma-separated values (RFC 4180).
    Csv,
    /// Apache Parquet.
    Parquet,
}

/// The error for a folder without results, with the command that makes them.
fn without_results(folder: &Path, why: &str) -> io::Error {
    let folder = folder.display();
    let text = format!("{folder}: {why}; `sterna-lab run CAMPAIGN --out {folder}` makes them");
    io::Error::new(io::ErrorKind::NotFound, text)
}

/// The reports of all campaigns in a folder, or of the one that it holds itself.
#[derive(Debug)]
pub struct Collection {
    reports: Vec<Report>,
}

impl Collection {
    /// Reads a folder that `sterna-lab run` wrote, of one campaign or with a folder for each of several.
    ///
    /// # Errors
    ///
    /// If there are no results, or some cannot be read.
    pub fn read(folder: &Path, with_unsound: bool) -> io::Result<Self> {
        if store::exists(folder) {
            return Ok(Self {
                reports: vec![Report::read(folder, with_unsound)?],
            });
        }
        let mut folders = Vec::new();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => without_results(folder, "there is no such folder"),
            kind => io::Error::new(kind, format!("{}: {error}", folder.display())),
        };
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry?.path();
            if store::exists(&path) {
                folders.push(path);
            }
        }
        folders.sort();
        if folders.is_empty() {
            return Err(without_results(folder, "no campaign's results"));
        }
        let reports = folders
            .iter()
            .map(|folder| Report::read(folder, with_unsound))
            .collect::<io::Result<Vec<Report>>>()?;
        Ok(Self { reports })
    }

    /// These reports.
    #[cfg(test)]
    pub(super) const fn of(reports: Vec<Report>) -> Self {
        Self { reports }
    }

    /// The campaigns' reports, in the order of their names.
    #[must_use]
    pub fn reports(&self) -> &[Report] {
        &self.reports
    }

    /// Writes `report.html`, `report.md` with `figures/`, `rows.json` with each value of each claim, and
    /// `samples.csv`; of several campaigns `samples-CAMPAIGN.csv` each.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<Files> {
        let pictures = folder.join("figures");
        fs::create_dir_all(&pictures)?;
        let mut files = Files {
            html: folder.join("report.html"),
            markdown: folder.join("report.md"),
            rows: folder.join("rows.json"),
            csv: Vec::new(),
            figures: Vec::new(),
        };
        for report in &self.reports {
            for drawing in &report.drawings {
                let path = pictures.join(format!("{}-{}.svg", report.campaign.name, drawing.id));
                fs::write(&path, &drawing.svg)?;
                files.figures.push(path);
            }
            let path = folder.join(match self.reports.len() {
                1 => "samples.csv".into(),
                _ => format!("samples-{}.csv", report.campaign.name),
            });
            fs::write(&path, csv::text(&table::runs(&report.samples)))?;
            files.csv.push(path);
        }
        let rows: BTreeMap<&str, Vec<&Row>> = self
            .reports
            .iter()
            .map(|report| {
                let rows = report.answers.iter().flat_map(|answer| &answer.rows);
                (report.name(), rows.collect())
            })
            .collect();
        let text = serde_json::to_string_pretty(&rows).map_err(io::Error::other)?;
        fs::write(&files.rows, text + "\n")?;
        fs::write(&files.html, self.html())?;
        fs::write(&files.markdown, self.markdown())?;
        Ok(files)
    }

    /// Writes the tables `CAMPAIGN-runs` (a row for each run) and `CAMPAIGN-values` (a row for each value
    /// of a series) of all campaigns. Returns the files.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    pub fn export(&self, folder: &Path, format: Format) -> io::Result<Vec<PathBuf>> {
        fs::create_dir_all(folder)?;
        let mut files = Vec::new();
        for report in &self.reports {
            let tables = [
                ("runs", table::runs(&report.samples)),
                ("values", table::values(&report.samples)),
            ];
            for (name, columns) in tables {
                let ending = match format {
                    Format::Csv => "csv",
                    Format::Parquet => "parquet",
                };
                let path = folder.join(format!("{}-{name}.{ending}", report.name()));
                match format {
                    Format::Csv => fs::write(&path, csv::text(&columns))?,
                    Format::Parquet => parquet::write(&path, &columns)?,
                }
                files.push(path);
            }
        }
        Ok(files)
    }

    /// The pictures that say what matters.
    fn openings(&self) -> impl Iterator<Item = (&Report, &Drawing)> {
        self.reports.iter().flat_map(|report| {
            let drawings = report.drawings.iter();
            drawings
                .filter(|drawing| drawing.is_opening)
                .map(move |drawing| (report, drawing))
        })
    }

    /// The report as one HTML page that needs no other file.
    fn html(&self) -> String {
        if let [report] = self.reports.as_slice() {
            return page(&report.campaign.title, &report.chapter_html(1));
        }
        let mut body = format!("<h1>{TITLE}</h1>\n<table><tr>");
        // Writing to a String does not fail, here and below.
        for heading in HEADINGS {
            let _ = write!(body, "<th>{heading}</th>");
        }
        body.push_str("</tr>\n");
        for report in &self.reports {
            let [name, rest @ ..] = line(report);
            let _ = write!(body, "<tr><td><a href=\"#{name}\">{name}</a></td>");
            for field in rest {
                let _ = write!(body, "<td>{}</td>", escape(&field));
            }
            body.push_str("</tr>\n");
        }
        body.push_str("</table>\n");
        for (report, drawing) in self.openings() {
            let _ = writeln!(
                body,
                "<figure><figcaption>{}, figure {}: {}</figcaption>\n{}</figure>",
                escape(report.name()),
                escape(&drawing.id),
                escape(&drawing.title),
                drawing.svg
            );
        }
        for report in &self.reports {
            body.push_str(&report.chapter_html(2));
        }
        page(TITLE, &body)
    }

    /// The report as Markdown, with pictures in the folder `figures`.
    fn markdown(&self) -> String {
        if let [report] = self.reports.as_slice() {
            return report.chapter_markdown(1);
        }
        let mut text = format!(
            "# {TITLE}\n\n| {} |\n{}|\n",
            HEADINGS.join(" | "),
            "|---".repeat(HEADINGS.len())
        );
        for report in &self.reports {
            let fields = line(report).map(|field| cell(&field));
            let _ = writeln!(text, "| {} |", fields.join(" | "));
        }
        for (report, drawing) in self.openings() {
            let _ = writeln!(
                text,
                "\n![{0}, figure {1}: {2}](figures/{0}-{1}.svg)",
                report.name(),
                drawing.id,
                drawing.title
            );
        }
        for report in &self.reports {
            text.push('\n');
            text.push_str(&report.chapter_markdown(2));
        }
        text
    }
}

/// A campaign's line in the table at the beginning.
fn line(report: &Report) -> [String; 8] {
    let tally = report.tally();
    let [sound, unsound, incomplete, failed] = report.counts();
    [
        report.campaign.name.clone(),
        report.campaign.paper.clone(),
        sound.to_string(),
        (unsound + incomplete + failed).to_string(),
        tally.agree.to_string(),
        tally.disagree.to_string(),
        tally.undecided.to_string(),
        tally.not_tested.to_string(),
    ]
}

/// The columns of the table at the beginning.
const HEADINGS: [&str; 8] = [
    "campaign",
    "repeats",
    "sound samples",
    "others",
    "claims that agree",
    "disagree",
    "undecided",
    "no test",
];
