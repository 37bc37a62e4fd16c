//! The table of other nodes, as words of theirs and the time change it.

use super::*;

fn table() -> Table {
    Table::new("a", 4_000, 60_000, reads("1"))
}

fn reads(text: &str) -> Versions {
    Versions::parse(text).expect("versions")
}

/// A table that has heard all nodes that live.
fn hearing(own_name: &str, reads: Versions) -> Table {
    let mut table = Table::new(own_name, 4_000, 60_000, reads);
    table.begins_to_hear(0);
    table.look(2_000);
    table
}

/// A node that has just started, or was cut off, knows nobody that has no readers.
#[test]
fn nobody_writes_what_a_node_may_not_read_that_was_not_heard() {
    let mut table = Table::new("c", 4_000, 60_000, reads("1-3"));
    table.look(100_000);
    assert_eq!(table.version(), 1, "it hears nobody");
    for begun_ms in [200_000, 300_000] {
        table.begins_to_hear(begun_ms);
        table.look(begun_ms + 1_999);
        assert_eq!(table.version(), 1, "a node says its word each second");
        table.look(begun_ms + 2_000);
        assert_eq!(table.version(), 3, "it is alone");
    }
    table.begins_to_hear(400_000);
    table.heard(400_000, "a", 1, false, reads("1-2"));
    assert_eq!(table.version(), 1);
    table.look(402_000);
    assert_eq!(table.version(), 2);
}

/// An upgrade, node by node, from nodes that read 1 to nodes that read 1 to 3, while one node is away.
#[test]
fn all_write_the_highest_version_that_all_read() {
    let mut table = hearing("c", reads("1-3"));
    assert_eq!(table.version(), 3, "it is alone");
    table.wants(0, "a", 1, "x", Interest::Acknowledged);
    assert_eq!(table.version(), 1, "nobody knows yet what that node reads");
    table.heard(0, "a", 1, false, reads("1"));
    table.heard(0, "b", 2, false, reads("1-2"));
    assert_eq!(table.version(), 1);
    table.heard(0, "a", 7, false, reads("1-9"));
    assert_eq!(table.version(), 2, "it has started anew");
    table.look(4_000);
    assert_eq!(
        table.version(),
        2,
        "something waits for a node that is away"
    );
    table.heard(5_000, "b", 2, true, reads("1-2"));
    assert_eq!(table.version(), 2, "it may be a restart");
    table.heard(64_999, "a", 7, false, reads("1-9"));
    table.look(64_999);
    assert_eq!(table.version(), 2, "the log is written for it, too");
    table.look(65_000);
    assert_eq!(table.version(), 3, "it has left for good");
    table.wants(65_000, "b", 8, "x", Interest::Acknowledged);
    assert_eq!(table.version(), 3, "nothing waits for it yet");
    table.heard(65_000, "b", 8, false, reads("1"));
    assert_eq!(table.version(), 1, "it is back, and an older one");
}

#[test]
fn letters_go_to_nodes_that_were_heard_and_are_not_gone() {
    let mut table = hearing("c", reads("1"));
    table.heard(0, "a", 1, false, reads("1"));
    table.wants(0, "b", 2, "x", Interest::Acknowledged);
    let a = table.heard_of(Some("a"));
    assert_eq!((a.len(), table.heard_of(Some("b")).len()), (1, 0));
    assert_eq!(table.heard_of(None), a, "nobody knows yet what b reads");
    table.heard(0, "b", 2, false, reads("1"));
    assert_eq!(table.heard_of(None).len(), 2);
    table.heard(0, "a", 1, true, reads("1"));
    assert_eq!(table.heard_of(None), table.heard_of(Some("b")));
    assert!(table.heard_of(Some("a")).is_empty(), "it has left");
}

/// Others have its sessions at once. It comes back for them, and then reads the log.
#[test]
fn a_node_that_restarts_as_an_older_one_holds_the_version_until_it_is_back() {
    for sweeps_first in [true, false] {
        let mut table = hearing("c", reads("1-3"));
        table.heard(0, "b", 2, false, reads("1-2"));
        if sweeps_first {
            table.swept("b", 2);
        }
        table.heard(5_000, "b", 2, true, reads("1-2"));
        table.swept("b", 2);
        assert_eq!(table.presence("b"), None, "nothing else is left of it");
        table.look(64_999);
        assert_eq!(table.version(), 2);
        // The restart was an upgrade.
        table.heard(64_999, "b", 7, false, reads("1-3"));
        assert_eq!(table.version(), 3);
        // It leaves for good, and is not heard again.
        table.heard(65_000, "b", 7, true, reads("1-2"));
        table.heard(66_000, "b", 7, true, reads("1-2"));
        assert_eq!(table.version(), 2);
        table.look(126_000);
        assert_eq!(table.version(), 3);
    }
}

#[test]
fn who_reads_nothing_of_the_others_takes_no_part() {
    let mut first = hearing("a", reads("1-2"));
    first.set_own_incarnation(5);
    let newer = reads("3-4");
    for _ in 0..2 {
        first.heard(0, "late", 9, false, newer);
        first.wants(0, "late", 9, "x", Interest::Acknowledged);
    }
    let node = Arc::from("late");
    let unread = Event::Unread { node, reads: newer };
    assert_eq!(first.take_events(), [unread], "said once");
    assert!(changes(&mut first).is_empty(), "nothing waits for it");
    assert_eq!((first.version(), first.count(Presence::Here)), (2, 0));
    // It is installed anew, and fits.
    first.heard(0, "late", 12, false, reads("2-3"));
    assert_eq!((first.version(), first.count(Presence::Here)), (2, 1));
    // Words of its processes before come late.
    for earlier in [3, 11] {
        first.take_events();
        first.heard(0, "late", earlier, false, newer);
        assert_eq!(first.take_events(), [], "{earlier} is over");
        assert_eq!((first.version(), first.count(Presence::Here)), (2, 1));
    }
    let mut late = Table::new("late", 4_000, 60_000, newer);
    late.set_own_incarnation(9);
    late.heard(0, "a", 5, false, reads("1-2"));
    let node = Arc::from("a");
    let reads = reads("1-2");
    assert_eq!(late.take_events(), [Event::Unfit { node, reads }]);
}

fn nodes(numbers: &[usize]) -> NodeSet {
    let mut set = NodeSet::EMPTY;
    for &number in numbers {
        set.insert(number);
    }
    set
}

fn changes(table: &mut Table) -> Vec<(String, Wanted)> {
    let mut changes: Vec<_> = (table.take_changes(usize::MAX).into_iter())
        .map(|(filter, wanted)| (filter.to_string(), wanted))
        .collect();
    changes.sort_by(|one, other| one.0.cmp(&other.0));
    changes
}

fn wanted(any: &[usize], acknowledged: &[usize]) -> Wanted {
    Wanted {
        any: nodes(any),
        acknowledged: nodes(acknowledged),
        is_durable: false,
    }
}

#[test]
fn silence_takes_a_node_away_in_two_steps_and_its_word_brings_it_back() {
    let mut table = table();
    table.heard(0, "b", 5, false, reads("1"));
    table.wants(0, "b", 5, "x", Interest::AtMostOnce);
    table.wants(0, "b", 5, "y/#", Interest::Acknowledged);
    assert_eq!(
        changes(&mut table),
        [
            ("x".to_owned(), wanted(&[0], &[])),
            ("y/#".to_owned(), wanted(&[0], &[0]))
        ]
    );
    table.look(3_999);
    assert!(changes(&mut table).is_empty());
    table.look(4_000);
    let away = [
        ("x".to_owned(), Wanted::NOBODY),
        ("y/#".to_owned(), wanted(&[], &[0])),
    ];
    assert_eq!(changes(&mut table), away, "what must arrive waits");
    table.look(60_000);
    let gone = [
        ("x".to_owned(), Wanted::NOBODY),
        ("y/#".to_owned(), Wanted::NOBODY),
    ];
    assert_eq!(changes(&mut table), gone);
    table.heard(70_000, "b", 5, false, reads("1"));
    let back = [
        ("x".to_owned(), wanted(&[0], &[])),
        ("y/#".to_owned(), wanted(&[0], &[0])),
    ];
    assert_eq!(changes(&mut table), back);
    let node: Arc<str> = Arc::from("b");
    let came = Event::Came {
        node: Arc::clone(&node),
    };
    let went = Event::Went {
        node: Arc::clone(&node),
    };
    assert_eq!(
        table.take_events(),
        [came.clone(), Event::Missed { node }, went, came]
    );
}

#[test]
fn a_new_start_ends_what_the_node_said_before() {
    let mut table = table();
    table.heard(0, "b", 5, false, reads("1"));
    table.wants(0, "b", 5, "x", Interest::Acknowledged);
    changes(&mut table);
    table.heard(1, "b", 9, false, reads("1"));
    assert_eq!(changes(&mut table), [("x".to_owned(), Wanted::NOBODY)]);
    // A late word of the earlier start.
    table.wants(2, "b", 5, "x", Interest::Acknowledged);
    table.heard(2, "b", 5, true, reads("1"));
    assert!(changes(&mut table).is_empty());
    assert_eq!(table.count(Presence::Here), 1);
}

#[test]
fn what_sessions_want_of_nodes_that_do_not_say_it_is_known() {
    let mut table = table();
    table.heard(0, "b", 5, false, reads("1"));
    table.wants(0, "b", 5, "x", Interest::Durable);
    table.wants(0, "b", 5, "y", Interest::Acknowledged);
    assert!(table.durable_of_absent().is_empty(), "it says it by itself");
    table.look(4_000);
    let [b, x]: [Arc<str>; 2] = ["b", "x"].map(Arc::from);
    assert_eq!(table.durable_of_absent(), [(b.clone(), 5, x.clone())]);
    table.heard(5_000, "b", 9, false, reads("1"));
    assert_eq!(
        table.durable_of_absent(),
        [(b, 5, x)],
        "its earlier start's"
    );
    table.swept("b", 5);
    assert!(table.durable_of_absent().is_empty());
}

/// NATS has one entry for each filter of a node, whichever of its starts has written it.
#[test]
fn what_an_earlier_start_has_left_is_told_until_it_is_swept() {
    let mut table = table();
    table.set_own_incarnation(7);
    table.wants(0, "a", 5, "x", Interest::Durable);
    table.wants(0, "a", 5, "y", Interest::Acknowledged);
    table.wants(0, "a", 7, "z", Interest::Durable);
    table.wants(0, "b", 3, "w", Interest::Durable);
    for own in [
        Interest::None,
        Interest::AtMostOnce,
        Interest::Acknowledged,
        Interest::Durable,
    ] {
        assert_eq!(table.told("x", own), Interest::Durable);
        for other in ["y", "z", "w"] {
            assert_eq!(table.told(other, own), own, "{other}");
        }
    }
    assert!(table.swept("a", 4).is_empty(), "an earlier one");
    assert_eq!(table.told("x", Interest::Acknowledged), Interest::Durable);
    let x: Arc<str> = Arc::from("x");
    assert_eq!(table.swept("a", 6), [x], "it is to be told anew");
    assert_eq!(
        table.told("x", Interest::Acknowledged),
        Interest::Acknowledged
    );
}

#[test]
fn who_leaves_is_gone_at_once() {
    let mut table = table();
    table.heard(0, "b", 5, false, reads("1"));
    table.wants(0, "b", 5, "x", Interest::Acknowledged);
    changes(&mut table);
    table.heard(1, "b", 5, true, reads("1"));
    assert_eq!(changes(&mut table), [("x".to_owned(), Wanted::NOBODY)]);
    assert_eq!(table.count(Presence::Gone), 1);
}

#[test]
fn a_node_that_was_cut_off_takes_nobody_for_gone() {
    let mut table = table();
    table.heard(0, "b", 5, false, reads("1"));
    table.begins_to_hear(100_000);
    table.look(100_000);
    assert_eq!(table.count(Presence::Here), 1);
    table.look(104_000);
    assert_eq!(table.count(Presence::Away), 1);
}

#[test]
fn the_later_of_two_with_one_name_stays() {
    let mut table = table();
    table.set_own_incarnation(7);
    table.heard(0, "a", 6, false, reads("1"));
    table.heard(0, "a", 7, false, reads("1"));
    assert!(table.take_events().is_empty());
    table.heard(0, "a", 8, false, reads("1"));
    assert_eq!(table.take_events(), [Event::Superseded]);
}

#[test]
fn a_node_too_many_is_left_out_and_told_once() {
    let mut table = table();
    for node in 0..NodeSet::MAXIMUM {
        table.heard(0, &format!("n{node}"), 1, false, reads("1"));
    }
    table.take_events();
    table.heard(0, "late", 1, false, reads("1"));
    table.wants(0, "late", 1, "x", Interest::Acknowledged);
    let node = Arc::from("late");
    assert_eq!(table.take_events(), [Event::TooMany { node }]);
    assert!(changes(&mut table).is_empty());
}

#[test]
fn what_leaves_the_region_is_wanted_by_a_node_that_is_always_here() {
    let mut table = table();
    table.export(&["x".to_owned(), "out/#".to_owned()]);
    let outside = wanted(&[OUTSIDE], &[OUTSIDE]);
    let both = [("out/#".to_owned(), outside), ("x".to_owned(), outside)];
    assert_eq!(changes(&mut table), both);
    assert!(table.is_first());
    for node in 0..NodeSet::MAXIMUM {
        table.heard(0, &format!("n{node}"), 1, false, reads("1"));
        table.wants(0, &format!("n{node}"), 1, "x", Interest::AtMostOnce);
    }
    assert_eq!(table.count(Presence::Here), OUTSIDE, "one number is taken");
    assert!(table.is_first(), "`a` is before all of them");
    table.look(1_000_000);
    assert_eq!(changes(&mut table), [("x".to_owned(), outside)]);
    let mut later = Table::new("z", 4_000, 60_000, reads("1"));
    later.heard(0, "b", 1, false, reads("1"));
    assert!(!later.is_first());
    later.look(4_000);
    assert!(later.is_first(), "the other is away");
}

#[test]
fn changes_are_taken_in_portions() {
    let mut table = table();
    table.heard(0, "b", 5, false, reads("1"));
    for number in 0..10 {
        table.wants(0, "b", 5, &number.to_string(), Interest::AtMostOnce);
    }
    assert_eq!(table.filters(), 10);
    assert_eq!(table.take_changes(7).len(), 7);
    assert_eq!(table.take_changes(7).len(), 3);
    assert!(table.take_changes(7).is_empty());
}

/// A start reads what NATS has of nodes that are gone for good.
#[test]
fn a_node_that_is_gone_for_good_holds_nobody_back() {
    let mut table = hearing("a", reads("1-3"));
    table.wants(0, "old", 1, "x", Interest::Acknowledged);
    table.wants(0, "old", 1, "y", Interest::Durable);
    assert_eq!(table.version(), 1, "it may be there");
    table.swept("old", 1);
    assert_eq!((table.version(), table.filters()), (3, 0));
    let nobody = |filter: &str| (filter.to_owned(), Wanted::NOBODY);
    assert_eq!(changes(&mut table), [nobody("x"), nobody("y")]);
    assert!(table.durable_of_absent().is_empty() && table.absent().next().is_none());
    // One that was here goes when both are so: nothing waits for it, and others have its sessions.
    for (name, sweeps_first) in [("b", true), ("c", false)] {
        table.heard(0, name, 2, false, reads("1"));
        table.wants(0, name, 2, "x", Interest::Acknowledged);
        if sweeps_first {
            table.swept(name, 2);
        }
        assert_eq!(table.presence(name), Some(Presence::Here));
        table.look(4_000);
        assert_eq!((table.version(), table.filters()), (1, 1), "it may be back");
        table.look(60_000);
        if !sweeps_first {
            assert_eq!(table.presence(name), Some(Presence::Gone));
            assert_eq!(table.absent().count(), 1, "it is to be swept");
            table.swept(name, 2);
        }
        assert_eq!((table.presence(name), table.filters()), (None, 0));
        assert_eq!(table.version(), 3);
    }
    table.heard(60_000, "c", 2, true, reads("1"));
    assert_eq!(table.presence("c"), None, "its farewell comes late");
}

/// Others have the sessions of a process that stood still. What it has when it goes on is not theirs.
#[test]
fn who_goes_on_after_a_sweep_is_to_be_swept_again() {
    for is_word in [true, false] {
        let mut table = table();
        table.heard(0, "b", 2, false, reads("1"));
        table.look(4_000);
        table.swept("b", 2);
        if is_word {
            table.heard(5_000, "b", 2, false, reads("1"));
        }
        table.wants(5_000, "b", 2, "x", Interest::Durable);
        table.look(100_000);
        assert_eq!(table.presence("b"), Some(Presence::Gone));
        assert!(changes(&mut table)[0].1.is_durable, "its session wants it");
        table.swept("b", 2);
        assert_eq!(changes(&mut table), [("x".to_owned(), Wanted::NOBODY)]);
        assert_eq!(table.presence("b"), None);
    }
}

#[test]
fn numbers_of_nodes_that_are_gone_for_good_are_given_again() {
    let mut table = table();
    let here = |table: &mut Table, node: usize| {
        table.heard(0, &format!("n{node}"), 1, false, reads("1"));
    };
    for node in 0..3 * NodeSet::MAXIMUM {
        here(&mut table, node);
        let filter = format!("f{node}");
        table.wants(0, &format!("n{node}"), 1, &filter, Interest::Acknowledged);
        assert_eq!(changes(&mut table), [(filter, wanted(&[0], &[0]))]);
        table.heard(0, &format!("n{node}"), 1, true, reads("1"));
        table.swept(&format!("n{node}"), 1);
        changes(&mut table);
    }
    // A node too many has its turn when another is gone for good.
    for node in 0..NodeSet::MAXIMUM {
        here(&mut table, node);
    }
    table.take_events();
    here(&mut table, 99);
    here(&mut table, 99);
    let node: Arc<str> = Arc::from("n99");
    let too_many = Event::TooMany { node };
    assert_eq!(table.take_events(), [too_many], "said once");
    table.heard(0, "n7", 1, true, reads("1"));
    table.take_events();
    here(&mut table, 99);
    assert!(table.take_events().is_empty(), "its sessions are nobody's");
    table.swept("n7", 1);
    assert_eq!(table.take_events(), [Event::HasRoom]);
    here(&mut table, 99);
    table.wants(0, "n99", 1, "x", Interest::AtMostOnce);
    assert_eq!(changes(&mut table), [("x".to_owned(), wanted(&[7], &[]))]);
}
