//! `sterna-lab` as people and scripts use it.
#![allow(clippy::unwrap_used)] // it is all test

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::process::Command;
use std::thread;

use crate::process::{LAB, has_rights, lab, sterna, text};

#[test]
fn without_rights_a_relay_serves_tcp_and_udp() {
    // Another program may have the same port by UDP.
    let (listener, socket) = (0..100)
        .find_map(|_| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let socket = UdpSocket::bind(listener.local_addr().unwrap());
            Some((listener, socket.ok()?))
        })
        .expect("a port that is free by TCP and UDP");
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 100];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..length], from);
        }
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = [0; 5];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        }
    });
    let script = "exec 3<>/dev/tcp/$LAB_SERVER/$LAB_PORT; printf hello >&3; head -c 5 <&3";
    let output = lab(&[
        "link",
        "--emulator",
        "proxy",
        "--rtt",
        "20ms",
        "--to",
        &address.to_string(),
        "--",
        "bash",
        "-c",
        script,
    ]);
    let errors = text(&output.stderr);
    assert_eq!(text(&output.stdout), "hello", "{errors}");
    assert!(output.status.success());
    assert!(errors.contains("1 connections, 0 failed"), "{errors}");
}

#[test]
fn what_is_not_there_is_named() {
    for (arguments, word) in [
        (
            &["link", "--emulator", "ns3", "--", "true"][..],
            "sterna-lab run --emulator ns3",
        ),
        (&["link", "--emulator", "proxy", "--", "true"], "--to"),
        (&["link", "--profile", "moon", "--", "true"], "nb-iot"),
        (&["link", "--loss", "ge:1", "--", "true"], "ge:"),
    ] {
        let output = lab(arguments);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(word), "{errors}");
    }
}

#[test]
fn a_command_behind_a_link_meets_its_server_and_its_code_is_returned() {
    if !has_rights() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("got");
    let sterna = sterna();
    let server = format!(
        "STERNA__AUTHENTICATION__ALLOW_ANONYMOUS_BEYOND_LOOPBACK=true \
         STERNA__AUTHORIZATION__ALLOW_DEFAULT_BEYOND_LOOPBACK=true \
         STERNA__TLS__ALLOW_DEVELOPMENT_CERTIFICATE_BEYOND_LOOPBACK=true \
         {} serve --listen mqtt://0.0.0.0:1883 --listen mqtt+quic://0.0.0.0:14567 --data-dir {}",
        sterna.display(),
        folder.path().display()
    );
    let sterna = sterna.display();
    let client = format!(
        "{sterna} pub -L mqtt://$LAB_SERVER:1883 -t t -m x -q 1 && \
         {sterna} pub -L mqtt+quic://$LAB_SERVER:14567 --insecure -t t -m x -q 1 && touch {}; exit 7",
        ready.display()
    );
    let capture = folder.path().join("run.pcapng");
    let report = folder.path().join("report.json");
    let output = lab(&[
        "link",
        "--rtt",
        "10ms",
        "--server",
        &server,
        "--wait",
        "1883",
        "--report",
        &report.display().to_string(),
        "--capture",
        &capture.display().to_string(),
        "--",
        "sh",
        "-c",
        &client,
    ]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{errors}");
    assert!(ready.exists(), "{errors}");
    assert!(errors.contains("packets recorded"), "{errors}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["settings"]["up"]["delay_ns"], 5_000_000);
    assert!(
        report["up"]["delivered_packets"].as_u64() > Some(3),
        "{report}"
    );

    let trace = folder.path().join("run.client.pcapng");
    let recorded = String::from_utf8_lossy(&std::fs::read(&trace).unwrap()).into_owned();
    assert!(recorded.contains("CLIENT_TRAFFIC_SECRET_0 "));
    let output = lab(&[
        "battery",
        "--profile",
        "nb-iot",
        "--every",
        "10min",
        "--trace",
        &trace.display().to_string(),
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("linear battery"));
}

#[test]
fn a_broker_behind_a_link_of_ipv6_is_known_by_its_certificate() {
    if !has_rights() {
        return;
    }
    let sterna = sterna();
    let sterna = sterna.display();
    for (options, server, client) in [
        (&["--ipv6"][..], "[$LAB_SERVER]", "[$LAB_SERVER]"),
        (&[], "$LAB_SERVER", "$LAB_SERVER"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().display();
        let server = format!(
            "STERNA__AUTHENTICATION__ALLOW_ANONYMOUS_BEYOND_LOOPBACK=true \
             STERNA__AUTHORIZATION__ALLOW_DEFAULT_BEYOND_LOOPBACK=true \
             STERNA__TLS__ALLOW_DEVELOPMENT_CERTIFICATE_BEYOND_LOOPBACK=true \
             {sterna} serve --listen mqtts://{server}:8883 --listen mqtt+quic://{server}:14567 --data-dir {data}"
        );
        let client = format!(
            "{sterna} pub -L mqtts://{client}:8883 --cafile {data}/development-ca.pem -t t -m x -q 1 && \
             {sterna} pub -L mqtt+quic://{client}:14567 --cafile {data}/development-ca.pem -t t -m x -q 1"
        );
        let mut arguments = vec!["link", "--rtt", "10ms"];
        arguments.extend(options);
        arguments.extend([
            "--server", &server, "--wait", "8883", "--", "sh", "-c", &client,
        ]);
        let output = lab(&arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

#[test]
fn nothing_but_the_command_sends_on_a_link_of_ipv6() {
    if !has_rights() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let path = report.display().to_string();
    // Long enough for a wait for other owners of an address, and for the first calls for a router.
    let script = "test $LAB_SERVER = 2001:2::2 && test $LAB_CLIENT = 2001:2::1 && sleep 2";
    let output = lab(&[
        "link", "--ipv6", "-q", "--report", &path, "--", "sh", "-c", script,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["ip_version"], 6);
    for direction in ["up", "down"] {
        assert_eq!(report[direction]["offered_packets"], 0, "{report}");
    }
    let output = lab(&["link", "--ipv6", "--mtu", "1000", "--", "true"]);
    assert!(
        text(&output.stderr).contains("1280"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn hops_add_up_and_say_where_packets_were_dropped() {
    if !has_rights() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = [0; 5];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        }
    });
    // A shell's TCP: a handshake and an exchange take two round trips of 60 ms.
    let script = "start=$(date +%s%N); exec 3<>/dev/tcp/$LAB_SERVER/$LAB_PORT; printf hello >&3; \
                  head -c 5 <&3; echo $((($(date +%s%N) - start) / 1000000))";
    for family in [&[][..], &["--ipv6"]] {
        let mut arguments = vec!["link", "--rtt", "40ms", "--hop", "ideal rtt=20ms"];
        arguments.extend(family);
        arguments.extend(["--to", &target, "--", "bash", "-c", script]);
        let output = lab(&arguments);
        let (said, errors) = (text(&output.stdout), text(&output.stderr));
        let took_ms: u64 = said
            .trim()
            .strip_prefix("hello")
            .and_then(|took| took.parse().ok())
            .unwrap_or_else(|| panic!("{said}: {errors}"));
        assert!(took_ms >= 120, "{took_ms}");
        assert!(errors.contains("hop 2 up    unlimited, 10 ms"), "{errors}");
        assert!(errors.contains("hop 2: dropped up 0; down 0"), "{errors}");
    }
}

#[test]
fn nothing_outlives_a_link_that_is_told_to_end() {
    if !has_rights() {
        return;
    }
    // A name that only these processes have.
    let marker = format!("4{:07}", std::process::id());
    let command = format!("sleep {marker} & sleep {marker}");
    let mut child = Command::new(LAB)
        .args(["link", "-q", "--", "sh", "-c", &command])
        .spawn()
        .unwrap();
    let sleepers = || {
        std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
            .filter(|line| line.starts_with(b"sleep\0"))
            .filter(|line| text(line).contains(&marker))
            .count()
    };
    for _ in 0..12_000 {
        if sleepers() == 2 {
            break;
        }
        thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(sleepers(), 2);
    let killed = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(sleepers(), 0);
}
