//! Topic names and filters against definitions that are too simple to be wrong.

use sterna_mqtt::topic::{check_any_filter, check_filter, check_name, matches};

/// What the bytes of an input stand for: few characters, so that names and filters often meet.
const ALPHABET: [char; 10] = ['a', 'b', '/', '+', '#', '$', '\u{e9}', '/', 'a', '\0'];

/// The byte that divides filter and name.
const DIVIDER: u8 = b'\n';

/// Checks one filter against one name.
///
/// # Panics
///
/// Where the crate and the definition differ.
pub fn filter_and_name(bytes: &[u8]) {
    let divider = bytes
        .iter()
        .position(|byte| *byte == DIVIDER)
        .unwrap_or(bytes.len());
    let filter = text(&bytes[..divider]);
    let name = text(bytes.get(divider + 1..).unwrap_or_default());
    assert_eq!(check_name(&name).is_ok(), is_name(&name), "{name:?}");
    assert_eq!(
        check_filter(&filter).is_ok(),
        is_filter(&filter),
        "{filter:?}"
    );
    let shared = format!("$share/{filter}");
    let is_shared = filter.split_once('/').is_some_and(|(group, filter)| {
        !group.is_empty() && !group.contains(['+', '#', '\0']) && is_filter(filter)
    });
    if !filter.contains('\0') {
        assert_eq!(check_any_filter(&shared).is_ok(), is_shared, "{shared:?}");
    }
    if is_name(&name) && is_filter(&filter) {
        assert_eq!(
            matches(&filter, &name),
            is_match(&filter, &name),
            "{filter:?} {name:?}"
        );
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| ALPHABET[usize::from(*byte) % ALPHABET.len()])
        .collect()
}

pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 65_535 && !name.contains(['+', '#', '\0'])
}

pub(crate) fn is_filter(filter: &str) -> bool {
    let levels: Vec<&str> = filter.split('/').collect();
    !filter.is_empty()
        && filter.len() <= 65_535
        && !filter.contains('\0')
        && levels
            .iter()
            .all(|level| !level.contains('+') || *level == "+")
        && levels[..levels.len() - 1]
            .iter()
            .all(|level| !level.contains('#'))
        && levels
            .last()
            .is_none_or(|level| !level.contains('#') || *level == "#")
}

pub(crate) fn is_match(filter: &str, name: &str) -> bool {
    let filter: Vec<&str> = filter.split('/').collect();
    let name: Vec<&str> = name.split('/').collect();
    let wildcard_first = filter[0] == "+" || filter[0] == "#";
    !(wildcard_first && name[0].starts_with('$')) && is_match_from(&filter, &name)
}

fn is_match_from(filter: &[&str], name: &[&str]) -> bool {
    match (filter, name) {
        (["#"], _) | ([], []) => true,
        (["+", filter @ ..], [_, name @ ..]) => is_match_from(filter, name),
        ([level, filter @ ..], [same, name @ ..]) if level == same => is_match_from(filter, name),
        _ => false,
    }
}

/// Characters that mean something in a subject of NATS, beside those of topics.
const SUBJECT_ALPHABET: [char; 13] = [
    'a', '/', '+', '#', '$', '.', '*', '>', '%', ' ', '2', 'E', '\u{e9}',
];

/// Checks that the subject of a name stands for it alone, that no subject stands for what has another,
/// and that subjects match as names do.
///
/// # Panics
///
/// Where one of this is not so.
pub fn filter_and_subject(bytes: &[u8]) {
    use sterna_cluster::subject;

    let raw = String::from_utf8_lossy(bytes);
    assert_eq!(
        subject::to_topic(&subject::of_topic(&raw)).as_deref(),
        Some(&*raw)
    );
    if let Some(topic) = subject::to_topic(&raw) {
        assert_eq!(subject::of_topic(&topic), raw);
    }
    let divider = bytes.iter().position(|byte| *byte == DIVIDER);
    let (filter, name) = bytes.split_at(divider.unwrap_or(bytes.len()));
    let text = |bytes: &[u8]| -> String {
        let character = |byte: &u8| SUBJECT_ALPHABET[usize::from(*byte) % SUBJECT_ALPHABET.len()];
        bytes.iter().map(character).collect()
    };
    let (filter, name) = (text(filter), text(name.get(1..).unwrap_or_default()));
    if is_name(&name) && is_filter(&filter) {
        let of_name = subject::of_topic(&name);
        let by_subject = subject::of_filter(&filter)
            .iter()
            .any(|pattern| subject::matches(pattern, &of_name));
        assert_eq!(by_subject, is_match(&filter, &name), "{filter:?} {name:?}");
    }
}
