//! Every limit is a setting, and what exceeds it is refused with a condition.

use bytes::BytesMut;
use sterna_amqp::Limits;
use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::{AttachOptions, DeliveryTag, Unsettled};
use sterna_amqp::messaging::{DistributionMode, MessageWriter, Source, Target, TargetArchetype};
use sterna_amqp::performatives::{ReceiverSettleMode, Role};
use sterna_amqp::types::Value;
use sterna_mqtt::{QoS, Version};
use sterna_server::config::{ActionName, Amqp, Config, Effect, Rule};

use crate::amqp_client::{Client, Start, message_to};
use crate::fixture::Broker;

fn broker(set: impl FnOnce(&mut Amqp)) -> Broker {
    let mut config = Config::default();
    set(&mut config.amqp);
    Broker::with(&config, 1)
}

#[test]
fn sessions_and_frames_are_announced_and_kept() {
    let mut broker = broker(|amqp| {
        amqp.maximum_sessions_per_connection = 2;
        amqp.maximum_frame_bytes = 1024;
    });
    let mut client = Client::connect(&mut broker, "c");
    client.begin(&mut broker);
    client.begin(&mut broker);
    let third = client
        .engine
        .begin(sterna_amqp::Lane::CONTROL, &mut client.out);
    assert!(third.is_err(), "the client was told channel-max");
    assert_eq!(client.engine.peer_max_frame_bytes(), 1024);
    // One who was not told is disconnected.
    let mut frame = vec![0; 2048];
    frame[..8].copy_from_slice(&[0, 0, 8, 0, 2, 0, 0, 0]);
    broker.send(client.peer, &frame);
    client.read(&mut broker);
    let condition = client.condition();
    assert_eq!(condition.as_deref(), Some("amqp:connection:framing-error"));
    assert!(broker.is_closed(client.peer));
}

#[test]
fn links_of_a_connection_are_limited_over_all_sessions() {
    let mut broker = broker(|amqp| amqp.maximum_links_per_connection = 3);
    let mut client = Client::connect(&mut broker, "c");
    let sessions = [client.begin(&mut broker), client.begin(&mut broker)];
    client.sender(&mut broker, sessions[0], "a");
    client.receiver(&mut broker, sessions[0], "b", Source::new("b"), 1);
    let third = client.receiver(&mut broker, sessions[1], "c", Source::new("c"), 1);
    for role in [Role::Sender, Role::Receiver] {
        let options = crate::amqp_client::settle_modes(
            sterna_amqp::performatives::SenderSettleMode::Mixed,
            ReceiverSettleMode::First,
            Source::new("d"),
        );
        client.attach(&mut broker, sessions[1], "d", role, &options);
        let condition = client.condition();
        let expected = Some("amqp:resource-limit-exceeded");
        assert_eq!(condition.as_deref(), expected, "{role:?}");
    }
    // The others stay, and one that ends makes room.
    client.detach(&mut broker, third, true);
    client.sender(&mut broker, sessions[0], "d");
    assert_eq!(client.condition(), None);
}

#[test]
fn links_are_limited() {
    let mut broker = broker(|amqp| {
        amqp.maximum_links_per_session = 2;
        amqp.maximum_link_name_bytes = 16;
    });
    let mut client = Client::start(
        &mut broker,
        Start {
            limits: Limits {
                max_link_name_bytes: 1024,
                ..Limits::default()
            },
            ..Start::new("c")
        },
    );
    let session = client.begin(&mut broker);
    client.sender(&mut broker, session, "a");
    client.sender(&mut broker, session, "b");
    let options = crate::amqp_client::settle_modes(
        sterna_amqp::performatives::SenderSettleMode::Mixed,
        ReceiverSettleMode::First,
        Source::new("c"),
    );
    let third = client
        .engine
        .attach(session, "c", Role::Receiver, &options, &mut client.out);
    assert!(third.is_err(), "the client was told handle-max");
    let session = client.begin(&mut broker);
    let long = "x".repeat(17);
    client.sender(&mut broker, session, &long);
    assert!(client.condition().is_some());
}

#[test]
fn container_ids_are_limited() {
    let mut broker = broker(|amqp| amqp.maximum_container_id_bytes = 4);
    let mut client = Client::connect(&mut broker, "12345");
    client.turn(&mut broker);
    assert_eq!(client.condition().as_deref(), Some("amqp:invalid-field"));
    assert!(Client::connect(&mut broker, "1234").is_open);
}

#[test]
fn messages_are_limited() {
    let mut broker = broker(|amqp| {
        amqp.maximum_message_bytes = 1000;
        amqp.maximum_frame_bytes = 512;
    });
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let link = client.sender(&mut broker, session, "a");
    client.send(&mut broker, link, 1, &"x".repeat(900));
    assert_eq!(client.outcomes(), [(1, "accepted".to_owned())]);
    let transfer = sterna_amqp::link::OutgoingTransfer::new(b"2", 2);
    let long = [0; 1001];
    let sent = client
        .engine
        .transfer(link, &transfer, &[&long], false, &mut client.out);
    assert!(sent.is_err(), "the client was told max-message-size");
}

#[test]
fn a_receiver_holds_no_more_than_its_limit() {
    let mut broker = broker(|amqp| amqp.maximum_unsettled_deliveries = 3);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "r", Source::new("a"), 100);
    let mqtt = broker.client(Version::V5, "publisher");
    for _ in 0..5 {
        broker.publish(mqtt, Version::V5, "a", "m", QoS::AtLeastOnce);
    }
    client.turn(&mut broker);
    assert_eq!(client.received.len(), 3);
    client.accept_all(&mut broker);
    assert_eq!(client.received.len(), 2, "the rest when there is room");
}

/// A message that cannot be sent whole ends neither its link nor the messages behind it.
#[test]
fn a_message_above_the_receivers_limit_is_passed_over() {
    let mut config = Config::default();
    // Of a message no more is passed on at a time.
    config.network.high_watermark_bytes = 10_000;
    for is_kept in [true, false] {
        let mut broker = Broker::with(&config, 1);
        let mut client = Client::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        let options = AttachOptions {
            source: Some(Source::new("a")),
            target: Some(TargetArchetype::Target(Target::default())),
            max_message_size: Some(30_000),
            ..AttachOptions::default()
        };
        let link = client.attach(&mut broker, session, "r", Role::Receiver, &options);
        client.credit(&mut broker, link, 10);
        let mqtt = broker.client(Version::V5, "publisher");
        let qos = if is_kept {
            QoS::AtLeastOnce
        } else {
            QoS::AtMostOnce
        };
        for bytes in [40_000, 20_000, 1] {
            broker.publish(mqtt, Version::V5, "a", &"x".repeat(bytes), qos);
            for _ in 0..5 {
                broker.writable(client.peer);
                client.turn(&mut broker);
            }
        }
        let came = client.accept_all(&mut broker);
        let bytes: Vec<_> = came.iter().map(String::len).collect();
        assert_eq!(bytes, [20_000, 1], "{qos:?}");
        assert_eq!(client.engine.unsettled(session), (0, 0));
    }
}

#[test]
fn credit_is_given_and_renewed() {
    let mut broker = broker(|amqp| amqp.link_credit = 4);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let link = client.sender(&mut broker, session, "a");
    assert_eq!(client.engine.credit(link), 4);
    for (sent, credit) in [(1, 3), (2, 4), (3, 3)] {
        client.send(&mut broker, link, sent, "m");
        assert_eq!(client.engine.credit(link), credit);
    }
}

#[test]
fn what_comes_before_the_open_is_bounded() {
    let (_directory, mut config) = {
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().join("passwords");
        let record =
            sterna_auth::Record::from_password("secret", &[7; 16], 4096).expect("a record");
        std::fs::write(&path, format!("ann:{record}\n")).expect("written");
        let mut config = Config::default();
        config.authentication.password_file = Some(path);
        config.passwords.iterations = 0;
        (directory, config)
    };
    config.amqp.maximum_held_bytes = 1000;
    let mut broker = Broker::with(&config, 1);
    let mechanism = sterna_amqp::sasl::Plain {
        user: "ann".to_owned(),
        password: "secret".to_owned(),
    };
    let peer = broker.open_speaking(b"amqp", 0, sterna_net::TransportKind::Tcp, Vec::new());
    let mut out = BytesMut::new();
    let options = sterna_amqp::connection::ClientOptions {
        open: sterna_amqp::performatives::Open::new("c"),
        mechanism: Some(Box::new(mechanism)),
        pipelined: true,
    };
    let _engine = sterna_amqp::Connection::client(options, &Limits::default(), 0, &mut out);
    broker.send(peer, &out);
    assert!(!broker.is_closed(peer), "the password is being checked");
    broker.send(peer, &[0; 2000]);
    assert!(broker.is_closed(peer));
}

#[test]
fn silent_clients_are_disconnected() {
    let mut config = Config::default();
    config.network.connect_timeout_ms = 5_000;
    config.amqp.idle_timeout_ms = 20_000;
    let mut broker = Broker::with(&config, 1);
    let silent = broker.open_speaking(b"amqp", 0, sterna_net::TransportKind::Tcp, Vec::new());
    let mut client = Client::connect(&mut broker, "c");
    assert!(client.is_open);
    broker.advance(6_000);
    assert!(broker.is_closed(silent), "no open");
    assert!(!broker.is_closed(client.peer));
    broker.advance(40_000);
    client.read(&mut broker);
    let condition = client.condition();
    assert_eq!(condition.as_deref(), Some("amqp:resource-limit-exceeded"));
    assert!(broker.is_closed(client.peer), "silent for too long");
}

#[test]
fn queues_are_limited_and_full_ones_refuse() {
    let mut config = Config::default();
    config.amqp.maximum_queues = 1;
    let limits = sterna_broker::Limits {
        group_queued_messages: 2,
        ..sterna_broker::Limits::default()
    };
    let mut broker = Broker::restored(&config, 1, limits, || Box::new(sterna_broker::NoStore));
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let link = client.sender(&mut broker, session, "queue/a");
    for (token, outcome) in [
        (1, "accepted"),
        (2, "accepted"),
        (3, "rejected amqp:resource-limit-exceeded"),
    ] {
        client.send(&mut broker, link, token, "m");
        assert_eq!(client.outcomes(), [(token, outcome.to_owned())]);
    }
    client.sender(&mut broker, session, "queue/b");
    let condition = client.condition();
    assert_eq!(condition.as_deref(), Some("amqp:resource-limit-exceeded"));
}

#[test]
fn selectors_are_limited() {
    let mut broker = broker(|amqp| amqp.maximum_selector_bytes = 10);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let filter = crate::amqp::links::selector("color = 'blue'");
    let source = Source {
        filter: crate::amqp::links::map(&filter),
        ..Source::new("a")
    };
    client.receiver(&mut broker, session, "r", source, 1);
    assert_eq!(client.condition().as_deref(), Some("amqp:invalid-field"));
}

/// A message with a property of so many bytes.
fn long_property(bytes: usize) -> BytesMut {
    let mut message = BytesMut::new();
    MessageWriter::new(&mut message)
        .application_properties(|map| {
            map.push(&Value::String("p"), &Value::String(&"a".repeat(bytes)));
        })
        .data(b"m");
    message
}

/// A link whose selector takes too much work for a message ends, and nobody else's.
#[test]
fn a_link_with_a_dear_selector_ends() {
    let filter = crate::amqp::links::selector(&format!("p LIKE '%{}b%'", "a".repeat(900)));
    for (address, mode) in [
        ("queue/q", None),
        ("queue/q", Some(DistributionMode::Copy)),
        ("a", None),
    ] {
        let mut broker = broker(|amqp| amqp.maximum_selector_steps = 1_000);
        let mut dear = Client::connect(&mut broker, "dear");
        let mut client = Client::connect(&mut broker, "c");
        let (of_dear, session) = (dear.begin(&mut broker), client.begin(&mut broker));
        let sender = client.sender(&mut broker, session, address);
        let source = || Source {
            filter: crate::amqp::links::map(&filter),
            distribution_mode: mode,
            ..Source::new(address)
        };
        if mode.is_none() {
            dear.receiver(&mut broker, of_dear, "dear", source(), 10);
        }
        client.send_message(&mut broker, sender, 1, &long_property(2_000), false, None);
        dear.turn(&mut broker);
        assert_eq!(dear.condition(), None, "that is not too much");
        client.send_message(&mut broker, sender, 2, &long_property(65_000), false, None);
        if mode.is_some() {
            dear.receiver(&mut broker, of_dear, "dear", source(), 10);
        }
        dear.turn(&mut broker);
        let condition = dear.condition();
        assert_eq!(condition.as_deref(), Some("amqp:resource-limit-exceeded"));
        client.receiver(&mut broker, session, "r", Source::new(address), 10);
        let left = usize::from(address != "a") * 2;
        assert_eq!(client.accept_all(&mut broker).len(), left, "{address}");
        // The client of the link goes on.
        dear.receiver(&mut broker, of_dear, "again", Source::new("b"), 1);
        let of_b = client.sender(&mut broker, session, "b");
        client.send(&mut broker, of_b, 3, "m");
        dear.turn(&mut broker);
        assert_eq!(dear.accept_all(&mut broker).len(), 1);
    }
}

/// Where all selectors together take more than a turn has, all messages come in the end.
#[test]
fn selectors_go_on_in_the_next_turn() {
    let mut config = Config::default();
    config.broker.maximum_steps_per_turn = 500;
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let sender = client.sender(&mut broker, session, "queue/q");
    for token in 0..5 {
        client.send_message(
            &mut broker,
            sender,
            token,
            &long_property(1_000),
            false,
            None,
        );
    }
    let filter = crate::amqp::links::selector("p LIKE '%aa%a'");
    for number in 0..20 {
        let source = Source {
            filter: crate::amqp::links::map(&filter),
            distribution_mode: Some(DistributionMode::Copy),
            ..Source::new("queue/q")
        };
        client.receiver(&mut broker, session, &format!("b{number}"), source, 10);
    }
    client.turn(&mut broker);
    assert_eq!(client.accept_all(&mut broker).len(), 100);
}

#[test]
fn sources_last_no_longer_than_the_limit() {
    let mut broker = broker(|amqp| amqp.maximum_source_timeout_s = 60);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let source = Source {
        expiry_policy: sterna_amqp::messaging::TerminusExpiryPolicy::Never,
        ..Source::new("a")
    };
    let link = client.receiver(&mut broker, session, "r", source, 1);
    assert_eq!(client.answers[&link].expiry, "ConnectionClose");
}

/// Who keeps to its credit never exceeds the limit on unsettled deliveries, however late it settles.
#[test]
fn credit_leaves_room_for_what_is_unsettled() {
    let mut broker = broker(|amqp| {
        amqp.maximum_unsettled_deliveries = 6;
        amqp.link_credit = 4;
    });
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let options = AttachOptions {
        rcv_settle_mode: ReceiverSettleMode::Second,
        target: Some(TargetArchetype::Target(Target::new("a"))),
        ..Default::default()
    };
    let link = client.attach(&mut broker, session, "s", Role::Sender, &options);
    let mut sent = 0;
    while client.engine.credit(link) > 0 {
        sent += 1;
        client.send(&mut broker, link, sent, "m");
    }
    assert_eq!(sent, 6);
    assert_eq!(client.condition(), None);
    client
        .engine
        .settle(session, (0, 5), None, &mut client.out)
        .expect("a session");
    client.turn(&mut broker);
    assert_eq!(client.engine.credit(link), 4, "again when they are settled");
}

/// Attack 21: a receiver with all the credit there is does not empty a queue into its own link, where no
/// limit of the queue counts any more.
#[test]
fn a_queue_gives_a_link_no_more_than_may_be_unsettled() {
    let mut config = Config::default();
    config.amqp.maximum_unsettled_deliveries = 5;
    let limits = sterna_broker::Limits {
        group_queued_messages: 10,
        ..sterna_broker::Limits::default()
    };
    for shards in [1, 2] {
        let mut broker = Broker::restored(&config, shards, limits.clone(), || {
            Box::new(sterna_broker::NoStore)
        });
        let mut sender = Client::connect(&mut broker, "sender");
        let session = sender.begin(&mut broker);
        let to_queue = sender.sender(&mut broker, session, "queue/q");
        let mut client = Client::start(&mut broker, Start::new("c").on(shards - 1));
        let session = client.begin(&mut broker);
        client.receiver(&mut broker, session, "r", Source::new("queue/q"), u32::MAX);
        let mut accepted = 0;
        for token in 0..40 {
            sender.send(&mut broker, to_queue, token, &token.to_string());
            let outcomes = sender.outcomes();
            accepted += usize::from(outcomes[0].1 == "accepted");
        }
        assert_eq!(accepted, 5 + 10, "{shards} shards");
        client.turn(&mut broker);
        let mut texts = Vec::new();
        for _ in 0..4 {
            assert!(client.received.len() <= 5);
            texts.extend(client.accept_all(&mut broker));
        }
        let expected: Vec<String> = (0..15).map(|token| token.to_string()).collect();
        assert_eq!(texts, expected, "{shards} shards");
        // Who receives everything settled has nothing unsettled, and is not held up.
        client.cut(&mut broker);
        let mut client = Client::start(&mut broker, Start::new("c").on(shards - 1));
        let session = client.begin(&mut broker);
        let options = crate::amqp_client::settle_modes(
            sterna_amqp::performatives::SenderSettleMode::Settled,
            ReceiverSettleMode::First,
            Source::new("queue/q"),
        );
        let link = client.attach(&mut broker, session, "s", Role::Receiver, &options);
        client.credit(&mut broker, link, 1_000);
        for token in 0..40 {
            sender.send(&mut broker, to_queue, token, &token.to_string());
            assert_eq!(sender.outcomes()[0].1, "accepted");
        }
        client.turn(&mut broker);
        assert_eq!(client.texts().len(), 40, "{shards} shards");
    }
}

/// Sources that are detached and not closed wait for their links, but not any number of them.
#[test]
fn detached_sources_are_limited() {
    let mut broker = broker(|amqp| amqp.maximum_links_per_session = 3);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    for number in 0..10 {
        let name = number.to_string();
        let link = client.receiver(&mut broker, session, &name, Source::new("a"), 1);
        client.detach(&mut broker, link, false);
    }
    assert_eq!(broker.sessions(0).0.len(), 3);
    let mqtt = broker.client(Version::V5, "publisher");
    broker.publish(mqtt, Version::V5, "a", "m", QoS::AtLeastOnce);
    for (name, kept) in [("6", false), ("9", true)] {
        client.receiver(&mut broker, session, name, Source::new("a"), 1);
        assert_eq!(
            client.accept_all(&mut broker).len(),
            usize::from(kept),
            "{name}"
        );
    }
}

/// Part 2, section 2.8.16: the broker may name another one.
#[test]
fn a_stopping_broker_says_where_to_go() {
    for (reference, condition) in [
        (None, "amqp:connection:forced"),
        (Some("b.example:5671"), "amqp:connection:redirect"),
    ] {
        let mut broker = broker(|amqp| amqp.server_reference = reference.map(str::to_owned));
        let client = Client::connect(&mut broker, "c");
        broker.stop();
        let told = broker.take(client.peer);
        let has = |text: &str| {
            told.windows(text.len())
                .any(|bytes| bytes == text.as_bytes())
        };
        assert!(has(condition));
        for part in ["hostname", "network-host", "port", "b.example"] {
            assert_eq!(has(part), reference.is_some(), "{part}");
        }
        // An ushort, as the specification has it.
        assert_eq!(has("port\u{60}"), reference.is_some());
    }
    for wrong in ["b.example", ":5671", "b.example:0", "b.example:70000"] {
        let config = Config {
            amqp: Amqp {
                server_reference: Some(wrong.to_owned()),
                ..Amqp::default()
            },
            ..Config::default()
        };
        let problems = config.check().expect_err("refused").concat();
        assert!(problems.contains("amqp.server_reference"), "{problems}");
    }
}

/// Attaches a link whose receiver settles second, and tells what is unsettled from before.
fn attach_exact(
    broker: &mut Broker,
    client: &mut Client,
    session: SessionId,
    unsettled: &[Unsettled],
) -> LinkId {
    let options = AttachOptions {
        rcv_settle_mode: ReceiverSettleMode::Second,
        target: Some(TargetArchetype::Target(Target::new("a"))),
        unsettled,
        ..Default::default()
    };
    client.attach(broker, session, "s", Role::Sender, &options)
}

/// Deliveries that are remembered of earlier attachments count, too.
#[test]
fn a_link_that_comes_again_and_again_has_no_more_unsettled_than_it_may() {
    let mut broker = broker(|amqp| {
        amqp.maximum_unsettled_deliveries = 6;
        amqp.link_credit = 4;
    });
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let mut unsettled = Vec::new();
    for _ in 0..5 {
        let link = attach_exact(&mut broker, &mut client, session, &unsettled);
        while client.engine.credit(link) > 0 {
            let token = unsettled.len() as u64;
            client.send(&mut broker, link, token, "m");
            unsettled.push(Unsettled {
                tag: DeliveryTag::new(&token.to_be_bytes()).expect("a short tag"),
                token,
                state: None,
            });
        }
        client.detach(&mut broker, link, false);
    }
    assert_eq!((unsettled.len(), client.condition()), (6, None));
    // A client that says that it has none left makes room.
    let link = attach_exact(&mut broker, &mut client, session, &[]);
    assert_eq!(client.engine.credit(link), 4);
}

/// Its answer finds no room in the client's frames.
#[test]
fn a_source_whose_return_is_refused_stays_with_its_messages() {
    let mut broker = broker(|_| {});
    let filter = crate::amqp::links::selector(&format!("'{}' = '' OR 1 = 1", "x".repeat(600)));
    let source = || Source {
        expiry_policy: sterna_amqp::messaging::TerminusExpiryPolicy::Never,
        filter: crate::amqp::links::map(&filter),
        ..Source::new("a")
    };
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "r", source(), 0);
    client.cut(&mut broker);
    let mqtt = broker.client(Version::V5, "publisher");
    broker.publish(mqtt, Version::V5, "a", "m", QoS::AtLeastOnce);
    let narrow = Start {
        limits: Limits {
            max_frame_bytes: 512,
            ..Limits::default()
        },
        ..Start::new("c")
    };
    let mut client = Client::start(&mut broker, narrow);
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "r", source(), 1);
    let condition = client.condition();
    assert_eq!(condition.as_deref(), Some("amqp:frame-size-too-small"));
    client.cut(&mut broker);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "r", source(), 1);
    assert_eq!(client.accept_all(&mut broker), ["m"]);
}

/// Else the last of them wins, and nobody is told.
#[test]
fn two_queues_of_one_name_and_filters_that_are_none_are_refused() {
    let problems = |queues: &str| {
        let config = sterna_server::config::parse("test", queues).expect("it is TOML");
        config.check().err().map(|faults| faults.join("\n"))
    };
    assert_eq!(
        problems("[[amqp.queue]]\nname = 'a'\nfilter = 'a/+/#'"),
        None
    );
    for (queues, fault) in [
        (
            "[[amqp.queue]]\nname = 'a'\n[[amqp.queue]]\nname = 'a'",
            "twice",
        ),
        (
            "[[amqp.queue]]\nname = 'a'\nfilter = '$share/x/y'",
            "filter",
        ),
        ("[[amqp.queue]]\nname = 'a'\nfilter = 'a/#/b'", "filter"),
    ] {
        let told = problems(queues).unwrap_or_default();
        assert!(
            told.contains("amqp.queue") && told.contains(fault),
            "{queues}: {told}"
        );
    }
}

/// Else anybody takes the places of queues, whatever the rules allow.
#[test]
fn a_message_that_names_a_queue_makes_none_where_its_sender_may_not_publish() {
    let mut config = Config::default();
    config.amqp.maximum_queues = 1;
    config.authorization.rules = vec![Rule {
        effect: Effect::Deny,
        actions: vec![ActionName::Publish],
        topics: vec!["queue/secret".to_owned()],
        ..Rule::default()
    }];
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let relay = client.anonymous_sender(&mut broker, session);
    for (token, address, outcome) in [
        (1, "queue/secret", "rejected amqp:unauthorized-access"),
        (2, "queue/mine", "accepted"),
    ] {
        let message = message_to(address, "m");
        client.send_message(&mut broker, relay, token, &message, false, None);
        assert_eq!(
            client.outcomes(),
            [(token, outcome.to_owned())],
            "{address}"
        );
    }
}
