//! Clients of HTTP: two post with keys, to a topic and to a queue; one polls.

use serde_json::Value;

use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::powercut::moves;
use crate::powercut::world::{Actor, Phase, Stage};
use sterna_h3::Features;
use sterna_ledger::{Ledger, Promise, Protocol, PublisherId, ReaderId, Reading, Sending, Stamp};

const FILTER: &str = "t/#";

fn connect(stage: &mut Stage<'_>) -> Client {
    let shard = stage.shard();
    Client::connect_on(stage.broker, shard, Features::default(), Vec::new())
}

/// Posts one message after the other, each with a key of its own.
struct Posts {
    name: &'static str,
    path: &'static str,
    /// Where its readers get the message.
    topic: &'static str,
    publisher: PublisherId,
    client: Option<Client>,
    /// The one that has no answer, and its request.
    open: Option<(Stamp, Option<u64>)>,
}

impl Actor for Posts {
    fn name(&self) -> &'static str {
        self.name
    }

    fn act(&mut self, stage: &mut Stage<'_>) {
        if self
            .client
            .as_ref()
            .is_some_and(|client| stage.broker.is_closed(client.peer))
        {
            self.lost(stage.ledger);
        }
        let Some(client) = &mut self.client else {
            self.client = Some(connect(stage));
            return;
        };
        client.turn(stage.broker);
        if let Some((stamp, Some(request))) = &self.open {
            let status = client
                .heard
                .responses
                .get(request)
                .map_or(0, |response| response.status);
            match status {
                0 => return,
                204 => stage.ledger.acknowledged(*stamp),
                // It is sent again.
                409 | 429 | 503 => {
                    self.cut(stage.broker);
                    return self.lost(stage.ledger);
                }
                status => {
                    stage.ledger.doubtful(*stamp);
                    let text = format!("{} has status {status}", self.name);
                    (stage.ledger).complain(Promise::Serving, Protocol::Http, self.name, text);
                }
            }
            self.open = None;
        }
        if self.open.is_none() {
            if stage.phase == Phase::Drain {
                return;
            }
            let stamp = stage.ledger.send(self.publisher, self.topic);
            self.open = Some((stamp, None));
        }
        if let Some((stamp, request @ None)) = &mut self.open {
            let key = format!("{}-{}", self.name, stamp.sequence);
            let fields = [("idempotency-key", key.as_str()), ("sterna-qos", "2")];
            let payload = stamp.payload();
            *request = Some(client.request(stage.broker, "POST", self.path, &fields, &payload));
        }
    }

    fn lost(&mut self, _: &mut Ledger) {
        self.client = None;
        if let Some((_, request)) = &mut self.open {
            *request = None;
        }
    }

    fn cut(&mut self, broker: &mut Broker) -> bool {
        cut(self.client.as_ref(), broker)
    }

    fn is_idle(&self) -> bool {
        self.client.is_some() && self.open.is_none()
    }
}

fn cut(client: Option<&Client>, broker: &mut Broker) -> bool {
    let Some(client) = client.filter(|client| !broker.is_closed(client.peer)) else {
        return false;
    };
    broker.cut(client.peer);
    true
}

/// Polls a durable subscription. Each poll acknowledges the one before.
struct Polls {
    reader: ReaderId,
    client: Option<Client>,
    request: Option<u64>,
    /// The last id of this connection.
    last: Option<u64>,
}

impl Actor for Polls {
    fn name(&self) -> &'static str {
        "http-polls"
    }

    fn act(&mut self, stage: &mut Stage<'_>) {
        if self
            .client
            .as_ref()
            .is_some_and(|client| stage.broker.is_closed(client.peer))
        {
            self.lost(stage.ledger);
        }
        let Some(client) = &mut self.client else {
            self.client = Some(connect(stage));
            return;
        };
        client.turn(stage.broker);
        if let Some(request) = self.request {
            let response = client.response(request).clone();
            if response.status == 0 || !(response.is_complete || response.reset.is_some()) {
                return;
            }
            self.request = None;
            client.heard.responses.remove(&request);
            if response.status == 200 || response.status == 204 {
                if !stage.ledger.is_granted(self.reader, FILTER) {
                    stage.ledger.granted(self.reader, FILTER);
                }
            } else {
                self.last = None;
            }
            if response.status == 200 && response.is_complete {
                let array: Vec<Value> =
                    serde_json::from_slice(&response.content).expect("an array");
                for one in &array {
                    let topic = one["topic"].as_str();
                    let payload = one["payload"].as_str().expect("text");
                    (stage.ledger).received(self.reader, topic, payload.as_bytes());
                    self.last = one["id"].as_u64().or(self.last);
                }
            }
        }
        if !stage.ledger.is_granted(self.reader, FILTER) {
            stage.ledger.asks(self.reader, FILTER);
        }
        let after = self.last.map_or(String::new(), |id| format!("&after={id}"));
        let path = format!("/v1/topics/t%2F%23?session=polls&wait=1s&max=40{after}");
        let accept = [("accept", "application/json")];
        self.request = Some(client.request(stage.broker, "GET", &path, &accept, b""));
    }

    fn lost(&mut self, _: &mut Ledger) {
        self.client = None;
        self.request = None;
        self.last = None;
    }

    fn cut(&mut self, broker: &mut Broker) -> bool {
        cut(self.client.as_ref(), broker)
    }

    fn is_idle(&self) -> bool {
        self.client.is_some()
    }
}

pub fn enter(ledger: &mut Ledger, actors: &mut Vec<Box<dyn Actor>>) {
    let protocol = Protocol::Http;
    let sending = Sending {
        protocol,
        is_exact: true,
    };
    let reading = Reading {
        protocol,
        is_exact: false,
        is_ordered: true,
    };
    for (name, path, topic) in [
        ("http", "/v1/topics/t%2Fhttp", "t/http"),
        ("http-feeds", "/v1/topics/queue%2Fin", moves::TOPIC),
    ] {
        actors.push(Box::new(Posts {
            name,
            path,
            topic,
            publisher: ledger.publisher(name, sending),
            client: None,
            open: None,
        }));
    }
    actors.push(Box::new(Polls {
        reader: ledger.reader("http-polls", reading),
        client: None,
        request: None,
        last: None,
    }));
}
