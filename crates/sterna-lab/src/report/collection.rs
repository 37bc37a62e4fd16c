//! The reports of several campaigns as one.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use super::page::{cell, escape, page};
use super::{Files, Report, csv};
use crate::measure::store;

/// What the page is called.
const TITLE: &str = "The lab's results: the papers and ours";

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
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if store::exists(&path) {
                folders.push(path);
            }
        }
        folders.sort();
        if folders.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{}: no campaign's results", folder.display()),
            ));
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

    /// Writes `report.html`, `report.md` with `figures/`, and `samples.csv`; of several campaigns
    /// `samples-CAMPAIGN.csv` each.
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
            fs::write(&path, csv::table(&report.samples))?;
            files.csv.push(path);
        }
        fs::write(&files.html, self.html())?;
        fs::write(&files.markdown, self.markdown())?;
        Ok(files)
    }

    /// The report as one HTML page that needs nothing else.
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
    let [sound, unsound, failed] = report.counts();
    [
        report.campaign.name.clone(),
        report.campaign.paper.clone(),
        sound.to_string(),
        (unsound + failed).to_string(),
        tally.agree.to_string(),
        tally.partly.to_string(),
        tally.disagree.to_string(),
        tally.not_measured.to_string(),
    ]
}

/// The columns of the table at the beginning.
const HEADINGS: [&str; 8] = [
    "campaign",
    "repeats",
    "sound samples",
    "others",
    "claims that agree",
    "partly",
    "do not",
    "inputs, or a stated reason",
];
