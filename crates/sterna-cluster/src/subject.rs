//! Topics as subjects of NATS.
//!
//! A topic name becomes one subject, and each such subject stands for exactly one topic name. A filter
//! becomes one or two subjects with wildcards, which match the subjects of exactly its topics.
//!
//! | topic or filter | subject |
//! |---|---|
//! | `a/b` | `t.a.b` |
//! | `$SYS/x` (topics of the server are apart) | `s.$SYS.x` |
//! | `a//b`, `/` (empty levels) | `t.a.%.b`, `t.%.%` |
//! | `a b/v1.0/*/100%` (what NATS cannot have in a token) | `t.a%20b.v1%2E0.%2A.100%25` |
//! | `+/b` | `t.*.b` |
//! | `a/#`, which also means `a` | `t.a` and `t.a.>` |
//! | `#` | `t.>` |

/// The first token of topics that clients own, and of those that begin with `$`.
const OPEN: &str = "t";
const RESERVED: &str = "s";

/// The token of an empty level. A percent sign of a topic is never alone: it is written `%25`.
const EMPTY: &str = "%";

/// The subject of a topic name.
///
/// The name need not be valid: every text has a subject of its own. A subject has at most three bytes for each byte
/// of its name, and three more. A server of NATS takes subjects that fit its `max_control_line`, 4,096 bytes by
/// default.
#[must_use]
pub fn of_topic(topic: &str) -> String {
    let mut subject = String::with_capacity(topic.len() + 8);
    subject.push_str(root(topic));
    for level in topic.split('/') {
        put_level(&mut subject, level);
    }
    subject
}

/// The topic name that a subject stands for; `None` where [`of_topic`] makes no such subject.
#[must_use]
pub fn to_topic(subject: &str) -> Option<String> {
    let (first, rest) = subject.split_once('.')?;
    let mut topic = Vec::with_capacity(subject.len());
    for (index, token) in rest.split('.').enumerate() {
        if index > 0 {
            topic.push(b'/');
        }
        if token == EMPTY {
            continue;
        }
        if token.is_empty() {
            return None;
        }
        let mut bytes = token.bytes();
        while let Some(byte) = bytes.next() {
            if byte == b'%' {
                let value = hex(bytes.next()?)? << 4 | hex(bytes.next()?)?;
                if !is_escaped(value) {
                    return None; // it has another form
                }
                topic.push(value);
            } else if is_escaped(byte) || byte == b'/' {
                return None;
            } else {
                topic.push(byte);
            }
        }
    }
    let topic = String::from_utf8(topic).ok()?;
    (root(&topic) == first).then_some(topic)
}

/// The subjects, one or two, that match the subjects of exactly those topic names that a valid filter
/// matches. A filter is one without `$share/NAME/`.
#[must_use]
pub fn of_filter(filter: &str) -> Vec<String> {
    let mut subject = String::with_capacity(filter.len() + 8);
    subject.push_str(root(filter));
    let mut subjects = Vec::with_capacity(2);
    for (index, level) in filter.split('/').enumerate() {
        match level {
            "+" => subject.push_str(".*"),
            "#" => {
                if index > 0 {
                    subjects.push(subject.clone());
                }
                subject.push_str(".>");
            }
            text => put_level(&mut subject, text),
        }
    }
    subjects.push(subject);
    subjects
}

/// Whether NATS delivers what is published to `subject` to a subscription of `pattern`.
#[must_use]
pub fn matches(pattern: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in pattern.split('.') {
        match (wanted, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (wanted, Some(token)) if wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

/// The first token of a topic's or filter's subject.
fn root(topic: &str) -> &'static str {
    if topic.starts_with('$') {
        RESERVED
    } else {
        OPEN
    }
}

/// Appends a level as a token.
fn put_level(subject: &mut String, level: &str) {
    subject.push('.');
    if level.is_empty() {
        subject.push_str(EMPTY);
    }
    for character in level.chars() {
        match u8::try_from(character) {
            Ok(byte) if byte.is_ascii() && is_escaped(byte) => {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                subject.push('%');
                subject.push(char::from(DIGITS[usize::from(byte >> 4)]));
                subject.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
            _ => subject.push(character),
        }
    }
}

/// Whether a byte of a level is written as an escape. Escaped are bytes with a meaning in a subject, bytes that end
/// one, and bytes that a log cannot show.
const fn is_escaped(byte: u8) -> bool {
    matches!(byte, b'%' | b'.' | b'*' | b'>' | 0..=b' ' | 0x7f)
}

/// The value of an upper-case hexadecimal digit.
const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_true() {
        for (topic, subject) in [
            ("a/b", "t.a.b"),
            ("$SYS/x", "s.$SYS.x"),
            ("a//b", "t.a.%.b"),
            ("/", "t.%.%"),
            ("a b/v1.0/*/100%", "t.a%20b.v1%2E0.%2A.100%25"),
            ("%", "t.%25"),
            ("a\u{1}/>", "t.a%01.%3E"),
            ("größe/Ω", "t.größe.Ω"),
        ] {
            assert_eq!(of_topic(topic), subject);
            assert_eq!(to_topic(subject).as_deref(), Some(topic));
        }
        assert_eq!(of_filter("+/b"), ["t.*.b"]);
        assert_eq!(of_filter("a/#"), ["t.a", "t.a.>"]);
        assert_eq!(of_filter("#"), ["t.>"]);
        assert_eq!(of_filter("+/#"), ["t.*", "t.*.>"]);
        assert_eq!(of_filter("$SYS/#"), ["s.$SYS", "s.$SYS.>"]);
    }

    #[test]
    fn a_subject_that_no_topic_has_is_none() {
        for subject in [
            "", "t", "x.a", "t.", "t.a.", "t..a", "t.a%2e", "t.a%41", "t.%2", "t.a b", "t.$SYS",
            "s.a", "t.*", "t.>", "t.a/b", "t.%FF", "t.a%",
        ] {
            assert_eq!(to_topic(subject), None, "{subject}");
        }
    }
}
