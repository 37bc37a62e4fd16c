//! `sterna store`: looks into the store of a broker that does not run, and takes it elsewhere.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args as ClapArgs, Subcommand};
use sterna_server::config;
use sterna_server::data_directory::DataDirectory;
use sterna_store::disk::{Disk, RealDisk};
use sterna_store::inspect::{self, ImportError, Imported, Inspection};
use sterna_store::{Damage, OpenError, Settings};

use super::export_file::ExportFile;
use super::serve::Source;

/// Check, count, export, import and compact the store of a broker that does not run.
///
/// Exit status: 0 done, and the store is sound; 1 something in it is damaged, or was not carried; 2 not done.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Read all of the store, and name file and offset of each damaged place. Changes nothing
    Check(Place),
    /// Print size and content of each file of the log, and of the records. Changes nothing
    Stats(Place),
    /// Write all messages and records as JSON lines. Changes nothing in the store
    Export {
        #[command(flatten)]
        place: Place,

        /// Write to this file, which must not exist, instead of to standard output
        #[arg(short, long, value_name = "PATH")]
        output: Option<PathBuf>,
    },
    /// Make a store from an export. There must be no store yet
    Import {
        #[command(flatten)]
        place: Place,

        /// Read this file instead of standard input
        #[arg(short, long, value_name = "PATH")]
        input: Option<PathBuf>,
    },
    /// Make the files smaller: take applied changes out of the log, and messages that no reader in the records needs.
    /// Give back free pages. Damaged files stay
    Compact(Place),
}

/// Which store.
#[derive(Debug, ClapArgs)]
struct Place {
    #[command(flatten)]
    source: Source,

    /// Data directory of the broker
    #[arg(long = "data-dir", value_name = "DIRECTORY")]
    data_directory: Option<PathBuf>,
}

/// Some of the store is damaged.
const DAMAGED: u8 = 1;
/// Something of an export means nothing to a store.
const LEFT: u8 = 1;
/// It was not done.
const NOT_DONE: u8 = 2;

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    match act(&args.action, &mut io::stdout().lock()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("sterna store: {error}");
            ExitCode::from(NOT_DONE)
        }
    }
}

/// A store that is locked, so that no broker opens it.
struct Locked {
    disk: Arc<dyn Disk>,
    settings: Settings,
    path: PathBuf,
    _directory: DataDirectory,
}

impl Place {
    /// Locks the data directory; makes it only where the store is to be `made`.
    fn lock(&self, made: bool) -> Result<Locked, String> {
        let mut configuration = config::load(self.source.config.as_deref(), std::env::vars())
            .map_err(|error| error.to_string())?;
        if let Some(directory) = &self.data_directory {
            configuration.data_directory = Some(directory.clone());
        }
        let directory = configuration.data_directory()?;
        let path = directory.join(STORE);
        if !made {
            match fs::metadata(&path) {
                Ok(found) if found.is_dir() => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let path = path.display();
                    return Err(format!("{path}: {error}; run this as the broker's user"));
                }
                _ => return Err(format!("{}: there is no store", path.display())),
            }
        }
        let directory = DataDirectory::claim(&directory)?;
        let path = directory.path().join(STORE);
        Ok(Locked {
            disk: Arc::new(RealDisk::new(&path)),
            settings: Settings::from(&configuration.store),
            path,
            _directory: directory,
        })
    }
}

/// The store's folder in the data directory.
const STORE: &str = "store";
/// The ending of its name while it is imported.
const DRAFT: &str = "importing";

/// Runs it, and returns the exit status.
fn act(action: &Action, out: &mut dyn Write) -> Result<u8, String> {
    let written = |error: io::Error| error.to_string();
    match action {
        Action::Check(place) => {
            let store = place.lock(false)?;
            let inspection = match inspect::inspect(&store.disk) {
                Err(error @ OpenError::Damaged { .. }) => {
                    eprintln!("damaged: {error}");
                    return Ok(DAMAGED);
                }
                inspected => inspected.map_err(|error| error.to_string())?,
            };
            let code = report(&inspection.damage);
            if let Some(torn) = &inspection.torn {
                eprintln!("not damaged, the next start cuts it off: {torn}");
            }
            check_lines(&inspection, &store.path, out).map_err(written)?;
            Ok(code)
        }
        Action::Stats(place) => {
            let store = place.lock(false)?;
            let inspection = look(&store)?;
            stats_lines(&inspection, out).map_err(written)?;
            Ok(report(&inspection.damage))
        }
        Action::Export { place, output } => {
            let store = place.lock(false)?;
            let exported = match output {
                None => inspect::export(&store.disk, &mut BufWriter::new(out)),
                Some(path) => {
                    let mut file = ExportFile::begin(path)?;
                    let exported = inspect::export(&store.disk, &mut file);
                    if exported.is_ok() {
                        file.finish()?;
                    }
                    exported
                }
            };
            let exported = exported.map_err(|error| error.to_string())?;
            eprintln!(
                "exported {} and {} of {}",
                counted(exported.messages, "message"),
                counted(exported.records, "record"),
                store.path.display()
            );
            Ok(report(&exported.damage))
        }
        Action::Import { place, input } => {
            let mut reader: Box<dyn BufRead> = match input {
                None => Box::new(io::stdin().lock()),
                Some(path) => {
                    let file = File::open(path).map_err(|error| named(path, &error))?;
                    Box::new(BufReader::new(file))
                }
            };
            let (imported, folder) = import(place, &mut reader)?;
            writeln!(
                out,
                "imported {} and {} into {}",
                counted(imported.messages, "message"),
                counted(imported.records, "record"),
                folder.display()
            )
            .map_err(written)?;
            if imported.of_cluster == 0 {
                return Ok(0);
            }
            let keys = counted(imported.of_cluster, "key");
            eprintln!("not carried: {keys} of requests of HTTP, which a store has in another form");
            Ok(LEFT)
        }
        Action::Compact(place) => {
            let store = place.lock(false)?;
            let needs = inspect::needs(&store.disk, &store.settings);
            let needs = needs.map_err(|error| error.to_string())?;
            let compacted = inspect::compact(&store.disk, &store.settings, needs)
                .map_err(|error| error.to_string())?;
            writeln!(
                out,
                "{} bytes, {} before; {} written anew",
                compacted.after_bytes,
                compacted.before_bytes,
                counted(compacted.rewritten, "file")
            )
            .map_err(written)?;
            Ok(report(&look(&store)?.damage))
        }
    }
}

/// Makes a store from an export, as a whole: a broker must not start with half of it. Also returns its
/// folder.
fn import(place: &Place, reader: &mut dyn BufRead) -> Result<(Imported, PathBuf), String> {
    let store = place.lock(true)?;
    if store.path.exists() {
        return Err(named(&store.path, &ImportError::Exists));
    }
    let draft = store.path.with_extension(DRAFT);
    let failed = |error: io::Error| named(&draft, &error);
    let remove = || match fs::remove_dir_all(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    };
    // The rest of an import that was killed.
    remove()?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(&draft));
    let imported = match inspect::import(&disk, &store.settings, reader) {
        Ok(imported) => imported,
        Err(error) => {
            remove()?;
            return Err(named(&store.path, &error));
        }
    };
    fs::rename(&draft, &store.path).map_err(failed)?;
    let folder = draft.parent().unwrap_or(&draft);
    let folder = File::open(folder).map_err(failed)?;
    folder.sync_all().map_err(failed)?;
    Ok((imported, store.path.clone()))
}

fn named(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

fn look(store: &Locked) -> Result<Inspection, String> {
    inspect::inspect(&store.disk).map_err(|error| error.to_string())
}

/// Names each damaged place on standard error, and returns the exit status.
fn report(damage: &[Damage]) -> u8 {
    for damage in damage {
        eprintln!("damaged: {damage}");
    }
    if damage.is_empty() { 0 } else { DAMAGED }
}

fn counted(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

fn check_lines(inspection: &Inspection, path: &Path, out: &mut dyn Write) -> io::Result<()> {
    let frames = inspection
        .segments
        .iter()
        .map(|segment| segment.frames)
        .sum();
    let messages = inspection
        .segments
        .iter()
        .map(|segment| segment.messages)
        .sum();
    let state = match inspection.damage.len() as u64 {
        0 => "sound".to_owned(),
        places => counted(places, "damaged place"),
    };
    writeln!(
        out,
        "{state}: {} with {} and {}, {} in {}",
        counted(inspection.segments.len() as u64, "file"),
        counted(frames, "frame"),
        counted(messages, "message"),
        counted(inspection.records, "record"),
        path.display()
    )
}

fn stats_lines(inspection: &Inspection, out: &mut dyn Write) -> io::Result<()> {
    for segment in &inspection.segments {
        let (first, next) = segment.positions;
        let index = if segment.has_index {
            ""
        } else {
            ", no index yet"
        };
        let rewritten = match (segment.is_rewritten, segment.joined) {
            (false, _) => String::new(),
            (true, 0) => ", rewritten".to_owned(),
            (true, others) => format!(", rewritten from {} files", u64::from(others) + 1),
        };
        writeln!(
            out,
            "{}: {} bytes, {}, {}, {}, positions {first} to {}{rewritten}{index}",
            segment.file,
            segment.bytes,
            counted(segment.frames, "frame"),
            counted(segment.messages, "message"),
            counted(segment.topics, "topic"),
            next.saturating_sub(1).max(first)
        )?;
    }
    writeln!(
        out,
        "records: {}, {} bytes, {} newer than their file",
        inspection.records,
        inspection.record_bytes,
        counted(inspection.unapplied_frames, "frame")
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use sterna_store::{Draft, Engine};

    use super::*;

    fn place(folder: &Path) -> Place {
        Place {
            source: Source { config: None },
            data_directory: Some(folder.to_owned()),
        }
    }

    /// Runs it; returns the exit status and the output.
    fn output(action: &Action) -> Result<(u8, String), String> {
        let mut out = Vec::new();
        let code = act(action, &mut out)?;
        Ok((code, String::from_utf8(out).unwrap()))
    }

    fn fill(folder: &Path) {
        let disk = Arc::new(RealDisk::new(folder.join(STORE)));
        let running = Engine::open(disk, Settings::default())
            .unwrap()
            .spawn()
            .unwrap();
        let mut handle = running.handle(Box::new(|| {}));
        for number in 0..10_u8 {
            let mut draft = Draft::default();
            draft
                .message("a/topic", |out| out.extend_from_slice(&[number; 50]))
                .unwrap();
            draft.change(&[number], Some(b"value")).unwrap();
            handle.append(&draft).unwrap();
        }
        drop(handle);
        running.close().unwrap();
    }

    #[test]
    fn a_store_in_a_place_that_may_not_be_read_is_not_said_to_be_absent() {
        // Root may read everything; this fails for all in the same way, with another error than "not found".
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        let why = output(&Action::Check(place(&file))).unwrap_err();
        assert!(why.contains("run this as the broker's user"), "{why}");
    }

    #[test]
    fn a_store_is_checked_counted_and_taken_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = (folder.path().join("here"), folder.path().join("there"));
        let why = output(&Action::Check(place(&here))).unwrap_err();
        assert!(why.contains("there is no store"), "{why}");
        assert!(!here.exists(), "looking makes nothing");
        drop(DataDirectory::claim(&here).unwrap());
        fill(&here);
        let (code, text) = output(&Action::Check(place(&here))).unwrap();
        assert_eq!(code, 0);
        assert_eq!(
            text,
            format!(
                "sound: 1 file with 10 frames and 10 messages, 10 records in {}\n",
                here.join(STORE).display()
            )
        );
        let (code, text) = output(&Action::Stats(place(&here))).unwrap();
        assert_eq!(code, 0);
        assert!(
            text.contains("10 messages, 1 topic, positions 1 to 10"),
            "{text}"
        );
        assert!(
            text.contains("records: 10, 60 bytes, 0 frames newer"),
            "{text}"
        );

        let lines = folder.path().join("lines");
        let export = Action::Export {
            place: place(&here),
            output: Some(lines.clone()),
        };
        assert_eq!(output(&export).unwrap().0, 0);
        let why = output(&export).unwrap_err();
        assert!(
            why.ends_with("lines: the file exists: remove it, or name another"),
            "{why}"
        );
        let import = Action::Import {
            place: place(&there),
            input: Some(lines.clone()),
        };
        let (code, text) = output(&import).unwrap();
        let made = there.join(STORE);
        let told = format!(
            "imported 10 messages and 10 records into {}\n",
            made.display()
        );
        assert_eq!((code, text), (0, told));
        assert!(
            output(&import)
                .unwrap_err()
                .contains("there is a store already")
        );
        let (_, again) = output(&Action::Export {
            place: place(&there),
            output: None,
        })
        .unwrap();
        assert_eq!(again, fs::read_to_string(&lines).unwrap());
        assert_eq!(output(&Action::Compact(place(&there))).unwrap().0, 0);
    }

    #[test]
    fn an_import_that_fails_leaves_nothing_and_an_export_is_the_users_own() {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = (folder.path().join("here"), folder.path().join("there"));
        drop(DataDirectory::claim(&here).unwrap());
        fill(&here);
        let lines = folder.path().join("lines");
        let export = Action::Export {
            place: place(&here),
            output: Some(lines.clone()),
        };
        assert_eq!(output(&export).unwrap().0, 0);
        assert_eq!(fs::metadata(&lines).unwrap().mode() & 0o777, 0o600);
        let whole = fs::read_to_string(&lines).unwrap();
        let import = Action::Import {
            place: place(&there),
            input: Some(lines.clone()),
        };
        let end = whole.trim_end().rfind('\n').unwrap();
        for cut in [0, 40, end, end + 1] {
            fs::write(&lines, &whole[..cut]).unwrap();
            let why = output(&import).unwrap_err();
            assert!(why.contains("line "), "{cut}: {why}");
            let left = fs::read_dir(&there).unwrap().count();
            assert_eq!(left, 0, "{cut}: a broker would start with it");
        }
        // The rest of one that was killed is in nobody's way.
        fs::create_dir_all(there.join("store.importing/log")).unwrap();
        fs::write(&lines, &whole).unwrap();
        assert_eq!(output(&import).unwrap().0, 0);
        assert_eq!(output(&Action::Check(place(&there))).unwrap().0, 0);
        assert!(!there.join("store.importing").exists());
    }

    #[test]
    fn a_damaged_place_is_exit_status_1() {
        let folder = tempfile::tempdir().unwrap();
        drop(DataDirectory::claim(folder.path()).unwrap());
        fill(folder.path());
        let file = folder.path().join("store/log/0000000001.log");
        let mut bytes = fs::read(&file).unwrap();
        bytes[300] ^= 1;
        fs::write(&file, bytes).unwrap();
        let (code, text) = output(&Action::Check(place(folder.path()))).unwrap();
        assert_eq!(code, DAMAGED);
        assert_eq!(
            text,
            format!(
                "1 damaged place: 1 file with 9 frames and 9 messages, 10 records in {}\n",
                folder.path().join(STORE).display()
            )
        );
        let export = Action::Export {
            place: place(folder.path()),
            output: Some(folder.path().join("lines")),
        };
        for action in [
            Action::Stats(place(folder.path())),
            export,
            Action::Compact(place(folder.path())),
        ] {
            assert_eq!(output(&action).unwrap().0, DAMAGED, "{action:?}");
        }
    }

    #[test]
    fn a_records_file_that_is_missing_or_cut_short_is_damage_and_a_log_without_its_front() {
        let folder = tempfile::tempdir().unwrap();
        drop(DataDirectory::claim(folder.path()).unwrap());
        fill(folder.path());
        let records = folder.path().join("store/records.redb");
        let whole = fs::read(&records).unwrap();
        let check = || output(&Action::Check(place(folder.path()))).map(|(code, _)| code);
        fs::write(&records, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(check(), Ok(DAMAGED));
        fs::remove_file(&records).unwrap();
        assert_eq!(check(), Ok(DAMAGED));
        fs::write(&records, &whole).unwrap();
        assert_eq!(check(), Ok(0));
        fs::remove_file(folder.path().join("store/log/0000000001.log")).unwrap();
        assert_eq!(check(), Ok(DAMAGED));
        let export = Action::Export {
            place: place(folder.path()),
            output: Some(folder.path().join("lines")),
        };
        assert_eq!(output(&export).unwrap().0, DAMAGED);
    }

    #[test]
    fn a_broker_that_runs_keeps_its_store_to_itself() {
        let folder = tempfile::tempdir().unwrap();
        let broker = DataDirectory::claim(folder.path()).unwrap();
        fill(folder.path());
        let why = output(&Action::Check(place(folder.path()))).unwrap_err();
        assert!(why.contains("another broker that is running"), "{why}");
        drop(broker);
        assert_eq!(output(&Action::Check(place(folder.path()))).unwrap().0, 0);
    }
}
