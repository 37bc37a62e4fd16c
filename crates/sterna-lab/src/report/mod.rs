//! Results of a campaign's samples: figures in the papers' forms, claims with verdicts, pages.
//!
//! Only sound samples count. Those out of tolerance are listed; figures and claims use them only on
//! request, and then say so. Runs that failed or lost messages are listed, and no claim about their
//! cells agrees: leaving them out flatters their transport.

mod best;
mod checks;
mod claims;
mod collection;
mod csv;
mod figures;
mod numbers;
mod page;
mod parquet;
mod plot;
#[cfg(test)]
mod recompute_tests;
mod resample;
pub mod statistics;
mod table;
#[cfg(test)]
mod tests;
mod values;

use std::io;
use std::path::{Path, PathBuf};

use crate::campaign::Campaign;
use crate::measure::store::{self, Manifest};
use crate::measure::{Sample, Verdict};

pub use checks::{Recipe, Row};
pub use claims::{Agreement, Answer};
pub use collection::{Collection, Format};
pub use figures::Drawing;

/// A campaign's results, read and judged.
#[derive(Debug)]
pub struct Report {
    campaign: Campaign,
    manifest: Manifest,
    /// All of them, in the order in which they came.
    samples: Vec<Sample>,
    /// Whether samples out of tolerance are shown as if they were sound.
    with_unsound: bool,
    answers: Vec<Answer>,
    bests: Vec<best::Line>,
    drawings: Vec<Drawing>,
}

/// The files of a report.
#[derive(Clone, Debug)]
pub struct Files {
    /// The page with everything in it.
    pub html: PathBuf,
    /// The same as text, with pictures beside it.
    pub markdown: PathBuf,
    /// Each value of each claim, and how it is made of samples.
    pub rows: PathBuf,
    /// The metrics as tables, one for each campaign.
    pub csv: Vec<PathBuf>,
    /// The pictures.
    pub figures: Vec<PathBuf>,
}

impl Report {
    /// Reads one campaign's results and judges them.
    fn read(folder: &Path, with_unsound: bool) -> io::Result<Self> {
        let (manifest, samples) = store::load(folder)?;
        let campaign = Campaign::parse_again(&manifest.text)
            .and_then(|campaign| campaign.with_brokers(&manifest.brokers))
            .and_then(|campaign| campaign.with_devices(&manifest.devices))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if samples.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{}: no run has given a sample yet", folder.display()),
            ));
        }
        Ok(Self::new(campaign, manifest, samples, with_unsound))
    }

    fn new(
        campaign: Campaign,
        manifest: Manifest,
        samples: Vec<Sample>,
        with_unsound: bool,
    ) -> Self {
        let counted: Vec<&Sample> = samples
            .iter()
            .filter(|sample| match &sample.verdict {
                Verdict::Sound => true,
                Verdict::Unsound { .. } => with_unsound,
                Verdict::Incomplete { .. } | Verdict::Failed { .. } => false,
            })
            .collect();
        let unsuccessful: Vec<&Sample> = samples
            .iter()
            .filter(|sample| {
                matches!(
                    sample.verdict,
                    Verdict::Incomplete { .. } | Verdict::Failed { .. }
                )
            })
            .collect();
        let table = values::Table::new(&campaign, manifest.quick, &counted, &unsuccessful);
        let answers = claims::answer_all(&campaign, &table);
        let bests = best::lines(&campaign, &table);
        let drawings = figures::draw_all(&campaign, &table);
        Self {
            campaign,
            manifest,
            samples,
            with_unsound,
            answers,
            bests,
            drawings,
        }
    }

    /// The campaign's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.campaign.name
    }

    /// The answers to the claims.
    #[must_use]
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// Samples that are sound, unsound, incomplete, and failed.
    #[must_use]
    pub fn counts(&self) -> [usize; 4] {
        let mut counts = [0; 4];
        for sample in &self.samples {
            counts[match sample.verdict {
                Verdict::Sound => 0,
                Verdict::Unsound { .. } => 1,
                Verdict::Incomplete { .. } => 2,
                Verdict::Failed { .. } => 3,
            }] += 1;
        }
        counts
    }
}
