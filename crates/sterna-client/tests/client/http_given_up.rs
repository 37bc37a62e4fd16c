//! Calls for the next message of an HTTP subscription that are given up, as a `select!` does.
#![allow(clippy::unwrap_used)] // it is all test

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use sterna_client::http::{Client, Error, Options, Received, Subscribe, Subscription};
use sterna_client::{Backoff, QoS};
use tokio::sync::mpsc::UnboundedSender;

use crate::http_broker::{Answer, Part, Request, Script, Server, frame};
use crate::patience::soon;

/// Where the parts of the streams go in, in the order of the streams.
type Inlets = Arc<Mutex<Vec<UnboundedSender<Part>>>>;

/// The answer with a stream, which begins with these parts.
fn stream(inlets: &Inlets, parts: impl IntoIterator<Item = Part>) -> Answer {
    let (answer, inlet) = Answer::subscription("~1");
    for part in parts {
        assert!(inlet.send(part).is_ok());
    }
    inlets.lock().unwrap().push(inlet);
    answer
}

/// A server, and a subscription of a client of it over HTTP/3 or HTTP/1.1.
async fn subscribed(
    over_quic: bool,
    answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    change: fn(&mut Options),
) -> (Server, Subscription) {
    let script = Script::new(answer);
    let (server, scheme) = if over_quic {
        (Server::http3(script), "h3")
    } else {
        (Server::tcp(script, &[]).await, "http")
    };
    let mut options = server.options(scheme);
    change(&mut options);
    let client = Client::new(options).unwrap();
    let subscribe = Subscribe::new("a", QoS::AtLeastOnce).unwrap();
    let subscription = soon(client.subscribe(subscribe)).await.unwrap();
    (server, subscription)
}

/// Asks for the next message, and gives each call up where it first waits.
async fn impatient(subscription: &mut Subscription) -> Result<Received, Error> {
    let asking = async {
        loop {
            if let Some(next) = subscription.next().now_or_never() {
                return next;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(asking).await
}

/// The answer with a silent stream first, then with one that has a message.
fn silent_then_not(inlets: &Inlets) -> Answer {
    let is_first = inlets.lock().unwrap().is_empty();
    stream(inlets, (!is_first).then(|| frame(1, 1, "a", b"")))
}

#[tokio::test]
async fn silence_is_noticed_over_many_calls() {
    for over_quic in [false, true] {
        let inlets = Inlets::default();
        let answer = move |_: &Request| silent_then_not(&inlets);
        let (_server, mut subscription) = subscribed(over_quic, answer, |options| {
            options.silence_timeout = Duration::from_millis(300);
        })
        .await;
        let received = impatient(&mut subscription).await.unwrap();
        assert_eq!(received.id, Some(1));
    }
}

/// To connect and to ask takes longer than each call.
#[tokio::test]
async fn the_way_back_outlives_the_calls() {
    for over_quic in [false, true] {
        let inlets = Inlets::default();
        let filling = Arc::clone(&inlets);
        let answer = move |_: &Request| silent_then_not(&filling);
        let (server, mut subscription) = subscribed(over_quic, answer, |_| {}).await;
        assert!(inlets.lock().unwrap()[0].send(Part::Cut).is_ok());
        let received = impatient(&mut subscription).await.unwrap();
        assert_eq!(received.id, Some(1));
        assert_eq!(server.script.asked().len(), 2);
    }
}

/// A call that is given up in a pause does not end the pause.
#[tokio::test]
async fn the_back_off_lasts_over_many_calls() {
    for over_quic in [false, true] {
        let inlets = Inlets::default();
        let filling = Arc::clone(&inlets);
        let answer = move |_: &Request| {
            let is_first = filling.lock().unwrap().is_empty();
            if is_first {
                stream(&filling, None)
            } else {
                Answer::Cut
            }
        };
        let (server, mut subscription) = subscribed(over_quic, answer, |options| {
            // The first attempt follows the cut at once. The second one comes after the end of this test.
            let hour = Duration::from_secs(3_600);
            options.reconnect = Some(Backoff {
                min: hour,
                max: hour,
                max_attempts: None,
            });
        })
        .await;
        assert_eq!(server.script.asked().len(), 1);
        assert!(inlets.lock().unwrap()[0].send(Part::Cut).is_ok());
        let mut tick = async || {
            let next = tokio::time::timeout(Duration::from_millis(20), subscription.next()).await;
            assert!(next.is_err(), "{next:?}");
            server.script.asked().len()
        };
        soon(async { while tick().await == 0 {} }).await;
        for _ in 0..20 {
            assert_eq!(tick().await, 0, "asked within the pause");
        }
    }
}

/// Another client has the session now, and keeps it.
#[tokio::test]
async fn the_end_is_told_to_a_later_call() {
    for over_quic in [false, true] {
        let inlets = Inlets::default();
        let answer = move |request: &Request| {
            if request.target.starts_with("/v1/sessions/") {
                let text = r#"{"session":"~1","connected":true}"#;
                return Answer::Whole(200, Vec::new(), text.into());
            }
            stream(&inlets, [Part::End])
        };
        let (server, mut subscription) = subscribed(over_quic, answer, |_| {}).await;
        let error = impatient(&mut subscription).await.unwrap_err();
        assert!(matches!(error, Error::Closed), "{error}");
        let asked = server.script.asked();
        assert_eq!(asked.len(), 2, "{asked:?}");
    }
}
