//! Every row of every claim, made again by another program in another language.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Collection;
use crate::calibrate::Machine;
use crate::campaign::{CAMPAIGNS, Campaign, Plan};
use crate::link::Random;
use crate::measure::archive::{PACKED, pack};
use crate::measure::store::{Manifest, Store};
use crate::measure::{Sample, Verdict};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recompute.py");
/// Repetitions that are made up: few, so that the other program has few different draws to make.
const REPETITIONS: u32 = 6;
/// Most bytes of samples in the repository.
const MOST_SHIPPED_BYTES: u64 = 20_000_000;
/// Of this number of samples one is missing, one unsound, and one incomplete.
const GAP: u64 = 101;

/// A Python with numpy: that of the path, or the system's. `None` where there is neither.
///
/// # Panics
///
/// In continuous integration, which installs both and may leave nothing out.
fn python() -> Option<PathBuf> {
    let found = ["python3", "/usr/bin/python3"]
        .into_iter()
        .map(PathBuf::from)
        .find(|python| {
            let tried = Command::new(python).args(["-c", "import numpy"]).output();
            tried.is_ok_and(|output| output.status.success())
        });
    assert!(
        found.is_some() || std::env::var_os("CI").is_none(),
        "no python3 with numpy: apt-get install python3-numpy"
    );
    if found.is_none() {
        eprintln!("SKIPPED: no python3 with numpy (apt-get install python3-numpy)");
    }
    found
}

/// Lets the other program make the rows of a report again.
fn recompute(python: &Path, report: &Path, samples: &Path, campaign: &str) -> (bool, String) {
    let output = Command::new(python)
        .arg(PROGRAM)
        .arg(report.join("rows.json"))
        .arg(samples)
        .arg(campaign)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// The metrics and series that a campaign's claims ask for.
fn wanted(campaign: &Campaign) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut metrics, mut series) = (BTreeSet::new(), BTreeSet::new());
    let claims = campaign.claims.iter();
    for check in claims.flat_map(|claim| claim.checks().chain(&claim.shown)) {
        let Some(source) = check.source() else {
            continue;
        };
        match source.metric.split_once('.') {
            None => metrics.insert(source.metric.clone()),
            Some((name, _)) => series.insert(name.to_owned()),
        };
    }
    // A metric with one value a run is no series, though a claim ask for its largest.
    series.retain(|name| !metrics.contains(name));
    (metrics, series)
}

/// Results of runs that nobody made, in a folder: values with a level of their own for each repetition,
/// transport and run.
fn make_up(name: &str, text: &str, folder: &Path) {
    let campaign = Campaign::parse(text).unwrap();
    let campaign = campaign.with_rival(Some(Path::new("rivals")));
    let (metrics, series) = wanted(&campaign);
    let manifest = Manifest {
        campaign: name.into(),
        version: campaign.version,
        text: text.into(),
        brokers: Vec::new(),
        devices: Vec::new(),
        builds: Vec::new(),
        seed: 1,
        quick: false,
        emulator: "none".into(),
        command: "none".into(),
        program: "0".into(),
        optimised: true,
        machine: Machine::look(),
        warnings: Vec::new(),
        calibration: Vec::new(),
        in_force: BTreeMap::new(),
    };
    let (mut store, _) = Store::open(folder, &manifest, None).unwrap();
    let plan = Plan::new(&campaign, false, 1, &[]).unwrap();
    let mut random = Random::new(&[41]);
    for run in plan.runs.iter().filter(|run| run.repetition < REPETITIONS) {
        let mut sample = Sample::of(run, "none", 0, Verdict::Sound);
        match random.next_u64() % GAP {
            0 => continue,
            1 => {
                let reasons = vec!["made up".into()];
                sample.verdict = Verdict::Unsound { reasons };
            }
            2 => {
                let reason = "made up".into();
                sample.verdict = Verdict::Incomplete { reason };
            }
            _ => {}
        }
        let of_repetition = Random::new(&[run.seed]).unit();
        for name in &metrics {
            let value = 100.0 * 0.3_f64.mul_add(random.unit(), 1.0 + of_repetition);
            sample.metrics.insert(name.clone(), value);
        }
        for name in &series {
            let level = 10.0 * 0.3_f64.mul_add(random.unit(), 1.0 + of_repetition);
            let values = (0..7).map(|_| level + random.unit()).collect();
            sample.series.insert(name.clone(), values);
        }
        store.add(&sample).unwrap();
    }
}

#[test]
fn another_program_makes_every_row_again() {
    let Some(python) = python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in CAMPAIGNS {
        make_up(name, text, &folder.path().join(name));
    }
    let collection = Collection::read(folder.path(), false).unwrap();
    collection.write(folder.path()).unwrap();
    for report in collection.reports() {
        let samples = folder.path().join(report.name()).join("samples.jsonl");
        let (is_right, said) = recompute(&python, folder.path(), &samples, report.name());
        println!("{}: {said}", report.name());
        assert!(is_right, "{}: {said}", report.name());
        let rows: usize = report
            .answers()
            .iter()
            .map(|answer| answer.rows.len())
            .sum();
        assert!(said.starts_with(&format!("{rows} rows, ")), "{said}");
        assert!(!said.contains(" 0 with intervals"), "{said}");
    }
}

#[test]
fn another_program_sees_a_wrong_row() {
    let Some(python) = python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (name, text) = CAMPAIGNS[4];
    make_up(name, text, folder.path());
    let collection = Collection::read(folder.path(), false).unwrap();
    let files = collection.write(folder.path()).unwrap();
    let right = fs::read_to_string(&files.rows).unwrap();
    let mut rows: serde_json::Value = serde_json::from_str(&right).unwrap();
    let first = rows[name].as_array().unwrap();
    let first = first.iter().position(|row| !row["low"].is_null()).unwrap();
    for (field, factor) in [("value", 1.000_1), ("low", 0.5), ("high", 1.5)] {
        let mut wrong = rows.clone();
        let value = &mut wrong[name][first][field];
        *value = (value.as_f64().unwrap() * factor).into();
        fs::write(&files.rows, wrong.to_string()).unwrap();
        let (is_right, said) = recompute(
            &python,
            folder.path(),
            &folder.path().join("samples.jsonl"),
            name,
        );
        assert!(!is_right && said.contains(", 1 wrong"), "{field}: {said}");
    }
    let verdict = rows[name][first]["agreement"].as_str().unwrap();
    let other = if verdict == "agree" {
        "disagree"
    } else {
        "agree"
    };
    rows[name][first]["agreement"] = other.into();
    fs::write(&files.rows, rows.to_string()).unwrap();
    let (is_right, said) = recompute(
        &python,
        folder.path(),
        &folder.path().join("samples.jsonl"),
        name,
    );
    assert!(
        !is_right && said.contains(&format!("instead of {other}")),
        "{said}"
    );
}

/// The page of results.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results.md");

/// A short run that is in the repository for this test alone.
fn short() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shipped")
}

/// Published results: those of the papers first, then each of our own in a folder below.
fn published() -> Vec<PathBuf> {
    let papers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let entries = fs::read_dir(&papers).unwrap().map(Result::unwrap);
    let own = entries.map(|entry| entry.path());
    let mut own: Vec<PathBuf> = own
        .filter(|folder| folder.join("samples").is_dir())
        .collect();
    own.sort();
    assert!(own.len() >= 2, "{own:?}");
    [vec![papers], own].concat()
}

/// The text up to the bracket that closes the one before it.
fn in_brackets(text: &str) -> &str {
    let mut depth = 1;
    let end = text.find(|c| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    });
    &text[..end.unwrap()]
}

/// Citations in a page, each with its values: `(row ID: VALUES)`, ``(best `ID`: VALUES)``, and the rows
/// `| ID | … | VALUES |` of tables with a column "ours".
fn cited(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    // A line may end anywhere in a citation, also before its identifier.
    let joined = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for (start, end) in [("(row ", ": "), ("(best `", "`: ")] {
        for part in joined.split(start).skip(1) {
            let whole = in_brackets(part);
            let (id, values) = whole.split_once(end).unwrap();
            found.push((id.to_owned(), values.to_owned()));
        }
    }
    let mut ours = None;
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            ours = None;
        } else if let Some(column) = cells.iter().position(|cell| *cell == "ours") {
            ours = Some(column);
        } else if let Some(column) = ours.filter(|_| !line.starts_with("|--")) {
            found.push((cells[1].to_owned(), cells[column].to_owned()));
        }
    }
    found
}

#[test]
fn a_citation_may_be_on_several_lines() {
    let one = |id: &str, values: &str| vec![(id.to_owned(), values.to_owned())];
    for text in ["(row 1: 2 (1 to 3))", "(row\n1: 2 (1\nto 3))"] {
        assert_eq!(cited(text), one("1", "2 (1 to 3)"));
    }
    for text in ["(best `a b`: 2)", "(best\n`a\nb`: 2)"] {
        assert_eq!(cited(text), one("a b", "2"));
    }
}

#[test]
fn the_page_cites_values_of_its_rows() {
    let reports: String = published()
        .iter()
        .map(|folder| fs::read_to_string(folder.join("report.md")).unwrap())
        .collect();
    let cited = cited(&fs::read_to_string(PAGE).unwrap());
    assert!(cited.len() > 50, "{}", cited.len());
    for (id, values) in cited {
        let row = reports
            .lines()
            .find(|line| line.starts_with(&format!("| {id} |")))
            .unwrap_or_else(|| panic!("no row {id}"));
        for value in values.split("; ") {
            assert!(row.contains(value), "{id}: `{value}` is not in {row}");
        }
    }
}

#[test]
fn published_samples_fit_and_name_no_folder_of_a_machine() {
    let samples: Vec<PathBuf> = published()
        .iter()
        .map(|folder| folder.join("samples"))
        .collect();
    assert!(samples.iter().map(|it| bytes_below(it)).sum::<u64>() < MOST_SHIPPED_BYTES);
    for folder in samples {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let manifest = fs::read(entry.path().join("campaign.json")).unwrap();
            let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
            let command = manifest["command"].as_str().unwrap();
            assert!(!command.contains('/'), "{command}");
        }
    }
}

/// Bytes of the files in a folder and in those below it.
fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.metadata().unwrap() {
            metadata if metadata.is_dir() => bytes_below(&entry.path()),
            metadata => metadata.len(),
        })
        .sum()
}

#[test]
fn shipped_samples_give_every_row_of_their_report_again() {
    for folder in [vec![short()], published()].concat() {
        let samples = folder.join("samples");
        assert!(bytes_below(&samples) < MOST_SHIPPED_BYTES);
        let collection = Collection::read(&samples, false).unwrap();
        let out = tempfile::tempdir().unwrap();
        let files = collection.write(out.path()).unwrap();
        let made = fs::read_to_string(&files.rows).unwrap();
        let rows = fs::read_to_string(folder.join("rows.json")).unwrap();
        // The text would be long.
        assert!(made == rows, "{}: rows have changed", folder.display());
        let Some(python) = python() else {
            continue;
        };
        for report in collection.reports() {
            let packed = samples.join(report.name()).join(PACKED);
            let (is_right, said) = recompute(&python, &folder, &packed, report.name());
            println!("{}: {said}", report.name());
            assert!(is_right, "{}: {said}", report.name());
            let count = said.split_once(" rows, ").unwrap().0.parse::<usize>();
            assert!(count.unwrap() >= 10, "{said}");
        }
    }
}

#[test]
fn packed_samples_are_read_like_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let (name, text) = CAMPAIGNS[4];
    let (plain, packed) = (folder.path().join("plain"), folder.path().join("packed"));
    make_up(name, text, &plain);
    let bytes = pack(&plain, &packed).unwrap();
    assert_eq!(bytes, bytes_below(&packed));
    assert!(bytes < bytes_below(&plain) / 2);
    let rows = |samples: &Path| {
        let files = Collection::read(samples, false)
            .unwrap()
            .write(folder.path());
        fs::read_to_string(files.unwrap().rows).unwrap()
    };
    assert!(rows(&plain) == rows(&packed));
    // Samples that are cut off are no campaign with fewer samples.
    let cut = fs::read(packed.join(PACKED)).unwrap();
    fs::write(packed.join(PACKED), &cut[..cut.len() / 2]).unwrap();
    assert!(Collection::read(&packed, false).is_err());
    assert!(pack(&packed, &plain).is_err());
}

/// The notebook's cells, one after another; that which draws only where matplotlib is.
const NOTEBOOK: &str = r#"
import importlib.util, json, sys
for cell in json.load(open(sys.argv[1]))["cells"]:
    draws = "draw" in cell["metadata"].get("tags", [])
    if cell["cell_type"] == "code" and not (draws and not importlib.util.find_spec("matplotlib")):
        exec("".join(cell["source"]), globals())
"#;

#[test]
fn the_notebook_reads_the_shipped_samples() {
    let Some(python) = python() else {
        return;
    };
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().unwrap();
    for folder in [short(), published().swap_remove(0)] {
        let output = Command::new(&python)
            .args(["-c", NOTEBOOK])
            .arg(crate_folder.join("../../docs/results/figure.ipynb"))
            .env("SAMPLES", folder.join("samples/mqtt-fernandez-2020"))
            .env("FIGURE", out.path().join("figure.svg"))
            .env("MPLBACKEND", "Agg")
            .env("MPLCONFIGDIR", out.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        // A line for each cell of the grid, with an interval around its mean.
        assert_eq!(said.matches(" to ").count(), 18, "{said}");
    }
}
