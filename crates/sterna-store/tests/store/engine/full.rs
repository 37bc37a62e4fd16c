//! A disk that is full, slow, or fails.

use sterna_store::disk::{Disk as _, Fault, SimulatedDisk};
use sterna_store::{Durability, Full, Settings};

use super::{Store, draft, settings};

#[test]
fn a_full_disk_refuses_messages_keeps_what_there_is_and_resumes_by_itself() {
    let mut store = Store::new();
    store.append(&[("a", &[1; 500])]).unwrap();
    store.pass(20);
    store
        .disk
        .set_capacity_bytes(store.disk.used_bytes() + 1_000);
    let mut taken = 1;
    let mut refused = 0;
    for _ in 0..100 {
        match store.append(&[("a", &[1; 500])]) {
            Ok(_) => taken += 1,
            Err(Full) => refused += 1,
        }
        store.pass(1);
    }
    assert!(refused > 0);
    assert!(store.handle.is_full());
    // Frames without messages are taken, and written when there is room.
    let change = draft(&[], &[("key", Some("value"))]);
    let last = store.handle.append(&change).unwrap();
    store.pass(500);
    assert!(store.handle.progress().written < last.sequence);
    store.disk.set_capacity_bytes(u64::MAX);
    store.pass(500);
    assert!(!store.handle.is_full());
    assert_eq!(store.handle.progress().synced, last.sequence);
    assert_eq!(store.read(0).len(), taken);
    store.append(&[("a", b"again")]).unwrap();
    store.pass(20);
    store.disk.cut_power();
    let mut store = Store::open(&store.disk, &store.settings);
    assert_eq!(store.read(0).len(), taken + 1);
    assert_eq!(store.records(), [("key".to_owned(), "value".to_owned())]);
}

#[test]
fn messages_stop_before_the_disk_is_full() {
    let disk = SimulatedDisk::new(1);
    disk.set_capacity_bytes(3_000_000);
    let settings = Settings {
        segment_bytes: 8 << 10,
        minimum_free_bytes: 1_000_000,
        ..settings()
    };
    let mut store = Store::open(&disk, &settings);
    while store.append(&[("a", &[1; 5_000])]).is_ok() {
        store.pass(1);
        assert!(disk.used_bytes() < 2_100_000);
    }
    // Room for what makes room: cursors move on, and segments go.
    let next = store.handle.next_position();
    store.handle.needed_from(next);
    for value in ["1", "2", "3"] {
        store
            .handle
            .append(&draft(&[], &[("cursor", Some(value))]))
            .unwrap();
        store.pass(1_100);
    }
    assert!(disk.used_bytes() < 1_700_000, "{}", disk.used_bytes());
    store.append(&[("a", b"again")]).unwrap();
}

/// The broker asks before a client has more records. A log that has its maximum is no reason: records are small.
#[test]
fn records_should_not_grow_where_the_disk_lacks_room() {
    let disk = SimulatedDisk::new(1);
    disk.set_capacity_bytes(3_000_000);
    let settings = Settings {
        segment_bytes: 8 << 10,
        minimum_free_bytes: 1_000_000,
        maximum_bytes: 100_000,
        maximum_unwritten_bytes: 50_000,
        ..settings()
    };
    let mut store = Store::open(&disk, &settings);
    while store.append(&[("a", &[1; 1_000])]).is_ok() {
        store.pass(1);
    }
    assert!(store.handle.is_full() && !store.handle.lacks_room());
    let value = "x".repeat(10_000);
    let change = draft(&[], &[("key", Some(&value))]);
    let mut appended = 0;
    while !store.handle.lacks_room() {
        store.handle.append(&change).unwrap();
        appended += 1;
        assert!(appended < 10, "all of it waits to be written");
    }
    assert!(appended > 4);
    store.pass(200);
    assert!(!store.handle.lacks_room());
    disk.set_capacity_bytes(disk.used_bytes() + 500_000);
    store.handle.append(&change).unwrap();
    store.pass(200);
    assert!(store.handle.lacks_room());
    disk.set_capacity_bytes(disk.used_bytes() + 1_500_000);
    store.pass(200);
    assert!(!store.handle.lacks_room());
}

#[test]
fn the_log_has_a_maximum() {
    let settings = Settings {
        maximum_bytes: 100_000,
        ..settings()
    };
    let mut store = Store::open(&SimulatedDisk::new(1), &settings);
    let mut bytes = 0;
    while store.append(&[("a", &[1; 1_000])]).is_ok() {
        bytes += 1_000;
        store.pass(1);
        assert!(bytes < 120_000);
    }
    assert!(bytes > 80_000);
}

#[test]
fn what_waits_to_be_written_is_bounded() {
    let settings = Settings {
        maximum_unwritten_bytes: 50_000,
        ..settings()
    };
    let mut store = Store::open(&SimulatedDisk::new(1), &settings);
    let mut taken = 0;
    while store.append(&[("a", &[1; 1_000])]).is_ok() {
        taken += 1;
        assert!(taken < 60);
    }
    assert!(taken > 40);
    store
        .handle
        .append(&draft(&[], &[("key", Some("value"))]))
        .unwrap();
    store.pass(1);
    store.append(&[("a", &vec![1; 60_000])]).unwrap();
    store.pass(1);
    assert_eq!(store.read(0).len(), taken + 1);
}

#[test]
fn a_slow_sync_delays_what_waits_for_it_and_nothing_else() {
    let mut store = Store::new();
    store.append(&[("a", b"first")]).unwrap();
    store.pass(20);
    store.disk.set_sync_takes_ms(3_000);
    let slow = store.append(&[("a", b"slow")]).unwrap();
    store.handle.wake_when(slow.sequence, Durability::Commit);
    store.pass(100);
    assert_eq!(store.handle.progress().written, slow.sequence);
    assert_eq!(store.handle.progress().synced, slow.sequence - 1);
    // Appends are taken meanwhile.
    for topic in ["a", "b"].repeat(5) {
        store.append(&[(topic, b"more")]).unwrap();
    }
    store.pass(2_850);
    assert_eq!(store.handle.progress().synced, slow.sequence - 1);
    store.pass(100);
    assert_eq!(store.handle.progress().synced, slow.sequence);
    store.pass(4_000);
    assert_eq!(store.handle.progress().written, slow.sequence + 10);
}

#[test]
fn after_a_failed_sync_nothing_counts_until_it_is_in_another_file() {
    for seed in 0..20 {
        let mut store = Store::open(&SimulatedDisk::new(seed), &settings());
        store.append(&[("a", b"first")]).unwrap();
        store.pass(20);
        store.disk.fail(Fault::Sync, 3);
        let second = store.append(&[("a", b"second")]).unwrap();
        store.pass(30);
        assert_eq!(store.handle.progress().synced, second.sequence - 1);
        assert!(store.handle.is_full());
        let usage = store.engine.usage_reader().usage();
        assert!(usage.is_full && usage.failures > 0, "{usage:?}");
        assert_eq!(usage.unsynced_frames, 1, "the second is not synced");
        assert_eq!(store.read(0).len(), 1);
        store.pass(1_000);
        assert_eq!(store.handle.progress().synced, second.sequence);
        assert!(!store.handle.is_full());
        let usage = store.engine.usage_reader().usage();
        assert!(
            !usage.is_full && usage.syncs.buckets.iter().sum::<u64>() > 0,
            "{usage:?}"
        );
        assert!(
            usage.written_bytes > 0 && usage.log_bytes >= usage.written_bytes,
            "{usage:?}"
        );
        assert_eq!((usage.unwritten_bytes, usage.damaged_places), (0, 0));
        assert_eq!(store.read(0).len(), 2);
        assert_eq!(store.engine.damage(), []);
        store.disk.cut_power();
        let mut store = Store::open(&store.disk, &store.settings);
        assert_eq!(store.read(0).len(), 2);
        assert_eq!(store.engine.report().damage, []);
    }
}

#[test]
fn durability_says_when_it_is_synced() {
    for (durability, waits_ms, synced) in [
        (Durability::Commit, 1, true),
        (Durability::Interval, 5, false),
        (Durability::Interval, 15, true),
        (Durability::Memory, 500, false),
        // The checkpoint needs it.
        (Durability::Memory, 2_100, true),
    ] {
        let settings = Settings {
            durability,
            ..settings()
        };
        let mut store = Store::open(&SimulatedDisk::new(3), &settings);
        store.pass(1);
        store.append(&[("a", b"first")]).unwrap();
        store.pass(1);
        store.append(&[("a", b"second")]).unwrap();
        store.pass(waits_ms);
        let progress = store.handle.progress();
        assert_eq!(progress.written, 2);
        assert_eq!(
            progress.synced == 2,
            synced,
            "{durability:?} {waits_ms} {progress:?}"
        );
    }
}

/// Records find no room either: the broker has to know, since it would wait for them.
#[test]
fn a_store_on_a_disk_without_a_byte_says_that_it_is_stuck() {
    let mut store = Store::new();
    assert!(!store.handle.is_stuck());
    store.disk.set_capacity_bytes(store.disk.used_bytes());
    store
        .handle
        .append(&draft(&[], &[("key", Some("value"))]))
        .unwrap();
    store.pass(10);
    assert!(store.handle.is_stuck());
    store.disk.set_capacity_bytes(u64::MAX);
    store.pass(200);
    assert!(!store.handle.is_stuck());
}

/// An index is missing, and its segment cannot be read any more.
#[test]
fn segments_that_nobody_needs_go_although_an_index_cannot_be_written() {
    let mut store = Store::new();
    for _ in 0..40 {
        store.append(&[("a", &[1; 500])]).unwrap();
        store.pass(5);
    }
    store.pass(20_000);
    let index = &super::log_files(&store.disk, ".index")[1];
    store.disk.remove(index).unwrap();
    let mut store = store.reopen();
    let before = super::log_files(&store.disk, ".log").len();
    let segment = index.replace(".index", ".log");
    store.disk.make_unreadable(&segment, 0..usize::MAX);
    store.handle.needed_from(store.handle.next_position());
    // Two checkpoints.
    for value in ["1", "2", "3"] {
        let change = draft(&[], &[("cursor", Some(value))]);
        store.handle.append(&change).unwrap();
        store.pass(20_000);
    }
    let after = super::log_files(&store.disk, ".log").len();
    assert!(after < before - 2, "{after} of {before} segments are left");
}
