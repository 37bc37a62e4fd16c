//! The cost of a message, and of a reader's return.

use std::sync::Arc;

use super::{Store, settings};
use sterna_store::disk::SimulatedDisk;
use sterna_store::{Draft, Request, Settings};

/// At most 1.3 times the size of a message, and 64 bytes.
#[test]
fn bytes_written_per_message_are_bounded() {
    // The broker's form of a message adds about this to topic and payload.
    const FORM_BYTES: usize = 20;
    for (payload, topics) in [
        (100, 1),
        (100, 10),
        (100, 1_000_000),
        (1_000, 10),
        (1_000, 1_000_000),
    ] {
        let settings = Settings {
            segment_bytes: 1 << 20,
            ..settings()
        };
        let mut store = Store::open(&SimulatedDisk::new(1), &settings);
        store.pass(1);
        let before = store.disk.written_bytes();
        let count = 20_000_u64;
        let mut draft = Draft::default();
        for number in 0..count {
            let topic = format!("site/device/{:08}", number % topics);
            draft.clear();
            draft
                .message(&topic, |out| {
                    out.resize(out.len() + FORM_BYTES, 7);
                    out.extend_from_slice(topic.as_bytes());
                    out.resize(out.len() + payload, 7);
                })
                .unwrap();
            store.handle.append(&draft).unwrap();
            if number % 100 == 99 {
                store.pass(1);
            }
        }
        store.pass(3_000);
        let written = store.disk.written_bytes() - before;
        let most = (20 + payload as u64) * 13 / 10 + 64;
        let each = written / count;
        println!("{payload} bytes, {topics} topics: {each} of {most}");
        assert!(
            each <= most,
            "{payload} bytes, {topics} topics: {each} of {most}"
        );
    }
}

/// A session slept through messages, every thousandth of them its own, and the process was killed. Its first read
/// takes its messages and the indexes of full segments, and nothing else: no segment is read through for it.
#[test]
fn a_first_read_after_a_kill_reads_what_is_wanted() {
    const MESSAGES: u64 = 60_000;
    let settings = Settings {
        segment_bytes: 4 << 20,
        ..settings()
    };
    let mut store = Store::open(&SimulatedDisk::new(1), &settings);
    let mut draft = Draft::default();
    for number in 0..MESSAGES {
        let topic = match number % 1_000 {
            7 => "sleeper".to_owned(),
            _ => format!("other/{}", number % 10),
        };
        draft.clear();
        draft
            .message(&topic, |out| out.resize(out.len() + 100, 7))
            .unwrap();
        store.handle.append(&draft).unwrap();
        if number % 1_000 == 0 {
            store.pass(1);
        }
    }
    store.pass(20);
    for is_killed in [true, false] {
        if is_killed {
            store = store.reopen();
        }
        let before = store.disk.read_bytes();
        let request = Request {
            filters: Arc::new(["sleeper".into()]),
            ..super::everything(0)
        };
        store.handle.read(request);
        store.pass(1);
        let answer = store.handle.next_answer().unwrap();
        assert_eq!(answer.messages.len() as u64, MESSAGES / 1_000);
        let read = store.disk.read_bytes() - before;
        let of_messages = MESSAGES / 1_000 * (2 << 10);
        let of_indexes: usize = (super::log_files(&store.disk, ".index").iter())
            .map(|name| store.disk.content(name).unwrap().len())
            .sum();
        // The check of the records at the start leaves none of their pages in memory.
        let of_records = 16 << 10;
        println!("{read} bytes read, {of_messages} and {of_indexes} wanted");
        assert!(
            read <= of_messages + of_indexes as u64 + of_records,
            "{read} bytes"
        );
    }
}

/// The file that the first append after a start goes into is made before there is one.
#[test]
fn the_first_append_after_a_start_waits_for_no_file() {
    let mut store = Store::new();
    store.append(&[("a", b"before")]).unwrap();
    store.pass(20);
    let mut store = store.reopen();
    store.pass(20);
    store.disk.set_sync_takes_ms(50);
    let large = [7; 3 * 4_096];
    let appended = store.append(&[("a", &large)]).unwrap();
    store.pass(1);
    assert_eq!(store.handle.progress().written, appended.sequence);
    store.pass(500);
    store.disk.set_sync_takes_ms(0);
    // Nothing was ever appended, and nothing is in the way of what follows.
    store.pass(20);
    let mut store = store.reopen();
    store.pass(20);
    let mut store = store.reopen();
    store.pass(20);
    store.append(&[("a", b"after")]).unwrap();
    store.pass(20);
    let mut store = store.reopen();
    assert_eq!(store.engine.report().damage, []);
    let contents: Vec<usize> = (store.read(0).iter())
        .map(|message| message.content.len())
        .collect();
    assert_eq!(contents, [6, large.len(), 5]);
}

/// Damage in a large message: each byte of its body that is the first of a frame's magic may begin one.
#[test]
fn a_damaged_large_message_is_read_a_few_times() {
    let settings = Settings {
        segment_bytes: 4 << 20,
        ..settings()
    };
    let mut store = Store::open(&SimulatedDisk::new(1), &settings);
    let large: Vec<u8> = (0..2_usize << 20).map(|number| number as u8).collect();
    for content in [&large[..], b"after"] {
        store.append(&[("a", content)]).unwrap();
        store.handle.flush();
        store.pass(20);
    }
    let name = &super::log_files(&store.disk, ".log")[0];
    // In the first frame's header.
    store.disk.flip(name, 70, 0);
    let before = store.disk.read_bytes();
    let mut store = store.reopen();
    assert_eq!(store.read(0).len(), 1);
    let times = (store.disk.read_bytes() - before) / large.len() as u64;
    assert!(times <= 8, "read {times} times");
}
