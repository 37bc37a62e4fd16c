//! Child processes that are spoken to in lines.

use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::device::Word;

/// Interval of checks whether the campaign was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time that a process has to end when it is asked to.
const GRACE: Duration = Duration::from_secs(3);
/// Longest line: a device's result with all its messages.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Bytes of standard error that are kept for the report of a failure.
const MAX_COMPLAINT_BYTES: u64 = 600;
/// Stack of a thread that copies lines.
const READER_STACK_BYTES: usize = 64 << 10;

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    name: &'static str,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Standard error goes to a file: an unread pipe would stop the process.
    complaints: std::fs::File,
}

impl Process {
    /// Starts a command. It dies with this thread if it was adopted by a namespace.
    pub(super) fn start(name: &'static str, command: &mut Command) -> io::Result<Self> {
        let complaints = tempfile::tempfile()?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(complaints.try_clone()?)
            .spawn()?;
        let stdin = child.stdin.take();
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("no standard output"))?;
        let (sender, lines) = channel();
        thread::Builder::new()
            .name("lines".into())
            .stack_size(READER_STACK_BYTES)
            .spawn(move || {
                let mut reader = BufReader::new(stdout);
                loop {
                    let mut line = String::new();
                    match reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line) {
                        Ok(length) if length > 0 => {
                            // There is no reader any more: continue, so that the process is not
                            // stopped.
                            let _ = sender.send(line);
                        }
                        _ => return,
                    }
                }
            })?;
        Ok(Self {
            name,
            child,
            stdin,
            lines,
            complaints,
        })
    }

    /// Its process identifier.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line.
    pub(super) fn say(&mut self, line: &str) -> Result<(), String> {
        let Some(stdin) = &mut self.stdin else {
            return Err(format!("{}: its input is closed", self.name));
        };
        writeln!(stdin, "{line}").map_err(|error| self.complain(&error.to_string()))
    }

    /// Says that nothing more will come.
    pub(super) fn close(&mut self) {
        self.stdin = None;
    }

    /// The next line.
    pub(super) fn line(&mut self, deadline: Instant, stop: &AtomicBool) -> Result<String, String> {
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(INTERRUPTED.into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.complain("said nothing in time"));
            }
            match self.lines.recv_timeout(left.min(LOOK_EVERY)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.complain("has ended")),
            }
        }
    }

    /// The next word of a device.
    pub(super) fn word(&mut self, deadline: Instant, stop: &AtomicBool) -> Result<Word, String> {
        let line = self.line(deadline, stop)?;
        match serde_json::from_str(&line) {
            Ok(Word::Failed { reason }) => Err(format!("{}: {reason}", self.name)),
            Ok(word) => Ok(word),
            Err(error) => Err(format!("{}: not a word: {error}", self.name)),
        }
    }

    /// Lets its threads run before all others without real-time priority, if that is allowed. If
    /// not, a device reports it itself. Call it after the start: starting takes more CPU time than
    /// all later work, and must not delay the links of others.
    pub(super) fn prefer(&self) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        for task in tasks.into_iter().flatten().flatten() {
            if let Some(thread) = task.file_name().to_str().and_then(|id| id.parse().ok()) {
                let _ = crate::kernel::prefer(thread);
            }
        }
    }

    /// Whether all its threads have real-time priority.
    pub(super) fn is_preferred(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        tasks.into_iter().flatten().flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            crate::kernel::is_round_robin(&stat)
        })
    }

    /// CPU time of all threads that it has, in nanoseconds, as the kernel's scheduler counts it.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        let mut sum = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid())).ok()? {
            let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            sum += text.split_ascii_whitespace().next()?.parse::<u64>().ok()?;
        }
        Some(sum)
    }

    /// Bytes of memory that it has now.
    pub(super) fn rss_bytes(&self) -> Option<u64> {
        self.status_bytes("VmRSS:")
    }

    /// The most that it ever had.
    pub(super) fn peak_rss_bytes(&self) -> Option<u64> {
        self.status_bytes("VmHWM:")
    }

    fn status_bytes(&self, name: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: u64 = value.split_ascii_whitespace().next()?.parse().ok()?;
        Some(kilobytes * 1024)
    }

    /// Ends it without a warning.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.stdin = None;
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The fault, with the end of the process's standard error.
    pub(super) fn complain(&mut self, what: &str) -> String {
        let mut text = String::new();
        let length = self.complaints.seek(SeekFrom::End(0)).unwrap_or(0);
        let from = length.saturating_sub(MAX_COMPLAINT_BYTES);
        if self.complaints.seek(SeekFrom::Start(from)).is_ok() {
            let mut bytes = Vec::new();
            // Unreadable output is left out: the failure itself is reported in any case.
            let _ = self.complaints.read_to_end(&mut bytes);
            text = String::from_utf8_lossy(&bytes).trim().replace('\n', "; ");
        }
        if text.is_empty() {
            format!("{}: {what}", self.name)
        } else {
            format!("{}: {what}: {text}", self.name)
        }
    }

    /// Waits until it has ended by itself; if it takes its time, ends it.
    pub(super) fn wait(&mut self) {
        self.stdin = None;
        let began = Instant::now();
        while began.elapsed() < GRACE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.end();
    }

    /// Ends it: closes its input, asks it, kills it.
    pub(super) fn end(&mut self) {
        self.stdin = None;
        let began = Instant::now();
        let _ = crate::kernel::signal(self.pid(), crate::kernel::SIGTERM);
        while began.elapsed() < GRACE {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.end();
        }
    }
}

/// Text for an interrupted run.
pub(super) const INTERRUPTED: &str = "interrupted";

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_process_is_spoken_to_in_lines() {
        let mut command = Command::new("sh");
        command.args(["-c", "read word; echo \"got $word\"; cat; echo why >&2"]);
        let mut process = Process::start("shell", &mut command).unwrap();
        let stop = AtomicBool::new(false);
        process.say("go").unwrap();
        assert_eq!(process.line(soon(), &stop).unwrap(), "got go\n");
        process.close();
        let error = process.line(soon(), &stop).unwrap_err();
        assert!(error.starts_with("shell: has ended"), "{error}");
        process.end();
        assert!(process.complain("x").ends_with("x: why"));
    }

    #[test]
    fn nobody_is_waited_for_after_an_interruption() {
        let mut command = Command::new("cat");
        let mut process = Process::start("cat", &mut command).unwrap();
        let stop = AtomicBool::new(true);
        assert_eq!(process.line(soon(), &stop).unwrap_err(), INTERRUPTED);
        let late = process.line(Instant::now(), &AtomicBool::new(false));
        assert!(late.unwrap_err().contains("in time"));
    }
}
