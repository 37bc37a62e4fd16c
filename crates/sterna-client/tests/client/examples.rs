//! Each example runs as it stands, against a broker in this process.
#![allow(clippy::unwrap_used)] // it is all test
#![allow(dead_code, reason = "each example has its own main")]

#[path = "../../examples/amqp_publish.rs"]
mod amqp_publish;
#[path = "../../examples/amqp_request.rs"]
mod amqp_request;
#[path = "../../examples/amqp_subscribe.rs"]
mod amqp_subscribe;
#[path = "../../examples/http_publish.rs"]
mod http_publish;
#[path = "../../examples/http_request.rs"]
mod http_request;
#[path = "../../examples/http_subscribe.rs"]
mod http_subscribe;
#[path = "../../examples/mqtt_publish.rs"]
mod mqtt_publish;
#[path = "../../examples/mqtt_request.rs"]
mod mqtt_request;
#[path = "../../examples/mqtt_subscribe.rs"]
mod mqtt_subscribe;

use std::error::Error;

use sterna_server::Server;
use sterna_server::config::{Config, Listener};

/// A broker with a listener for each protocol, and where they are.
fn broker() -> (Server, [String; 3], tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        listeners: ["mqtt", "amqp", "http"]
            .map(|scheme| Listener::at(&format!("{scheme}://127.0.0.1:0")))
            .into(),
        data_directory: Some(folder.path().to_owned()),
        ..Config::default()
    };
    let server = Server::start(&config).unwrap();
    let urls = server.listeners().to_vec().try_into().unwrap();
    (server, urls, folder)
}

/// Publishes until the subscriber has got something.
#[allow(clippy::future_not_send, reason = "nothing leaves the test's thread")]
async fn meet<F: Future<Output = Result<(), Box<dyn Error>>>>(
    subscriber: impl Future<Output = Result<String, Box<dyn Error>>>,
    publish: impl Fn() -> F,
) -> String {
    let publishing = async {
        loop {
            publish().await.unwrap();
        }
    };
    tokio::select! {
        message = subscriber => message.unwrap(),
        () = publishing => unreachable!("it goes on for ever"),
    }
}

#[tokio::test]
async fn what_one_example_publishes_another_one_prints() {
    let (server, [mqtt, amqp, http], _folder) = broker();
    // In a ring, so that each side of each protocol meets another protocol.
    let got = meet(mqtt_subscribe::subscribe(&mqtt), || {
        amqp_publish::publish(&amqp)
    });
    assert_eq!(got.await, "house/kitchen: 21.5");
    let got = meet(http_subscribe::subscribe(&http), || {
        mqtt_publish::publish(&mqtt)
    });
    assert_eq!(got.await, "house/kitchen: 21.5");
    let got = meet(amqp_subscribe::subscribe(&amqp), || {
        http_publish::publish(&http)
    });
    assert_eq!(got.await, "21.5");
    server.shutdown();
}

#[test]
fn both_readmes_have_the_example_that_is_compiled() {
    let own = include_str!("../../README.md");
    let (_, rest) = own.split_once("```rust,no_run\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let project = include_str!("../../../../README.md");
    assert!(project.contains(example), "{project}");
}

#[tokio::test]
async fn requests_are_answered() {
    let (server, [mqtt, amqp, http], _folder) = broker();
    assert_eq!(mqtt_request::request(&mqtt).await.unwrap(), "HELLO");
    assert_eq!(amqp_request::request(&amqp).await.unwrap(), "HELLO");
    assert_eq!(http_request::request(&http).await.unwrap(), "HELLO");
    server.shutdown();
}
