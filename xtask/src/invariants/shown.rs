//! Promises of a page that tests show: each row of its tables names them.

use std::collections::BTreeMap;

use crate::Failure;
use crate::workspace::{Workspace, read};

const PAGE: &str = "docs/durability.md";

/// Chapters whose tables are promises.
const CHAPTERS: [&str; 3] = ["What survives", "What is kept", "A full disk"];

/// The beginning of a row's list of its tests, which readers of the page do not see.
const MARK: &str = "<!-- shown by ";

/// Rows that no test shows, or one that is not there.
pub(super) fn unshown(workspace: &Workspace, tracked: &[String]) -> Result<Vec<String>, Failure> {
    let is_test = |name: &&String| {
        let is_rust = name.starts_with("crates/") && name.contains("/tests/");
        is_rust || name.starts_with("interop/python/")
    };
    let mut files = BTreeMap::new();
    for name in tracked.iter().filter(is_test) {
        // Samples of tests may be no text.
        if let Ok(text) = read(&workspace.root.join(name)) {
            files.insert(name.clone(), text);
        }
    }
    Ok(unshown_in(&read(&workspace.root.join(PAGE))?, &files))
}

fn unshown_in(page: &str, files: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    let (mut is_promised, mut is_row) = (false, false);
    let mut rows = BTreeMap::from(CHAPTERS.map(|chapter| (chapter, 0)));
    let mut chapter = "";
    for (number, line) in (1..).zip(page.lines()) {
        if line.starts_with('#') {
            chapter = line.trim_start_matches('#').trim();
            is_promised = CHAPTERS.contains(&chapter);
        }
        if !line.starts_with('|') || line.starts_with("|---") {
            is_row = line.starts_with("|---");
            continue;
        }
        if !is_promised || !is_row {
            continue;
        }
        rows.entry(chapter).and_modify(|count| *count += 1);
        let list = (line.split_once(MARK)).and_then(|(_, rest)| rest.split_once(" -->"));
        let Some((list, _)) = list else {
            found.push(format!("{PAGE}:{number}: no test is named"));
            continue;
        };
        for test in list.split(", ").filter(|test| !is_there(test, files)) {
            found.push(format!("{PAGE}:{number}: there is no test {test}"));
        }
    }
    let empty = rows.iter().filter(|(_, rows)| **rows == 0);
    found.extend(empty.map(|(chapter, _)| format!("{PAGE}: no row below \"{chapter}\"")));
    found
}

/// Whether there is a test of this name: `PROGRAM::MODULE::FUNCTION` of a crate, or `SUITE/ROW` of `interop/python`.
fn is_there(test: &str, files: &BTreeMap<String, String>) -> bool {
    if let Some((suite, row)) = test.split_once('/') {
        let program = files.get(&format!("interop/python/{suite}.py"));
        return program.is_some_and(|program| program.contains(&format!("\"{row}\"")));
    }
    let Some((module, function)) = test.rsplit_once("::") else {
        return false;
    };
    let path = format!("/tests/{}", module.replace("::", "/"));
    let of_module = files.iter().filter(|(name, _)| {
        let name = name.strip_suffix(".rs").unwrap_or_default();
        name.strip_suffix("/mod").unwrap_or(name).ends_with(&path)
    });
    let head = format!("fn {function}(");
    of_module.into_iter().any(|(_, source)| {
        let mut functions = source.split("#[test]").skip(1);
        functions.any(|rest| {
            let signature = rest
                .split_once(") {")
                .map_or(rest, |(signature, _)| signature);
            signature.contains(&head)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_names_tests_that_are_there() {
        let rust = "#[test]\nfn one_is_kept() {\n}\nfn helper() {\n}\n";
        let files = [
            ("crates/a/tests/durability/mqtt.rs", rust),
            ("crates/a/tests/models/cuts/mod.rs", "#[test]\nfn all() {\n"),
            ("interop/python/survives.py", "ROWS = {\"kept\": kept}"),
        ];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let page = "\
### What survives
| a | b |
|---|---|
| yes <!-- shown by durability::mqtt::one_is_kept, models::cuts::all --> |
| no |
### What is kept
| a | b |
|---|---|
| x <!-- shown by survives/kept --> |
| x <!-- shown by survives/lost, durability::mqtt::helper --> |
### Other
| a | b |
|---|---|
| x |
";
        assert_eq!(
            unshown_in(page, &BTreeMap::from(files)),
            [
                "docs/durability.md:5: no test is named",
                "docs/durability.md:10: there is no test survives/lost",
                "docs/durability.md:10: there is no test durability::mqtt::helper",
                "docs/durability.md: no row below \"A full disk\"",
            ]
        );
    }
}
