//! Values of the API as text for people.

use std::fmt::Write as _;

use serde_json::Value;
use sterna_client::{Harmless, is_obeyed};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A column: its heading, and the place of its value in an entry.
pub(in super::super) type Column = (&'static str, &'static str);

/// A text without what a terminal would obey.
pub(in super::super) fn harmless(text: &str) -> String {
    Harmless(text).to_string()
}

/// JSON as one line. Characters that a terminal would obey are escaped as JSON has it, so that programs read the same.
pub(in super::super) fn json(value: &Value) -> String {
    let mut out = String::new();
    for character in value.to_string().chars() {
        // They stand in texts alone, where escapes may be.
        if is_obeyed(character) {
            let _ = write!(out, "\\u{:04x}", u32::from(character));
        } else {
            out.push(character);
        }
    }
    out
}

/// Members that are moments, in milliseconds or seconds since 1970. Others of these units are lengths.
const MOMENTS: [&str; 9] = [
    "at_ms",
    "expires_at_ms",
    "expires_s",
    "now_ms",
    "paused_until_ms",
    "published_ms",
    "since_ms",
    "started_ms",
    "until_ms",
];

/// The name of a member as people read it: a date has no unit.
fn title(name: &str) -> &str {
    if MOMENTS.contains(&name) {
        let name = name.strip_suffix("_ms").unwrap_or(name);
        name.strip_suffix("_s").unwrap_or(name)
    } else {
        name
    }
}

/// A member's value in one cell. A moment is a date in UTC, in the form of RFC 3339.
fn member(name: &str, value: Option<&Value>) -> String {
    let moment = MOMENTS.contains(&name).then(|| value?.as_i64()).flatten();
    let Some(moment) = moment else {
        return cell(value);
    };
    let seconds = if name.ends_with("_ms") {
        moment.div_euclid(1000)
    } else {
        moment
    };
    let date = OffsetDateTime::from_unix_timestamp(seconds).ok();
    let date = date.and_then(|date| date.format(&Rfc3339).ok());
    date.unwrap_or_else(|| cell(value))
}

/// A value in one cell; `-` for none.
pub(super) fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) if text.is_empty() => "-".to_owned(),
        Some(Value::String(text)) => harmless(text),
        Some(other) => json(other),
    }
}

/// A table with a heading.
pub(in super::super) fn table(columns: &[Column], items: &[Value]) -> String {
    let mut rows: Vec<Vec<String>> =
        vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect()];
    rows.extend(items.iter().map(|item| {
        let cells = columns.iter().map(|(_, at)| {
            let name = at.rsplit('/').next().unwrap_or_default();
            member(name, item.pointer(at))
        });
        cells.collect()
    }));
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| {
            rows.iter()
                .map(|row| row[at].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Names and values of one thing, a line for each; what is nested is indented.
pub(super) fn members(value: &Value) -> String {
    let mut out = String::new();
    write_members(value, 0, &mut out);
    out
}

fn write_members(value: &Value, depth: usize, out: &mut String) {
    let Some(members) = value.as_object() else {
        let _ = writeln!(out, "{}", cell(Some(value)));
        return;
    };
    let names = members
        .keys()
        .map(|name| harmless(title(name)).chars().count());
    let width = names.max().unwrap_or(0);
    for (key, value) in members {
        let name = harmless(title(key));
        let indent = depth * 2;
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                let _ = writeln!(out, "{:indent$}{name}", "");
                write_members(value, depth + 1, out);
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                for item in items {
                    let _ = writeln!(out, "{:indent$}{name}", "");
                    write_members(item, depth + 1, out);
                }
            }
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| cell(Some(item))).collect();
                let _ = writeln!(out, "{:indent$}{name:width$}  {}", "", items.join(" "));
            }
            other => {
                let value = member(key, Some(other));
                let _ = writeln!(out, "{:indent$}{name:width$}  {value}", "");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_line_up_and_terminals_obey_nothing() {
        let items = [
            json!({"name": "a", "path": {"rtt_us": 7}}),
            json!({"name": "\u{1b}[2Jlong", "path": {}}),
        ];
        let text = table(&[("NAME", "/name"), ("RTT", "/path/rtt_us")], &items);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "NAME           RTT");
        assert_eq!(lines[1], "a              7");
        assert_eq!(lines[2], "\\u{1b}[2Jlong  -");
    }

    #[test]
    fn no_text_of_a_server_gives_orders() {
        let hostile = "a\u{1b}\u{7f}\u{9b}2J\u{202e}\u{2066}\\é\n";
        let value = json!({hostile: hostile, "list": [[hostile], {"deep": [{hostile: hostile}]}]});
        let line = json(&value);
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
        let columns = [("A", "/list")];
        let table = table(&columns, std::slice::from_ref(&value));
        let [heading, row] = table.lines().collect::<Vec<_>>()[..] else {
            panic!("one row: {table:?}")
        };
        for text in [line.as_str(), heading, row]
            .into_iter()
            .chain(members(&value).lines())
        {
            assert_eq!(harmless(text), text);
        }
        assert_eq!(members(&value).lines().count(), 6);
    }

    #[test]
    fn moments_are_dates_and_lengths_are_numbers() {
        let item = json!({"expires_s": 1_700_000_000, "since_ms": 1_700_000_000_999_i64, "until_ms": null,
            "uptime_s": 7});
        let columns = [
            ("SINCE", "/since_ms"),
            ("UNTIL", "/until_ms"),
            ("UP", "/uptime_s"),
        ];
        let text = table(&columns, std::slice::from_ref(&item));
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["2023-11-14T22:13:20Z", "-", "7"]);
        assert!(members(&item).starts_with("expires   2023-11-14T22:13:20Z\n"));
        // No date at all: as it came.
        assert_eq!(
            member("since_ms", Some(&json!(i64::MAX))),
            i64::MAX.to_string()
        );
    }

    #[test]
    fn members_are_indented() {
        // In alphabetical order, which is kept whether maps keep theirs or not.
        let value = json!({
            "a": 1, "inner": {"b": "x"}, "list": ["y", "z"], "long": null, "things": [{"n": 1}],
        });
        let text = members(&value);
        assert_eq!(
            text,
            "a       1\ninner\n  b  x\nlist    y z\nlong    -\nthings\n  n  1\n"
        );
    }
}
