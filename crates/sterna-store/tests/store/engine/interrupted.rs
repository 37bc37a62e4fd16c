//! Compacting that ends halfway, and disks that take nothing for a while.

use std::sync::Arc;

use sterna_broker::LogNeeds;
use sterna_store::disk::{Disk, Fault, SimulatedDisk};
use sterna_store::inspect::{compact, inspect};
use sterna_store::{Engine, OpenError, Settings, StoredMessage};

use super::{Store, draft, settings};

fn as_disk(disk: &SimulatedDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

type Content = (Vec<StoredMessage>, Vec<(String, String)>);

/// A store with messages, and records that were changed often, whose process was killed; and its content.
fn killed(seed: u64) -> (SimulatedDisk, Content) {
    let mut store = Store::open(&SimulatedDisk::new(seed), &settings());
    for number in 0..40_u32 {
        let value = format!("{number} {}", "x".repeat(200));
        store.append(&[("a", &[number as u8; 60])]).unwrap();
        let change = draft(&[], &[("cursor", Some(&value)), ("other", Some(&value))]);
        store.handle.append(&change).unwrap();
        store.pass(1);
    }
    store.pass(20);
    let content = (store.read(0), store.records());
    store.disk.kill_process();
    (store.disk, content)
}

fn content_of(disk: &SimulatedDisk) -> Content {
    let mut store = Store::open(disk, &settings());
    assert_eq!(store.engine.report().damage, []);
    let content = (store.read(0), store.records());
    disk.kill_process();
    content
}

/// The process, or the machine, ends at any change that compacting makes.
#[test]
fn compacting_that_is_interrupted_loses_nothing() {
    for changes in 1.. {
        let (disk, before) = killed(changes.into());
        disk.fail_power_after(changes);
        let compacted = compact(&as_disk(&disk), &settings(), LogNeeds::default());
        if changes % 2 == 0 {
            disk.kill_process();
        } else {
            disk.cut_power();
        }
        let inspection = inspect(&as_disk(&disk)).unwrap();
        assert_eq!(inspection.damage, [], "{changes} changes");
        assert_eq!(content_of(&disk), before, "{changes} changes");
        compact(&as_disk(&disk), &settings(), LogNeeds::default()).unwrap();
        assert_eq!(content_of(&disk), before, "{changes} changes, and again");
        if compacted.is_ok() {
            assert!(changes > 20, "{changes} are few");
            break;
        }
    }
}

#[test]
fn compacting_on_a_full_disk_loses_nothing() {
    for room in (0..24_000).step_by(2_000) {
        let (disk, before) = killed(room);
        disk.set_capacity_bytes(disk.used_bytes() + room);
        let _ = compact(&as_disk(&disk), &settings(), LogNeeds::default());
        disk.kill_process();
        disk.set_capacity_bytes(u64::MAX);
        assert_eq!(content_of(&disk), before, "{room} bytes");
        compact(&as_disk(&disk), &settings(), LogNeeds::default()).unwrap();
        assert_eq!(content_of(&disk), before, "{room} bytes, and again");
    }
}

/// A start on a full disk serves what there is, and goes on when there is room.
#[test]
fn a_start_on_a_full_disk_goes_on_when_there_is_room() {
    for room in (0..12_000).step_by(1_300) {
        let (disk, mut before) = killed(room);
        disk.set_capacity_bytes(disk.used_bytes() + room);
        let mut store = Store::open(&disk, &settings());
        store.pass(200);
        assert_eq!((store.read(0), store.records()), before, "{room} bytes");
        let change = draft(&[], &[("later", Some("value"))]);
        store.handle.append(&change).unwrap();
        store.pass(200);
        let mut store = store.reopen();
        store.disk.set_capacity_bytes(u64::MAX);
        store.pass(500);
        let late = store.append(&[("a", b"again")]).unwrap();
        store.pass(20);
        assert_eq!(store.handle.progress().synced, late.sequence);
        store.disk.cut_power();
        let (messages, records) = content_of(&disk);
        assert_eq!(messages.len(), before.0.len() + 1, "{room} bytes");
        // The late record was acknowledged only if it was written.
        let is_unkept = records == before.1;
        before.1.insert(1, ("later".to_owned(), "value".to_owned()));
        assert!(is_unkept || records == before.1, "{room} bytes");
    }
}

/// After a failed change, the library that keeps the records reads nothing until its file is opened again.
#[test]
fn a_start_reads_its_records_although_a_checkpoint_meets_a_full_disk() {
    let settings = Settings {
        segment_bytes: 1 << 20,
        records_cache_bytes: 0,
        ..settings()
    };
    let mut store = Store::open(&SimulatedDisk::new(1), &settings);
    let value = "x".repeat(10_000);
    let put = |store: &mut Store, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let key = format!("key {number:03}");
            let change = draft(&[], &[(&key, Some(&value))]);
            store.handle.append(&change).unwrap();
        }
        store.pass(100);
    };
    put(&mut store, 0..50);
    store.pass(13_000);
    // Behind the last checkpoint, so that the next one has to make the file longer.
    put(&mut store, 50..300);
    let mut store = store.reopen();
    store.disk.set_capacity_bytes(store.disk.used_bytes());
    let Store {
        disk,
        engine,
        handle,
        now_ms,
        ..
    } = &mut store;
    let mut read = Vec::new();
    let loaded = handle.load(&mut |key, _| {
        read.push(String::from_utf8(key.to_vec()).unwrap());
        *now_ms += 1_000;
        disk.set_now_ms(*now_ms);
        engine.turn(*now_ms, &mut || false);
    });
    assert_eq!(loaded, Ok(()));
    let all: Vec<String> = (0..300).map(|number| format!("key {number:03}")).collect();
    assert_eq!(read, all);
    // The checkpoint comes later, and each shard reads all the same.
    store.pass(2_000);
    assert_eq!(store.records().len(), 300);
    store.disk.set_capacity_bytes(u64::MAX);
    store.pass(13_000);
    assert_eq!(store.reopen().engine.report().records, 300);
}

#[test]
fn a_disk_that_becomes_read_only_keeps_what_was_acknowledged() {
    for seed in 0..5 {
        let (disk, before) = killed(seed);
        let mut store = Store::open(&disk, &settings());
        store.pass(5 * seed);
        disk.fail(Fault::Change, u32::MAX);
        let late = store.append(&[("a", b"late")]);
        store.pass(300);
        if let Ok(late) = late {
            assert!(store.handle.progress().written < late.sequence);
        }
        assert!(store.handle.is_stuck() && store.handle.is_full());
        assert_eq!(store.read(0), before.0);
        // Again with the same disk: it says why.
        disk.kill_process();
        disk.fail(Fault::Change, u32::MAX);
        let refused = Engine::open(as_disk(&disk), settings());
        assert!(
            matches!(refused, Err(OpenError::Disk { .. })),
            "{refused:?}"
        );
        disk.kill_process();
        assert_eq!(content_of(&disk), before);

        // It can be written again, and the broker has lived on.
        let mut store = Store::open(&disk, &settings());
        disk.fail(Fault::Change, u32::MAX);
        let late = store.append(&[("a", b"late")]);
        store.pass(300);
        disk.fail(Fault::Change, 0);
        store.pass(500);
        assert!(!store.handle.is_stuck() && !store.handle.is_full());
        assert_eq!(
            store.read(0).len(),
            before.0.len() + usize::from(late.is_ok())
        );
        store.disk.cut_power();
        assert_eq!(
            content_of(&disk).0.len(),
            before.0.len() + usize::from(late.is_ok())
        );
    }
}
