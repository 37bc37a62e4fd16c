//! The engine's threads, on the file system.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use sterna_broker::LogNeeds;
use sterna_store::disk::{Disk, RealDisk};
use sterna_store::inspect::inspect;
use sterna_store::{Durability, Engine, Handle, Request, Running, Settings};

use super::draft;

fn start(folder: &std::path::Path, settings: &Settings) -> Running {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder.join("store")));
    let engine = Engine::open(disk, settings.clone()).unwrap();
    assert_eq!(engine.report().damage, []);
    engine.spawn().unwrap()
}

fn settings(durability: Durability) -> Settings {
    Settings {
        durability,
        segment_bytes: 64 << 10,
        minimum_free_bytes: 0,
        checkpoint_interval_ms: 50,
        ..Settings::default()
    }
}

/// A handle that tells a channel when it is woken.
fn handle(running: &Running, wakes: Sender<()>) -> Handle {
    running.handle(Box::new(move || _ = wakes.send(())))
}

#[test]
fn shards_append_at_once_and_are_woken_when_it_is_safe() {
    for durability in [Durability::Commit, Durability::Interval] {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(durability);
        let running = start(folder.path(), &settings);
        let shards: Vec<_> = (0..4_u8)
            .map(|shard| {
                let (wake, woken) = channel();
                let mut handle = handle(&running, wake);
                std::thread::spawn(move || {
                    let topic = format!("shard/{shard}");
                    for number in 0..500_u32 {
                        let content = number.to_le_bytes();
                        let key = format!("{shard}/{}", number % 10);
                        let value = number.to_string();
                        let draft = draft(&[(&topic, &content)], &[(&key, Some(&value))]);
                        let appended = handle.append(&draft).unwrap();
                        if number % 50 == 49 {
                            handle.flush();
                            handle.wake_when(appended.sequence, durability);
                            let reached = |handle: &Handle| {
                                let progress = handle.progress();
                                match durability {
                                    Durability::Commit => progress.synced >= appended.sequence,
                                    _ => progress.written >= appended.sequence,
                                }
                            };
                            while !reached(&handle) {
                                woken.recv().unwrap();
                            }
                        }
                    }
                    while woken.try_recv().is_ok() {}
                    handle.read(Request {
                        reader: shard.into(),
                        from: 0,
                        to: u64::MAX,
                        filters: Arc::new([topic.as_str().into()]),
                        most_messages: usize::MAX,
                        most_bytes: usize::MAX,
                    });
                    let answer = loop {
                        if let Some(answer) = handle.next_answer() {
                            break answer;
                        }
                        woken.recv().unwrap();
                    };
                    assert_eq!(answer.reader, u64::from(shard));
                    let numbers = answer
                        .messages
                        .iter()
                        .map(|message| u32::from_le_bytes((&*message.content).try_into().unwrap()));
                    assert!(numbers.eq(0..500));
                })
            })
            .collect();
        for shard in shards {
            shard.join().unwrap();
        }
        running.close().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder.path().join("store")));
        let inspection = inspect(&disk).unwrap();
        assert_eq!((&*inspection.damage, &inspection.torn), (&[][..], &None));
        assert_eq!((inspection.records, inspection.unapplied_frames), (40, 0));
        let messages: u64 = inspection
            .segments
            .iter()
            .map(|segment| segment.messages)
            .sum();
        assert_eq!(messages, 2_000);
        let running = start(folder.path(), &settings);
        assert_eq!(running.report().replayed_frames, 0);
        let (wake, _) = channel();
        let mut handle = handle(&running, wake);
        assert_eq!(handle.next_position(), 2_001);
        let mut records = 0;
        handle.load(&mut |_, _| records += 1).unwrap();
        assert_eq!(records, 40);
    }
}

#[test]
fn dropping_it_writes_what_was_appended() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(Durability::Memory);
    let running = start(folder.path(), &settings);
    let (wake, _woken) = channel();
    let mut shard = handle(&running, wake);
    for _ in 0..100 {
        shard.append(&draft(&[("a", b"b")], &[])).unwrap();
    }
    drop(running);
    let running = start(folder.path(), &settings);
    let (wake, _woken) = channel();
    assert_eq!(handle(&running, wake).next_position(), 101);
}

#[test]
fn a_checkpoint_that_would_take_long_does_not_hold_up_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        // None is due while the records are put.
        checkpoint_interval_ms: 3_600_000,
        ..settings(Durability::Interval)
    };
    let put = |running: &Running, value: &str| {
        let (wake, _woken) = channel();
        let mut shard = handle(running, wake);
        let value = value.repeat(1_000);
        for number in 0..20_000_u32 {
            let key = format!("record {number}");
            shard.append(&draft(&[], &[(&key, Some(&value))])).unwrap();
        }
    };
    let running = start(folder.path(), &settings);
    put(&running, "a");
    running.close().unwrap();
    let running = start(folder.path(), &settings);
    // The log had what the records' file did not get.
    assert!(running.report().records + running.report().replayed_frames >= 20_000);
    put(&running, "b");
    running.close().unwrap();
    let running = start(folder.path(), &settings);
    let (wake, _woken) = channel();
    let mut count = 0;
    handle(&running, wake)
        .load(&mut |_, value| {
            count += 1;
            assert!(value == vec![b'b'; 1_000]);
        })
        .unwrap();
    assert_eq!(count, 20_000);
}

/// A reader reads all again and again, while most of it is taken out of the segments beneath it.
#[test]
fn a_reader_reads_on_while_segments_are_rewritten() {
    const MESSAGES: u32 = 12_000;
    const RARE: u32 = 50;
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        rewrite_interval_ms: 0,
        rewrite_least_percent: 10,
        rewrite_bytes_per_s: u64::MAX,
        ..settings(Durability::Interval)
    };
    let running = start(folder.path(), &settings);
    let mut writer = running.handle(Box::new(|| {}));
    let (wake, woken) = channel();
    let mut reader = handle(&running, wake);
    let publisher = std::thread::spawn(move || {
        writer.needed_from(u64::MAX);
        writer.needs(LogNeeds {
            all_from: u64::MAX,
            readers: Vec::new(),
        });
        for number in 0..MESSAGES {
            let is_rare = number % RARE == 0;
            let topic = if is_rare { "rare" } else { "busy" };
            let mut content = number.to_le_bytes().to_vec();
            content.resize(200, 7);
            let value = number.to_string();
            let draft = draft(&[(topic, &content)], &[("key", Some(&value))]);
            // Others come to run.
            while writer.append(&draft).is_err() {
                std::thread::yield_now();
            }
            if number % 100 == 0 {
                writer.flush();
                let appended = writer.append(&draft_of_key(number)).unwrap();
                while writer.progress().written < appended.sequence {
                    writer.flush();
                    std::thread::yield_now();
                }
            }
        }
        writer.flush();
        writer
    });
    let usage = running.usage_reader();
    let mut most = 0;
    let (mut passes, mut last) = (0, 0);
    while most < MESSAGES / RARE || usage.usage().rewritten_segments < 20 {
        reader.needs(LogNeeds {
            all_from: u64::MAX,
            readers: vec![super::needs_of(&["rare"], 1)],
        });
        let (mut found, mut from) = (Vec::new(), 1);
        loop {
            reader.read(Request {
                from,
                filters: Arc::new(["rare".into()]),
                most_messages: 9,
                ..super::everything(0)
            });
            let answer = loop {
                if let Some(answer) = reader.next_answer() {
                    break answer;
                }
                woken.recv().unwrap();
            };
            found.extend(
                answer
                    .messages
                    .iter()
                    .map(|message| u32::from_le_bytes(message.content[..4].try_into().unwrap())),
            );
            if answer.next == from {
                break;
            }
            from = answer.next;
        }
        let expected = (0..found.len() as u32).map(|nth| nth * RARE);
        assert!(found.iter().copied().eq(expected), "{found:?}");
        assert!(found.len() >= last, "nothing goes");
        last = found.len();
        most = most.max(found.len() as u32);
        passes += 1;
    }
    println!("{passes} passes");
    let writer = publisher.join().unwrap();
    assert_eq!(running.damage(), []);
    drop((writer, reader));
    running.close().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder.path().join("store")));
    assert_eq!(inspect(&disk).unwrap().damage, []);
}

fn draft_of_key(number: u32) -> sterna_store::Draft {
    draft(&[], &[("other key", Some(&number.to_string()))])
}
