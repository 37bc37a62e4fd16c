//! The output of the commands for operators.

use std::fmt::Display;
use std::io::Write as _;

use serde_json::Value;

use super::super::exit::{self, Failure};
use super::connection::Listed;
use super::table::{self, Column};

/// The output of a command.
pub(super) enum Shown {
    One(Value),
    /// A change whose answer has no content: a line on standard error.
    Done(String),
    /// An answer, and the same for people.
    Told(Value, String),
    /// The same, of an action that is refused.
    Refused(Value, String),
    /// Entries, whether there are more, and nodes that have not answered.
    List(&'static [Column], Listed),
}

impl Shown {
    /// The answer to a change, or `words` where the answer has no content.
    pub(super) fn done(answer: Value, words: impl Display) -> Self {
        match answer {
            Value::Null => Self::Done(table::harmless(&words.to_string())),
            answer => Self::One(answer),
        }
    }

    pub(super) fn print(self, as_json: bool) -> Result<(), Failure> {
        match self {
            Self::One(Value::Null) => Ok(()),
            Self::Done(words) => {
                eprintln!("sterna: {words}");
                Ok(())
            }
            Self::One(value) | Self::Told(value, _) if as_json => {
                write(&format!("{}\n", table::json(&value)))
            }
            Self::One(value) => write(&table::members(&value)),
            Self::Told(_, text) => write(&text),
            Self::Refused(value, text) => {
                Self::Told(value, text).print(as_json)?;
                Err(Failure::new(exit::DENIED, ""))
            }
            Self::List(columns, listed) => {
                let Listed {
                    items,
                    has_more,
                    unanswered,
                } = listed;
                if as_json {
                    let lines: Vec<String> =
                        items.iter().map(|item| table::json(item) + "\n").collect();
                    write(&lines.concat())?;
                } else {
                    write(&table::table(&with_node(columns, &items), &items))?;
                }
                if has_more {
                    eprintln!("sterna: there are more: --limit");
                }
                tell_unanswered(&unanswered);
                Ok(())
            }
        }
    }
}

/// The columns, with the nodes in front where entries are of nodes.
fn with_node(columns: &'static [Column], items: &[Value]) -> Vec<Column> {
    const NODE: Column = ("NODE", "/node");
    let is_there = columns.contains(&NODE);
    let of_nodes = items.iter().any(|item| item["node"].is_string());
    let node = (of_nodes && !is_there).then_some(NODE);
    node.into_iter().chain(columns.iter().copied()).collect()
}

/// Names nodes that have not answered, on standard error.
fn tell_unanswered(nodes: &[String]) {
    for node in nodes {
        eprintln!("sterna: no answer from node {}", table::harmless(node));
    }
}

/// Writes to standard output, whose reader may have gone.
pub(super) fn write(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|_| Failure::quiet())
}
