//! Where the payload of a message comes from.

use std::fs::File;
use std::io::{self, BufRead as _, Read};
use std::path::PathBuf;

use tokio::sync::mpsc;

/// Largest payload that any packet can carry, in bytes.
const MAX_PAYLOAD_BYTES: u64 = 268_435_455;
/// Lines that are read ahead of the connection.
const LINES_AHEAD: usize = 256;

/// Options of the payload, of which one is given.
#[derive(clap::Args, Clone, Debug)]
#[group(multiple = false)]
pub(super) struct Payload {
    /// The payload
    #[arg(short = 'm', long, value_name = "TEXT", allow_hyphen_values = true)]
    message: Option<String>,
    /// A file with the payload
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Standard input as one payload
    #[arg(short = 's', long)]
    stdin_file: bool,
    /// No payload; with -r this removes the retained message
    #[arg(short = 'n', long)]
    null_message: bool,
}

impl Payload {
    /// Whether any of the options is there.
    pub(super) const fn is_given(&self) -> bool {
        self.message.is_some() || self.file.is_some() || self.stdin_file || self.null_message
    }

    /// Reads the payload.
    pub(super) fn read(&self) -> Result<Vec<u8>, String> {
        if let Some(message) = &self.message {
            return Ok(message.clone().into_bytes());
        }
        if let Some(path) = &self.file {
            return File::open(path)
                .and_then(read_all)
                .map_err(|error| format!("{}: {error}", path.display()));
        }
        if self.stdin_file {
            return read_all(io::stdin().lock())
                .map_err(|error| format!("standard input: {error}"));
        }
        Ok(Vec::new())
    }
}

fn read_all(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(MAX_PAYLOAD_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_PAYLOAD_BYTES {
        return Err(io::Error::other("too large for one message"));
    }
    Ok(bytes)
}

/// The lines of standard input, without their ends, read by a thread of their own.
pub(super) fn lines() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(LINES_AHEAD);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let line = next_line(&mut stdin);
            let last = !matches!(line, Ok(Some(_)));
            if let Some(line) = line.transpose()
                && sender.blocking_send(line).is_err()
            {
                return;
            }
            if last {
                return;
            }
        }
    });
    receiver
}

fn next_line(source: &mut impl io::BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    if source
        .take(MAX_PAYLOAD_BYTES + 1)
        .read_until(b'\n', &mut line)?
        == 0
    {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() as u64 > MAX_PAYLOAD_BYTES {
        return Err(io::Error::other("a line is too large for one message"));
    }
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_line_feed_is_taken_away() {
        let mut source = &b"one\ntwo\r\n\nlast"[..];
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut source).unwrap() {
            lines.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(lines, ["one", "two\r", "", "last"]);
    }
}
