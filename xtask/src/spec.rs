//! Which normative statements of the specifications are kept by code and shown by tests.
//!
//! The statements are in `spec/` as identifiers; their texts are their authors' and stay with them.
//! Sources cite a statement of MQTT 5.0 as `[MQTT-x.y.z-n]` and one of MQTT 3.1.1 as
//! `[MQTT311-x.y.z-n]`. The citation is in a comment next to the code that keeps it, and in the
//! test that shows it.

mod citations;
mod report;

use std::collections::BTreeMap;

use crate::workspace::{Workspace, read, write};
use crate::{Failure, Verdict, sources};

use citations::{Citation, Place};
pub(crate) use report::Coverage;

/// Folders whose sources are searched for citations.
const FOLDERS: [&str; 3] = ["crates", "interop", "fuzz"];

/// Extensions of the other languages that tests are written in.
const OTHER_LANGUAGES: [&str; 7] = ["cjs", "go", "java", "js", "mjs", "py", "ts"];

/// A normative statement.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Statement {
    /// As it is cited, without the brackets.
    id: String,
    /// The verb it uses: Must, MustNot, May; empty where it is not known.
    level: String,
    /// The end that it binds: Client, Server, Both; empty if it is not known.
    binds: String,
}

/// Prints the verdict on every statement and writes `target/spec.md`.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    crate::no_arguments(arguments)?;
    let coverage = check(workspace)?;
    print!("{}", coverage.text());
    println!("{}", coverage.summary());
    Ok(coverage.complete())
}

/// Compares the statements with the sources, and writes `target/spec.md`.
pub(crate) fn check(workspace: &Workspace) -> Result<Coverage, Failure> {
    let spec = workspace.root.join("spec");
    let mut statements = statements_with_columns(&read(&spec.join("mqtt-5.0.tsv"))?)?;
    statements.extend(statement_ids(&read(&spec.join("mqtt-3.1.1.txt"))?)?);
    let not_applicable = not_applicable(&read(&spec.join("not-applicable.tsv"))?)?;
    let citations = cited(workspace)?;
    let coverage = Coverage::new(statements, not_applicable, citations);
    write(
        &workspace.target_folder("")?.join("spec.md"),
        &coverage.markdown(),
    )?;
    Ok(coverage)
}

/// The rows of `mqtt-5.0.tsv`: identifier, level, and the end that it binds, under a line of
/// headings.
fn statements_with_columns(text: &str) -> Result<Vec<Statement>, Failure> {
    rows(text)
        .skip(1)
        .map(|(number, line)| {
            let columns: Vec<&str> = line.split('\t').collect();
            match columns[..] {
                [id, level, binds] if citations::is_id(id) => Ok(Statement {
                    id: id.to_owned(),
                    level: level.to_owned(),
                    binds: binds.to_owned(),
                }),
                _ => Err(Failure::new(format!(
                    "spec/mqtt-5.0.tsv, line {number}: not a statement"
                ))),
            }
        })
        .collect()
}

/// The lines of `mqtt-3.1.1.txt`: one identifier each.
fn statement_ids(text: &str) -> Result<Vec<Statement>, Failure> {
    rows(text)
        .map(|(number, line)| {
            if citations::is_id(line) {
                Ok(Statement {
                    id: line.to_owned(),
                    level: String::new(),
                    binds: String::new(),
                })
            } else {
                Err(Failure::new(format!(
                    "spec/mqtt-3.1.1.txt, line {number}: not an identifier"
                )))
            }
        })
        .collect()
}

/// The rows of `not-applicable.tsv`: identifier and reason, under a line of headings.
fn not_applicable(text: &str) -> Result<BTreeMap<String, String>, Failure> {
    rows(text)
        .skip(1)
        .map(|(number, line)| match line.split_once('\t') {
            Some((id, reason)) if citations::is_id(id) && !reason.trim().is_empty() => {
                Ok((id.to_owned(), reason.trim().to_owned()))
            }
            _ => Err(Failure::new(format!(
                "spec/not-applicable.tsv, line {number}: not an identifier and a reason"
            ))),
        })
        .collect()
}

fn rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim_end()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn cited(workspace: &Workspace) -> Result<Vec<Citation>, Failure> {
    let mut found = Vec::new();
    for file in sources::load(workspace, &FOLDERS)? {
        citations::find(
            &file.name,
            &file.text,
            |offset| Place::of(file.is_test(offset)),
            &mut found,
        );
    }
    for folder in FOLDERS {
        for path in workspace.files(folder, &OTHER_LANGUAGES)? {
            let name = workspace.name(&path);
            let place = Place::of(sources::is_test_path(&name));
            citations::find(&name, &read(&path)?, |_| place, &mut found);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_read() {
        let statements =
            statements_with_columns("id\tlevel\tbinds\nMQTT-1.2.3-4\tMust\tBoth\n\n# note\n")
                .unwrap();
        assert_eq!(
            statements,
            [Statement {
                id: "MQTT-1.2.3-4".into(),
                level: "Must".into(),
                binds: "Both".into()
            }]
        );
        assert_eq!(
            statement_ids("MQTT311-4.7.0-1\n").unwrap()[0].id,
            "MQTT311-4.7.0-1"
        );
        let reasons = not_applicable("id\treason\nMQTT311-4.7.0-1\tbecause\n").unwrap();
        assert_eq!(reasons["MQTT311-4.7.0-1"], "because");
    }

    #[test]
    fn rows_of_another_shape_are_refused() {
        assert!(statements_with_columns("id\nMQTT-1.2.3-4\tMust\n").is_err());
        assert!(statements_with_columns("id\n1.2.3-4\tMust\tBoth\n").is_err());
        assert!(statement_ids("MQTT311-4.7.0\n").is_err());
        assert!(not_applicable("id\treason\nMQTT-1.2.3-4\t \n").is_err());
    }

    #[test]
    fn the_tables_of_the_project_are_well_formed() {
        let workspace = Workspace::find().unwrap();
        let spec = workspace.root.join("spec");
        let mut statements =
            statements_with_columns(&read(&spec.join("mqtt-5.0.tsv")).unwrap()).unwrap();
        assert!(
            statements
                .iter()
                .all(|statement| statement.id.starts_with("MQTT-"))
        );
        let version_3 = statement_ids(&read(&spec.join("mqtt-3.1.1.txt")).unwrap()).unwrap();
        assert!(
            version_3
                .iter()
                .all(|statement| statement.id.starts_with("MQTT311-"))
        );
        statements.extend(version_3);
        let mut ids: Vec<&str> = statements
            .iter()
            .map(|statement| statement.id.as_str())
            .collect();
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), count, "an identifier stands twice");
        let reasons = not_applicable(&read(&spec.join("not-applicable.tsv")).unwrap()).unwrap();
        for id in reasons.keys() {
            assert!(ids.contains(&id.as_str()), "{id} is not a statement");
        }
    }
}
