//! AMQP on the streams of QUIC (`docs/amqp-over-quic.md`).

use sterna_amqp::messaging::Source;
use sterna_amqp::types::Value;
use sterna_mqtt::{QoS, Version};
use sterna_net::{StreamId, TransportKind};
use sterna_server::config::{Config, EarlyData, Listener, Rule};

use crate::amqp_client::{Client, Start};
use crate::fixture::Broker;

fn quic(broker: &mut Broker, container: &str) -> Client {
    Client::start(broker, Start::new(container).over(TransportKind::Quic))
}

/// Sections 6 to 8.
#[test]
fn each_session_has_a_stream_and_one_for_all_will_do() {
    let mut broker = Broker::new();
    let mut client = quic(&mut broker, "c");
    let first = client.begin(&mut broker);
    let second = client.begin(&mut broker);
    assert_ne!(client.engine.lane_of(first), client.engine.lane_of(second));
    let control = client
        .engine
        .begin(sterna_amqp::Lane::CONTROL, &mut client.out)
        .expect("a session on the control stream");
    client.turn(&mut broker);
    for (number, session) in [first, second, control].into_iter().enumerate() {
        let name = number.to_string();
        client.receiver(&mut broker, session, &name, Source::new("a"), 10);
    }
    let sender = client.sender(&mut broker, first, "a");
    client.send(&mut broker, sender, 1, "m");
    assert_eq!(client.accept_all(&mut broker), ["m"; 3]);
}

/// Section 10.
#[test]
fn the_stream_of_an_ended_session_is_finished() {
    let mut broker = Broker::new();
    let mut client = quic(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.engine.end(session, None, &mut client.out).unwrap();
    client.turn(&mut broker);
    let finished = (client.peer.id, StreamId(4));
    assert_eq!(broker.wires[0].finished, [finished]);
}

/// Section 11.
#[test]
fn a_stream_that_is_lost_ends_its_session_and_no_other() {
    for how in 0..3 {
        let mut broker = Broker::new();
        let mut client = quic(&mut broker, "c");
        let lost = client.begin(&mut broker);
        let kept = client.begin(&mut broker);
        let source = Source {
            timeout: 60,
            ..Source::new("a")
        };
        client.receiver(&mut broker, lost, "lost", source.clone(), 10);
        client.receiver(&mut broker, kept, "kept", Source::new("a"), 10);
        match how {
            0 => broker.abort(client.peer, StreamId(4)),
            1 => broker.stop_reading(client.peer, StreamId(4)),
            _ => broker.finish(client.peer, StreamId(4)),
        }
        let aborted = (client.peer.id, StreamId(4), 1);
        assert_eq!(broker.wires[0].aborted, [aborted]);
        client.engine.lane_closed(sterna_amqp::Lane(4));
        while client.engine.next_event().is_some() {}
        let mqtt = broker.client(Version::V5, "publisher");
        broker.publish(mqtt, Version::V5, "a", "m", QoS::AtLeastOnce);
        client.turn(&mut broker);
        assert_eq!(
            client.accept_all(&mut broker),
            ["m"],
            "on the other session"
        );
        // The link was suspended, not closed.
        let again = client.begin(&mut broker);
        client.receiver(&mut broker, again, "lost", source, 10);
        assert_eq!(client.accept_all(&mut broker), ["m"]);
    }
}

/// Section 12.
#[test]
fn unidirectional_streams_are_refused() {
    let mut broker = Broker::new();
    let client = quic(&mut broker, "c");
    broker.send_on(client.peer, StreamId(2), b"x");
    assert_eq!(broker.wires[0].aborted, [(client.peer.id, StreamId(2), 1)]);
    broker.datagram(client.peer, b"x");
    assert!(!broker.is_closed(client.peer));
}

/// Sections 9 and 13: begin on a stream may overtake the open.
#[test]
fn a_session_that_overtakes_the_open_waits_for_it() {
    let mut broker = Broker::new();
    let peer = broker.open_speaking(b"amqp", 0, TransportKind::Quic, Vec::new());
    let mut out = crate::amqp_client::Lanes::default();
    let options = sterna_amqp::connection::ClientOptions {
        open: sterna_amqp::performatives::Open::new("c"),
        mechanism: None,
        pipelined: true,
    };
    let mut engine =
        sterna_amqp::Connection::client(options, &sterna_amqp::Limits::default(), 0, &mut out);
    engine.begin(sterna_amqp::Lane(4), &mut out).unwrap();
    let lane = |out: &mut crate::amqp_client::Lanes, lane| {
        use sterna_amqp::LaneWriter as _;
        out.buffer(sterna_amqp::Lane(lane)).split()
    };
    broker.send_on(peer, StreamId(4), &lane(&mut out, 4));
    assert!(broker.take_on(peer, StreamId(4)).is_empty());
    broker.send_on(peer, StreamId(0), &lane(&mut out, 0));
    assert!(
        !broker.take_on(peer, StreamId(4)).is_empty(),
        "the begin is answered"
    );
}

fn early_config(early_data: EarlyData) -> Config {
    let mut config = Config {
        listeners: vec![Listener {
            early_data: Some(early_data),
            ..Listener::at("mqtt+quic://localhost:0")
        }],
        ..Config::default()
    };
    config.authorization.rules = vec![
        Rule {
            topics: vec!["idempotent/#".to_owned()],
            idempotent: true,
            ..Rule::default()
        },
        Rule {
            topics: vec!["#".to_owned()],
            ..Rule::default()
        },
    ];
    config
}

/// Sections 14 and 15: what a first flight does before the handshake is complete.
#[test]
fn early_data_does_what_the_policy_allows() {
    for (policy, settled, address, at_once) in [
        (EarlyData::All, false, "a", true),
        (EarlyData::Idempotent, true, "idempotent/a", true),
        (EarlyData::Idempotent, false, "idempotent/a", false),
        (EarlyData::Idempotent, true, "a", false),
        (EarlyData::Off, true, "idempotent/a", false),
    ] {
        let mut broker = Broker::with(&early_config(policy), 1);
        let mqtt = broker.client(Version::V5, "subscriber");
        broker.subscribe(mqtt, Version::V5, "#", QoS::AtMostOnce);
        let peer = broker.open_speaking(b"amqp", 0, TransportKind::Quic, Vec::new());
        let mut out = crate::amqp_client::Lanes::default();
        let options = sterna_amqp::connection::ClientOptions {
            open: sterna_amqp::performatives::Open::new("c"),
            mechanism: None,
            pipelined: true,
        };
        let limits = sterna_amqp::Limits::default();
        let mut engine = sterna_amqp::Connection::client(options, &limits, 0, &mut out);
        let session = engine.begin(sterna_amqp::Lane(4), &mut out).unwrap();
        let attach = sterna_amqp::link::AttachOptions {
            target: Some(sterna_amqp::messaging::TargetArchetype::Target(
                sterna_amqp::messaging::Target::new(address),
            )),
            ..Default::default()
        };
        let role = sterna_amqp::performatives::Role::Sender;
        let link = engine
            .attach(session, "l", role, &attach, &mut out)
            .unwrap();
        engine.assume_credit(link, 1).unwrap();
        let mut message = bytes::BytesMut::new();
        sterna_amqp::messaging::MessageWriter::new(&mut message).data(b"m");
        let transfer = sterna_amqp::link::OutgoingTransfer {
            settled,
            ..sterna_amqp::link::OutgoingTransfer::new(b"1", 1)
        };
        let sent = engine.transfer(link, &transfer, &[&message], false, &mut out);
        assert!(sent.is_ok_and(|sent| sent.complete));
        for lane in [0, 4] {
            use sterna_amqp::LaneWriter as _;
            let bytes = out.buffer(sterna_amqp::Lane(lane)).split();
            let chunk = sterna_net::Chunk {
                stream: StreamId(lane),
                bytes: &bytes,
                early: true,
                confirmed: false,
            };
            broker.arrive(peer, chunk);
        }
        let told = [format!("PUBLISH0 {address}=m")];
        let early = broker.told(mqtt, Version::V5);
        assert_eq!(
            early.len(),
            usize::from(at_once),
            "{policy:?} {settled} {address}"
        );
        broker.confirm(peer);
        let late = broker.told(mqtt, Version::V5);
        assert_eq!([early, late].concat(), told, "once, and not lost");
    }
}

/// A flight that was held back, whose client has come by another connection since: nothing is taken from it.
#[test]
fn a_flight_that_was_held_back_takes_no_link() {
    let durable = || Source {
        durable: sterna_amqp::messaging::TerminusDurability::Configuration,
        expiry_policy: sterna_amqp::messaging::TerminusExpiryPolicy::Never,
        ..Source::new("a")
    };
    for (is_attached, source, is_closed) in [
        (false, durable(), true),
        (true, durable(), false),
        (true, Source::new("a"), true),
    ] {
        let mut broker = Broker::with(&early_config(EarlyData::Idempotent), 1);
        let mut own = quic(&mut broker, "c");
        let session = own.begin(&mut broker);
        let link = own.receiver(&mut broker, session, "l", source.clone(), 10);
        if !is_attached {
            own.engine.detach(link, false, None, &mut own.out).unwrap();
            own.turn(&mut broker);
            broker.cut(own.peer);
        }
        let late = broker.open_speaking(b"amqp", 0, TransportKind::Quic, Vec::new());
        broker.is_early = true;
        let mut out = crate::amqp_client::Lanes::default();
        let options = sterna_amqp::connection::ClientOptions {
            open: sterna_amqp::performatives::Open::new("c"),
            mechanism: None,
            pipelined: true,
        };
        let limits = sterna_amqp::Limits::default();
        let mut engine = sterna_amqp::Connection::client(options, &limits, 0, &mut out);
        let session = engine.begin(sterna_amqp::Lane(4), &mut out).unwrap();
        let attach = sterna_amqp::link::AttachOptions {
            source: Some(source.clone()),
            ..Default::default()
        };
        let role = sterna_amqp::performatives::Role::Receiver;
        let link = engine
            .attach(session, "l", role, &attach, &mut out)
            .unwrap();
        engine.detach(link, is_closed, None, &mut out).unwrap();
        for lane in [0, 4] {
            use sterna_amqp::LaneWriter as _;
            let bytes = out.buffer(sterna_amqp::Lane(lane)).split();
            broker.send_on(late, StreamId(lane), &bytes);
        }
        broker.is_early = false;
        let mqtt = broker.client(Version::V5, "publisher");
        broker.publish(mqtt, Version::V5, "a", "m", QoS::AtLeastOnce);
        broker.cut(late);
        if !is_attached {
            own = quic(&mut broker, "c");
            let session = own.begin(&mut broker);
            own.receiver(&mut broker, session, "l", source, 10);
        }
        own.turn(&mut broker);
        assert_eq!(
            own.accept_all(&mut broker),
            ["m"],
            "{is_attached} {is_closed}"
        );
    }
}

/// The same with a link on which the client sends.
#[test]
fn a_flight_that_was_held_back_steals_no_link() {
    let mut broker = Broker::with(&early_config(EarlyData::Idempotent), 1);
    let mut own = quic(&mut broker, "c");
    let session = own.begin(&mut broker);
    let sender = own.sender(&mut broker, session, "a");
    broker.is_early = true;
    let mut late = quic(&mut broker, "c");
    let session = late
        .engine
        .begin(sterna_amqp::Lane(4), &mut late.out)
        .unwrap();
    let attach = sterna_amqp::link::AttachOptions {
        target: Some(sterna_amqp::messaging::TargetArchetype::Target(
            sterna_amqp::messaging::Target::new("a"),
        )),
        ..Default::default()
    };
    let role = sterna_amqp::performatives::Role::Sender;
    late.engine
        .attach(session, "a", role, &attach, &mut late.out)
        .unwrap();
    late.turn(&mut broker);
    broker.is_early = false;
    let mqtt = broker.client(Version::V5, "subscriber");
    broker.subscribe(mqtt, Version::V5, "#", QoS::AtMostOnce);
    own.send(&mut broker, sender, 1, "m");
    assert_eq!(broker.told(mqtt, Version::V5), ["PUBLISH0 a=m"]);
}

/// Where a rule asks for addresses, nothing is done before a client has shown where it is.
#[test]
fn nothing_is_judged_by_an_address_that_nobody_has_proved() {
    for policy in [EarlyData::Idempotent, EarlyData::All] {
        let mut config = early_config(policy);
        config.authorization.rules[0].addresses = vec!["127.0.0.0/8".parse().expect("a prefix")];
        let mut broker = Broker::with(&config, 1);
        broker.is_early = true;
        let mut client = quic(&mut broker, "c");
        assert!(!client.is_open, "{policy:?}");
        broker.is_early = false;
        broker.confirm(client.peer);
        client.turn(&mut broker);
        assert!(client.is_open, "{policy:?}");
    }
}

/// Section 15.
#[test]
fn the_open_announces_the_credit_that_is_given() {
    let mut config = Config::default();
    config.amqp.link_credit = 77;
    let mut broker = Broker::with(&config, 1);
    let client = quic(&mut broker, "c");
    let properties = client.open_properties.expect("properties");
    let Value::Map(properties) = properties.value() else {
        panic!("no map");
    };
    let credit = properties.get("sterna:initial-credit");
    assert_eq!(credit, Some(Value::Uint(77)));
}

#[test]
fn paths_of_amqp_clients_are_told_too() {
    let mut broker = Broker::new();
    let mqtt = broker.client(Version::V5, "watcher");
    let topic = "$SYS/sterna/clients/c/path";
    broker.subscribe(mqtt, Version::V5, topic, QoS::AtMostOnce);
    quic(&mut broker, "c");
    broker.advance(5_000);
    let told = broker.told(mqtt, Version::V5);
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("\"transport\":\"quic\""), "{told:?}");
}
