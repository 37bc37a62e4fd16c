//! Batches and their records.

use std::sync::Arc;

use sterna_broker::{MessageHeader, NodeSet, Origin, Qos, Recipients, messages_of};

use super::*;

fn message(number: usize) -> Arc<Message> {
    let header = MessageHeader {
        qos: Qos::from_u8((number % 3) as u8).expect("a level"),
        retain: number.is_multiple_of(2),
        published_ms: 1_790_000_000_000,
        expires_at_ms: Some(1_790_000_060_000),
    };
    let payload = vec![number as u8; number * 97];
    let message = Message::copy(&format!("a/{number}"), &[1, 1], &payload, header);
    Arc::new(message.expect("it fits").with_origin(Origin(7)))
}

type Runs = Vec<(u16, Vec<Arc<Message>>)>;

fn sample() -> (Runs, Bytes) {
    let runs: Runs = vec![
        (0, (0..5).map(message).collect()),
        (300, vec![]),
        (7, vec![message(40)]),
    ];
    let encoded: Vec<EncodedRun> = (runs.iter())
        .map(|(shard, messages)| {
            let mut run = EncodedRun::new(*shard);
            for message in messages {
                run.push(message, false);
            }
            run
        })
        .collect();
    let batch = batch(1, &encoded);
    assert!(
        batch.len() <= encoded.iter().map(EncodedRun::bytes).sum::<usize>() + 1,
        "bytes are foreseen"
    );
    (runs, batch)
}

#[test]
fn versions_are_stated_and_understood() {
    for text in ["1", "1-3", "254-255"] {
        assert_eq!(
            Versions::parse(text).map(|one| one.to_string()).as_deref(),
            Some(text)
        );
    }
    for text in ["", "0", "3-1", "-", "1-", "1-x", "256"] {
        assert_eq!(Versions::parse(text), None, "{text}");
    }
    let of = |text| Versions::parse(text).expect("versions");
    assert_eq!(of("1-3").common(of("2-9")), Some(of("2-3")));
    assert_eq!(of("1-3").common(of("4-9")), None);
}

#[test]
fn a_batch_comes_back_whole() {
    let (runs, batch) = sample();
    let read = read(READS, &batch).expect("it is one");
    assert_eq!(read.len(), runs.len());
    for (run, (shard, messages)) in read.iter().zip(&runs) {
        assert_eq!(run.shard, *shard);
        assert_eq!(run.messages.len(), messages.len());
        for (one, other) in run.messages.iter().zip(messages) {
            assert_eq!(one.topic(), other.topic());
            assert_eq!(one.payload(), other.payload());
            assert_eq!(one.properties(), other.properties());
            assert_eq!(one.origin(), other.origin());
            assert_eq!((one.qos(), one.retain()), (other.qos(), other.retain()));
            assert_eq!(one.expires_at_ms(), other.expires_at_ms());
        }
    }
}

/// Messages of a turn, and the same as a run of a shard.
fn turn(shard: u16, numbers: &[usize], may_be_brief: bool) -> (Encoded, EncodedRun) {
    let (mut turn, mut run) = (Encoded::default(), EncodedRun::new(shard));
    for number in numbers {
        let message = message(*number);
        let mut recipients = Recipients {
            acknowledged: NodeSet::EMPTY,
            at_most_once: NodeSet::EMPTY,
        };
        recipients.at_most_once.insert(3);
        turn.push(message.parts(), recipients, 1, may_be_brief);
        run.push(&message, may_be_brief);
    }
    (turn, run)
}

#[test]
fn a_turn_becomes_the_same_batch_without_a_copy() {
    for may_be_brief in [false, true] {
        for shard in [0, 127, 128, 300, u16::MAX] {
            for numbers in [&[1][..], &[0, 1, 2], &[1, 1], &[170, 3], &[5_000, 20_000]] {
                let (turn, run) = turn(shard, numbers, may_be_brief);
                assert!(bytes_of_turn(&turn) > batch(1, [&run]).len());
                let (_, records) = turn.parts().next().expect("it is one");
                let records = records.as_ptr_range();
                let payload = batch_of_turn(1, shard, turn);
                assert_eq!(payload, batch(1, [&run]), "{may_be_brief} {shard}");
                assert_eq!(payload.as_ptr_range().end, records.end, "a copy");
                let sections = sections(READS, &payload).expect("it is one");
                assert_eq!(sections.len(), 1);
                assert_eq!(sections[0].count, numbers.len());
            }
        }
    }
}

#[test]
fn a_run_takes_records_as_a_whole_or_not_at_all() {
    let (_, run) = turn(4, &[1, 2], false);
    let mut other = EncodedRun::new(4);
    let whole = run.bytes();
    let records = run.as_records();
    let bytes = records.bytes.len();
    assert!(!other.push_all(records, whole - 1));
    assert_eq!((other.messages(), other.as_records().bytes), (0, &[][..]));
    assert!(other.push_all(records, whole));
    assert_eq!(
        (other.messages(), other.as_records().bytes),
        (2, records.bytes)
    );
    assert!(!other.push_all(records, whole + bytes - 1));
    assert!(other.push_all(records, whole + bytes));
    assert_eq!(other.messages(), 4);
}

#[test]
fn sections_have_records_as_they_are() {
    let (runs, batch) = sample();
    let sections = sections(READS, &batch).expect("it is one");
    assert_eq!(sections.len(), runs.len());
    for (section, (shard, messages)) in sections.into_iter().zip(&runs) {
        assert_eq!((section.shard, section.count), (*shard, messages.len()));
        let part = &batch[section.records];
        assert_eq!(records(part).count(), messages.len());
        let found: Vec<_> = messages_of(part).collect::<Result<_, _>>().expect("valid");
        let topics = found.iter().map(Message::topic);
        assert!(topics.eq(messages.iter().map(|message| message.topic())));
    }
}

#[test]
fn records_are_not_looked_into_before_they_are_read() {
    let mut run = EncodedRun::new(4);
    run.push_record(b"no message");
    let batch = batch(1, [&run]);
    assert_eq!(sections(READS, &batch).map(|all| all.len()), Ok(1));
    assert_eq!(read(READS, &batch).unwrap_err(), WireError::Malformed(4));
}

#[test]
fn leading_records_end_where_no_more_is_taken() {
    let mut run = EncodedRun::new(4);
    for record in [&[1_u8][..], &[2, 2], &[3, 3, 3]] {
        run.push_record(record);
    }
    let all = run.as_records().bytes;
    assert_eq!(leading(all, false, |_, count| count <= 2), (5, 2));
    assert_eq!(leading(all, false, |end, _| end <= 4), (2, 1));
    assert_eq!(leading(all, false, |_, _| true), (9, 3));
    assert_eq!(leading(all, false, |_, _| false), (0, 0));
    assert_eq!(leading(&[], false, |_, _| true), (0, 0));
    assert_eq!(leading(&[1, 1, 9], false, |_, _| true), (3, 2), "no record");
    assert_eq!(records(&[1, 1, 9]).count(), 1);
}

/// Messages of one publisher to one topic, and then to another.
fn alike(count: usize) -> Vec<Message> {
    let one = |number: usize| {
        let header = MessageHeader {
            published_ms: 1_790_000_000_000 + number as u64,
            ..MessageHeader::default()
        };
        let topic = if number < count {
            "plant/a/temperature"
        } else {
            "b"
        };
        let message = Message::copy(topic, &[], &[number as u8; 20], header);
        message.expect("it fits").with_origin(Origin(7))
    };
    (0..2 * count).map(one).collect()
}

#[test]
fn brief_records_stay_behind_their_whole_one() {
    let messages = alike(100);
    let (mut whole, mut brief) = (EncodedRun::new(1), EncodedRun::new(1));
    for message in &messages {
        whole.push(message, false);
        brief.push(message, true);
    }
    let saved = whole.bytes() - brief.bytes();
    assert!(saved > 200 * 20, "{saved} bytes less");
    let same = |one: &Message, other: &Message| {
        (one.topic(), one.payload(), one.published_ms())
            == (other.topic(), other.payload(), other.published_ms())
    };
    let is_all = |found: &[Message]| {
        found.len() == messages.len() && found.iter().zip(&messages).all(|(a, b)| same(a, b))
    };
    // However they are cut, each piece is read by itself.
    for most in [1, 700, 1_000, 100_000] {
        let (mut rest, mut pieces) = (brief.as_records(), Vec::new());
        while !rest.bytes.is_empty() {
            let mut piece = EncodedRun::new(1);
            rest = piece.push_fitting(rest, most);
            pieces.push(piece);
        }
        assert_eq!(pieces.iter().map(EncodedRun::messages).sum::<usize>(), 200);
        let found: Vec<Message> = (pieces.iter())
            .flat_map(|piece| read(READS, &batch(1, [piece])).expect("it is one"))
            .flat_map(|run| run.messages)
            .collect();
        assert!(is_all(&found), "{most}");
    }
    // A run goes on behind records that it took.
    let mut joined = EncodedRun::new(1);
    assert!(joined.push_all(whole.as_records(), usize::MAX));
    for message in &messages {
        joined.push(message, true);
    }
    let found: Vec<_> = messages_of(joined.as_records().bytes)
        .collect::<Result<_, _>>()
        .expect("valid");
    assert!(is_all(&found[..200]) && is_all(&found[200..]));
}

#[test]
fn a_brief_record_without_a_whole_one_is_refused() {
    let messages = alike(2);
    let mut run = EncodedRun::new(1);
    run.push(&messages[0], true);
    let first = run.as_records().bytes.len();
    run.push(&messages[1], true);
    let mut alone = EncodedRun::new(1);
    let brief = Records {
        bytes: &run.as_records().bytes[first..],
        count: 1,
    };
    assert!(alone.push_all(brief, usize::MAX));
    assert!(read(READS, &batch(1, [&run])).is_ok());
    assert_eq!(
        read(READS, &batch(1, [&alone])).unwrap_err(),
        WireError::Malformed(4)
    );
    // Neither is it the first of a run behind another.
    assert!(read(READS, &batch(1, [&run, &alone])).is_err());
}

#[test]
fn letters_come_back_and_records_of_another_kind_are_refused() {
    let mut letters = EncodedRun::of(4, Kind::Letters);
    letters.push_record(b"one");
    letters.push_record(b"");
    let batch = batch(1, [&letters]);
    let runs = read(READS, &batch).expect("it is one");
    assert_eq!((runs[0].shard, runs[0].messages.len()), (4, 0));
    assert_eq!(runs[0].letters, [b"one".to_vec(), Vec::new()]);
    let mut other = batch.to_vec();
    other[2] = 2;
    assert_eq!(read(READS, &other).unwrap_err(), WireError::Malformed(1));
}

#[test]
fn a_batch_is_read_in_the_versions_that_its_reader_reads_alone() {
    let (_, run) = turn(4, &[1, 2], true);
    let reads = Versions::parse("2-3").expect("versions");
    for found in 0..=5 {
        let batch = batch(found, [&run]);
        assert_eq!(batch[0], found);
        let expected = if reads.contains(found) {
            Ok(1)
        } else {
            Err(WireError::Version { found, reads })
        };
        assert_eq!(read(reads, &batch).map(|runs| runs.len()), expected);
        assert_eq!(sections(reads, &batch).map(|all| all.len()), expected);
    }
}

#[test]
fn a_message_costs_what_is_foreseen() {
    for number in [0, 1, 40, 5_000] {
        let message = message(number);
        let mut run = EncodedRun::new(u16::MAX);
        run.push(&message, false);
        let foreseen = message.body_bytes() + RECORD_OVERHEAD_BYTES + BATCH_OVERHEAD_BYTES;
        assert!(batch(1, [&run]).len() <= foreseen);
    }
}

#[test]
fn what_is_cut_off_or_of_another_version_is_refused() {
    let (_, batch) = sample();
    // Where a run ends a batch may end.
    let mut ends = 0;
    for end in 1..batch.len() {
        match read(READS, &batch[..end]) {
            Ok(runs) => {
                assert!(runs.len() < 3);
                ends += 1;
            }
            Err(WireError::Malformed(at)) => assert!(at <= end),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(ends, 3, "before and between the runs");
    assert_eq!(read(READS, &[]).unwrap_err(), WireError::Malformed(0));
    let mut newer = batch.to_vec();
    newer[0] = 9;
    let why = read(READS, &newer).unwrap_err().to_string();
    assert!(
        why.contains("version 9") && why.contains("reads 1"),
        "{why}"
    );
}

#[test]
fn no_bytes_make_it_panic_or_take_much_memory() {
    let (_, batch) = sample();
    for at in 1..batch.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = batch.to_vec();
            bytes[at] = value;
            let _ = read(READS, &bytes);
        }
    }
    let mut endless = vec![READS.highest];
    endless.extend([0xff; 30]);
    assert!(read(READS, &endless).is_err());
}
