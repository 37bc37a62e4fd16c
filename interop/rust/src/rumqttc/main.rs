//! rumqttc (crates.io) as a driver of the common scenario: JSON lines in, JSON lines out.

mod v3;
mod v5;

use std::collections::HashMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use rumqttc::{TlsConfiguration, Transport};
use serde_json::{Value, json};
use sterna_interop::{Waiter, Waiters, answer, cannot, fail, say, text};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Publishes that wait for their acknowledgement at once.
const WINDOW: u16 = 100;
/// The largest packet that the library is told to take, unless the scenario says otherwise.
const MAX_PACKET_BYTES: usize = 2 * 1024 * 1024;

/// What waits for an answer on one connection.
#[derive(Debug, Default)]
struct Waiting {
    publish: Waiters,
    subscribe: Waiters,
    unsubscribe: Waiters,
    /// The request that ends the connection.
    ending: Option<u64>,
}

impl Waiting {
    /// The connection is over: says so, and fails whoever still waits.
    fn end(&mut self, handle: u64, reason: Option<u8>, detail: &str) {
        for waiters in [
            &mut self.publish,
            &mut self.subscribe,
            &mut self.unsubscribe,
        ] {
            waiters.fail_all(&format!("the connection ended: {detail}"));
        }
        say(&json!({"event": "closed", "client": handle, "reason": reason, "detail": detail}));
        if let Some(number) = self.ending.take() {
            answer(number, json!({}));
        }
    }
}

/// A connection of either version, driven by the requests that concern it.
struct Connection {
    requests: UnboundedSender<Value>,
    task: tokio::task::JoinHandle<()>,
    waiting: std::sync::Arc<Mutex<Waiting>>,
    handle: u64,
}

/// The address as the library wants it, and the transport.
fn address(request: &Value) -> Result<(String, u16, Transport), String> {
    let port = request["port"].as_u64().unwrap_or_default() as u16;
    let host = text(&request["host"]);
    let transport = text(&request["transport"]);
    let url = format!("{transport}://{host}:{port}{}", text(&request["path"]));
    let tls = || {
        let ca = fs::read(text(&request["ca"])).map_err(|error| error.to_string())?;
        Ok::<_, String>(TlsConfiguration::Simple {
            ca,
            alpn: None,
            client_auth: None,
        })
    };
    Ok(match transport.as_str() {
        "tcp" => (host, port, Transport::tcp()),
        "tls" => (host, port, Transport::tls_with_config(tls()?)),
        "ws" => (url, port, Transport::ws()),
        "wss" => (url, port, Transport::wss_with_config(tls()?)),
        other => return Err(format!("no transport {other}")),
    })
}

fn open(request: &Value) -> Result<Connection, String> {
    let (requests, inbox) = unbounded_channel();
    let waiting = std::sync::Arc::new(Mutex::new(Waiting::default()));
    let handle = request["client"].as_u64().unwrap_or_default();
    let task = if request["level"] == 5 {
        let options = v5::options(request)?;
        tokio::spawn(v5::run(options, request.clone(), inbox, waiting.clone()))
    } else {
        let options = v3::options(request)?;
        tokio::spawn(v3::run(options, request.clone(), inbox, waiting.clone()))
    };
    Ok(Connection {
        requests,
        task,
        waiting,
        handle,
    })
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // Two libraries in one build could each bring a provider; one is chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
    say(&json!({"hello": {
        "client": "rumqttc 0.25.1",
        "transports": ["tcp", "tls", "ws", "wss"],
        "levels": [4, 5],
        // It waits for a property length behind the reason code, and the broker may leave that out.
        "misses_disconnect": true,
        "cannot": {
            "keep-alive@5.0": "takes no keep alive below 5 s",
            "will-with-disconnect-0x04": "sends DISCONNECT with the code 0x00 only",
            "session-expiry-on-disconnect": "sends DISCONNECT without properties only",
        },
    }}));
    let mut connections: HashMap<u64, Connection> = HashMap::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(request) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        let number = request["n"].as_u64().unwrap_or_default();
        let handle = request["client"].as_u64().unwrap_or_default();
        match request["op"].as_str() {
            // The library checks its options by assertion.
            Some("connect") => match catch_unwind(AssertUnwindSafe(|| open(&request))) {
                Ok(Ok(connection)) => drop(connections.insert(handle, connection)),
                Ok(Err(error)) => fail(number, &error, None),
                Err(_) => cannot(number, "the library does not take these options"),
            },
            Some("abort") => {
                if let Some(connection) = connections.remove(&handle) {
                    // Dropping the event loop closes the socket and says nothing to the broker.
                    connection.task.abort();
                    let _ = connection.task.await;
                    let mut waiting = connection.waiting.lock().unwrap();
                    waiting.end(connection.handle, None, "aborted");
                }
                answer(number, json!({}));
            }
            Some("disconnect") => match connections.remove(&handle) {
                None => answer(number, json!({})),
                Some(_) if request["reason"] != 0 || request["properties"] != json!({}) => {
                    cannot(number, "sends DISCONNECT without code and properties only");
                }
                Some(connection) => {
                    connection.waiting.lock().unwrap().ending = Some(number);
                    if connection.requests.send(request).is_err() {
                        answer(number, json!({}));
                    }
                }
            },
            _ => match connections.get(&handle) {
                Some(connection) if connection.requests.send(request.clone()).is_ok() => {}
                _ => fail(number, "the connection has ended", None),
            },
        }
    }
}

/// A waiter for a request's one or many messages.
fn waiter(request: &Value, count: u64) -> Waiter {
    Waiter::new(request["n"].as_u64().unwrap_or_default(), count as usize)
}
