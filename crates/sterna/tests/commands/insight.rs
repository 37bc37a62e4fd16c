//! What the client commands write for whoever looks into their traffic: TLS secrets and qlog.
#![allow(clippy::unwrap_used)] // it is all test

use std::fs;
use std::path::Path;

use crate::process::{Broker, code, stderr};

/// Over QUIC and over TLS, of each protocol.
const SCHEMES: [&str; 6] = ["mqtt+quic", "mqtts", "amqp+quic", "amqps", "h3", "https"];
const TLS: usize = 1;

fn broker() -> Broker {
    Broker::start(&SCHEMES, &[], |_, _| {})
}

fn is_quic(scheme: &str) -> bool {
    scheme.ends_with("+quic") || scheme == "h3"
}

/// The labels of the secrets in a file, each with the connection's random.
fn secrets(file: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(file).unwrap();
    let line = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let [label, random, secret] = words[..] else {
            panic!("not a secret: {line}");
        };
        assert!(random.len() == 64 && secret.len() >= 64, "{line}");
        (label.to_owned(), random.to_owned())
    };
    text.lines().map(line).collect()
}

#[test]
fn secrets_go_where_the_environment_says() {
    let broker = broker();
    for (at, scheme) in SCHEMES.iter().enumerate() {
        let file = broker.folder.path().join(format!("keys-{at}"));
        let mut command = broker.command(at, "pub", &["-t", "a", "-m", "b", "-q", "1"]);
        let sent = command.env("SSLKEYLOGFILE", &file).output().unwrap();
        assert_eq!(code(&sent), 0, "{scheme}: {}", stderr(&sent));
        let secrets = secrets(&file);
        for label in [
            "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
            "SERVER_HANDSHAKE_TRAFFIC_SECRET",
            "CLIENT_TRAFFIC_SECRET_0",
            "SERVER_TRAFFIC_SECRET_0",
        ] {
            let count = secrets.iter().filter(|(it, _)| it == label).count();
            assert_eq!(count, 1, "{scheme}: {label}");
        }
        assert!(secrets.iter().all(|(_, random)| *random == secrets[0].1));
    }
    let file = broker.folder.path().join("keys");
    let rest = ["-t", "a", "-m", "b", "--tls-version", "tlsv1.2"];
    let mut command = broker.command(TLS, "pub", &rest);
    let sent = command.env("SSLKEYLOGFILE", &file).output().unwrap();
    assert_eq!(code(&sent), 0, "{}", stderr(&sent));
    assert_eq!(secrets(&file)[0].0, "CLIENT_RANDOM");
}

#[test]
fn secrets_that_cannot_be_written_are_no_secret() {
    let broker = broker();
    let mut command = broker.command(TLS, "pub", &["-t", "a", "-m", "b"]);
    let sent = command.env("SSLKEYLOGFILE", "/nowhere/keys").output();
    let sent = sent.unwrap();
    assert_eq!(code(&sent), 0);
    let said = stderr(&sent);
    assert!(said.contains("SSLKEYLOGFILE: /nowhere/keys"), "{said}");
}

#[test]
fn a_qlog_of_each_connection_is_written() {
    let broker = broker();
    for (at, scheme) in SCHEMES.iter().enumerate() {
        let folder = broker.folder.path().join(format!("qlog-{at}"));
        let rest = ["-t", "a", "-m", "b", "-q", "1", "--qlog"];
        let mut command = broker.command(at, "pub", &rest);
        let sent = command.arg(&folder).output().unwrap();
        if !is_quic(scheme) {
            assert_eq!(code(&sent), 1, "{scheme}");
            let said = stderr(&sent);
            assert!(said.contains("does not travel over QUIC"), "{said}");
            continue;
        }
        assert_eq!(code(&sent), 0, "{scheme}: {}", stderr(&sent));
        let files: Vec<_> = fs::read_dir(&folder).unwrap().collect();
        assert_eq!(files.len(), 1, "{scheme}");
        let text = fs::read_to_string(files[0].as_ref().unwrap().path()).unwrap();
        let records: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line.strip_prefix('\x1e').unwrap()).unwrap())
            .collect();
        assert_eq!(records[0]["qlog_format"], "JSON-SEQ");
        let sent_bytes = |kind: &str| -> u64 {
            let of_kind = records.iter().filter(|record| {
                record["name"] == "transport:packet_sent"
                    && record["data"]["header"]["packet_type"] == kind
            });
            of_kind
                .map(|record| record["data"]["header"]["length"].as_u64().unwrap())
                .sum()
        };
        assert!(sent_bytes("initial") >= 1_200, "{scheme}");
        assert!(sent_bytes("1RTT") > 0, "{scheme}");
        let window = |record: &serde_json::Value| {
            record["name"] == "recovery:metrics_updated"
                && record["data"]["congestion_window"].as_u64() > Some(0)
        };
        assert!(records.iter().any(window), "{scheme}");
    }
}
