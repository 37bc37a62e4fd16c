//! The broker's trait on the engine, on a real disk.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sterna_broker::{
    Broker, Change, Committed, ConsumerId, Directory, Frame, Limits, Message, MessageHeader,
    OpenSession, Opened, Publication, Qos, ReadRequest, SessionName, ShardId, Store as _,
    SubscribeOptions,
};
use sterna_store::disk::{RealDisk, SimulatedDisk};
use sterna_store::{Engine, Request, Running, Settings, ShardStore};

fn open(folder: &std::path::Path) -> Running {
    let settings = Settings {
        segment_bytes: 1 << 20,
        minimum_free_bytes: 0,
        ..Settings::default()
    };
    let disk = Arc::new(RealDisk::new(folder));
    Engine::open(disk, settings).unwrap().spawn().unwrap()
}

fn request(from: u64, to: u64) -> ReadRequest {
    ReadRequest {
        reader: 7,
        from,
        to,
        filters: ["a/#".into()].into(),
        most_messages: 10,
        most_bytes: 1 << 20,
    }
}

/// What is appended is read again, as it was, by a woken shard and after a restart.
#[test]
fn messages_and_records_go_through_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let running = open(folder.path());
    let (wake, woken) = channel();
    let wake = Mutex::new(wake);
    let waker = move || {
        let _ = wake.lock().unwrap().send(());
    };
    let mut store = ShardStore::new(running.handle(Box::new(waker)), Arc::default());
    assert_eq!(store.next_position(), 1);
    let message = |topic, payload: &[u8]| {
        let header = MessageHeader::default();
        Arc::new(Message::copy(topic, b"", payload, header).unwrap())
    };
    let changes = [Change {
        key: (*b"key").into(),
        value: Some((*b"value").into()),
    }];
    let messages = [
        message("a/b", b"one"),
        message("c", b"two"),
        message("a", b"three"),
    ];
    let frame = Frame {
        messages: &messages,
        changes: &changes,
    };
    let appended = store.append(frame).unwrap();
    assert_eq!(appended.first, 1);
    store.wake_at(Committed {
        written: appended.token,
        synced: appended.token,
    });
    store.flush();
    while store.committed().synced < appended.token {
        woken.recv_timeout(Duration::from_secs(30)).unwrap();
    }
    store.read(request(1, u64::MAX));
    let answer = loop {
        if let Some(answer) = store.next_answer() {
            break answer;
        }
        woken.recv_timeout(Duration::from_secs(30)).unwrap();
    };
    let look = |answer: &sterna_broker::ReadAnswer| -> Vec<(u64, String, Vec<u8>)> {
        let each = answer.messages.iter();
        each.map(|(at, message)| (*at, message.topic().to_owned(), message.payload().to_vec()))
            .collect()
    };
    let expected = [
        (1, "a/b".to_owned(), b"one".to_vec()),
        (3, "a".to_owned(), b"three".to_vec()),
    ];
    assert_eq!((answer.reader, answer.next), (7, 4));
    assert_eq!(look(&answer), expected);
    drop(store);
    running.close().unwrap();
    let running = open(folder.path());
    let mut store = ShardStore::new(running.handle(Box::new(|| {})), Arc::default());
    assert_eq!(store.next_position(), 4);
    assert_eq!(look(&store.read_now(request(1, u64::MAX))), expected);
    assert_eq!(look(&store.read_now(request(2, 3))), []);
    let mut records = Vec::new();
    store.load(&mut |key, value| records.push((key.to_vec(), value.to_vec())));
    assert_eq!(records, [(b"key".to_vec(), b"value".to_vec())]);
}

/// Messages that share a frame share its token. Each publication says that one waits for it: its acknowledgement would
/// go out at once otherwise, before anything is written.
#[test]
fn each_publication_that_shares_a_frame_has_its_token() {
    const NOW_MS: u64 = 1_000;
    let settings = Settings {
        minimum_free_bytes: 0,
        ..Settings::default()
    };
    let disk = Arc::new(SimulatedDisk::new(1));
    let engine = Engine::open_with_identity(disk, settings, [7; 16]).unwrap();
    let store = ShardStore::new(engine.handle(Box::new(|| {})), Arc::default());
    let directory = Directory::new(1, Limits::default(), 7);
    let mut broker: Broker<()> = Broker::new(ShardId(0), directory, Box::new(store));
    broker.restore(NOW_MS);
    let request = OpenSession {
        name: SessionName::new(None, "reader"),
        clean_start: false,
        expiry_s: 1_000,
        consumer: ConsumerId(1),
        will: None,
        on_demand: false,
        selector: None,
    };
    let Opened::Ready { session, .. } = broker.open(NOW_MS, request).unwrap() else {
        panic!("it is open");
    };
    let options = SubscribeOptions {
        qos: Qos::AtLeastOnce,
        ..SubscribeOptions::default()
    };
    broker.subscribe(NOW_MS, session, "a", options).unwrap();
    let message = |number: u8| {
        let header = MessageHeader {
            qos: Qos::AtLeastOnce,
            ..MessageHeader::default()
        };
        Message::copy("a", &[], &[number; 20], header).unwrap()
    };
    let mut tokens = Vec::new();
    for number in 0..4 {
        let appends = broker.appends();
        let routed = if number < 2 {
            let message = message(number);
            let origin = None;
            broker.publish(NOW_MS, Publication::new(origin, message))
        } else {
            broker.publish_together(NOW_MS, None, vec![message(number)], &[])
        };
        assert_eq!(broker.appends(), appends + 1);
        assert!(routed.token > broker.committed().written, "{number}");
        tokens.push(routed.token);
    }
    assert_eq!(tokens[0], tokens[3], "the test is of a shared frame");
}

/// A reader that keeps one message of an answer keeps nothing of the others.
#[test]
fn messages_that_are_read_together_share_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let running = open(folder.path());
    let mut handle = running.handle(Box::new(|| {}));
    let mut store = ShardStore::new(running.handle(Box::new(|| {})), Arc::default());
    let header = MessageHeader::default();
    let message = Arc::new(Message::copy("a", b"", &[7; 4_096], header).unwrap());
    let messages = vec![message; 8];
    store
        .append(Frame {
            messages: &messages,
            changes: &[],
        })
        .unwrap();
    store.flush();
    let wanted = request(1, 9);
    let answer = loop {
        let answer = handle.read_now(&Request {
            reader: wanted.reader,
            from: wanted.from,
            to: wanted.to,
            filters: Arc::clone(&wanted.filters),
            most_messages: wanted.most_messages,
            most_bytes: wanted.most_bytes,
        });
        if answer.next == wanted.to {
            break answer;
        }
        std::thread::yield_now();
    };
    assert_eq!(answer.messages.len(), 8);
    let mut contents = answer.messages.iter().map(|stored| &stored.content);
    assert!(contents.all(bytes::Bytes::is_unique));
}
