//! Patterns of `LIKE`.
//!
//! A pattern is cut at each `%` into pieces. The first and the last one have their places. Each other one is looked for
//! once, from the left, in time that is linear in the text: the leftmost place leaves most to those that follow.

use super::steps::{BYTES_PER_STEP, Steps};
use super::wild::Wild;

/// Characters between two `%`.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    /// Nothing but characters.
    Text(Box<str>),
    /// With `_` among them.
    Wild(Wild),
}

/// A pattern that has been read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pattern {
    /// The beginning of the text.
    first: Piece,
    /// The pieces behind the first `%`, in order; the last is the end of the text. Without it there is no `%`.
    rest: Box<[Piece]>,
}

impl Pattern {
    /// Reads a pattern; `None` if the escape character is the last, or escapes neither a wildcard
    /// nor itself.
    pub(super) fn parse(text: &str, escape: Option<char>) -> Option<Self> {
        let mut pieces = Vec::new();
        // A character, or `None` for any.
        let mut piece: Vec<Option<char>> = Vec::new();
        let mut characters = text.chars();
        while let Some(c) = characters.next() {
            match c {
                _ if Some(c) == escape => match characters.next()? {
                    escaped if escaped == '%' || escaped == '_' || Some(escaped) == escape => {
                        piece.push(Some(escaped));
                    }
                    _ => return None,
                },
                '%' => {
                    // Several in a row are one.
                    if !piece.is_empty() || pieces.is_empty() {
                        pieces.push(Piece::of(&std::mem::take(&mut piece)));
                    }
                }
                '_' => piece.push(None),
                _ => piece.push(Some(c)),
            }
        }
        pieces.push(Piece::of(&piece));
        let first = pieces.remove(0);
        Some(Self {
            first,
            rest: pieces.into(),
        })
    }

    /// Whether the whole text fits, as far as there are steps for it; false without.
    pub(super) fn matches(&self, text: &str, steps: &mut Steps) -> bool {
        let Some(mut text) = self.first.after_start(text, steps) else {
            return false;
        };
        let Some((last, middle)) = self.rest.split_last() else {
            return text.is_empty();
        };
        for piece in middle {
            let Some(after) = piece.after_first(text, steps) else {
                return false;
            };
            text = after;
        }
        last.ends(text, steps)
    }
}

impl Piece {
    fn of(characters: &[Option<char>]) -> Self {
        let text: Option<String> = characters.iter().copied().collect();
        text.map_or_else(
            || Self::Wild(Wild::new(characters)),
            |text| Self::Text(text.into()),
        )
    }

    /// The rest of a text that begins with this.
    fn after_start<'t>(&self, text: &'t str, steps: &mut Steps) -> Option<&'t str> {
        match self {
            Self::Text(piece) => steps
                .take_for(piece.len())
                .then(|| text.strip_prefix(&**piece))?,
            Self::Wild(wild) => wild.after_start(text, steps),
        }
    }

    /// The rest of a text behind the first place of this.
    fn after_first<'t>(&self, text: &'t str, steps: &mut Steps) -> Option<&'t str> {
        match self {
            Self::Text(piece) => {
                // It is looked for in parts, so that it costs what was looked at.
                let mut from = 0;
                loop {
                    let part = PART_BYTES.max(4 * piece.len());
                    let mut end = text.len().min(from + part);
                    while !text.is_char_boundary(end) {
                        end += 1;
                    }
                    if !steps.take_for(end - from) {
                        return None;
                    }
                    if let Some(at) = text[from..end].find(&**piece) {
                        return Some(&text[from + at + piece.len()..]);
                    }
                    if end == text.len() {
                        return None;
                    }
                    // A place of it may lie across the end of the part.
                    from = end.saturating_sub(piece.len()).max(from + 1);
                    while !text.is_char_boundary(from) {
                        from += 1;
                    }
                }
            }
            Self::Wild(wild) => wild.after_first(text, steps),
        }
    }

    /// Whether a text ends with this.
    fn ends(&self, text: &str, steps: &mut Steps) -> bool {
        match self {
            Self::Text(piece) => steps.take_for(piece.len()) && text.ends_with(&**piece),
            Self::Wild(wild) => wild.ends(text, steps),
        }
    }
}

/// Bytes of a text that are looked at together.
const PART_BYTES: usize = 64 * BYTES_PER_STEP;

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, escape: Option<char>, text: &str) -> bool {
        let mut steps = Steps::new(u64::MAX);
        Pattern::parse(pattern, escape).is_some_and(|pattern| pattern.matches(text, &mut steps))
    }

    #[test]
    fn patterns_of_the_specification() {
        assert!(fits("12%3", None, "123"));
        assert!(fits("12%3", None, "12993"));
        assert!(!fits("12%3", None, "1234"));
        assert!(fits("l_se", None, "lose"));
        assert!(!fits("l_se", None, "loose"));
        assert!(fits("\\_%", Some('\\'), "_foo"));
        assert!(!fits("\\_%", Some('\\'), "bar"));
        assert!(fits("%", None, ""));
        assert!(fits("", None, ""));
        assert!(!fits("", None, "a"));
        assert!(fits("%b%b%", None, "abcb"));
        assert!(!fits("%b%b%", None, "abc"));
        assert!(fits("_ä%", None, "xäy"));
        assert!(fits("100!%", Some('!'), "100%"));
        assert!(fits("a!!b", Some('!'), "a!b"));
        assert!(Pattern::parse("a!", Some('!')).is_none());
        assert!(Pattern::parse("a!b", Some('!')).is_none());
    }

    /// What a pattern says, without any haste.
    fn says(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('%', rest)) => (0..=text.len()).any(|from| says(rest, &text[from..])),
            Some((c, rest)) => {
                let first = text.split_first();
                first.is_some_and(|(first, after)| (*c == '_' || c == first) && says(rest, after))
            }
        }
    }

    /// All words of up to `most` of these characters.
    fn words(characters: &[char], most: usize) -> Vec<Vec<char>> {
        let mut all = vec![Vec::new()];
        let mut from = 0;
        for _ in 0..most {
            let until = all.len();
            for at in from..until {
                for &c in characters {
                    let mut word = all[at].clone();
                    word.push(c);
                    all.push(word);
                }
            }
            from = until;
        }
        all
    }

    #[test]
    fn every_short_pattern_fits_what_it_says() {
        let texts = words(&['a', 'ä'], 6);
        for pattern in words(&['a', 'ä', '_', '%'], 5) {
            let read: String = pattern.iter().collect();
            for text in &texts {
                let whole: String = text.iter().collect();
                assert_eq!(
                    fits(&read, None, &whole),
                    says(&pattern, text),
                    "{read:?} and {whole:?}"
                );
            }
        }
    }

    #[test]
    fn places_across_parts_are_found() {
        for before in PART_BYTES - 12..PART_BYTES + 4 {
            let text = format!("{}äbcdäbce{}", "ä".repeat(before / 2), "x".repeat(700));
            assert!(fits("%äbce%", None, &text), "{before}");
            assert!(fits("%äb_e%", None, &text), "{before}");
            assert!(!fits("%äbcf%", None, &text), "{before}");
        }
    }

    #[test]
    fn the_search_costs_what_the_text_is_long() {
        let text = "a".repeat(65_000);
        let long = "a".repeat(1_000);
        for pattern in [
            format!("%{long}b"),
            format!("%{long}b%"),
            format!("%{long}_b%"),
            format!("%{}b%", "a_".repeat(500)),
            "%a".repeat(500) + "b%",
            format!("%{}%", ["a".repeat(20).as_str(); 40].join("%") + "b"),
        ] {
            let mut steps = Steps::new(u64::MAX);
            let pattern = Pattern::parse(&pattern, None).expect("a pattern");
            assert!(!pattern.matches(&text, &mut steps));
            let cost = u64::MAX - steps.left();
            // A word of 64 places for each character is the most.
            assert!(cost < 65_000 * 24, "{cost} steps");
        }
        // No work is done beyond the steps.
        let mut steps = Steps::new(100);
        let pattern = Pattern::parse("%aab%", None).expect("a pattern");
        assert!(!pattern.matches(&text, &mut steps));
        assert!(steps.is_over());
    }
}
