//! The command line of `cargo xtask bench durable`.

use std::path::PathBuf;

use crate::Failure;

pub(super) const HELP: &str = "\
cargo xtask bench durable [OPTION]...

  --quick              at most five minutes without the builds (the default): 100,000 sessions away, a restart
                       with 100,000 sessions and 1,000,000 messages
  --full               longer and more runs; a restart with 1,000,000 sessions and 10,000,000 messages

  --sessions N         sessions of Sterna that are away while messages are published (100,000)
  --peer-sessions N    the same of each peer (1,000 quick, 10,000 full)
  --payload BYTES      payload of each message (64)
  --window N           messages of one of ten publishers without an acknowledgement (100)
  --runs N             runs of each workload; the median counts (2 quick, 5 full)
  --peer-runs N        the same of each peer (1 quick, 3 full)
  --seconds S          length of one run (1 quick, 5 full)
  --only WORD          only brokers with this word in their name; may be repeated
  --nats FILE          nats-server, where it is not on the search path
  --artemis FOLDER     an unpacked Apache ActiveMQ Artemis
  --programs FOLDER    take sterna and sterna-lab from there, and build nothing
  --cores B,G          cores of broker and generator (0,1)
  --json FILE          append every run and every goal as a line of JSON
";

/// The requested work.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) full: bool,
    pub(super) sessions: u32,
    pub(super) peer_sessions: u32,
    pub(super) payload: usize,
    pub(super) window: u32,
    pub(super) runs: usize,
    pub(super) peer_runs: usize,
    pub(super) seconds: f64,
    pub(super) only: Vec<String>,
    pub(super) nats: Option<String>,
    pub(super) artemis: Option<PathBuf>,
    pub(super) programs: Option<PathBuf>,
    pub(super) broker_core: usize,
    pub(super) generator_core: usize,
    pub(super) json: Option<PathBuf>,
}

/// Reads a number and checks that it is one of these.
fn number<T: std::str::FromStr + PartialOrd>(
    name: &str,
    value: &str,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, Failure> {
    (value.parse().ok())
        .filter(|number| range.contains(number))
        .ok_or_else(|| Failure(format!("{name} {value}: not a value for it\n\n{HELP}")))
}

impl Options {
    pub(super) fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let full = arguments.iter().any(|argument| argument == "--full");
        if full && arguments.iter().any(|argument| argument == "--quick") {
            return Err(Failure(format!("either --quick or --full\n\n{HELP}")));
        }
        let mut options = Self {
            full,
            sessions: 100_000,
            peer_sessions: if full { 10_000 } else { 1_000 },
            payload: 64,
            window: 100,
            runs: if full { 5 } else { 2 },
            peer_runs: if full { 3 } else { 1 },
            seconds: if full { 5.0 } else { 1.0 },
            only: Vec::new(),
            nats: None,
            artemis: None,
            programs: None,
            broker_core: 0,
            generator_core: 1,
            json: None,
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            if matches!(name.as_str(), "--quick" | "--full") {
                continue;
            }
            if matches!(name.as_str(), "--help" | "-h") {
                return Err(Failure::new(HELP));
            }
            let value = arguments
                .next()
                .ok_or_else(|| Failure(format!("{name} needs a value\n\n{HELP}")))?;
            match name.as_str() {
                "--sessions" => options.sessions = number(name, value, 1..=10_000_000)?,
                "--peer-sessions" => options.peer_sessions = number(name, value, 1..=10_000_000)?,
                "--payload" => options.payload = number(name, value, 16..=262_144)?,
                "--window" => options.window = number(name, value, 1..=10_000)?,
                "--runs" => options.runs = number(name, value, 1..=1_000)?,
                "--peer-runs" => options.peer_runs = number(name, value, 1..=1_000)?,
                "--seconds" => options.seconds = number(name, value, 0.1..=600.0)?,
                "--only" => options.only.push(value.to_lowercase()),
                "--nats" => options.nats = Some(value.clone()),
                "--artemis" => options.artemis = Some(PathBuf::from(value)),
                "--programs" => options.programs = Some(PathBuf::from(value)),
                "--json" => options.json = Some(PathBuf::from(value)),
                "--cores" => {
                    let (broker, generator) = value.split_once(',').unwrap_or((value, ""));
                    options.broker_core = number(name, broker, 0..=1_023)?;
                    options.generator_core = number(name, generator, 0..=1_023)?;
                }
                _ => return Err(Failure(format!("unexpected `{name}`\n\n{HELP}"))),
            }
        }
        Ok(options)
    }

    /// Sessions and messages of the restart.
    pub(super) const fn restart(&self) -> (u32, u64) {
        if self.full {
            (1_000_000, 10_000_000)
        } else {
            (100_000, 1_000_000)
        }
    }

    /// Whether a broker of this name is to be measured.
    pub(super) fn wants(&self, broker: &str) -> bool {
        let name = broker.to_lowercase();
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, Failure> {
        Options::parse(
            &line
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let options = parse("--sessions 5000 --only NATS --cores 2,3 --full").unwrap();
        assert!(options.full && options.sessions == 5000);
        assert_eq!((options.broker_core, options.generator_core), (2, 3));
        assert!(options.wants("nats") && !options.wants("sterna"));
        assert!(parse("").unwrap().wants("sterna"));
        for wrong in [
            "--quick --full",
            "--sessions 0",
            "--payload 15",
            "--cores 1",
            "--runs",
            "--fast 1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
