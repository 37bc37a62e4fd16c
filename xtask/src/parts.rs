//! The parts of `cargo xtask test`, and the tier of each: `xtask/test-parts.json`, which says how it is read.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::Failure;
use crate::pattern::fits;
use crate::workspace::{Workspace, read};

/// The list, relative to the workspace's root.
const LIST: &str = "xtask/test-parts.json";

/// The part that runs the test programs of all packages that no other part names.
pub(crate) const REST: &str = "tests/working";

/// The longest time of a part's command where the part names none.
const PART_SECONDS: u64 = 50 * 60;

/// When a part runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Each time.
    Test,
    /// Only with `--all`.
    All,
}

impl Tier {
    /// As the lists write it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::All => "all",
        }
    }

    /// Reads `tier`, which every part and every suite has.
    pub(crate) fn read(value: &Value) -> Result<Self, Failure> {
        match value["tier"].as_str() {
            Some("test") => Ok(Self::Test),
            Some("all") => Ok(Self::All),
            _ => Err(Failure::new("`tier` is neither `test` nor `all`")),
        }
    }
}

/// One part.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) tier: Tier,
    /// Parts of one lane run one after the other.
    pub(crate) lane: String,
    /// Events that must have come before it begins.
    pub(crate) after: Vec<String>,
    /// Patterns of files, of which a changed one makes the part run.
    touches: Vec<String>,
    /// Whether it runs for changed crates, and those that depend on them.
    pub(crate) is_for_crates: bool,
    /// Packages whose test programs it runs.
    pub(crate) packages: Vec<String>,
    /// Its command, and the command's variables; without one it is a function of this program.
    pub(crate) run: Option<Vec<String>>,
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) limit: Duration,
}

/// All parts but the suites, and names for groups of patterns.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) parts: Vec<Part>,
    groups: BTreeMap<String, Vec<String>>,
}

impl Parts {
    /// Reads the list.
    ///
    /// # Errors
    /// When it is not in order: the fault and its place.
    pub(crate) fn load(workspace: &Workspace) -> Result<Self, Failure> {
        let text = read(&workspace.root.join(LIST))?;
        Self::parse(&text).map_err(|Failure(why)| Failure(format!("{LIST}: {why}")))
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| Failure::new(error.to_string()))?;
        let mut groups = BTreeMap::new();
        let named = value["touches"].as_object();
        for name in named
            .ok_or_else(|| Failure::new("no object `touches`"))?
            .keys()
        {
            let patterns = strings(&value["touches"], name)?.unwrap_or_default();
            groups.insert(name.clone(), patterns);
        }
        let parts = value["parts"].as_array();
        let parts = parts.ok_or_else(|| Failure::new("no array `parts`"))?;
        let parts: Vec<Part> = parts.iter().map(Part::read).collect::<Result<_, _>>()?;
        for (index, part) in parts.iter().enumerate() {
            if parts[..index].iter().any(|other| other.name == part.name) {
                return Err(Failure(format!("two parts are called `{}`", part.name)));
            }
        }
        let list = Self { parts, groups };
        for part in &list.parts {
            list.check(&part.name, &part.touches)?;
        }
        Ok(list)
    }

    /// Whether every group that these patterns name is there.
    pub(crate) fn check(&self, part: &str, touches: &[String]) -> Result<(), Failure> {
        for name in touches.iter().filter_map(|one| one.strip_prefix('@')) {
            let group = self.groups.get(name);
            let group =
                group.ok_or_else(|| Failure(format!("{part}: `touches` has no @{name}")))?;
            self.check(part, group)?;
        }
        Ok(())
    }

    /// The first of these files that fits one of the patterns.
    pub(crate) fn touched<'a>(&self, touches: &[String], files: &'a [String]) -> Option<&'a str> {
        touches
            .iter()
            .find_map(|pattern| match pattern.strip_prefix('@') {
                Some(name) => self.touched(self.groups.get(name)?, files),
                None => files
                    .iter()
                    .map(String::as_str)
                    .find(|file| fits(pattern, file)),
            })
    }

    /// The first of these files that makes a part run by its name.
    pub(crate) fn touched_part<'a>(&self, part: &Part, files: &'a [String]) -> Option<&'a str> {
        self.touched(&part.touches, files)
    }

    /// Whether a file of these concerns the workspace as a whole, and with it all crates.
    pub(crate) fn whole<'a>(&self, files: &'a [String]) -> Option<&'a str> {
        self.touched(&["@whole".to_owned()], files)
    }

    /// Whether a part has to do with this package: all packages, unless it is one that runs test programs.
    pub(crate) fn has(&self, part: &Part, package: &str) -> bool {
        if part.packages.is_empty() && part.name != REST {
            return true;
        }
        self.runs(part, package)
    }

    /// Whether a part runs the test programs of this package.
    pub(crate) fn runs(&self, part: &Part, package: &str) -> bool {
        let names = |part: &Part| part.packages.iter().any(|one| one == package);
        if part.name == REST {
            !self.parts.iter().any(names)
        } else {
            names(part)
        }
    }
}

impl Part {
    fn read(value: &Value) -> Result<Self, Failure> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let name = text("name").ok_or_else(|| Failure::new("a part without `name`"))?;
        let in_part = |Failure(why)| Failure(format!("part `{name}`: {why}"));
        let missing = |key: &str| in_part(Failure(format!("no text `{key}`")));
        let variables = value["env"].as_object().into_iter().flatten();
        let variables = variables.map(|(key, value)| match value.as_str() {
            Some(value) => Ok((key.clone(), value.to_owned())),
            None => Err(in_part(Failure(format!("`env`: {key} is not a text")))),
        });
        let touches = strings(value, "touches").map_err(in_part)?;
        Ok(Self {
            about: text("about").ok_or_else(|| missing("about"))?,
            tier: Tier::read(value).map_err(in_part)?,
            lane: text("lane").ok_or_else(|| missing("lane"))?,
            after: strings(value, "after")
                .map_err(in_part)?
                .unwrap_or_default(),
            touches: touches.ok_or_else(|| missing("touches"))?,
            is_for_crates: value["crates"].as_bool().unwrap_or(false),
            packages: strings(value, "of").map_err(in_part)?.unwrap_or_default(),
            run: strings(value, "run").map_err(in_part)?,
            variables: variables.collect::<Result<_, _>>()?,
            limit: Duration::from_secs(value["timeout_s"].as_u64().unwrap_or(PART_SECONDS)),
            name,
        })
    }
}

/// An array of texts; `None` where there is none.
///
/// # Errors
/// When it is something else.
pub(crate) fn strings(value: &Value, key: &str) -> Result<Option<Vec<String>>, Failure> {
    let wrong = || Failure(format!("`{key}` is not an array of strings"));
    match &value[key] {
        Value::Null => Ok(None),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong))
            .collect::<Result<_, _>>()
            .map(Some),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{
        "touches": {"mqtt": ["crates/sterna-mqtt/*"], "all": ["@mqtt", "Cargo.toml"]},
        "parts": [
            {"name": "a", "about": "x", "tier": "test", "lane": "l", "touches": ["@all"]},
            {"name": "b", "about": "y", "tier": "all", "lane": "l", "touches": ["docs/*"], "run": ["x"],
             "env": {"A": "1"}, "after": ["broker"], "of": ["sterna"], "crates": true, "timeout_s": 5}
        ]
    }"#;

    #[test]
    fn parts_and_groups_of_patterns_are_read() {
        let list = Parts::parse(LIST).unwrap();
        let files = ["README.md", "crates/sterna-mqtt/src/lib.rs"].map(str::to_owned);
        assert_eq!(list.touched_part(&list.parts[0], &files), Some(&*files[1]));
        assert_eq!(list.touched_part(&list.parts[1], &files), None);
        let second = &list.parts[1];
        assert_eq!(second.tier, Tier::All);
        assert_eq!(second.variables, [("A".to_owned(), "1".to_owned())]);
        assert_eq!(second.limit, Duration::from_secs(5));
        assert!(second.is_for_crates && !list.parts[0].is_for_crates);
        assert!(list.has(second, "sterna") && !list.has(second, "sterna-net"));
        assert!(list.has(&list.parts[0], "sterna"));
    }

    #[test]
    fn what_is_wrong_in_the_list_is_named() {
        for (right, wrong, why) in [
            (
                r#""tier": "test""#,
                r#""tier": "never""#,
                "part `a`: `tier`",
            ),
            (r#""name": "b""#, r#""name": "a""#, "two parts"),
            ("@mqtt", "@mqt", "no @mqt"),
            (r#""about": "x", "#, "", "part `a`: no text `about`"),
            (r#"{"A": "1"}"#, r#"{"A": 1}"#, "A is not a text"),
            (r#"["docs/*"]"#, r#""docs""#, "`touches` is not an array"),
        ] {
            let Failure(said) = Parts::parse(&LIST.replace(right, wrong)).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
