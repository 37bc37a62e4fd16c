//! A panic in the midst of whatever the broker does: one client is lost as if its connection was, and
//! nobody else notices; or the shard ends.
//!
//! A run of honest clients is recorded and repeated, each time with a panic in another of the calls that
//! the front doors make of the transports and that the broker makes of its store.

#![allow(unreachable_pub, dead_code, reason = "the modules of one test binary")]

mod runs;
mod store;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::fixture::{Broker, Input, Peer, decode, describe};
use sterna_broker::Limits;
use sterna_mqtt::packet::SubscribeOptions;
use sterna_mqtt::{QoS, Version};
use sterna_net::StreamId;
use sterna_server::config::{Config, Listener};

pub(crate) const V5: Version = Version::V5;

/// Longer than a run takes.
const SYS_INTERVAL_S: u32 = 60;

/// What is sent to each client, on each stream.
type Sent = BTreeMap<(Peer, u64), Vec<u8>>;

/// Honest clients, and what is expected when one is lost.
pub(crate) struct Run {
    /// Does everything once.
    pub(crate) record: fn(&mut Broker),
    /// The session that has left a will.
    pub(crate) mortal: &'static str,
    /// Whether each byte to the neighbour is the same in every run.
    pub(crate) is_exact: bool,
    /// Another client takes the victim's session over.
    pub(crate) come_back: fn(&mut Broker),
}

/// The clients of every run, in the order in which they come.
pub(crate) struct Cast;

impl Cast {
    pub(crate) const fn peer(slot: u32) -> Peer {
        Peer {
            shard: 0,
            id: sterna_net::ConnectionId {
                slot,
                generation: 1,
            },
        }
    }
    /// Hears of wills.
    pub(crate) const WATCHER: Peer = Self::peer(0);
    /// Publishes what the neighbour hears.
    pub(crate) const PUBLISHER: Peer = Self::peer(1);
    /// Has nothing to do with the victim, and is served by the same door.
    pub(crate) const NEIGHBOUR: Peer = Self::peer(2);
}

fn broker() -> Broker {
    let mut config = Config {
        listeners: ["mqtt://127.0.0.1:0", "http://127.0.0.1:0"]
            .map(Listener::at)
            .to_vec(),
        ..Config::default()
    };
    config.sys.interval_s = SYS_INTERVAL_S;
    let fault = Arc::default();
    let memory = sterna_store::MemoryStore::new();
    let mut broker = Broker::restored(&config, 1, Limits::default(), || {
        Box::new(store::Faulty(Arc::clone(&fault), memory.clone()))
    });
    broker.wires[0].fault = fault;
    broker.wires[0].datagram_bytes = 1_000;
    broker
}

/// Repeats a run with a panic behind so many calls. What was sent; the call that panicked; and whether
/// the panic left the shard.
fn repeat(inputs: &[Input], calls: Option<usize>) -> (Broker, Option<&'static str>, bool) {
    let mut broker = broker();
    broker.wires[0].fault.set(calls);
    let played = catch_unwind(AssertUnwindSafe(|| {
        for input in inputs {
            broker.again(input);
        }
    }));
    let call = broker.wires[0].fault.take_call();
    (broker, call, played.is_err())
}

fn sent(broker: &Broker) -> Sent {
    let sent = broker.wires[0].sent.iter();
    let peer = |id| Peer { shard: 0, id };
    sent.map(|((id, stream), bytes)| ((peer(*id), stream.0), bytes.clone()))
        .collect()
}

/// The clients that the broker has hung up on.
fn lost(broker: &Broker, inputs: &[Input]) -> Vec<Peer> {
    let opened = inputs.iter().filter(|i| matches!(i, Input::Open(..)));
    let cut = |peer| {
        inputs
            .iter()
            .any(|i| matches!(i, Input::Cut(p) if *p == peer))
    };
    (0..opened.count() as u32)
        .map(Cast::peer)
        .filter(|peer| broker.is_closed(*peer) && !cut(*peer))
        .collect()
}

fn check(run: &Run) {
    let mut recorder = broker();
    (run.record)(&mut recorder);
    let inputs = std::mem::take(&mut recorder.inputs);
    let (honest, call, left) = repeat(&inputs, None);
    assert_eq!((call, left), (None, false));
    assert_eq!(lost(&honest, &inputs), []);
    let reference = sent(&honest);
    assert_eq!(wills(&reference), 1);
    let (mut contained, mut fatal) = (BTreeMap::new(), BTreeMap::new());
    let total = honest.wires[0].fault.calls();
    assert!(total > 100);
    for calls in 0..total {
        let (mut broker, call, left) = repeat(&inputs, Some(calls));
        let call = call.expect("as many calls as in an honest run");
        let what = format!("call {calls}, {call}");
        if left {
            *fatal.entry(call).or_insert(0) += 1;
            continue;
        }
        *contained.entry(call).or_insert(0) += 1;
        look(run, &mut broker, &inputs, &reference, &what);
    }
    println!("contained: {contained:?}, fatal: {fatal:?}");
    for call in ["info", "send", "unsent_bytes", "append", "committed"] {
        assert!(contained.contains_key(call), "{call}");
    }
    // What belongs to no client: the look at a connection that opens, the shard's own at the clock, and
    // the cursors that it writes.
    let opened = inputs.iter().filter(|i| matches!(i, Input::Open(..)));
    assert_eq!(fatal.remove("info"), Some(opened.count()));
    // Few steps ask for the time: the shard has it before they begin.
    assert!(fatal.remove("now_ms").is_some());
    for call in ["append", "committed"] {
        fatal.remove(call);
    }
    assert_eq!(fatal, BTreeMap::new());
}

/// Number of wills that the watcher got.
fn wills(sent: &Sent) -> usize {
    let told = decode(V5, &sent[&(Cast::WATCHER, 0)], describe);
    told.iter().filter(|line| line.contains("will=")).count()
}

/// Looks at what a panic has left.
fn look(run: &Run, broker: &mut Broker, inputs: &[Input], reference: &Sent, what: &str) {
    let lost = lost(broker, inputs);
    let victims = lost.len();
    assert!(victims <= 1, "{what}: {lost:?}");
    let sent = sent(broker);
    // Others get what is theirs, byte for byte but for numbers of deliveries; less of it if the one who
    // publishes is lost.
    for ((peer, stream), honest) in reference {
        let is_concerned = lost.contains(peer) || *peer > Cast::NEIGHBOUR;
        if is_concerned || *peer == Cast::WATCHER {
            continue;
        }
        let got = sent.get(&(*peer, *stream)).map_or(&[][..], |got| got);
        let is_theirs = if lost.contains(&Cast::PUBLISHER) {
            got.len() <= honest.len()
        } else if run.is_exact {
            got == honest
        } else {
            got.len() == honest.len()
        };
        let is_leaked = got.windows(4).any(|bytes| bytes == b"mine");
        assert!(
            is_theirs && !is_leaked,
            "{what}: {peer:?} {stream}, lost {lost:?}"
        );
    }
    let (sessions, _) = broker.sessions(0);
    // The will is in force from the moment that the session is there.
    let names = sessions.iter().map(|info| info.name.id());
    let left_will = names.filter(|name| *name == run.mortal).count();
    if !lost.contains(&Cast::WATCHER) {
        assert_eq!(wills(&sent), left_will, "{what}");
    }
    // Whoever is gone is connected nowhere.
    let connected = sessions.iter().filter(|info| info.consumer.is_some());
    let names: Vec<_> = connected.map(|info| info.name.id().to_owned()).collect();
    assert!(
        !names.iter().any(|name| name.contains("victim")),
        "{what}: {names:?}, lost {lost:?}"
    );
    (run.come_back)(broker);
    // All that are there are counted, and nobody else.
    let observer = broker.client(V5, "observer");
    let options = SubscribeOptions::new(QoS::AtMostOnce);
    broker.subscribe_with(observer, V5, "$SYS/broker/clients/connected", options, &[]);
    broker.take(observer);
    broker.advance(u64::from(SYS_INTERVAL_S) * 1_000);
    let told = broker.told(observer, V5);
    let open = broker.open_connections(0);
    let line = format!("PUBLISH0 $SYS/broker/clients/connected={open}");
    assert_eq!(told.last(), Some(&line), "{what}");
    broker.send_on(observer, StreamId::FIRST, &[0xC0, 0]);
    assert_eq!(broker.told(observer, V5), ["PINGRESP"], "{what}");
    broker.stop();
    assert!(broker.finished(), "{what}");
}

#[test]
fn a_panic_for_a_client_of_mqtt_ends_that_client() {
    check(&runs::MQTT);
}

#[test]
fn a_panic_for_a_client_of_mqtt_over_quic_ends_that_client() {
    check(&runs::MQTT_OVER_QUIC);
}

#[test]
fn a_panic_for_a_client_of_amqp_ends_that_client() {
    check(&runs::AMQP);
}

#[test]
fn a_panic_for_a_client_of_http3_ends_that_client() {
    check(&runs::HTTP3);
}

#[test]
fn a_panic_for_a_client_of_http1_ends_that_client() {
    check(&runs::HTTP1);
}
