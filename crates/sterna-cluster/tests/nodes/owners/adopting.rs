//! Sessions that come to a shard of their owner, as sessions that are away: what nodes left that are gone, and what
//! could not be restored in time.

use sterna_broker::SessionName;
use sterna_cluster::owners::{Action, Begin, Key, Mark, Owners, Record, WriteError};

use super::{TERMS, of_alice, process, request_of, with_another_node};

const KEY: Key = [0; 16];

/// Has a node take over what another has left in record 4, and answers the write. Returns its record.
fn taken_over(owners: &mut Owners<u64>, answer: Result<u64, WriteError>) -> Record {
    owners.scanned(30_100, 4, KEY, of_alice(process("other", 2), true));
    let actions = owners.take_actions();
    let [
        Action::Write {
            attempt, record, ..
        },
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
    owners.was_written(30_110, KEY, *attempt, answer);
    record.clone()
}

fn own_mark(owners: &mut Owners<u64>, now_ms: u64) {
    let own = process("own", 1);
    owners
        .mark_passed(now_ms, now_ms, &own, Mark::Here { sent_ms: now_ms })
        .expect("a mark of its time");
    owners.tick(now_ms);
}

/// The mark of a node that is back: it is sure of its sessions for a lease.
fn other_comes_back(owners: &mut Owners<u64>, now_ms: u64) {
    owners
        .mark_passed(now_ms, 49, &process("other", 2), Mark::Here { sent_ms: 7 })
        .expect("a mark of its time");
}

fn adoptions(owners: &mut Owners<u64>) -> usize {
    let actions = owners.take_actions();
    let adopts = |action: &&Action<u64>| matches!(action, Action::Adopt { .. });
    actions.iter().filter(adopts).count()
}

#[test]
fn what_a_node_left_that_is_gone_comes_to_a_shard_at_once() {
    let mut owners = with_another_node();
    let written = taken_over(&mut owners, Ok(50));
    owners.record_passed(30_120, 50, KEY, &written);
    assert_eq!(adoptions(&mut owners), 1);
    owners.was_adopted(30_130, KEY);
    assert_eq!((owners.busy(), owners.held()), (0, 1));
}

/// The shard that is to have it is busy, and a client on another one waits for the session until its time is over.
#[test]
fn who_was_refused_does_not_end_the_session_that_has_come_to_a_shard() {
    let mut owners = with_another_node();
    let written = taken_over(&mut owners, Ok(50));
    owners.record_passed(30_120, 50, KEY, &written);
    assert_eq!(adoptions(&mut owners), 1);
    owners.claim(30_130, KEY, request_of(1, false));
    owners.tick(30_130 + TERMS.claim_timeout_ms);
    let actions = owners.take_actions();
    let refused = |action: &Action<u64>| matches!(action, Action::Settled { result: Err(_), .. });
    assert!(actions.iter().any(refused), "{actions:?}");
    owners.was_adopted(35_140, KEY);
    owners.check(35_140);
    assert_eq!((owners.busy(), owners.held()), (0, 1));
}

/// Its mark may be in the stream already when the record is written, and come by after that.
#[test]
fn who_takes_over_from_a_node_that_is_back_waits_for_its_lease() {
    let mut owners = with_another_node();
    let written = taken_over(&mut owners, Ok(50));
    other_comes_back(&mut owners, 30_115);
    owners.record_passed(30_120, 50, KEY, &written);
    let sure_until_ms = 30_115 + TERMS.lease_ms;
    own_mark(&mut owners, sure_until_ms);
    assert_eq!(adoptions(&mut owners), 0, "the other is sure of it");
    own_mark(&mut owners, sure_until_ms + TERMS.lease_ms / 8);
    assert_eq!(adoptions(&mut owners), 1);
}

#[test]
fn a_node_that_is_back_keeps_what_was_not_taken_over_in_time() {
    let mut owners = with_another_node();
    taken_over(&mut owners, Err(WriteError::Unknown));
    other_comes_back(&mut owners, 30_115);
    own_mark(&mut owners, 30_400);
    let actions = owners.take_actions();
    let read = actions.iter().find_map(|action| match action {
        Action::Read { attempt, .. } => Some(*attempt),
        _ => None,
    });
    let found = Ok(Some((4, of_alice(process("other", 2), true))));
    owners.was_read(30_410, KEY, read.expect("it is looked at again"), found);
    assert_eq!((owners.busy(), owners.held()), (0, 0));
    let actions = owners.take_actions();
    let writes = |action: &Action<u64>| matches!(action, Action::Write { .. });
    assert!(!actions.iter().any(writes), "{actions:?}");
}

/// Answers everything at once, as NATS does, and lets what is written come by.
fn run(owners: &mut Owners<u64>, now_ms: u64, last: &mut (u64, Record)) -> Vec<Action<u64>> {
    let mut all = Vec::new();
    loop {
        let actions = owners.take_actions();
        if actions.is_empty() {
            return all;
        }
        for action in &actions {
            match action {
                Action::Read { key, attempt } => {
                    owners.was_read(now_ms, *key, *attempt, Ok(Some(last.clone())));
                }
                Action::Write {
                    key,
                    attempt,
                    record,
                    ..
                } => {
                    *last = (last.0.max(49) + 1, record.clone());
                    owners.was_written(now_ms, *key, *attempt, Ok(last.0));
                    owners.record_passed(now_ms, last.0, *key, record);
                }
                _ => {}
            }
        }
        all.extend(actions);
    }
}

/// A client comes back to a kept session, which it wants to end with this connection. What is kept cannot be read.
fn not_restored() -> (Owners<u64>, (u64, Record)) {
    let mut owners = with_another_node();
    let mut last = (4, of_alice(process("other", 2), true));
    let mut request = request_of(1, false);
    request.outlives = false;
    request.will = Some(b"will".as_slice().into());
    owners.claim(30_100, KEY, request);
    let actions = run(&mut owners, 30_100, &mut last);
    assert!(actions.iter().any(|action| matches!(
        action,
        Action::Settled {
            result: Ok(Begin::Kept(_)),
            ..
        }
    )));
    let epoch = owners.epoch(KEY).expect("it is this node's");
    owners.put_aside(
        30_200,
        KEY,
        epoch,
        SessionName::new(Some("alice"), "client"),
    );
    (owners, last)
}

/// Its client was refused. Otherwise it would end with this node.
#[test]
fn a_session_that_was_not_restored_is_kept_as_before() {
    let (mut owners, mut last) = not_restored();
    run(&mut owners, 30_200, &mut last);
    assert!(last.1.is_kept && !last.1.is_over, "{:?}", last.1);
}

/// The session would be at a shard, and nobody's by its record.
#[test]
fn who_was_let_in_and_went_does_not_end_the_session_that_comes_to_a_shard() {
    let (mut owners, mut last) = not_restored();
    // NATS does not answer, and the client comes again.
    for action in owners.take_actions() {
        if let Action::Write { attempt, .. } = action {
            owners.was_written(30_300, KEY, attempt, Err(WriteError::Unknown));
        }
    }
    let mut request = request_of(2, false);
    request.outlives = false;
    owners.claim(40_000, KEY, request);
    owners.publish_will(
        40_010,
        KEY,
        SessionName::new(Some("alice"), "client"),
        b"will".as_slice().into(),
    );
    owners.release(40_010, KEY, SessionName::new(Some("alice"), "client"));
    let actions = owners.take_actions();
    let publishes = |action: &&Action<u64>| matches!(action, Action::Publish { .. });
    assert_eq!(actions.iter().filter(publishes).count(), 1);
    own_mark(&mut owners, 40_500);
    let actions = run(&mut owners, 40_500, &mut last);
    let adopts = |action: &Action<u64>| matches!(action, Action::Adopt { .. });
    assert!(actions.iter().any(adopts), "{actions:?}");
    owners.was_adopted(40_510, KEY);
    run(&mut owners, 40_510, &mut last);
    assert_eq!((owners.busy(), owners.held()), (0, 1));
    assert!(!last.1.is_over, "{:?}", last.1);
}

/// Another node has written again the record by which it took a session, so that this one never sees the first.
#[test]
fn a_mark_behind_missing_records_makes_nobody_sure_before_the_rest_has_come_by() {
    let own = process("own", 1);
    let mut owners = with_another_node();
    let mark = |owners: &mut Owners<u64>, now_ms, sequence, sent_ms| {
        owners
            .mark_passed(now_ms, sequence, &own, Mark::Here { sent_ms })
            .expect("a mark of its time");
    };
    mark(&mut owners, 31_000, 41, 31_000);
    // It is cut off, and reads on. Position 42 is missing.
    mark(&mut owners, 34_000, 43, 33_000);
    assert!(!owners.is_sure(34_000));
    owners.record_passed(34_001, 44, KEY, &of_alice(process("other", 2), true));
    mark(&mut owners, 34_010, 45, 33_500);
    assert!(!owners.is_sure(34_010), "it was written before");
    mark(&mut owners, 34_400, 46, 34_375);
    assert!(owners.is_sure(34_400));
    // Another gap at each mark: what was there when the mark before came by is read by then.
    mark(&mut owners, 34_800, 48, 34_750);
    mark(&mut owners, 35_200, 50, 35_150);
    assert!(owners.is_sure(34_750 + TERMS.lease_ms - 1));
    assert!(!owners.is_sure(34_750 + TERMS.lease_ms));
}
