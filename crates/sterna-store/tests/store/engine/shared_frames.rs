//! Messages of one topic that are appended one by one share a frame.

use std::sync::Arc;

use super::rewrite::{checkpoint, eager, log_bytes, tell, told};
use super::{Store, draft, everything, log_files, needs_of, settings};
use sterna_store::disk::SimulatedDisk;
use sterna_store::{Request, Settings};

/// The largest frame that messages share, in bytes.
const MOST_BYTES: usize = 512;
/// Bytes of a frame before its body.
const HEADER_BYTES: usize = 36;
/// Bytes of an item around a content with its topic.
const ITEM_BYTES: usize = 8;

/// A content with its topic, as the broker writes it: 60 bytes.
fn content(topic: &str, number: u64) -> Vec<u8> {
    let mut content = format!("{topic} {number:>8} ").into_bytes();
    content.resize(60, b'.');
    content
}

/// One topic's messages share frames of at most a sector, and are what they were.
#[test]
fn messages_of_a_topic_share_a_frame() {
    let settings = Settings {
        segment_bytes: 1 << 20,
        ..settings()
    };
    let mut store = Store::open(&SimulatedDisk::new(1), &settings);
    store.pass(1);
    let log_bytes = |store: &Store| store.engine.usage_reader().usage().log_bytes;
    let before = log_bytes(&store);
    let mut sequences = Vec::new();
    for number in 0..700 {
        let appended = store.append(&[("a/b", &content("a/b", number))]).unwrap();
        assert_eq!(appended.first, number + 1);
        sequences.push(appended.sequence);
    }
    store.pass(20);
    let (of_a_frame, item) = (7, ITEM_BYTES + 60);
    assert!(HEADER_BYTES + of_a_frame * item <= MOST_BYTES);
    assert!(HEADER_BYTES + (of_a_frame + 1) * item > MOST_BYTES);
    let frames = 700 / of_a_frame;
    assert_eq!((sequences[0], sequences[699]), (1, frames as u64));
    assert!(sequences.is_sorted());
    let written = log_bytes(&store) - before;
    assert_eq!(written, (frames * HEADER_BYTES + 700 * item) as u64);
    for reopens in 0..2 {
        let read = store.read(0);
        let numbers = read.iter().map(|message| message.position);
        assert!(numbers.eq(1..=700), "after {reopens} starts");
        for (number, message) in (0..).zip(&read) {
            assert_eq!(message.content, content("a/b", number));
        }
        store = store.reopen();
        assert_eq!(store.engine.report().damage, []);
    }
}

/// Nothing else shares a frame.
#[test]
fn other_appends_have_frames_of_their_own() {
    let mut store = Store::new();
    let mut sequence = 0;
    let mut is_alone = |store: &mut Store, messages: &[(&str, &[u8])], change: bool| {
        let changes: &[(&str, Option<&str>)] = if change { &[("key", Some("1"))] } else { &[] };
        let appended = store.handle.append(&draft(messages, changes)).unwrap();
        let is_alone = appended.sequence == sequence + 1;
        sequence = appended.sequence;
        is_alone
    };
    assert!(is_alone(&mut store, &[("a", b"1")], false));
    assert!(!is_alone(&mut store, &[("a", b"2")], false));
    // A part of the topic, and one that has more.
    assert!(is_alone(&mut store, &[("a/b", b"3")], false));
    assert!(is_alone(&mut store, &[("a", b"4")], false));
    // A change, alone and with a message, and several messages.
    assert!(is_alone(&mut store, &[], true));
    assert!(is_alone(&mut store, &[("a", b"5")], false));
    assert!(is_alone(&mut store, &[("a", b"6")], true));
    assert!(is_alone(&mut store, &[("a", b"7")], false));
    assert!(is_alone(&mut store, &[("a", b"8"), ("a", b"9")], false));
    assert!(is_alone(&mut store, &[("a", b"10")], false));
    // A large one, and one behind it.
    assert!(is_alone(&mut store, &[("a", &[b'x'; 600])], false));
    assert!(is_alone(&mut store, &[("a", b"12")], false));
    // One that was written.
    store.pass(20);
    assert!(is_alone(&mut store, &[("a", b"13")], false));
    assert!(!is_alone(&mut store, &[("a", b"14")], false));
    store.pass(20);
    let mut store = store.reopen();
    assert_eq!(store.engine.report().damage, []);
    let contents = store.read(0).into_iter().map(|message| message.content);
    let contents: Vec<_> = contents.filter(|content| content.len() < 600).collect();
    let wanted = (1..=14).filter(|number| *number != 11);
    assert!(wanted.map(|number| number.to_string()).eq(contents));
}

/// A damaged byte costs a sector of messages at most.
#[test]
fn damage_costs_one_shared_frame() {
    let settings = Settings {
        segment_bytes: 1 << 20,
        ..settings()
    };
    let mut store = Store::open(&SimulatedDisk::new(1), &settings);
    for number in 0..70 {
        store.append(&[("a/b", &content("a/b", number))]).unwrap();
    }
    store.pass(20);
    let name = &log_files(&store.disk, ".log")[0];
    let bytes = store.disk.content(name).unwrap();
    let wanted = content("a/b", 30);
    let at = bytes.windows(60).position(|part| part == wanted).unwrap();
    store.disk.flip(name, at + 50, 0);
    let mut store = store.reopen();
    let numbers: Vec<_> = store.read(0).iter().map(|found| found.position).collect();
    let gone: Vec<_> = (1..=70)
        .filter(|number| !numbers.contains(number))
        .collect();
    assert_eq!(gone, (29..=35).collect::<Vec<_>>());
}

/// A delivery in ten of one topic is not settled. Of a frame those stay that are needed, and what is between them.
#[test]
fn shared_frames_are_rewritten_to_what_is_needed() {
    let mut store = Store::open(&SimulatedDisk::new(7), &eager());
    for number in 0..2_000 {
        store.append(&[("a/b", &content("a/b", number))]).unwrap();
        if number % 50 == 49 {
            store.pass(1);
        }
    }
    checkpoint(&mut store);
    let before = log_bytes(&store.disk);
    let rounds: Vec<_> = (0..3)
        .map(|_| {
            let mut needs = needs_of(&["a/b"], 1_000_000);
            needs.single = (1..=2_000).step_by(10).collect();
            let written = store.disk.written_bytes();
            tell(&mut store, told(vec![needs]));
            store.pass(200);
            let written = store.disk.written_bytes() - written;
            (log_bytes(&store.disk), written)
        })
        .collect();
    assert!(rounds[0].0 * 3 < before, "{before}, {rounds:?}");
    assert_eq!(rounds[2].1, 0, "nothing is copied again: {rounds:?}");
    for _ in 0..2 {
        let read = store.read(0).into_iter();
        let read = read.filter(|message| message.position % 10 == 1);
        let read: Vec<_> = read.map(|found| (found.position, found.content)).collect();
        assert_eq!(read.len(), 200);
        for (position, found) in read {
            assert_eq!(found, content("a/b", position - 1));
        }
        store = store.reopen();
        assert_eq!(store.engine.report().damage, []);
    }
}

/// A few messages of a topic in one frame are no reason to read what is behind it.
#[test]
fn a_shared_frame_is_read_alone() {
    let settings = Settings {
        segment_bytes: 16 << 20,
        ..settings()
    };
    let mut store = Store::open(&SimulatedDisk::new(7), &settings);
    for number in 0..100 {
        for _ in 0..5 {
            store.append(&[("a/b", &content("a/b", number))]).unwrap();
        }
        for topic in ["x", "y"].repeat(10) {
            store.append(&[(topic, &[b'.'; 5_000])]).unwrap();
        }
        store.pass(1);
    }
    let before = store.disk.read_bytes();
    let request = Request {
        filters: Arc::new(["a/b".into()]),
        ..everything(0)
    };
    assert_eq!(store.handle.read_now(&request).messages.len(), 500);
    let read = store.disk.read_bytes() - before;
    assert!(read <= 100 * 2_048, "{read} bytes for a hundred frames");
}
