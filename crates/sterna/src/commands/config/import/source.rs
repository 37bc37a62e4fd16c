//! The lines of a configuration of Mosquitto, those of included files in their place.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Deepest chain of files that include each other.
const MAX_DEPTH: usize = 10;

/// A line that says something.
#[derive(Clone, Debug)]
pub(super) struct Line {
    file: Rc<Path>,
    number: usize,
    pub(super) key: String,
    pub(super) value: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.number)
    }
}

impl Line {
    /// A path that it names; Mosquitto takes it from its own working directory, this from the file's.
    pub(super) fn path(&self) -> PathBuf {
        let folder = self.file.parent().unwrap_or_else(|| Path::new(""));
        let path = folder.join(&self.value);
        std::path::absolute(&path).unwrap_or(path)
    }

    pub(super) fn flag(&self) -> Option<bool> {
        match self.value.as_str() {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<u64> {
        self.value.parse().ok()
    }
}

/// Reads a file of lines: a word, and what follows it. Comments begin with `#`.
pub(super) fn lines(path: &Path) -> Result<Vec<Line>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let file: Rc<Path> = Rc::from(path);
    let mut lines = Vec::new();
    for (at, text) in text.lines().enumerate() {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let (key, value) = text.split_once([' ', '\t']).unwrap_or((text, ""));
        lines.push(Line {
            file: Rc::clone(&file),
            number: at + 1,
            key: key.to_owned(),
            value: value.trim().to_owned(),
        });
    }
    Ok(lines)
}

/// Reads a configuration with what it includes.
///
/// # Errors
/// A file cannot be read, or is of another form: that of another broker.
pub(super) fn read(path: &Path) -> Result<Vec<Line>, String> {
    let mut read = Vec::new();
    read_into(path, &mut read, 0)?;
    let is_of_key = |letter: char| letter.is_ascii_alphanumeric() || "_.-".contains(letter);
    let is_foreign = |line: &&Line| {
        // Secrets and options of plugins may begin with anything.
        let is_free = line.key.contains("_opt_") || line.key.contains("password");
        let is_assigned = line.value.starts_with("= ") || line.value.starts_with('{');
        !line.key.chars().all(is_of_key) || (is_assigned && !is_free)
    };
    match read.iter().find(is_foreign) {
        Some(line) => Err(format!(
            "{line}: `{} {}` has not the form of mosquitto.conf (a word, a blank, a value); files of RabbitMQ, EMQX, \
             VerneMQ, HiveMQ and others are not translated",
            line.key, line.value
        )),
        None => Ok(read),
    }
}

fn read_into(path: &Path, read: &mut Vec<Line>, depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("{}: included too deeply", path.display()));
    }
    for line in lines(path)? {
        if line.key != "include_dir" {
            read.push(line);
            continue;
        }
        let folder = line.path();
        let entries = fs::read_dir(&folder)
            .map_err(|error| format!("{line}: {}: {error}", folder.display()))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|it| it == "conf"))
            .collect();
        // Mosquitto's order.
        files.sort();
        for file in files {
            read_into(&file, read, depth + 1)?;
        }
    }
    Ok(())
}
