//! A store whose log has any bytes.

use std::sync::Arc;

use serde::Deserialize;
use sterna_store::disk::{Disk, SimulatedDisk};
use sterna_store::inspect::{export, import, inspect};
use sterna_store::{Draft, Engine, Request, Settings};

const IDENTITY: [u8; 16] = *b"sterna-fuzz-logs";

/// Opens a store whose one segment has the bytes behind its header, as they are or as bodies of frames
/// with proper checksums, and uses it.
///
/// # Panics
///
/// Where a store cannot be opened, changes when it is opened again, or is another one after an export.
pub fn log(bytes: &[u8]) {
    let Some((form, bytes)) = bytes.split_first() else {
        return;
    };
    let disk = SimulatedDisk::new(u64::from(*form));
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let settings = Settings {
        segment_bytes: 1 << 16,
        minimum_free_bytes: 0,
        ..Settings::default()
    };
    let open = || {
        Engine::open_with_identity(Arc::clone(&shared), settings.clone(), IDENTITY)
            .expect("it opens")
    };
    drop(open());
    let mut file = header();
    if form % 2 == 0 {
        file.extend_from_slice(bytes);
    } else {
        frames(bytes, &mut file);
    }
    let segment = disk.create("log/0000000001.log").expect("there is none");
    segment.write_at(0, &file).expect("a disk in memory");

    let before = inspect(&shared).expect("it can be looked into");
    let kept: u64 = before.segments.iter().map(|segment| segment.messages).sum();
    let (first, _) = exported(&shared);
    assert_eq!(first.len() as u64, kept, "a check tells what there is");
    let mut engine = open();
    assert_eq!(read(&engine), wanted(&first));
    let mut handle = engine.handle(Box::new(|| {}));
    let mut draft = Draft::default();
    draft.message("new", |_| {}).expect("it is short");
    let position = handle.append(&draft).expect("there is room").first;
    assert!(first.iter().all(|message| message.position < position));
    for now_ms in [0, 20, 10_000] {
        engine.turn(now_ms, &mut || false);
    }
    disk.kill_process();
    let engine = open();
    let (second, lines) = exported(&shared);
    assert_eq!(second.len(), first.len() + 1);
    assert!(second.starts_with(&first), "the rest is as it was");
    assert_eq!(read(&engine), wanted(&second));

    let other: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    import(&other, &settings, &mut &lines[..]).expect("an export is read");
    assert_eq!(exported(&other).0, second);
}

/// A message of an export.
#[derive(Deserialize, PartialEq, Eq, Debug)]
struct Exported {
    position: u64,
    topic: String,
    content: String,
}

/// All messages, and the whole export.
fn exported(disk: &Arc<dyn Disk>) -> (Vec<Exported>, Vec<u8>) {
    let mut lines = Vec::new();
    export(disk, &mut lines).expect("it is written out");
    let text = std::str::from_utf8(&lines).expect("JSON is text");
    let is_message = |line: &&str| line.starts_with("{\"position\"");
    let messages = text
        .lines()
        .filter(is_message)
        .map(|line| serde_json::from_str(line).expect("a message of an export"));
    (messages.collect(), lines)
}

/// Positions and topics that `#` matches.
fn wanted(messages: &[Exported]) -> Vec<(u64, Box<str>)> {
    let matching = messages
        .iter()
        .filter(|message| sterna_topic::matches("#", &message.topic));
    matching
        .map(|message| (message.position, message.topic.as_str().into()))
        .collect()
}

fn read(engine: &Engine) -> Vec<(u64, Box<str>)> {
    let request = Request {
        reader: 0,
        from: 0,
        to: u64::MAX,
        filters: Arc::new(["#".into()]),
        most_messages: usize::MAX,
        most_bytes: usize::MAX,
    };
    let answer = engine.handle(Box::new(|| {})).read_now(&request);
    let messages = answer.messages.into_iter();
    messages
        .map(|message| (message.position, message.topic))
        .collect()
}

/// The header of the segment.
fn header() -> Vec<u8> {
    let mut bytes = b"STERNLOG\x01\0\0\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&IDENTITY);
    for number in [1_u64, 1, 1] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&[0; 4]);
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Frames whose bodies are pieces of the bytes: each piece begins with its length, the damage to its
/// frame, and how far its sequence is ahead.
fn frames(mut bytes: &[u8], file: &mut Vec<u8>) {
    let seed = crc32c::crc32c(&IDENTITY[4..]);
    let mut sequence = 1_u64;
    while let Some(([length, wrong, ahead], rest)) = bytes.split_first_chunk() {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = rest;
        let mut frame = vec![IDENTITY[0] | 1];
        frame.extend_from_slice(&IDENTITY[1..4]);
        frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(&sequence.to_le_bytes());
        frame.extend_from_slice(&(sequence * 256).to_le_bytes());
        frame.extend_from_slice(&u32::from(*ahead).to_le_bytes());
        frame.extend_from_slice(&crc32c::crc32c_append(seed, body).to_le_bytes());
        let checksum = crc32c::crc32c_append(seed, &frame);
        frame.extend_from_slice(&checksum.to_le_bytes());
        frame.extend_from_slice(body);
        if wrong & 1 == 1 {
            let at = usize::from(*wrong) % frame.len();
            frame[at] ^= 0x10;
        }
        file.extend_from_slice(&frame);
        sequence += 1 + u64::from(wrong >> 7);
    }
}
