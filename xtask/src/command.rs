//! Runs a program, keeps its output, and shows that it is alive.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::console::Progress;
use crate::workspace::Workspace;

/// Interval of checks of a running program while it prints nothing.
const POLL: Duration = Duration::from_millis(100);

/// The last lines of a log that are printed when a program failed.
const TAIL_LINES: usize = 60;

/// The longest line that is kept of a program's output; the rest of the line is dropped.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// The longest time that cargo, or a program of tests, may take.
pub(crate) const CARGO_LIMIT: Duration = Duration::from_secs(50 * 60);

/// First words of cargo's lines about progress.
const CARGO_VERBS: [&str; 8] = [
    "Checking",
    "Compiling",
    "Documenting",
    "Downloaded",
    "Downloading",
    "Finished",
    "Locking",
    "Updating",
];

/// A program that ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Whether it ended by itself with exit code 0.
    pub(crate) success: bool,
    /// Its end, in words.
    pub(crate) ending: String,
    /// Standard output and error, line by line, as they came.
    pub(crate) lines: Vec<String>,
    /// Where the same lines lie on disk.
    pub(crate) log: PathBuf,
}

impl Outcome {
    /// The end of the output, for a person to read.
    pub(crate) fn tail(&self) -> String {
        self.tail_without(|_| false)
    }

    /// The same for cargo, without the lines that only say that it is busy.
    pub(crate) fn cargo_tail(&self) -> String {
        self.tail_without(|line| {
            let verb = line.split_whitespace().next().unwrap_or_default();
            line.starts_with("  ") && CARGO_VERBS.contains(&verb)
        })
    }

    /// The same without the lines that only say that all is well.
    pub(crate) fn tail_without(&self, noise: impl Fn(&str) -> bool) -> String {
        let told: Vec<&str> = self
            .lines
            .iter()
            .map(String::as_str)
            .filter(|line| !noise(line))
            .collect();
        let skipped = told.len().saturating_sub(TAIL_LINES);
        let ending = format!("({}; all of it in {})", self.ending, self.log.display());
        let mut lines = vec!["..."];
        lines.truncate(skipped);
        lines.extend(&told[skipped..]);
        lines.push(&ending);
        format!("    {}", lines.join("\n    "))
    }
}

/// Runs a command to its end. Its output goes to `log`, and its last line to the progress display;
/// after `limit` it is killed.
pub(crate) fn run(
    command: &mut Command,
    log: &Path,
    limit: Duration,
    progress: &mut Progress,
) -> Result<Outcome, Failure> {
    run_watched(command, log, limit, progress, &mut |_| ())
}

/// The same; each line is shown to `watch` as soon as it comes.
pub(crate) fn run_watched(
    command: &mut Command,
    log: &Path,
    limit: Duration,
    progress: &mut Progress,
    watch: &mut dyn FnMut(&str),
) -> Result<Outcome, Failure> {
    let mut file =
        File::create(log).map_err(|error| Failure::new(format!("{}: {error}", log.display())))?;
    writeln!(file, "$ {}", in_words(command))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| Failure::new(format!("{}: {error}", in_words(command))))?;
    let lines_received = read_lines(&mut child);
    let started = Instant::now();
    let (mut lines, mut shown) = (Vec::new(), String::new());
    let mut killed = false;
    loop {
        match lines_received.recv_timeout(POLL) {
            Ok(line) => {
                writeln!(file, "{line}")?;
                // Lines of JSON are for this program.
                if !line.starts_with('{') {
                    line.trim().clone_into(&mut shown);
                }
                progress.busy(&shown);
                watch(&line);
                lines.push(line);
            }
            Err(RecvTimeoutError::Timeout) => {
                progress.busy(&shown);
                // A grandchild may hold the pipes open after the program itself has ended.
                if child.try_wait()?.is_some() {
                    for line in lines_received.try_iter() {
                        writeln!(file, "{line}")?;
                        watch(&line);
                        lines.push(line);
                    }
                    break;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if started.elapsed() > limit && !killed {
            kill_tree(child.id());
            child.kill()?;
            killed = true;
        }
    }
    let status = child.wait()?;
    let ending = if killed {
        format!("killed after {} s", limit.as_secs())
    } else {
        ending(status)
    };
    Ok(Outcome {
        success: status.success() && !killed,
        ending,
        lines,
        log: log.to_path_buf(),
    })
}

/// Runs a cargo command in the workspace's root, with `variable` in its environment. Its log is
/// `NAME.log` in the build folder.
pub(crate) fn cargo(
    workspace: &Workspace,
    progress: &mut Progress,
    name: &str,
    arguments: &[&str],
    variable: Option<(&str, &str)>,
) -> Result<Outcome, Failure> {
    let mut command = workspace.cargo();
    command.args(arguments).env("CARGO_TERM_COLOR", "never");
    if let Some((name, value)) = variable {
        command.env(name, value);
    }
    let log = workspace
        .target_folder("xtask")?
        .join(format!("{name}.log"));
    run(&mut command, &log, CARGO_LIMIT, progress)
}

/// Runs a command to its end and returns its standard output; an error where it fails.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::new(format!("{}: {error}", in_words(command))))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let why = String::from_utf8_lossy(&output.stderr);
        Err(Failure::new(format!(
            "{} failed: {}",
            in_words(command),
            why.trim()
        )))
    }
}

/// Kills a program's processes that are still its children: cargo's compilers and tests, a suite's
/// clients.
pub(crate) fn kill_tree(parent: u32) {
    for child in children(parent) {
        kill_tree(child);
        // It may have ended by itself in the meantime.
        let _ = Command::new("kill")
            .args(["-KILL", &child.to_string()])
            .output();
    }
}

/// The processes whose parent this is; none where the system has no `/proc`.
fn children(parent: u32) -> Vec<u32> {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|process| {
            // The name, in brackets, may hold anything; behind it are the state and the parent.
            std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| {
                stat.rsplit_once(')')
                    .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok())
                    == Some(parent)
            })
        })
        .collect()
}

fn ending(status: ExitStatus) -> String {
    status
        .code()
        .map_or_else(|| format!("{status}"), |code| format!("exit code {code}"))
}

/// A command as one would type it.
pub(crate) fn in_words(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

fn read_lines(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(stdout) = child.stdout.take() {
        let sender = sender.clone();
        thread::spawn(move || forward_lines(stdout, &sender));
    }
    if let Some(stderr) = child.stderr.take() {
        thread::spawn(move || forward_lines(stderr, &sender));
    }
    receiver
}

fn forward_lines(source: impl Read, sender: &Sender<String>) {
    let mut source = BufReader::new(source);
    let mut line = Vec::new();
    loop {
        line.clear();
        match source.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                line.truncate(MAX_LINE_BYTES);
                let text = String::from_utf8_lossy(&line)
                    .trim_end_matches(['\r', '\n'])
                    .to_owned();
                if sender.send(text).is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_shell(script: &str, limit: Duration) -> Outcome {
        let log = std::env::temp_dir().join(format!(
            "xtask-command-{}-{:?}.log",
            std::process::id(),
            thread::current().id()
        ));
        let mut progress = Progress::start("test");
        let outcome = run(
            Command::new("sh").args(["-c", script]),
            &log,
            limit,
            &mut progress,
        )
        .unwrap();
        assert!(
            std::fs::read_to_string(&log)
                .unwrap()
                .starts_with("$ sh -c")
        );
        std::fs::remove_file(&log).unwrap();
        outcome
    }

    #[test]
    fn output_and_verdict_are_kept() {
        let outcome = run_shell("echo one; echo two >&2; exit 3", Duration::from_secs(20));
        assert!(!outcome.success);
        assert_eq!(outcome.ending, "exit code 3");
        let mut lines = outcome.lines;
        lines.sort();
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn what_a_hanging_program_started_is_killed_with_it() {
        let outcome = run_shell("sleep 600 & echo $!; wait", Duration::from_secs(2));
        assert!(!outcome.success);
        let stat = format!("/proc/{}/stat", outcome.lines[0]);
        let is_gone = || {
            let state = std::fs::read_to_string(&stat).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_gone() {
            assert!(Instant::now() < deadline, "it is still there");
            thread::sleep(POLL);
        }
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let started = Instant::now();
        let outcome = run_shell("exec sleep 60", Duration::from_millis(200));
        assert!(!outcome.success);
        assert!(outcome.ending.starts_with("killed"), "{}", outcome.ending);
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
