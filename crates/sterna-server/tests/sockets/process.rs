//! The process as its operator handles it: start, reload, shutdown, over real sockets and two shards.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use sterna_server::Server;
use sterna_server::config::{Config, Listener};

/// CONNECT of MQTT 5.0 with a clean start.
const CONNECT: &[u8] = b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x02p1";

fn read_packet(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).expect("a packet");
    let mut body = vec![0; usize::from(head[1])];
    stream.read_exact(&mut body).expect("its body");
    [&head[..], &body].concat()
}

#[test]
fn a_reload_changes_rules_and_certificate_and_drops_nobody() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut config = Config {
        shards: 2,
        listeners: vec![
            Listener::at("mqtt://127.0.0.1:0"),
            Listener::at("mqtts://127.0.0.1:0"),
        ],
        data_directory: Some(directory.path().to_owned()),
        ..Config::default()
    };
    let server = Server::start(&config).expect("a broker");
    assert!(
        server.listeners().iter().all(|url| !url.ends_with(":0")),
        "ports were chosen"
    );
    let address = server.listeners()[0]
        .trim_start_matches("mqtt://")
        .to_owned();
    let mut client = TcpStream::connect(address).expect("connects");
    client
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a socket");
    client.write_all(CONNECT).expect("sends");
    let connack = read_packet(&mut client);
    assert_eq!((connack[0], connack[3]), (0x20, 0));
    let before = server.certificate().fingerprint;

    // An error changes nothing.
    let mut wrong = config.clone();
    wrong.mqtt.maximum_qos = 3;
    assert!(
        server
            .reload(&wrong)
            .expect_err("refused")
            .contains("maximum_qos")
    );

    for file in std::fs::read_dir(directory.path()).expect("lists") {
        let path = file.expect("a file").path();
        // The store is in use.
        if path.is_file() {
            std::fs::remove_file(path).expect("removes");
        }
    }
    config.authorization.default_allow = false;
    config.sys.interval_s = 99;
    assert_eq!(
        server.reload(&config).expect("reloads"),
        ["sys.interval_s"],
        "what needs a restart is named"
    );
    assert_ne!(server.certificate().fingerprint, before);
    // The same connection, under the new rules: PUBLISH with QoS 1 is not authorised. Shards learn of
    // them in a turn of their own, so the first packets may still be under the old ones.
    let refused = (0..1000).any(|_| {
        client
            .write_all(b"\x32\x07\x00\x01a\x00\x07\x00x")
            .expect("sends");
        read_packet(&mut client) == [0x40, 3, 0, 7, 0x87]
    });
    assert!(refused, "the new rules never came into force");

    server.shutdown();
    let goodbye = read_packet(&mut client);
    assert_eq!((goodbye[0], goodbye[2]), (0xE0, 0x8B));
    assert_eq!(client.read(&mut [0]).expect("the end"), 0);
}

/// A broker that is to stop says so first, and goes on until balancers have heard it.
#[test]
fn a_draining_broker_says_so_and_still_takes_clients() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut config = Config {
        data_directory: Some(directory.path().to_owned()),
        listeners: vec![
            Listener::at("mqtt://127.0.0.1:0"),
            Listener::at("admin://127.0.0.1:0"),
        ],
        shards: 2,
        ..Config::default()
    };
    config.network.drain_notice_ms = 1_234;
    let server = Server::start(&config).expect("starts");
    let address = |at: usize| {
        let url = &server.listeners()[at];
        let (_, rest) = url.split_once("://").expect("a URL");
        rest.trim_end_matches('/').to_owned()
    };
    let ready = || {
        let mut stream = TcpStream::connect(address(1)).expect("connects");
        let head = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("sends");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    assert!(ready().starts_with("HTTP/1.1 200"));
    assert_eq!(server.drain(), Duration::from_millis(1_234));
    // Shards learn of it in a turn of their own.
    let said = (0..1000)
        .map(|_| ready())
        .find(|answer| answer.contains(" 503 "));
    assert!(said.expect("not ready").ends_with("draining\n"));
    let mut client = TcpStream::connect(address(0)).expect("connects");
    client.write_all(CONNECT).expect("sends");
    let connack = read_packet(&mut client);
    assert_eq!((connack[0], connack[3]), (0x20, 0));
    server.shutdown();
    assert_eq!(read_packet(&mut client)[0], 0xE0);
}
