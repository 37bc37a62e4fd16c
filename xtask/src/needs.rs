//! Tools that the tests need from the machine: `xtask/needs.json`, which says how it is read.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::Value;

use crate::Failure;
use crate::parts::strings;
use crate::pattern::fits;
use crate::workspace::{Workspace, program_on, read};

/// The list, relative to the workspace's root.
const LIST: &str = "xtask/needs.json";

/// Where Go's own archive is unpacked, and where Debian has the programs of services.
const FOLDERS_BESIDE: [&str; 2] = ["/usr/local/go/bin", "/usr/sbin"];

/// One tool.
#[derive(Debug)]
pub(crate) struct Need {
    pub(crate) name: String,
    /// The use of it.
    pub(crate) about: String,
    /// Debian's package.
    pub(crate) package: Option<String>,
    /// The remedy where no package has it.
    pub(crate) hint: Option<String>,
    /// A service that the package starts.
    pub(crate) service: Option<String>,
    /// A command that must succeed.
    test: Option<Vec<String>>,
    /// Folders in which it must; the workspace's root where there are none.
    folders: Vec<String>,
    /// Programs that must lie on the search path.
    programs: Vec<String>,
    /// Patterns of parts that need it.
    parts: Vec<String>,
}

/// The whole list, and what was found on the machine.
#[derive(Debug)]
pub(crate) struct Needs {
    root: PathBuf,
    search_path: OsString,
    all: Vec<Need>,
    /// By name, whether a tool is there: each is asked for once.
    found: Mutex<BTreeMap<String, bool>>,
}

impl Needs {
    /// Reads the list; the machine is that of this process.
    ///
    /// # Errors
    /// When it is not in order: the fault and its place.
    pub(crate) fn load(workspace: &Workspace) -> Result<Self, Failure> {
        let text = read(&workspace.root.join(LIST))?;
        let all = parse(&text).map_err(|Failure(why)| Failure(format!("{LIST}: {why}")))?;
        Ok(Self {
            root: workspace.root.clone(),
            search_path: std::env::var_os("PATH").unwrap_or_default(),
            all,
            found: Mutex::default(),
        })
    }

    /// The tools that one of these subjects needs, in the order of the list. A subject is a part's name, or `runtime/NAME`.
    pub(crate) fn of<'a>(&'a self, subjects: &[String]) -> Vec<&'a Need> {
        let is_for = |need: &&Need| {
            let mut patterns = need.parts.iter();
            patterns.any(|pattern| subjects.iter().any(|subject| fits(pattern, subject)))
        };
        self.all.iter().filter(is_for).collect()
    }

    /// Those of them that are not on this machine.
    pub(crate) fn missing<'a>(&'a self, subjects: &[String]) -> Vec<&'a Need> {
        let needed = self.of(subjects);
        needed.into_iter().filter(|need| !self.has(need)).collect()
    }

    /// Why these subjects cannot be had here; `None` where nothing is missing.
    pub(crate) fn lack(&self, subjects: &[String]) -> Option<String> {
        let missing = self.missing(subjects);
        let first = missing.first()?;
        Some(format!(
            "{} is missing ({})",
            first.name,
            self.remedy(first)
        ))
    }

    /// The remedy for a missing tool.
    pub(crate) fn remedy(&self, need: &Need) -> String {
        let beside = FOLDERS_BESIDE.iter().find(|folder| {
            let mut programs = need
                .programs
                .iter()
                .chain(need.test.iter().flatten().take(1));
            let is_there = |program: &String| Path::new(folder).join(program).is_file();
            !self.is_searched(folder) && programs.any(is_there)
        });
        match (beside, &need.package, &need.hint) {
            (Some(folder), _, _) => format!("it is in {folder}, which is not in PATH"),
            (None, Some(package), _) => format!("Debian: {package}"),
            (None, None, Some(hint)) => hint.clone(),
            (None, None, None) => need.about.clone(),
        }
    }

    /// Whether a tool is on this machine.
    pub(crate) fn has(&self, need: &Need) -> bool {
        let known = |found: &BTreeMap<String, bool>| found.get(&need.name).copied();
        if let Some(is_there) = self.found.lock().map_or(None, |found| known(&found)) {
            return is_there;
        }
        let is_there = self.look_for(need);
        if let Ok(mut found) = self.found.lock() {
            found.insert(need.name.clone(), is_there);
        }
        is_there
    }

    /// Forgets what was found: something was installed.
    pub(crate) fn forget(&self) {
        if let Ok(mut found) = self.found.lock() {
            found.clear();
        }
    }

    fn look_for(&self, need: &Need) -> bool {
        let here = [String::new()];
        let folders = if need.folders.is_empty() {
            &here[..]
        } else {
            &need.folders
        };
        let succeeds = |command: &Vec<String>| {
            folders
                .iter()
                .all(|folder| self.succeeds(command, &self.root.join(folder)))
        };
        (need.programs.iter()).all(|program| self.find(program).is_some())
            && need.test.as_ref().is_none_or(succeeds)
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        program_on(&self.search_path, program)
    }

    fn is_searched(&self, folder: &str) -> bool {
        std::env::split_paths(&self.search_path).any(|one| one == Path::new(folder))
    }

    fn succeeds(&self, command: &[String], folder: &Path) -> bool {
        let Some((program, arguments)) = command.split_first() else {
            return false;
        };
        // The system's own search would be along the path of this process.
        let Some(program) = self.find(program) else {
            return false;
        };
        Command::new(program)
            .args(arguments)
            .env::<&OsStr, &OsStr>("PATH".as_ref(), &self.search_path)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}

fn parse(text: &str) -> Result<Vec<Need>, Failure> {
    let value: Value =
        serde_json::from_str(text).map_err(|error| Failure::new(error.to_string()))?;
    let needs = value["needs"].as_array();
    let needs = needs.ok_or_else(|| Failure::new("no array `needs`"))?;
    needs.iter().map(Need::read).collect()
}

impl Need {
    fn read(value: &Value) -> Result<Self, Failure> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let name = text("name").ok_or_else(|| Failure::new("a need without `name`"))?;
        let list = |key: &str| {
            strings(value, key).map_err(|Failure(why)| Failure(format!("need `{name}`: {why}")))
        };
        let need = Self {
            about: text("for").ok_or_else(|| Failure(format!("need `{name}`: no text `for`")))?,
            package: text("package"),
            hint: text("hint"),
            service: text("service"),
            test: list("test")?,
            folders: list("in")?.unwrap_or_default(),
            programs: list("programs")?.unwrap_or_default(),
            parts: list("parts")?.unwrap_or_default(),
            name,
        };
        if need.test.is_none() && need.programs.is_empty() {
            return Err(Failure(format!("need `{}`: nothing tests it", need.name)));
        }
        Ok(need)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(text: &str) -> Needs {
        Needs {
            root: std::env::temp_dir(),
            search_path: std::env::var_os("PATH").unwrap(),
            all: parse(text).unwrap(),
            found: Mutex::default(),
        }
    }

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        let needs = needs(
            r#"{"needs": [
                {"name": "shell", "for": "x", "programs": ["sh"], "parts": ["a"]},
                {"name": "tool", "for": "x", "programs": ["no-such-program"], "package": "tools", "parts": ["a", "b/*"]},
                {"name": "later", "for": "x", "test": ["sh", "-c", "exit 1"], "hint": "ask for it", "parts": ["c"]}
            ]}"#,
        );
        let lack = |subject: &str| needs.lack(&[subject.to_owned()]);
        assert_eq!(lack("a").unwrap(), "tool is missing (Debian: tools)");
        assert_eq!(lack("b/c").unwrap(), "tool is missing (Debian: tools)");
        assert_eq!(lack("c").unwrap(), "later is missing (ask for it)");
        assert_eq!(lack("d"), None);
        assert_eq!(needs.of(&["a".to_owned()]).len(), 2);
    }

    #[test]
    fn what_is_wrong_in_the_list_is_named() {
        for (text, why) in [
            ("{}", "no array `needs`"),
            (r#"{"needs": [{"for": "x"}]}"#, "without `name`"),
            (r#"{"needs": [{"name": "a"}]}"#, "no text `for`"),
            (
                r#"{"needs": [{"name": "a", "for": "x"}]}"#,
                "nothing tests it",
            ),
        ] {
            let Failure(said) = parse(text).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
