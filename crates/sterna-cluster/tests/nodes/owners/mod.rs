//! One owner per session at a time, in virtual time: nodes, clients that come to any of them, and a model of
//! JetStream between them. From a seed come delays, answers that are lost, nodes that stand still, are cut off
//! or die, and clocks that run differently.
//!
//! `STERNA_SEEDS` says which seeds are played (`seeds/mod.rs` of the broker's tests).

mod adopting;
mod refusing;
mod world;

use sterna_broker::SessionName;
use sterna_cluster::owners::{
    Action, Begin, Key, Mark, Owners, Process, Record, Refusal, Request, Terms, WriteError,
};
use world::{Losses, World, play};

#[test]
fn a_session_has_one_owner_at_a_time_and_its_will_is_published_once() {
    crate::seeds::play("the owners' model", 0..150, |seed| {
        let found = play(seed, true, Losses::None);
        assert_eq!(found, None, "seed {seed}");
    });
}

/// NATS loses the records of all sessions at times, and each node writes its own again.
#[test]
fn a_session_has_one_owner_at_a_time_where_its_record_is_lost() {
    crate::seeds::play("the owners' model with losses", 0..150, |seed| {
        let found = play(seed, true, Losses::Some);
        assert_eq!(found, None, "seed {seed}");
    });
}

/// What cannot be restored is its owner's as a session that is away.
#[test]
fn a_session_that_cannot_be_restored_is_not_forgotten() {
    crate::seeds::play("the owners' model without some records", 0..150, |seed| {
        let found = play(seed, true, Losses::Unrestored);
        assert_eq!(found, None, "seed {seed}");
    });
}

/// NATS brings back records of processes that are gone, after the ends of their sessions were removed.
#[test]
fn what_a_process_left_long_ago_does_not_come_again() {
    crate::seeds::play("the owners' model with records of old", 0..80, |seed| {
        let found = play(seed, true, Losses::Returned);
        assert_eq!(found, None, "seed {seed}");
    });
}

/// The same where nodes do not know the floors of records: somebody must notice.
#[test]
fn without_floors_a_will_of_old_is_found() {
    let found = (0..40)
        .filter(|&seed| play(seed, true, Losses::ReturnedUnnoticed).is_some())
        .count();
    assert!(found > 1, "only {found} of 40 seeds have found one");
}

/// The same where nodes do not notice: somebody must.
#[test]
fn who_goes_on_without_records_is_found() {
    let found = (0..40)
        .filter(|&seed| play(seed, true, Losses::Unnoticed).is_some())
        .count();
    assert!(found > 1, "only {found} of 40 seeds have found it");
}

#[test]
fn who_comes_while_records_are_lost_waits_for_who_may_be_sure_of_them() {
    let mut world = World::calm(5);
    world.losses_are_noticed();
    world.run_for(5_000);
    world.connect(0, 7, true);
    world.run_for(1_000);
    // The first node cannot hear of it.
    world.cut(0);
    world.lose();
    world.run_for(1_000);
    world.connect(1, 7, true);
    world.run_for(100);
    assert_ne!(world.owners_of(7), [1], "the first may be sure of it");
    world.run_for(3_000);
    world.connect(1, 7, true);
    world.run_for(100);
    assert_eq!(world.owners_of(7), [1]);
    world.mend(0);
    world.run_for(5_000);
    assert_eq!(world.owners_of(7), [1], "whoever comes later stays");
    assert_eq!(world.settled(), None);
}

#[test]
fn sessions_go_on_when_nats_has_lost_everything() {
    let mut world = World::calm(6);
    world.losses_are_noticed();
    world.run_for(5_000);
    for client in 0..6 {
        world.connect(client as usize % 3, client, true);
    }
    world.run_for(1_000);
    world.lose();
    world.run_for(4_000);
    for client in 0..6 {
        assert_eq!(world.owners_of(client), [client as usize % 3]);
    }
    assert_eq!(world.settled(), None);
}

/// Silence counts from when a node hears again.
#[test]
fn nobody_is_given_up_because_nats_was_away() {
    let mut world = World::calm(7);
    world.run_for(5_000);
    for node in 0..3 {
        world.connect(node, node as u32, true);
    }
    world.run_for(1_000);
    for node in 0..3 {
        world.cut(node);
    }
    world.run_for(30_000);
    for node in [2, 0, 1] {
        world.mend(node);
        world.run_for(700);
    }
    world.run_for(5_000);
    for node in 0..3 {
        assert_eq!(world.owners_of(node as u32), [node]);
    }
    assert_eq!(world.settled(), None);
}

/// The same world where owners go on after their lease: somebody must notice.
#[test]
fn without_the_fence_two_owners_are_found() {
    let found = (0..40)
        .filter(|&seed| play(seed, false, Losses::None).is_some())
        .count();
    assert!(found > 1, "only {found} of 40 seeds have found two owners");
}

#[test]
fn a_client_that_comes_to_another_node_ends_its_earlier_connection() {
    let mut world = World::calm(1);
    world.run_for(5_000);
    world.connect(0, 7, true);
    world.run_for(1_000);
    assert_eq!(world.owners_of(7), [0]);
    world.connect(1, 7, true);
    world.run_for(100);
    assert_eq!(world.owners_of(7), [1], "without waiting for a lease");
    assert_eq!(world.check(), None);
}

/// The word of the earlier owner may come before the new one's own record does.
#[test]
fn nobody_waits_for_a_lease_whose_owner_has_answered() {
    for seed in 0..200 {
        let mut world = World::calm(seed);
        world.run_for(3_000);
        for (node, client) in [(0, 7), (1, 7), (2, 7), (0, 7)] {
            world.connect(node, client, true);
            world.run_for(50);
            assert_eq!(world.owners_of(client), [node], "seed {seed}");
        }
    }
}

#[test]
fn a_client_of_a_node_that_died_waits_for_its_lease_and_no_longer() {
    let mut world = World::calm(2);
    world.run_for(5_000);
    world.connect(0, 7, true);
    world.run_for(1_000);
    world.kill(0);
    world.connect(1, 7, true);
    world.run_for(100);
    assert!(world.owners_of(7).is_empty(), "it may only stand still");
    world.run_for(2_500);
    assert_eq!(world.owners_of(7), [1]);
    // Long after it died nobody waits.
    world.connect(2, 7, true);
    world.run_for(100);
    assert_eq!(world.owners_of(7), [2]);
}

#[test]
fn a_node_that_is_cut_off_refuses_what_outlives_a_connection_and_lets_others_in() {
    let mut world = World::calm(3);
    world.run_for(5_000);
    world.cut(0);
    world.run_for(5_000);
    world.connect(0, 7, true);
    world.connect(0, 8, false);
    world.run_for(100);
    assert!(world.owners_of(7).is_empty());
    assert_eq!(world.lives_on(8), [0]);
    // The same client at a node that is not cut off, and then the way is back.
    world.connect(1, 8, false);
    world.run_for(1_000);
    world.mend(0);
    world.run_for(10_000);
    assert_eq!(
        world.lives_on(8),
        [1],
        "who came while the other could not know stays"
    );
    assert_eq!(world.settled(), None);
}

#[test]
fn the_will_of_a_node_that_died_is_published_by_another_once() {
    let mut world = World::calm(4);
    world.run_for(5_000);
    world.connect(0, 7, true);
    world.run_for(1_000);
    let will = world.will_of(0, 7).expect("each connection has a will");
    world.kill(0);
    world.run_for(9_000);
    assert_eq!(world.published(will), 0, "it may come back");
    world.run_for(30_000);
    assert_eq!(world.published(will), 1);
    assert_eq!(world.settled(), None);
}

/// Others look for what a node's earlier process has left, and find that the later one is dead by then, too.
#[test]
fn the_will_of_a_process_that_died_soon_after_its_start_is_published_by_another() {
    let mut world = World::calm(8);
    world.run_for(5_000);
    world.connect(0, 7, true);
    world.run_for(1_000);
    world.kill(0);
    world.run_for(500);
    world.start(0);
    world.run_for(1_000);
    world.connect(0, 8, true);
    world.run_for(200);
    let will = world.will_of(0, 8).expect("it is let in");
    world.kill(0);
    world.run_for(30_000);
    assert_eq!(world.published(will), 1);
    assert_eq!(world.settled(), None);
}

/// The root of a shared subscription is wanted by whoever has members, and left to who has it: until that one may not be
/// sure of it any more.
#[test]
fn what_is_claimed_if_it_is_free_stays_with_who_may_be_sure_of_it() {
    let process = |node: &str| Process {
        node: node.into(),
        incarnation: 1,
    };
    let terms = Terms {
        lease_ms: 2_000,
        absence_ms: 60_000,
        claim_timeout_ms: 5_000,
    };
    let request = |session| Request {
        session,
        name: SessionName::new(None, "root"),
        will: None,
        outlives: true,
        is_clean: false,
        if_free: true,
    };
    let (key, own, other) = (Key::default(), process("own"), process("other"));
    let theirs = Record {
        owner: other.clone(),
        is_over: false,
        is_kept: true,
        serial: 1,
        name: SessionName::new(None, "root"),
        will: None,
        since: None,
    };
    let mut owners = Owners::new(own.clone(), terms);
    owners
        .mark_passed(1_000, 1, &own, Mark::Here { sent_ms: 1_000 })
        .expect("a mark of its time");
    owners
        .mark_passed(1_000, 2, &other, Mark::Here { sent_ms: 7 })
        .expect("a mark of its time");
    assert_eq!(
        owners.may_be_sure(1_000),
        None,
        "others may not be seen yet"
    );
    let mut claim = |now_ms, session| {
        owners
            .mark_passed(now_ms, now_ms, &own, Mark::Here { sent_ms: now_ms })
            .expect("a mark of its time");
        owners.claim(now_ms, key, request(session));
        let mut is_written = false;
        loop {
            let actions = owners.take_actions();
            if actions.is_empty() {
                return (is_written, owners.may_be_sure(now_ms));
            }
            for action in actions {
                match action {
                    Action::Read { key, attempt } => {
                        let found = Ok(Some((10, theirs.clone())));
                        owners.was_read(now_ms, key, attempt, found);
                    }
                    Action::Write { .. } => is_written = true,
                    _ => {}
                }
            }
        }
    };
    assert!(!claim(1_100, 1).0, "the other is here");
    assert!(!claim(2_500, 4).0, "it may be");
    assert_eq!(claim(3_249, 2), (false, None));
    // The lease and an eighth of it after its last mark.
    assert_eq!(claim(3_250, 3), (true, Some(Vec::new())));
}

/// A node claims a session, and is cut off for longer than its lease before the claim is known to be written: its
/// client is let in without NATS. Who comes after that, with a session that stays, finds the node's own record.
#[test]
fn who_follows_a_session_that_was_let_in_waits_for_the_owner_before_it() {
    let process = |node: &str| Process {
        node: node.into(),
        incarnation: 1,
    };
    let request = |session, outlives| Request {
        session,
        name: SessionName::new(None, "client"),
        will: None,
        outlives,
        is_clean: false,
        if_free: false,
    };
    let settled = |actions: &[Action<u64>]| -> Vec<u64> {
        let sessions = actions.iter().filter_map(|action| match action {
            Action::Settled {
                session,
                result: Ok(_),
                ..
            } => Some(*session),
            _ => None,
        });
        sessions.collect()
    };
    let terms = Terms {
        lease_ms: 2_000,
        absence_ms: 10_000,
        claim_timeout_ms: 5_000,
    };
    let (key, own, other) = (Key::default(), process("own"), process("other"));
    let mut owners = Owners::new(own.clone(), terms);
    owners
        .mark_passed(1_000, 9, &own, Mark::Here { sent_ms: 1_000 })
        .expect("a mark of its time");
    owners
        .mark_passed(1_000, 10, &other, Mark::Here { sent_ms: 7 })
        .expect("a mark of its time");
    // Answers come, and what is written does not come by yet.
    let mut written = Vec::new();
    let mut answer = |owners: &mut Owners<u64>, now_ms, last: &Record| {
        let mut all = Vec::new();
        loop {
            let actions = owners.take_actions();
            if actions.is_empty() {
                return (all, written.split_off(0));
            }
            for action in actions {
                match &action {
                    Action::Read { key, attempt } => {
                        let found = Ok(Some((10, last.clone())));
                        owners.was_read(now_ms, *key, *attempt, found);
                    }
                    Action::Write { record, .. } => written.push(record.clone()),
                    _ => {}
                }
                all.push(action);
            }
        }
    };
    let theirs = Record {
        owner: other,
        is_over: false,
        is_kept: true,
        serial: 1,
        name: SessionName::new(None, "client"),
        will: None,
        since: None,
    };
    owners.claim(1_100, key, request(1, false));
    let (_, claimed) = answer(&mut owners, 1_100, &theirs);
    owners.tick(4_000);
    let (actions, _) = answer(&mut owners, 4_000, &theirs);
    assert_eq!(settled(&actions), [1], "it is let in");
    owners
        .mark_passed(4_100, 11, &own, Mark::Here { sent_ms: 4_050 })
        .expect("a mark of its time");
    owners.record_passed(4_100, 12, key, &claimed[0]);
    owners.claim(4_200, key, request(2, true));
    let (_, early) = answer(&mut owners, 4_200, &claimed[0]);
    for record in &early {
        owners.record_passed(4_210, 13, key, record);
    }
    let granted = settled(&owners.take_actions());
    assert!(granted.is_empty(), "the other may be sure of it");
    // The other's lease is over.
    owners
        .mark_passed(7_000, 14, &own, Mark::Here { sent_ms: 6_950 })
        .expect("a mark of its time");
    owners.tick(7_000);
    let (_, written) = answer(&mut owners, 7_000, &claimed[0]);
    owners.record_passed(7_100, 15, key, &written[0]);
    assert_eq!(settled(&owners.take_actions()), [2]);
}

const TERMS: Terms = Terms {
    lease_ms: 2_000,
    absence_ms: 10_000,
    claim_timeout_ms: 5_000,
};

fn process(node: &str, incarnation: u64) -> Process {
    Process {
        node: node.into(),
        incarnation,
    }
}

/// A record of a session of the user alice.
fn of_alice(owner: Process, is_kept: bool) -> Record {
    Record {
        owner,
        is_over: false,
        is_kept,
        serial: 99,
        name: SessionName::new(Some("alice"), "client"),
        will: None,
        since: None,
    }
}

/// A request of hers.
fn request_of(session: u64, is_clean: bool) -> Request<u64> {
    Request {
        session,
        name: SessionName::new(Some("alice"), "client"),
        will: None,
        outlives: true,
        is_clean,
        if_free: false,
    }
}

/// A node that is sure of its sessions at second 30, and another that was seen with a second incarnation, and no mark
/// since second 1.
fn with_another_node() -> Owners<u64> {
    let own = process("own", 1);
    let mut owners = Owners::new(own.clone(), TERMS);
    owners
        .mark_passed(500, 1, &own, Mark::Here { sent_ms: 500 })
        .expect("a mark of its time");
    for incarnation in [1, 2] {
        let other = process("other", incarnation);
        owners
            .mark_passed(1_000, 1 + incarnation, &other, Mark::Here { sent_ms: 7 })
            .expect("a mark of its time");
    }
    for second in 1..=30 {
        let sent_ms = second * 1_000;
        owners
            .mark_passed(sent_ms, 10 + second, &own, Mark::Here { sent_ms })
            .expect("a mark of its time");
        owners.tick(sent_ms);
    }
    owners.take_actions();
    owners
}

/// Has the node find a record, and says whether a claim is written, and how it is settled.
fn claim_over(
    owners: &mut Owners<u64>,
    request: Request<u64>,
    found: &Record,
) -> (bool, Vec<Result<Begin, Refusal>>) {
    let (mut is_written, mut settled) = (false, Vec::new());
    owners.claim(30_100, Key::default(), request);
    loop {
        let actions = owners.take_actions();
        if actions.is_empty() {
            return (is_written, settled);
        }
        for action in actions {
            match action {
                Action::Read { key, attempt } => {
                    owners.was_read(30_100, key, attempt, Ok(Some((4, found.clone()))));
                }
                Action::Write { .. } => is_written = true,
                Action::Settled { result, .. } => settled.push(result),
                _ => {}
            }
        }
    }
}

/// NATS is away, and the client comes again: its claim is behind the end of its session before.
#[test]
fn a_claim_that_waits_behind_something_else_is_refused_in_time() {
    let mut owners = with_another_node();
    let key = Key::default();
    owners.claim(30_100, key, request_of(1, false));
    let (settled, _) = answered(&mut owners, 30_100, &mut None, true);
    assert_eq!(settled, [Ok(Begin::Anew)]);
    owners.release(30_200, key, SessionName::new(Some("alice"), "client"));
    owners.claim(30_300, key, request_of(2, false));
    for now_ms in (30_300..35_300).step_by(100) {
        owners.tick(now_ms);
        owners.check(now_ms);
        let mut actions = owners.take_actions().into_iter();
        let settled = actions.find(|action| matches!(action, Action::Settled { .. }));
        assert!(settled.is_none(), "at {now_ms}: {settled:?}");
    }
    owners.tick(35_300);
    owners.check(35_300);
    let actions = owners.take_actions().into_iter();
    let settled = actions.filter_map(|action| match action {
        Action::Settled {
            session, result, ..
        } => Some((session, result)),
        _ => None,
    });
    let settled: Vec<_> = settled.collect();
    assert_eq!(settled, [(2, Err(Refusal::Away))]);
}

/// Has NATS answer everything that a node asks, with a record at first. Says how claims were settled, and in which
/// epochs something was discarded.
fn answered(
    owners: &mut Owners<u64>,
    now_ms: u64,
    found: &mut Option<(u64, Record)>,
    is_known: bool,
) -> (Vec<Result<Begin, Refusal>>, Vec<u64>) {
    let (mut settled, mut discarded) = (Vec::new(), Vec::new());
    loop {
        let actions = owners.take_actions();
        if actions.is_empty() {
            return (settled, discarded);
        }
        for action in actions {
            match action {
                Action::Read { key, attempt } => {
                    owners.was_read(now_ms, key, attempt, Ok(found.clone()));
                }
                Action::Write {
                    key,
                    attempt,
                    record,
                    ..
                } => {
                    let sequence = found.as_ref().map_or(50, |(last, _)| last.max(&49) + 1);
                    *found = Some((sequence, record.clone()));
                    if is_known {
                        owners.was_written(now_ms, key, attempt, Ok(sequence));
                        owners.record_passed(now_ms, sequence, key, &record);
                    } else {
                        owners.was_written(now_ms, key, attempt, Err(WriteError::Unknown));
                    }
                }
                Action::Settled { result, .. } => settled.push(result),
                Action::Discard { epoch, .. } => discarded.push(epoch),
                _ => {}
            }
        }
    }
}

/// Otherwise it would stay for ever, and be found by the next session of that name.
#[test]
fn what_is_kept_is_removed_where_a_session_begins_in_its_place() {
    let kept = Begin::Kept(SessionName::new(Some("alice"), "client"));
    for (is_kept, is_clean, outlives, expected) in [
        (true, true, false, Begin::InPlace { epoch: 50 }),
        (true, true, true, Begin::InPlace { epoch: 50 }),
        (true, false, true, kept),
        (false, true, false, Begin::Anew),
    ] {
        let mut found = Some((4, of_alice(process("other", 1), is_kept)));
        let mut owners = with_another_node();
        let request = Request {
            outlives,
            ..request_of(1, is_clean)
        };
        owners.claim(30_100, Key::default(), request);
        let answer = answered(&mut owners, 30_100, &mut found, true);
        assert_eq!(answer, (vec![Ok(expected)], vec![]), "{is_kept} {is_clean}");
    }
}

/// The same where the client was refused meanwhile, because nobody knew that its claim is written.
#[test]
fn what_is_kept_is_removed_where_nobody_waits_for_the_session_in_its_place() {
    let (key, own) = (Key::default(), process("own", 1));
    let mut found = Some((4, of_alice(process("other", 1), true)));
    let mut owners = with_another_node();
    owners.claim(30_100, key, request_of(1, true));
    let answer = answered(&mut owners, 30_100, &mut found, false);
    assert_eq!(answer, (vec![], vec![]));
    owners
        .mark_passed(36_000, 45, &own, Mark::Here { sent_ms: 36_000 })
        .expect("a mark of its time");
    owners.tick(36_000);
    let mut refused = answered(&mut owners, 36_000, &mut found, true);
    let (sequence, written) = found.clone().expect("it was written");
    assert_eq!(sequence, 50);
    owners.record_passed(36_000, sequence, key, &written);
    let (more, discarded) = answered(&mut owners, 36_000, &mut found, true);
    refused.0.extend(more);
    assert_eq!(refused, (vec![Err(Refusal::Away)], vec![]));
    assert_eq!(discarded, [50]);
    assert_eq!((owners.busy(), owners.held()), (0, 0));
}

#[test]
fn a_session_that_ended_with_its_node_is_nobodys() {
    let theirs = of_alice(process("other", 2), false);
    let mut owners = with_another_node();
    assert!(claim_over(&mut owners, request_of(1, false), &theirs).0);
}

/// What a node had of a session may wait for a log that takes nothing. Its other sessions do not wait for that.
#[test]
fn a_node_is_sure_again_when_a_lost_session_has_ended_and_tells_so_when_it_is_written() {
    let (key, own) = (Key::default(), process("own", 1));
    let mut owners = with_another_node();
    owners.claim(30_100, key, request_of(1, false));
    for action in owners.take_actions() {
        if let Action::Read { key, attempt } = action {
            owners.was_read(30_100, key, attempt, Ok(None));
        }
    }
    for action in owners.take_actions() {
        if let Action::Write { record, .. } = action {
            owners.record_passed(30_110, 50, key, &record);
        }
    }
    assert_eq!(owners.epoch(key), Some(50));
    owners.record_passed(30_200, 60, key, &of_alice(process("other", 2), true));
    let ends = |action: &Action<u64>| matches!(action, Action::End { .. });
    assert!(owners.take_actions().iter().any(ends));
    let mark = |owners: &mut Owners<u64>, now_ms| {
        owners
            .mark_passed(now_ms, now_ms, &own, Mark::Here { sent_ms: now_ms })
            .expect("a mark of its time");
        owners.tick(now_ms);
    };
    mark(&mut owners, 33_000);
    assert!(!owners.is_sure(33_000), "it may be acknowledged still");
    let tells = |action: &Action<u64>| matches!(action, Action::Tell { epoch: 60, .. });
    owners.has_ended(33_100, key);
    assert!(owners.is_sure(33_100));
    mark(&mut owners, 36_000);
    assert!(owners.is_sure(36_000));
    assert!(
        !owners.take_actions().iter().any(tells),
        "it is not written"
    );
    owners.has_left(key);
    assert!(owners.take_actions().iter().any(tells));
}

/// A client waits for a session that is away and is to come to a shard, and is refused: the session comes after a pause.
#[test]
fn a_session_that_a_shard_did_not_take_is_brought_again() {
    let key = Key::default();
    let mut owners = with_another_node();
    owners.claim(30_100, key, request_of(1, false));
    let mut adoptions = 0;
    let mut refused = Vec::new();
    let mut answer = |owners: &mut Owners<u64>, now_ms| {
        loop {
            let actions = owners.take_actions();
            if actions.is_empty() {
                return (std::mem::take(&mut adoptions), std::mem::take(&mut refused));
            }
            for action in actions {
                match action {
                    Action::Read { key, attempt } => {
                        let own = of_alice(process("own", 1), true);
                        let found = (owners.held() > 0).then_some((50, own));
                        owners.was_read(now_ms, key, attempt, Ok(found));
                    }
                    Action::Write {
                        key,
                        attempt,
                        record,
                        ..
                    } => {
                        owners.was_written(now_ms, key, attempt, Ok(50));
                        owners.record_passed(now_ms, 50, key, &record);
                    }
                    Action::Adopt { .. } => adoptions += 1,
                    Action::Settled {
                        session,
                        result: Err(why),
                        ..
                    } => refused.push((session, why)),
                    _ => {}
                }
            }
        }
    };
    answer(&mut owners, 30_100);
    assert_eq!(owners.epoch(key), Some(50));
    owners.put_aside(30_200, key, 50, SessionName::new(Some("alice"), "client"));
    assert_eq!(answer(&mut owners, 30_200), (1, vec![]));
    owners.was_not_adopted(30_310, key);
    assert_eq!(answer(&mut owners, 30_310), (0, vec![]), "after a pause");
    owners
        .mark_passed(
            30_900,
            11,
            &process("own", 1),
            Mark::Here { sent_ms: 30_900 },
        )
        .expect("a mark of its time");
    owners.tick(30_900);
    assert_eq!(answer(&mut owners, 30_900), (1, vec![]));
    owners.was_adopted(30_910, key);
    assert_eq!((owners.busy(), owners.held()), (0, 1));
}

/// Somebody else has written a mark in this process's name: it would be sure for a time in which others have its sessions.
#[test]
fn a_mark_of_a_time_to_come_makes_nobody_sure() {
    let terms = Terms {
        lease_ms: 1_500,
        absence_ms: 10_000,
        claim_timeout_ms: 5_000,
    };
    let own = process("own", 7);
    let mut owners = Owners::<u32>::new(own.clone(), terms);
    for sent_ms in [1_001, u64::MAX] {
        let passed = owners.mark_passed(1_000, 1, &own, Mark::Here { sent_ms });
        assert!(passed.is_err(), "{sent_ms}");
        assert!(!owners.is_sure(1_000));
    }
    owners
        .mark_passed(1_000, 2, &own, Mark::Here { sent_ms: 900 })
        .expect("a mark of its time");
    assert!(owners.is_sure(1_000) && !owners.is_sure(2_400));
}
