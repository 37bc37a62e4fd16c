//! Time-outs (part 2, section 2.4.5).

use sterna_amqp::connection::{ClientOptions, ServerOptions};
use sterna_amqp::frame::Unit;
use sterna_amqp::performatives::Open;
use sterna_amqp::{Condition, Connection, Framer, Lane, Limits};

use crate::harness::{Lanes, frames};

fn limits() -> Limits {
    Limits {
        idle_timeout_ms: 1_000,
        open_timeout_ms: 5_000,
        ..Limits::default()
    }
}

/// Moves what was written from one end to the other.
fn pass(from: &mut Lanes, to: &mut Connection, out: &mut Lanes, now_ms: u64) {
    let bytes = from.0.remove(&0).unwrap_or_default();
    let mut framer = Framer::new();
    let mut input = &bytes[..];
    while let Some(unit) = framer.next(&mut input, 1 << 20).unwrap() {
        let event = to.receive(Lane(0), &unit, now_ms, out).unwrap();
        if matches!(event, Some(sterna_amqp::Event::Open(_))) {
            let _ = to.open(&Open::new("server"), out);
        }
    }
}

fn open_pair() -> (Connection, Connection) {
    let (mut client_out, mut server_out) = (Lanes::default(), Lanes::default());
    let options = ClientOptions {
        open: Open::new("client"),
        mechanism: None,
        pipelined: true,
    };
    let mut client = Connection::client(options, &limits(), 0, &mut client_out);
    let options = ServerOptions {
        container_id: "server".to_owned(),
        mechanisms: Vec::new(),
        require_sasl: false,
    };
    let mut server = Connection::server(&options, &limits(), 0);
    pass(&mut client_out, &mut server, &mut server_out, 0);
    pass(&mut server_out, &mut client, &mut client_out, 0);
    assert!(client.is_open() && server.is_open());
    (client, server)
}

#[test]
fn two_idle_ends_keep_each_other_alive() {
    let (mut client, mut server) = open_pair();
    let (mut client_out, mut server_out) = (Lanes::default(), Lanes::default());
    let mut empty_frames = 0;
    let mut now_ms = 0;
    while now_ms < 60_000 {
        let due = [&client, &server].map(|end| end.deadline_ms().unwrap());
        now_ms = due[0].min(due[1]);
        client.on_timeout(now_ms, &mut client_out).unwrap();
        server.on_timeout(now_ms, &mut server_out).unwrap();
        for out in [&client_out, &server_out] {
            empty_frames += out.0.get(&0).map_or(0, |bytes| frames(bytes).len());
        }
        pass(&mut client_out, &mut server, &mut server_out, now_ms);
        pass(&mut server_out, &mut client, &mut client_out, now_ms);
    }
    assert!(client.is_open() && server.is_open());
    // Not more often than it takes: two ends, at most four times a second.
    assert!((100..=480).contains(&empty_frames), "{empty_frames}");
}

#[test]
fn silence_ends_a_connection_at_twice_the_announced_time() {
    let (_, mut server) = open_pair();
    let mut out = Lanes::default();
    server.on_timeout(1_999, &mut out).unwrap();
    let violation = server.on_timeout(2_000, &mut out).unwrap_err();
    assert_eq!(violation.condition, Condition::RESOURCE_LIMIT_EXCEEDED);
    let told = frames(&out.0[&0]);
    assert!(told.last().unwrap().1.contains("Close"));
    assert!(server.is_closed());
    assert_eq!(server.deadline_ms(), None);
}

#[test]
fn an_open_that_does_not_come_is_not_waited_for() {
    let options = ServerOptions {
        container_id: "server".to_owned(),
        mechanisms: Vec::new(),
        require_sasl: false,
    };
    for header in [false, true] {
        let mut out = Lanes::default();
        let mut server = Connection::server(&options, &limits(), 100);
        assert_eq!(server.deadline_ms(), Some(5_100));
        if header {
            let unit = Unit::Header(sterna_amqp::security::ProtocolHeader::AMQP);
            server.receive(Lane(0), &unit, 4_000, &mut out).unwrap();
        }
        server.on_timeout(5_099, &mut out).unwrap();
        assert!(server.on_timeout(5_100, &mut out).is_err());
        assert!(server.is_closed());
    }
}

#[test]
fn a_close_that_is_not_answered_is_not_waited_for() {
    let (_, mut server) = open_pair();
    let mut out = Lanes::default();
    server.close(None, &mut out).unwrap();
    assert!(!server.is_closed());
    let due = server.deadline_ms().unwrap();
    assert!(server.on_timeout(due, &mut out).is_err());
    assert!(server.is_closed());
}

#[test]
fn an_end_without_a_time_out_needs_no_sign_of_life() {
    let limits = Limits {
        idle_timeout_ms: 0,
        ..limits()
    };
    let (mut client_out, mut server_out) = (Lanes::default(), Lanes::default());
    let options = ClientOptions {
        open: Open::new("client"),
        mechanism: None,
        pipelined: false,
    };
    let mut client = Connection::client(options, &limits, 0, &mut client_out);
    let options = ServerOptions {
        container_id: "server".to_owned(),
        mechanisms: Vec::new(),
        require_sasl: false,
    };
    let mut server = Connection::server(&options, &limits, 0);
    pass(&mut client_out, &mut server, &mut server_out, 0);
    pass(&mut server_out, &mut client, &mut client_out, 0);
    assert_eq!(client.deadline_ms(), None);
    assert_eq!(server.deadline_ms(), None);
}
