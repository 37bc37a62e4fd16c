//! Requests that must change nothing, and those that would leave no trace.

use serde_json::{Value, json};
use sterna_mqtt::QoS;

use crate::admin::trace::{begin, events};
use crate::admin::world::{V5, World};
use crate::fixture::Peer;
use crate::page::{ADMIN, answer, connect};

const DELETE: &str = "/admin/v1/sessions/victim";

fn is_there(world: &mut World) -> bool {
    world.get("/admin/v1/sessions/victim").status == 200
}

/// A page of another origin in the operator's browser: by script, form, or as a rebound name.
#[test]
fn pages_of_other_origins_read_and_change_nothing() {
    let mut world = World::new(1);
    world.client(0, "victim", 100);
    let json = "Content-Type: application/json\r\n";
    for fields in [
        "Origin: https://evil.example\r\n",
        "Origin: null\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Origin: http://localhost:8080\r\n",
    ] {
        let read = world.send("GET", "/admin/v1/node", fields, "");
        assert_eq!(read.status, 403, "{fields}");
        assert!(!read.head.contains("access-control-allow"), "{}", read.head);
        let change = world.send("DELETE", DELETE, &format!("{fields}{json}"), "");
        assert_eq!(change.status, 403, "{fields}");
        let asked = world.send("OPTIONS", DELETE, fields, "");
        assert!(
            asked.status >= 400,
            "a preflight is not granted: {}",
            asked.head
        );
    }
    for host in [
        "evil.example",
        "evil.example:9464",
        "localhost.evil.example",
    ] {
        let request = format!("DELETE {DELETE} HTTP/1.1\r\nHost: {host}\r\n{json}\r\n");
        world.broker.send(world.peer, request.as_bytes());
        let answer = answer(&mut world.broker, world.peer).expect("an answer");
        assert_eq!(answer.status, 421, "{host}");
    }
    // What a form can send, from wherever it is.
    for fields in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: multipart/form-data; boundary=x\r\n",
    ] {
        let told = world.send("POST", "/admin/v1/publish", fields, r#"{"topic":"t"}"#);
        assert_eq!(told.status, 400, "{fields}");
        assert_eq!(
            world.send("DELETE", DELETE, fields, "").status,
            400,
            "{fields}"
        );
    }
    assert!(is_there(&mut world));
    let own =
        "Origin: http://localhost:9464\r\nSec-Fetch-Site: same-origin\r\nSterna-Request: 1\r\n";
    assert_eq!(world.send("DELETE", DELETE, own, "").status, 204);
    assert!(!is_there(&mut world));
}

#[test]
fn large_requests_are_refused_and_slow_ones_end() {
    let mut world = World::new(1);
    let large = "x".repeat(17 << 20);
    let request = format!(
        "POST /admin/v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        large.len()
    );
    world.broker.send(world.peer, request.as_bytes());
    let refused = answer(&mut world.broker, world.peer).expect("an answer");
    assert_eq!(refused.status, 413);
    let mut world = World::new(1);
    let long = format!(
        "GET /admin/v1/clients?name={} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(100_000)
    );
    world.broker.send(world.peer, long.as_bytes());
    let refused = answer(&mut world.broker, world.peer).expect("an answer");
    assert!([414, 431].contains(&refused.status), "{refused:?}");
    let mut world = World::new(1);
    world.broker.send(world.peer, b"POST /admin/v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n");
    world.broker.advance(3_600_000);
    assert!(
        world.broker.is_closed(world.peer),
        "it sent nothing for an hour"
    );
}

#[test]
fn names_that_are_not_there_end_nothing_else() {
    let mut world = World::new(2);
    world.client(1, "victim", 100);
    for path in [
        "/admin/v1/sessions/victi",
        "/admin/v1/sessions/victim%2F",
        "/admin/v1/sessions/VICTIM",
        "/admin/v1/sessions/%24queue%2Fq",
        "/admin/v1/clients/0.0.0",
        "/admin/v1/clients/0.0.1/",
        "/admin/v1/queues/q/messages",
    ] {
        let told = world.call("DELETE", path, "");
        assert!([404, 409].contains(&told.status), "{path}: {told:?}");
    }
    assert!(is_there(&mut world));
}

/// [MQTT-1.5.4-2] A reader would have to close its connection, and again at each retained message.
#[test]
fn content_types_with_the_null_character_reach_no_reader() {
    let mut world = World::new(1);
    let reader = world.client(0, "reader", 0);
    world.broker.subscribe(reader, V5, "a", QoS::AtMostOnce);
    let publish = |world: &mut World, content_type: &str| {
        let content = json!({"topic": "a", "retain": true, "content_type": content_type});
        world.call("POST", "/admin/v1/publish", &content.to_string())
    };
    let told = publish(&mut world, "a\0b");
    assert_eq!(told.status, 400, "{told:?}");
    let detail = told.json["detail"].as_str().expect("text");
    assert_eq!(detail, "content_type: a field contains U+0000");
    assert_eq!(world.broker.told(reader, V5), [""; 0]);
    assert_eq!(world.get("/admin/v1/retained/a").status, 404);
    assert_eq!(publish(&mut world, "ab").status, 200);
    assert_eq!(world.broker.told(reader, V5).len(), 1);
}

/// A request of HTTP/2 on a stream of its own, without content.
fn http2_request(method: &str, path: &str) -> Vec<u8> {
    let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    request.extend(http2_frame(4, 0, 0, &[]));
    let mut head = vec![0x86];
    // RFC 7541, section 6.2.2: literals with names of the static table.
    for (name, value) in [
        (&[0x02_u8][..], method),
        (&[0x04][..], path),
        (&[0x01][..], "localhost"),
        (&[0x0f, 31 - 15][..], "application/json"),
    ] {
        head.extend_from_slice(name);
        head.push(u8::try_from(value.len()).expect("short"));
        head.extend_from_slice(value.as_bytes());
    }
    request.extend(http2_frame(1, 5, 1, &head));
    request
}

fn http2_frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags, 0, 0, 0, stream]);
    frame.extend_from_slice(payload);
    frame
}

/// Changes in the audit log, each with its object and the reason of a refusal.
fn actions(world: &mut World, trace: Peer) -> Vec<(Value, Value)> {
    let told = events(world, trace);
    let lines = told.iter().filter(|line| line["event"] == "action");
    let lines = lines.map(|line| (line["on"].clone(), line["reason"].clone()));
    lines.collect()
}

/// The shards have the question, and carry it out.
#[test]
fn a_change_is_in_the_audit_log_also_where_its_client_does_not_wait_for_it() {
    const PURGE: &str = "/admin/v1/queues/q/messages";
    for leaves in [
        "is cut",
        "resets the stream",
        "is told that it takes too long",
    ] {
        let mut world = World::with(&crate::admin::queues::config(), 2);
        let content = r#"{"topic": "queue/q", "qos": 1}"#;
        for _ in 0..3 {
            let told = world.call("POST", "/admin/v1/publish", content);
            assert_eq!(told.status, 200, "{told:?}");
        }
        let trace = begin(&mut world, "events=action");
        let peer = connect(&mut world.broker, ADMIN, 0);
        world.broker.deaf = Some(1);
        let http1 =
            format!("DELETE {PURGE} HTTP/1.1\r\nHost: localhost\r\nSterna-Request: 1\r\n\r\n");
        match leaves {
            "is cut" => {
                world.broker.send(peer, http1.as_bytes());
                world.broker.cut(peer);
            }
            "resets the stream" => {
                world.broker.send(peer, &http2_request("DELETE", PURGE));
                let reset = http2_frame(3, 0, 1, &8_u32.to_be_bytes());
                world.broker.send(peer, &reset);
            }
            _ => {
                world.broker.send(peer, http1.as_bytes());
                world.broker.advance(5_000);
                let answer = answer(&mut world.broker, peer).expect("an answer");
                assert_eq!(answer.status, 503);
            }
        }
        world.broker.hear();
        let queue = world.read("/admin/v1/queues/q");
        assert_eq!(queue["messages"], 0, "{leaves}");
        let lines = actions(&mut world, trace);
        assert_eq!(lines, [(json!("q, 3 messages"), Value::Null)], "{leaves}");
    }
}

#[test]
fn a_refused_change_is_one_line_of_the_audit_log_with_its_object() {
    let mut world = World::with(&crate::admin::queues::config(), 2);
    let trace = begin(&mut world, "events=action");
    for (path, content, on) in [
        (
            "publish",
            r#"{"topic": "a", "payload": "x", "payload_base64": "eA=="}"#,
            "a",
        ),
        ("publish", r#"{"topic": "a/+"}"#, "a/+"),
        ("publish", "{}", ""),
        ("queues/q/move", r#"{"to": "none"}"#, "q to none"),
        ("queues/q/move", r#"{"to": "q"}"#, "q to q"),
    ] {
        let told = world.call("POST", &format!("/admin/v1/{path}"), content);
        let detail = told.json["detail"].clone();
        assert!(told.status >= 400 && detail.is_string(), "{told:?}");
        let lines = actions(&mut world, trace);
        assert_eq!(lines, [(json!(on), detail)], "{content}");
    }
}
