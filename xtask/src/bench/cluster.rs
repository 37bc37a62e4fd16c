//! `cargo xtask bench cluster`: three nodes and three servers of NATS on one machine, beside NATS' own MQTT.

use crate::cluster::Script;
use crate::workspace::Workspace;
use crate::{Failure, Verdict};

const HELP: &str = "\
cargo xtask bench cluster [OPTION]...

  --profile NAME       build of the broker: dist (the default), release or dev
  --no-build           take the program of that build as it is
  --messages N         messages of each publisher at QoS 0; a twentieth of them at QoS 1 and 2 (200,000)
  --rounds N           rounds of each figure; the median counts (3)
  --only WORD          only figures with this word in their name, such as \"QoS 0\", fan-out, \"a death\",
                       memory, NATS or syncs; may be repeated
  --json FILE          append every round as a line of JSON
";

/// The requested work.
#[derive(Debug)]
struct Options {
    profile: String,
    build: bool,
    /// For the program that measures.
    passed: Vec<String>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self {
            profile: super::PROFILE.to_owned(),
            build: true,
            passed: Vec::new(),
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            if name == "--no-build" {
                options.build = false;
                continue;
            }
            let value = (arguments.next())
                .ok_or_else(|| Failure(format!("{name} needs a value\n\n{HELP}")))?;
            let is_number = value.parse::<u32>().is_ok_and(|number| number > 0);
            match name.as_str() {
                "--profile" => options.profile.clone_from(value),
                "--messages" | "--rounds" if is_number => {
                    options.passed.extend([name.clone(), value.clone()]);
                }
                "--only" | "--json" => options.passed.extend([name.clone(), value.clone()]),
                _ => return Err(Failure(format!("{name} {value}: not an option\n\n{HELP}"))),
            }
        }
        Ok(options)
    }
}

/// Builds the broker and NATS, and hands over to the program that measures.
pub(super) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    if arguments.iter().any(|one| one == "--help") {
        print!("{HELP}");
        return Ok(true);
    }
    let options = Options::parse(arguments)?;
    let script = Script {
        name: "cluster_bench.py",
        folder: workspace.target_folder("bench")?.join("cluster"),
        profile: &options.profile,
        builds: options.build,
        arguments: &options.passed,
    };
    script.run(workspace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, Failure> {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&arguments)
    }

    #[test]
    fn options_are_read_and_what_is_none_is_refused() {
        let options = parse("--no-build --profile dev --rounds 2 --only fan-out").expect("options");
        assert!(!options.build);
        assert_eq!(options.profile, "dev");
        assert_eq!(options.passed, ["--rounds", "2", "--only", "fan-out"]);
        for wrong in ["--rounds 0", "--messages x", "--rounds", "--what 1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
