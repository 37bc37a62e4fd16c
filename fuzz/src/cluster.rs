//! What nodes of a cluster tell each other.

use sterna_broker::{Message, group_of_letter, messages_of, rewritten_letter};
use sterna_cluster::tail::Settled;
use sterna_cluster::wire::{self, EncodedRun, Kind, READS};

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

/// Reads a batch of messages. Its parts have the same messages as the whole, and what is written and read again, too.
///
/// # Panics
///
/// Where they differ.
pub fn batch(bytes: &[u8]) {
    let Ok(sections) = wire::sections(READS, bytes) else {
        assert!(wire::read(READS, bytes).is_err());
        return;
    };
    let are_messages = |section: &wire::Section| section.kind == Kind::Messages;
    for section in sections.into_iter().filter(are_messages) {
        let mut rest = &bytes[section.records];
        let all: Vec<Message> = messages_of(rest).map_while(Result::ok).collect();
        if all.len() < section.count {
            assert!(wire::read(READS, bytes).is_err());
            continue;
        }
        let mut found = Vec::new();
        while !rest.is_empty() {
            let (end, _) = wire::leading(rest, true, |_, count| count <= 3);
            found.extend(messages_of(&rest[..end]).map_while(Result::ok));
            rest = &rest[end..];
        }
        expect_same(&found, &all);
        for may_be_brief in [false, true] {
            let mut run = EncodedRun::new(section.shard);
            for message in &all {
                run.push(message, may_be_brief);
            }
            let batch = wire::batch(READS.highest, [&run]);
            let again = wire::read(READS, &batch).expect("it was written here");
            expect_same(&again[0].messages, &all);
        }
    }
}

fn expect_same(found: &[Message], expected: &[Message]) {
    assert_eq!(found.len(), expected.len());
    for (one, other) in found.iter().zip(expected) {
        assert_eq!(one.topic(), other.topic());
        assert_eq!(one.payload(), other.payload());
        assert_eq!(one.properties(), other.properties());
        assert_eq!(one.native(), other.native());
        assert_eq!(
            (one.qos(), one.retain(), one.origin()),
            (other.qos(), other.retain(), other.origin())
        );
        assert_eq!(one.published_ms(), other.published_ms());
        assert_eq!(one.expires_at_ms(), other.expires_at_ms());
    }
}
