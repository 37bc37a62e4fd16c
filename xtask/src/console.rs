//! Output of a chore: progress while it works, colour and a live line only on a terminal.

use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

/// Without a terminal, a long step says that it is still alive this often.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// On a terminal, the live line is redrawn at most this often.
const REDRAW: Duration = Duration::from_millis(120);

/// The number of columns that the live line may take.
const LIVE_COLUMNS: usize = 100;

/// The colours of verdicts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Colour {
    Green,
    Yellow,
    Red,
    Faint,
}

/// Counts of checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    pub(crate) const PASSED: Self = Self {
        passed: 1,
        failed: 0,
        skipped: 0,
    };
    pub(crate) const FAILED: Self = Self {
        passed: 0,
        failed: 1,
        skipped: 0,
    };
    pub(crate) const SKIPPED: Self = Self {
        passed: 0,
        failed: 0,
        skipped: 1,
    };

    /// One check with this verdict.
    pub(crate) const fn check(passed: bool) -> Self {
        if passed { Self::PASSED } else { Self::FAILED }
    }

    /// The form of the last line of `cargo xtask test`.
    pub(crate) fn line(self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The step that is running, on screen.
#[derive(Debug)]
pub(crate) struct Progress {
    label: String,
    started: Instant,
    drawn: Instant,
    terminal: bool,
    /// Another one shows what is being done.
    is_aside: bool,
}

impl Progress {
    /// Announces a step.
    pub(crate) fn start(label: &str) -> Self {
        let now = Instant::now();
        let progress = Self {
            label: label.to_owned(),
            started: now,
            drawn: now,
            terminal: stdout().is_terminal(),
            is_aside: false,
        };
        if progress.terminal {
            progress.draw("");
        }
        progress
    }

    /// The same step for one of several threads. Only the first shows its work; all print lines of their own.
    pub(crate) fn lane(&self, number: usize) -> Self {
        Self {
            label: self.label.clone(),
            started: self.started,
            drawn: self.drawn,
            terminal: self.terminal,
            is_aside: number > 0,
        }
    }

    /// Announces a step beside others, whose work is not shown: it prints lines of its own.
    pub(crate) fn aside(label: &str) -> Self {
        let now = Instant::now();
        Self {
            label: label.to_owned(),
            started: now,
            drawn: now,
            terminal: stdout().is_terminal(),
            is_aside: true,
        }
    }

    /// The time since the step was announced.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Shows the step's present work; cheap enough to be called for every line of output.
    pub(crate) fn busy(&mut self, what: &str) {
        let due = if self.terminal { REDRAW } else { HEARTBEAT };
        if self.is_aside || self.drawn.elapsed() < due {
            return;
        }
        self.drawn = Instant::now();
        if self.terminal {
            self.draw(what);
        } else {
            println!(
                "{} still running after {}: {}",
                self.label,
                seconds(self.elapsed()),
                what
            );
            flush();
        }
    }

    /// Prints a line of its own above the running step.
    pub(crate) fn note(&self, line: &str) {
        self.clear();
        println!("{line}");
        flush();
    }

    /// Replaces the running step by its verdict, with lines that follow it.
    pub(crate) fn finish_with(&self, colour: Colour, verdict: &str, detail: &str, below: &str) {
        self.clear();
        let time = seconds(self.elapsed());
        println!(
            "{} {} {detail:<34} {time:>10}{below}",
            self.label,
            paint(colour, &pad(verdict))
        );
        flush();
    }

    /// The same without.
    pub(crate) fn finish(&self, colour: Colour, verdict: &str, detail: &str) {
        self.finish_with(colour, verdict, detail, "");
    }

    fn draw(&self, what: &str) {
        let mut line = format!("{} {:>8}  {what}", self.label, seconds(self.elapsed()));
        if let Some((cut, _)) = line.char_indices().nth(LIVE_COLUMNS) {
            line.truncate(cut);
        }
        print!("\r\x1b[2K{line}");
        flush();
    }

    fn clear(&self) {
        if self.terminal {
            print!("\r\x1b[2K");
        }
    }
}

fn pad(verdict: &str) -> String {
    format!("{verdict:<8}")
}

fn flush() {
    // A closed pipe is the reader's business; the exit code still tells the verdict.
    let _ = stdout().flush();
}

/// Wraps text in a colour where standard output is a terminal and colours are wanted.
pub(crate) fn paint(colour: Colour, text: &str) -> String {
    let code = match colour {
        Colour::Green => 32,
        Colour::Yellow => 33,
        Colour::Red => 31,
        Colour::Faint => 2,
    };
    if stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// A duration as people read it.
pub(crate) fn seconds(duration: Duration) -> String {
    let tenths = duration.as_millis() / 100;
    let (whole, tenth) = (tenths / 10, tenths % 10);
    if whole < 60 {
        format!("{whole}.{tenth} s")
    } else {
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable() {
        assert_eq!(seconds(Duration::from_millis(50)), "0.0 s");
        assert_eq!(seconds(Duration::from_millis(1_250)), "1.2 s");
        assert_eq!(seconds(Duration::from_millis(59_999)), "59.9 s");
        assert_eq!(seconds(Duration::from_secs(605)), "10 min 05 s");
    }

    #[test]
    fn the_last_line_has_its_fixed_form() {
        let mut tally = Tally::PASSED;
        tally += Tally::PASSED;
        tally += Tally::SKIPPED;
        assert_eq!(tally.line(), "2 passed, 0 failed, 1 skipped");
    }
}
