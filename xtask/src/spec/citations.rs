//! Finds citations of statements in source texts.

use crate::rust_source::line_of;

/// Start of a citation; the closing bracket ends it.
const OPENINGS: [&str; 2] = ["[MQTT-", "[MQTT311-"];

/// Where a citation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Code,
    Test,
}

impl Place {
    pub(super) const fn of(test: bool) -> Self {
        if test { Self::Test } else { Self::Code }
    }
}

/// One citation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Citation {
    /// The text between the brackets; not always an identifier.
    pub(super) id: String,
    /// File and line.
    pub(super) location: String,
    pub(super) place: Place,
}

/// Appends every citation of a file: an opening with a digit behind it. Where no identifier comes of
/// that, it is kept as it stands, so that the report can name it.
pub(super) fn find(
    file: &str,
    text: &str,
    place: impl Fn(usize) -> Place,
    found: &mut Vec<Citation>,
) {
    for (offset, _) in text.match_indices('[') {
        let rest = &text[offset..];
        let behind = OPENINGS
            .iter()
            .find_map(|opening| rest.strip_prefix(opening));
        if !behind.is_some_and(|behind| behind.starts_with(|c: char| c.is_ascii_digit())) {
            continue;
        }
        let line = rest.lines().next().unwrap_or(rest);
        let end = line.find(']').unwrap_or(line.len());
        found.push(Citation {
            id: line[1..end].to_owned(),
            location: format!("{file}:{}", line_of(text, offset)),
            place: place(offset),
        });
    }
}

/// Whether a text is an identifier such as `MQTT-3.1.2-10` or `MQTT311-4.7.0-1`.
pub(super) fn is_id(text: &str) -> bool {
    sort_key(text).is_some()
}

/// Sort key of identifiers: specification, section, number.
pub(super) fn sort_key(id: &str) -> Option<(u8, Vec<u32>, u32)> {
    let (specification, rest) = match (id.strip_prefix("MQTT-"), id.strip_prefix("MQTT311-")) {
        (Some(rest), _) => (0, rest),
        (None, Some(rest)) => (1, rest),
        (None, None) => return None,
    };
    let (section, number) = rest.split_once('-')?;
    let section: Option<Vec<u32>> = section.split('.').map(number_of).collect();
    let section = section.filter(|parts| parts.len() >= 2)?;
    Some((specification, section, number_of(number)?))
}

fn number_of(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_are_found_with_their_lines() {
        let text = "// [MQTT-3.1.0-1] and [MQTT311-3.1.0-2].\nlet x = a[MQTT];\n/// [MQTT-4.7…]\n// [MQTT-...] [MQTT-";
        let mut found = Vec::new();
        find("a.rs", text, |offset| Place::of(offset > 20), &mut found);
        let seen: Vec<(&str, &str, Place)> = found
            .iter()
            .map(|citation| {
                (
                    citation.id.as_str(),
                    citation.location.as_str(),
                    citation.place,
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("MQTT-3.1.0-1", "a.rs:1", Place::Code),
                ("MQTT311-3.1.0-2", "a.rs:1", Place::Test),
                ("MQTT-4.7…", "a.rs:3", Place::Test),
            ]
        );
    }

    #[test]
    fn identifiers_are_told_from_other_texts() {
        for id in ["MQTT-3.1.2-10", "MQTT311-4.7.0-1", "MQTT-4.2-1"] {
            assert!(is_id(id), "{id}");
        }
        for text in [
            "MQTT-",
            "MQTT-3.1.2",
            "MQTT-3-1",
            "MQTT-3.1.x-1",
            "MQTT-3.1.2-+1",
            "AMQP-1.2.3-4",
        ] {
            assert!(!is_id(text), "{text}");
        }
    }

    #[test]
    fn identifiers_sort_by_number() {
        let mut ids = [
            "MQTT311-1.5.3-1",
            "MQTT-3.10.1-1",
            "MQTT-3.2.0-10",
            "MQTT-3.2.0-2",
        ];
        ids.sort_by_key(|id| sort_key(id));
        assert_eq!(
            ids,
            [
                "MQTT-3.2.0-2",
                "MQTT-3.2.0-10",
                "MQTT-3.10.1-1",
                "MQTT311-1.5.3-1"
            ]
        );
    }
}
