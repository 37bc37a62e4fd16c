//! Figures of the engine on this machine's disk: `cargo bench -p sterna-store [-- NUMBER]`.
//!
//! It appends messages of 1,000 devices, lets a reader that was away read those of one device, and opens
//! the store again. Then it does the same with records. Without `--bench` the number is small, to see
//! that it works.
#![allow(clippy::unwrap_used)] // a figure that cannot be measured is no figure

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use sterna_store::disk::{Disk, RealDisk};
use sterna_store::{Draft, Durability, Engine, Handle, Request, Running, Settings};

const DEVICES: usize = 1_000;
const PAYLOAD_BYTES: usize = 100;
/// Appends of one turn of a shard.
const TURN: usize = 64;
const LONE_MESSAGES: u32 = 500;

fn open(folder: &Path, durability: Durability) -> Running {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
    let settings = Settings {
        durability,
        minimum_free_bytes: 0,
        ..Settings::default()
    };
    Engine::open(disk, settings).unwrap().spawn().unwrap()
}

fn fill(draft: &mut Draft, number: usize) {
    draft.clear();
    let topic = format!("site/device/{:08}", number % DEVICES);
    let payload = [number as u8; PAYLOAD_BYTES];
    draft
        .message(&topic, |out| {
            out.extend_from_slice(topic.as_bytes());
            out.extend_from_slice(&payload);
        })
        .unwrap();
}

/// CPU time of this process so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks: u64 = fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().unwrap())
        .sum();
    // USER_HZ is 100 on Linux.
    Duration::from_millis(ticks * 10)
}

fn append_many(running: &Running, count: usize) {
    let mut handle = running.handle(Box::new(|| {}));
    let mut draft = Draft::default();
    let (begin, cpu_before) = (Instant::now(), cpu());
    let mut refused = 0_u64;
    for number in 0..count {
        fill(&mut draft, number);
        while handle.append(&draft).is_err() {
            refused += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        if number % TURN == TURN - 1 {
            handle.flush();
        }
    }
    handle.flush();
    while handle.progress().written < count as u64 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = begin.elapsed();
    let cpu_took = cpu().saturating_sub(cpu_before);
    println!(
        "append {count} messages of {PAYLOAD_BYTES} bytes: {:.0}/s, {:.2} us of CPU each, {refused} waits",
        count as f64 / took.as_secs_f64(),
        cpu_took.as_secs_f64() * 1e6 / count as f64
    );
}

/// Times from a lone append until its shard is woken.
fn append_alone(folder: &Path, durability: Durability) {
    let running = open(folder, durability);
    let (wake, woken) = channel();
    let mut handle = running.handle(Box::new(move || _ = wake.send(())));
    let mut draft = Draft::default();
    let mut took = Vec::new();
    for number in 0..LONE_MESSAGES {
        fill(&mut draft, number as usize);
        let begin = Instant::now();
        let appended = handle.append(&draft).unwrap();
        handle.wake_when(appended.sequence, durability);
        handle.flush();
        woken.recv().unwrap();
        took.push(begin.elapsed());
    }
    took.sort_unstable();
    let at = |share: usize| took[took.len() * share / 100];
    println!(
        "a lone message with {durability:?}: p50 {:?}, p99 {:?}",
        at(50),
        at(99)
    );
}

fn read_one_device(handle: &mut Handle) {
    let mut request = Request {
        reader: 1,
        from: 0,
        to: u64::MAX,
        filters: Arc::new(["site/device/00000007".into()]),
        most_messages: 100,
        most_bytes: usize::MAX,
    };
    let begin = Instant::now();
    let first = handle.read_now(&request);
    let first_took = begin.elapsed();
    let mut count = first.messages.len();
    request.from = first.next;
    loop {
        let answer = handle.read_now(&request);
        if answer.messages.is_empty() {
            break;
        }
        count += answer.messages.len();
        request.from = answer.next;
    }
    println!(
        "one of {DEVICES} devices that was away: first {} messages in {first_took:?}, all {count} in {:?}",
        first.messages.len(),
        begin.elapsed()
    );
}

/// Bytes of a record.
const RECORD_BYTES: usize = 120;

fn put_records(running: &Running, count: usize) {
    let mut handle = running.handle(Box::new(|| {}));
    let mut draft = Draft::default();
    for first in (0..count).step_by(TURN) {
        draft.clear();
        for number in first..(first + TURN).min(count) {
            // In no order, as names of clients are.
            let key = format!(
                "session/{:016x}",
                (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            );
            draft
                .change(key.as_bytes(), Some(&[7; RECORD_BYTES]))
                .unwrap();
        }
        handle.append(&draft).unwrap();
    }
}

fn load(running: &Running) {
    let begin = Instant::now();
    let mut count = 0_u64;
    let mut handle = running.handle(Box::new(|| {}));
    handle.load(&mut |_, _| count += 1).unwrap();
    println!("load {count} records: {:?}", begin.elapsed());
}

/// Prints how long something takes.
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let done = work();
    println!("{what}: {:?}", begin.elapsed());
    done
}

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let count = std::env::args().find_map(|argument| argument.parse().ok());
    let count = count.unwrap_or(if is_bench { 1_000_000 } else { 1_000 });
    let folder = tempfile::tempdir_in(".").unwrap();
    let many = folder.path().join("many");
    let running = open(&many, Durability::Interval);
    append_many(&running, count);
    read_one_device(&mut running.handle(Box::new(|| {})));
    timed("close", || running.close()).unwrap();
    let running = timed("open", || open(&many, Durability::Interval));
    read_one_device(&mut running.handle(Box::new(|| {})));
    drop(running);

    let records = folder.path().join("records");
    let running = open(&records, Durability::Interval);
    timed("put records", || put_records(&running, count));
    timed("close", || running.close()).unwrap();
    let running = timed("open", || open(&records, Durability::Interval));
    load(&running);
    timed("close", || running.close()).unwrap();

    append_alone(&folder.path().join("interval"), Durability::Interval);
    append_alone(&folder.path().join("commit"), Durability::Commit);
}
