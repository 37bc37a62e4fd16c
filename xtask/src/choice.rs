//! Which parts `cargo xtask test` runs, and why.

use std::collections::BTreeMap;

use crate::Failure;
use crate::changed::{self, Crates};
use crate::console::Tally;
use crate::interop::{Suite, Suites};
use crate::parts::{Part, Parts, Tier};
use crate::record::Record;
use crate::workspace::Workspace;

pub(crate) const HELP: &str = "\
cargo xtask test [OPTION]...

                       every Rust test, every protocol's foreign clients, a cluster and two partitions of it
  --changed            only what a change touches: what is not committed, and all since the main branch
  --base REV           with --changed: all since this commit
  --all                everything, also what takes long: target/xtask/all.txt has a line for each part
  --resume             with --all: only parts that have not passed for this commit
  --only PART          this part, or those below it: tests, interop, interop/paho; may be repeated
  --list               the parts with their tiers, and what they lack here; nothing is run";

/// The request on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    only: Vec<String>,
    pub(crate) list: bool,
    pub(crate) all: bool,
    pub(crate) changed: bool,
    base: Option<String>,
    pub(crate) resume: bool,
    pub(crate) help: bool,
}

impl Request {
    /// Reads it; what is named must be there.
    ///
    /// # Errors
    /// When an option is unknown, or options do not go together.
    pub(crate) fn read(arguments: &[String]) -> Result<Self, Failure> {
        let mut request = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let value = arguments.next().cloned();
                value.ok_or_else(|| Failure(format!("{argument} needs a value\n\n{HELP}")))
            };
            match argument.as_str() {
                "--list" => request.list = true,
                "--all" => request.all = true,
                "--changed" => request.changed = true,
                "--resume" => request.resume = true,
                "--help" | "-h" => request.help = true,
                "--base" => request.base = Some(value()?),
                "--only" => request.only.push(value()?),
                other => return Err(Failure(format!("unexpected argument `{other}`\n\n{HELP}"))),
            }
        }
        let wrong = if request.changed && (request.all || !request.only.is_empty()) {
            "--changed stands alone"
        } else if request.base.is_some() && !request.changed {
            "--base goes with --changed"
        } else if request.resume && !request.all {
            "--resume goes with --all"
        } else {
            return Ok(request);
        };
        Err(Failure::new(wrong))
    }

    /// Whether a part of this tier is asked for by its name, or by that of its group.
    fn names(&self, part: &str, tier: Tier, is_all_of_group: bool) -> bool {
        self.only.iter().any(|name| {
            let below = part.strip_prefix(name.as_str());
            below.is_some_and(|rest| match rest.strip_prefix('/') {
                Some(_) => self.all || tier == Tier::Test || is_all_of_group,
                None => rest.is_empty(),
            })
        })
    }
}

/// Parts that are to be run.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) parts: Vec<Part>,
    pub(crate) suites: Vec<Suite>,
    /// The crates that count; `None`: all.
    pub(crate) packages: Option<Vec<String>>,
    /// By part or crate, why it was chosen.
    pub(crate) reasons: BTreeMap<String, String>,
    /// By part, the counts of what has passed before.
    pub(crate) before: BTreeMap<String, Tally>,
}

impl Choice {
    /// Chooses.
    ///
    /// # Errors
    /// When `--only` names nothing, and when git or cargo cannot tell what has changed.
    pub(crate) fn make(
        workspace: &Workspace,
        request: &Request,
        parts: &Parts,
        suites: &Suites,
        record: &Record,
    ) -> Result<Self, Failure> {
        if request.changed {
            let files = changed::files(workspace, request.base.as_deref())?;
            return Ok(Self::changed(
                &files,
                &Crates::load(workspace)?,
                parts,
                suites,
            ));
        }
        let mut choice = Self::asked(request, parts, suites)?;
        if request.resume {
            if !record.is_exact() {
                let why = "--resume: files are changed, so results of the commit are not theirs";
                return Err(Failure::new(why));
            }
            choice.before = record.passed();
            let (parts, suites) = (&choice.parts, &choice.suites);
            choice.before.retain(|name, _| {
                parts.iter().any(|part| part.name == *name)
                    || suites.iter().any(|suite| suite.part() == *name)
            });
            let before = &choice.before;
            choice.parts.retain(|part| !before.contains_key(&part.name));
            choice
                .suites
                .retain(|suite| !before.contains_key(&suite.part()));
        }
        Ok(choice)
    }

    fn asked(request: &Request, parts: &Parts, suites: &Suites) -> Result<Self, Failure> {
        let names: Vec<(String, Tier)> = (parts.parts.iter())
            .map(|part| (part.name.clone(), part.tier))
            .chain(suites.suites.iter().map(|suite| (suite.part(), suite.tier)))
            .collect();
        for name in &request.only {
            let is_known =
                |(part, _): &(String, Tier)| part == name || part.starts_with(&format!("{name}/"));
            if !names.iter().any(is_known) {
                return Err(Failure(format!(
                    "--only {name}: no such part; --list has them"
                )));
            }
        }
        let is_wanted = |name: &str, tier: Tier| {
            if request.only.is_empty() {
                return request.all || tier == Tier::Test;
            }
            let group = name.split_once('/').map_or(name, |(group, _)| group);
            let of_group = |(part, tier): &(String, Tier)| {
                part.split_once('/')
                    .is_some_and(|(other, _)| other == group)
                    && *tier == Tier::Test
            };
            request.names(name, tier, !names.iter().any(of_group))
        };
        Ok(Self {
            parts: (parts.parts.iter())
                .filter(|part| is_wanted(&part.name, part.tier))
                .cloned()
                .collect(),
            suites: (suites.suites.iter())
                .filter(|suite| is_wanted(&suite.part(), suite.tier))
                .cloned()
                .collect(),
            ..Self::default()
        })
    }

    /// Parts that these files touch.
    fn changed(files: &[String], crates: &Crates, parts: &Parts, suites: &Suites) -> Self {
        let mut choice = Self::default();
        let whole = parts.whole(files);
        let touched = crates.touched(files);
        if whole.is_none() {
            choice.packages = Some(touched.keys().cloned().collect());
            choice.reasons.extend(touched.clone());
        }
        for part in &parts.parts {
            let by_file = parts.touched_part(part, files);
            let of_part: Vec<&String> = (touched.keys())
                .filter(|name| parts.has(part, name))
                .collect();
            let why = match (whole, by_file) {
                (Some(file), _) if part.tier == Tier::Test => file.to_owned(),
                (_, Some(file)) => file.to_owned(),
                _ if part.is_for_crates && !of_part.is_empty() => {
                    format!("{} of the crates", of_part.len())
                }
                _ => continue,
            };
            if let (Some(names), Some(_)) = (&mut choice.packages, by_file) {
                let missing = part
                    .packages
                    .iter()
                    .filter(|name| !touched.contains_key(*name));
                names.extend(missing.cloned());
            }
            choice.reasons.insert(part.name.clone(), why);
            choice.parts.push(part.clone());
        }
        for suite in &suites.suites {
            let by_file = parts.touched(&suite.touches, files);
            let Some(why) = by_file.or_else(|| whole.filter(|_| suite.tier == Tier::Test)) else {
                continue;
            };
            choice.reasons.insert(suite.part(), why.to_owned());
            choice.suites.push(suite.clone());
        }
        choice
    }

    /// Lines that say what was chosen for a change, and why.
    pub(crate) fn told(&self) -> Vec<String> {
        let line = |name: &str| {
            let why = self.reasons.get(name).map_or("", String::as_str);
            format!("  {name:<28} {why}")
        };
        let mut lines = vec!["crates:".to_owned()];
        match &self.packages {
            None => lines.push("  all of them".to_owned()),
            Some(names) => lines.extend(names.iter().map(|name| line(name))),
        }
        lines.push("parts:".to_owned());
        lines.extend(self.parts.iter().map(|part| line(&part.name)));
        lines.extend(self.suites.iter().map(|suite| line(&suite.part())));
        if self.parts.is_empty() && self.suites.is_empty() {
            lines.push("  none: nothing that is tested has changed".to_owned());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn lists() -> (Workspace, Parts, Suites) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap()
            .to_path_buf();
        let workspace = Workspace {
            target: root.join("target"),
            root,
        };
        let parts = Parts::load(&workspace).unwrap();
        let suites = Suites::load(&workspace).unwrap();
        (workspace, parts, suites)
    }

    fn asked(line: &str) -> Vec<String> {
        let (_, parts, suites) = lists();
        let request = Request::read(&words(line)).unwrap();
        names(&Choice::asked(&request, &parts, &suites).unwrap())
    }

    fn names(choice: &Choice) -> Vec<String> {
        let parts = choice.parts.iter().map(|part| part.name.clone());
        parts.chain(choice.suites.iter().map(Suite::part)).collect()
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        let read = |text: &str| Request::read(&words(text));
        assert!(read("--all --resume --only lints").is_ok());
        assert!(read("--changed --base HEAD~1").is_ok());
        for wrong in [
            "lints",
            "--only",
            "--base HEAD",
            "--resume",
            "--changed --all",
            "--changed --only lints",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tiers_hold_what_they_promise() {
        let (test, all) = (asked(""), asked("--all"));
        let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
        for name in [
            "lints",
            "tests/working",
            "tests/links",
            "interop/paho",
            "interop/proton",
            "interop/http-curl",
            "interop/cluster",
            "interop/cluster-partitions",
        ] {
            assert!(has(&test, name) && has(&all, name), "{name}");
        }
        for name in [
            "package",
            "fuzz",
            "nemesis",
            "powercut",
            "seeds/broker",
            "interop/balancer",
            "interop/http-browser",
            "interop/lab-devices",
            "interop/cluster-regions",
        ] {
            assert!(!has(&test, name) && has(&all, name), "{name}");
        }
        // Nothing is in no tier.
        let (_, parts, suites) = lists();
        assert_eq!(all.len(), parts.parts.len() + suites.suites.len());
    }

    #[test]
    fn parts_can_be_chosen() {
        assert_eq!(asked("--only lints --only spec"), ["lints", "spec"]);
        assert_eq!(asked("--only interop/balancer"), ["interop/balancer"]);
        assert_eq!(asked("--only tests").len(), 4);
        // A group of which no part is in the other tier.
        assert!(asked("--only seeds").len() > 2);
        let some = asked("--only interop");
        assert!(some.len() > 10 && !some.contains(&"interop/balancer".to_owned()));
        assert!(asked("--only interop --all").contains(&"interop/balancer".to_owned()));
        let (_, parts, suites) = lists();
        let request = Request::read(&words("--only inter")).unwrap();
        assert!(Choice::asked(&request, &parts, &suites).is_err());
    }

    #[test]
    fn a_change_chooses_what_it_touches_and_says_why() {
        let (workspace, parts, suites) = lists();
        let crates = Crates::load(&workspace).unwrap();
        let chosen = |file: &str| {
            let files = [file.to_owned()];
            let choice = Choice::changed(&files, &crates, &parts, &suites);
            let told = choice.told().join("\n");
            (names(&choice), choice.packages, told)
        };
        let (amqp, packages, told) = chosen("crates/sterna-amqp/src/lib.rs");
        let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
        assert!(
            has(&amqp, "interop/proton") && has(&amqp, "tests/clients") && has(&amqp, "format")
        );
        assert!(!has(&amqp, "interop/paho") && !has(&amqp, "deny") && !has(&amqp, "nemesis"));
        let packages = packages.unwrap();
        assert!(has(&packages, "sterna-server") && !has(&packages, "sterna-topic"));
        assert!(
            told.contains("interop/proton               crates/sterna-amqp/src/lib.rs"),
            "{told}"
        );

        let (page, packages, _) = chosen("docs/cluster.md");
        assert_eq!(page, ["invariants"]);
        assert_eq!(packages.unwrap(), [""; 0]);

        // A file beside the crates makes their tests run.
        let (results, packages, _) = chosen("docs/results.md");
        assert!(
            has(&results, "tests/links") && !has(&results, "lints"),
            "{results:?}"
        );
        assert!(has(&packages.unwrap(), "sterna-lab"));

        let (lock, packages, _) = chosen("Cargo.lock");
        let test = asked("");
        assert!(test.iter().all(|name| has(&lock, name)), "{lock:?}");
        assert_eq!(packages, None);

        let (regions, ..) = chosen("interop/python/cluster_regions.py");
        assert!(has(&regions, "interop/cluster-regions") && !has(&regions, "build"));

        let (test, packages, _) = chosen("crates/sterna-net/tests/tcp.rs");
        assert!(
            has(&test, "tests/links") && !has(&test, "tests/clients"),
            "{test:?}"
        );
        assert_eq!(packages.unwrap(), ["sterna-net"]);
    }
}
