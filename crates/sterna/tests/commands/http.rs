//! The client commands over HTTP as their users run them, against a broker in this process.
#![allow(clippy::unwrap_used)] // it is all test

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;

use sterna_server::config::{Config, EarlyData};

use crate::process::{Broker, code, scripted, stderr, stdout, sterna};

const MQTT: usize = 0;
const HTTP: usize = 1;
const HTTPS: usize = 2;
const H3: usize = 3;
/// What a URL is of, with the flags that go with it.
const ALL: [usize; 4] = [MQTT, HTTP, HTTPS, H3];
/// In the order of the numbers above.
const SCHEMES: [&str; 4] = ["mqtt", "http", "https", "h3"];
/// What a subscriber says when its subscription stands.
const READY: [&str; 2] = ["subscribed", "request answered"];

/// A broker whose configuration is changed.
fn broker_with(change: impl FnOnce(&mut Config, &Path)) -> Broker {
    Broker::start(&SCHEMES, &READY, |config, folder| {
        config.quic.early_data = EarlyData::All;
        change(config, folder);
    })
}

fn plain_broker() -> Broker {
    broker_with(|_, _| {})
}

#[test]
fn messages_pass_between_all_versions_and_mqtt() {
    let broker = plain_broker();
    for to in ALL {
        let receiver = broker.subscriber(
            to,
            &[
                "-t",
                "a/#",
                "-q",
                "1",
                "-F",
                "%t %p %q %C %P",
                "-C",
                "4",
                "-W",
                "20",
            ],
        );
        for from in ALL {
            let topic = format!("a/{from}");
            let rest = [
                "-t",
                &topic,
                "-q",
                "1",
                "-m",
                "hi",
                "-D",
                "publish",
                "content-type",
                "text/plain",
                "-D",
                "publish",
                "user-property",
                "unit",
                "C",
            ];
            let sent = broker.run(from, "pub", &rest);
            assert!(sent.status.success(), "{}", stderr(&sent));
        }
        let expected: String = ALL
            .map(|from| format!("a/{from} hi 1 text/plain unit:C\n"))
            .concat();
        assert_eq!(receiver.output(), expected);
    }
}

#[test]
fn lines_keep_their_order_and_all_may_be_under_way_at_once() {
    let broker = plain_broker();
    let numbers: Vec<_> = (0..200).map(|number| number.to_string()).collect();
    let lines = numbers.join("\n") + "\n";
    for (transport, inflight) in [(H3, None), (HTTP, None), (H3, Some("64"))] {
        let receiver =
            broker.subscriber(transport, &["-t", "l", "-q", "1", "-C", "200", "-W", "20"]);
        let mut rest = vec!["-t", "l", "-q", "1", "-l"];
        rest.extend(inflight.iter().flat_map(|number| ["-M", number]));
        let mut sending = broker
            .command(transport, "pub", &rest)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = sending.stdin.take().unwrap();
        input.write_all(lines.as_bytes()).unwrap();
        drop(input);
        assert!(sending.wait().unwrap().success());
        let mut output: Vec<_> = receiver.output().lines().map(str::to_owned).collect();
        if inflight.is_some() {
            output.sort_by_key(|line| line.parse::<u32>().unwrap());
        }
        assert_eq!(output.join("\n") + "\n", lines);
    }
}

#[test]
fn durable_subscriptions_keep_what_comes_meanwhile() {
    let broker = plain_broker();
    for transport in [H3, HTTPS, HTTP] {
        let name = format!("mine-{transport}");
        let rest = [
            "-i", &name, "-c", "-t", "d/#", "-q", "1", "-C", "1", "-W", "20",
        ];
        let first = broker.subscriber(transport, &rest);
        for payload in ["1", "2"] {
            let sent = broker.run(transport, "pub", &["-t", "d/x", "-q", "1", "-m", payload]);
            assert!(sent.status.success());
        }
        assert_eq!(first.output(), "1\n");
        let second = broker.run(transport, "sub", &rest);
        assert_eq!(stdout(&second), "2\n", "{}", stderr(&second));
    }
}

#[test]
fn retained_messages_and_the_ends_of_sub() {
    let broker = plain_broker();
    let sent = broker.run(H3, "pub", &["-t", "r", "-q", "1", "-r", "-m", "on"]);
    assert!(sent.status.success());
    let kept = broker.run(
        HTTP,
        "sub",
        &["-t", "r", "-C", "1", "-W", "20", "-F", "%p %r"],
    );
    assert_eq!(stdout(&kept), "on 1\n");
    let none = broker.run(HTTPS, "sub", &["-t", "r", "-R", "-W", "0.3"]);
    assert_eq!((code(&none), stdout(&none)), (27, ""));
    let only_subscribed = broker.run(H3, "sub", &["-t", "r", "-E"]);
    assert!(only_subscribed.status.success());
    let rest = ["-t", "r", "--remove-retained", "-C", "1", "-W", "20"];
    assert!(broker.run(H3, "sub", &rest).status.success());
    let gone = broker.run(H3, "sub", &["-t", "r", "-W", "0.3"]);
    assert_eq!((code(&gone), stdout(&gone)), (27, ""));
}

#[test]
fn requests_are_answered_across_protocols() {
    let broker = plain_broker();
    for transport in [H3, HTTP] {
        let service = broker.subscriber(MQTT, &["-t", "job", "-C", "1", "-W", "20", "-F", "%R %D"]);
        let asking = broker
            .command(
                transport,
                "request",
                &["-t", "job", "-m", "7", "-W", "20", "--correlation", "c1"],
            )
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let asked = service.output();
        let (topic, correlation) = asked.trim_end().split_once(' ').unwrap();
        assert_eq!(correlation, "c1");
        let data = ["-D", "publish", "correlation-data", "c1"];
        let mut rest = vec!["-t", topic, "-m", "done"];
        rest.extend(data);
        assert!(broker.run(MQTT, "pub", &rest).status.success());
        assert_eq!(stdout(&asking.wait_with_output().unwrap()), "done\n");
    }
}

#[test]
fn failures_have_their_codes() {
    let broker = broker_with(|config, folder| {
        let users = folder.join("passwords");
        std::fs::write(&users, "").unwrap();
        config.authentication.password_file = Some(users);
    });
    for transport in [H3, HTTPS, HTTP] {
        let refused = broker.run(
            transport,
            "pub",
            &["-t", "a", "-m", "x", "-u", "u", "-P", "p"],
        );
        assert_eq!(code(&refused), 134, "{}", stderr(&refused));
        let refused = broker.run(transport, "sub", &["-t", "a", "-W", "20"]);
        assert_eq!(code(&refused), 134, "{}", stderr(&refused));
    }
    let open = plain_broker();
    for wrong in [
        &["-t", "a/+", "-m", "x"][..],
        &["-t", "a"],
        &["-t", "a", "-m", "x", "--will-topic", "w"],
        &["-t", "a", "-m", "x", "--priority", "high"],
        &["-t", "a", "-m", "x", "-i", "x"],
        &[
            "-t",
            "a",
            "-m",
            "x",
            "-D",
            "connect",
            "receive-maximum",
            "5",
        ],
    ] {
        let output = open.run(H3, "pub", wrong);
        assert_eq!(code(&output), 1, "{wrong:?}: {}", stderr(&output));
    }
    let unknown = sterna()
        .args(["pub", &open.urls[H3], "-t", "a", "-m", "x"])
        .output()
        .unwrap();
    assert_eq!(code(&unknown), 8, "{}", stderr(&unknown));
}

/// HTTP/3 needs as many flights as MQTT over QUIC, with a full handshake and in early data.
#[test]
fn the_first_message_is_as_early_as_that_of_mqtt() {
    let output = sterna()
        .args(["handshake", "--http", "--json", "--delay", "50"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let lines: Vec<serde_json::Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |name: &str| {
        let found = lines.iter().find(|line| line["handshake"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {lines:?}"))
    };
    for kind in ["full", "resumed"] {
        let up = |name: String| of(&name)["up_packets"].as_u64().unwrap();
        let (http, mqtt) = (
            up(format!("HTTP/3, {kind}")),
            up(format!("MQTT, QUIC, {kind}")),
        );
        assert!(http <= mqtt + 2, "{kind}: {http} and {mqtt}");
    }
    // All in the first datagram, which is half a round trip.
    let early = of("HTTP/3, 0-RTT");
    assert_eq!(early["up_packets"], 1, "{early}");
    assert_eq!(early["early_data_accepted"], true);
    assert_eq!(of("MQTT, QUIC, 0-RTT")["up_packets"], 1);
}

/// `--retained-only` ends at the first live message, which stays for the next subscriber.
#[test]
fn what_retained_only_ends_before_is_not_acknowledged() {
    let broker = plain_broker();
    let session = ["-t", "r/#", "-q", "1", "-i", "keeper", "-c", "-W", "20"];
    let with = |rest: &[&'static str]| [&session[..], rest].concat();
    let asked = broker.run(H3, "sub", &with(&["-E"]));
    assert_eq!(code(&asked), 0, "{}", stderr(&asked));
    let sent = broker.run(H3, "pub", &["-t", "r/1", "-q", "1", "-m", "live"]);
    assert_eq!(code(&sent), 0, "{}", stderr(&sent));
    let ended = broker.run(H3, "sub", &with(&["--retained-only"]));
    assert_eq!((code(&ended), stdout(&ended)), (0, ""));
    let next = broker.run(H3, "sub", &with(&["-C", "1"]));
    assert_eq!((code(&next), stdout(&next)), (0, "live\n"));
}

/// A frame comes in one piece with one that cannot be read.
#[test]
fn what_came_before_the_end_is_printed() {
    let server = scripted(|client| {
        let _ = client.read(&mut [0; 1_024]).unwrap();
        let answer = *b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.sterna.stream\r\n\
            content-length: 11\r\n\r\n\x07\x01\x01\x01t\x00hi\x02\x01\x00";
        client.write_all(&answer).unwrap();
    });
    let url = format!("http://{server}");
    let run = sterna().args(["sub", &url, "-t", "t"]).output().unwrap();
    assert_eq!(
        (code(&run), stdout(&run)),
        (130, "hi\n"),
        "{}",
        stderr(&run)
    );
}

#[test]
fn a_redirect_is_told_and_not_followed() {
    let server = scripted(|client| {
        let _ = client.read(&mut [0; 1_024]).unwrap();
        let answer = *b"HTTP/1.1 301 Moved Permanently\r\nlocation: https://elsewhere.example/\r\n\
            content-length: 0\r\n\r\n";
        client.write_all(&answer).unwrap();
    });
    let url = format!("http://{server}");
    let sent = sterna()
        .args(["pub", &url, "-t", "t", "-q", "1", "-m", "hi"])
        .output()
        .unwrap();
    assert_eq!(code(&sent), 130);
    assert!(stderr(&sent).contains("301, which leads to https://elsewhere.example/"));
}

/// Secrets of the environment do not go to the server of a URL with a login of its own.
#[test]
fn a_login_in_the_url_goes_before_the_environment() {
    for (url_login, flags, expected) in [
        ("ann:pw@", &[][..], "Basic YW5uOnB3"),
        ("ann@", &["-P", "other"][..], "Basic YW5uOm90aGVy"),
        ("ann@", &[][..], "Basic YW5uOg=="),
        ("", &[][..], "Bearer secret"),
    ] {
        let (saw, seen) = std::sync::mpsc::channel();
        let server = scripted(move |client| {
            let mut request = [0; 4_096];
            let bytes = client.read(&mut request).unwrap();
            let text = String::from_utf8_lossy(&request[..bytes]).into_owned();
            saw.send(text).unwrap();
            let _ = client.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        });
        let mut command = sterna();
        command.args([
            "pub",
            &format!("http://{url_login}{server}"),
            "-t",
            "t",
            "-m",
            "x",
        ]);
        command.args(flags).env("STERNA_TOKEN", "secret");
        let sent = command.output().unwrap();
        assert_eq!(code(&sent), 0, "{}", stderr(&sent));
        let request = seen.recv().unwrap();
        assert!(
            request.contains(&format!("authorization: {expected}\r\n")),
            "{request}"
        );
    }
}
