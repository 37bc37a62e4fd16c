//! Sources on topics: what they get, how long they last, who steals them, and what is recovered.

use sterna_amqp::link::{AttachOptions, OutgoingTransfer};
use sterna_amqp::messaging::{
    DeliveryState, Source, Target, TargetArchetype, TerminusDurability, TerminusExpiryPolicy,
};
use sterna_amqp::performatives::{ReceiverSettleMode, Role, SenderSettleMode};
use sterna_amqp::types::{Encoded, Map, Multiple, Value};
use sterna_mqtt::{QoS, Version};
use sterna_server::config::{ActionName, Config, Effect, Rule};

use crate::amqp_client::{Client, Happened, Start, message_to, settle_modes};
use crate::fixture::Broker;

/// A map of one filter: a described string.
fn filter(name: &str, descriptor: &str, text: &str) -> Encoded {
    let mut out = bytes::BytesMut::new();
    let mut map = sterna_amqp::types::MapWriter::new(&mut out);
    let entry = map.entry(&Value::Symbol(name));
    entry.extend_from_slice(&[0]);
    Value::Symbol(descriptor).encode(entry);
    Value::String(text).encode(entry);
    map.finish();
    Encoded::from_bytes(out.freeze()).expect("a map")
}

pub fn selector(text: &str) -> Encoded {
    filter("selector", "apache.org:selector-filter:string", text)
}

pub fn map(encoded: &Encoded) -> Option<Map<'_>> {
    match encoded.value() {
        Value::Map(map) => Some(map),
        _ => None,
    }
}

fn durable(address: &str) -> Source<'_> {
    Source {
        durable: TerminusDurability::UnsettledState,
        expiry_policy: TerminusExpiryPolicy::Never,
        ..Source::new(address)
    }
}

/// Publishes texts to `a/b` at QoS 1.
fn publish(broker: &mut Broker, texts: &[&str]) {
    let mqtt = broker.client(Version::V5, "publisher");
    for text in texts {
        broker.publish(mqtt, Version::V5, "a/b", text, QoS::AtLeastOnce);
    }
}

#[test]
fn a_source_gets_what_its_filter_matches() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    for (number, address) in ["a/b", "a/+", "#", "/exchanges/amq.topic/a.*", "topic://a/b"]
        .into_iter()
        .enumerate()
    {
        client.receiver(
            &mut broker,
            session,
            &number.to_string(),
            Source::new(address),
            10,
        );
    }
    let sender = client.sender(&mut broker, session, "a/b");
    client.send(&mut broker, sender, 1, "m");
    assert_eq!(client.accept_all(&mut broker), ["m"; 5]);
    let other = client.sender(&mut broker, session, "/exchanges/amq.topic/x.y");
    client.send(&mut broker, other, 2, "n");
    assert_eq!(client.accept_all(&mut broker), ["n"], "only #");
}

#[test]
fn settlement_follows_qos_and_the_settle_mode() {
    for (mode, settled) in [
        (SenderSettleMode::Mixed, [true, false, false]),
        (SenderSettleMode::Unsettled, [false, false, false]),
        (SenderSettleMode::Settled, [true, true, true]),
    ] {
        let mut broker = Broker::new();
        let mut client = Client::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        let options = settle_modes(mode, ReceiverSettleMode::First, Source::new("a/b"));
        let link = client.attach(&mut broker, session, "r", Role::Receiver, &options);
        client.credit(&mut broker, link, 10);
        let mqtt = broker.client(Version::V5, "publisher");
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            broker.publish(mqtt, Version::V5, "a/b", "m", qos);
        }
        client.turn(&mut broker);
        let came: Vec<bool> = client.received.iter().map(|one| one.settled).collect();
        assert_eq!(came, settled, "{mode:?}");
    }
}

#[test]
fn a_receiver_that_settles_second_is_answered() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let second = ReceiverSettleMode::Second;
    let options = settle_modes(SenderSettleMode::Unsettled, second, Source::new("a/b"));
    let link = client.attach(&mut broker, session, "r", Role::Receiver, &options);
    client.credit(&mut broker, link, 10);
    publish(&mut broker, &["m"]);
    client.turn(&mut broker);
    let id = client.received[0].id;
    client.dispose(
        &mut broker,
        session,
        (id, id),
        &DeliveryState::ACCEPTED,
        false,
    );
    assert!(matches!(
        client.happened.as_slice(),
        [Happened::Disposed { settled: true, .. }]
    ));
    assert_eq!(client.engine.unsettled(session), (0, 0));
}

#[test]
fn a_durable_source_keeps_messages_over_a_lost_connection() {
    for shard in [0, 1] {
        let mut broker = Broker::with(&Config::default(), 2);
        let mut client = Client::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        client.receiver(&mut broker, session, "sub", durable("a/b"), 10);
        publish(&mut broker, &["1", "2"]);
        client.turn(&mut broker);
        // The second is not settled.
        let id = client.received[0].id;
        client.dispose(
            &mut broker,
            session,
            (id, id),
            &DeliveryState::ACCEPTED,
            true,
        );
        drop(client.cut(&mut broker));
        publish(&mut broker, &["3"]);
        let mut client = Client::start(&mut broker, Start::new("c").on(shard));
        let session = client.begin(&mut broker);
        let link = client.receiver(&mut broker, session, "sub", durable("a/b"), 10);
        let counts: Vec<u32> = client
            .received
            .iter()
            .map(crate::amqp_client::Received::delivery_count)
            .collect();
        assert_eq!(counts, [0, 0], "a lost connection is no failed delivery");
        assert_eq!(
            client.accept_all(&mut broker),
            ["2", "3"],
            "from shard {shard}"
        );
        // Detached for good, it is gone.
        client.detach(&mut broker, link, true);
        publish(&mut broker, &["4"]);
        client.receiver(&mut broker, session, "sub", durable("a/b"), 10);
        assert!(client.texts().is_empty());
        assert!(
            client
                .happened
                .iter()
                .any(|one| matches!(one, Happened::Detached { closed: true, .. }))
        );
    }
}

#[test]
fn a_source_lasts_as_long_as_it_says() {
    for (policy, timeout, detach, waits_ms, kept) in [
        (TerminusExpiryPolicy::LinkDetach, 0, true, 0, false),
        (TerminusExpiryPolicy::LinkDetach, 10, true, 9_000, true),
        (TerminusExpiryPolicy::LinkDetach, 10, true, 11_000, false),
        (TerminusExpiryPolicy::SessionEnd, 0, true, 60_000, true),
        (TerminusExpiryPolicy::SessionEnd, 0, false, 0, false),
        (
            TerminusExpiryPolicy::ConnectionClose,
            10,
            false,
            9_000,
            true,
        ),
        (
            TerminusExpiryPolicy::ConnectionClose,
            10,
            false,
            11_000,
            false,
        ),
        (TerminusExpiryPolicy::Never, 0, false, 86_400_000, true),
    ] {
        let mut config = Config::default();
        // A day passes quicker without.
        config.sys.interval_s = 0;
        let mut broker = Broker::with(&config, 1);
        let mut client = Client::connect(&mut broker, "c");
        let mut session = client.begin(&mut broker);
        let source = Source {
            expiry_policy: policy,
            timeout,
            ..Source::new("a/b")
        };
        let link = client.receiver(&mut broker, session, "r", source.clone(), 10);
        if detach {
            client.detach(&mut broker, link, false);
        } else {
            drop(client.cut(&mut broker));
            client = Client::connect(&mut broker, "c");
            session = client.begin(&mut broker);
        }
        // Another goes on, so that the connection is not silent.
        publish(&mut broker, &["m"]);
        if !detach {
            // The new connection would be silent for too long.
            drop(client.cut(&mut broker));
            broker.advance(waits_ms);
            client = Client::connect(&mut broker, "c");
            session = client.begin(&mut broker);
        } else if waits_ms <= 60_000 {
            broker.advance(waits_ms);
            client.turn(&mut broker);
        }
        client.receiver(&mut broker, session, "r", source, 10);
        let came = client.accept_all(&mut broker);
        assert_eq!(
            came.len(),
            usize::from(kept),
            "{policy:?} {timeout} {waits_ms}"
        );
    }
}

/// AMQP 1.0, part 2, section 2.6.1.
#[test]
fn a_source_is_stolen_by_its_name_whether_it_lasts_or_not() {
    for shard in [0, 1] {
        let mut broker = Broker::with(&Config::default(), 2);
        let mut first = Client::connect(&mut broker, "c");
        let session = first.begin(&mut broker);
        let stolen = [("sub", durable("a/b")), ("plain", Source::new("a/b"))]
            .map(|(name, source)| first.receiver(&mut broker, session, name, source, 10));
        let mut second = Client::start(&mut broker, Start::new("c").on(shard));
        let session = second.begin(&mut broker);
        second.receiver(&mut broker, session, "sub", durable("a/b"), 10);
        second.receiver(&mut broker, session, "plain", Source::new("a/b"), 10);
        first.turn(&mut broker);
        for link in stolen {
            assert!(first.happened.contains(&Happened::Detached {
                link,
                closed: true,
                condition: Some("amqp:link:stolen".to_owned()),
                unsettled: Vec::new(),
            }));
        }
        publish(&mut broker, &["m"]);
        first.turn(&mut broker);
        second.turn(&mut broker);
        assert!(first.texts().is_empty());
        assert_eq!(second.texts(), ["m", "m"]);
    }
}

#[test]
fn deliveries_are_recovered_with_the_unsettled_map() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let link = client.receiver(&mut broker, session, "sub", durable("a/b"), 10);
    publish(&mut broker, &["1", "2", "3"]);
    client.turn(&mut broker);
    // The first is accepted, and the broker has not heard of it when the connection is lost.
    let id = client.received[0].id;
    let tags: Vec<Vec<u8>> = client.received.iter().map(|one| one.tag.clone()).collect();
    client
        .engine
        .dispose(
            session,
            (id, id),
            Some(&DeliveryState::ACCEPTED),
            false,
            &mut client.out,
        )
        .unwrap();
    let left = client.cut(&mut broker);
    let (_, mut unsettled) = left.into_iter().find(|(id, _)| *id == link).unwrap();
    assert_eq!(unsettled.len(), 3);
    // The client has lost what it had of the third.
    unsettled.retain(|one| one.tag.as_bytes() != tags[2]);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let options = AttachOptions {
        unsettled: &unsettled,
        recover: true,
        source: Some(durable("a/b")),
        target: Some(TargetArchetype::Target(Target::default())),
        ..AttachOptions::default()
    };
    let link = client.attach(&mut broker, session, "sub", Role::Receiver, &options);
    client.credit(&mut broker, link, 10);
    let resumed: Vec<(String, bool)> = client
        .received
        .iter()
        .map(|one| (one.text(), one.resumed))
        .collect();
    // The first is settled as it was decided, the second resumed, the third sent again.
    let expected = [("2".to_owned(), true), ("3".to_owned(), false)];
    assert_eq!(resumed, expected);
    client.accept_all(&mut broker);
    drop(client.cut(&mut broker));
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "sub", durable("a/b"), 10);
    assert!(client.texts().is_empty(), "everything is settled");
}

/// A frame holds but a part of the client's map. What the broker cannot know of stays, new deliveries too, until
/// a later attach tells it.
#[test]
fn a_source_with_incomplete_maps_is_detached_to_be_attached_again() {
    let mut config = Config::default();
    config.amqp.maximum_frame_bytes = 512;
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "sub", durable("a/b"), 100);
    publish(&mut broker, &["old"; 40]);
    client.turn(&mut broker);
    let ids: Vec<u32> = client.received.iter().map(|one| one.id).collect();
    assert_eq!(ids.len(), 40);
    client
        .engine
        .dispose(
            session,
            (ids[0], ids[39]),
            Some(&DeliveryState::ACCEPTED),
            false,
            &mut client.out,
        )
        .unwrap();
    // The broker has not heard of it when the connection is lost.
    let mut unsettled = client.cut(&mut broker).pop().expect("the link").1;
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    publish(&mut broker, &["new"]);
    let mut attaches = 0;
    while client.received.is_empty() {
        attaches += 1;
        assert!(attaches < 40, "each attach tells of one at least");
        let options = AttachOptions {
            unsettled: &unsettled,
            recover: true,
            source: Some(durable("a/b")),
            target: Some(TargetArchetype::Target(Target::default())),
            ..AttachOptions::default()
        };
        let link = client.attach(&mut broker, session, "sub", Role::Receiver, &options);
        client.credit(&mut broker, link, 100);
        for one in client.happened.drain(..) {
            if let Happened::Detached {
                closed,
                condition,
                unsettled: left,
                ..
            } = one
            {
                assert_eq!((closed, condition), (false, None));
                unsettled = left;
            }
        }
    }
    assert!(attaches > 2, "{attaches}");
    assert_eq!(client.accept_all(&mut broker), ["new"]);
}

/// Sends one message whose receiver settles second, and cuts the connection after it was accepted.
fn sent_and_cut(broker: &mut Broker) -> Vec<sterna_amqp::link::Unsettled> {
    let mut client = Client::connect(broker, "c");
    let session = client.begin(broker);
    let options = AttachOptions {
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(Source::default()),
        target: Some(TargetArchetype::Target(Target::new("queue/q"))),
        ..AttachOptions::default()
    };
    let link = client.attach(broker, session, "s", Role::Sender, &options);
    client.send(broker, link, 1, "once");
    // The acceptance is on its way when the connection is lost: the client does not know of it.
    let (_, mut unsettled) = client.cut(broker).into_iter().next().expect("the link");
    for one in &mut unsettled {
        one.state = None;
    }
    unsettled
}

#[test]
fn what_a_sender_resumes_is_published_once() {
    let mut broker = Broker::new();
    let unsettled = sent_and_cut(&mut broker);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let options = AttachOptions {
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(Source::default()),
        target: Some(TargetArchetype::Target(Target::new("queue/q"))),
        unsettled: &unsettled,
        recover: true,
        ..AttachOptions::default()
    };
    client.attach(&mut broker, session, "s", Role::Sender, &options);
    let tag = unsettled[0].tag.as_bytes().to_vec();
    assert!(
        client
            .happened
            .contains(&Happened::Recovered(tag, "Settle(Accepted)".to_owned())),
        "{:?}",
        client.happened
    );
    client.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
    assert_eq!(client.accept_all(&mut broker), ["once"]);
}

#[test]
fn the_credit_that_recovery_uses_is_given_again() {
    let mut config = Config::default();
    config.amqp.link_credit = 2;
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let options = AttachOptions {
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(Source::default()),
        target: Some(TargetArchetype::Target(Target::new("queue/q"))),
        ..AttachOptions::default()
    };
    let link = client.attach(&mut broker, session, "s", Role::Sender, &options);
    for token in 1..=3 {
        client.send(&mut broker, link, token, "once");
    }
    let (_, unsettled) = client.cut(&mut broker).pop().expect("the link");
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let options = AttachOptions {
        unsettled: &unsettled,
        recover: true,
        ..options
    };
    let link = client.attach(&mut broker, session, "s", Role::Sender, &options);
    for one in &unsettled {
        let transfer = OutgoingTransfer {
            settled: true,
            resume: true,
            state: Some(DeliveryState::ACCEPTED),
            ..OutgoingTransfer::new(one.tag.as_bytes(), one.token)
        };
        let sent = client
            .engine
            .transfer(link, &transfer, &[], false, &mut client.out);
        assert!(sent.is_ok(), "{:?}: {sent:?}", one.tag);
        client.turn(&mut broker);
    }
    assert!(client.engine.can_send(link));
}

#[test]
fn what_was_remembered_of_a_sender_is_forgotten_in_time() {
    let mut broker = Broker::new();
    let unsettled = sent_and_cut(&mut broker);
    broker.advance(61_000);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let options = AttachOptions {
        unsettled: &unsettled,
        recover: true,
        source: Some(Source::default()),
        target: Some(TargetArchetype::Target(Target::new("queue/q"))),
        ..AttachOptions::default()
    };
    client.attach(&mut broker, session, "s", Role::Sender, &options);
    let tag = unsettled[0].tag.as_bytes().to_vec();
    let resend = Happened::Recovered(tag, "Resend".to_owned());
    assert!(client.happened.contains(&resend));
}

#[test]
fn filters_choose_and_unknown_ones_are_left_out() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let pattern = filter("p", "apache.org:legacy-amqp-topic-binding:string", "x.*");
    let unknown = filter("u", "example.org:filter", "x");
    let wrong = selector("this is (no selector");
    for (name, filter, applied) in [("p", &pattern, 1), ("u", &unknown, 0)] {
        let source = Source {
            filter: map(filter),
            ..Source::new("a/b")
        };
        let link = client.receiver(&mut broker, session, name, source, 10);
        assert_eq!(client.answers[&link].filters, applied);
    }
    let source = Source {
        filter: map(&wrong),
        ..Source::new("a/b")
    };
    client.tap = Some(Vec::new());
    client.receiver(&mut broker, session, "w", source, 10);
    assert_eq!(client.condition().as_deref(), Some("amqp:invalid-field"));
    let told = client.tap.take().unwrap_or_default();
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains(" at byte "), "where the fault is: {told}");
    let sender = client.sender(&mut broker, session, "a/b");
    for subject in ["x.y", "y"] {
        let mut message = bytes::BytesMut::new();
        let properties = sterna_amqp::messaging::Properties {
            subject: Some(subject),
            ..Default::default()
        };
        sterna_amqp::messaging::MessageWriter::new(&mut message)
            .properties(&properties)
            .data(subject.as_bytes());
        client.send_message(&mut broker, sender, 1, &message, true, None);
    }
    let mut came: Vec<String> = client.texts();
    came.sort();
    assert_eq!(came, ["x.y", "x.y", "y"]);
}

/// The answer says which filter is applied: AMQP 1.0, part 3, section 3.5.3.
#[test]
fn a_detached_source_is_another_with_other_filters() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let (none, all) = (selector("1 = 2"), selector("1 = 1"));
    let source = |filter| Source {
        filter: map(filter),
        ..Source::new("a/b")
    };
    let link = client.receiver(&mut broker, session, "r", source(&all), 10);
    client.detach(&mut broker, link, false);
    publish(&mut broker, &["1"]);
    let link = client.receiver(&mut broker, session, "r", source(&none), 10);
    assert_eq!(client.answers[&link].filters, 1);
    publish(&mut broker, &["2"]);
    client.turn(&mut broker);
    assert_eq!(client.texts(), [""; 0], "none of them is selected");
    client.detach(&mut broker, link, false);
    let link = client.receiver(&mut broker, session, "r", source(&all), 10);
    publish(&mut broker, &["3"]);
    client.turn(&mut broker);
    assert_eq!(client.accept_all(&mut broker), ["3"]);
    // With the same it is the same.
    client.detach(&mut broker, link, false);
    publish(&mut broker, &["4"]);
    client.receiver(&mut broker, session, "r", source(&all), 10);
    assert_eq!(client.accept_all(&mut broker), ["4"]);
}

#[test]
fn a_detached_source_that_is_to_last_is_found_by_the_next_connection() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let link = client.receiver(&mut broker, session, "r", Source::new("a/b"), 10);
    client.detach(&mut broker, link, false);
    client.receiver(&mut broker, session, "r", durable("a/b"), 10);
    drop(client.cut(&mut broker));
    publish(&mut broker, &["1"]);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "r", durable("a/b"), 10);
    assert_eq!(client.accept_all(&mut broker), ["1"]);
}

/// An attach without a source leaves the terminus as it is, and with it the end of its connection.
#[test]
fn a_source_that_is_taken_up_by_its_name_alone_lasts_no_longer() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let link = client.receiver(&mut broker, session, "r", Source::new("a/b"), 10);
    client.detach(&mut broker, link, false);
    let options = AttachOptions {
        target: Some(TargetArchetype::Target(Target::default())),
        ..AttachOptions::default()
    };
    let link = client.attach(&mut broker, session, "r", Role::Receiver, &options);
    client.credit(&mut broker, link, 10);
    publish(&mut broker, &["1"]);
    client.turn(&mut broker);
    assert_eq!(client.accept_all(&mut broker), ["1"]);
    drop(client.cut(&mut broker));
    let (sessions, _) = broker.sessions(0);
    let names = sessions.iter().map(|session| session.name.id());
    assert_eq!(names.filter(|name| name.starts_with("$amqp/")).count(), 0);
}

#[test]
fn a_source_that_another_connection_takes_up_by_its_name_alone_lasts_no_longer() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let source = Source {
        timeout: 10,
        ..Source::new("a/b")
    };
    client.receiver(&mut broker, session, "r", source, 10);
    drop(client.cut(&mut broker));
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let options = AttachOptions {
        target: Some(TargetArchetype::Target(Target::default())),
        ..AttachOptions::default()
    };
    let link = client.attach(&mut broker, session, "r", Role::Receiver, &options);
    assert_eq!(client.answers[&link].address.as_deref(), Some("a/b"));
    drop(client.cut(&mut broker));
    let is_there = |broker: &Broker| {
        let (sessions, _) = broker.sessions(0);
        let mut names = sessions.iter().map(|session| session.name.id());
        names.any(|name| name.starts_with("$amqp/"))
    };
    broker.advance(9_000);
    assert!(is_there(&broker));
    broker.advance(2_000);
    assert!(!is_there(&broker));
}

#[test]
fn a_receiver_may_leave_out_its_own_connection() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let mut out = bytes::BytesMut::new();
    let mut filters = sterna_amqp::types::MapWriter::new(&mut out);
    let entry = filters.entry(&Value::Symbol("no-local"));
    entry.extend_from_slice(&[0]);
    Value::Symbol("apache.org:no-local-filter:list").encode(entry);
    entry.extend_from_slice(&[0x45]);
    filters.finish();
    let filters = Encoded::from_bytes(out.freeze()).unwrap();
    let source = Source {
        filter: map(&filters),
        ..Source::new("a/b")
    };
    client.receiver(&mut broker, session, "r", source, 10);
    let sender = client.sender(&mut broker, session, "a/b");
    client.send(&mut broker, sender, 1, "own");
    publish(&mut broker, &["other"]);
    client.turn(&mut broker);
    assert_eq!(client.accept_all(&mut broker), ["other"]);
}

#[test]
fn receivers_share_a_subscription() {
    let mut broker = Broker::new();
    let shared = |names: &'static [&'static str]| Source {
        capabilities: Multiple::Slice(names),
        ..Source::new("a/b")
    };
    let mut clients = [("c", "s|1"), ("c", "s|2"), ("d", "s|3")].map(|(container, name)| {
        let mut client = Client::connect(&mut broker, container);
        let session = client.begin(&mut broker);
        client.receiver(&mut broker, session, name, shared(&["topic", "shared"]), 10);
        client
    });
    publish(&mut broker, &["1", "2"]);
    let counts = clients.each_mut().map(|client| {
        client.turn(&mut broker);
        client.texts().len()
    });
    assert_eq!(counts, [1, 1, 2], "within a container");
    let mut clients = ["e", "f"].map(|container| {
        let mut client = Client::connect(&mut broker, container);
        let session = client.begin(&mut broker);
        let source = shared(&["topic", "shared", "global"]);
        client.receiver(&mut broker, session, "s", source, 10);
        client
    });
    publish(&mut broker, &["1", "2"]);
    let counts = clients.each_mut().map(|client| {
        client.turn(&mut broker);
        client.texts().len()
    });
    assert_eq!(counts, [1, 1], "across containers");
}

#[test]
fn links_that_cannot_be_are_refused_with_the_condition() {
    let mut config = Config::default();
    config.authorization.default_allow = false;
    config.authorization.rules = vec![Rule {
        effect: Effect::Allow,
        actions: vec![ActionName::Publish, ActionName::Subscribe],
        topics: vec!["open/#".to_owned(), "queue/open".to_owned()],
        ..Rule::default()
    }];
    config.amqp.maximum_queues = 1;
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    for (address, condition) in [
        ("open/a", None),
        ("queue/open", None),
        ("closed/a", Some("amqp:unauthorized-access")),
        ("queue/closed", Some("amqp:unauthorized-access")),
        ("/topics/a", Some("amqp:not-found")),
        ("open/#/a", Some("amqp:invalid-field")),
    ] {
        client.receiver(
            &mut broker,
            session,
            &format!("r{address}"),
            Source::new(address),
            1,
        );
        assert_eq!(client.condition().as_deref(), condition, "source {address}");
        client.sender(&mut broker, session, address);
        assert_eq!(client.condition().as_deref(), condition, "target {address}");
    }
    client.receiver(&mut broker, session, "none", Source::default(), 1);
    assert_eq!(client.condition().as_deref(), Some("amqp:invalid-field"));
    // A look needs the same right.
    let browse = Source {
        distribution_mode: Some(sterna_amqp::messaging::DistributionMode::Copy),
        ..Source::new("queue/closed")
    };
    client.receiver(&mut broker, session, "browse", browse, 1);
    let condition = client.condition();
    assert_eq!(condition.as_deref(), Some("amqp:unauthorized-access"));
}

/// A terminus says what it keeps (AMQP 1.0, section 3.5.1): without a store nothing survives the broker.
#[test]
fn no_terminus_is_promised_to_be_durable() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let source = client.receiver(&mut broker, session, "sub", durable("a/b"), 1);
    let options = AttachOptions {
        source: Some(Source::default()),
        target: Some(TargetArchetype::Target(Target {
            durable: TerminusDurability::UnsettledState,
            ..Target::new("queue/q")
        })),
        ..AttachOptions::default()
    };
    let target = client.attach(&mut broker, session, "pub", Role::Sender, &options);
    for link in [source, target] {
        assert_eq!(client.answers[&link].durable, TerminusDurability::None);
    }
    // The life time that it does keep.
    assert_eq!(client.answers[&source].expiry, "Never");
}

#[test]
fn the_anonymous_node_sends_each_message_where_it_says() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "r", Source::new("a/b"), 10);
    let options = AttachOptions {
        source: Some(Source {
            dynamic: true,
            ..Source::default()
        }),
        target: Some(TargetArchetype::Target(Target::default())),
        ..AttachOptions::default()
    };
    let replies = client.attach(&mut broker, session, "replies", Role::Receiver, &options);
    client.credit(&mut broker, replies, 10);
    let reply_to = client.answers[&replies]
        .address
        .clone()
        .expect("an address");
    assert!(reply_to.starts_with("amqp/dynamic/"));
    let sender = client.anonymous_sender(&mut broker, session);
    for (token, to, outcome) in [
        (1, "a/b", "accepted"),
        (2, &*reply_to, "accepted"),
        (3, "queue/q", "accepted"),
        (4, "a/#", "rejected amqp:invalid-field"),
        (5, "/nothing", "rejected amqp:not-found"),
        (6, "$SYS/x", "rejected amqp:unauthorized-access"),
    ] {
        let message = message_to(to, to);
        client.send_message(&mut broker, sender, token, &message, false, None);
        assert_eq!(client.outcomes(), [(token, outcome.to_owned())], "{to}");
    }
    // JMS clients say by an annotation that a plain name is a queue's.
    let mut message = bytes::BytesMut::new();
    let properties = sterna_amqp::messaging::Properties {
        to: Some(Value::String("plain")),
        ..Default::default()
    };
    sterna_amqp::messaging::MessageWriter::new(&mut message)
        .message_annotations(|map| map.push(&Value::Symbol("x-opt-jms-dest"), &Value::Byte(0)))
        .properties(&properties)
        .data(b"to a queue");
    client.send_message(&mut broker, sender, 8, &message, false, None);
    assert_eq!(client.outcomes(), [(8, "accepted".to_owned())]);
    client.receiver(&mut broker, session, "q", Source::new("queue/plain"), 10);
    assert_eq!(
        client.accept_all(&mut broker),
        ["a/b", &reply_to, "to a queue"]
    );
    client.send(&mut broker, sender, 7, "nowhere");
    let rejected = "rejected amqp:precondition-failed".to_owned();
    assert_eq!(client.outcomes(), [(7, rejected)]);
}
