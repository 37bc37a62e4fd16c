//! Spans of single messages, as a collector gets them.
#![allow(clippy::unwrap_used)] // it is all test

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;
use sterna_client::{Client, Options, Publish, QoS, Subscription};
use sterna_server::Server;
use sterna_server::config::{Config, Listener};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SENDER: &str = "00f067aa0ba902b7";

/// A collector: its URL, and the spans that it gets.
fn collector() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let (sender, spans) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut length = 0;
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            assert_eq!(line, "POST /v1/traces HTTP/1.1\r\n");
            while line != "\r\n" {
                if let Some(value) = line.strip_prefix("Content-Length: ") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
                stream.read_line(&mut line).unwrap();
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            let scope = &body["resourceSpans"][0]["scopeSpans"][0];
            for span in scope["spans"].as_array().unwrap() {
                if sender.send(span.clone()).is_err() {
                    return;
                }
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
            stream.get_mut().write_all(answer).unwrap();
        }
    });
    (url, spans)
}

fn broker(folder: &std::path::Path, url: &str, shards: u16) -> Server {
    let mut config = Config {
        shards,
        listeners: vec![Listener::at("mqtt://127.0.0.1:0")],
        data_directory: Some(folder.to_owned()),
        ..Config::default()
    };
    config.otlp.url = Some(url.to_owned());
    Server::start(&config).unwrap()
}

fn message(topic: &str, context: Option<&str>) -> Publish {
    let message = Publish::new(topic, "21.5").unwrap().qos(QoS::AtLeastOnce);
    match context {
        Some(context) => message.user_property("traceparent", context).unwrap(),
        None => message,
    }
}

#[tokio::test]
async fn sampled_messages_have_spans_from_sender_to_reader() {
    let (url, spans) = collector();
    let folder = tempfile::tempdir().unwrap();
    let server = broker(folder.path(), &url, 2);
    let address = &server.listeners()[0];
    let connect = async |id: &str| {
        let mut options = Options::new(address.parse().unwrap());
        options.client_id = Some(id.to_owned());
        Client::connect(options).await.unwrap()
    };
    let (reader, mut events) = connect("reader").await;
    let subscription = Subscription::new("plant/#", QoS::AtLeastOnce).unwrap();
    reader.subscribe([subscription]).await.unwrap();
    let (sender, _events) = connect("sender").await;
    // Neither a message without a context, nor one that its sender does not sample, has any.
    sender.publish(message("plant/quiet", None)).await.unwrap();
    let not_sampled = format!("00-{TRACE}-{SENDER}-00");
    sender
        .publish(message("plant/quiet", Some(&not_sampled)))
        .await
        .unwrap();
    let sampled = format!("00-{TRACE}-{SENDER}-01");
    sender
        .publish(message("plant/loud", Some(&sampled)))
        .await
        .unwrap();
    let mut got = 0;
    while got < 3 {
        let message = events.message().await.unwrap();
        got += 1;
        if message.topic() == "plant/loud" {
            // The context goes on to the reader.
            let properties = message.properties();
            assert!(
                properties
                    .user_properties()
                    .any(|it| it == ("traceparent", &sampled))
            );
        }
    }
    let mut found: BTreeMap<String, Value> = BTreeMap::new();
    while found.len() < 4 {
        let span = spans.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(span["traceId"], TRACE, "{span}");
        found.insert(span["name"].as_str().unwrap().to_owned(), span);
    }
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["acknowledged", "received", "routed", "sent"]);
    let parent = |name: &str| &found[name]["parentSpanId"];
    assert_eq!(parent("received"), SENDER);
    assert_eq!(*parent("routed"), found["received"]["spanId"]);
    assert_eq!(*parent("sent"), found["received"]["spanId"]);
    assert_eq!(*parent("acknowledged"), found["sent"]["spanId"]);
    let attribute = |name: &str, key: &str| {
        let attributes = found[name]["attributes"].as_array().unwrap();
        let attribute = attributes.iter().find(|it| it["key"] == key);
        attribute.unwrap()["value"].clone()
    };
    assert_eq!(attribute("received", "sterna.matched")["intValue"], "1");
    for name in ["routed", "sent", "acknowledged"] {
        assert_eq!(
            attribute(name, "messaging.client.id")["stringValue"],
            "reader"
        );
    }
    for (name, span) in &found {
        let topic = &attribute(name, "messaging.destination.name")["stringValue"];
        assert_eq!(topic, "plant/loud");
        let at = |key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
        assert!(at("startTimeUnixNano") <= at("endTimeUnixNano"), "{span}");
        assert!(span["status"].is_null());
    }
    server.shutdown();
}

/// Nothing waits for a collector that is away.
#[tokio::test]
async fn messages_go_on_without_a_collector() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let server = broker(folder.path(), &format!("http://{free}/v1/traces"), 1);
    let options = Options::new(server.listeners()[0].parse().unwrap());
    let (client, mut events) = Client::connect(options).await.unwrap();
    let subscription = Subscription::new("a", QoS::AtLeastOnce).unwrap();
    client.subscribe([subscription]).await.unwrap();
    let sampled = format!("00-{TRACE}-{SENDER}-01");
    for _ in 0..100 {
        client.publish(message("a", Some(&sampled))).await.unwrap();
        assert_eq!(events.message().await.unwrap().topic(), "a");
    }
    server.shutdown();
}

#[test]
fn wrong_addresses_of_collectors_are_refused() {
    let problems = |url: &str| {
        let mut config = Config::default();
        config.otlp.url = Some(url.to_owned());
        config.check().err().unwrap_or_default().len()
    };
    assert_eq!(problems("http://localhost:4318/v1/traces"), 0);
    assert_eq!(problems("http://[::1]:4318/v1/traces"), 0);
    for url in [
        "https://localhost:4318/v1/traces",
        "http://localhost/v1/traces",
        "http://localhost:4318",
        "http://:4318/v1/traces",
        "http://localhost:4318/v1 traces\r\n",
        "localhost:4318",
    ] {
        assert_eq!(problems(url), 1, "{url}");
    }
}
