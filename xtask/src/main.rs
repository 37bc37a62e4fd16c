//! The project's own chores: `cargo xtask help` lists them.
//!
//! This crate is compiled before anything else can run, so it stays with the standard library and a
//! JSON parser.

mod bench;
mod changed;
mod changelog;
mod choice;
mod cluster;
mod command;
mod console;
mod crash;
mod crates;
mod deny;
mod fuzz;
mod interop;
mod invariants;
mod lanes;
mod needs;
mod package;
mod parts;
mod pattern;
mod powercut;
mod record;
mod rust_source;
mod second_run;
mod setup;
mod sources;
mod spec;
mod steps;
mod test_programs;
mod test_report;
mod tiers;
mod tools;
mod workspace;

use std::process::ExitCode;

use workspace::Workspace;

/// Result of a chore: whether all checked subjects were in order, or the reason why it could not
/// check.
type Verdict = Result<bool, Failure>;

/// Why a chore could not do its work; the text is for the person who called it.
#[derive(Debug)]
struct Failure(String);

impl Failure {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

const HELP: &str = "\
The project's own chores.

  cargo xtask test                             every Rust test and foreign client; the last line counts them
  cargo xtask test --changed                   what a change touches; `--all`: everything; more with `--help`
  cargo xtask setup [--all] [--list]           install what the tests need
  cargo xtask invariants                       promises of the architecture about the source
  cargo xtask spec                             statements of the specifications against code and tests
  cargo xtask fuzz [TARGET] [--seconds N]      fuzz every target, or one; `--replay FILE` runs one input
  cargo xtask interop [SUITE]... [--list]      foreign clients against the broker; `--release` for speed,
                                               `--cluster [--seed N]`: each connection to one of three nodes
  cargo xtask cluster                          three nodes on three servers of NATS, to try
  cargo xtask nemesis [--rounds N] [--seed S]  kill, pause and cut off their parts, and compare ledgers
  cargo xtask crash [--kills N] [--seed S]     kill the broker under load, and compare; more with `--help`
  cargo xtask faults [--faults N] [--seed S]   disturb the clients' way to a broker, and compare; `--help`
  cargo xtask powercut [--cuts N] [--seed S]   cut the power of a simulated disk, and compare; `--help`
  cargo xtask bench quick|full|durable|cost    cost of the broker in CPU and memory
  cargo xtask package [--check]                static programs, Debian packages, an image; `--check` tries them
  cargo xtask deny                             licences, sources and bans of the dependencies
  cargo xtask crates                           packages of the crates that are for others, built together
  cargo xtask changelog VERSION                moves the fragments of `changes/` into `CHANGELOG.md`
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (chore, rest) = match arguments.split_first() {
        Some((chore, rest)) => (chore.as_str(), rest),
        None => ("help", &[][..]),
    };
    match dispatch(chore, rest) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Failure(text)) => {
            eprintln!("cargo xtask {chore}: {text}");
            ExitCode::from(2)
        }
    }
}

fn dispatch(chore: &str, arguments: &[String]) -> Verdict {
    let workspace = Workspace::find()?;
    match chore {
        "test" => tiers::run(&workspace, arguments),
        "setup" => setup::run(&workspace, arguments),
        "invariants" => invariants::run(&workspace, arguments),
        "spec" => spec::run(&workspace, arguments),
        "fuzz" => fuzz::run(&workspace, arguments),
        "interop" => interop::run(&workspace, arguments),
        "cluster" => cluster::run(&workspace, arguments),
        "nemesis" => cluster::nemesis(&workspace, arguments),
        "crash" | "faults" => crash::run(&workspace, chore, arguments),
        "powercut" => powercut::run(&workspace, arguments),
        "bench" => bench::run(&workspace, arguments),
        "package" => package::run(&workspace, arguments),
        "deny" => deny::run(&workspace, arguments),
        "crates" => crates::run(&workspace, arguments),
        "changelog" => changelog::run(&workspace, arguments),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(true)
        }
        _ => Err(Failure::new(format!("no such chore\n\n{HELP}"))),
    }
}

/// Refuses arguments where a chore takes none.
fn no_arguments(arguments: &[String]) -> Result<(), Failure> {
    match arguments.first() {
        None => Ok(()),
        Some(first) => Err(Failure::new(format!("unexpected argument `{first}`"))),
    }
}
