//! Three servers of NATS and three nodes on loopback: to try (`cargo xtask cluster`), under a nemesis (`cargo xtask
//! nemesis`), and for figures (`cargo xtask bench cluster`).

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::command::{in_words, run as run_command};
use crate::console::{Colour, Progress};
use crate::workspace::Workspace;
use crate::{Failure, Verdict, interop, no_arguments};

/// The longest time that building the broker may take.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

const NEMESIS_HELP: &str = "\
cargo xtask nemesis [OPTION]...

  --rounds N           faults, one after the other (10)
  --seed N             what they are; a random one without it
  --only FAULT         only faults with this in their name, such as \"kill NATS\"
  --rest-s N           nothing happens for N seconds at the end, then NATS and nodes are killed once more (0)
  --plant PROMISE      break a promise of the cluster, which must be caught: absence, fence, returns, rights or clock
";

/// A program that starts a cluster.
#[derive(Debug)]
pub(crate) struct Script<'a> {
    /// Its file in `interop/python`.
    pub(crate) name: &'a str,
    /// Its folder, which it may empty.
    pub(crate) folder: PathBuf,
    /// The build of the broker.
    pub(crate) profile: &'a str,
    /// Whether that is made before.
    pub(crate) builds: bool,
    pub(crate) arguments: &'a [String],
}

impl Script<'_> {
    /// Builds the broker and NATS, and hands over.
    pub(crate) fn run(&self, workspace: &Workspace) -> Verdict {
        let mut progress = Progress::start("build");
        if self.builds {
            let mut cargo = workspace.cargo();
            cargo.args(["build", "--locked", "--package", "sterna", "--profile"]);
            cargo.arg(self.profile);
            let log = workspace.target_folder("xtask")?.join("cluster-build.log");
            let built = run_command(&mut cargo, &log, BUILD_LIMIT, &mut progress)?;
            if !built.success {
                return Err(Failure(format!("the build failed\n{}", built.cargo_tail())));
            }
        }
        let search_path = interop::nats_search_path(workspace, &mut progress)?;
        progress.finish(Colour::Green, "ok", "");
        let build = if self.profile == "dev" {
            "debug"
        } else {
            self.profile
        };
        let program = workspace.target.join(build).join("sterna");
        if !program.is_file() {
            return Err(Failure(format!("there is no {}", program.display())));
        }
        let mut script = Command::new("python3");
        script
            .arg(workspace.root.join("interop/python").join(self.name))
            .arg(&self.folder)
            .args(self.arguments)
            .env("PATH", search_path)
            .env("STERNA_BIN", program);
        let status = script
            .status()
            .map_err(|error| Failure(format!("{}: {error}", in_words(&script))))?;
        Ok(status.success())
    }
}

/// Starts a cluster and keeps it until Ctrl-C.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    no_arguments(arguments)?;
    let script = Script {
        name: "cluster_nodes.py",
        folder: workspace.target_folder("cluster")?,
        profile: "dev",
        builds: true,
        arguments,
    };
    script.run(workspace)
}

/// Plays faults against a cluster, and compares ledgers.
pub(crate) fn nemesis(workspace: &Workspace, arguments: &[String]) -> Verdict {
    check_nemesis(arguments)?;
    let script = Script {
        name: "cluster_nemesis.py",
        folder: workspace.target_folder("nemesis")?.join("cluster"),
        profile: "dev",
        builds: true,
        arguments,
    };
    script.run(workspace)
}

fn check_nemesis(arguments: &[String]) -> Result<(), Failure> {
    let wrong = |name: &String| Failure(format!("{name}: not an option\n\n{NEMESIS_HELP}"));
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        match name.as_str() {
            "--plant" => {
                let promise = rest.next().filter(|one| {
                    ["absence", "fence", "returns", "rights", "clock"].contains(&&***one)
                });
                promise.ok_or_else(|| wrong(name))?;
            }
            "--only" => drop(rest.next().ok_or_else(|| wrong(name))?),
            "--rounds" | "--seed" | "--rest-s" => {
                let value = rest.next().and_then(|value| value.parse::<u64>().ok());
                value.ok_or_else(|| wrong(name))?;
            }
            _ => return Err(wrong(name)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_nemesis_are_checked_before_anything_is_built() {
        let check = |line: &str| {
            let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            check_nemesis(&arguments)
        };
        assert!(check("--rounds 5 --seed 9 --only kill --rest-s 900 --plant fence").is_ok());
        assert!(check("--plant returns").is_ok());
        assert!(check("--plant rights").is_ok());
        assert!(check("--plant clock").is_ok());
        for wrong in [
            "--rounds",
            "--only",
            "--rounds x",
            "--seed -1",
            "--faults 3",
            "--plant",
            "--plant x",
        ] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
