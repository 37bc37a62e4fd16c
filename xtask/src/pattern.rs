//! Patterns of names in the lists of this program.

/// Whether a text has the form of a pattern in which `*` stands for any text.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text) in [
            ("a", "a"),
            ("*", ""),
            ("*", "abc"),
            ("a*c", "abc"),
            ("a*", "abc"),
            ("*c", "abc"),
            ("*a*b*", "xaybz"),
            ("a*b*c", "abbc"),
        ] {
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("a", "ab"),
            ("a*c", "ab"),
            ("a*a", "a"),
            ("*b*b*", "abc"),
            ("", "a"),
        ] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
    }
}
