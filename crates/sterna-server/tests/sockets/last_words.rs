//! Goodbyes of clients that close at once, while the broker has something to write to them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use sterna_server::Server;
use sterna_server::config::{Config, Listener};

use crate::scrape::metric;

/// Clients that go, one after the other. Each may go in a moment in which the broker reads before it writes.
const CLIENTS: usize = 150;
/// Messages that are under way to a client while it goes.
const FLOOD: usize = 300;
const PATIENCE: Duration = Duration::from_secs(60);
const DISCONNECT: &[u8] = b"\xe0\x00";

fn connect(server: &Server, name: &str, will: Option<&str>) -> TcpStream {
    let address = server.listeners()[0].trim_start_matches("mqtt://");
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let text = |text: &str| [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat();
    let flags = if will.is_some() { 6 } else { 2 };
    let mut body = [&text("MQTT")[..], &[5, flags, 0, 0, 0], &text(name)].concat();
    if let Some(topic) = will {
        body.extend([&[0][..], &text(topic), &text("lost")].concat());
    }
    send(&mut stream, 0x10, &body);
    assert_eq!(read_packet(&mut stream).0, 0x20);
    stream
}

fn subscribe(stream: &mut TcpStream, filter: &str) {
    let length = (filter.len() as u16).to_be_bytes();
    let body = [&[0, 1, 0], &length[..], filter.as_bytes(), &[0]].concat();
    send(stream, 0x82, &body);
    assert_eq!(read_packet(stream).0, 0x90);
}

fn publish(topic: &str, payload: &[u8]) -> Vec<u8> {
    let length = (topic.len() as u16).to_be_bytes();
    packet(
        0x30,
        &[&length, topic.as_bytes(), &[0][..], payload].concat(),
    )
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    assert!(body.len() < 1 << 14, "two bytes of length");
    let mut length = vec![(body.len() % 128) as u8, (body.len() / 128) as u8];
    if length.pop_if(|high| *high == 0).is_none() {
        length[0] |= 0x80;
    }
    [&[first], &length[..], body].concat()
}

fn send(stream: &mut TcpStream, first: u8, body: &[u8]) {
    stream.write_all(&packet(first, body)).expect("sends");
}

fn read_packet(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    stream.read_exact(&mut head).expect("a packet");
    assert!(head[1] < 128, "a short packet");
    let mut body = vec![0; usize::from(head[1])];
    stream.read_exact(&mut body).expect("its body");
    (head[0], body)
}

/// [MQTT-3.14.4-3] The close of a client that has unread messages is a reset. The broker's next write fails, perhaps
/// before it has read DISCONNECT.
#[test]
fn a_disconnect_counts_although_the_broker_cannot_write() {
    let directory = tempfile::tempdir().expect("a folder");
    let config = Config {
        shards: 1,
        listeners: vec![
            Listener::at("mqtt://127.0.0.1:0"),
            Listener::at("admin://127.0.0.1:0"),
        ],
        data_directory: Some(directory.path().to_owned()),
        ..Config::default()
    };
    let server = Server::start(&config).expect("a broker");
    let mut heir = connect(&server, "heir", None);
    subscribe(&mut heir, "will");
    let mut source = connect(&server, "source", None);
    let flood = publish("flood", &[7; 1_000]).repeat(FLOOD);
    for number in 0..CLIENTS {
        let mut client = connect(&server, &format!("client {number}"), Some("will"));
        subscribe(&mut client, "flood");
        source.write_all(&flood).expect("sends");
        // Some of it has come.
        assert!(client.peek(&mut [0]).expect("a message") > 0);
        client.write_all(DISCONNECT).expect("sends");
        drop(client);
    }
    let connected = || metric(&server, "sterna_clients{state=\"connected\"}");
    while connected() > 2 {
        std::thread::sleep(Duration::from_millis(10));
    }
    source.write_all(&publish("will", b"none")).expect("sends");
    let (_, first) = read_packet(&mut heir);
    assert!(
        first.ends_with(b"none"),
        "a will of a client that said goodbye"
    );
    server.shutdown();
}
