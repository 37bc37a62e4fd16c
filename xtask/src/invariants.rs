//! Promises of the architecture about the source, checked by reading it.

mod arrows;
mod blocking;
mod layers;
mod limits;
mod links;
mod packages;
mod prose;
mod shown;
mod text;

use std::fmt::Write as _;

use serde_json::Value;

pub(crate) use prose::one_sentence;

use crate::command::output;
use crate::console::{Colour, paint};
use crate::workspace::Workspace;
use crate::{Failure, Verdict, changelog, sources};

/// One promise, and where it is broken.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The promise in a few words.
    pub(crate) name: &'static str,
    /// Where it is broken.
    pub(crate) violations: Vec<String>,
    /// Where it soon may be.
    pub(crate) warnings: Vec<String>,
}

impl Rule {
    const fn new(name: &'static str, violations: Vec<String>) -> Self {
        Self {
            name,
            violations,
            warnings: Vec::new(),
        }
    }

    /// Whether the promise is kept.
    pub(crate) const fn kept(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Prints every rule and its violations.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    crate::no_arguments(arguments)?;
    let rules = check(workspace)?;
    print!("{}", describe(&rules, true));
    Ok(rules.iter().all(Rule::kept))
}

/// Looks at the workspace's packages and sources.
pub(crate) fn check(workspace: &Workspace) -> Result<Vec<Rule>, Failure> {
    let metadata = output(workspace.cargo().args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--all-features",
    ]))?;
    let metadata: Value = serde_json::from_str(&metadata)
        .map_err(|error| Failure::new(format!("cargo metadata: {error}")))?;
    let graph = arrows::Graph::read(&metadata)?;
    let files = sources::load(workspace, &["crates", "xtask"])?;
    let tracked = workspace.tracked_files()?;
    Ok(vec![
        Rule::new("arrows between crates point down", arrows::upward(&graph)),
        Rule::new(
            "engines depend on no input or output",
            arrows::engines_with_io(&graph),
        ),
        Rule::new(
            "engines read no clock and touch no system",
            text::engines_with_io(&files),
        ),
        Rule::new(
            "transports know no message protocol",
            arrows::transport_with_protocol(&graph),
        ),
        Rule::new(
            "carriers of HTTP know no messages",
            arrows::carriers_with_messages(&graph),
        ),
        Rule::new(
            "nothing in a shard waits",
            blocking::waits_in_shards(&files),
        ),
        Rule::new("every limit is a setting", limits::unset_limits(&files)),
        Rule::new(
            "dependencies need no newer Rust than is promised",
            packages::newer_rust(&metadata),
        ),
        Rule::new(
            "crates are ready to be published",
            packages::unpublishable(&metadata),
        ),
        Rule::new(
            "uses between the server's modules point down",
            layers::upward(&files),
        ),
        Rule::new(
            "unsafe code only in named modules",
            text::unsafe_code(&files),
        ),
        Rule::new(
            "every crate takes the workspace's lints",
            text::lints(workspace, &tracked)?,
        ),
        text::long_files(&files),
        Rule::new(
            "folders are named by their content",
            text::vague_names(&tracked),
        ),
        Rule::new(
            "no path of one machine in a tracked file",
            text::machine_paths(workspace, &tracked),
        ),
        prose::long_sentences(workspace, &tracked)?,
        Rule::new(
            "each fragment of the changelog is one sentence",
            changelog::malformed(workspace, &tracked)?,
        ),
        Rule::new(
            "links between pages lead to a heading",
            links::broken(workspace, &tracked)?,
        ),
        Rule::new(
            "each promise of durability has its test",
            shown::unshown(workspace, &tracked)?,
        ),
        Rule::new(
            "comments begin with the thing",
            prose::open_subjects(&files),
        ),
    ])
}

/// The rules as lines; the kept ones only where asked for.
pub(crate) fn describe(rules: &[Rule], all: bool) -> String {
    let mut text = String::new();
    for rule in rules {
        if rule.kept() && (all || !rule.warnings.is_empty()) {
            let _ = writeln!(text, "{} {}", paint(Colour::Green, "ok    "), rule.name);
        } else if !rule.kept() {
            let _ = writeln!(text, "{} {}", paint(Colour::Red, "FAILED"), rule.name);
        }
        for violation in &rule.violations {
            let _ = writeln!(text, "       {violation}");
        }
        for warning in &rule.warnings {
            let _ = writeln!(
                text,
                "       {} {warning}",
                paint(Colour::Yellow, "warning:")
            );
        }
    }
    text
}
