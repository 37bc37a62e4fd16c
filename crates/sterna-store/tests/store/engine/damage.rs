//! Flipped bits.

use std::sync::Arc;

use sterna_broker::LogNeeds;
use sterna_store::disk::{Disk, Fault, SimulatedDisk};
use sterna_store::inspect::{compact, inspect};
use sterna_store::{Damage, Engine, OpenError, Settings};

use super::{Store, draft, log_files, settings};

const FRAMES: u64 = 40;

/// A store of several segments, each frame with one message and one record. All of it is synced.
fn store(applied: bool) -> SimulatedDisk {
    let mut store = Store::new();
    for number in 1..=FRAMES {
        let content = vec![number as u8; 150 + number as usize];
        let key = format!("key {number:02}");
        let draft = draft(&[("a/topic", &content)], &[(&key, Some("value"))]);
        store.handle.append(&draft).unwrap();
        store.handle.flush();
        store.pass(if number % 7 == 0 { 20 } else { 0 });
    }
    store.pass(if applied { 2_000 } else { 20 });
    assert_eq!(store.handle.progress().synced, FRAMES);
    store.disk.kill_process();
    store.disk
}

fn as_disk(disk: &SimulatedDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

#[test]
fn every_flipped_bit_is_found_in_its_file_at_its_offset_and_costs_one_frame_at_most() {
    let disk = store(true);
    let sound = inspect(&as_disk(&disk)).unwrap();
    assert_eq!((&*sound.damage, &sound.torn), (&[][..], &None));
    let frames = sound
        .segments
        .iter()
        .map(|segment| segment.frames)
        .sum::<u64>();
    assert_eq!(frames, FRAMES);
    assert!(sound.segments.len() > 2);
    for name in log_files(&disk, ".log") {
        let end = sound.segments.iter().find(|segment| segment.file == name);
        let end = end.unwrap().bytes;
        for offset in (0..end).step_by(11) {
            let bit = (offset % 8) as u8;
            disk.flip(&name, offset as usize, bit);
            let found = inspect(&as_disk(&disk)).unwrap();
            let covers = |damage: &Damage| {
                damage.file == name
                    && (damage.offset..damage.offset + damage.bytes).contains(&offset)
            };
            assert_eq!(
                found
                    .damage
                    .iter()
                    .chain(&found.torn)
                    .filter(|damage| covers(damage))
                    .count(),
                1,
                "{name} {offset}: {found:?}"
            );
            assert_eq!(found.damage.len() + usize::from(found.torn.is_some()), 1);
            let left = found
                .segments
                .iter()
                .map(|segment| segment.frames)
                .sum::<u64>();
            let in_header = offset < 64;
            assert_eq!(left, FRAMES - u64::from(!in_header), "{name} {offset}");
            disk.flip(&name, offset as usize, bit);
        }
    }
    assert_eq!(inspect(&as_disk(&disk)).unwrap(), sound);
}

#[test]
fn a_store_with_a_flipped_bit_opens_and_has_all_the_rest() {
    for (applied, step) in [(false, 0), (true, 1)]
        .into_iter()
        .flat_map(|(applied, _)| (0..30).map(move |step| (applied, step)))
    {
        let disk = store(applied);
        let names = log_files(&disk, ".log");
        let name = &names[step % names.len()];
        let length = inspect(&as_disk(&disk)).unwrap().segments[step % names.len()].bytes;
        let offset = (step * 7_919) % length as usize;
        disk.flip(name, offset, step as u8);
        let mut store = Store::open(&disk, &settings());
        let messages = store.read(0);
        let lost = FRAMES as usize - messages.len();
        // Behind the last checkpoint, nothing tells a flipped bit of the last batch from an append that was
        // cut off.
        let most = if store.engine.report().torn.is_some() {
            5
        } else {
            1
        };
        assert!(!applied || store.engine.report().torn.is_none());
        assert!(lost <= most, "{name} {offset}: {lost} messages are lost");
        for pair in messages.windows(2) {
            assert!(pair[0].position < pair[1].position);
        }
        for message in &messages {
            let number = message.position as usize;
            assert_eq!(
                message.content,
                vec![number as u8; 150 + number],
                "{name} {offset}"
            );
        }
        // What the records' file had is not touched by it.
        assert!(store.records().len() + usize::from(!applied) * lost >= FRAMES as usize);
        let torn = store.engine.report().torn.clone();
        let damage = store.engine.damage();
        assert!(
            lost == 0
                || damage
                    .iter()
                    .chain(&torn)
                    .any(|damage| damage.file == *name),
            "{name} {offset}: {damage:?}"
        );
        // It goes on, with positions that were never given.
        let next = store.append(&[("b", b"new")]).unwrap().first;
        assert!(next > messages.last().unwrap().position);
        store.pass(2_000);
        assert_eq!(store.read(next).len(), 1);
        let mut store = store.reopen();
        assert_eq!(store.read(0).len(), messages.len() + 1);
        assert_eq!(store.engine.report().torn, None);
    }
}

#[test]
fn a_frame_within_a_message_is_never_taken_for_one() {
    let disk = SimulatedDisk::new(1);
    let mut store = Store::open(&disk, &settings());
    store.append(&[("a", &[7; 300])]).unwrap();
    store.pass(20);
    let bytes = disk.content("log/0000000001.log").unwrap();
    // Somebody publishes what the log has, as a message of another store would have it.
    let other = SimulatedDisk::new(2);
    let engine = Engine::open_with_identity(as_disk(&other), settings(), [8; 16]).unwrap();
    let mut strange = engine.handle(Box::new(|| {}));
    let mut engine = engine;
    strange
        .append(&draft(&[("a", &bytes[64..500])], &[]))
        .unwrap();
    strange.append(&draft(&[("b", b"after")], &[])).unwrap();
    engine.turn(0, &mut || false);
    engine.turn(20, &mut || false);
    other.flip("log/0000000001.log", 64 + 9, 1);
    other.kill_process();
    let engine = Engine::open_with_identity(as_disk(&other), settings(), [8; 16]).unwrap();
    let messages = engine
        .handle(Box::new(|| {}))
        .read_now(&super::everything(0))
        .messages;
    let topics: Vec<&str> = messages.iter().map(|message| &*message.topic).collect();
    assert!(topics.is_empty() || topics == ["b"], "{topics:?}");
}

#[test]
fn a_damaged_index_is_made_again() {
    let disk = store(true);
    let index = log_files(&disk, ".index").remove(0);
    disk.flip(&index, 70, 1);
    let mut store = Store::open(&disk, &settings());
    assert_eq!(store.read(0).len(), FRAMES as usize);
    assert_eq!(store.engine.damage(), []);
    disk.remove(&index).unwrap();
    let mut store = store.reopen();
    assert_eq!(store.read(0).len(), FRAMES as usize);
    store.pass(10);
    let inspection = inspect(&as_disk(&disk)).unwrap();
    let mut segments = inspection.segments.iter();
    // The last one is empty, and waits for the first append.
    assert!(
        segments.all(|segment| segment.has_index || segment.frames == 0),
        "{inspection:?}"
    );
}

#[test]
fn flipped_bits_in_the_file_of_the_records_never_pass() {
    let disk = store(true);
    let length = disk.content("records.redb").unwrap().len();
    let mut refused = 0;
    let mut found = 0;
    for step in 0..400 {
        let offset = (step * 104_729) % length;
        disk.flip("records.redb", offset, step as u8);
        match inspect(&as_disk(&disk)) {
            Ok(inspection) => {
                // Whatever is there is as it was written; what is not is reported.
                assert!(inspection.records + inspection.damage.len() as u64 >= FRAMES);
                found += inspection.damage.len();
            }
            Err(OpenError::Damaged { file, .. }) => {
                assert_eq!(file, "records.redb");
                refused += 1;
            }
            Err(OpenError::Newer { .. }) => refused += 1,
            Err(other) => panic!("{offset}: {other}"),
        }
        disk.flip("records.redb", offset, step as u8);
    }
    println!("{refused} times refused, {found} records reported");
    assert_eq!(inspect(&as_disk(&disk)).unwrap().records, FRAMES);
}

/// The library panics here and there where its file is damaged: while it works, or when it is dropped. That is an error,
/// or a record that is left out and told of.
#[test]
fn a_store_over_records_with_a_flipped_bit_is_refused_or_goes_on() {
    let disk = store(true);
    let content = disk.content("records.redb").unwrap();
    let used: Vec<usize> = (0..content.len()).filter(|&at| content[at] != 0).collect();
    let (mut refused, mut told) = (0, 0);
    for step in 0..240 {
        // Every byte of the header that says something, and some others.
        let place = if step < 120 { step } else { step * 7_919 };
        let (offset, bit) = (used[place % used.len()], (step % 8) as u8);
        let disk = store(true);
        disk.flip("records.redb", offset, bit);
        let place = format!("{offset}, bit {bit}");
        let opened = Engine::open_with_identity(as_disk(&disk), settings(), [9; 16]);
        let Ok(mut engine) = opened else {
            refused += 1;
            continue;
        };
        let mut handle = engine.handle(Box::new(|| {}));
        let mut records = 0;
        let loaded = handle.load(&mut |key, value| {
            assert!(key.starts_with(b"key ") && value == b"value", "{place}");
            records += 1;
        });
        let is_told = !engine.report().damage.is_empty();
        told += usize::from(is_told);
        assert!(
            loaded.is_err() || records == FRAMES || is_told,
            "{place}: {records}"
        );
        let messages = handle.read_now(&super::everything(0)).messages;
        assert_eq!(messages.len(), FRAMES as usize, "{place}");
        for number in 0..20 {
            let key = format!("key {number:02}");
            let draft = draft(&[("a/topic", b"new")], &[(&key, Some("other"))]);
            handle.append(&draft).unwrap();
            for now_ms in 0..60 {
                engine.turn((number + 1) * 1_000 + now_ms, &mut || false);
            }
        }
        let messages = handle.read_now(&super::everything(FRAMES + 1)).messages;
        assert_eq!(messages.len(), 20, "{place}");
        drop(handle);
        drop(engine);
        let _ = inspect(&as_disk(&disk));
    }
    println!("{refused} refused, {told} told of");
    assert!(refused > 0 && told > 0);
}

#[test]
fn a_store_of_a_newer_version_is_refused_by_name() {
    let disk = store(true);
    let name = log_files(&disk, ".log").remove(1);
    let mut bytes = disk.content(&name).unwrap();
    bytes[8] = 2;
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
    disk.open(&name).unwrap().write_at(0, &bytes[..64]).unwrap();
    let error = Engine::open_with_identity(as_disk(&disk), settings(), [9; 16]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(&name) && text.contains("version 2") && text.contains("knows 1"),
        "{text}"
    );
}

#[test]
fn without_the_records_file_a_whole_log_makes_them_again() {
    let disk = store(false);
    disk.remove("records.redb").unwrap();
    let mut store = Store::open(&disk, &settings());
    assert_eq!(store.records().len(), FRAMES as usize);
    assert_eq!(store.engine.report().replayed_frames, FRAMES);
    // Without its beginning it would be another store: that is refused.
    let disk = store_without_beginning();
    disk.remove("records.redb").unwrap();
    let error = Engine::open_with_identity(as_disk(&disk), settings(), [9; 16]).unwrap_err();
    assert!(
        error.to_string().contains("records before it are lost"),
        "{error}"
    );
}

/// The changes of records that compacting takes out are in the records' file only.
#[test]
fn without_the_records_file_a_compacted_log_is_refused() {
    let mut store = Store::open(&store(true), &settings());
    store.append(&[("a", b"more")]).unwrap();
    store.pass(2_000);
    store.disk.kill_process();
    let disk = store.disk;
    let compacted = compact(&as_disk(&disk), &settings(), LogNeeds::default()).unwrap();
    assert!(compacted.rewritten > 0, "{compacted:?}");
    assert_eq!(inspect(&as_disk(&disk)).unwrap().records, FRAMES);
    disk.remove("records.redb").unwrap();
    let error = Engine::open_with_identity(as_disk(&disk), settings(), [9; 16]).unwrap_err();
    assert!(error.to_string().contains("was compacted"), "{error}");
}

/// Zeros where frames should be look like room that was reserved.
#[test]
fn a_file_whose_last_frames_are_missing_is_not_compacted() {
    let disk = store(true);
    let name = log_files(&disk, ".log").remove(0);
    let content = disk.content(&name).unwrap();
    let at = content
        .windows(4)
        .rposition(|part| *part == content[64..68]);
    let file = disk.open(&name).unwrap();
    file.write_at(at.unwrap() as u64, &vec![0; content.len() - at.unwrap()])
        .unwrap();
    let content = disk.content(&name).unwrap();
    let damage = inspect(&as_disk(&disk)).unwrap().damage;
    assert_eq!(damage.len(), 1);
    compact(&as_disk(&disk), &settings(), LogNeeds::default()).unwrap();
    assert_eq!(disk.content(&name).unwrap(), content);
    assert_eq!(inspect(&as_disk(&disk)).unwrap().damage, damage);
}

fn store_without_beginning() -> SimulatedDisk {
    let mut store = Store::open(&store(true), &settings());
    store.handle.needed_from(30);
    store.append(&[("a", b"more")]).unwrap();
    store.pass(2_000);
    store.append(&[("a", b"more")]).unwrap();
    store.pass(2_000);
    assert!(store.read(0)[0].position > 1);
    store.disk.kill_process();
    store.disk
}

#[test]
fn files_that_are_missing_at_the_front_of_the_log_are_told() {
    let disk = store(true);
    let first = log_files(&disk, ".log").remove(0);
    disk.remove(&first).unwrap();
    let inspection = inspect(&as_disk(&disk)).unwrap();
    let told = |damage: &[Damage]| {
        let about = damage.iter().map(|damage| damage.reason.as_str());
        about
            .filter(|about| about.contains("front of the log"))
            .count()
    };
    assert_eq!(told(&inspection.damage), 1, "{:?}", inspection.damage);
    let opened = Store::open(&disk, &settings());
    assert_eq!(told(&opened.engine.report().damage), 1);
    drop(opened);
    // What goes because nobody needs it is not missed.
    let disk = store_without_beginning();
    assert_eq!(inspect(&as_disk(&disk)).unwrap().damage, []);
}

#[test]
fn a_records_file_that_is_missing_or_cut_short_is_told_with_what_to_do() {
    let disk = store(true);
    let why = |disk: &SimulatedDisk| {
        let looked = inspect(&as_disk(disk)).unwrap_err().to_string();
        assert!(looked.starts_with("records.redb: "), "{looked}");
        looked
    };
    let file = disk.open("records.redb").unwrap();
    let half = file.length().unwrap() / 2;
    file.set_length(half).unwrap();
    file.sync().unwrap();
    let cut = why(&disk);
    assert!(
        cut.contains("its end is missing") && cut.contains("from a backup"),
        "{cut}"
    );
    let refused = Engine::open_with_identity(as_disk(&disk), settings(), [9; 16]).unwrap_err();
    assert_eq!(refused.to_string(), cut);
    disk.remove("records.redb").unwrap();
    let missing = why(&disk);
    assert!(missing.contains("makes it again"), "{missing}");
    drop(Store::open(&disk, &settings()));
}

#[test]
fn a_folder_that_takes_no_files_is_refused() {
    let disk = store(true);
    disk.fail(Fault::Create, 1);
    let error = Engine::open_with_identity(as_disk(&disk), settings(), [9; 16]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("no file can be made here"), "{text}");
}

/// Frames of 1,000 bytes in segments of 64 KiB, all synced, and applied if asked for.
fn large_store(applied: bool) -> SimulatedDisk {
    let settings = Settings {
        segment_bytes: 64 << 10,
        ..settings()
    };
    let mut store = Store::open(&SimulatedDisk::new(3), &settings);
    for number in 0..LARGE_FRAMES {
        store
            .append(&[("a/topic", &[number as u8; 1_000])])
            .unwrap();
        store.handle.flush();
        store.pass(1);
    }
    store.pass(if applied { 20_000 } else { 20 });
    assert_eq!(store.handle.progress().synced, LARGE_FRAMES);
    store.disk.kill_process();
    store.disk
}

const LARGE_FRAMES: u64 = 150;

/// Frames that a piece of 4 KiB and its ends have.
const FRAMES_OF_A_PIECE: usize = 6;

#[test]
fn a_sector_that_cannot_be_read_costs_its_frames_and_neither_the_segment_nor_the_start() {
    for applied in [false, true] {
        let disk = large_store(applied);
        let names = log_files(&disk, ".log");
        assert!(names.len() > 2);
        // In the first segment, in the last one, and without an index file.
        for (name, has_index) in [(&names[0], true), (&names[0], false), (&names[2], false)] {
            let disk = large_store(applied);
            if !has_index {
                let _ = disk.remove(&name.replace(".log", ".index"));
            }
            let bad = 20_480..20_992;
            disk.make_unreadable(name, bad.clone());
            let found = inspect(&as_disk(&disk)).unwrap();
            let covers = |damage: &Damage| {
                let end = damage.offset + damage.bytes.max(1);
                damage.file == *name
                    && damage.reason == "the device cannot read it"
                    && damage.offset < bad.end as u64
                    && (bad.start as u64) < end
            };
            // Segments behind the last checkpoint, and the last one, are walked through.
            assert!(found.damage.iter().any(covers), "{name}: {found:?}");
            let settings = Settings {
                segment_bytes: 64 << 10,
                ..settings()
            };
            let mut store = Store::open(&disk, &settings);
            let messages = store.read(0);
            let lost = LARGE_FRAMES as usize - messages.len();
            assert!((1..=FRAMES_OF_A_PIECE).contains(&lost), "{name}: {lost}");
            let damage = store.engine.damage();
            assert!(damage.iter().any(covers), "{name}: {damage:?}");
            store.append(&[("a/topic", b"more")]).unwrap();
            store.pass(20);
            assert_eq!(store.read(0).len(), messages.len() + 1, "{name}");
        }
    }
}

/// Nothing is passed over: the device may come back.
#[test]
fn readers_wait_for_a_device_that_is_gone() {
    let disk = large_store(true);
    let settings = Settings {
        segment_bytes: 64 << 10,
        ..settings()
    };
    let mut store = Store::open(&disk, &settings);
    let name = &log_files(&disk, ".log")[1];
    disk.make_unreadable(name, 0..usize::MAX);
    let answer = store.handle.read_now(&super::everything(0));
    let had = answer.messages.len();
    assert!(had > 0 && had < LARGE_FRAMES as usize);
    assert_eq!(answer.next, had as u64 + 1, "it goes on where it stopped");
}
