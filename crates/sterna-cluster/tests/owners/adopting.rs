//! Sessions that come to a shard of their owner, as sessions that are away: what nodes left that are gone.

use sterna_cluster::owners::{Action, Key, Mark, Owners, Record, WriteError};

use super::{TERMS, of_alice, process, with_another_node};

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
    owners.mark_passed(now_ms, now_ms, &own, Mark::Here { sent_ms: now_ms });
    owners.tick(now_ms);
}

/// The mark of a node that is back: it is sure of its sessions for a lease.
fn other_comes_back(owners: &mut Owners<u64>, now_ms: u64) {
    owners.mark_passed(now_ms, 49, &process("other", 2), Mark::Here { sent_ms: 7 });
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
