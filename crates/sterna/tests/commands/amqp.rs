//! The client commands over AMQP as their users run them, against a broker in this process.
#![allow(clippy::unwrap_used)] // it is all test

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use sterna_server::config::{Config, EarlyData};

use crate::process::{Broker, code, stderr, stdout, sterna};

const MQTT: usize = 0;
const TCP: usize = 1;
const TLS: usize = 2;
const QUIC: usize = 3;
const WS: usize = 4;
/// In the order of the numbers above.
const SCHEMES: [&str; 5] = ["mqtt", "amqp", "amqps", "amqp+quic", "ws"];
/// What a subscriber says when its subscription stands.
const READY: [&str; 2] = ["link attached", "request answered"];

/// A broker whose configuration is changed.
fn broker_with(change: impl FnOnce(&mut Config, &Path)) -> Broker {
    let mut broker = Broker::start(&SCHEMES, &READY, |config, folder| {
        config.quic.early_data = EarlyData::All;
        change(config, folder);
    });
    broker.urls[WS] = broker.urls[WS]
        .replace("ws://", "amqp+ws://")
        .replace("/mqtt", "/amqp");
    broker
}

fn plain_broker() -> Broker {
    broker_with(|_, _| {})
}

#[test]
fn messages_pass_between_all_transports_and_protocols() {
    let broker = plain_broker();
    for from in [MQTT, TCP, TLS, QUIC, WS] {
        for to in [MQTT, TCP, TLS, QUIC, WS] {
            let receiver =
                broker.subscriber(to, &["-t", "a/#", "-q", "1", "-v", "-C", "3", "-W", "20"]);
            for qos in ["0", "1", "2"] {
                let sent = broker.run(from, "pub", &["-t", "a/b", "-m", qos, "-q", qos]);
                assert_eq!(code(&sent), 0, "{}", stderr(&sent));
            }
            assert_eq!(receiver.output(), "a/b 0\na/b 1\na/b 2\n", "{from} to {to}");
        }
    }
}

/// Properties pass by the table of `docs/mapping.md`, whichever protocols publisher and subscriber
/// speak.
#[test]
fn properties_pass() {
    let broker = plain_broker();
    for (from, to) in [(TCP, TCP), (TCP, MQTT), (MQTT, TCP)] {
        let receiver = broker.subscriber(
            to,
            &[
                "-t",
                "p/#",
                "-q",
                "1",
                "-C",
                "1",
                "-W",
                "20",
                "-F",
                "%t|%q|%C|%D|%R|%P|%F|%p",
            ],
        );
        let sent = broker.run(
            from,
            "pub",
            &[
                "-t",
                "p/x",
                "-q",
                "1",
                "-m",
                "text",
                "-D",
                "publish",
                "content-type",
                "text/plain",
                "-D",
                "publish",
                "correlation-data",
                "c1",
                "-D",
                "publish",
                "response-topic",
                "answers",
                "-D",
                "publish",
                "payload-format-indicator",
                "1",
                "-D",
                "publish",
                "user-property",
                "unit",
                "C",
                "-D",
                "publish",
                "user-property",
                "amqp-subject",
                "warm",
            ],
        );
        assert_eq!(code(&sent), 0, "{}", stderr(&sent));
        let printed = receiver.output();
        assert!(
            printed == "p/x|1|text/plain|c1|answers|unit:C amqp-subject:warm|1|text\n"
                || printed == "p/x|1|text/plain|c1|answers|amqp-subject:warm unit:C|1|text\n",
            "{from} to {to}: {printed}"
        );
    }
}

#[test]
fn retained_messages_come_with_the_subscription() {
    let broker = plain_broker();
    let sent = broker.run(TCP, "pub", &["-t", "r", "-m", "kept", "-r", "-q", "1"]);
    assert_eq!(code(&sent), 0, "{}", stderr(&sent));
    for transport in [TCP, MQTT] {
        let got = broker.run(
            transport,
            "sub",
            &["-t", "r", "-C", "1", "-W", "20", "-F", "%r %p"],
        );
        assert_eq!(stdout(&got), "1 kept\n");
    }
    let none = broker.run(TCP, "sub", &["-t", "r", "-R", "-W", "0.3"]);
    assert_eq!((code(&none), stdout(&none)), (27, ""));
    broker.run(TCP, "pub", &["-t", "r", "-n", "-r", "-q", "1"]);
    let none = broker.run(TCP, "sub", &["-t", "r", "-C", "1", "-W", "0.3"]);
    assert_eq!((code(&none), stdout(&none)), (27, ""));
}

#[test]
fn queues_keep_messages_until_they_are_taken() {
    let broker = plain_broker();
    let mut lines = broker.command(QUIC, "pub", &["-t", "queue/jobs", "-l", "-q", "2"]);
    lines.stdin(Stdio::piped());
    let mut child = lines.spawn().unwrap();
    let numbers: Vec<String> = (0..500).map(|number| number.to_string()).collect();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(numbers.join("\n").as_bytes()).unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    let first = broker.run(
        TCP,
        "sub",
        &[
            "-t",
            "queue/jobs",
            "-q",
            "1",
            "-C",
            "200",
            "-W",
            "20",
            "--credit",
            "7",
        ],
    );
    let second = broker.run(
        TLS,
        "sub",
        &["-t", "queue/jobs", "-q", "2", "-C", "300", "-W", "20"],
    );
    let got: Vec<&str> = stdout(&first)
        .lines()
        .chain(stdout(&second).lines())
        .collect();
    assert_eq!(got, numbers);
}

/// What `-C` does not print stays in the queue, whatever the messages' QoS and the receiver's.
#[test]
fn a_queue_keeps_what_was_not_printed() {
    let broker = plain_broker();
    for (qos, asked) in [("0", None), ("1", None), ("0", Some("0")), ("1", Some("0"))] {
        for number in 0..6 {
            let text = number.to_string();
            let sent = broker.run(TCP, "pub", &["-t", "queue/kept", "-m", &text, "-q", qos]);
            assert_eq!(code(&sent), 0, "{}", stderr(&sent));
        }
        let mut printed = String::new();
        for _ in 0..3 {
            let mut rest = vec!["-t", "queue/kept", "-C", "2", "-W", "20"];
            rest.extend(asked.iter().flat_map(|asked| ["-q", asked]));
            let got = broker.run(TCP, "sub", &rest);
            assert_eq!(code(&got), 0, "{qos}, {asked:?}: {}", stderr(&got));
            printed.push_str(stdout(&got));
        }
        assert_eq!(printed, "0\n1\n2\n3\n4\n5\n", "{qos}, {asked:?}");
    }
    // Credit comes again for what is left out.
    let receiver = broker.subscriber(
        TCP,
        &["-t", "f/#", "-T", "f/out", "-C", "2", "-W", "20", "-v"],
    );
    for topic in ["f/out", "f/out", "f/in", "f/out", "f/in"] {
        let sent = broker.run(TCP, "pub", &["-t", topic, "-m", "x", "-q", "1"]);
        assert_eq!(code(&sent), 0, "{}", stderr(&sent));
    }
    assert_eq!(receiver.output(), "f/in x\nf/in x\n");
}

#[test]
fn durable_subscriptions_and_selectors() {
    let broker = plain_broker();
    let durable = [
        "-t",
        "d/#",
        "-i",
        "logger",
        "--durable",
        "-q",
        "1",
        "-W",
        "20",
    ];
    let asked = broker.run(TCP, "sub", &[&durable[..], &["-E"]].concat());
    assert_eq!(code(&asked), 0, "{}", stderr(&asked));
    broker.run(MQTT, "pub", &["-t", "d/1", "-m", "away", "-q", "1"]);
    let got = broker.run(QUIC, "sub", &[&durable[..], &["-C", "1"]].concat());
    assert_eq!(stdout(&got), "away\n", "{}", stderr(&got));

    let selected = broker.subscriber(
        TCP,
        &["-t", "s", "--selector", "unit = 'C'", "-C", "1", "-W", "20"],
    );
    for unit in ["F", "C"] {
        broker.run(
            TCP,
            "pub",
            &[
                "-t",
                "s",
                "-m",
                unit,
                "-D",
                "publish",
                "user-property",
                "unit",
                unit,
            ],
        );
    }
    assert_eq!(selected.output(), "C\n");
}

#[test]
fn requests_get_their_responses() {
    let broker = plain_broker();
    for responder in [MQTT, TCP] {
        let server = broker.subscriber(
            responder,
            &[
                "-t", "svc/time", "-F", "%R %D", "-C", "1", "-W", "20", "-q", "1",
            ],
        );
        let client = broker
            .command(TCP, "request", &["-t", "svc/time", "-m", "now", "-W", "20"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let asked = server.output();
        let (reply_to, correlation) = asked.trim().split_once(' ').unwrap();
        let property = ["-D", "publish", "correlation-data", correlation];
        let answer = [&["-t", reply_to, "-m", "noon", "-q", "1"][..], &property].concat();
        let answered = broker.run(responder, "pub", &answer);
        assert_eq!(code(&answered), 0, "{}", stderr(&answered));
        let output = client.wait_with_output().unwrap();
        assert_eq!((code(&output), stdout(&output)), (0, "noon\n"));
    }
    let silent = broker.run(TCP, "request", &["-t", "nobody", "-m", "x", "-W", "0.3"]);
    assert_eq!(code(&silent), 27, "{}", stderr(&silent));
}

#[test]
fn logins_and_failures_have_their_codes() {
    let broker = broker_with(|config, folder| {
        let file = folder.join("passwords");
        let status = sterna()
            .args([
                "passwd",
                "-b",
                "-c",
                file.to_str().unwrap(),
                "ann",
                "secret",
            ])
            .status()
            .unwrap();
        assert!(status.success());
        config.authentication.password_file = Some(file);
    });
    let publish = |rest: &[&str]| {
        let all = [&["-t", "a", "-m", "x", "-q", "1"][..], rest].concat();
        broker.run(TCP, "pub", &all)
    };
    for right in [
        &["-u", "ann", "-P", "secret"][..],
        &["-u", "ann", "-P", "secret", "--scram"],
        &["-u", "ann", "-P", "secret", "--sasl", "scram"],
    ] {
        let output = publish(right);
        assert_eq!(code(&output), 0, "{right:?}: {}", stderr(&output));
    }
    for (wrong, expected) in [
        (&["-u", "ann", "-P", "guess"][..], 134),
        (&["-u", "ann", "-P", "guess", "--scram"], 134),
        (&[], 134),
        (&["--sasl", "plain"], 1),
        (&["--datagrams"], 1),
        (&["--will-topic", "w"], 1),
        (&["-V", "311"], 1),
        (&["--priority", "high"], 1),
        (&["-D", "connect", "user-property", "a", "b"], 1),
    ] {
        let output = publish(wrong);
        assert_eq!(code(&output), expected, "{wrong:?}: {}", stderr(&output));
        assert!(!stderr(&output).is_empty());
    }
    let login = ["-u", "ann", "-P", "secret", "-m", "x", "-q", "1"];
    let nowhere = [&["-t", "/nowhere"][..], &login].concat();
    let output = broker.run(TCP, "pub", &nowhere);
    assert_eq!(code(&output), 144, "{}", stderr(&output));
    assert!(stderr(&output).contains("amqp:not-found"));
    let mqtt = broker.run(MQTT, "pub", &["-t", "a", "-m", "x", "--sasl", "plain"]);
    assert_eq!(code(&mqtt), 1);
    assert!(stderr(&mqtt).contains("--sasl: MQTT has no such thing"));
    let unreachable = sterna()
        .args(["pub", "amqp://127.0.0.1:1/a", "-m", "x"])
        .output()
        .unwrap();
    assert_eq!(code(&unreachable), 14);
}

/// The scenarios of the paper run, and a resumed client's first message rides in its first datagram.
#[test]
fn the_papers_scenarios_run() {
    let measure = |rest: &[&str]| -> Vec<serde_json::Value> {
        let output = sterna()
            .args(["handshake", "--amqp", "--json", "--delay", "5"])
            .args(rest)
            .output()
            .unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let lines = stdout(&output).lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let many = measure(&["--bytes", "138", "--connections", "2"]);
    assert_eq!(many.len(), 8, "TCP, TLS four times, QUIC three times");
    // On a busy machine the answer may be late, and the datagram is sent again.
    let is_in_one_datagram = (0..10).any(|_| {
        let many = measure(&["--bytes", "138", "--connections", "2"]);
        let early = many.last().unwrap();
        assert_eq!(early["handshake"], "QUIC, 0-RTT");
        assert_eq!(early["early_data_accepted"], true);
        (&early["up_packets"], &early["up_bytes"]) == (&1.into(), &1200.into())
    });
    assert!(is_in_one_datagram);
    assert!(many[0]["startup_ms"].as_f64() > Some(0.0));

    let one = measure(&["--bytes", "138", "--messages", "100"]);
    assert_eq!(one.len(), 8);
    for line in &one {
        assert!(line["up_bytes"].as_u64() > Some(100 * 138), "{line}");
    }
}

/// `--retained-only` ends at the first live message, which goes back to its queue.
#[test]
fn what_retained_only_ends_before_is_not_settled() {
    let broker = plain_broker();
    let queue = ["-t", "queue/jobs", "-q", "1", "-W", "20"];
    let sent = broker.run(TCP, "pub", &["-t", "queue/jobs", "-q", "1", "-m", "live"]);
    assert_eq!(code(&sent), 0, "{}", stderr(&sent));
    let with = |rest: &[&'static str]| [&queue[..], rest].concat();
    let ended = broker.run(TCP, "sub", &with(&["--retained-only"]));
    assert_eq!((code(&ended), stdout(&ended)), (0, ""));
    let next = broker.run(TCP, "sub", &with(&["-C", "1"]));
    assert_eq!((code(&next), stdout(&next)), (0, "live\n"));
}
