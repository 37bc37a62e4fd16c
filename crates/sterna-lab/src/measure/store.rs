//! A campaign's folder: the description of the runs, and a line for each sample.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::archive;
use super::program::Build;
use super::sample::{Sample, Verdict};
use crate::calibrate::Machine;
use crate::campaign::Campaign;

/// The name of the file with the description.
pub(super) const MANIFEST: &str = "campaign.json";
/// The name of the file with the samples.
pub(super) const SAMPLES: &str = "samples.jsonl";

/// Description of the runs, their machine and their program.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Manifest {
    /// The campaign's name.
    pub campaign: String,
    /// Its version.
    pub version: u32,
    /// Its file, so that a report needs no other.
    pub text: String,
    /// Brokers that were measured besides this project's.
    pub brokers: Vec<String>,
    /// Devices that were measured besides this program's: scheme and name.
    pub devices: Vec<String>,
    /// The programs' files, this one first.
    pub builds: Vec<Build>,
    /// From which all decisions come.
    pub seed: u64,
    /// Whether it is the short form.
    pub quick: bool,
    /// The emulator of the links.
    pub emulator: String,
    /// The command that repeats it.
    pub command: String,
    /// The program's version.
    pub program: String,
    /// Whether the program was built with optimisation; CPU times of one that was not say little.
    pub optimised: bool,
    /// The machine at the start.
    pub machine: Machine,
    /// Its faults at that time.
    pub warnings: Vec<String>,
    /// Results of the calibration: a line each.
    pub calibration: Vec<String>,
    /// The settings in force for each transport: congestion control as the kernel reports it, and
    /// so on.
    pub in_force: BTreeMap<String, String>,
}

/// A folder.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    samples: File,
}

/// Use of earlier samples.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Resume {
    /// All of them count as done.
    All,
    /// Runs that failed are made again.
    WithoutFailed,
}

/// Why there is no folder to write to.
#[derive(Debug)]
pub enum OpenError {
    /// There are results in it already.
    InUse,
    /// There are results of something else in it.
    Other(String),
    /// It cannot be read or written.
    Io(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InUse => f.write_str(
                "there are results already; --resume continues them, --out names another folder",
            ),
            Self::Other(what) => f.write_str(what),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

impl Store {
    /// A folder for the results of this campaign.
    ///
    /// With `resume` existing samples are returned, except those of failed runs if these are to be
    /// repeated. The manifest stays that of the start.
    ///
    /// # Errors
    ///
    /// If the folder has results that are not to be resumed, or results of another campaign or with
    /// other settings. If the folder cannot be written. The settings are versions, campaign file, seed,
    /// length, emulator, builds, and the sets of brokers and devices.
    pub fn open(
        folder: &Path,
        manifest: &Manifest,
        resume: Option<Resume>,
    ) -> Result<(Self, Vec<Sample>), OpenError> {
        fs::create_dir_all(folder)?;
        let path = folder.join(MANIFEST);
        let samples_path = folder.join(SAMPLES);
        let mut samples = Vec::new();
        if path.exists() {
            let Some(resume) = resume else {
                return Err(OpenError::InUse);
            };
            let (earlier, found) = load(folder)?;
            for (what, is_same) in [
                ("campaign", earlier.campaign == manifest.campaign),
                (
                    "version of the campaign",
                    earlier.version == manifest.version,
                ),
                ("set of brokers", earlier.brokers == manifest.brokers),
                ("set of devices", earlier.devices == manifest.devices),
                ("build", earlier.builds == manifest.builds),
                (
                    "campaign file",
                    makes_same_runs(&earlier.text, &manifest.text),
                ),
                ("seed", earlier.seed == manifest.seed),
                ("length (--quick)", earlier.quick == manifest.quick),
                ("emulator", earlier.emulator == manifest.emulator),
                (
                    "version of the program",
                    earlier.program == manifest.program,
                ),
            ] {
                if !is_same {
                    return Err(OpenError::Other(format!(
                        "the results there are of another {what}"
                    )));
                }
            }
            samples = found;
            if resume == Resume::WithoutFailed {
                samples.retain(|sample| !matches!(sample.verdict, Verdict::Failed { .. }));
            }
            // A line that was being written when the program was killed must not swallow the next.
            let whole: String = samples.iter().map(line).collect();
            write_whole(&samples_path, whole.as_bytes())?;
        } else {
            write_manifest(folder, manifest)?;
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&samples_path)?;
        let store = Self {
            folder: folder.to_owned(),
            samples: file,
        };
        Ok((store, samples))
    }

    /// Appends a sample.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn add(&mut self, sample: &Sample) -> io::Result<()> {
        self.samples.write_all(line(sample).as_bytes())
    }

    /// Changes the description of the campaign.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn describe(&self, manifest: &Manifest) -> io::Result<()> {
        write_manifest(&self.folder, manifest)
    }
}

/// Whether two campaign files make the same runs, with any figures and claims.
fn makes_same_runs(earlier: &str, now: &str) -> bool {
    earlier == now
        || matches!(
            (Campaign::parse(earlier), Campaign::parse(now)),
            (Ok(earlier), Ok(now)) if now.makes_the_runs_of(&earlier)
        )
}

/// Writes a file under another name first, so that a reader never finds half of it.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, bytes)?;
    fs::rename(&part, path)
}

fn write_manifest(folder: &Path, manifest: &Manifest) -> io::Result<()> {
    let text = serde_json::to_string_pretty(manifest).map_err(io::Error::other)?;
    write_whole(&folder.join(MANIFEST), (text + "\n").as_bytes())
}

fn line(sample: &Sample) -> String {
    // Strings, numbers and maps with strings as keys: nothing that JSON has no form for.
    serde_json::to_string(sample).unwrap_or_default() + "\n"
}

/// Whether a folder holds a campaign's results.
pub(crate) fn exists(folder: &Path) -> bool {
    folder.join(MANIFEST).is_file()
}

/// Content of a folder. An incomplete last line is left out: its run is repeated.
///
/// # Errors
///
/// If it cannot be read, or a line but the last is no sample.
pub fn load(folder: &Path) -> io::Result<(Manifest, Vec<Sample>)> {
    let invalid = |what: &Path, error: serde_json::Error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: {error}", what.display()),
        )
    };
    let path = folder.join(MANIFEST);
    let text = fs::read_to_string(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    let manifest = serde_json::from_str(&text).map_err(|error| invalid(&path, error))?;
    let mut samples = Vec::new();
    if let Some(reader) = archive::open(folder)? {
        let mut lines = reader.lines().peekable();
        while let Some(line) = lines.next() {
            match serde_json::from_str(&line?) {
                Ok(sample) => samples.push(sample),
                Err(_) if lines.peek().is_none() => {}
                Err(error) => return Err(invalid(&folder.join(SAMPLES), error)),
            }
        }
    }
    Ok((manifest, samples))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::Plan;

    fn manifest(seed: u64) -> Manifest {
        Manifest {
            campaign: "x".into(),
            version: 1,
            text: String::new(),
            brokers: Vec::new(),
            devices: Vec::new(),
            builds: Vec::new(),
            seed,
            quick: true,
            emulator: "tun".into(),
            command: "sterna-lab run x".into(),
            program: "0".into(),
            optimised: false,
            machine: Machine::look(),
            warnings: Vec::new(),
            calibration: Vec::new(),
            in_force: BTreeMap::new(),
        }
    }

    fn sample() -> Sample {
        let (campaign, _) = Campaign::find("mqtt-jeddou-2022").unwrap();
        let plan = Plan::new(&campaign, true, 1, &[]).unwrap();
        let mut sample = Sample::of(&plan.runs[0], "tun", 5, Verdict::Sound);
        assert_eq!(sample.key(), plan.runs[0].key());
        sample.metrics.insert("total_s".into(), 1.5);
        sample.series.insert("delays_ms".into(), vec![25.125]);
        sample
    }

    #[test]
    fn an_interrupted_campaign_goes_on_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let (mut store, samples) = Store::open(path, &manifest(1), None).unwrap();
        assert!(samples.is_empty());
        store.add(&sample()).unwrap();
        drop(store);
        // Killed in the middle of a line.
        let mut file = OpenOptions::new()
            .append(true)
            .open(path.join(SAMPLES))
            .unwrap();
        file.write_all(b"{\"grid\":\"d").unwrap();
        assert!(matches!(
            Store::open(path, &manifest(1), None),
            Err(OpenError::InUse)
        ));
        let other = Store::open(path, &manifest(2), Some(Resume::All)).unwrap_err();
        assert!(other.to_string().contains("another seed"));
        let (mut store, samples) = Store::open(path, &manifest(1), Some(Resume::All)).unwrap();
        assert_eq!(samples.len(), 1);
        let mut failed = sample();
        failed.repetition = 1;
        failed.verdict = Verdict::Failed {
            reason: "no broker".into(),
        };
        store.add(&failed).unwrap();
        let (_, samples) = load(path).unwrap();
        assert_eq!(samples.len(), 2);
        assert_eq!(samples[0].series["delays_ms"], [25.125]);
        assert_eq!(samples[1].verdict, failed.verdict);
        let (_, samples) = Store::open(path, &manifest(1), Some(Resume::WithoutFailed)).unwrap();
        assert_eq!(samples.len(), 1);
        assert_eq!(load(path).unwrap().1.len(), 1);
    }

    #[test]
    fn a_campaign_goes_on_when_only_its_questions_have_changed() {
        let (_, text) = Campaign::find("mqtt-fernandez-2020").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let of = |text: &str| Manifest {
            text: text.into(),
            ..manifest(1)
        };
        let (mut store, _) = Store::open(folder.path(), &of(&text), None).unwrap();
        store.add(&sample()).unwrap();
        let resume = |text: &str| Store::open(folder.path(), &of(text), Some(Resume::All));

        let reworded = text.replace("agreement means", "this means");
        assert_ne!(reworded, text);
        let (_, samples) = resume(&reworded).unwrap();
        assert_eq!(samples.len(), 1);

        let longer = text.replace("repetitions = 8", "repetitions = 9");
        assert_ne!(longer, text);
        let other = resume(&longer).unwrap_err();
        assert!(other.to_string().contains("another campaign file"));
    }
}
