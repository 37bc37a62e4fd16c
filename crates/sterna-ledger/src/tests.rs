use super::*;

const MQTT: Sending = Sending {
    protocol: Protocol::Mqtt,
    is_exact: true,
};
const READING: Reading = Reading {
    protocol: Protocol::Amqp,
    is_exact: true,
    is_ordered: true,
};

/// A ledger with a publisher, and a reader whose subscription to everything was acknowledged.
fn start() -> (Ledger, PublisherId, ReaderId) {
    let mut ledger = Ledger::default();
    ledger.life_begins();
    let publisher = ledger.publisher("p", MQTT);
    let reader = ledger.reader("r", READING);
    ledger.asks(reader, "t/#");
    ledger.granted(reader, "t/#");
    (ledger, publisher, reader)
}

fn sent(ledger: &mut Ledger, publisher: PublisherId) -> Stamp {
    let stamp = ledger.send(publisher, "t/1");
    ledger.acknowledged(stamp);
    stamp
}

fn came(ledger: &mut Ledger, reader: ReaderId, stamp: Stamp) {
    ledger.received(reader, None, &stamp.payload());
}

/// The promises that were broken, in order.
fn broken(ledger: &mut Ledger) -> Vec<Promise> {
    ledger.close();
    let told = ledger.violations().iter();
    told.map(|violation| violation.promise).collect()
}

#[test]
fn what_came_once_and_in_order_is_in_order() {
    let (mut ledger, publisher, reader) = start();
    for _ in 0..3 {
        let stamp = sent(&mut ledger, publisher);
        came(&mut ledger, reader, stamp);
    }
    assert_eq!(broken(&mut ledger), []);
    assert_eq!(ledger.counts(Protocol::Mqtt).acknowledged, 3);
    assert_eq!(ledger.counts(Protocol::Amqp).delivered, 3);
}

#[test]
fn what_was_acknowledged_and_did_not_come_is_lost_and_told_once() {
    let (mut ledger, publisher, reader) = start();
    let lost = sent(&mut ledger, publisher);
    let unanswered = ledger.send(publisher, "t/1");
    assert_eq!(ledger.missing(), 1);
    assert_eq!(broken(&mut ledger), [Promise::Kept]);
    let text = ledger.violations()[0].to_string();
    assert!(
        text.contains("message 0 of p on t/1") && text.contains("0 of 1"),
        "{text}"
    );
    ledger.acknowledged(unanswered);
    assert_eq!(
        broken(&mut ledger).len(),
        2,
        "it was compared when answered"
    );
    assert_eq!(broken(&mut ledger).len(), 2);
    assert_eq!(ledger.breaches(Promise::Kept, Protocol::Mqtt), 2);
    came(&mut ledger, reader, lost);
}

/// A publisher repeats a message that was not answered; its fate before the subscription is not known.
#[test]
fn a_repetition_of_what_was_sent_before_the_subscription_may_come_late() {
    let (mut ledger, publisher, reader) = start();
    let (first, second) = (sent(&mut ledger, publisher), sent(&mut ledger, publisher));
    let late = ledger.reader("late", READING);
    ledger.asks(late, "t/#");
    ledger.granted(late, "t/#");
    let third = sent(&mut ledger, publisher);
    for stamp in [third, first, second] {
        came(&mut ledger, late, stamp);
    }
    assert_eq!(ledger.breaches(Promise::Order, Protocol::Amqp), 0);
    for stamp in [second, first] {
        came(&mut ledger, reader, stamp);
    }
    assert_eq!(ledger.breaches(Promise::Order, Protocol::Amqp), 1);
}

/// A message was sent while nothing was subscribed, a subscription followed, then others. None was acknowledged, and
/// all were repeated. An earlier subscription, which had ended, does not make the first one due.
#[test]
fn a_repetition_of_what_was_sent_between_two_subscriptions_may_come_late() {
    let (mut ledger, publisher, reader) = start();
    let before = sent(&mut ledger, publisher);
    came(&mut ledger, reader, before);
    ledger.leaves(reader, "t/#");
    ledger.left(reader, "t/#");
    let unasked = ledger.send(publisher, "t/1");
    ledger.asks(reader, "t/#");
    let asked = [(); 2].map(|()| ledger.send(publisher, "t/1"));
    ledger.life_begins();
    ledger.granted(reader, "t/#");
    for stamp in asked.into_iter().chain([unasked]).chain(asked) {
        came(&mut ledger, reader, stamp);
    }
    assert_eq!(ledger.breaches(Promise::Order, Protocol::Amqp), 0);

    // The order of what was sent since is seen.
    let [first, second] = [(); 2].map(|()| ledger.send(publisher, "t/1"));
    for stamp in [second, first] {
        came(&mut ledger, reader, stamp);
    }
    assert_eq!(ledger.breaches(Promise::Order, Protocol::Amqp), 1);
}

/// Until the reader asks anew, all that comes was received under the subscription that it has left.
#[test]
fn a_subscription_orders_what_comes_before_the_next_one() {
    for (asks_first, breaches) in [(false, 1), (true, 0)] {
        let (mut ledger, publisher, reader) = start();
        let [first, second] = [(); 2].map(|()| ledger.send(publisher, "t/1"));
        ledger.leaves(reader, "t/#");
        if asks_first {
            ledger.asks(reader, "t/#");
        }
        came(&mut ledger, reader, second);
        ledger.asks(reader, "t/#");
        came(&mut ledger, reader, first);
        let found = ledger.breaches(Promise::Order, Protocol::Amqp);
        assert_eq!(found, breaches, "asks first: {asks_first}");
    }
}

/// The last message to come may be of a later subscription; the one before it is not.
#[test]
fn a_message_is_compared_with_all_that_followed_it() {
    let (mut ledger, publisher, reader) = start();
    let [first, second, third] = [(); 3].map(|()| ledger.send(publisher, "t/1"));
    came(&mut ledger, reader, second);
    ledger.leaves(reader, "t/#");
    ledger.asks(reader, "t/#");
    for stamp in [third, first] {
        came(&mut ledger, reader, stamp);
    }
    assert_eq!(broken(&mut ledger), [Promise::Order]);
    let text = ledger.violations()[0].to_string();
    assert!(text.contains("after message 1"), "{text}");
}

#[test]
fn only_what_was_sent_after_the_acknowledged_subscription_is_due() {
    let (mut ledger, publisher, _) = start();
    let early = sent(&mut ledger, publisher);
    let late = ledger.reader("late", READING);
    ledger.asks(late, "t/+");
    let between = sent(&mut ledger, publisher);
    ledger.granted(late, "t/+");
    assert_eq!(ledger.missing(), 2, "of the first reader only");
    sent(&mut ledger, publisher);
    assert_eq!(ledger.missing(), 4);
    came(&mut ledger, late, between);
    assert_eq!(ledger.violations().len(), 0, "it may come");
    came(&mut ledger, late, early);
    assert_eq!(ledger.violations()[0].promise, Promise::Asked);
}

#[test]
fn nothing_comes_that_was_sent_after_the_end_of_a_subscription() {
    let (mut ledger, publisher, reader) = start();
    let queued = sent(&mut ledger, publisher);
    ledger.leaves(reader, "t/#");
    let between = sent(&mut ledger, publisher);
    ledger.left(reader, "t/#");
    let after = sent(&mut ledger, publisher);
    assert_eq!(ledger.missing(), 0);
    came(&mut ledger, reader, queued);
    came(&mut ledger, reader, between);
    assert_eq!(ledger.violations().len(), 0);
    came(&mut ledger, reader, after);
    assert_eq!(broken(&mut ledger), [Promise::Asked]);
    ledger.asks(reader, "t/#");
    ledger.granted(reader, "t/#");
    let again = sent(&mut ledger, publisher);
    came(&mut ledger, reader, again);
    assert_eq!(broken(&mut ledger), [Promise::Asked]);
}

#[test]
fn a_second_copy_is_a_breach_where_both_ends_promise_once() {
    let (mut ledger, publisher, reader) = start();
    let lax = Reading {
        is_exact: false,
        ..READING
    };
    let lax = ledger.reader("lax", lax);
    ledger.asks(lax, "#");
    let stamp = sent(&mut ledger, publisher);
    for _ in 0..2 {
        came(&mut ledger, lax, stamp);
        assert_eq!(ledger.violations().len(), 0);
    }
    assert_eq!(ledger.counts(Protocol::Amqp).repeated, 1);
    came(&mut ledger, reader, stamp);
    came(&mut ledger, reader, stamp);
    assert_eq!(broken(&mut ledger), [Promise::Once]);
}

/// Which one may be passed is known of each message, and not of those that pass it.
#[test]
fn a_message_that_may_be_passed_is_late_without_a_breach() {
    for (passed, breaches) in [(0, 1), (1, 0), (2, 1)] {
        let (mut ledger, publisher, reader) = start();
        let stamps = [(); 3].map(|()| sent(&mut ledger, publisher));
        ledger.may_be_passed(stamps[passed]);
        for at in [0, 2, 1] {
            came(&mut ledger, reader, stamps[at]);
        }
        let found = ledger.breaches(Promise::Order, Protocol::Amqp);
        assert_eq!(found, breaches, "passed: {passed}");
    }
}

#[test]
fn order_is_that_of_first_copies_on_a_topic() {
    let (mut ledger, publisher, reader) = start();
    let [one, two, three] = [(); 3].map(|()| sent(&mut ledger, publisher));
    let elsewhere = ledger.send(publisher, "t/2");
    ledger.acknowledged(elsewhere);
    for stamp in [elsewhere, one, three] {
        came(&mut ledger, reader, stamp);
    }
    assert_eq!(ledger.violations().len(), 0);
    came(&mut ledger, reader, two);
    assert_eq!(broken(&mut ledger), [Promise::Order]);
    let text = ledger.violations()[0].to_string();
    assert!(text.contains("after message 2"), "{text}");
}

#[test]
fn what_nobody_sent_is_noticed() {
    let (mut ledger, publisher, reader) = start();
    let stamp = sent(&mut ledger, publisher);
    let mut changed = stamp.payload();
    changed.push(b'!');
    ledger.received(reader, None, &changed);
    ledger.received(reader, Some("t/2"), &stamp.payload());
    assert_eq!(broken(&mut ledger), [Promise::Intact, Promise::Intact]);
}

#[test]
fn a_transaction_is_seen_whole_or_not_at_all() {
    let (mut ledger, publisher, reader) = start();
    let post = |ledger: &mut Ledger| {
        let transaction = ledger.transaction();
        let stamps = [(); 2].map(|()| ledger.post(publisher, "t/1", transaction));
        (transaction, stamps)
    };
    let (committed, _) = post(&mut ledger);
    ledger.committed(committed);
    assert_eq!(ledger.missing(), 2);
    for stamp in ledger.transactions[committed.0].clone() {
        came(&mut ledger, reader, stamp);
    }
    let (unseen, stamps) = post(&mut ledger);
    ledger.in_doubt(unseen);
    assert_eq!(ledger.missing(), 0);
    let (torn, [seen, _]) = post(&mut ledger);
    ledger.in_doubt(torn);
    // A copy that came before the kill proves nothing. One that comes in a later life was kept.
    ledger.life_begins();
    came(&mut ledger, reader, seen);
    assert_eq!(ledger.missing(), 1);
    let (rolled_back, [ghost, _]) = post(&mut ledger);
    ledger.rolled_back(rolled_back);
    came(&mut ledger, reader, ghost);
    assert_eq!(broken(&mut ledger), [Promise::Asked, Promise::Whole]);
    // Nobody had seen it when everything had come: it had no effect, and may have none later.
    came(&mut ledger, reader, stamps[0]);
    assert_eq!(broken(&mut ledger)[2..], [Promise::Asked, Promise::Order]);
}

#[test]
fn the_retained_message_is_the_newest_acknowledged_or_a_later_one() {
    let (mut ledger, publisher, _) = start();
    let judge = |ledger: &mut Ledger, found: Option<Stamp>| {
        let before = ledger.all_breaches();
        let payload = found.map(Stamp::payload);
        ledger.judge_retained(Protocol::Http, "t/1", payload.as_deref());
        ledger.all_breaches() - before
    };
    let first = ledger.send(publisher, "t/1");
    assert_eq!(judge(&mut ledger, None), 0);
    assert_eq!(judge(&mut ledger, Some(first)), 0);
    ledger.acknowledged(first);
    assert_eq!(judge(&mut ledger, None), 1);
    let second = sent(&mut ledger, publisher);
    assert_eq!(judge(&mut ledger, Some(first)), 1);
    assert_eq!(judge(&mut ledger, Some(second)), 0);
    let cleared = ledger.clear(publisher, "t/1");
    assert_eq!(judge(&mut ledger, None), 0);
    assert_eq!(judge(&mut ledger, Some(second)), 0);
    ledger.acknowledged(cleared);
    assert_eq!(judge(&mut ledger, Some(second)), 1);
    assert_eq!(judge(&mut ledger, None), 0);
}

#[test]
fn who_waits_for_an_answer_is_named() {
    let (mut ledger, publisher, reader) = start();
    ledger.retires(reader);
    sent(&mut ledger, publisher);
    let refused = ledger.send(publisher, "t/1");
    ledger.refused(refused);
    let doubtful = ledger.send(publisher, "t/1");
    ledger.doubtful(doubtful);
    assert_eq!((ledger.pending(), ledger.waiting().len()), (0, 0));
    ledger.send(publisher, "t/1");
    assert_eq!(ledger.pending(), 1);
    let (protocol, _, text) = ledger.waiting().remove(0);
    assert_eq!(protocol, Protocol::Mqtt);
    assert!(text.contains("message 3"), "{text}");
    assert_eq!(broken(&mut ledger), []);
}

#[test]
fn an_ended_reader_is_owed_nothing() {
    let (mut ledger, publisher, reader) = start();
    sent(&mut ledger, publisher);
    ledger.retires(reader);
    assert_eq!(broken(&mut ledger), []);
}

#[test]
fn what_was_promised_since_a_moment_is_excused_and_nothing_before() {
    let (mut ledger, publisher, reader) = start();
    let before = sent(&mut ledger, publisher);
    came(&mut ledger, reader, before);
    ledger.leaves(reader, "t/#");
    ledger.left(reader, "t/#");
    ledger.asks(reader, "t/+");
    ledger.granted(reader, "t/+");
    let early = sent(&mut ledger, publisher);
    let since = ledger.mark();
    let late = sent(&mut ledger, publisher);
    let twice = ledger.send(publisher, "t/1");
    came(&mut ledger, reader, twice);
    ledger.acknowledged(twice);
    let other = ledger.reader("other", READING);
    ledger.asks(other, "#");
    ledger.granted(other, "#");
    assert!(ledger.is_granted(other, "#"));
    sent(&mut ledger, publisher);
    assert_eq!(ledger.missing(), 4);

    ledger.excuse(since);
    assert!(!ledger.is_granted(other, "#"), "it has to ask again");
    assert_eq!(ledger.counts(Protocol::Mqtt).excused, 3);
    assert_eq!(ledger.missing(), 1, "what was on the disk is due");
    // The broker has forgotten that the reader has it, and remembers later receipts.
    came(&mut ledger, reader, twice);
    assert_eq!(ledger.all_breaches(), 0);
    came(&mut ledger, reader, twice);
    assert_eq!(ledger.breaches(Promise::Once, Protocol::Amqp), 1);
    came(&mut ledger, reader, before);
    assert_eq!(ledger.breaches(Promise::Once, Protocol::Amqp), 2);
    let told = ledger.mark();
    ledger.told_again(reader, &before.payload());
    ledger.excuse(told);
    came(&mut ledger, reader, before);
    assert_eq!(
        ledger.breaches(Promise::Once, Protocol::Amqp),
        2,
        "told again"
    );
    came(&mut ledger, reader, late);
    assert_eq!(
        ledger.breaches(Promise::Order, Protocol::Amqp),
        1,
        "behind `twice`"
    );
    ledger.close();
    assert_eq!(ledger.breaches(Promise::Kept, Protocol::Mqtt), 1);
    came(&mut ledger, reader, early);
}

#[test]
fn an_end_of_a_subscription_that_is_excused_is_none() {
    let (mut ledger, publisher, reader) = start();
    let since = ledger.mark();
    ledger.leaves(reader, "t/#");
    ledger.left(reader, "t/#");
    ledger.excuse(since);
    let may_come = sent(&mut ledger, publisher);
    assert_eq!(ledger.missing(), 0, "it is not due");
    came(&mut ledger, reader, may_come);
    assert_eq!(broken(&mut ledger), []);
    ledger.asks(reader, "t/#");
    ledger.granted(reader, "t/#");
    sent(&mut ledger, publisher);
    assert_eq!(ledger.missing(), 1);
}
