//! A panic in a shard that belongs to no client ends the shard, and the operator is told; one that belongs
//! to a client does not. Over real sockets; the panics are in what takes the log.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sterna_server::config::{Config, Listener};
use sterna_server::{Failure, Server};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const PATIENCE: Duration = Duration::from_secs(60);

/// Panics at the line about the login of a client, and where told to at the line about that panic.
struct Fragile;

static AGAIN: AtomicBool = AtomicBool::new(false);

/// The message of a line.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Fragile {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        let again = AGAIN.load(Ordering::Relaxed) && message.0.starts_with("a panic ended");
        if message.0 == "login" || again {
            std::panic::resume_unwind(Box::new("as asked"));
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_panic_that_belongs_to_no_client_ends_the_shard_and_is_told() {
    tracing::subscriber::set_global_default(Fragile).expect("the only one");
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&Config {
        shards: 1,
        listeners: vec![Listener::at("mqtt://127.0.0.1:0")],
        data_directory: Some(folder.path().to_owned()),
        ..Config::default()
    })
    .expect("a broker");
    let failures = server.take_failures().expect("the first time");
    let address = server.listeners()[0].replace("mqtt://", "");
    let connect = || {
        let mut client = TcpStream::connect(&address).expect("connects");
        client.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let connect = b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x02p1";
        client.write_all(connect).expect("sends");
        // Not even CONNACK, which was written in the step that has failed.
        assert!(matches!(client.read(&mut [0; 8]), Ok(0) | Err(_)));
    };
    for _ in 0..3 {
        connect();
    }
    assert!(failures.try_recv().is_err(), "the shard goes on");
    AGAIN.store(true, Ordering::Relaxed);
    connect();
    let failure = failures.recv_timeout(PATIENCE).expect("a failure");
    let words = "shard 0 has failed: a panic, which is a bug: as asked";
    assert_eq!(failure, Failure::Bug(words.to_owned()));
    server.shutdown();
}
