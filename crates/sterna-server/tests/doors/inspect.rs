//! What the broker tells of single clients: their paths, and traces of their connections.

use sterna_mqtt::{QoS, Version};
use sterna_server::Policy;
use sterna_server::config::Config;

use crate::fixture::{Broker, decode, describe};

const V5: Version = Version::V5;
const INTERVAL_MS: u64 = 10_000;

#[test]
fn paths_are_told_to_whoever_asks() {
    let mut broker = Broker::new();
    let named = broker.client(V5, "a/b+c");
    for number in 0..200 {
        broker.client(V5, &format!("c{number}"));
    }
    broker.subscribe(named, V5, "$SYS/sterna/clients/+/path", QoS::AtMostOnce);
    broker.advance(INTERVAL_MS / 2);
    let told = broker.told(named, V5);
    assert_eq!(told.len(), 201, "every client's path, once");
    let own = told
        .iter()
        .find_map(|line| line.strip_prefix("PUBLISH0 $SYS/sterna/clients/a%2Fb%2Bc/path="))
        .expect("its own path");
    let path: serde_json::Value = serde_json::from_str(own).expect("JSON");
    assert_eq!(path["rtt_us"], 1_234);
    assert_eq!(path["transport"], "tcp");
    assert_eq!(path["early_data"], "none");
    assert!(
        path["peer"]
            .as_str()
            .is_some_and(|peer| peer.starts_with("127.0.0.1:"))
    );
    // The next round comes with the next interval, and none once nobody listens.
    broker.advance(INTERVAL_MS);
    assert_eq!(broker.told(named, V5).len(), 201);
    let mut unsubscribe = vec![0xA2, 31, 0, 1, 0, 0, 26];
    unsubscribe.extend_from_slice(b"$SYS/sterna/clients/+/path");
    broker.send(named, &unsubscribe);
    assert_eq!(broker.told(named, V5), ["UNSUBACK 1 0x00"]);
    broker.advance(3 * INTERVAL_MS);
    assert!(broker.told(named, V5).is_empty());
}

#[test]
fn one_client_can_be_watched_and_the_others_are_left_alone() {
    let mut broker = Broker::new();
    let watcher = broker.client(V5, "watcher");
    broker.client(V5, "other");
    broker.subscribe(
        watcher,
        V5,
        "$SYS/sterna/clients/other/path",
        QoS::AtMostOnce,
    );
    broker.advance(INTERVAL_MS / 2);
    let told = decode(V5, &broker.take(watcher), describe);
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("PUBLISH0 $SYS/sterna/clients/other/path={"));
}

#[test]
fn a_reload_begins_and_ends_traces() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut broker = Broker::new();
    let peer = broker.client(V5, "traced");
    broker.client(V5, "other");
    let mut config = Config::default();
    config.trace.directory = Some(directory.path().to_owned());
    config.trace.clients = vec!["traced".to_owned(), "later".to_owned()];
    broker.apply(Policy::load(&config).expect("a policy"));
    let traced = |broker: &Broker| {
        let mut titles: Vec<_> = broker.wires[0]
            .traces
            .values()
            .map(|trace| trace.title.clone())
            .collect();
        titles.sort();
        titles
    };
    assert_eq!(traced(&broker), ["traced"]);
    // One that comes later is traced from its CONNACK on.
    broker.client(V5, "later");
    assert_eq!(traced(&broker), ["later", "traced"]);
    // The same list once more begins nothing anew.
    broker.apply(Policy::load(&config).expect("a policy"));
    let trace = broker.wires[0].traces.get_mut(&peer.id).expect("traced");
    trace.sink.record(b"once");
    config.trace.clients.clear();
    broker.apply(Policy::load(&config).expect("a policy"));
    assert!(traced(&broker).is_empty());
    let written = || {
        let files = std::fs::read_dir(directory.path()).expect("a folder");
        files
            .filter_map(|file| std::fs::read(file.expect("a file").path()).ok())
            .any(|bytes| bytes == b"once")
    };
    for _ in 0..6_000 {
        if written() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the trace did not reach its file");
}
