//! What the end of a consumer means for the messages that it had and did not settle: over all doors, and over a
//! restart.

use sterna_amqp::messaging::{DeliveryState, Outcome, Rejected, Source};
use sterna_mqtt::packet::{Disconnect, SubscribeOptions};
use sterna_mqtt::{Packet, QoS, ReasonCode, Version};
use sterna_server::config::{Config, Queue};

use crate::amqp_client::{Client, Start};
use crate::fixture::{Broker, Peer};
use crate::h3_client::Client as HttpClient;
use crate::near_full::with_lines;
use crate::store::{Held, config};

const V5: Version = Version::V5;
/// As many as HTTP keeps unacknowledged of a shared subscription.
const MESSAGES: u64 = 16;
/// More than `maximum_deliveries` allows.
const ROUNDS: usize = 4;

/// A queue `orders` that takes three failed deliveries, with dead letters or without.
fn three_deliveries(dead_letter: Option<&str>) -> Config {
    let queue = |name: &str| Queue {
        name: name.to_owned(),
        ..Queue::default()
    };
    let mut config = config();
    config.amqp.queues = vec![
        Queue {
            maximum_deliveries: Some(3),
            dead_letter: dead_letter.map(str::to_owned),
            ..queue("orders")
        },
        queue("lost"),
    ];
    config.check().expect("it is valid");
    config
}

fn fill(broker: &mut Broker) {
    let mut sender = Client::connect(broker, "sender");
    let session = sender.begin(broker);
    let link = sender.sender(broker, session, "queue/orders");
    for token in 0..MESSAGES {
        sender.send(broker, link, token, &token.to_string());
    }
    sender.turn(broker);
    assert_eq!(sender.outcomes().len(), MESSAGES as usize);
    drop(sender.cut(broker));
}

/// All messages are in the queue, none has failed, and each may have been seen.
fn nothing_has_failed(broker: &mut Broker, what: &str) {
    let mut last = Client::connect(broker, "last");
    let session = last.begin(broker);
    last.receiver(broker, session, "l", Source::new("queue/lost"), 100);
    assert_eq!(last.texts().len(), 0, "{what}: no letter is dead");
    last.receiver(broker, session, "o", Source::new("queue/orders"), 100);
    let counts: Vec<(String, u32)> = (last.received.iter())
        .map(|one| (one.text(), one.delivery_count()))
        .collect();
    let all: Vec<_> = (0..MESSAGES).map(|at| (at.to_string(), 0)).collect();
    assert_eq!(counts, all, "{what}");
    last.accept_all(broker);
}

/// The ways in which a consumer of AMQP ends in order, or the broker ends it.
#[derive(Clone, Copy, Debug)]
enum End {
    Detach,
    CloseLink,
    Session,
    Close,
    Theft,
    Stop,
    Kill,
}

const ENDS: [End; 7] = [
    End::Detach,
    End::CloseLink,
    End::Session,
    End::Close,
    End::Theft,
    End::Stop,
    End::Kill,
];

#[test]
fn consumers_of_amqp_that_end_in_order_destroy_nothing() {
    for dead_letter in [Some("lost"), None] {
        for end in ENDS {
            let store = Held::new();
            let config = three_deliveries(dead_letter);
            let mut broker = store.broker(&config, 2);
            fill(&mut broker);
            for round in 0..ROUNDS {
                let start = Start::new("consumer").on(round % 2);
                let mut client = Client::start(&mut broker, start);
                let session = client.begin(&mut broker);
                let link =
                    client.receiver(&mut broker, session, "r", Source::new("queue/orders"), 100);
                let texts = client.texts().len();
                assert_eq!(texts, MESSAGES as usize, "{end:?}, round {round}");
                match end {
                    End::Detach => {
                        client.detach(&mut broker, link, false);
                        // Its source lasts as long as the connection.
                        let closed = client.engine.close(None, &mut client.out);
                        closed.expect("an open connection");
                        client.turn(&mut broker);
                    }
                    End::CloseLink => client.detach(&mut broker, link, true),
                    End::Session => {
                        let ended = client.engine.end(session, None, &mut client.out);
                        ended.expect("a session");
                        client.turn(&mut broker);
                    }
                    End::Close => {
                        let closed = client.engine.close(None, &mut client.out);
                        closed.expect("an open connection");
                        client.turn(&mut broker);
                    }
                    End::Theft => {
                        let mut thief =
                            Client::start(&mut broker, Start::new("consumer").on((round + 1) % 2));
                        let session = thief.begin(&mut broker);
                        let source = Source::new("queue/orders");
                        let link = thief.receiver(&mut broker, session, "r", source, 0);
                        thief.detach(&mut broker, link, true);
                        client.detach(&mut broker, link, true);
                    }
                    End::Stop => {
                        broker.stop();
                        assert!(broker.finished());
                        drop(broker);
                        broker = store.broker(&config, 2);
                    }
                    End::Kill => {
                        // The cursors are written while the messages are out.
                        broker.advance(1_000);
                        drop(broker);
                        broker = store.broker(&config, 2);
                    }
                }
            }
            nothing_has_failed(&mut broker, &format!("{end:?}, {dead_letter:?}"));
        }
    }
}

/// A member of the queue's group that has all messages.
fn worker(broker: &mut Broker, client_id: &str) -> Peer {
    let peer = broker.client(V5, client_id);
    let options = SubscribeOptions::new(QoS::AtLeastOnce);
    broker.subscribe_with(peer, V5, "$share/orders/queue/orders", options, &[]);
    let came = broker.told(peer, V5);
    let published = came.iter().filter(|one| one.starts_with("PUBLISH1"));
    assert_eq!(published.count(), MESSAGES as usize, "{came:?}");
    peer
}

#[test]
fn members_of_mqtt_that_end_in_order_destroy_nothing() {
    for end in ["DISCONNECT", "take-over", "stop", "kill"] {
        let store = Held::new();
        let config = three_deliveries(Some("lost"));
        let mut broker = store.broker(&config, 1);
        fill(&mut broker);
        for _ in 0..ROUNDS {
            let peer = worker(&mut broker, "worker");
            match end {
                "DISCONNECT" => {
                    let disconnect = Disconnect::new(ReasonCode::Success);
                    broker.packet(peer, V5, &Packet::Disconnect(disconnect));
                }
                "take-over" => {
                    broker.client(V5, "worker");
                }
                "stop" => {
                    broker.stop();
                    drop(broker);
                    broker = store.broker(&config, 1);
                }
                _ => {
                    broker.advance(1_000);
                    drop(broker);
                    broker = store.broker(&config, 1);
                }
            }
        }
        nothing_has_failed(&mut broker, end);
    }
}

#[test]
fn readers_of_http_that_end_in_order_destroy_nothing() {
    for end in ["given up", "stop", "kill"] {
        let store = Held::new();
        let config = three_deliveries(Some("lost"));
        let mut broker = store.broker(&config, 1);
        fill(&mut broker);
        for _ in 0..ROUNDS {
            let mut client = HttpClient::connect(&mut broker);
            let path = "/v1/topics/$share/orders/queue/orders";
            let number = client.request(&mut broker, "GET", path, &[], b"");
            let told = client.response(number).content.len();
            assert!(told > 0, "{end}: something has come");
            match end {
                "given up" => {
                    let id = sterna_h3::StreamId(number);
                    let code = sterna_h3::ErrorCode::H3_REQUEST_CANCELLED;
                    (client.engine.cancel(id, code, &mut client.out)).expect("a request");
                    client.turn(&mut broker);
                    // Its session has no name, and is gone then.
                    broker.advance(61_000);
                }
                "stop" => {
                    broker.stop();
                    drop(broker);
                    broker = store.broker(&config, 1);
                }
                _ => {
                    broker.advance(1_000);
                    drop(broker);
                    broker = store.broker(&config, 1);
                }
            }
        }
        nothing_has_failed(&mut broker, end);
    }
}

/// Time passes, and the store answers.
fn pass(broker: &mut Broker, ms: u64) {
    broker.advance(ms);
    broker.wake();
}

/// A consumer gets what comes, and its transport is cut.
fn lose(broker: &mut Broker) -> usize {
    let mut client = Client::connect(broker, "consumer");
    let session = client.begin(broker);
    client.receiver(broker, session, "r", Source::new("queue/orders"), 100);
    broker.wake();
    client.turn(broker);
    let came = client.texts().len();
    drop(client.cut(broker));
    came
}

#[test]
fn lost_connections_destroy_nothing_and_make_messages_wait() {
    for (counts, dead_letter) in [(false, Some("lost")), (false, None), (true, None)] {
        let store = Held::new();
        let mut config = three_deliveries(dead_letter);
        config.amqp.queue_counts_lost_connections = counts;
        let mut broker = store.broker(&config, 2);
        fill(&mut broker);
        let all = MESSAGES as usize;
        assert_eq!([lose(&mut broker), lose(&mut broker)], [all; 2]);
        assert_eq!(lose(&mut broker), 0, "the pause has begun");
        pass(&mut broker, 1_000);
        assert_eq!(lose(&mut broker), all);
        pass(&mut broker, 1_000);
        assert_eq!(lose(&mut broker), 0, "the next one is longer");
        pass(&mut broker, 1_000);
        assert_eq!(lose(&mut broker), all);
        pass(&mut broker, 4_000);
        // The next process knows of it.
        broker.stop();
        drop(broker);
        broker = store.broker(&config, 1);
        assert_eq!(lose(&mut broker), all);
        assert_eq!(lose(&mut broker), 0);
        pass(&mut broker, 8_000);
        let mut last = Client::connect(&mut broker, "last");
        let session = last.begin(&mut broker);
        last.receiver(&mut broker, session, "l", Source::new("queue/lost"), 100);
        assert_eq!(last.texts().len(), 0);
        last.receiver(&mut broker, session, "o", Source::new("queue/orders"), 100);
        broker.wake();
        last.turn(&mut broker);
        let expected = if counts { 5 } else { 0 };
        let counts_of: Vec<u32> = last
            .received
            .iter()
            .map(crate::amqp_client::Received::delivery_count)
            .collect();
        assert_eq!(counts_of, vec![expected; all]);
        assert_eq!(last.accept_all(&mut broker).len(), all);
    }
}

#[test]
fn lost_connections_lead_to_the_dead_letters_where_that_is_set() {
    let store = Held::new();
    let mut config = three_deliveries(Some("lost"));
    config.amqp.queue_counts_lost_connections = true;
    let mut broker = store.broker(&config, 1);
    fill(&mut broker);
    for _ in 0..3 {
        assert_eq!(lose(&mut broker), MESSAGES as usize);
        pass(&mut broker, 1_000);
    }
    assert_eq!(lose(&mut broker), 0);
    let mut last = Client::connect(&mut broker, "last");
    let session = last.begin(&mut broker);
    last.receiver(&mut broker, session, "l", Source::new("queue/lost"), 100);
    assert_eq!(last.accept_all(&mut broker).len(), MESSAGES as usize);
}

#[test]
fn what_full_dead_letters_refuse_is_not_delivered_again_at_once() {
    with_lines(|lines| {
        reject_into_full_dead_letters();
        let lines = lines.text();
        let told: Vec<&str> = (lines.lines())
            .filter(|line| line.contains("before they are delivered again"))
            .collect();
        let is_one = matches!(&*told, [one] if one.contains("WARN") && one.contains("orders"));
        assert!(is_one, "{told:?}");
    });
}

fn reject_into_full_dead_letters() {
    let store = Held::new();
    let mut config = three_deliveries(Some("lost"));
    config.broker.maximum_group_queued_messages = MESSAGES as u32;
    let mut broker = store.broker(&config, 1);
    let mut client = Client::connect(&mut broker, "consumer");
    let session = client.begin(&mut broker);
    let sender = client.sender(&mut broker, session, "queue/lost");
    for token in 0..MESSAGES {
        client.send(&mut broker, sender, token, "full");
    }
    fill(&mut broker);
    let link = client.receiver(&mut broker, session, "r", Source::new("queue/orders"), 100);
    let mut seen = 0;
    let rejected = DeliveryState::Outcome(Outcome::Rejected(Rejected { error: None }));
    for _ in 0..100 {
        let ids: Vec<u32> = client.received.drain(..).map(|one| one.id).collect();
        seen += ids.len();
        for id in ids {
            client.dispose(&mut broker, session, (id, id), &rejected, true);
        }
        client.credit(&mut broker, link, 100);
        pass(&mut broker, 100);
        client.turn(&mut broker);
    }
    // At once, and after one, three and seven seconds.
    assert_eq!(seen, 4 * MESSAGES as usize);
    // Nothing is lost by that.
    let other = client.receiver(&mut broker, session, "l", Source::new("queue/lost"), 100);
    assert_eq!(client.accept_all(&mut broker).len(), MESSAGES as usize);
    client.detach(&mut broker, other, true);
    pass(&mut broker, 8_000);
    client.turn(&mut broker);
    assert_eq!(client.accept_all(&mut broker).len(), MESSAGES as usize);
}
