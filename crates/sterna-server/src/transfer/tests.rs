use std::io::Cursor;
use std::sync::Arc;

use proptest::prelude::*;
use sterna_broker::{
    Broker, Close, ConsumerId, Directory, Limits, Message, MessageHeader, OpenSession, Opened,
    Outcome, Publication, Publisher, Qos, ReadRequest, SessionKey, SessionName, ShardId,
    Store as _, SubscribeOptions, Will, WillFate, key_of_node,
};
use sterna_store::MemoryStore;

use super::*;

const NOW_MS: u64 = 1_800_000_000_000;
const CLIENTS: [&str; 3] = ["ann", "$http/bob", "eve"];
const FILTERS: [&str; 5] = ["a/b", "a/#", "+/b", "$share/g/a/#", "$share/h/c"];
const TOPICS: [&str; 3] = ["a/b", "c", "a/x/y"];

/// A step of a broker with a store.
#[derive(Clone, Debug)]
enum Step {
    Open {
        client: usize,
        has_will: bool,
    },
    Close(usize),
    Subscribe {
        client: usize,
        filter: usize,
    },
    Publish {
        topic: usize,
        qos: u8,
        retain: bool,
        bytes: usize,
    },
    Receive {
        client: usize,
        settles: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 0..CLIENTS.len();
    let step = prop_oneof![
        (client(), any::<bool>()).prop_map(|(client, has_will)| Step::Open { client, has_will }),
        client().prop_map(Step::Close),
        (client(), 0..FILTERS.len())
            .prop_map(|(client, filter)| Step::Subscribe { client, filter }),
        (0..TOPICS.len(), 0..3_u8, any::<bool>(), 0..40_usize).prop_map(
            |(topic, qos, retain, bytes)| Step::Publish {
                topic,
                qos,
                retain,
                bytes
            }
        ),
        (client(), any::<bool>()).prop_map(|(client, settles)| Step::Receive { client, settles }),
    ];
    proptest::collection::vec(step, 1..80)
}

/// A broker on a store in memory.
struct World {
    store: MemoryStore,
    broker: Broker<()>,
    sessions: [Option<SessionKey>; CLIENTS.len()],
}

fn message(topic: &str, qos: Qos, retain: bool, bytes: usize) -> Message {
    let header = MessageHeader {
        qos,
        retain,
        published_ms: NOW_MS,
        ..MessageHeader::default()
    };
    Message::copy(topic, &[], &vec![7; bytes], header).expect("it fits")
}

impl World {
    fn new() -> Self {
        let store = MemoryStore::new();
        let directory = Directory::new(1, Limits::default(), 7);
        let mut broker = Broker::new(ShardId(0), directory, Box::new(store.clone()));
        broker.restore(NOW_MS);
        Self {
            store,
            broker,
            sessions: [None; CLIENTS.len()],
        }
    }

    fn play(&mut self, step: &Step) {
        let broker = &mut self.broker;
        match *step {
            Step::Open { client, has_will } => {
                let will = has_will.then(|| Will {
                    message: message("gone", Qos::AtLeastOnce, false, 5),
                    delay_s: 9,
                    expiry_s: None,
                    is_given: false,
                    is_unproved: false,
                });
                let opened = broker.open(
                    NOW_MS,
                    OpenSession {
                        name: SessionName::new((client == 0).then_some("user"), CLIENTS[client]),
                        clean_start: false,
                        expiry_s: 3_600,
                        consumer: ConsumerId(client as u64 + 1),
                        will,
                        on_demand: false,
                        selector: None,
                    },
                );
                if let Ok(Opened::Ready { session, .. }) = opened {
                    self.sessions[client] = Some(session);
                }
            }
            Step::Close(client) => {
                if let Some(session) = self.sessions[client].take() {
                    let close = Close {
                        will: WillFate::Publish,
                        ..Close::NORMAL
                    };
                    broker.close(NOW_MS, session, close);
                }
            }
            Step::Subscribe { client, filter } => {
                if let Some(session) = self.sessions[client] {
                    let options = SubscribeOptions {
                        qos: Qos::ExactlyOnce,
                        ..SubscribeOptions::default()
                    };
                    let subscribed = broker.subscribe(NOW_MS, session, FILTERS[filter], options);
                    subscribed.expect("a valid filter");
                }
            }
            Step::Publish {
                topic,
                qos,
                retain,
                bytes,
            } => {
                let qos = Qos::from_u8(qos).expect("a quality of service");
                let message = message(TOPICS[topic], qos, retain, bytes);
                // A cluster does not keep whose a retained message is.
                let publication = Publication {
                    publisher: Some(Publisher::default()),
                    ..Publication::new(None, message)
                };
                broker.publish(NOW_MS, publication);
            }
            Step::Receive { client, settles } => {
                if let Some(session) = self.sessions[client]
                    && let Some(delivery) = broker.next_delivery(NOW_MS, session)
                    && delivery.tag != 0
                    && settles
                {
                    broker.settle(NOW_MS, session, delivery.tag, Outcome::Accepted);
                }
            }
        }
    }

    /// All of its store.
    fn dump(&mut self) -> (Records, Vec<(u64, Arc<Message>)>, u64) {
        self.broker.write_cursors();
        let mut records = Records::new();
        self.store.load(&mut |key, value| {
            records.insert(key.into(), value.into());
        });
        let next = self.store.next_position();
        let read = self.store.read_now(ReadRequest {
            reader: 0,
            from: 1,
            to: next,
            filters: [Box::from("#")].into(),
            most_messages: usize::MAX,
            most_bytes: usize::MAX,
        });
        (records, read.messages, next)
    }
}

fn lines(records: &Records, messages: &[(u64, Arc<Message>)], next: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = LineWriter::begin(&mut out, next).expect("memory");
    for (key, value) in records {
        writer.record(key, value).expect("memory");
    }
    for (position, message) in messages {
        let mut content = Vec::new();
        message.encode(&mut content);
        writer
            .message(*position, message.topic(), &content)
            .expect("memory");
    }
    writer.finish().expect("memory");
    out
}

fn read_lines(lines: &[u8]) -> Result<Import, String> {
    read(&mut Cursor::new(lines), 1 << 20, NOW_MS / 1_000)
}

/// The cluster that an import makes, as an export reads it.
fn as_content(import: Import) -> Content {
    let mut content = Content::default();
    content.sessions = import.sessions;
    content.retained = import.retained;
    content.requests = (import.requests.into_iter())
        .map(|(key, value, _)| (key, value))
        .collect();
    content.next_position = import.next_position;
    content
}

/// The records of a store as they are when they have been in a cluster.
fn as_carried(records: &Records) -> Records {
    let carried = records.iter().filter_map(|(key, value)| {
        let mut value = value.clone();
        match record_of(key).expect("a record of a broker") {
            RecordOf::Node(_) | RecordOf::Judged => return None,
            // Members may have been sent what has come since.
            RecordOf::Group(_) => value[0] |= 2,
            _ => {}
        }
        Some((key.clone(), value))
    });
    carried.collect()
}

proptest! {
    #[test]
    fn what_a_store_has_comes_back_from_a_cluster(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.play(step);
        }
        let (records, messages, next) = world.dump();
        let export = lines(&records, &messages, next);
        let import = read_lines(&export).expect("an export");
        prop_assert_eq!(import.done.left.len(), 0);
        prop_assert_eq!(import.done.messages, messages.len() as u64);
        let mut done = Transferred::default();
        let back = records_of(&mut as_content(import), &mut done);
        prop_assert_eq!(&back, &as_carried(&records));
        // And once more: nothing changes any more.
        let again = read_lines(&lines(&back, &messages, next)).expect("an export");
        let again = records_of(&mut as_content(again), &mut Transferred::default());
        prop_assert_eq!(again, back);
    }

    #[test]
    fn no_byte_of_an_export_may_be_another(at in 0..10_000_usize, bit in 0..8_u8) {
        let mut world = World::new();
        for step in [
            Step::Open { client: 0, has_will: true },
            Step::Subscribe { client: 0, filter: 1 },
            Step::Publish { topic: 0, qos: 2, retain: true, bytes: 30 },
        ] {
            world.play(&step);
        }
        let (records, messages, next) = world.dump();
        let mut export = lines(&records, &messages, next);
        let at = at % export.len();
        export[at] ^= 1 << bit;
        let why = read_lines(&export).expect_err("it was changed");
        prop_assert!(why.starts_with("line "), "{}", why);
    }
}

#[test]
fn an_export_that_is_cut_off_or_of_another_form_is_named_with_its_line() {
    let mut world = World::new();
    world.play(&Step::Open {
        client: 0,
        has_will: false,
    });
    let (records, messages, next) = world.dump();
    let whole = lines(&records, &messages, next);
    read_lines(&whole).expect("an export");
    // The end of the last line says nothing.
    for end in 0..whole.len() - 1 {
        let why = read_lines(&whole[..end]).expect_err("cut off");
        assert!(why.starts_with("line "), "{end}: {why}");
    }
    let text = String::from_utf8(whole).expect("JSON");
    let first = text.lines().next().expect("a line");
    let refused = [
        (
            text.replacen("\"store\":1", "\"store\":2", 1),
            "line 1: exports of form 2 are not known",
        ),
        (format!("{text}{first}\n"), "the export ends before"),
        (
            text.replacen('\n', &format!("\n{first}\n"), 1),
            "line 2: a second first line",
        ),
        ("{}\n".to_owned(), "line 1: neither the first line"),
        (
            text.replacen(
                &format!("\"next_position\":{next}"),
                "\"next_position\":18446744073709551615",
                1,
            ),
            "line 1: next_position is 18446744073709551615",
        ),
    ];
    for (text, said) in refused {
        let why = read_lines(text.as_bytes()).expect_err(said);
        assert!(why.contains(said), "{why}");
    }
    let foreign: Records = [(Box::from(&b"?"[..]), Box::default())].into();
    let why = read_lines(&lines(&foreign, &[], 1)).expect_err("no record");
    assert_eq!(why, "line 2: no record of a broker");
}

#[test]
fn what_is_too_large_for_the_cluster_is_named_before_anything_is_written() {
    let large = Arc::new(message("big", Qos::AtLeastOnce, false, 2_000));
    let export = lines(&Records::new(), &[(1, large)], 2);
    let why = read(&mut Cursor::new(&export), 1_000, 0).expect_err("too large");
    assert!(
        why.starts_with("line 2: a message on big has ") && why.contains("NATS takes 1000"),
        "{why}"
    );
}

#[test]
fn what_a_cluster_does_not_keep_is_counted_and_named() {
    let mut records = Records::new();
    let mut until = vec![0; 16];
    until.extend_from_slice(&(NOW_MS + 5_000).to_be_bytes());
    until.extend_from_slice(&204_u16.to_be_bytes());
    let mut over = until.clone();
    over[16..24].copy_from_slice(&NOW_MS.to_be_bytes());
    for (key, value) in [
        (&b"t"[..], vec![1]),
        (b"b1", vec![1]),
        (b"b2", vec![1]),
        (b"ctopic", vec![1]),
        (b"k0123456789abcdef", until.clone()),
        (b"k1123456789abcdef", over),
        (b"k2", vec![1]),
    ] {
        records.insert(key_of_node(key), value.into());
    }
    let state = retained_record(&message("$SYS/x", Qos::AtMostOnce, true, 3));
    records.insert(key_of_retained("$SYS/x"), state.into());
    records.insert(
        key_of_door(&SessionName::new(None, "x"), b"k"),
        Box::default(),
    );
    let import = read_lines(&lines(&records, &[], 1)).expect("an export");
    let left: BTreeMap<&str, u64> = (import.done.left.iter())
        .map(|(what, count)| (&**what, *count))
        .collect();
    let expected = [
        ("bans", 2),
        ("keys of requests that are not valid", 1),
        ("retained messages of topics that begin with $", 1),
        ("sessions whose records are not valid", 1),
        ("topics that were created over HTTP", 1),
    ];
    assert_eq!(left, expected.into());
    let key = key_of_request(b"k0123456789abcdef");
    let until_s = NOW_MS / 1_000 + 5;
    assert_eq!(import.requests, [(key, until.into(), until_s)]);
}

#[test]
fn ids_of_http_name_nothing_that_they_did_not_name_before() {
    let name = SessionName::new(Some("ann"), "$http/x");
    let key = key_of_door(&name, IDS_KEY);
    let value = |records: &Records| u64::from_be_bytes((*records[&key]).try_into().expect("8"));
    let mut records: Records = [(key.clone(), 700_u64.to_be_bytes().into())].into();
    // From a store: no position has an id.
    set_ids(&name, &mut records, |_| NO_PLACE);
    assert_eq!(value(&records), NO_PLACE);
    // To a store: above all ids that positions had.
    let mut content = Content::default();
    content.next_position = 5_000;
    for (first, given) in [(4_000_u64, 1_001), (NO_PLACE, 1), (0, 5_001)] {
        records.insert(key.clone(), first.to_be_bytes().into());
        let session = CarriedSession {
            records: records.clone(),
            ..CarriedSession::default()
        };
        content.sessions = vec![(name.clone(), session)];
        let all = records_of(&mut content, &mut Transferred::default());
        assert_eq!(value(&all), given, "{first}");
    }
    // Another session's record of that key is not one of ids.
    let name = SessionName::new(Some("ann"), "x");
    let mut others: Records = [(key_of_door(&name, IDS_KEY), Box::from(&[0; 8][..]))].into();
    let before = others.clone();
    set_ids(&name, &mut others, |_| NO_PLACE);
    assert_eq!(others, before);
}
