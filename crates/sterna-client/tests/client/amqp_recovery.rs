//! Connections of the AMQP client that break, and what comes of what was under way.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use std::collections::BTreeMap;
use std::time::Duration;

use sterna_amqp::sasl::SaslCode;
use sterna_client::amqp::{
    Connection, Credit, Error, Event, Events, Message, Options, Outcome, ReceiverOptions,
    ReceiverSettles, SenderOptions,
};
use sterna_client::{EarlyData, Scheme, Url};

use crate::amqp_broker::{Broker, Setup};
use crate::path::{Line, Path};
use crate::patience::{PATIENCE, soon};

/// Breaks all connections of a broker every few milliseconds, so many times.
async fn break_often(broker: &Broker, times: u32) {
    for _ in 0..times {
        tokio::time::sleep(Duration::from_millis(7)).await;
        broker.break_all();
    }
}

/// Waits until so many messages of an address were accepted.
async fn arrived(broker: &Broker, address: &str, messages: usize) {
    let arrived = async {
        while broker.shared.accepted(address).len() < messages {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(arrived).await;
}

/// How often each message was accepted.
fn counts(messages: &[Vec<u8>]) -> BTreeMap<Vec<u8>, u32> {
    let mut counts = BTreeMap::new();
    for message in messages {
        *counts.entry(message.clone()).or_default() += 1;
    }
    counts
}

/// This broker sends no signs of life. That breaks no rule, and counts as a loss.
#[tokio::test]
async fn a_silent_broker_is_lost() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let mut options = broker.options();
    options.idle_timeout_s = 1;
    options.reconnect = None;
    let (connection, mut events) = Connection::start(options).unwrap();
    soon(connection.connected()).await.unwrap();
    assert!(matches!(
        soon(events.next()).await,
        Some(Event::Connected(_))
    ));
    let Some(Event::Disconnected { error, .. }) = soon(events.next()).await else {
        panic!("no end");
    };
    assert!(matches!(error, Error::Lost(_)), "{error}");
    assert!(error.to_string().contains("does not answer"), "{error}");
}

/// However often the connection breaks: what the sender is told to be accepted was, and with receiver
/// settle mode second once.
#[tokio::test]
async fn a_sender_recovers_what_was_under_way() {
    for scheme in [Scheme::Amqp, Scheme::AmqpQuic] {
        for settles in [ReceiverSettles::First, ReceiverSettles::Second] {
            let broker = Broker::start(scheme, Setup::default()).await;
            let (connection, _events) = Connection::start(broker.options()).unwrap();
            let session = connection.session().await.unwrap();
            let mut options = SenderOptions::new("a");
            options.receiver_settles = settles;
            let sender = session.sender(options).await.unwrap();
            soon(sender.attached()).await.unwrap();
            let sending = async {
                let mut under_way = Vec::new();
                for number in 0..400 {
                    let message = Message::data(format!("{number}"));
                    under_way.push(sender.send(message).await.unwrap());
                    if number % 4 == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
                for sending in under_way {
                    assert_eq!(sending.await.unwrap(), Outcome::Accepted);
                }
            };
            soon(async { tokio::join!(sending, break_often(&broker, 15)) }).await;
            let counts = counts(&broker.shared.accepted("a"));
            assert_eq!(counts.len(), 400, "nothing is lost");
            if settles == ReceiverSettles::Second {
                assert!(counts.values().all(|count| *count == 1), "{counts:?}");
            }
        }
    }
}

/// However often the connection breaks: every message that a receiver has accepted, and knows to
/// stand, it gets once, with receiver settle mode second; and none is lost.
#[tokio::test]
async fn a_receiver_recovers_what_it_has_decided() {
    for scheme in [Scheme::Amqp, Scheme::AmqpQuic] {
        let broker = Broker::start(scheme, Setup::default()).await;
        for number in 0..200 {
            let message = Message::data(format!("{number}"));
            broker.shared.put("a", message.encode());
        }
        let (connection, _events) = Connection::start(broker.options()).unwrap();
        let session = connection.session().await.unwrap();
        let mut options = ReceiverOptions::new("a").durable("log");
        options.receiver_settles = ReceiverSettles::Second;
        let mut receiver = session.receiver(options).await.unwrap();
        soon(receiver.attached()).await.unwrap();
        let receiving = async {
            let mut accepted = Vec::new();
            while accepted.len() < 200 {
                let delivery = receiver.next().await.unwrap();
                let body = delivery.message().unwrap().bytes().unwrap().to_vec();
                match delivery.accept().await {
                    Ok(()) => accepted.push(body),
                    Err(Error::Stale) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            accepted
        };
        let (accepted, ()) =
            soon(async { tokio::join!(receiving, break_often(&broker, 15)) }).await;
        let counts = counts(&accepted);
        assert_eq!(counts.len(), 200, "none is lost, none comes twice");
    }
}

/// A broker that forgets the link cannot tell whether a message arrived: with receiver settle mode
/// second it is not sent again, with mode first it is.
#[tokio::test]
async fn a_forgotten_link_is_told() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let (connection, _events) = Connection::start(broker.options()).unwrap();
    let session = connection.session().await.unwrap();
    for settles in [ReceiverSettles::First, ReceiverSettles::Second] {
        let mut options = SenderOptions::new("silent");
        options.receiver_settles = settles;
        let sender = session.sender(options).await.unwrap();
        let before = broker.shared.accepted("silent").len();
        let sending = sender.send(Message::data("x")).await.unwrap();
        arrived(&broker, "silent", before + 1).await;
        broker.break_all();
        broker.forget_links();
        if settles == ReceiverSettles::Second {
            assert!(matches!(soon(sending).await, Err(Error::Unknown)));
            assert_eq!(broker.shared.accepted("silent").len(), before + 1);
        } else {
            arrived(&broker, "silent", before + 2).await;
        }
    }
}

/// What a transaction posted is gone with its connection, and is not sent again.
#[tokio::test]
async fn a_transaction_ends_with_its_connection() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let (connection, mut events) = Connection::start(broker.options()).unwrap();
    let session = connection.session().await.unwrap();
    let controller = session.controller().await.unwrap();
    let sender = session.sender(SenderOptions::new("silent")).await.unwrap();
    let transaction = soon(controller.declare()).await.unwrap();
    let posted = transaction.post(&sender, Message::data("x")).await.unwrap();
    assert!(matches!(next(&mut events).await, Event::Connected(_)));
    tokio::time::sleep(Duration::from_millis(50)).await;
    broker.break_all();
    assert!(matches!(soon(posted).await, Err(Error::TransactionLost)));
    let error = soon(transaction.commit()).await.unwrap_err();
    assert!(matches!(error, Error::TransactionLost), "{error}");
}

/// A commit whose answer a connection has lost is told over the next one, if the broker knows the link. It is not sent
/// again in any case.
#[tokio::test]
async fn a_commit_is_told_over_the_next_connection() {
    for scheme in [Scheme::Amqp, Scheme::AmqpQuic] {
        for is_forgotten in [false, true] {
            let broker = Broker::start(scheme, Setup::default()).await;
            let (connection, _events) = Connection::start(broker.options()).unwrap();
            let session = connection.session().await.unwrap();
            let controller = session.controller().await.unwrap();
            let sender = session.sender(SenderOptions::new("mute")).await.unwrap();
            let transaction = soon(controller.declare()).await.unwrap();
            let posted = transaction.post(&sender, Message::data("x")).await.unwrap();
            assert_eq!(soon(posted).await.unwrap(), Outcome::Accepted);
            let breaking = async {
                arrived(&broker, "mute", 1).await;
                if is_forgotten {
                    broker.forget_links();
                }
                broker.break_all();
            };
            let both = async { tokio::join!(transaction.commit(), breaking) };
            let (committed, ()) = soon(both).await;
            if is_forgotten {
                assert!(matches!(committed, Err(Error::Unknown)), "{committed:?}");
            } else {
                committed.unwrap();
            }
            assert_eq!(broker.shared.accepted("mute").len(), 1);
        }
    }
}

/// What is done with a transaction of a lost connection fails, and nothing of it reaches the next
/// connection's transaction, also where the broker gives both the same name.
#[tokio::test]
async fn a_lost_transaction_leaves_the_next_one_alone() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let (connection, mut events) = Connection::start(broker.options()).unwrap();
    let session = connection.session().await.unwrap();
    let controller = session.controller().await.unwrap();
    let sender = session.sender(SenderOptions::new("a")).await.unwrap();
    let mut receiver = session.receiver(ReceiverOptions::new("b")).await.unwrap();
    let mut lost = Vec::new();
    for _ in 0..2 {
        lost.push(soon(controller.declare()).await.unwrap());
    }
    let posted = lost[0].post(&sender, Message::data("1")).await.unwrap();
    assert_eq!(soon(posted).await.unwrap(), Outcome::Accepted);
    assert!(matches!(next(&mut events).await, Event::Connected(_)));
    broker.break_all();
    assert!(matches!(
        next(&mut events).await,
        Event::Disconnected { .. }
    ));
    assert!(matches!(next(&mut events).await, Event::Connected(_)));
    let current = soon(controller.declare()).await.unwrap();
    assert_eq!(current.id(), lost[0].id(), "this broker counts anew");

    let posted = lost[0].post(&sender, Message::data("2")).await.unwrap();
    assert!(matches!(soon(posted).await, Err(Error::TransactionLost)));
    broker.shared.put("b", Message::data("m").encode());
    let delivery = soon(receiver.next()).await.unwrap();
    let retired = lost[0].retire(delivery, &Outcome::Accepted);
    assert!(matches!(soon(retired).await, Err(Error::TransactionLost)));
    let again = soon(receiver.next()).await.unwrap();
    soon(current.retire(again, &Outcome::Accepted))
        .await
        .unwrap();
    let rolled_back = soon(lost.pop().unwrap().rollback()).await;
    assert!(matches!(rolled_back, Err(Error::TransactionLost)));
    let committed = soon(lost.pop().unwrap().commit()).await;
    assert!(matches!(committed, Err(Error::TransactionLost)));

    let posted = current.post(&sender, Message::data("3")).await.unwrap();
    assert_eq!(soon(posted).await.unwrap(), Outcome::Accepted);
    soon(current.commit()).await.unwrap();
    assert_eq!(broker.shared.accepted("a"), [b"3"]);
}

async fn next(events: &mut Events) -> Event {
    soon(events.next()).await.unwrap()
}

/// A connection that is lost says so, and says when it is back; one that cannot be had ends.
#[tokio::test]
async fn events_tell_of_lost_connections() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let (connection, mut events) = Connection::start(broker.options()).unwrap();
    assert!(matches!(next(&mut events).await, Event::Connected(_)));
    broker.break_all();
    let lost = next(&mut events).await;
    assert!(matches!(
        lost,
        Event::Disconnected {
            error: Error::Lost(_),
            retry_in: Some(_)
        }
    ));
    let Event::Connected(again) = next(&mut events).await else {
        panic!("not connected");
    };
    assert_eq!(again.connections, 2);
    soon(connection.close()).await.unwrap();

    let mut options = Options::new("amqp://127.0.0.1:1".parse().unwrap());
    options.reconnect = None;
    let error = soon(Connection::open(options)).await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error}");
}

/// A server that is busy lets the client in later: it comes back. One whose refusal lasts ends it.
#[tokio::test]
async fn a_busy_server_is_asked_again() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let (_connection, mut events) = Connection::start(broker.options()).unwrap();
    assert!(matches!(next(&mut events).await, Event::Connected(_)));
    for code in [SaslCode::Sys, SaslCode::SysTemp] {
        *broker.shared.refusal.lock().unwrap() = Some(code);
        broker.break_all();
        let lost = next(&mut events).await;
        assert!(matches!(lost, Event::Disconnected { .. }), "{lost:?}");
        let refused = next(&mut events).await;
        assert!(
            matches!(
                refused,
                Event::Disconnected {
                    error: Error::Busy(_),
                    retry_in: Some(_)
                }
            ),
            "{refused:?}"
        );
        let back = next(&mut events).await;
        assert!(matches!(back, Event::Connected(_)), "{back:?}");
    }
    *broker.shared.refusal.lock().unwrap() = Some(SaslCode::SysPerm);
    broker.break_all();
    next(&mut events).await;
    let refused = next(&mut events).await;
    assert!(
        matches!(
            refused,
            Event::Disconnected {
                error: Error::Refused(_),
                retry_in: None
            }
        ),
        "{refused:?}"
    );
}

/// A stream that is reset suspends the links of its session, which begins anew on another stream.
#[tokio::test]
async fn a_reset_stream_suspends_its_links() {
    let broker = Broker::start(Scheme::AmqpQuic, Setup::default()).await;
    let (connection, _events) = Connection::start(broker.options()).unwrap();
    // The first one has no stream of its own.
    let _first = connection.session().await.unwrap();
    let session = connection.session().await.unwrap();
    let mut options = SenderOptions::new("a");
    options.receiver_settles = ReceiverSettles::Second;
    let sender = session.sender(options).await.unwrap();
    for number in 0..3 {
        let message = Message::data(format!("{number}"));
        assert_eq!(
            soon(sender.deliver(message)).await.unwrap(),
            Outcome::Accepted
        );
        broker.shared.reset_streams.notify_waiters();
    }
    let info = soon(sender.attached()).await.unwrap();
    assert!(info.attached > 1, "{info:?}");
    let connected = soon(connection.connected()).await.unwrap();
    assert_eq!(connected.connections, 1, "the connection lives on");
    assert_eq!(broker.shared.accepted("a").len(), 3);
}

/// A server that has room for one stream only serves sessions on it.
#[tokio::test]
async fn sessions_ride_the_control_stream_where_there_is_no_other() {
    let mut setup = Setup::default();
    setup.streams = 1;
    let broker = Broker::start(Scheme::AmqpQuic, setup).await;
    let (connection, _events) = Connection::start(broker.options()).unwrap();
    for _ in 0..2 {
        let session = connection.session().await.unwrap();
        let sender = session.sender(SenderOptions::new("a")).await.unwrap();
        let outcome = soon(sender.deliver(Message::data("x"))).await.unwrap();
        assert_eq!(outcome, Outcome::Accepted);
    }
    soon(connection.close()).await.unwrap();
    let log = broker.shared.world.lock().unwrap().log.clone();
    assert!(!log.contains(&"streams 2".to_owned()), "{log:?}");
}

/// A sender that is dropped lasts until its messages are settled.
#[tokio::test]
async fn dropped_senders_settle_what_they_have() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let (connection, _events) = Connection::start(broker.options()).unwrap();
    let session = connection.session().await.unwrap();
    let sender = session.sender(SenderOptions::new("a")).await.unwrap();
    let mut under_way = Vec::new();
    for number in 0..300 {
        let message = Message::data(format!("{number}"));
        under_way.push(sender.send(message).await.unwrap());
    }
    drop(sender);
    for sending in under_way {
        assert_eq!(soon(sending).await.unwrap(), Outcome::Accepted);
    }
}

// ---- The first flight --------------------------------------------------------------------

/// A broker behind a path that counts, and options for clients of that path.
async fn behind_path(broker: &Broker) -> (Path, Options) {
    let path = Path::new(broker.quic_address(), Line::delayed_ms(40)).await;
    let mut options = broker.options();
    options.url = Url::new(Scheme::AmqpQuic, "localhost", Some(path.address.port())).unwrap();
    // However late a busy machine runs this thread.
    options.early_wait = Duration::from_secs(5);
    (path, options)
}

/// Connects and sends one message.
async fn visit(options: &Options) -> EarlyData {
    let (connection, _events) = Connection::start(options.clone()).unwrap();
    let session = connection.session().await.unwrap();
    let sender = session.sender(SenderOptions::new("a")).await.unwrap();
    let message = Message::data(vec![b'x'; 138]);
    let outcome = soon(sender.deliver(message)).await.unwrap();
    assert_eq!(outcome, Outcome::Accepted);
    let connected = soon(connection.connected()).await.unwrap();
    // The tickets come behind the handshake, and the answer to this behind them.
    let other = session.sender(SenderOptions::new("other")).await.unwrap();
    soon(other.attached()).await.unwrap();
    soon(connection.close()).await.unwrap();
    connected.early_data
}

/// The flights until the first acceptance: datagrams of the client before each time the server speaks
/// again.
fn first_flight(path: &Path) -> Vec<usize> {
    let seen = path.seen_of_newest();
    let answer = seen.iter().position(|datagram| !datagram.up).unwrap();
    seen[..answer]
        .iter()
        .map(|datagram| datagram.bytes)
        .collect()
}

/// With a ticket and announced credit the first transfer rides in the first datagram; without the
/// credit everything but the transfer does.
#[tokio::test]
async fn the_first_transfer_rides_in_the_first_datagram() {
    for credit in [None, Some(10)] {
        let mut setup = Setup::default();
        setup.initial_credit = credit;
        let broker = Broker::start(Scheme::AmqpQuic, setup).await;
        let (path, options) = behind_path(&broker).await;
        assert_eq!(visit(&options).await, EarlyData::NotTried);
        path.seen();
        broker
            .shared
            .hold
            .store(true, std::sync::atomic::Ordering::SeqCst);
        // The server says nothing of AMQP until it has the message, if it may have it unasked.
        let visiting = visit(&options);
        let arrived = async {
            let patience = if credit.is_some() {
                PATIENCE
            } else {
                Duration::from_millis(400)
            };
            let coming = async {
                while broker.shared.accepted("a").len() < 2 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            let came = tokio::time::timeout(patience, coming).await.is_ok();
            broker
                .shared
                .hold
                .store(false, std::sync::atomic::Ordering::SeqCst);
            broker.shared.bell.notify_waiters();
            came
        };
        let (early_data, came_unasked) = tokio::join!(visiting, arrived);
        assert_eq!(early_data, EarlyData::Accepted);
        assert_eq!(first_flight(&path), [1200]);
        assert_eq!(came_unasked, credit.is_some());
    }
}

/// A settled message in early data arrives once, and is told when the server has taken it.
#[tokio::test]
async fn settled_early_data_is_told_when_it_is_taken() {
    let mut setup = Setup::default();
    setup.initial_credit = Some(10);
    let broker = Broker::start(Scheme::AmqpQuic, setup).await;
    let (_path, options) = behind_path(&broker).await;
    visit(&options).await;
    let (connection, _events) = Connection::start(options).unwrap();
    let session = connection.session().await.unwrap();
    let sender = session.sender(SenderOptions::new("b")).await.unwrap();
    let sending = sender.send_settled(Message::data("x")).await.unwrap();
    assert_eq!(soon(sending).await.unwrap(), Outcome::Accepted);
    let connected = soon(connection.connected()).await.unwrap();
    assert_eq!(connected.early_data, EarlyData::Accepted);
    soon(connection.close()).await.unwrap();
    arrived(&broker, "b", 1).await;
    assert_eq!(broker.shared.accepted("b"), [b"x"]);
}

/// A client that only receives has said everything with its credit: its first datagram waits for no
/// message.
#[tokio::test]
async fn a_receiver_waits_for_no_message() {
    for credit in [Credit::Window(10), Credit::Manual] {
        let broker = Broker::start(Scheme::AmqpQuic, Setup::default()).await;
        let (_path, mut options) = behind_path(&broker).await;
        options.early_wait = Duration::from_secs(3600);
        assert_eq!(visit(&options).await, EarlyData::NotTried);
        let (connection, _events) = Connection::start(options).unwrap();
        let session = connection.session().await.unwrap();
        let mut source = ReceiverOptions::new("a");
        source.credit = credit;
        let receiver = session.receiver(source).await.unwrap();
        if credit == Credit::Manual {
            receiver.add_credit(1).unwrap();
        }
        let connected = soon(connection.connected()).await.unwrap();
        assert_eq!(connected.early_data, EarlyData::Accepted);
    }
}

/// A server that rejects early data, and knows nothing of the credit that was announced, gets
/// everything again in turn: nothing is lost, nothing comes twice, nothing is violated.
#[tokio::test]
async fn rejected_early_data_starts_over() {
    for settled in [false, true] {
        reject_early_data(settled).await;
    }
}

async fn reject_early_data(settled: bool) {
    let mut setup = Setup::default();
    setup.initial_credit = Some(10);
    // What comes without credit is a violation.
    setup.credit = 3;
    let broker = Broker::start(Scheme::AmqpQuic, setup).await;
    let (_path, options) = behind_path(&broker).await;
    visit(&options).await;
    broker.forget_tickets();
    let (connection, _events) = Connection::start(options).unwrap();
    let session = connection.session().await.unwrap();
    let mut settings = SenderOptions::new("b");
    settings.receiver_settles = ReceiverSettles::Second;
    let sender = session.sender(settings).await.unwrap();
    let mut under_way = Vec::new();
    for number in 0..8 {
        let message = Message::data(format!("{number}"));
        let sending = if settled {
            sender.send_settled(message).await
        } else {
            sender.send(message).await
        };
        under_way.push(sending.unwrap());
    }
    for sending in under_way {
        assert_eq!(soon(sending).await.unwrap(), Outcome::Accepted);
    }
    let connected = soon(connection.connected()).await.unwrap();
    assert_eq!(connected.early_data, EarlyData::Rejected);
    // Settled ones may be on their way.
    arrived(&broker, "b", 8).await;
    let accepted = broker.shared.accepted("b");
    let expected: Vec<Vec<u8>> = (0..8).map(|number| format!("{number}").into()).collect();
    assert_eq!(accepted, expected);
    let log = broker.shared.world.lock().unwrap().log.clone();
    assert!(
        !log.iter().any(|line| line.starts_with("violation")),
        "{log:?}"
    );
}

/// Credit that a server announces to clients of QUIC is not spent at the TLS server of the same port.
#[tokio::test]
async fn credit_of_quic_is_not_spent_over_tcp() {
    let mut setup = Setup::default();
    setup.initial_credit = Some(10);
    // This one gives no credit at all, so that each message is a violation.
    let mut strict = Setup::default();
    strict.credit = 0;
    let (quic, tls) = loop {
        let quic = Broker::start(Scheme::AmqpQuic, setup.clone()).await;
        let port = quic.url.port();
        if let Ok(tls) = Broker::start_at(Scheme::Amqps, strict.clone(), port).await {
            break (quic, tls);
        }
    };
    visit(&quic.options()).await;
    let mut options = tls.options();
    options.tls.early_data = true;
    options.early_wait = Duration::from_secs(5);
    let first = soon(Connection::open(options.clone())).await.unwrap();
    soon(first.close()).await.unwrap();

    let (connection, _events) = Connection::start(options).unwrap();
    let session = connection.session().await.unwrap();
    let sender = session.sender(SenderOptions::new("a")).await.unwrap();
    let _sending = sender.send(Message::data("x")).await.unwrap();
    soon(sender.attached()).await.unwrap();
    // The server has read everything that was sent before this.
    let other = session.sender(SenderOptions::new("b")).await.unwrap();
    soon(other.attached()).await.unwrap();
    let log = tls.shared.world.lock().unwrap().log.clone();
    assert!(log.contains(&"early data".to_owned()), "{log:?}");
    assert!(
        !log.iter().any(|line| line.starts_with("violation")),
        "{log:?}"
    );
}
