//! What nodes of a cluster tell each other.

use sterna_broker::{group_of_letter, rewritten_letter};
use sterna_cluster::tail::Settled;

/// Parts of a letter that are looked at, so that a long one takes no longer.
const MOST_PARTS: usize = 256;

/// Reads a letter about a shared subscription. One that is read and written comes back.
///
/// # Panics
///
/// Where it changes when it is written and read again, or its group is another.
pub fn group_letter(bytes: &[u8]) {
    let Some(letter) = rewritten_letter(bytes) else {
        return;
    };
    assert_eq!(group_of_letter(&letter), group_of_letter(bytes));
    assert_eq!(rewritten_letter(&letter).as_ref(), Some(&letter));
    for end in 0..letter.len().min(MOST_PARTS) {
        // A part of it is no letter, or one that is whole.
        let part = rewritten_letter(&letter[..end]);
        assert!(part.is_none_or(|part| part == letter[..end]));
    }
}

/// Reads a line that says what an entry of the log settles. One that is read and written comes back.
///
/// # Panics
///
/// Where it changes when it is written and read again.
pub fn settled_line(bytes: &[u8]) {
    let Some(settled) = std::str::from_utf8(bytes).ok().and_then(Settled::parse) else {
        return;
    };
    if let Some(line) = settled.line() {
        assert!(
            line.len() <= bytes.len(),
            "numbers have their shortest form"
        );
        assert_eq!(Settled::parse(&line), Some(settled));
    }
}
