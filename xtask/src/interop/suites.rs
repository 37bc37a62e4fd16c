//! The suites of `interop/suites.json`.

use std::time::Duration;

use serde_json::Value;

use super::runtime::{Runtime, Unavailable};
use crate::Failure;
use crate::parts::{Tier, strings};
use crate::workspace::{Workspace, read};

/// Default time limit of a suite.
const SUITE_SECONDS: u64 = 300;

/// The lane of suites that name none.
pub(super) const SHARED_LANE: &str = "shared";

/// Content of `suites.json`.
#[derive(Debug)]
pub(crate) struct Suites {
    /// Arguments of `sterna serve` for suites that name none.
    pub(super) serve: Vec<String>,
    pub(crate) suites: Vec<Suite>,
}

/// One suite of checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suite {
    pub(crate) name: String,
    pub(crate) tier: Tier,
    /// Patterns of files, of which a changed one makes the suite run.
    pub(crate) touches: Vec<String>,
    pub(super) runtime: Runtime,
    /// Packages that the runtime has to install.
    pub(super) install: Vec<String>,
    /// Packages for Python beside it: for a scenario in Python that drives a client in another
    /// language.
    pub(super) python: Vec<String>,
    pub(super) run: Vec<String>,
    /// Arguments before the name of a row; `None` where it runs all rows or nothing.
    pub(super) row: Option<Vec<String>>,
    /// Arguments of `sterna serve`, where the suite wants a broker of its own.
    pub(super) serve: Option<Vec<String>>,
    /// Suites of one lane run one after the other, and lanes beside each other.
    pub(crate) lane: String,
    pub(super) timeout: Duration,
}

impl Suites {
    /// Reads the list.
    ///
    /// # Errors
    /// When it is not in order: the fault and its place.
    pub(crate) fn load(workspace: &Workspace) -> Result<Self, Failure> {
        let path = workspace.root.join("interop").join("suites.json");
        Self::parse(&read(&path)?)
            .map_err(|Failure(why)| Failure(format!("interop/suites.json: {why}")))
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| Failure::new(error.to_string()))?;
        let suites = value["suites"].as_array();
        let suites = suites.ok_or_else(|| Failure::new("no array `suites`"))?;
        let suites: Vec<Suite> = suites.iter().map(Suite::parse).collect::<Result<_, _>>()?;
        if suites.is_empty() {
            return Err(Failure::new("no suite"));
        }
        for (index, suite) in suites.iter().enumerate() {
            if suites[..index].iter().any(|other| other.name == suite.name) {
                return Err(Failure(format!("two suites are called `{}`", suite.name)));
            }
        }
        Ok(Self {
            serve: strings(&value, "serve")?.unwrap_or_default(),
            suites,
        })
    }

    /// The suite of this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Suite> {
        self.suites.iter().find(|suite| suite.name == name)
    }
}

impl Suite {
    fn parse(value: &Value) -> Result<Self, Failure> {
        let name = value["name"]
            .as_str()
            .ok_or_else(|| Failure::new("a suite without `name`"))?;
        let wrong = |what: &str| Failure(format!("suite `{name}`: {what}"));
        let in_suite = |Failure(why)| Failure(format!("suite `{name}`: {why}"));
        let runtime = value["runtime"].as_str().and_then(Runtime::named);
        let run = strings(value, "run")?.filter(|run| !run.is_empty());
        let timeout = match &value["timeout_s"] {
            Value::Null => SUITE_SECONDS,
            seconds => seconds
                .as_u64()
                .ok_or_else(|| wrong("`timeout_s` is not a number"))?,
        };
        let touches = strings(value, "touches")?;
        Ok(Self {
            name: name.to_owned(),
            tier: Tier::read(value).map_err(in_suite)?,
            touches: touches.ok_or_else(|| wrong("no array `touches`"))?,
            runtime: runtime.ok_or_else(|| wrong("no `runtime` that is known"))?,
            install: strings(value, "install")?.unwrap_or_default(),
            python: strings(value, "python")?.unwrap_or_default(),
            run: run.ok_or_else(|| wrong("no command `run`"))?,
            row: strings(value, "row")?,
            serve: strings(value, "serve")?,
            lane: value["lane"].as_str().unwrap_or(SHARED_LANE).to_owned(),
            timeout: Duration::from_secs(timeout),
        })
    }

    /// Its name among the parts of all tests.
    pub(crate) fn part(&self) -> String {
        format!("interop/{}", self.name)
    }

    /// The names under which the list of needs has what it needs.
    pub(crate) fn subjects(&self) -> Vec<String> {
        let mut subjects = vec![self.part(), format!("runtime/{}", self.runtime.name())];
        if !self.python.is_empty() {
            subjects.push(format!("runtime/{}", Runtime::Python.name()));
        }
        for package in self.packages(Runtime::Python) {
            let name = package.split("==").next().unwrap_or_default();
            subjects.push(format!("python/{name}"));
        }
        subjects
    }

    /// The packages that a runtime has to install for it.
    pub(super) fn packages(&self, runtime: Runtime) -> &[String] {
        if runtime == self.runtime {
            &self.install
        } else if runtime == Runtime::Python {
            &self.python
        } else {
            &[]
        }
    }

    /// Whether this suite needs the installed packages of a runtime.
    pub(super) fn needs(&self, runtime: Runtime) -> bool {
        self.runtime == runtime || (runtime == Runtime::Python && !self.python.is_empty())
    }

    /// Whether it cannot run without this.
    pub(super) fn is_without(&self, runtime: Runtime, absent: &Unavailable) -> bool {
        match &absent.package {
            Some(package) => self.packages(runtime).contains(package),
            None => self.needs(runtime),
        }
    }

    /// Its command for these rows alone, where it can be asked for them, or for all.
    pub(super) fn command_for(&self, rows: &[String]) -> Vec<String> {
        let mut command = self.run.clone();
        match &self.row {
            // Words, of which each names rows.
            Some(before) if before.is_empty() => command.extend(rows.iter().cloned()),
            // An option that takes one.
            Some(before) if rows.len() == 1 => {
                command.extend(before.iter().chain(rows).cloned());
            }
            _ => {}
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::Parts;
    use std::path::Path;

    const SUITE: &str = r#"{"name": "a", "tier": "test", "touches": ["x"], "runtime": "python", "install": ["x==1"],
        "run": ["python", "a.py"]}"#;

    fn workspace() -> Workspace {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        Workspace {
            target: root.join("target"),
            root,
        }
    }

    fn parse(suites: &str) -> Result<Suites, Failure> {
        Suites::parse(&format!(r#"{{"serve": ["--x"], "suites": [{suites}]}}"#))
    }

    #[test]
    fn the_list_is_read() {
        let list = parse(SUITE).unwrap();
        assert_eq!(list.serve, ["--x"]);
        assert_eq!(
            list.suites[0],
            Suite {
                name: "a".into(),
                tier: Tier::Test,
                touches: vec!["x".into()],
                runtime: Runtime::Python,
                install: vec!["x==1".into()],
                python: vec![],
                run: vec!["python".into(), "a.py".into()],
                row: None,
                serve: None,
                lane: SHARED_LANE.into(),
                timeout: Duration::from_secs(SUITE_SECONDS),
            }
        );
    }

    #[test]
    fn python_beside_a_runtime_is_a_need() {
        let suite = SUITE.replace(
            r#""python", "install""#,
            r#""node", "python": ["y==2"], "install""#,
        );
        let list = parse(&suite).unwrap();
        let suite = &list.suites[0];
        assert!(suite.needs(Runtime::Node) && suite.needs(Runtime::Python));
        assert!(!suite.needs(Runtime::Go));
        let subjects = ["interop/a", "runtime/node", "runtime/python", "python/y"];
        assert_eq!(suite.subjects(), subjects);
        let absent = |package: Option<&str>| Unavailable {
            package: package.map(str::to_owned),
            why: String::new(),
            is_fault: false,
        };
        assert!(suite.is_without(Runtime::Python, &absent(Some("y==2"))));
        assert!(suite.is_without(Runtime::Python, &absent(None)));
        assert!(!suite.is_without(Runtime::Python, &absent(Some("x==1"))));
        assert!(!suite.is_without(Runtime::Go, &absent(None)));
    }

    #[test]
    fn rows_are_asked_for_where_that_can_be() {
        let of = |row: &str, rows: &[&str]| {
            let list = parse(&SUITE.replace("\"a.py\"]", &format!("\"a.py\"]{row}"))).unwrap();
            let rows: Vec<String> = rows.iter().map(|&row| row.to_owned()).collect();
            list.suites[0].command_for(&rows)[2..].join(" ")
        };
        assert_eq!(of("", &["x"]), "");
        assert_eq!(of(r#", "row": []"#, &["x", "y z"]), "x y z");
        assert_eq!(of(r#", "row": ["--only"]"#, &["x"]), "--only x");
        assert_eq!(of(r#", "row": ["--only"]"#, &["x", "y"]), "");
        assert_eq!(of(r#", "row": ["--only"]"#, &[]), "");
    }

    #[test]
    fn the_suites_of_the_project_are_well_formed() {
        let workspace = workspace();
        let interop = workspace.root.join("interop");
        let parts = Parts::load(&workspace).unwrap();
        for suite in Suites::load(&workspace).unwrap().suites {
            parts.check(&suite.name, &suite.touches).unwrap();
            let of_modules = match suite.runtime {
                Runtime::Go => "go.mod",
                Runtime::Java => "pom.xml",
                _ => continue,
            };
            for module in &suite.install {
                let there = interop.join(module).join(of_modules).is_file();
                assert!(there, "{}: {module} has no {of_modules}", suite.name);
            }
        }
    }

    /// The parts of `cluster.py` are suites, all of them, so that no row of it goes unplayed.
    #[test]
    fn each_part_of_the_cluster_is_a_suite() {
        let workspace = workspace();
        let text = read(&workspace.root.join("interop/python/cluster.py")).unwrap();
        let table = text.split_once("\nPARTS = {\n").unwrap().1;
        let table = table.split_once("\n}\n").unwrap().0;
        let mut parts: Vec<&str> = (table.lines())
            .filter_map(|line| Some(line.strip_prefix("    \"")?.split_once("\":")?.0))
            .collect();
        let list = Suites::load(&workspace).unwrap();
        let asked = list.suites.iter().filter_map(|suite| {
            let at = suite.run.iter().position(|word| word == "--part")?;
            Some(suite.run[at + 1].as_str())
        });
        let mut asked: Vec<&str> = asked.collect();
        parts.sort_unstable();
        asked.sort_unstable();
        assert!(parts.len() > 3, "{parts:?}");
        assert_eq!(parts, asked);
    }

    #[test]
    fn what_is_missing_in_the_list_is_named() {
        assert!(
            Suites::parse("{}")
                .unwrap_err()
                .0
                .contains("no array `suites`")
        );
        assert!(parse("").unwrap_err().0.contains("no suite"));
        assert!(
            parse(&format!("{SUITE}, {SUITE}"))
                .unwrap_err()
                .0
                .contains("two suites")
        );
        for (right, wrong, why) in [
            (r#""name": "a", "#, "", "name"),
            (r#""runtime": "python""#, r#""runtime": "cobol""#, "runtime"),
            (r#""tier": "test""#, r#""tier": "often""#, "tier"),
            (r#""touches": ["x"], "#, "", "touches"),
            (r#"["python", "a.py"]"#, "[]", "run"),
            (r#"["python", "a.py"]"#, r#""x""#, "run"),
            (r#""run""#, r#""timeout_s": "5", "run""#, "timeout_s"),
        ] {
            let Failure(text) = parse(&SUITE.replace(right, wrong)).unwrap_err();
            assert!(text.contains(why), "{text}");
        }
    }
}
