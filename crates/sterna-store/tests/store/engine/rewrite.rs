//! Segments that few readers hold, rewritten to what these need.

use std::collections::BTreeSet;
use std::sync::Arc;

use sterna_broker::{LogNeeds, NeededFilter, ReaderNeeds};
use sterna_store::disk::{Disk, Fault, SimulatedDisk};
use sterna_store::inspect::inspect;
use sterna_store::{Request, Settings, StoredMessage};

use super::{Store, draft, everything, log_files, needs_of, settings};

/// Settings by which all is rewritten as soon as it may be.
pub(super) fn eager() -> Settings {
    Settings {
        rewrite_interval_ms: 0,
        rewrite_bytes_per_s: u64::MAX,
        ..settings()
    }
}

fn open(settings: &Settings) -> Store {
    Store::open(&SimulatedDisk::new(7), settings)
}

pub(super) fn told(readers: Vec<ReaderNeeds>) -> LogNeeds {
    LogNeeds {
        all_from: u64::MAX,
        readers,
    }
}

/// Appends one message that a narrow reader wants among many others, some with changes of records.
pub(super) fn fill(store: &mut Store, rounds: usize) {
    for round in 0..rounds {
        for number in 0..40_u8 {
            let topic = if number == 17 {
                "rare/one".to_owned()
            } else {
                format!("busy/{}", number % 5)
            };
            let value = format!("{round} {number}");
            let content = vec![number; 300];
            let draft = draft(&[(&topic, &content)], &[("cursor", Some(&value))]);
            store.handle.append(&draft).unwrap();
            store.pass(1);
        }
    }
    checkpoint(store);
}

/// Makes two checkpoints, so that segments may go.
pub(super) fn checkpoint(store: &mut Store) {
    for number in 0..2 {
        let value = format!("checkpoint {number}");
        let draft = draft(&[], &[("checkpoint", Some(&value))]);
        store.handle.append(&draft).unwrap();
        store.pass(1_100);
    }
}

pub(super) fn tell(store: &mut Store, needs: LogNeeds) {
    let from = needs.readers.iter().map(ReaderNeeds::first).min();
    store.handle.needed_from(from.unwrap_or(needs.all_from));
    store.handle.needs(needs);
    store.pass(20);
}

/// A message as it is read: its position, its topic, and its content, of which all bytes are the same.
pub(super) type Seen = (u64, String, u8, usize);

fn seen(messages: &[StoredMessage]) -> Vec<Seen> {
    let seen = messages.iter().map(|message| {
        let content = &message.content;
        assert!(content.iter().all(|byte| *byte == content[0]));
        let topic = message.topic.to_string();
        (message.position, topic, content[0], content.len())
    });
    seen.collect()
}

pub(super) fn of_topic(messages: &[Seen], topic: &str) -> Vec<Seen> {
    let found = messages.iter().filter(|(_, known, ..)| known == topic);
    found.cloned().collect()
}

/// All that is in the log; an answer ends after some segments.
pub(super) fn all(store: &mut Store) -> Vec<Seen> {
    let (mut found, mut from) = (Vec::new(), 0);
    loop {
        let answer = store.handle.read_now(&everything(from));
        found.extend(seen(&answer.messages));
        if answer.next == from {
            return found;
        }
        from = answer.next;
    }
}

pub(super) fn log_bytes(disk: &SimulatedDisk) -> usize {
    let names = log_files(disk, ".log").into_iter();
    names
        .filter_map(|name| Some(disk.content(&name)?.len()))
        .sum()
}

#[test]
fn the_disk_has_what_a_lone_sleeper_wants_and_little_else() {
    let mut store = open(&eager());
    fill(&mut store, 30);
    let before = all(&mut store);
    let (bytes, files) = (log_bytes(&store.disk), log_files(&store.disk, ".log").len());
    assert!(files > 100, "{files} files");
    tell(&mut store, told(vec![needs_of(&["rare/+"], 18)]));
    let (bytes_after, files_after) = (log_bytes(&store.disk), log_files(&store.disk, ".log").len());
    // 30 messages of 300 bytes, the last segments, and one that is reserved.
    assert!(bytes_after * 10 < bytes, "{bytes_after} of {bytes} bytes");
    assert!(files_after < 14, "{files_after} of {files} files");
    let after = all(&mut store);
    assert_eq!(of_topic(&after, "rare/one"), of_topic(&before, "rare/one"));
    assert_eq!(of_topic(&after, "rare/one").len(), 30);
    let usage = store.engine.usage_reader().usage();
    assert!(usage.rewritten_segments as usize > files - files_after);
    assert!(usage.rewrite_freed_bytes as usize > bytes - bytes_after - 20_000);
    // What is not needed is left where a frame of several messages or the last segments have it.
    assert!(after.iter().all(|message| before.contains(message)));
    let records = store.records();

    // The same after a start, and by an index that is made again.
    for index in log_files(&store.disk, ".index") {
        store.disk.remove(&index).unwrap();
    }
    let mut store = store.reopen();
    assert_eq!(store.engine.report().damage, []);
    assert_eq!((all(&mut store), store.records()), (after.clone(), records));
    store.pass(2_000);
    assert_eq!(all(&mut store), after);
    let disk: Arc<dyn Disk> = Arc::new(store.disk.clone());
    let inspection = inspect(&disk).unwrap();
    assert_eq!(inspection.damage, []);
    let (_, full) = inspection.segments.split_last().unwrap();
    assert!(full.iter().all(|segment| segment.has_index));
    assert!(
        inspection
            .segments
            .iter()
            .any(|segment| segment.is_rewritten && segment.joined > 3)
    );

    // When the sleeper has come back, all of it goes.
    tell(&mut store, told(vec![needs_of(&["rare/+"], u64::MAX)]));
    checkpoint(&mut store);
    checkpoint(&mut store);
    let left = log_files(&store.disk, ".log").len();
    assert!(left <= 2, "{left} files");
}

/// It would stay full: no segment follows that makes others old enough.
#[test]
fn a_small_log_that_is_full_takes_messages_again() {
    let settings = Settings {
        maximum_bytes: 3 * eager().segment_bytes,
        ..eager()
    };
    let mut store = open(&settings);
    while store.append(&[("busy/1", &[1; 300])]).is_ok() {
        store.pass(1);
    }
    checkpoint(&mut store);
    tell(&mut store, told(vec![needs_of(&["rare/+"], 1)]));
    store.pass(2_000);
    store.append(&[("busy/1", &[1; 300])]).unwrap();
}

#[test]
fn nothing_goes_that_a_reader_or_an_unknown_one_may_need() {
    let mut store = open(&eager());
    fill(&mut store, 10);
    let mut other = store.engine.handle(Box::new(|| {}));
    let before = all(&mut store);
    tell(&mut store, told(vec![needs_of(&["rare/+"], 1)]));
    assert_eq!(all(&mut store), before, "another handle has said nothing");
    other.needs(told(vec![needs_of(&["busy/1"], 1)]));
    other.hold_from(120);
    store.pass(20);
    let after = all(&mut store);
    for topic in ["rare/one", "busy/1"] {
        assert_eq!(of_topic(&after, topic), of_topic(&before, topic), "{topic}");
    }
    let tail = |messages: &[Seen]| -> Vec<Seen> {
        let tail = messages.iter().filter(|(position, ..)| *position >= 120);
        tail.cloned().collect()
    };
    assert_eq!(tail(&after), tail(&before), "who holds wants all");
    assert!(after.len() < before.len());
}

#[test]
fn what_does_not_pay_is_not_begun() {
    let mut store = open(&eager());
    fill(&mut store, 10);
    let before = all(&mut store);
    let written = store.disk.written_bytes();
    // Four of five topics are most of each segment.
    let most_topics = ["busy/0", "busy/1", "busy/2", "busy/3"];
    tell(&mut store, told(vec![needs_of(&most_topics, 1)]));
    assert_eq!(
        (all(&mut store), store.disk.written_bytes()),
        (before, written)
    );
    // More readers than may be.
    let most = store.settings.maximum_rewrite_readers;
    let readers = vec![needs_of(&["rare/one"], 1); most + 1];
    tell(&mut store, told(readers.clone()));
    assert_eq!(store.disk.written_bytes(), written);
    tell(&mut store, told(readers[1..].to_vec()));
    assert!(store.disk.written_bytes() > written);
}

#[test]
fn a_segment_is_looked_at_after_its_interval_and_not_in_each_report() {
    let settings = Settings {
        rewrite_interval_ms: 60_000,
        ..eager()
    };
    let mut store = open(&settings);
    fill(&mut store, 10);
    let before = log_bytes(&store.disk);
    let read = store.disk.read_bytes();
    for _ in 0..5 {
        tell(&mut store, told(vec![needs_of(&["rare/+"], 1)]));
        store.pass(9_000);
    }
    assert_eq!(log_bytes(&store.disk), before);
    assert_eq!(
        store.disk.read_bytes(),
        read,
        "not even the indexes are read"
    );
    store.pass(20_000);
    assert!(log_bytes(&store.disk) * 4 < before);
}

#[test]
fn rewriting_takes_its_time() {
    let settings = Settings {
        segment_bytes: 1 << 20,
        rewrite_bytes_per_s: 100_000,
        ..eager()
    };
    let mut store = open(&settings);
    for number in 0..900_u32 {
        let topic = if number % 3 == 0 {
            "rare/one"
        } else {
            "busy/1"
        };
        store.append(&[(topic, &[1; 10_000])]).unwrap();
        store.pass(1);
    }
    checkpoint(&mut store);
    let before = all(&mut store);
    tell(&mut store, told(vec![needs_of(&["rare/+"], 1)]));
    let (read, written) = (store.disk.read_bytes(), store.disk.written_bytes());
    store.pass(30_000);
    let moved = store.disk.read_bytes() + store.disk.written_bytes() - read - written;
    // A part is begun at once, and indexes do not count.
    assert!(
        (1_000_000..6_000_000).contains(&moved),
        "{moved} bytes in 30 s"
    );
    let after = all(&mut store);
    assert_eq!(of_topic(&after, "rare/one"), of_topic(&before, "rare/one"));
}

#[test]
fn a_reader_in_the_midst_of_a_segment_gets_the_rest_of_it() {
    let mut store = open(&eager());
    fill(&mut store, 20);
    let request = |from| Request {
        from,
        filters: Arc::new(["rare/+".into(), "busy/2".into()]),
        most_messages: 3,
        ..everything(0)
    };
    let mut expected = all(&mut store);
    expected.retain(|message| message.1 != "rare/one" && message.1 != "busy/2");
    let unwanted: BTreeSet<u64> = expected.iter().map(|message| message.0).collect();
    let mut expected = all(&mut store);
    expected.retain(|message| !unwanted.contains(&message.0));
    let needs = |from| told(vec![needs_of(&["rare/+", "busy/2"], from)]);
    let (mut found, mut from) = (Vec::new(), 1);
    let end = store.handle.next_position();
    while from < end {
        store.handle.read(request(from));
        store.pass(1);
        let answer = store.handle.next_answer().unwrap();
        assert!(answer.next > from, "it comes on");
        from = answer.next;
        found.extend(seen(&answer.messages));
        // Its cursor follows, and what is behind is rewritten under its eyes.
        if from % 4 == 0 {
            tell(&mut store, needs(from.saturating_sub(60).max(1)));
        }
    }
    assert_eq!(found, expected);
    assert!(store.engine.usage_reader().usage().rewritten_segments > 20);
}

#[test]
fn single_positions_and_the_limits_of_filters_count() {
    let mut store = open(&eager());
    fill(&mut store, 20);
    let before = all(&mut store);
    let at = |topic: &str| -> Vec<u64> {
        let found = of_topic(&before, topic);
        found.iter().map(|message| message.0).collect()
    };
    let filter = |filter: &str, since, until| NeededFilter {
        filter: filter.into(),
        since,
        until,
    };
    let (ones, twos, rare) = (at("busy/1"), at("busy/2"), at("rare/one"));
    let reader = ReaderNeeds {
        filters: vec![filter("busy/1", 0, u64::MAX), filter("busy/2", 0, ones[20])],
        from: ones[10],
        single: vec![ones[2], ones[5]],
    };
    let late = ReaderNeeds {
        filters: vec![filter("rare/#", rare[4], u64::MAX)],
        from: 1,
        single: Vec::new(),
    };
    tell(&mut store, told(vec![reader, late]));
    let after: BTreeSet<u64> = (all(&mut store).iter()).map(|message| message.0).collect();
    let last = *ones.last().unwrap() - 100;
    let mut needed = vec![ones[2], ones[5]];
    needed.extend(ones[10..].iter().filter(|&&at| at < last));
    let of_twos = |at: &&u64| (ones[10]..ones[20]).contains(*at);
    needed.extend(twos.iter().filter(of_twos));
    needed.extend(rare[4..].iter().filter(|&&at| at < last));
    needed.sort_unstable();
    let found: Vec<u64> = after.range(ones[2]..last).copied().collect();
    assert_eq!(found, needed);
}

#[test]
fn a_damaged_frame_that_is_needed_leaves_its_file_as_it_is() {
    let mut store = open(&eager());
    fill(&mut store, 10);
    let part_of = |content: &[u8]| content.windows(8).position(|part| part == b"rare/one");
    let damaged = log_files(&store.disk, ".log")
        .into_iter()
        .find_map(|name| Some((part_of(&store.disk.content(&name)?)?, name)));
    let (offset, first) = damaged.unwrap();
    let content = store.disk.content(&first).unwrap();
    store.disk.flip(&first, offset + 40, 1);
    tell(&mut store, told(vec![needs_of(&["rare/+"], 1)]));
    assert_eq!(store.engine.damage().len(), 1);
    assert_eq!(store.disk.content(&first).unwrap().len(), content.len());
}

/// As after a crash before the indexes were written. Frames of some can be read, and those of others cannot.
fn without_indexes(harm: impl Fn(&SimulatedDisk, &str)) -> (Store, Vec<Seen>, String) {
    let settings = Settings {
        segment_bytes: 64 << 10,
        ..eager()
    };
    let mut store = open(&settings);
    fill(&mut store, 60);
    let before = of_topic(&all(&mut store), "rare/one");
    store.disk.kill_process();
    for index in log_files(&store.disk, ".index") {
        store.disk.remove(&index).unwrap();
    }
    let harmed = log_files(&store.disk, ".log").remove(1);
    harm(&store.disk, &harmed);
    let disk = store.disk;
    (Store::open(&disk, &settings), before, harmed)
}

#[test]
fn what_could_not_be_read_when_an_index_was_made_stays() {
    for has_restart in [false, true] {
        let harm = |disk: &SimulatedDisk, name: &str| disk.make_unreadable(name, 20_480..49_152);
        let (mut store, before, harmed) = without_indexes(harm);
        store.pass(20);
        let index = harmed.replace(".log", ".index");
        let indexes = log_files(&store.disk, ".index");
        assert!(
            !indexes.contains(&index) && indexes.len() > 8,
            "{indexes:?}"
        );
        if has_restart {
            store = store.reopen();
            store.pass(20);
        }
        checkpoint(&mut store);
        tell(&mut store, told(vec![needs_of(&["rare/+"], 1)]));
        assert!(store.engine.usage_reader().usage().rewritten_segments > 4);
        store.disk.make_readable();
        assert_eq!(of_topic(&all(&mut store), "rare/one"), before);
        // Its index is made, and it is rewritten as the others.
        store.pass(70_000);
        let bytes = store.disk.content(&harmed).map(|content| content.len());
        tell(&mut store, told(vec![needs_of(&["rare/+"], 1)]));
        store.pass(2_000);
        let bytes_after = store.disk.content(&harmed).map(|content| content.len());
        assert!(bytes_after < bytes, "{bytes_after:?} of {bytes:?}");
        let mut store = store.reopen();
        assert_eq!(of_topic(&all(&mut store), "rare/one"), before);
        assert_eq!(store.engine.report().damage, []);
    }
}

#[test]
fn a_file_whose_index_was_made_over_damage_stays_as_it_is_and_is_told() {
    let place = |disk: &SimulatedDisk, name: &str| {
        let content = disk.content(name).unwrap();
        let found = content.windows(8).position(|part| part == b"rare/one");
        found.unwrap() + 40
    };
    let harm = |disk: &SimulatedDisk, name: &str| disk.flip(name, place(disk, name), 1);
    let (mut store, before, harmed) = without_indexes(harm);
    let content = store.disk.content(&harmed).unwrap();
    store.pass(20);
    let index = harmed.replace(".log", ".index");
    assert!(log_files(&store.disk, ".index").contains(&index));
    for _ in 0..2 {
        checkpoint(&mut store);
        tell(&mut store, told(vec![needs_of(&["rare/+"], 1)]));
        store.pass(3_000);
        assert_eq!(store.disk.content(&harmed).unwrap(), content);
        assert_eq!(
            of_topic(&all(&mut store), "rare/one").len(),
            before.len() - 1
        );
        let disk: Arc<dyn Disk> = Arc::new(store.disk.clone());
        let told = inspect(&disk).unwrap().damage;
        assert!(told.len() == 1 && told[0].file == harmed, "{told:?}");
        store = store.reopen();
        // A reader of few messages passes the place, too, and tells of it.
        assert_eq!(store.engine.damage(), []);
        let rare = Request {
            filters: Arc::new(["rare/+".into()]),
            ..everything(0)
        };
        let found = store.handle.read_now(&rare).messages;
        assert!(found.len() < before.len());
        assert_eq!(store.engine.damage(), told);
    }
    assert!(log_bytes(&store.disk) < content.len() * 7);
}

/// A sector of zeros between frames and behind the last: numbers of frames are missing.
#[test]
fn frames_that_are_missing_without_a_trace_are_damage() {
    for is_last in [false, true] {
        let harm = |disk: &SimulatedDisk, name: &str| {
            let mut content = disk.content(name).unwrap();
            let frames = |content: &[u8]| -> Vec<usize> {
                let magic = content[64..68].to_vec();
                let parts = content.windows(4).enumerate();
                parts
                    .filter(|(_, part)| *part == magic)
                    .map(|(at, _)| at)
                    .collect()
            };
            let at = frames(&content);
            if is_last {
                content[at[at.len() - 4]..].fill(0);
            } else {
                content.drain(at[20]..at[24]);
            }
            let file = disk.open(name).unwrap();
            file.set_length(content.len() as u64).unwrap();
            file.write_at(0, &content).unwrap();
            file.sync().unwrap();
        };
        let (mut store, _, harmed) = without_indexes(harm);
        let content = store.disk.content(&harmed).unwrap();
        checkpoint(&mut store);
        tell(&mut store, told(vec![needs_of(&["rare/+"], 1)]));
        store.pass(3_000);
        assert!(store.engine.usage_reader().usage().rewritten_segments > 4);
        assert_eq!(store.disk.content(&harmed).unwrap(), content, "{is_last}");
        let damage = store.engine.damage();
        assert!(
            damage.len() == 1 && damage[0].reason == "frames are missing",
            "{damage:?}"
        );
    }
}

/// Numbers of frames say nothing where frames were taken out, but the file ends with one.
#[test]
fn a_rewritten_file_whose_end_is_missing_is_told_and_stays() {
    let mut store = open(&eager());
    fill(&mut store, 30);
    tell(&mut store, told(vec![needs_of(&["rare/+"], 18)]));
    let name = log_files(&store.disk, ".log").remove(0);
    store.disk.kill_process();
    let length = store.disk.content(&name).unwrap().len();
    let file = store.disk.open(&name).unwrap();
    file.write_at(length as u64 - 300, &[0; 300]).unwrap();
    store.disk.remove(&name.replace(".log", ".index")).unwrap();
    let content = store.disk.content(&name).unwrap();
    let mut store = store.reopen();
    checkpoint(&mut store);
    tell(&mut store, told(vec![needs_of(&["rare/+"], 400)]));
    store.pass(2_000);
    assert_eq!(store.disk.content(&name).unwrap(), content);
    let disk: Arc<dyn Disk> = Arc::new(store.disk.clone());
    for damage in [inspect(&disk).unwrap().damage, store.engine.damage()] {
        assert!(damage.len() == 1 && damage[0].file == name, "{damage:?}");
    }
}

#[test]
fn an_index_that_is_no_good_is_made_again_on_the_disk() {
    let mut store = open(&eager());
    fill(&mut store, 4);
    let index = log_files(&store.disk, ".index").remove(0);
    let good = store.disk.content(&index).unwrap();
    store.disk.flip(&index, 60, 1);
    let mut store = store.reopen();
    all(&mut store);
    store.pass(20);
    assert_eq!(store.disk.content(&index).unwrap(), good);
}

#[test]
fn a_look_that_would_take_too_much_memory_leaves_all() {
    let needs = || {
        let ended = |number: u64| NeededFilter {
            filter: format!("busy/{}", number % 5).into(),
            since: number * 7,
            until: number * 7 + 3,
        };
        let reader = ReaderNeeds {
            filters: (0..100).map(ended).collect(),
            from: 1,
            single: Vec::new(),
        };
        told(vec![reader])
    };
    let settings = Settings {
        maximum_rewrite_memory_bytes: 100,
        ..eager()
    };
    let mut store = open(&settings);
    fill(&mut store, 10);
    let before = all(&mut store);
    tell(&mut store, needs());
    store.pass(3_000);
    assert_eq!(all(&mut store), before);
    let disk = store.disk.clone();
    let mut store = Store::open(&disk, &eager());
    checkpoint(&mut store);
    tell(&mut store, needs());
    store.pass(3_000);
    let after = all(&mut store);
    assert!(after.len() * 3 < before.len() * 2, "{}", after.len());
}

#[test]
fn a_disk_that_fails_costs_an_attempt() {
    for fault in [Fault::Write, Fault::Sync, Fault::Create, Fault::Open] {
        let mut store = open(&eager());
        fill(&mut store, 10);
        let before = all(&mut store);
        let bytes = log_bytes(&store.disk);
        store.disk.fail(fault, 1);
        tell(&mut store, told(vec![needs_of(&["rare/+"], 18)]));
        store.pass(3_000);
        for _ in 0..3 {
            tell(&mut store, told(vec![needs_of(&["rare/+"], 18)]));
            store.pass(3_000);
        }
        let after = all(&mut store);
        assert_eq!(
            of_topic(&after, "rare/one"),
            of_topic(&before, "rare/one"),
            "{fault:?}"
        );
        assert!(log_bytes(&store.disk) * 4 < bytes, "{fault:?}");
        let mut store = store.reopen();
        assert_eq!(all(&mut store), after, "{fault:?}");
        assert_eq!(store.engine.report().damage, [], "{fault:?}");
    }
}

/// At each moment of a rewriting the power fails. All that is needed is there afterwards, once and in order, and the
/// rewriting comes to its end.
#[test]
fn the_power_may_fail_at_any_moment() {
    let mut cut = 0;
    loop {
        cut += 1;
        let mut store = Store::open(&SimulatedDisk::new(cut), &eager());
        fill(&mut store, 6);
        let before = all(&mut store);
        let records = store.records();
        let bytes = log_bytes(&store.disk);
        store.disk.fail_power_after(cut as u32);
        tell(&mut store, told(vec![needs_of(&["rare/+"], 18)]));
        // It is not when all of it was done before.
        let has_failed = store.disk.create("probe.new").is_err();
        store.disk.cut_power();
        let Store { disk, settings, .. } = store;
        let mut store = Store::open(&disk, &settings);
        assert_eq!(store.engine.report().damage, [], "cut {cut}");
        let after = all(&mut store);
        assert_eq!(
            of_topic(&after, "rare/one"),
            of_topic(&before, "rare/one"),
            "cut {cut}"
        );
        assert!(
            after.is_sorted_by(|one, next| one.0 < next.0),
            "cut {cut}: each once"
        );
        assert_eq!(store.records(), records, "cut {cut}");
        checkpoint(&mut store);
        tell(&mut store, told(vec![needs_of(&["rare/+"], 18)]));
        assert!(
            log_bytes(&store.disk) * 2 < bytes,
            "cut {cut}: it is done again"
        );
        let after = all(&mut store);
        assert_eq!(
            of_topic(&after, "rare/one"),
            of_topic(&before, "rare/one"),
            "cut {cut}"
        );
        if !has_failed {
            assert!(cut > 20, "{cut} moments");
            return;
        }
    }
}
