//! Client certificates that the broker refuses.
#![allow(clippy::unwrap_used)] // it is all test

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use sterna_server::config::Listener;

use crate::process::{Broker, code, stderr};

/// How often logins were refused for the certificate at a door, by the metrics of the listener for operators.
fn refused(admin: &str, protocol: &str) -> u64 {
    let mut stream = TcpStream::connect(admin.trim_start_matches("admin://")).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let sample =
        format!("sterna_logins_refused_total{{protocol=\"{protocol}\",reason=\"certificate\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&sample));
    value.map_or(0, |value| value.parse().unwrap())
}

#[test]
fn a_certificate_of_another_authority_is_told_and_counted_at_every_door() {
    let other = Broker::start(&["mqtts"], &[], |_, _| {});
    let authority = other.folder.path().join("development-ca.pem");
    let schemes = ["mqtts", "amqps", "https", "mqtt+quic", "amqp+quic", "admin"];
    let broker = Broker::start(&schemes, &[], |config, folder: &Path| {
        let trusted = folder.join("trusted.pem");
        fs::copy(&authority, &trusted).unwrap();
        config.tls.client_ca = Some(trusted);
        config.tls.require_client_certificate = true;
        config.listeners[5] = Listener {
            anonymous: Some(true),
            ..Listener::at("admin://127.0.0.1:0")
        };
    });
    let admin = broker.urls[5].clone();
    let certificate = broker.folder.path().join("development-certificate.pem");
    let key = broker.folder.path().join("development-key.pem");
    let own = [
        "--cert",
        certificate.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
    ];
    let mut counted = [("mqtt", 0), ("amqp", 0), ("http", 0)];
    for (at, scheme) in schemes[..5].iter().enumerate() {
        let rest = [
            &own[..],
            &["-t", "t", "-m", "x", "--maximum-reconnect-times", "0"],
        ]
        .concat();
        let output = broker.run(at, "pub", &rest);
        let told = stderr(&output);
        assert_eq!(code(&output), 8, "{scheme}: {told}");
        // The refusal may come before or after QUIC takes the handshake for finished.
        let is_told = ["fatal alert", "handshake failed"]
            .iter()
            .any(|words| told.contains(words));
        assert!(is_told, "{scheme}: {told}");
        let door = counted
            .iter_mut()
            .find(|(door, _)| scheme.starts_with(door));
        let (door, before) = door.unwrap();
        let after = refused(&admin, door);
        // Once: another attempt has the same certificate.
        assert_eq!(after, *before + 1, "{scheme}");
        *before = after;
    }
}
