//! The verdict on every statement.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Statement;
use super::citations::{Citation, Place, sort_key};

/// Knowledge of one statement.
#[derive(Debug)]
struct Row {
    statement: Statement,
    verdict: RowVerdict,
    /// Files and lines of the code that cites it.
    code: Vec<String>,
    /// Files and lines of the tests that cite it.
    tests: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RowVerdict {
    Covered,
    NotApplicable(String),
    MissingCode,
    MissingTest,
    MissingBoth,
}

impl RowVerdict {
    const fn name(&self) -> &'static str {
        match self {
            Self::Covered => "covered",
            Self::NotApplicable(_) => "not applicable",
            Self::MissingCode => "missing code",
            Self::MissingTest => "missing test",
            Self::MissingBoth => "missing code and test",
        }
    }

    const fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::MissingCode | Self::MissingTest | Self::MissingBoth
        )
    }
}

/// The verdict on every statement, and everything that is wrong with the citations.
#[derive(Debug)]
pub(crate) struct Coverage {
    rows: Vec<Row>,
    mistakes: Vec<String>,
}

impl Coverage {
    /// Joins the tables with the citations.
    pub(super) fn new(
        statements: Vec<Statement>,
        mut not_applicable: BTreeMap<String, String>,
        citations: Vec<Citation>,
    ) -> Self {
        let mut code: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut tests: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for citation in citations {
            let places = if citation.place == Place::Test {
                &mut tests
            } else {
                &mut code
            };
            places
                .entry(citation.id)
                .or_default()
                .push(citation.location);
        }
        let mut mistakes = Vec::new();
        let mut rows: Vec<Row> = statements
            .into_iter()
            .map(|statement| {
                let code = code.remove(&statement.id).unwrap_or_default();
                let tests = tests.remove(&statement.id).unwrap_or_default();
                let verdict = match not_applicable.remove(&statement.id) {
                    Some(reason) => {
                        if let Some(location) = code.first() {
                            mistakes.push(format!(
                                "{location}: cites {}, which spec/not-applicable.tsv rules out",
                                statement.id
                            ));
                        }
                        RowVerdict::NotApplicable(reason)
                    }
                    None => match (code.is_empty(), tests.is_empty()) {
                        (false, false) => RowVerdict::Covered,
                        (true, false) => RowVerdict::MissingCode,
                        (false, true) => RowVerdict::MissingTest,
                        (true, true) => RowVerdict::MissingBoth,
                    },
                };
                Row {
                    statement,
                    verdict,
                    code,
                    tests,
                }
            })
            .collect();
        rows.sort_by_cached_key(|row| sort_key(&row.statement.id));
        for (id, locations) in code.iter().chain(&tests) {
            let what = if sort_key(id).is_some() {
                "not a statement"
            } else {
                "not an identifier"
            };
            mistakes.extend(
                locations
                    .iter()
                    .map(|location| format!("{location}: [{id}] is {what}")),
            );
        }
        for id in not_applicable.keys() {
            mistakes.push(format!("spec/not-applicable.tsv: {id} is not a statement"));
        }
        mistakes.sort();
        Self { rows, mistakes }
    }

    /// Whether nothing is missing and no citation is wrong.
    pub(crate) fn complete(&self) -> bool {
        self.mistakes.is_empty() && !self.rows.iter().any(|row| row.verdict.is_missing())
    }

    /// The counts in a few words, where nothing is missing.
    pub(crate) fn brief(&self) -> String {
        let covered = self
            .rows
            .iter()
            .filter(|row| row.verdict == RowVerdict::Covered)
            .count();
        format!("{covered} of {} covered", self.rows.len())
    }

    /// One line of counts.
    pub(crate) fn summary(&self) -> String {
        let count = |wanted: fn(&RowVerdict) -> bool| {
            self.rows.iter().filter(|row| wanted(&row.verdict)).count()
        };
        format!(
            "{} statements: {} covered, {} not applicable, {} missing code, {} missing test; {} mistakes",
            self.rows.len(),
            count(|verdict| *verdict == RowVerdict::Covered),
            count(|verdict| matches!(verdict, RowVerdict::NotApplicable(_))),
            count(|verdict| matches!(verdict, RowVerdict::MissingCode | RowVerdict::MissingBoth)),
            count(|verdict| matches!(verdict, RowVerdict::MissingTest | RowVerdict::MissingBoth)),
            self.mistakes.len(),
        )
    }

    /// One line for each statement, and one for each mistake.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            push_row(&mut text, row);
        }
        self.push_mistakes(&mut text);
        text
    }

    /// The same for missing or wrong statements only.
    pub(crate) fn problems(&self) -> String {
        let mut text = String::new();
        for row in self.rows.iter().filter(|row| row.verdict.is_missing()) {
            push_row(&mut text, row);
        }
        self.push_mistakes(&mut text);
        text
    }

    fn push_mistakes(&self, text: &mut String) {
        for mistake in &self.mistakes {
            let _ = writeln!(text, "{mistake}");
        }
    }

    /// The whole report as a page.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!(
            "# Statements of the MQTT specifications\n\n{}.\n\n\
             Written by `cargo xtask spec`. `MQTT-` is MQTT 5.0, `MQTT311-` is MQTT 3.1.1.\n\n\
             | statement | level | binds | verdict | code | tests |\n\
             |---|---|---|---|---|---|\n",
            self.summary()
        );
        for row in &self.rows {
            let Statement { id, level, binds } = &row.statement;
            let verdict = match &row.verdict {
                RowVerdict::NotApplicable(reason) => format!("not applicable: {reason}"),
                verdict => verdict.name().to_owned(),
            };
            let (code, tests) = (row.code.join("<br>"), row.tests.join("<br>"));
            let _ = writeln!(
                text,
                "| {id} | {level} | {binds} | {verdict} | {code} | {tests} |"
            );
        }
        if !self.mistakes.is_empty() {
            text.push_str("\n## Mistakes\n\n");
            for mistake in &self.mistakes {
                let _ = writeln!(text, "- {mistake}");
            }
        }
        text
    }
}

fn push_row(text: &mut String, row: &Row) {
    let detail = if let RowVerdict::NotApplicable(reason) = &row.verdict {
        reason.clone()
    } else {
        let parts = [places("code", &row.code), places("test", &row.tests)];
        parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
    };
    let line = format!(
        "{:<18} {:<22} {detail}",
        row.statement.id,
        row.verdict.name()
    );
    let _ = writeln!(text, "{}", line.trim_end());
}

fn places(what: &str, locations: &[String]) -> Option<String> {
    let (first, rest) = locations.split_first()?;
    Some(match rest.len() {
        0 => format!("{what} {first}"),
        more => format!("{what} {first} (+{more})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(id: &str) -> Statement {
        Statement {
            id: id.into(),
            level: "Must".into(),
            binds: "Server".into(),
        }
    }

    fn citation(id: &str, location: &str, place: Place) -> Citation {
        Citation {
            id: id.into(),
            location: location.into(),
            place,
        }
    }

    fn coverage(citations: Vec<Citation>) -> Coverage {
        let statements = [
            "MQTT-3.10.0-1",
            "MQTT-3.1.0-1",
            "MQTT-3.1.0-2",
            "MQTT-3.1.0-3",
            "MQTT-3.1.0-4",
        ];
        let not_applicable = BTreeMap::from([("MQTT-3.1.0-4".to_owned(), "a reason".to_owned())]);
        Coverage::new(
            statements.map(statement).to_vec(),
            not_applicable,
            citations,
        )
    }

    #[test]
    fn every_statement_has_its_verdict() {
        let coverage = coverage(vec![
            citation("MQTT-3.1.0-1", "a.rs:1", Place::Code),
            citation("MQTT-3.1.0-1", "b.rs:2", Place::Code),
            citation("MQTT-3.1.0-1", "t.rs:3", Place::Test),
            citation("MQTT-3.1.0-2", "a.rs:4", Place::Code),
            citation("MQTT-3.1.0-3", "t.py:5", Place::Test),
        ]);
        assert_eq!(
            coverage.text(),
            "MQTT-3.1.0-1       covered                code a.rs:1 (+1)  test t.rs:3\n\
             MQTT-3.1.0-2       missing test           code a.rs:4\n\
             MQTT-3.1.0-3       missing code           test t.py:5\n\
             MQTT-3.1.0-4       not applicable         a reason\n\
             MQTT-3.10.0-1      missing code and test\n"
        );
        assert_eq!(
            coverage.summary(),
            "5 statements: 1 covered, 1 not applicable, 2 missing code, 2 missing test; 0 mistakes"
        );
        assert!(!coverage.complete());
        assert_eq!(coverage.problems().lines().count(), 3);
        assert!(
            coverage
                .markdown()
                .contains("| MQTT-3.1.0-1 | Must | Server | covered | a.rs:1<br>b.rs:2 | t.rs:3 |")
        );
    }

    #[test]
    fn wrong_citations_are_mistakes() {
        let coverage = coverage(vec![
            citation("MQTT-3.1.0-4", "a.rs:1", Place::Code),
            citation("MQTT-9.9.9-9", "a.rs:2", Place::Test),
            citation("MQTT-4.7", "a.rs:3", Place::Code),
        ]);
        assert_eq!(
            coverage.mistakes,
            [
                "a.rs:1: cites MQTT-3.1.0-4, which spec/not-applicable.tsv rules out",
                "a.rs:2: [MQTT-9.9.9-9] is not a statement",
                "a.rs:3: [MQTT-4.7] is not an identifier",
            ]
        );
    }

    #[test]
    fn coverage_is_complete_when_nothing_is_missing_or_wrong() {
        let all = [
            "MQTT-3.10.0-1",
            "MQTT-3.1.0-1",
            "MQTT-3.1.0-2",
            "MQTT-3.1.0-3",
        ];
        let citations = all
            .iter()
            .flat_map(|id| {
                [
                    citation(id, "a.rs:1", Place::Code),
                    citation(id, "t.rs:1", Place::Test),
                ]
            })
            .collect();
        assert!(coverage(citations).complete());
    }
}
