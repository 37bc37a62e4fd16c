//! The process as its operator handles it: start, reload, shutdown, over real sockets and two shards.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
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

/// The end of a client's side looks the same whether it still reads or is gone. Only the second loses its subscription.
#[test]
fn a_client_of_http1_that_has_closed_both_sides_is_found_out_and_one_that_reads_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = Config {
        data_directory: Some(folder.path().to_owned()),
        listeners: vec![Listener::at("http://127.0.0.1:0")],
        ..Config::default()
    };
    // Only the sign of life at the end of the client's side is left to find it out.
    config.http.heartbeat_interval_s = 0;
    let server = Server::start(&config).expect("starts");
    let url = &server.listeners()[0];
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let ask = |line: &str, content: &str| {
        let mut stream = TcpStream::connect(address).expect("connects");
        let patience = Some(Duration::from_secs(30));
        stream.set_read_timeout(patience).expect("a socket");
        let length = content.len();
        let head =
            format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sends");
        stream.write_all(content.as_bytes()).expect("sends");
        stream
    };
    let until = |stream: &mut TcpStream, said: &str| {
        let mut heard = Vec::new();
        while !String::from_utf8_lossy(&heard).contains(said) {
            let mut byte = [0];
            let read = stream.read_exact(&mut byte);
            assert!(
                read.is_ok(),
                "{read:?} behind {:?}",
                String::from_utf8_lossy(&heard)
            );
            heard.push(byte[0]);
        }
    };
    let is_connected = || {
        let mut stream = ask("GET /v1/sessions/n", "");
        stream.shutdown(Shutdown::Write).expect("a socket");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.contains("\"connected\":true")
    };
    // Each question is a turn of the broker's, in which it would find out.
    let comes_to_be = |wanted: bool| (0..5_000).any(|_| is_connected() == wanted);
    for (query, sign) in [
        ("wait=300s", "100 Continue\r\n\r\n"),
        ("qos=1", "1\r\n\n\r\n"),
    ] {
        let mut reader = ask(&format!("GET /v1/topics/a?session=n&{query}"), "");
        if query == "qos=1" {
            until(&mut reader, "\r\n\r\n");
        }
        assert!(comes_to_be(true), "{query}");
        reader.shutdown(Shutdown::Write).expect("a socket");
        until(&mut reader, sign);
        until(&mut ask("POST /v1/topics/a", "late"), " 204 ");
        until(&mut reader, "\"payload\":\"late\"");
        drop(reader);
        until(&mut ask("DELETE /v1/sessions/n", ""), " 204 ");

        let reader = ask(&format!("GET /v1/topics/a?session=n&{query}"), "");
        assert!(comes_to_be(true), "{query}");
        drop(reader);
        assert!(comes_to_be(false), "{query}");
        until(&mut ask("DELETE /v1/sessions/n", ""), " 204 ");
    }
    server.shutdown();
}
