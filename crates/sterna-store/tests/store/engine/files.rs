//! Segments that come and go, and whole stores that are written out and read in.

use std::sync::Arc;

use sterna_broker::LogNeeds;
use sterna_store::disk::{Disk, SimulatedDisk};
use sterna_store::inspect::{ImportError, compact, export, import, inspect};
use sterna_store::{Engine, OpenError};

use super::{Store, draft, log_files, needs_of, settings};

fn as_disk(disk: &SimulatedDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

#[test]
fn segments_go_when_no_shard_needs_them() {
    let mut store = Store::new();
    let mut other = store.engine.handle(Box::new(|| {}));
    for number in 0..100_u8 {
        store.append(&[("a", &[number; 500])]).unwrap();
        store.pass(1);
    }
    let segments = |store: &Store| log_files(&store.disk, ".log").len();
    let before = segments(&store);
    assert!(before > 10);
    let checkpoint = |store: &mut Store| {
        for _ in 0..2 {
            store
                .handle
                .append(&draft(&[], &[("cursor", Some("1"))]))
                .unwrap();
            store.pass(1_100);
        }
    };
    store.handle.needed_from(101);
    checkpoint(&mut store);
    assert_eq!(segments(&store), before, "the other shard has said nothing");
    other.needed_from(50);
    checkpoint(&mut store);
    let now = segments(&store);
    assert!(now < before * 2 / 3, "{now} of {before}");
    let messages = store.read(0);
    assert!(messages[0].position <= 50);
    assert_eq!(messages.last().unwrap().position, 100);
    // What a handle said last stays in force without it.
    drop(other);
    checkpoint(&mut store);
    assert_eq!(segments(&store), now);
    let mut store = store.reopen();
    assert_eq!(store.read(50).len(), 51);
    store.handle.needed_from(u64::MAX);
    checkpoint(&mut store);
    assert_eq!(segments(&store), 1);
    // The last stays: positions go on where they ended.
    let mut store = store.reopen();
    assert_eq!(store.append(&[("a", b"x")]).unwrap().first, 101);
}

#[test]
fn a_frame_larger_than_a_segment_has_one_of_its_own() {
    let mut store = Store::new();
    store.append(&[("a", &[1; 100])]).unwrap();
    store.append(&[("b", &vec![2; 50_000])]).unwrap();
    store.append(&[("c", &[3; 100])]).unwrap();
    store.pass(20);
    let lengths = |store: &mut Store| {
        let messages = store.read(0).into_iter();
        messages
            .map(|message| message.content.len())
            .collect::<Vec<_>>()
    };
    assert_eq!(lengths(&mut store), [100, 50_000, 100]);
    store.disk.cut_power();
    let mut store = Store::open(&store.disk, &store.settings);
    assert_eq!(lengths(&mut store), [100, 50_000, 100]);
}

fn filled() -> Store {
    let mut store = Store::new();
    for number in 0..60_u32 {
        let key = format!("key {}", number % 7);
        let value = format!("value {number}");
        let topic = format!("topic/{}", number % 5);
        let content = vec![number as u8; 300];
        let draft = draft(&[(&topic, &content)], &[(&key, Some(&value))]);
        store.handle.append(&draft).unwrap();
        store.pass(1);
    }
    store.pass(2_000);
    // Some that is in the log only.
    store
        .handle
        .append(&draft(
            &[("late", b"x")],
            &[("key 0", None), ("new", Some("1"))],
        ))
        .unwrap();
    store.pass(20);
    store
}

#[test]
fn an_export_makes_the_same_store_elsewhere() {
    let mut store = filled();
    let (messages, records) = (store.read(0), store.records());
    store.disk.kill_process();
    let before = inspect(&as_disk(&store.disk)).unwrap();
    let mut lines = Vec::new();
    let exported = export(&as_disk(&store.disk), &mut lines).unwrap();
    assert_eq!((exported.messages, exported.records), (61, 7));
    assert_eq!(
        inspect(&as_disk(&store.disk)).unwrap(),
        before,
        "nothing was changed"
    );

    let other = SimulatedDisk::new(5);
    let imported = import(&as_disk(&other), &settings(), &mut &lines[..]).unwrap();
    assert_eq!((imported.messages, imported.records), (61, 7));
    let mut copy = Store::open(&other, &settings());
    assert_eq!(copy.read(0), messages);
    assert_eq!(copy.records(), records);
    assert_eq!(copy.append(&[("a", b"next")]).unwrap().first, 62);
    let again = import(&as_disk(&other), &settings(), &mut &lines[..]);
    assert!(matches!(again, Err(ImportError::Exists)));
}

#[test]
fn wrong_lines_are_named() {
    for (lines, number, what) in [
        ("{}\n", 1, "neither"),
        ("{\"store\":2,\"next_position\":1}\n", 1, "form 2"),
        ("{\"store\":0,\"next_position\":1}\n", 1, "form 0"),
        ("{\"key\":\"\",\"value\":\"\"}\n", 1, "begins with"),
        ("{\"store\":1,\"next_position\":1}\n\n", 2, "neither"),
        (
            "{\"store\":1,\"next_position\":1}\n{\"key\":\"?\",\"value\":\"\"}\n",
            2,
            "base64",
        ),
        (
            "{\"store\":1,\"next_position\":9}\n\
             {\"position\":3,\"topic\":\"a\",\"content\":\"\"}\n\
             {\"position\":3,\"topic\":\"a\",\"content\":\"\"}\n",
            3,
            "positions rise",
        ),
        ("", 1, "cut off"),
        ("{\"store\":1,\"next_position\":9}\n", 2, "cut off"),
        (
            "{\"store\":1,\"next_position\":9}\n{\"records\":0,\"messages\":1,\"crc32c\":SUM}\n",
            2,
            "0 records and 1 messages, and there are 0 and 0",
        ),
        (
            "{\"store\":1,\"next_position\":9}\n{\"records\":0,\"messages\":0,\"crc32c\":SUM}\n\
             {\"position\":3,\"topic\":\"a\",\"content\":\"\"}\n",
            3,
            "ends before",
        ),
    ] {
        let disk = SimulatedDisk::new(1);
        // That of the first line.
        let first = lines.split_inclusive('\n').next().unwrap_or_default();
        let sum = crc32c::crc32c(first.as_bytes());
        let lines = lines.replace("SUM", &sum.to_string());
        match import(&as_disk(&disk), &settings(), &mut lines.as_bytes()) {
            Err(ImportError::Line(line, reason)) => {
                assert!(
                    line == number && reason.contains(what),
                    "{lines}: {line} {reason}"
                );
            }
            other => panic!("{lines}: {other:?}"),
        }
    }
}

#[test]
fn an_export_that_was_changed_makes_no_store() {
    let store = filled();
    store.disk.kill_process();
    let mut lines = Vec::new();
    export(&as_disk(&store.disk), &mut lines).unwrap();
    let read = |lines: &[u8]| {
        let disk = SimulatedDisk::new(1);
        import(&as_disk(&disk), &settings(), &mut &*lines)
    };
    read(&lines).unwrap();
    for offset in (0..lines.len()).step_by(701) {
        let mut changed = lines.clone();
        changed[offset] ^= 1 << (offset % 8);
        let refused = read(&changed);
        assert!(
            matches!(refused, Err(ImportError::Line(..))),
            "{offset}: {refused:?}"
        );
    }
    let text = String::from_utf8(lines).unwrap();
    let sum = text.rfind(",\"crc32c\"").unwrap();
    let without = format!("{}}}\n", &text[..sum]);
    assert!(read(without.as_bytes()).is_err(), "no checksum");
}

#[test]
fn compacting_takes_out_what_the_records_have_and_keeps_all_else() {
    let mut store = Store::new();
    for number in 0..300_u32 {
        let value = format!("value {number} {}", "x".repeat(100));
        if number % 10 == 0 {
            store
                .append(&[("wanted", &[1; 50]), ("other", b"2")])
                .unwrap();
        } else if number % 15 == 7 {
            store.append(&[("unwanted", &[1; 50])]).unwrap();
        }
        store
            .handle
            .append(&draft(&[], &[("cursor", Some(&value))]))
            .unwrap();
        store.pass(1);
    }
    store.pass(20);
    let (messages, records) = (store.read(0), store.records());
    store.disk.kill_process();
    let disk = as_disk(&store.disk);
    let compacted = compact(&disk, &settings(), LogNeeds::default()).unwrap();
    assert!(compacted.after_bytes < compacted.before_bytes && compacted.rewritten > 3);
    let inspection = inspect(&disk).unwrap();
    assert_eq!((&*inspection.damage, &inspection.torn), (&[][..], &None));
    let mut store = Store::open(&store.disk, &settings());
    assert_eq!(store.read(0), messages);
    assert_eq!(store.records(), records);
    store.append(&[("a", b"next")]).unwrap();
    store.pass(20);
    store.disk.kill_process();
    let needs = LogNeeds {
        all_from: u64::MAX,
        readers: vec![needs_of(&["wanted", "other", "a"], 0)],
    };
    compact(&disk, &settings(), needs).unwrap();
    let mut store = Store::open(&store.disk, &settings());
    let left = store.read(0);
    let wanted = messages
        .iter()
        .filter(|message| &*message.topic != "unwanted");
    assert!(
        wanted.eq(left
            .iter()
            .filter(|message| &*message.topic != "unwanted" && &*message.topic != "a"))
    );
    assert!(left.len() < messages.len());
    assert_eq!(inspect(&disk).unwrap().damage, []);
}

#[test]
fn where_there_is_no_store_there_is_none_to_look_into() {
    let disk = as_disk(&SimulatedDisk::new(1));
    assert!(matches!(inspect(&disk), Err(OpenError::Missing)));
    assert!(matches!(
        export(&disk, &mut Vec::new()),
        Err(OpenError::Missing)
    ));
    assert!(matches!(
        compact(&disk, &settings(), LogNeeds::default()),
        Err(OpenError::Missing)
    ));
    assert_eq!(disk.list("").unwrap(), Vec::<String>::new());
    drop(Engine::open(disk, settings()).unwrap());
}
