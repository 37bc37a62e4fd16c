//! Files that cannot be removed.

use std::sync::Arc;

use sterna_store::disk::{Disk, SimulatedDisk};
use sterna_store::inspect::inspect;

use super::rewrite::{all, checkpoint, eager, fill, of_topic, tell, told};
use super::{Store, draft, log_files, needs_of};

fn damage(store: &Store) -> Vec<sterna_store::Damage> {
    let disk: Arc<dyn Disk> = Arc::new(store.disk.clone());
    inspect(&disk).unwrap().damage
}

/// Changes many records, and returns whether a checkpoint has taken them.
fn takes_records(store: &mut Store, key: &str) -> bool {
    for number in 0..400 {
        let value = "v".repeat(100);
        let draft = draft(&[], &[(&format!("{key} {number}"), Some(&value))]);
        store.handle.append(&draft).unwrap();
    }
    store.pass(5);
    let waiting = store.engine.usage_reader().usage().memory_bytes;
    store.pass(15_000);
    let left = store.engine.usage_reader().usage().memory_bytes;
    left + 20_000 < waiting
}

#[test]
fn a_file_for_which_another_stands_holds_neither_records_nor_indexes_nor_a_start() {
    let mut store = Store::open(&SimulatedDisk::new(7), &eager());
    fill(&mut store, 30);
    let before = all(&mut store);
    let held = log_files(&store.disk, ".log").remove(3);
    store.disk.hold(&held);
    tell(&mut store, told(vec![needs_of(&["rare/+"], 18)]));
    assert!(store.engine.usage_reader().usage().rewritten_segments > 0);
    assert!(takes_records(&mut store, "first"));
    let rare = of_topic(&before, "rare/one");
    assert_eq!(of_topic(&all(&mut store), "rare/one"), rare);
    // Others for which it stands are gone.
    let left = log_files(&store.disk, ".log");
    assert!(left.contains(&held), "{left:?}");
    assert!(
        !left.contains(&held.replace("04.log", "05.log")),
        "{left:?}"
    );
    // Nobody needs it any more: what stands for the file must not go before it.
    tell(&mut store, told(vec![needs_of(&["rare/+"], u64::MAX)]));
    checkpoint(&mut store);
    let records = store.records();

    let mut store = store.reopen();
    assert_eq!(store.engine.report().damage, []);
    assert_eq!(of_topic(&all(&mut store), "rare/one"), rare);
    assert_eq!(store.records(), records);
    assert!(takes_records(&mut store, "second"));
    tell(&mut store, told(vec![needs_of(&["rare/+"], u64::MAX)]));
    checkpoint(&mut store);
    assert!(log_files(&store.disk, ".log").contains(&held));
    assert_eq!(damage(&store), []);

    store.disk.release();
    store.pass(70_000);
    checkpoint(&mut store);
    checkpoint(&mut store);
    let left = log_files(&store.disk, ".log");
    assert!(left.len() <= 2 && !left.contains(&held), "{left:?}");
    let store = store.reopen();
    assert_eq!(store.engine.report().damage, []);
}

#[test]
fn a_segment_that_cannot_be_removed_holds_those_behind_it_and_nothing_else() {
    let mut store = Store::open(&SimulatedDisk::new(7), &eager());
    fill(&mut store, 10);
    let before = all(&mut store);
    let files = log_files(&store.disk, ".log");
    store.disk.hold(&files[0]);
    // Nobody needs it, and it is not told what is needed of it, so it is not rewritten.
    store.handle.needed_from(u64::MAX);
    assert!(takes_records(&mut store, "first"));
    // A log without its second file would be damaged.
    let left = log_files(&store.disk, ".log");
    assert!(left.starts_with(&files[..2]), "{left:?} of {files:?}");
    assert_eq!(damage(&store), []);
    assert_eq!(all(&mut store), before);
    let mut store = store.reopen();
    assert_eq!(store.engine.report().damage, []);
    store.disk.release();
    store.handle.needed_from(u64::MAX);
    store.pass(70_000);
    checkpoint(&mut store);
    checkpoint(&mut store);
    let left = log_files(&store.disk, ".log").len();
    assert!(left <= 2, "{left} files");
}

#[test]
fn a_start_leaves_what_does_not_count_and_cannot_be_removed() {
    let mut store = Store::open(&SimulatedDisk::new(7), &eager());
    fill(&mut store, 2);
    let before = all(&mut store);
    // The last file is empty, and others were never complete.
    let last = log_files(&store.disk, ".log").pop().unwrap();
    let drafts = ["log/0000000001.index.new", "records.redb.new"];
    for draft in drafts {
        store.disk.create(draft).unwrap();
    }
    let mut store = store.reopen();
    store.pass(1);
    let empty = log_files(&store.disk, ".log").pop().unwrap();
    assert!(empty > last);
    for name in drafts {
        store.disk.create(name).unwrap();
        store.disk.hold(name);
    }
    store.disk.hold(&empty);
    // The next segment would be made under this name.
    let number: u64 = empty["log/".len()..][..10].parse().unwrap();
    let next = format!("log/{:010}.log.new", number + 1);
    store.disk.create(&next).unwrap();
    store.disk.hold(&next);
    let mut store = store.reopen();
    assert_eq!(all(&mut store), before);
    store.pass(200);
    store.append(&[("busy/1", &[1; 300])]).unwrap();
    store.pass(20);
    assert_eq!(all(&mut store).len(), before.len() + 1);
    let mut store = store.reopen();
    assert_eq!(store.engine.report().damage, []);
    assert_eq!(all(&mut store).len(), before.len() + 1);
}
