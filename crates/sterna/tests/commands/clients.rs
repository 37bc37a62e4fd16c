//! The client commands as their users run them, against a broker in this process.
#![allow(clippy::unwrap_used)] // it is all test

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sterna_server::config::Config;

use crate::process::{Broker, code, scripted, stderr, stdout, sterna};

const TCP: usize = 0;
const QUIC: usize = 1;
const WS: usize = 2;
const TLS: usize = 3;
/// In the order of the numbers above.
const SCHEMES: [&str; 4] = ["mqtt", "mqtt+quic", "ws", "mqtts"];
/// What a subscriber says when its subscription stands.
const READY: [&str; 1] = ["request answered"];

/// A broker whose configuration is changed.
fn broker_with(change: impl FnOnce(&mut Config, &Path)) -> Broker {
    Broker::start(&SCHEMES, &READY, change)
}

fn plain_broker() -> Broker {
    broker_with(|_, _| {})
}

#[test]
fn messages_pass_between_all_transports() {
    let broker = plain_broker();
    let subscriber = broker.subscriber(QUIC, &["-t", "house/#", "-v", "-q", "2", "-C", "5"]);
    for (transport, qos) in [(TCP, "0"), (QUIC, "1"), (WS, "2"), (TLS, "1"), (QUIC, "2")] {
        let topic = format!("house/{transport}");
        let sent = broker.run(transport, "pub", &["-t", &topic, "-q", qos, "-m", qos]);
        assert_eq!(code(&sent), 0, "{}", stderr(&sent));
    }
    let (text, code) = subscriber.end();
    assert_eq!(
        text,
        "house/0 0\nhouse/1 1\nhouse/2 2\nhouse/3 1\nhouse/1 2\n"
    );
    assert_eq!(code, 0);
}

/// A process with the session of this device publishes with QoS 2, and dies before it releases the message.
fn leave_a_message(url: &str, device: &str) {
    let address = url.strip_prefix("mqtt://").unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    // MQTT 3.1.1, without Clean Session and keep alive; then a message on "t" with the identifier 1.
    let mut bytes = vec![0x10, 12 + device.len() as u8];
    bytes.extend(b"\0\x04MQTT\x04\0\0\0\0");
    bytes.push(device.len() as u8);
    bytes.extend(device.as_bytes());
    bytes.extend(b"\x34\x08\0\x01t\0\x01old");
    stream.write_all(&bytes).unwrap();
    let mut answers = [0; 8];
    stream.read_exact(&mut answers).unwrap();
    assert_eq!(answers[4..], [0x50, 2, 0, 1], "PUBREC");
}

/// The broker does not take a message for that of an earlier process.
#[test]
fn a_session_of_an_earlier_process_loses_no_message() {
    let broker = plain_broker();
    let rest = ["-t", "t", "-q", "2", "-C", "6", "-W", "60"];
    let subscriber = broker.subscriber(TCP, &rest);
    for (device, transport, version) in [("a", TCP, "5"), ("b", QUIC, "5"), ("c", TCP, "311")] {
        leave_a_message(&broker.urls[TCP], device);
        let new = ["-c", "-i", device, "-V", version, "-q", "2", "-t", "t"];
        let sent = broker.run(transport, "pub", &[&new[..], &["-m", "new"]].concat());
        assert_eq!(code(&sent), 0, "{}", stderr(&sent));
    }
    assert_eq!(subscriber.end(), ("old\nnew\n".repeat(3), 0));
}

#[test]
fn versions_and_properties_pass() {
    let broker = plain_broker();
    let format = "%t|%p|%q|%C|%P|%R|%D|%E|%F|%S";
    let rest = [
        "-t",
        "p",
        "-q",
        "1",
        "-C",
        "3",
        "-F",
        format,
        "--subscription-identifier",
        "7",
    ];
    let subscriber = broker.subscriber(TCP, &rest);
    for version in ["31", "311"] {
        let sent = broker.run(
            TCP,
            "pub",
            &["-V", version, "-t", "p", "-q", "2", "-m", version],
        );
        assert_eq!(code(&sent), 0, "{}", stderr(&sent));
    }
    let properties = "-D publish content-type text -D publish user-property a b \
        -D publish user-property a c -D publish response-topic r -D publish correlation-data cd \
        -D publish payload-format-indicator 1 -t p -m 5";
    let words: Vec<_> = properties.split_whitespace().collect();
    assert_eq!(code(&broker.run(TCP, "pub", &words)), 0);
    let (text, _) = subscriber.end();
    assert_eq!(
        text,
        "p|31|1|||||||7\np|311|1|||||||7\np|5|0|text|a:b a:c|r|cd||1|7\n"
    );
}

#[test]
fn payloads_come_from_everywhere() {
    let broker = plain_broker();
    let file = broker.folder.path().join("payload");
    std::fs::write(&file, b"from\0file").unwrap();
    let file = file.to_str().unwrap();
    let subscriber = broker.subscriber(TCP, &["-t", "p", "-N", "-C", "6", "-F", "[%p]"]);
    assert_eq!(code(&broker.run(TCP, "pub", &["-t", "p", "-f", file])), 0);
    assert_eq!(code(&broker.run(TCP, "pub", &["-t", "p", "-n"])), 0);
    assert_eq!(
        code(&broker.run(TCP, "pub", &["-t", "p", "-m", "-5", "--repeat", "2"])),
        0
    );
    for (flag, input) in [("-s", "all\nof it"), ("-l", "one line\n")] {
        let mut command = broker.command(TCP, "pub", &["-t", "p", flag]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        assert!(child.wait().unwrap().success());
    }
    let (text, _) = subscriber.end();
    assert_eq!(text, "[from\0file][][-5][-5][all\nof it][one line]");
}

/// In order and complete, over several streams of QUIC. No more than the broker's queue holds, so that
/// nothing is lost where the subscriber gets less of the processor than the publisher.
#[test]
fn many_lines_arrive_in_order() {
    let broker = plain_broker();
    let lines = (0..1_000)
        .map(|number| number.to_string())
        .collect::<Vec<_>>()
        .join("\n")
        + "\n";
    let subscriber = broker.subscriber(TCP, &["-t", "l", "-q", "1", "-C", "1000", "-W", "60"]);
    let mut command = broker.command(
        QUIC,
        "pub",
        &["-t", "l", "-q", "1", "-l", "--streams", "per-topic"],
    );
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(subscriber.end(), (lines, 0));
}

#[test]
fn retained_messages_are_shown_left_out_and_removed() {
    let broker = plain_broker();
    for (topic, text) in [("r/1", "a"), ("r/2", "b"), ("r/3", "c")] {
        assert_eq!(
            code(&broker.run(TCP, "pub", &["-t", topic, "-r", "-m", text])),
            0
        );
    }
    let sub = |rest: &[&str]| {
        let mut all = vec!["-t", "r/#", "-v", "-W", "0.5"];
        all.extend(rest);
        let output = broker.run(TCP, "sub", &all);
        assert_eq!(code(&output), 27, "{}", stderr(&output));
        // A broker sends them in any order.
        let mut lines: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(sub(&[]), ["r/1 a", "r/2 b", "r/3 c"]);
    assert!(sub(&["-R"]).is_empty());
    assert_eq!(sub(&["-T", "r/2", "-T", "+/3"]), ["r/1 a"]);
    assert!(sub(&["--retain-handling", "never"]).is_empty());
    let removing = [
        "-t",
        "r/#",
        "-T",
        "r/2",
        "--remove-retained",
        "--retained-only",
    ];
    assert_eq!(
        code(&broker.run(TCP, "sub", &removing)),
        0,
        "ends at its own empty message"
    );
    assert_eq!(sub(&[]), ["r/2 b"]);
}

/// A session that is kept gets what came while its client was away, and what it didn't print comes
/// again.
#[test]
fn nothing_is_lost_between_two_runs() {
    let broker = plain_broker();
    let session = ["-t", "jobs", "-q", "1", "-i", "worker", "-c"];
    let sub = |rest: &[&str]| {
        let output = broker.run(TCP, "sub", &[&session, rest].concat());
        (stdout(&output).to_owned(), code(&output))
    };
    assert_eq!(sub(&["-E"]), (String::new(), 0));
    for number in 1..=5 {
        let number = number.to_string();
        assert_eq!(
            code(&broker.run(TCP, "pub", &["-t", "jobs", "-q", "1", "-m", &number])),
            0
        );
    }
    assert_eq!(sub(&["-C", "2"]), ("1\n2\n".to_owned(), 0));
    assert_eq!(sub(&["-C", "3", "-W", "10"]), ("3\n4\n5\n".to_owned(), 0));
    let unsubscribe = ["-U", "jobs", "-i", "worker", "-c", "-E"];
    assert_eq!(code(&broker.run(TCP, "sub", &unsubscribe)), 0);
    assert_eq!(
        code(&broker.run(TCP, "pub", &["-t", "jobs", "-q", "1", "-m", "6"])),
        0
    );
    let rest = ["-t", "other", "-i", "worker", "-c", "-W", "0.3"];
    assert_eq!(stdout(&broker.run(TCP, "sub", &rest)), "");
}

/// What `-C` does not print stays with the group, unless QoS 0 was asked for, which is warned of.
#[test]
fn a_shared_subscription_keeps_what_is_not_printed() {
    let broker = plain_broker();
    let group = "$share/g/jobs";
    let keep = ["-i", "keeper", "-c", "-q", "1", "-t", group];
    let kept = broker.run(TCP, "sub", &[&keep[..], &["-E"]].concat());
    assert_eq!(code(&kept), 0, "{}", stderr(&kept));
    for number in 1..=10 {
        let number = number.to_string();
        broker.run(TCP, "pub", &["-t", "jobs", "-q", "1", "-m", &number]);
    }
    let two = broker.run(TCP, "sub", &["-t", group, "-C", "2", "-W", "30"]);
    assert_eq!((stdout(&two), stderr(&two)), ("1\n2\n", String::new()));
    let rest = broker.run(TCP, "sub", &[&keep[..], &["-C", "8", "-W", "30"]].concat());
    assert_eq!(stdout(&rest), "3\n4\n5\n6\n7\n8\n9\n10\n");
    broker.run(TCP, "pub", &["-t", "jobs", "-q", "1", "-m", "x"]);
    let warned = broker.run(TCP, "sub", &["-t", group, "-C", "1", "-q", "0", "-W", "30"]);
    assert!(stderr(&warned).contains("lost to the group"), "{warned:?}");
}

#[test]
fn requests_get_their_responses() {
    let broker = plain_broker();
    let nobody = broker.run(TCP, "request", &["-t", "ask", "-m", "x"]);
    assert_eq!(code(&nobody), 16, "{}", stderr(&nobody));

    let responder = broker.subscriber(TCP, &["-t", "ask", "-C", "1", "-F", "%R %D"]);
    let waiting = broker
        .command(QUIC, "request", &["-t", "ask", "-m", "x", "-W", "20", "-v"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (asked, _) = responder.end();
    let (topic, correlation) = asked.trim_end().split_once(' ').unwrap();
    let answer = |data: &str, text: &str| {
        let data = format!("-t {topic} -m {text} -D publish correlation-data {data}");
        let words: Vec<_> = data.split_whitespace().collect();
        assert_eq!(code(&broker.run(TCP, "pub", &words)), 0);
    };
    answer("of-another-request", "wrong");
    answer(correlation, "right");
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(
        (stdout(&output), code(&output)),
        (format!("{topic} right\n").as_str(), 0)
    );

    let silent = broker.subscriber(TCP, &["-t", "ask", "-C", "1"]);
    let unanswered = broker.run(TCP, "request", &["-t", "ask", "-m", "x", "-W", "0.3"]);
    assert_eq!(code(&unanswered), 27);
    silent.end();
}

#[test]
fn passwords_and_scram_let_in() {
    let broker = broker_with(|config, folder| {
        let file = folder.join("users.pw");
        let made = sterna()
            .args(["passwd", "-c", "-b"])
            .arg(&file)
            .args(["ann", "secret"])
            .output();
        assert!(made.unwrap().status.success());
        config.authentication.password_file = Some(file);
    });
    let publish = |rest: &[&str]| {
        let mut all = vec!["-t", "a", "-m", "x", "-q", "1"];
        all.extend(rest);
        code(&broker.run(QUIC, "pub", &all))
    };
    assert_eq!(publish(&[]), 135);
    assert_eq!(publish(&["-u", "ann", "-P", "secret"]), 0);
    assert_eq!(publish(&["-u", "ann", "-P", "wrong"]), 134);
    assert_eq!(publish(&["-u", "ann", "-P", "wrong", "-V", "311"]), 4);
    assert_eq!(publish(&["-u", "ann", "-P", "secret", "--scram"]), 0);
    assert_eq!(publish(&["-u", "ann", "--scram"]), 1);
    let mut from_environment = broker.command(QUIC, "pub", &["-t", "a", "-m", "x", "-u", "ann"]);
    assert!(
        from_environment
            .env("STERNA_PASSWORD", "secret")
            .status()
            .unwrap()
            .success()
    );
    let mut elsewhere = broker.command(
        TCP,
        "pub",
        &["-t", "a", "-m", "x", "-u", "ann", "-P", "secret"],
    );
    assert!(
        elsewhere
            .env("STERNA_URL", "mqtt://127.0.0.1:1")
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(publish(&["-u", "ann", "-P", "wrong", "--scram"]), 135);
    assert_eq!(publish(&["-u", "eve", "-P", "secret", "--scram"]), 135);
}

#[test]
fn failures_have_their_codes() {
    let broker = plain_broker();
    let run = |rest: &[&str]| {
        let output = sterna().args(rest).output().unwrap();
        (code(&output), stderr(&output))
    };
    let tcp = broker.urls[TCP].as_str();
    for wrong in [
        &["pub", tcp, "-t", "a"][..],
        &["pub", tcp, "-m", "x"],
        &["pub", tcp, "-t", "a/#", "-m", "x"],
        &["pub", tcp, "-t", "a", "-m", "x", "-l"],
        &["pub", tcp, "-t", "a", "-m", "x", "-q", "3"],
        &["pub", tcp, "-t", "a", "-f", "/nonexistent"],
        &["pub", tcp, "-t", "a", "-m", "x", "-c"],
        &["pub", "ftp://h", "-t", "a", "-m", "x"],
        &[
            "pub", tcp, "-t", "a", "-m", "x", "-D", "publish", "nonsense", "1",
        ],
        &[
            "pub",
            tcp,
            "-t",
            "a",
            "-m",
            "x",
            "-V",
            "311",
            "-D",
            "publish",
            "content-type",
            "t",
        ],
        &["sub", tcp],
        &["sub", tcp, "-t", "a#"],
        &["sub", tcp, "-t", "a", "-F", "%y"],
        &["request", tcp, "-t", "a"],
        &["nonsense"],
    ] {
        let (code, text) = run(wrong);
        assert_eq!(code, 1, "{wrong:?}: {text}");
        assert!(!text.is_empty(), "{wrong:?}");
    }
    assert_eq!(
        run(&["pub", "mqtt://127.0.0.1:1", "-t", "a", "-m", "x"]).0,
        14
    );
    assert_eq!(
        run(&["pub", "mqtt://nowhere.invalid", "-t", "a", "-m", "x"]).0,
        15
    );
    let (untrusted, text) = run(&[
        "pub",
        &broker.urls[TLS],
        "-t",
        "a",
        "-m",
        "x",
        "--fingerprint",
        &"0".repeat(64),
    ]);
    assert_eq!(untrusted, 8, "{text}");
    let (untrusted, text) = run(&[
        "pub",
        &broker.urls[QUIC],
        "-t",
        "a",
        "-m",
        "x",
        "--fingerprint",
        &"0".repeat(64),
    ]);
    assert_eq!(untrusted, 8, "{text}");
    let (code, text) = run(&[
        "pub",
        &broker.urls[QUIC],
        "-t",
        "a",
        "-m",
        "x",
        "--insecure",
        "-q",
        "1",
    ]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("--insecure"), "it is loud: {text}");
    assert_eq!(run(&["pub", "--help"]).0, 0);
}

/// A reader that has seen enough is no error, and a signal ends in order.
/// Messages go before the CONNACK, which may say that the broker does not take such. That is said then, and none goes again.
#[test]
fn what_the_broker_does_not_take_is_said() {
    let broker = broker_with(|config, _| {
        config.mqtt.maximum_qos = 1;
        config.mqtt.retain_available = false;
        config.mqtt.maximum_packet_bytes = 2_000;
    });
    let large = "x".repeat(3_000);
    for transport in [TCP, QUIC, WS, TLS] {
        for (arguments, expected) in [
            (["-q", "2", "-m", "x"], 155),
            (["-q", "1", "-rm", "x"], 154),
            (["-q", "1", "-m", &large], 149),
            (["-q", "1", "-m", "x"], 0),
        ] {
            let sent = broker.run(transport, "pub", &[&["-t", "t"], &arguments[..]].concat());
            let said = stderr(&sent);
            assert_eq!(code(&sent), expected, "{transport} {arguments:?}: {said}");
        }
    }
}

#[test]
fn the_end_comes_quietly() {
    let broker = plain_broker();
    let mut subscriber = broker.subscriber(TCP, &["-t", "a"]);
    drop(subscriber.child.stdout.take());
    let started = Instant::now();
    while subscriber.child.try_wait().unwrap().is_none() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "it writes into the void"
        );
        broker.run(TCP, "pub", &["-t", "a", "-m", "x"]);
    }
    assert!(subscriber.child.wait().unwrap().success());

    let mut subscriber = broker.subscriber(TCP, &["-t", "a"]);
    let pid = subscriber.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert!(subscriber.child.wait().unwrap().success());
}

#[test]
fn quic_has_streams_datagrams_and_figures() {
    let broker = plain_broker();
    for mode in ["single", "per-topic", "per-publish", "priority"] {
        let subscriber = broker.subscriber(TCP, &["-t", "q/#", "-C", "3", "-q", "2", "-F", "%p"]);
        for qos in ["0", "1", "2"] {
            let topic = format!("q/{qos}");
            let rest = ["-t", &topic, "-m", qos, "-q", qos, "--streams", mode];
            let output = broker.run(QUIC, "pub", &rest);
            assert_eq!(code(&output), 0, "{mode} {qos}: {}", stderr(&output));
        }
        assert_eq!(subscriber.end(), ("0\n1\n2\n".to_owned(), 0), "{mode}");
    }
    let rest = ["-t", "q", "-m", "x", "--datagrams", "--path-stats"];
    let profile = [
        "--quic-profile",
        "nb-iot",
        "--quic-set",
        "initial_rtt_ms=900",
    ];
    let output = broker.run(QUIC, "pub", &[&rest[..], &profile[..]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let path: serde_json::Value = serde_json::from_str(stderr(&output).trim()).unwrap();
    assert_eq!(path["early_data"], "not tried");
    assert!(path["wire_bytes_sent"].as_u64() > path["packet_bytes_sent"].as_u64());

    let moving = [
        "-t",
        "q",
        "-m",
        "x",
        "-q",
        "1",
        "--repeat",
        "40",
        "--repeat-delay",
        "0.01",
    ];
    let often = ["--rebind-every", "0.1", "--path-stats"];
    let output = broker.run(QUIC, "pub", &[&moving[..], &often[..]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let path: serde_json::Value = serde_json::from_str(stderr(&output).trim()).unwrap();
    assert!(path["migrations"].as_u64() >= Some(2), "{path}");

    for wrong in [
        ["--streams", "9"],
        ["--quic-set", "initial_rtt_ms"],
        ["--quic-set", "x=1"],
    ] {
        let rest = [&["-t", "q", "-n"][..], &wrong[..]].concat();
        assert_ne!(code(&broker.run(QUIC, "pub", &rest)), 0, "{wrong:?}");
    }
}

/// The table of `docs/quic.md`: what each way to connect costs until the first message is
/// acknowledged, in round trips and packets.
#[test]
fn handshakes_cost_what_they_should() {
    let output = sterna()
        .args(["handshake", "--json", "--delay", "200"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let lines: Vec<serde_json::Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (name, round_trips, most_up, most_down) in [
        ("TCP", 2, 2, 2),
        ("TCP + TLS 1.2, full", 4, 4, 4),
        ("TCP + TLS 1.2, resumed", 3, 3, 3),
        ("TCP + TLS 1.3, full", 3, 3, 4),
        ("TCP + TLS 1.3, resumed", 3, 3, 4),
        ("QUIC, full", 2, 4, 3),
        ("QUIC, resumed", 2, 4, 3),
        ("QUIC, 0-RTT", 1, 1, 1),
    ] {
        let line = lines.iter().find(|line| line["handshake"] == name).unwrap();
        // The machine may take its time: packets are counted, and the path's delay is the least.
        assert_eq!(line["trips"], 2 * round_trips, "{line}");
        let took = line["round_trips_to_puback"].as_f64().unwrap();
        let took_broker = line["round_trips_to_broker"].as_f64().unwrap();
        assert!(took >= f64::from(round_trips), "{line}");
        assert!(took_broker >= f64::from(round_trips) - 0.5, "{line}");
        // An end that is late acknowledges by a packet of its own.
        if took < f64::from(round_trips) + 0.1 {
            assert!(line["up_packets"].as_u64() <= Some(most_up), "{line}");
            assert!(line["down_packets"].as_u64() <= Some(most_down), "{line}");
        }
    }
    let early = lines.last().unwrap();
    assert_eq!(early["early_data_accepted"], true);
    assert_eq!(early["up_bytes"], 1200);
}

/// A path for datagrams that can be cut: what comes from the client goes to the broker, and back.
struct Relay {
    port: u16,
    is_cut: Arc<AtomicBool>,
}

impl Relay {
    /// For one client.
    fn new(broker: u16) -> Self {
        let bind = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (front, back) = (bind(), bind());
        back.connect(("127.0.0.1", broker)).unwrap();
        let port = front.local_addr().unwrap().port();
        let is_cut = Arc::<AtomicBool>::default();
        let up = (front.try_clone().unwrap(), back.try_clone().unwrap());
        let cut = Arc::clone(&is_cut);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            let mut client = None;
            while let Ok((bytes, from)) = up.0.recv_from(&mut buffer) {
                if client.replace(from).is_none() {
                    let down = (back.try_clone().unwrap(), front.try_clone().unwrap());
                    let cut = Arc::clone(&cut);
                    std::thread::spawn(move || {
                        let mut buffer = vec![0; 65_536];
                        while let Ok(bytes) = down.0.recv(&mut buffer) {
                            if !cut.load(Ordering::SeqCst) {
                                down.1.send_to(&buffer[..bytes], from).unwrap();
                            }
                        }
                    });
                }
                if !cut.load(Ordering::SeqCst) {
                    up.1.send(&buffer[..bytes]).unwrap();
                }
            }
        });
        Self { port, is_cut }
    }
}

/// What nobody has acknowledged is counted, and is no success.
#[test]
fn messages_that_may_be_lost_are_an_error() {
    let broker = plain_broker();
    let url = &broker.urls[QUIC];
    let relay = Relay::new(url.rsplit_once(':').unwrap().1.parse().unwrap());
    let url = format!("mqtt+quic://127.0.0.1:{}", relay.port);
    let subscriber = broker.subscriber(TCP, &["-t", "a", "-C", "1"]);
    let mut child = sterna()
        .args(["pub", "--url", &url, "--fingerprint", &broker.fingerprint])
        .args(["-t", "a", "-q", "0", "-l", "--close-timeout", "2"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "arrives").unwrap();
    assert_eq!(subscriber.output(), "arrives\n");
    relay.is_cut.store(true, Ordering::SeqCst);
    for number in 0..39 {
        writeln!(input, "{number}").unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 7, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("up to 40 messages may be lost"),
        "{}",
        stderr(&output)
    );
    // The same through a path that stands is a success, as it is over TCP.
    for transport in [QUIC, TCP, TLS] {
        let all = ["-t", "a", "-m", "x", "--repeat", "40"];
        let subscriber = broker.subscriber(TCP, &["-t", "a", "-C", "40"]);
        let sent = broker.run(transport, "pub", &all);
        assert_eq!(code(&sent), 0, "{}", stderr(&sent));
        assert_eq!(subscriber.output().lines().count(), 40);
    }
}

/// A port at which nobody listens.
fn closed_port() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

#[test]
fn errors_name_host_and_port() {
    let place = format!("127.0.0.1:{}", closed_port());
    for scheme in [
        "mqtt", "mqtts", "ws", "wss", "amqp", "amqps", "amqp+ws", "http",
        // HTTP/3 is not waited for where the host has refused TCP.
        "https",
    ] {
        let url = format!("{scheme}://{place}");
        let patient = ["-t", "a", "-m", "x", "--connect-timeout", "3600"];
        let sent = sterna()
            .args(["pub", "--url", &url])
            .args(patient)
            .output()
            .unwrap();
        let text = stderr(&sent);
        assert!(text.contains(&place), "{scheme}: {text}");
        assert!(text.contains("refused"), "{scheme}: {text}");
        assert_eq!(code(&sent), 14, "{scheme}: {text}");
    }
    for scheme in ["mqtt+quic", "amqp+quic", "h3"] {
        let url = format!("{scheme}://{place}");
        let sent = sterna()
            .args(["pub", "--url", &url, "--insecure", "-t", "a", "-m", "x"])
            .args(["--connect-timeout", "0.2"])
            .output()
            .unwrap();
        let text = stderr(&sent);
        let expected = format!("{place}: no answer within 200ms");
        assert!(text.contains(&expected), "{scheme}: {text}");
        assert_eq!(code(&sent), 14, "{scheme}: {text}");
    }
    let unknown = ["pub", "--url", "mqtt://no-such-host.invalid:7", "-t", "a"];
    let sent = sterna().args(unknown).args(["-m", "x"]).output().unwrap();
    assert!(stderr(&sent).contains("no-such-host.invalid"));
    assert_eq!(code(&sent), 15);
}

#[test]
fn a_wrong_fingerprint_is_told_with_the_one_seen() {
    let schemes = ["mqtts", "mqtt+quic", "wss", "amqps", "https"];
    let broker = Broker::start(&schemes, &READY, |_, _| {});
    let seen: String = (broker.fingerprint.chars())
        .filter(char::is_ascii_hexdigit)
        .map(|digit| digit.to_ascii_lowercase())
        .collect();
    let wrong = "0".repeat(64);
    for url in &broker.urls {
        let mut command = sterna();
        command.args(["pub", "--url", url, "--fingerprint", &wrong]);
        if url.starts_with("https") {
            command.arg("--no-http3");
        }
        let sent = command.args(["-t", "a", "-m", "x"]).output().unwrap();
        let text = stderr(&sent);
        let place = url.split_once("//").unwrap().1;
        let place = place.split('/').next().unwrap();
        assert!(text.contains(&format!("{place}: ")), "{url}: {text}");
        let expected = format!("the server has another fingerprint: {seen}");
        assert!(text.contains(&expected), "{url}: {text}");
        assert_eq!(code(&sent), 8, "{url}: {text}");
    }
}

#[test]
fn flags_that_do_nothing_over_a_transport_are_errors() {
    let pinned = "0".repeat(64);
    for (url, flags) in [
        ("mqtt://localhost", &["--quic-profile", "nb-iot"][..]),
        ("mqtts://localhost", &["--quic-set", "initial_rtt_ms=100"]),
        ("ws://localhost", &["--streams", "per-topic"]),
        ("wss://localhost", &["--datagrams"]),
        ("amqp://localhost", &["--no-early-data"]),
        ("amqps://localhost", &["--early-data"]),
        ("http://localhost", &["--path-stats"]),
        ("mqtt://localhost", &["--priority", "bulk"]),
        ("mqtts://localhost", &["--rebind-every", "1"]),
        ("mqtt://localhost", &["--fingerprint", &pinned]),
        ("ws://localhost", &["--insecure"]),
        ("amqp://localhost", &["--server-key", &pinned]),
        ("http://localhost", &["--cafile", "ca.pem"]),
        ("mqtt://localhost", &["--tls-alpn", "mqtt"]),
        ("mqtt+quic://localhost", &["--tls-alpn", "mqtt"]),
        ("h3://localhost", &["--tls-version", "tlsv1.2"]),
        ("h3://localhost", &["--head-start", "10"]),
        ("http://localhost", &["--no-http3"]),
        (
            "https://localhost",
            &["--no-http3", "--quic-profile", "lan"],
        ),
        ("https://localhost", &["--close-timeout", "1"]),
    ] {
        let sent = sterna()
            .args(["pub", "--url", url, "-t", "a", "-m", "x"])
            .args(flags)
            .output()
            .unwrap();
        let flag = flags.iter().rfind(|flag| flag.starts_with("--")).unwrap();
        let text = stderr(&sent);
        assert!(text.contains(flag), "{url} {flags:?}: {text}");
        assert_eq!(code(&sent), 1, "{url} {flags:?}: {text}");
    }
}

/// `--retained-only` ends at the first live message, which stays for the next subscriber.
#[test]
fn what_retained_only_ends_before_is_not_acknowledged() {
    let broker = plain_broker();
    let session = ["-t", "r/#", "-q", "1", "-i", "keeper", "-c", "-W", "20"];
    let with = |rest: &[&'static str]| [&session[..], rest].concat();
    assert_eq!(code(&broker.run(TCP, "sub", &with(&["-E"]))), 0);
    let sent = broker.run(TCP, "pub", &["-t", "r/1", "-q", "1", "-m", "live"]);
    assert_eq!(code(&sent), 0, "{}", stderr(&sent));
    let ended = broker.run(TCP, "sub", &with(&["--retained-only"]));
    assert_eq!((code(&ended), stdout(&ended)), (0, ""));
    let next = broker.run(TCP, "sub", &with(&["-C", "1"]));
    assert_eq!((code(&next), stdout(&next)), (0, "live\n"));
}

/// A message comes in one segment with the DISCONNECT that ends the command.
#[test]
fn what_came_before_the_end_is_printed() {
    let server = scripted(|client| {
        // CONNECT and SUBSCRIBE come before the answer.
        let _ = client.read(&mut [0; 1_024]).unwrap();
        // CONNACK and SUBACK.
        let answers = *b"\x20\x03\x00\x00\x00\x90\x04\x00\x01\x00\x00";
        client.write_all(&answers).unwrap();
        // PUBLISH with QoS 0, and DISCONNECT with "not authorized".
        let end = *b"\x30\x06\x00\x01t\x00hi\xe0\x01\x87";
        client.write_all(&end).unwrap();
    });
    let url = format!("mqtt://{server}");
    let run = sterna().args(["sub", &url, "-t", "t"]).output().unwrap();
    assert_eq!(
        (code(&run), stdout(&run)),
        (135, "hi\n"),
        "{}",
        stderr(&run)
    );
}

/// A signal ends `request` before its response: that is no success.
#[test]
fn a_request_that_is_interrupted_says_so() {
    let (begun, waiting) = std::sync::mpsc::channel();
    let server = scripted(move |client| {
        let _ = client.read(&mut [0; 1_024]).unwrap();
        client.write_all(b"\x20\x03\x00\x00\x00").unwrap();
        begun.send(()).unwrap();
    });
    let url = format!("mqtt://{server}");
    let mut command = sterna();
    command.args(["request", &url, "-t", "t", "-m", "x", "-q", "0", "-W", "60"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    waiting.recv().unwrap();
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    let ended = child.wait_with_output().unwrap();
    assert_eq!(code(&ended), 27, "{}", stderr(&ended));
}
