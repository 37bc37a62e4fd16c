//! The HTTP client against a server that does what a test tells it to.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sterna_client::http::{
    Client, Credentials, Error, Event, Method, Retained, Subscribe, Version,
};
use sterna_client::{EarlyData, Publish, QoS};

use crate::http_broker::{Answer, Part, Script, Server, frame};
use crate::patience::soon;

fn message(topic: &str, payload: &str) -> Publish {
    Publish::new(topic, payload.to_owned())
        .unwrap()
        .qos(QoS::AtLeastOnce)
}

/// Servers of each version, and how they are reached.
async fn each_version(script: fn() -> Script) -> Vec<(Server, Client, Version)> {
    let mut all = Vec::new();
    let http3 = Server::http3(script());
    let client = http3.client("h3");
    all.push((http3, client, Version::Http3));
    let http2 = Server::tcp(script(), &[b"h2"]).await;
    let mut options = http2.options("https");
    options.http3 = false;
    all.push((http2, Client::new(options).unwrap(), Version::Http2));
    let tls = Server::tcp(script(), &[b"http/1.1"]).await;
    let mut options = tls.options("https");
    options.http3 = false;
    all.push((tls, Client::new(options).unwrap(), Version::Http11));
    let plain = Server::tcp(script(), &[]).await;
    let client = plain.client("http");
    all.push((plain, client, Version::Http11));
    all
}

#[tokio::test]
async fn a_message_is_a_request_with_its_fields() {
    for (server, client, version) in each_version(Script::yes).await {
        let full = message("house/é b/#1?".trim_end_matches("#1?"), "21.5")
            .qos(QoS::ExactlyOnce)
            .retain(true)
            .content_type("text/plain")
            .unwrap()
            .user_property("unit", "°C")
            .unwrap();
        soon(client.publish(full)).await.unwrap();
        soon(client.publish(message("a", "").qos(QoS::AtMostOnce)))
            .await
            .unwrap();
        soon(client.publish(message("a", "x"))).await.unwrap();
        assert_eq!(client.connection().unwrap().version, version);
        let asked = server.script.asked();
        let [full, bare, plain] = &asked[..] else {
            panic!("{asked:?}");
        };
        assert!(full.is("POST", "/v1/topics/house/%C3%A9%20b/"), "{full:?}");
        assert_eq!(full.content, b"21.5");
        assert_eq!(full.get("sterna-qos"), Some("2"));
        assert_eq!(full.get("sterna-retain"), Some("?1"));
        assert_eq!(full.get("content-type"), Some("text/plain"));
        assert_eq!(full.get("sterna-user-property"), Some("unit=%C2%B0C"));
        let keys = [full, plain].map(|request| request.get("idempotency-key").unwrap());
        assert_ne!(keys[0], keys[1]);
        assert_eq!(bare.get("sterna-qos"), Some("0"));
        assert_eq!(bare.get("idempotency-key"), None);
        assert_eq!(plain.get("sterna-qos"), None);
        // One connection for all.
        assert!(asked.iter().all(|request| request.connection == 0));
        client.close().await;
        let error = soon(client.publish(message("a", ""))).await.unwrap_err();
        assert!(matches!(error, Error::Ended), "{error}");
    }
}

/// Small messages are one packet up and one down. On top come acknowledgements that a busy machine sends alone, because
/// the next request is late: these messages do not count, and most do.
#[tokio::test]
async fn a_small_message_is_one_packet_up_and_one_down() {
    const MESSAGES: usize = 40;
    let server = Server::http3(Script::yes());
    let mut options = server.options("h3");
    options.quic.set("mtu_discovery", "false").unwrap();
    let client = Client::new(options).unwrap();
    for _ in 0..5 {
        soon(client.publish(message("sensors/7", "21.5")))
            .await
            .unwrap();
    }
    let (mut clean, mut others) = (0, Vec::new());
    while clean < MESSAGES {
        let before = client.path().unwrap();
        soon(client.publish(message("sensors/7", "21.5")))
            .await
            .unwrap();
        let after = client.path().unwrap();
        let up = after.datagrams_sent - before.datagrams_sent;
        let down = after.datagrams_received - before.datagrams_received;
        if (up, down) == (1, 1) {
            let bytes = after.wire_bytes_sent - before.wire_bytes_sent;
            assert!(bytes <= 110, "{bytes} bytes a message");
            clean += 1;
        } else {
            others.push((up, down));
            assert!(others.len() < MESSAGES, "{clean} are, and {others:?}");
        }
    }
}

#[tokio::test]
async fn the_first_message_of_a_resumed_client_is_early() {
    let server = Server::http3(Script::yes());
    let first = server.client("h3");
    soon(first.publish(message("a", "1"))).await.unwrap();
    assert_eq!(first.connection().unwrap().early_data, EarlyData::NotTried);
    // For the ticket, which comes behind the handshake.
    soon(first.publish(message("a", "2"))).await.unwrap();
    first.close().await;
    assert!(server.script.asked().iter().all(|request| !request.early));
    for qos in [QoS::AtLeastOnce, QoS::AtMostOnce] {
        let again = server.client("h3");
        soon(again.publish(message("a", "3").qos(qos)))
            .await
            .unwrap();
        let asked = server.script.asked();
        let [early] = &asked[..] else {
            panic!("{asked:?}")
        };
        assert!(early.early);
        // What others may repeat has a key.
        assert!(early.get("idempotency-key").is_some());
        assert_eq!(
            soon(again.connected()).await.unwrap().early_data,
            EarlyData::Accepted
        );
        // What has none waits.
        soon(again.publish(message("a", "4").qos(QoS::AtMostOnce)))
            .await
            .unwrap();
        assert_eq!(server.script.asked()[0].get("idempotency-key"), None);
        again.close().await;
    }
}

#[tokio::test]
async fn changes_without_a_key_wait_for_the_handshake() {
    let server = Server::http3(Script::yes());
    let first = server.client("h3");
    soon(first.publish(message("a", "1"))).await.unwrap();
    soon(first.publish(message("a", "2"))).await.unwrap();
    first.close().await;
    server.script.asked();
    let again = server.client("h3");
    soon(again.delete_topic("a")).await.unwrap();
    let asked = server.script.asked();
    assert!(asked[0].is("DELETE", "/v1/topics/a") && !asked[0].early);
    assert_eq!(again.connection().unwrap().early_data, EarlyData::Accepted);
}

/// The server has lost its tickets: what was sent early is sent again, with the same key.
#[tokio::test]
async fn early_data_that_is_not_taken_is_sent_again() {
    let mut server = Server::http3(Script::yes());
    let first = server.client("h3");
    soon(first.publish(message("a", "1"))).await.unwrap();
    soon(first.publish(message("a", "2"))).await.unwrap();
    first.close().await;
    server.script.asked();
    server.quic = None;
    let quic =
        crate::http_broker::Quic::start_again(&server.identity, &server.script, server.address);
    server.quic = Some(soon(quic).await);
    let again = server.client("h3");
    let (one, other) = tokio::join!(
        soon(again.publish(message("a", "3"))),
        soon(again.publish(message("b", "4"))),
    );
    one.unwrap();
    other.unwrap();
    assert_eq!(again.connection().unwrap().early_data, EarlyData::Rejected);
    let mut topics: Vec<_> = server
        .script
        .asked()
        .iter()
        .map(|request| (request.target.clone(), request.early))
        .collect();
    topics.sort();
    assert_eq!(
        topics,
        [
            ("/v1/topics/a".into(), false),
            ("/v1/topics/b".into(), false)
        ]
    );
    // And the connection goes on.
    soon(again.publish(message("c", "5"))).await.unwrap();
    assert_eq!(again.connection().unwrap().connections, 1);
}

#[tokio::test]
async fn too_early_is_said_again_after_the_handshake() {
    let server = Server::http3(Script::new(|request| {
        Answer::status(if request.early { 425 } else { 204 })
    }));
    let first = server.client("h3");
    soon(first.publish(message("a", "1"))).await.unwrap();
    soon(first.publish(message("a", "2"))).await.unwrap();
    first.close().await;
    server.script.asked();
    let again = server.client("h3");
    soon(again.publish(message("a", "3"))).await.unwrap();
    let asked = server.script.asked();
    assert_eq!(asked.len(), 2);
    assert!(asked[0].early && !asked[1].early);
    let key = |at: usize| asked[at].get("idempotency-key").unwrap().to_owned();
    assert_eq!(key(0), key(1));
}

#[tokio::test]
async fn an_answer_that_is_lost_makes_nothing_come_twice() {
    for (server, client, _) in each_version(|| {
        let count = AtomicUsize::new(0);
        Script::new(move |_| match count.fetch_add(1, Ordering::Relaxed) {
            1 => Answer::Cut,
            _ => Answer::status(204),
        })
    })
    .await
    {
        soon(client.publish(message("a", "1"))).await.unwrap();
        soon(client.publish(message("a", "2"))).await.unwrap();
        let asked = server.script.asked();
        assert_eq!(asked.len(), 3);
        let key = |at: usize| asked[at].get("idempotency-key").unwrap().to_owned();
        assert_eq!(key(1), key(2));
        assert_ne!(key(0), key(1));
        assert_ne!(asked[1].connection, asked[2].connection);
    }
    // Without a key nobody knows whether it arrived, and it is not sent again.
    let server = Server::http3(Script::new(|_| Answer::Cut));
    let client = server.client("h3");
    let error = soon(client.publish(message("a", "").qos(QoS::AtMostOnce))).await;
    assert!(matches!(error, Err(Error::Lost(_))), "{error:?}");
    assert_eq!(server.script.asked().len(), 1);
}

/// The broker is still about the first one when it comes again.
#[tokio::test]
async fn a_key_in_use_is_waited_for() {
    let count = AtomicUsize::new(0);
    let server = Server::http3(Script::new(move |_| {
        match count.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Answer::problem(409, "key-in-use"),
            _ => Answer::status(204),
        }
    }));
    let client = server.client("h3");
    soon(client.publish(message("a", "1"))).await.unwrap();
    assert_eq!(server.script.asked().len(), 3);
    assert_eq!(client.connection().unwrap().connections, 1);
}

/// Each request of HTTP/1.1 has a connection for itself. One that waits for it in vain takes none from
/// another.
#[tokio::test]
async fn a_wait_for_a_connection_ends_no_other_request() {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    let receiver = Mutex::new(Some(receiver));
    let server = Server::tcp(
        Script::new(move |_| {
            let receiver = receiver.lock().unwrap().take();
            match receiver {
                Some(receiver) => Answer::Stream(Vec::new(), receiver),
                None => Answer::status(204),
            }
        }),
        &[],
    )
    .await;
    let mut options = server.options("http");
    options.max_connections = 1;
    options.reconnect = None;
    // The last answer takes less.
    options.response_timeout = Duration::from_secs(3);
    let client = Client::new(options).unwrap();
    let mut lines = soon(client.lines("/admin/v1/watch")).await.unwrap();
    let error = soon(client.publish(message("a", "1"))).await.unwrap_err();
    assert!(matches!(error, Error::Timeout(_)), "{error}");
    assert!(sender.send(Part::Bytes("on\n".into())).is_ok());
    assert_eq!(soon(lines.next()).await.unwrap().unwrap(), "on");
    // Now there is room.
    drop(lines);
    soon(client.publish(message("a", "1"))).await.unwrap();
}

#[tokio::test]
async fn requests_that_were_refused_undone_are_sent_again() {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    let server = Server::http3(Script::new(move |_| {
        match counting.fetch_add(1, Ordering::Relaxed) {
            0 => Answer::Refused,
            _ => Answer::status(204),
        }
    }));
    let client = server.client("h3");
    // Even where it has no key.
    soon(client.publish(message("a", "").qos(QoS::AtMostOnce)))
        .await
        .unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 2);
    // A connection that goes away takes no more.
    server.quic.as_ref().unwrap().go_away();
    for _ in 0..5 {
        soon(client.publish(message("a", "").qos(QoS::AtMostOnce)))
            .await
            .unwrap();
    }
    assert_eq!(client.connection().unwrap().connections, 2);
}

#[tokio::test]
async fn credentials_go_with_each_request_or_once() {
    for once in [false, true] {
        let server = Server::http3(Script::yes());
        let mut options = server.options("h3");
        options.credentials = Credentials::Basic {
            user: "u".into(),
            password: "p".into(),
        };
        options.credentials_once = once;
        let client = Client::new(options).unwrap();
        for _ in 0..3 {
            soon(client.publish(message("a", "1"))).await.unwrap();
        }
        let sent: Vec<_> = server
            .script
            .asked()
            .iter()
            .map(|request| request.get("authorization").map(str::to_owned))
            .collect();
        let basic = Some("Basic dTpw".to_owned());
        assert_eq!(sent[0], basic);
        let later = basic.filter(|_| !once);
        assert_eq!(sent[1..], [later.clone(), later]);
    }
}

#[tokio::test]
async fn credentials_are_shown_again_where_they_are_missed() {
    let server = Server::http3(Script::new(|request| {
        // The third request's connection is not believed any more.
        match request.get("authorization") {
            None if request.content == b"3" => Answer::problem(401, "unauthenticated"),
            _ => Answer::status(204),
        }
    }));
    let mut options = server.options("h3");
    options.credentials = Credentials::Bearer("token".into());
    options.credentials_once = true;
    let client = Client::new(options).unwrap();
    for payload in ["1", "2", "3", "4"] {
        soon(client.publish(message("a", payload))).await.unwrap();
    }
    let sent: Vec<_> = server
        .script
        .asked()
        .iter()
        .map(|request| request.get("authorization").is_some())
        .collect();
    assert_eq!(sent, [true, false, false, true, false]);
}

#[tokio::test]
async fn refusals_are_problems() {
    for (server, client, _) in
        each_version(|| Script::new(|_| Answer::problem(403, "forbidden"))).await
    {
        let error = soon(client.publish(message("a", "1"))).await.unwrap_err();
        let problem = error.problem().unwrap();
        assert_eq!((problem.status, problem.name.as_str()), (403, "forbidden"));
        assert_eq!(
            error.to_string(),
            "the broker refused: so it is (403, forbidden)"
        );
        assert_eq!(server.script.asked().len(), 1);
    }
}

/// Whether this is the error for a redirect to another place.
fn is_redirect<T>(result: Result<T, Error>) -> bool {
    let place = "http://elsewhere.example/a";
    matches!(result, Err(Error::Unexpected { status: 307, location: Some(to) }) if to == place)
}

#[tokio::test]
async fn a_redirect_is_no_success_and_is_not_followed() {
    let script = || {
        let fields = || vec![("location", "http://elsewhere.example/a".to_owned())];
        Script::new(move |_| Answer::Whole(307, fields(), bytes::Bytes::new()))
    };
    for (server, client, _) in each_version(script).await {
        let error = soon(client.publish(message("a", "1"))).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the server answered with status 307, which leads to http://elsewhere.example/a; \
             it is not followed"
        );
        assert!(!error.is_temporary());
        let of_qos_0 = message("a", "1").qos(QoS::AtMostOnce);
        assert!(is_redirect(soon(client.publish(of_qos_0)).await));
        assert!(is_redirect(soon(client.create_topic("a")).await));
        assert!(is_redirect(soon(client.topic_exists("a")).await));
        assert!(is_redirect(soon(client.delete_topic("a")).await));
        assert!(is_redirect(soon(client.retained("a", Some("\"1\""))).await));
        assert!(is_redirect(soon(client.session("mine")).await));
        assert!(is_redirect(soon(client.end_session("mine")).await));
        assert!(is_redirect(soon(client.acknowledge("mine", 1)).await));
        assert!(is_redirect(
            soon(client.acknowledge_each("mine", &[1])).await
        ));
        let call = client.call(Method::Get, "/admin/v1/sessions", None);
        assert!(is_redirect(soon(call).await));
        assert!(is_redirect(soon(client.lines("/admin/v1/watch")).await));
        let subscribe = Subscribe::new("a", QoS::AtLeastOnce).unwrap();
        assert!(is_redirect(soon(client.subscribe(subscribe)).await));
        // Each request was sent once.
        assert_eq!(server.script.asked().len(), 13);
    }
}

#[tokio::test]
async fn not_modified_is_an_answer_to_a_condition_alone() {
    let server = Server::http3(Script::new(|_| Answer::status(304)));
    let client = server.client("h3");
    let known = soon(client.retained("a", Some("\"1\""))).await.unwrap();
    assert!(matches!(known, Retained::NotModified));
    let is_unexpected = |error| {
        let Error::Unexpected { status, location } = error else {
            return false;
        };
        (status, location) == (304, None)
    };
    assert!(is_unexpected(
        soon(client.retained("a", None)).await.unwrap_err()
    ));
    assert!(is_unexpected(
        soon(client.publish(message("a", "1"))).await.unwrap_err()
    ));
    assert!(is_unexpected(
        soon(client.topic_exists("a")).await.unwrap_err()
    ));
}

#[tokio::test]
async fn http3_is_preferred_and_tcp_is_the_way_out() {
    let server = Server::both(Script::yes()).await;
    let client = server.client("https");
    soon(client.publish(message("a", "1"))).await.unwrap();
    assert_eq!(client.connection().unwrap().version, Version::Http3);
    // Nobody answers by UDP.
    let server = Server::tcp(Script::yes(), &[b"h2", b"http/1.1"]).await;
    let mut options = server.options("https");
    options.head_start = Duration::from_millis(20);
    let client = Client::new(options).unwrap();
    soon(client.publish(message("a", "1"))).await.unwrap();
    assert_eq!(client.connection().unwrap().version, Version::Http2);
    assert_eq!(server.script.asked()[0].version, "h2");
    // And where nobody answers at all, that is said.
    let mut options = server.options("https");
    options.url = "https://127.0.0.1:9".parse().unwrap();
    options.head_start = Duration::from_millis(20);
    options.connect_timeout = Duration::from_millis(300);
    let error = soon(Client::new(options).unwrap().connected()).await;
    assert!(matches!(error, Err(Error::Connect(_))), "{error:?}");
}

/// A ticket lets the client write at once, into nothing: after the head start it goes on by TCP.
#[tokio::test]
async fn early_data_into_nothing_is_sent_again_by_tcp() {
    let mut server = Server::both(Script::yes()).await;
    let first = server.client("https");
    soon(first.publish(message("a", "1"))).await.unwrap();
    soon(first.publish(message("a", "2"))).await.unwrap();
    first.close().await;
    server.script.asked();
    server.quic = None;
    // So that nothing is refused either.
    let _silent = loop {
        match std::net::UdpSocket::bind(server.address) {
            Ok(socket) => break socket,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let mut options = server.options("https");
    options.head_start = Duration::from_millis(20);
    let again = Client::new(options).unwrap();
    soon(again.publish(message("a", "3"))).await.unwrap();
    assert_eq!(again.connection().unwrap().version, Version::Http2);
    assert_eq!(server.script.asked().len(), 1);
}

#[tokio::test]
async fn retained_messages_topics_and_sessions() {
    let script = || {
        Script::new(
            |request| match (request.method.as_str(), request.target.as_str()) {
                ("GET", "/v1/topics/a?last") if request.get("if-none-match") == Some("\"1\"") => {
                    Answer::Whole(304, vec![("etag", "\"1\"".into())], bytes::Bytes::new())
                }
                ("GET", "/v1/topics/a?last") => Answer::Whole(
                    200,
                    vec![("etag", "\"1\"".into()), ("sterna-qos", "2".into())],
                    "on".into(),
                ),
                ("PUT", "/v1/topics/new") => Answer::status(201),
                ("PUT", _) => Answer::status(200),
                ("HEAD", "/v1/topics/a") => Answer::Whole(200, Vec::new(), bytes::Bytes::new()),
                ("DELETE", "/v1/topics/a" | "/v1/sessions/mine")
                | ("POST", "/v1/sessions/mine/ack?id=7") => Answer::status(204),
                ("GET", "/v1/sessions/mine") => Answer::Whole(
                    200,
                    vec![("content-type", "application/json".into())],
                    r#"{"session":"mine","pending":4}"#.into(),
                ),
                ("POST", "/v1/sessions/mine/ack") if request.content == br#"{"ids":[3,5]}"# => {
                    Answer::status(204)
                }
                ("HEAD", _) => Answer::status(404),
                _ => Answer::problem(404, "no-topic"),
            },
        )
    };
    for (server, client, _) in each_version(script).await {
        let Retained::Message { message, etag } = soon(client.retained("a", None)).await.unwrap()
        else {
            panic!("no message");
        };
        assert_eq!(
            (message.payload_bytes(), message.qos()),
            (&b"on"[..], QoS::ExactlyOnce)
        );
        let again = soon(client.retained("a", etag.as_deref())).await.unwrap();
        assert!(matches!(again, Retained::NotModified));
        let none = soon(client.retained("b", None)).await.unwrap();
        assert!(matches!(none, Retained::None));
        assert!(soon(client.create_topic("new")).await.unwrap());
        assert!(!soon(client.create_topic("a")).await.unwrap());
        assert!(soon(client.topic_exists("a")).await.unwrap());
        assert!(!soon(client.topic_exists("b")).await.unwrap());
        assert!(soon(client.delete_topic("a")).await.unwrap());
        assert!(!soon(client.delete_topic("b")).await.unwrap());
        assert_eq!(
            soon(client.session("mine")).await.unwrap().unwrap().pending,
            Some(4)
        );
        assert!(soon(client.session("other")).await.unwrap().is_none());
        soon(client.acknowledge("mine", 7)).await.unwrap();
        soon(client.acknowledge_each("mine", &[3, 5]))
            .await
            .unwrap();
        assert!(soon(client.end_session("mine")).await.unwrap());
        assert!(client.create_topic("a/+").await.is_err());
        assert!(client.session("a/b").await.is_err());
        drop(server);
    }
}

/// What a subscription asks for when it is resumed, and where its messages go in.
type Inlets = Arc<Mutex<Vec<tokio::sync::mpsc::UnboundedSender<Part>>>>;

fn subscriptions(session: &'static str) -> (Script, Inlets) {
    let inlets: Inlets = Arc::default();
    let filling = Arc::clone(&inlets);
    let script = Script::new(move |request| {
        if request.method != "GET" || request.target.starts_with("/v1/sessions/") {
            return Answer::status(204);
        }
        let (answer, inlet) = Answer::subscription(session);
        filling.lock().unwrap().push(inlet);
        answer
    });
    (script, inlets)
}

fn push(inlets: &Inlets, at: usize, part: Part) {
    assert!(inlets.lock().unwrap()[at].send(part).is_ok());
}

fn gets(script: &Script) -> Vec<String> {
    script
        .asked()
        .into_iter()
        .filter(|request| request.method == "GET")
        .map(|request| request.target)
        .collect()
}

/// A server that cuts the response after each message is asked with the pauses of other failures.
#[tokio::test]
async fn a_message_does_not_end_the_back_off() {
    let id = AtomicUsize::new(0);
    let server = Server::tcp(
        Script::new(move |_| {
            let (answer, inlet) = Answer::subscription("~1");
            let id = id.fetch_add(1, Ordering::Relaxed) as u64 + 1;
            inlet.send(frame(id, 1, "t", b"x")).ok().unwrap();
            inlet.send(Part::Cut).ok().unwrap();
            answer
        }),
        &[],
    )
    .await;
    let mut options = server.options("http");
    options.reconnect.as_mut().unwrap().max_attempts = Some(3);
    let client = Client::new(options).unwrap();
    let subscribe = Subscribe::new("t", QoS::AtLeastOnce).unwrap();
    let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
    let mut messages = 0;
    let error = loop {
        match soon(subscription.next()).await {
            Ok(_) => messages += 1,
            Err(error) => break error,
        }
        assert!(messages <= 3, "it is asked again without an end");
    };
    assert!(matches!(error, Error::Lost(_)), "{error}");
}

#[tokio::test]
async fn a_subscription_goes_on_where_it_was_cut_off() {
    for plain in [false, true] {
        let (script, inlets) = subscriptions("~1");
        let server = if plain {
            Server::tcp(script, &[]).await
        } else {
            Server::http3(script)
        };
        let client = server.client(if plain { "http" } else { "h3" });
        let subscribe = Subscribe::new("a/#", QoS::AtLeastOnce).unwrap();
        let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
        assert_eq!(subscription.session(), Some("~1"));
        push(&inlets, 0, Part::Bytes(bytes::Bytes::from_static(&[0])));
        push(&inlets, 0, frame(1, 1, "a/x", b"one"));
        push(&inlets, 0, frame(2, 1, "a/x", b"two"));
        let first = soon(subscription.next()).await.unwrap();
        assert_eq!(
            (first.id, first.message.payload_bytes()),
            (Some(1), &b"one"[..])
        );
        soon(subscription.next()).await.unwrap();
        push(&inlets, 0, Part::Cut);
        let (third, ()) = tokio::join!(soon(subscription.next()), async {
            while inlets.lock().unwrap().len() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            push(&inlets, 1, frame(3, 0b1001, "a/x", b"three"));
        });
        let third = third.unwrap();
        assert_eq!(third.id, Some(3));
        assert!(third.message.is_duplicate());
        assert_eq!(subscription.restarts(), 0);
        assert_eq!(
            gets(&server.script),
            ["/v1/topics/a/%23", "/v1/topics/a/%23?session=~1&after=2"]
        );
    }
}

/// The application learns of a cut and of its end, and of the last attempt.
#[tokio::test]
async fn outages_are_events() {
    for plain in [false, true] {
        let (script, inlets) = subscriptions("~1");
        let server = if plain {
            Server::tcp(script, &[]).await
        } else {
            Server::http3(script)
        };
        let client = server.client(if plain { "http" } else { "h3" });
        let mut events = client.events();
        let subscribe = Subscribe::new("a/#", QoS::AtLeastOnce).unwrap();
        let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
        let event = soon(events.next()).await.unwrap();
        assert!(matches!(event, Event::Connected(_)), "{event:?}");
        push(&inlets, 0, Part::Cut);
        let reading = async { while soon(subscription.next()).await.is_ok() {} };
        let watching = async {
            let event = soon(events.next()).await.unwrap();
            assert!(
                matches!(
                    &event,
                    Event::Disconnected {
                        retry_in: Some(_),
                        error: Error::Lost(_)
                    }
                ),
                "{event:?}"
            );
            let event = soon(events.next()).await.unwrap();
            assert!(matches!(event, Event::Connected(_)), "{event:?}");
        };
        tokio::select! {
            () = reading => panic!("it ended"),
            () = watching => {}
        }
    }
}

/// As many attempts as the back-off allows, for a subscription that was cut off as for a request.
#[tokio::test]
async fn the_back_off_says_when_a_subscription_is_given_up() {
    let asked = Arc::new(AtomicUsize::new(0));
    let (first, inlet) = Answer::subscription("~1");
    let (count, first) = (Arc::clone(&asked), Mutex::new(Some(first)));
    let script = Script::new(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        let first = first.lock().unwrap().take();
        first.unwrap_or(Answer::Cut)
    });
    let server = Server::tcp(script, &[]).await;
    let mut options = server.options("http");
    options.reconnect.as_mut().unwrap().max_attempts = Some(4);
    let client = Client::new(options).unwrap();
    let mut events = client.events();
    let subscribe = Subscribe::new("a/#", QoS::AtLeastOnce).unwrap();
    let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
    assert!(inlet.send(Part::Cut).is_ok());
    let error = soon(subscription.next()).await.unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    // The cut counts as the first failure.
    assert_eq!(asked.load(Ordering::SeqCst), 1 + 3);
    let event = soon(events.next()).await.unwrap();
    assert!(
        matches!(event, Event::Disconnected { retry_in: None, .. }),
        "{event:?}"
    );
}

#[tokio::test]
async fn durable_subscriptions_acknowledge_what_is_done() {
    let (script, inlets) = subscriptions("mine");
    let server = Server::http3(script);
    let client = server.client("h3");
    let subscribe = Subscribe::new("a", QoS::AtLeastOnce)
        .unwrap()
        .session("mine")
        .unwrap();
    let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
    for id in 1..=3 {
        push(&inlets, 0, frame(id, 1, "a", b""));
    }
    for id in 1..=3 {
        assert_eq!(soon(subscription.next()).await.unwrap().id, Some(id));
    }
    // The third one is done when the fourth is asked for.
    let acks = || -> Vec<_> {
        let asked = server.script.asked();
        let posts = asked.into_iter().filter(|request| request.method == "POST");
        posts.map(|request| request.target).collect()
    };
    let third = async {
        while acks()
            .last()
            .is_none_or(|last| last != "/v1/sessions/mine/ack?id=3")
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        next = subscription.next() => panic!("{next:?}"),
        () = soon(third) => {}
    }
    push(&inlets, 0, frame(4, 1, "a", b""));
    soon(subscription.next()).await.unwrap();
    soon(subscription.close()).await.unwrap();
    assert_eq!(acks(), ["/v1/sessions/mine/ack?id=4"]);
}

/// What the application has not acknowledged itself is asked for again.
#[tokio::test]
async fn an_application_may_acknowledge_itself() {
    let (script, inlets) = subscriptions("mine");
    let server = Server::http3(script);
    let client = server.client("h3");
    let subscribe = Subscribe::new("a", QoS::ExactlyOnce)
        .unwrap()
        .session("mine")
        .unwrap()
        .acknowledge(false);
    let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
    push(&inlets, 0, frame(1, 1, "a", b""));
    soon(subscription.next()).await.unwrap();
    push(&inlets, 0, Part::Cut);
    let (_, ()) = tokio::join!(soon(subscription.next()), async {
        while inlets.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        push(&inlets, 1, frame(1, 0b1001, "a", b""));
    });
    soon(subscription.acknowledge(1)).await.unwrap();
    let asked = server.script.asked();
    let targets: Vec<_> = asked
        .iter()
        .map(|request| request.target.as_str())
        .collect();
    let get = "/v1/topics/a?qos=2&session=mine";
    assert_eq!(targets, [get, get, "/v1/sessions/mine/ack?id=1"]);
}

/// A response that ends in order is over for good where its session is gone or somebody else's.
#[tokio::test]
async fn a_subscription_that_is_ended_stays_ended() {
    for taken in [false, true] {
        let inlets: Inlets = Arc::default();
        let filling = Arc::clone(&inlets);
        let server = Server::http3(Script::new(move |request| {
            if request.target.starts_with("/v1/topics/") {
                let (answer, inlet) = Answer::subscription("mine");
                filling.lock().unwrap().push(inlet);
                answer
            } else if taken {
                let text = r#"{"session":"mine","connected":true}"#;
                Answer::Whole(200, Vec::new(), text.into())
            } else {
                Answer::problem(404, "no-session")
            }
        }));
        let client = server.client("h3");
        let subscribe = Subscribe::new("a", QoS::AtLeastOnce)
            .unwrap()
            .session("mine")
            .unwrap();
        let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
        push(&inlets, 0, Part::End);
        let error = soon(subscription.next()).await.unwrap_err();
        assert!(matches!(error, Error::Closed), "{error}");
    }
}

/// A request that was lost may reach the broker after the one that replaced it, and take its session over. So the client
/// asks once more, and not again where that is ended, too.
#[tokio::test]
async fn a_subscription_is_not_ended_by_a_lost_request_of_its_own() {
    let inlets: Inlets = Arc::default();
    let filling = Arc::clone(&inlets);
    let count = AtomicUsize::new(0);
    let server = Server::http3(Script::new(move |request| {
        if !request.target.starts_with("/v1/topics/") {
            let text = r#"{"session":"mine","connected":true}"#;
            return Answer::Whole(200, Vec::new(), text.into());
        }
        if count.fetch_add(1, Ordering::Relaxed) == 1 {
            return Answer::Cut;
        }
        let (answer, inlet) = Answer::subscription("mine");
        filling.lock().unwrap().push(inlet);
        answer
    }));
    let client = server.client("h3");
    let subscribe = Subscribe::new("a", QoS::AtLeastOnce).unwrap();
    let subscribe = subscribe.session("mine").unwrap();
    let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
    let streams = async |count| {
        while inlets.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    push(&inlets, 0, Part::Cut);
    let ((), next) = tokio::join!(
        soon(async {
            streams(2).await;
            push(&inlets, 1, Part::End);
            streams(3).await;
            push(&inlets, 2, frame(1, 1, "a", b""));
        }),
        soon(subscription.next())
    );
    assert_eq!(next.unwrap().id, Some(1));
    push(&inlets, 2, Part::End);
    let error = soon(subscription.next()).await.unwrap_err();
    assert!(matches!(error, Error::Closed), "{error}");
    assert_eq!(subscription.restarts(), 0);
}

/// The broker has forgotten the session: the subscription goes on with another, and says so.
#[tokio::test]
async fn a_session_that_is_gone_is_told() {
    let count = AtomicUsize::new(0);
    let inlets: Inlets = Arc::default();
    let filling = Arc::clone(&inlets);
    let server = Server::http3(Script::new(move |_| {
        let names = ["~1", "~2"];
        let (answer, inlet) = Answer::subscription(names[count.fetch_add(1, Ordering::Relaxed)]);
        filling.lock().unwrap().push(inlet);
        answer
    }));
    let client = server.client("h3");
    let subscribe = Subscribe::new("a", QoS::AtLeastOnce).unwrap();
    let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
    push(&inlets, 0, frame(9, 1, "a", b""));
    soon(subscription.next()).await.unwrap();
    push(&inlets, 0, Part::Cut);
    let (next, ()) = tokio::join!(soon(subscription.next()), async {
        while inlets.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        push(&inlets, 1, frame(1, 1, "a", b""));
    });
    assert_eq!(next.unwrap().id, Some(1));
    assert_eq!(subscription.restarts(), 1);
    assert_eq!(subscription.session(), Some("~2"));
}

/// A server that goes silent, or sends what cannot be read.
#[tokio::test]
async fn a_stream_that_cannot_be_read_is_an_error() {
    let (script, inlets) = subscriptions("~1");
    let server = Server::http3(script);
    let mut options = server.options("h3");
    // What comes on the second stream comes sooner.
    options.silence_timeout = Duration::from_secs(3);
    options.max_message_bytes = 1_000;
    let client = Client::new(options).unwrap();
    let subscribe = Subscribe::new("a", QoS::AtLeastOnce).unwrap();
    let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
    // Silence: another connection.
    let (next, ()) = tokio::join!(soon(subscription.next()), async {
        while inlets.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        push(&inlets, 1, frame(1, 1, "a", b""));
    });
    next.unwrap();
    assert_eq!(client.connection().unwrap().connections, 2);
    push(&inlets, 1, frame(2, 1, "a", &[0; 1_000]));
    let error = soon(subscription.next()).await.unwrap_err();
    assert!(matches!(error, Error::Frame(_)), "{error}");
}

/// Many at once on one connection, more than the server lets in at a time.
#[tokio::test]
async fn many_requests_share_a_connection() {
    let server = Server::http3(Script::yes());
    let client = server.client("h3");
    let publishing: Vec<_> = (0..300)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                client
                    .publish(message("a", &number.to_string()))
                    .await
                    .unwrap();
            })
        })
        .collect();
    for task in publishing {
        soon(task).await.unwrap();
    }
    let mut payloads: Vec<_> = server
        .script
        .asked()
        .into_iter()
        .map(|request| request.content)
        .collect();
    payloads.sort();
    payloads.dedup();
    assert_eq!(payloads.len(), 300);
    assert_eq!(client.connection().unwrap().connections, 1);
}

/// A request that is given up is cancelled, and the connection goes on.
#[tokio::test]
async fn what_is_given_up_is_cancelled() {
    let server = Server::http3(Script::new(|request| {
        if request.content == b"1" {
            Answer::Silence
        } else {
            Answer::status(204)
        }
    }));
    let client = server.client("h3");
    let publishing = client.publish(message("a", "1"));
    let waited = tokio::time::timeout(Duration::from_millis(50), publishing).await;
    assert!(waited.is_err());
    soon(client.publish(message("a", "2"))).await.unwrap();
    assert_eq!(client.connection().unwrap().connections, 1);
}
