//! Reads through the index find the same as a walk through all messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use sterna_store::{Draft, Request};

use super::Store;

const TOPICS: [&str; 14] = [
    "a", "a/b", "a/b/c", "a/c", "a-b", "b", "b/a", "b/a/x/y", "", "/", "/a", "$SYS/a", "$x", "é/ü",
];

const FILTERS: [&str; 16] = [
    "#", "+", "a", "a/#", "a/+", "+/b", "+/a/#", "b/a/x/y", "$SYS/#", "$x", "/", "/+", "+/+", "c",
    "é/+", "a/b/#",
];

fn topics() -> impl Strategy<Value = Vec<Vec<(usize, usize)>>> {
    // Mostly the first few topics, so that some filters want many messages and some want few.
    let topic = prop_oneof![6 => 0..2_usize, 1 => 0..TOPICS.len()];
    let frame = prop::collection::vec((topic, 0..120_usize), 0..4);
    prop::collection::vec(frame, 1..150)
}

#[derive(Clone, Debug)]
struct Wish {
    filters: Vec<usize>,
    from: u64,
    to: u64,
    most_messages: usize,
    most_bytes: usize,
}

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let wish = (
        prop::collection::vec(0..FILTERS.len(), 0..4),
        0..300_u64,
        prop_oneof![Just(u64::MAX), 0..300_u64],
        prop_oneof![Just(usize::MAX), 0..20_usize],
        prop_oneof![Just(usize::MAX), 0..2_000_usize],
    )
        .prop_map(|(filters, from, to, most_messages, most_bytes)| Wish {
            filters,
            from,
            to,
            most_messages,
            most_bytes,
        });
    prop::collection::vec(wish, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn reads_equal_a_walk_through_everything(frames in topics(), wishes in wishes(), reopen: bool) {
        let mut store = Store::new();
        let mut all: Vec<(u64, &str, Vec<u8>)> = Vec::new();
        for (number, frame) in frames.iter().enumerate() {
            let mut draft = Draft::default();
            let mut contents = Vec::new();
            for (topic, bytes) in frame {
                let content = vec![number as u8; *bytes];
                draft.message(TOPICS[*topic], |out| out.extend_from_slice(&content)).unwrap();
                contents.push((TOPICS[*topic], content));
            }
            let first = store.handle.append(&draft).unwrap().first;
            all.extend((first..).zip(contents).map(|(at, (topic, content))| (at, topic, content)));
            if number % 5 == 0 {
                store.pass(1);
            }
        }
        store.pass(if frames.len() % 2 == 0 { 20 } else { 2_000 });
        if reopen {
            store = store.reopen();
        }
        let end = all.last().map_or(1, |(at, ..)| at + 1);
        for wish in &wishes {
            let filters: Vec<&str> = wish.filters.iter().map(|index| FILTERS[*index]).collect();
            let wanted = all.iter().filter(|(at, topic, _)| {
                *at >= wish.from
                    && *at < wish.to
                    && filters.iter().any(|filter| sterna_topic::matches(filter, topic))
            });
            let mut wanted = wanted.peekable();
            let mut request = Request {
                reader: 7,
                from: wish.from,
                to: wish.to,
                filters: filters.iter().map(|filter| (*filter).into()).collect(),
                most_messages: wish.most_messages,
                most_bytes: wish.most_bytes,
            };
            let stop = wish.to.min(end);
            // In pieces until the end.
            loop {
                let answer = store.handle.read_now(&request);
                prop_assert_eq!(answer.reader, 7);
                prop_assert!(answer.messages.len() <= wish.most_messages.max(1));
                let bytes: usize = answer
                    .messages
                    .iter()
                    .map(|message| message.topic.len() + message.content.len())
                    .sum();
                prop_assert!(answer.messages.len() <= 1 || bytes <= wish.most_bytes);
                for message in &answer.messages {
                    let (at, topic, content) = wanted.next().unwrap();
                    prop_assert_eq!(message.position, *at);
                    prop_assert_eq!(&*message.topic, *topic);
                    prop_assert_eq!(&message.content, content);
                }
                // Nothing that is wanted was passed over.
                prop_assert!(wanted.peek().is_none_or(|(at, ..)| *at >= answer.next));
                if answer.next >= stop || request.from >= stop {
                    prop_assert_eq!(answer.next, stop.max(request.from));
                    break;
                }
                prop_assert!(answer.next > request.from);
                request.from = answer.next;
            }
            prop_assert!(wanted.next().is_none());
        }
    }
}

#[test]
fn answers_come_to_who_asked_and_wake_him() {
    let mut store = Store::new();
    let woken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    let mut other = store
        .engine
        .handle(Box::new(move || _ = count.fetch_add(1, Ordering::SeqCst)));
    store.append(&[("a", b"1"), ("b", b"2")]).unwrap();
    store.pass(1);
    let request = |reader, filter: &str| Request {
        reader,
        filters: Arc::new([filter.into()]),
        ..super::everything(0)
    };
    other.read(request(1, "a"));
    other.read(request(2, "b"));
    store.handle.read(request(3, "#"));
    assert!(other.next_answer().is_none());
    store.pass(1);
    assert_eq!(woken.load(Ordering::SeqCst), 2);
    let first = other.next_answer().unwrap();
    assert_eq!(
        (first.reader, first.next, &*first.messages[0].content),
        (1, 3, &b"1"[..])
    );
    assert_eq!(other.next_answer().unwrap().reader, 2);
    assert!(other.next_answer().is_none());
    assert_eq!(store.handle.next_answer().unwrap().messages.len(), 2);
}

#[test]
fn nothing_is_read_that_is_not_written() {
    let mut store = Store::new();
    store.append(&[("a", b"1")]).unwrap();
    store.pass(1);
    store.append(&[("a", b"2")]).unwrap();
    let answer = store.handle.read_now(&super::everything(0));
    assert_eq!((answer.messages.len(), answer.next), (1, 2));
    let answer = store.handle.read_now(&super::everything(9));
    assert_eq!((answer.messages.len(), answer.next), (0, 9));
    store.pass(1);
    assert_eq!(store.read(0).len(), 2);
}

/// A process has too many open files for a while. Nothing of what is there is passed over.
#[test]
fn messages_that_cannot_be_read_at_the_moment_are_waited_for() {
    use sterna_store::Settings;
    use sterna_store::disk::{Fault, SimulatedDisk};
    let settings = Settings {
        segment_bytes: 1 << 16,
        ..super::settings()
    };
    let mut store = Store::open(&SimulatedDisk::new(1), &settings);
    for number in 0..1_000_u32 {
        let topic = if number % 100 == 0 { "rare" } else { "often" };
        store.append(&[(topic, &[0; 300])]).unwrap();
        store.pass(1);
    }
    store.pass(3_000);
    for filter in ["rare", "#"] {
        let mut request = Request {
            filters: Arc::new([filter.into()]),
            ..super::everything(0)
        };
        let whole = store.handle.read_now(&request).messages;
        assert_eq!(whole.len(), if filter == "rare" { 10 } else { 1_000 });
        // Files that are open stay so until then.
        store = store.reopen();
        let mut got = Vec::new();
        let mut refused = 0;
        while request.from < 1_001 {
            store.disk.fail(Fault::Open, u32::from(refused % 3 != 2));
            refused += 1;
            assert!(refused < 1_000, "{} of {}", got.len(), whole.len());
            let answer = store.handle.read_now(&request);
            assert!(answer.next >= request.from);
            got.extend(answer.messages);
            request.from = answer.next;
        }
        assert!(refused > 2, "it was refused at least once");
        assert_eq!(got, whole);
    }
}

#[test]
fn a_narrow_filter_reads_what_it_wants_and_little_else() {
    use sterna_store::Settings;
    use sterna_store::disk::SimulatedDisk;
    let settings = Settings {
        segment_bytes: 1 << 20,
        ..super::settings()
    };
    let mut store = Store::open(&SimulatedDisk::new(1), &settings);
    for number in 0..6_000_u32 {
        let topic = format!("device/{}", number % 1_000);
        store.append(&[(&topic, &[0; 600])]).unwrap();
        if number % 200 == 0 {
            store.pass(1);
        }
    }
    store.pass(3_000);
    let before = store.disk.read_bytes();
    let request = Request {
        filters: Arc::new(["device/77".into()]),
        ..super::everything(0)
    };
    let answer = store.handle.read_now(&request);
    assert_eq!(answer.messages.len(), 6);
    let read = store.disk.read_bytes() - before;
    // Six frames of 650 bytes, and an index of about 1,000 topics for each of four segments.
    assert!(read < 6 * 4_096 + 4 * 45_000, "{read}");
}

#[test]
fn a_long_way_is_read_in_pieces() {
    let mut store = Store::new();
    for number in 0..120_u8 {
        // A segment has room for one of them.
        store.append(&[("a", &[number; 3_000])]).unwrap();
        store.pass(1);
    }
    let last = store.append(&[("b", b"the last")]).unwrap().first;
    store.pass(20);
    let mut request = Request {
        filters: Arc::new(["b".into()]),
        ..super::everything(0)
    };
    let mut pieces = 1;
    let found = loop {
        let answer = store.handle.read_now(&request);
        if let Some(found) = answer.messages.first() {
            break found.position;
        }
        assert!(answer.next > request.from && answer.next <= last);
        request.from = answer.next;
        pieces += 1;
    };
    assert_eq!(found, last);
    assert!((3..10).contains(&pieces), "{pieces}");
}
