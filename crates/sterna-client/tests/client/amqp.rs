//! The AMQP client over every transport, against a broker of the test's own.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use bytes::Bytes;
use sterna_client::amqp::{
    Body, Connection, Credit, Delivery, Error, Message, Options, Outcome, Receiver,
    ReceiverOptions, ReceiverSettles, Sasl, SenderOptions, SenderSettles, Value,
};
use sterna_client::{Client, InvalidError, Scheme};

use crate::amqp_broker::{Broker, Setup};
use crate::patience::soon;

const SCHEMES: [Scheme; 4] = [
    Scheme::Amqp,
    Scheme::Amqps,
    Scheme::AmqpWs,
    Scheme::AmqpQuic,
];

async fn next(receiver: &mut Receiver) -> Delivery {
    soon(receiver.next()).await.unwrap()
}

fn text(delivery: &Delivery) -> String {
    let message = delivery.message().unwrap();
    String::from_utf8(message.bytes().unwrap().to_vec()).unwrap()
}

fn start(options: Options) -> Connection {
    Connection::start(options).unwrap().0
}

#[tokio::test]
async fn messages_pass_over_every_transport() {
    for scheme in SCHEMES {
        let broker = Broker::start(scheme, Setup::default()).await;
        let connection = start(broker.options());
        let session = connection.session().await.unwrap();
        let sender = session.sender(SenderOptions::new("a")).await.unwrap();
        let mut receiver = session.receiver(ReceiverOptions::new("a")).await.unwrap();
        for number in 0..300 {
            let message = Message::data(format!("{number}"));
            let outcome = soon(sender.deliver(message)).await.unwrap();
            assert_eq!(outcome, Outcome::Accepted, "{scheme}");
        }
        for number in 0..300 {
            let delivery = next(&mut receiver).await;
            assert_eq!(text(&delivery), format!("{number}"));
            soon(delivery.accept()).await.unwrap();
        }
        soon(receiver.close()).await.unwrap();
        soon(sender.close()).await.unwrap();
        soon(session.end()).await.unwrap();
        soon(connection.close()).await.unwrap();
        assert_eq!(broker.shared.accepted("a").len(), 300);
    }
}

/// What the receiver decides is what the sender is told.
#[tokio::test]
async fn every_outcome_is_told() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let connection = start(broker.options());
    let session = connection.session().await.unwrap();
    for settles in [ReceiverSettles::First, ReceiverSettles::Second] {
        for address in ["a", "reject", "release", "modify"] {
            let mut options = SenderOptions::new(address);
            options.receiver_settles = settles;
            let sender = session.sender(options).await.unwrap();
            let outcome = soon(sender.deliver(Message::data("x"))).await.unwrap();
            match (address, outcome) {
                ("reject", Outcome::Rejected(Some(error))) => {
                    assert_eq!(error.to_string(), "amqp:not-allowed: not here");
                }
                ("a", Outcome::Accepted)
                | ("release", Outcome::Released)
                | (
                    "modify",
                    Outcome::Modified {
                        delivery_failed: true,
                        undeliverable_here: true,
                        ..
                    },
                ) => {}
                (address, outcome) => panic!("{address}: {outcome:?}"),
            }
        }
    }
    // To the anonymous node each message says where it goes.
    let relay = session.sender(SenderOptions::default()).await.unwrap();
    let mut message = Message::data("relayed");
    message.properties.to = Some("b".into());
    assert_eq!(
        soon(relay.deliver(message)).await.unwrap(),
        Outcome::Accepted
    );
    assert_eq!(broker.shared.accepted("b"), [b"relayed"]);
}

/// Messages that are given back come again, refused ones do not.
#[tokio::test]
async fn every_decision_takes_effect() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    broker.shared.put("a", Message::data("1").encode());
    let connection = start(broker.options());
    let session = connection.session().await.unwrap();
    for settles in [ReceiverSettles::First, ReceiverSettles::Second] {
        let mut options = ReceiverOptions::new("a");
        options.receiver_settles = settles;
        let mut receiver = session.receiver(options).await.unwrap();
        soon(next(&mut receiver).await.release()).await.unwrap();
        let modified = Outcome::Modified {
            delivery_failed: true,
            undeliverable_here: false,
            annotations: vec![(Value::symbol("x-opt-why"), "because".into())],
        };
        soon(next(&mut receiver).await.settle(&modified))
            .await
            .unwrap();
        let delivery = next(&mut receiver).await;
        assert_eq!(text(&delivery), "1");
        soon(delivery.reject("amqp:not-allowed", "no"))
            .await
            .unwrap();
        broker.shared.put("a", Message::data("2").encode());
        let delivery = next(&mut receiver).await;
        assert_eq!(text(&delivery), "2");
        soon(delivery.accept()).await.unwrap();
        broker.shared.put("a", Message::data("1").encode());
        soon(receiver.close()).await.unwrap();
    }
}

/// Settled messages leave without an answer, and arrive without one.
#[tokio::test]
async fn settled_messages_need_no_answer() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let connection = start(broker.options());
    let session = connection.session().await.unwrap();
    let sender = session
        .sender(SenderOptions::new("at-most-once"))
        .await
        .unwrap();
    let mut options = ReceiverOptions::new("at-most-once");
    options.credit = Credit::Window(4);
    let mut receiver = session.receiver(options).await.unwrap();
    for number in 0..50 {
        let message = Message::data(format!("{number}"));
        soon(sender.send_settled(message).await.unwrap())
            .await
            .unwrap();
    }
    for number in 0..50 {
        let delivery = next(&mut receiver).await;
        assert!(delivery.is_settled());
        assert_eq!(text(&delivery), format!("{number}"));
    }
    let mut options = SenderOptions::new("a");
    options.sender_settles = SenderSettles::Unsettled;
    let strict = session.sender(options).await.unwrap();
    let refused = strict.send_settled(Message::data("x")).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)));
}

/// Messages of many frames, up to the limit, in both directions; beyond it there is a precise error.
#[tokio::test]
async fn large_messages_travel_in_many_frames() {
    let mut setup = Setup::default();
    setup.limits.max_message_bytes = 5_000_100;
    let broker = Broker::start(Scheme::AmqpQuic, setup).await;
    let connection = start(broker.options());
    let session = connection.session().await.unwrap();
    let sender = session.sender(SenderOptions::new("a")).await.unwrap();
    let mut receiver = session.receiver(ReceiverOptions::new("a")).await.unwrap();
    let body: Bytes = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
    let settled = sender.send_settled(Message::data(body.clone())).await;
    soon(settled.unwrap()).await.unwrap();
    let outcome = soon(sender.deliver(Message::data(body.clone()))).await;
    assert_eq!(outcome.unwrap(), Outcome::Accepted);
    for _ in 0..2 {
        let delivery = next(&mut receiver).await;
        assert_eq!(delivery.message().unwrap().bytes().unwrap(), &body);
        soon(delivery.accept()).await.unwrap();
    }
    let too_large = Message::data(vec![0; 5_000_101]);
    match soon(sender.deliver(too_large)).await.unwrap_err() {
        Error::TooLarge { max_bytes, .. } => assert_eq!(max_bytes, 5_000_100),
        error => panic!("{error}"),
    }
}

/// Every kind of value in every section.
#[tokio::test]
async fn sections_and_types_arrive_as_they_left() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let connection = start(broker.options());
    let session = connection.session().await.unwrap();
    let sender = session.sender(SenderOptions::new("a")).await.unwrap();
    let mut receiver = session.receiver(ReceiverOptions::new("a")).await.unwrap();
    for body in [
        Body::Value(Value::Map(vec![("k".into(), Value::Decimal64([7; 8]))])),
        Body::Sequence(vec![vec![1_u8.into(), Value::symbols(&["x", "y"])]]),
        Body::Data(vec![Bytes::from_static(b"1"), Bytes::from_static(b"2")]),
    ] {
        let mut message = Message::new(body);
        message.properties.subject = Some("s".into());
        message.application_properties = vec![("n".into(), 1.25_f64.into())];
        soon(sender.deliver(message.clone())).await.unwrap();
        let delivery = next(&mut receiver).await;
        assert_eq!(delivery.message().unwrap(), message);
    }
}

/// Only as many messages come as there is credit for; a drain ends with what there is.
#[tokio::test]
async fn credit_by_hand_and_drain() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    for number in 0..5 {
        broker
            .shared
            .put("a", Message::data(format!("{number}")).encode());
    }
    let connection = start(broker.options());
    let session = connection.session().await.unwrap();
    let mut options = ReceiverOptions::new("a");
    options.credit = Credit::Manual;
    let mut receiver = session.receiver(options).await.unwrap();
    receiver.add_credit(2).unwrap();
    for number in 0..2 {
        let delivery = next(&mut receiver).await;
        assert_eq!(text(&delivery), format!("{number}"));
        soon(delivery.accept()).await.unwrap();
    }
    soon(receiver.drain()).await.unwrap();
    assert!(receiver.try_next().is_none(), "there was credit for two");
    receiver.add_credit(10).unwrap();
    soon(receiver.drain()).await.unwrap();
    let mut rest = Vec::new();
    while let Some(delivery) = receiver.try_next() {
        rest.push(text(&delivery));
        soon(delivery.accept()).await.unwrap();
    }
    assert_eq!(rest, ["2", "3", "4"]);
    broker.shared.put("a", Message::data("late").encode());
    soon(receiver.drain()).await.unwrap();
    assert!(receiver.try_next().is_none(), "the drain took the credit");
}

/// A drain with a window asks once, ends when there is nothing more, and new credit follows.
#[tokio::test]
async fn a_window_can_be_drained() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let connection = start(broker.options());
    let session = connection.session().await.unwrap();
    let mut options = ReceiverOptions::new("a");
    options.credit = Credit::Window(4);
    let mut receiver = session.receiver(options).await.unwrap();
    soon(receiver.attached()).await.unwrap();
    for number in 0..20 {
        soon(receiver.drain()).await.unwrap();
        assert!(receiver.try_next().is_none(), "there was nothing");
        let message = Message::data(format!("{number}"));
        broker.shared.put("a", message.encode());
        let delivery = next(&mut receiver).await;
        assert_eq!(text(&delivery), format!("{number}"));
        soon(delivery.accept()).await.unwrap();
    }
    // The window is full of what is undecided, and there is no credit to give back.
    soon(receiver.drain()).await.unwrap();
    let mut undecided = Vec::new();
    for _ in 0..6 {
        broker.shared.put("a", Message::data("x").encode());
    }
    for _ in 0..4 {
        undecided.push(next(&mut receiver).await);
    }
    soon(receiver.drain()).await.unwrap();
    assert!(receiver.try_next().is_none(), "the window is full");
    for delivery in undecided {
        soon(delivery.accept()).await.unwrap();
    }
    for _ in 0..2 {
        soon(next(&mut receiver).await.accept()).await.unwrap();
    }
    let log = broker.shared.world.lock().unwrap().log.clone();
    let drains = log.iter().filter(|line| *line == "drain").count();
    assert_eq!(drains, 22);
}

/// A window of two is never exceeded, however many messages there are.
#[tokio::test]
async fn the_window_bounds_what_is_undecided() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    for number in 0..20 {
        broker
            .shared
            .put("a", Message::data(format!("{number}")).encode());
    }
    let connection = start(broker.options());
    let session = connection.session().await.unwrap();
    let mut options = ReceiverOptions::new("a");
    options.credit = Credit::Window(2);
    let mut receiver = session.receiver(options).await.unwrap();
    let mut number = 0;
    while number < 20 {
        let (one, two) = (next(&mut receiver).await, next(&mut receiver).await);
        assert_eq!(text(&two), format!("{}", number + 1));
        let left = broker.shared.world.lock().unwrap().queues["a"].len();
        assert_eq!(left, 18 - number, "what is undecided is on the way");
        soon(one.accept()).await.unwrap();
        soon(two.accept()).await.unwrap();
        number += 2;
    }
}

#[tokio::test]
async fn refusals_say_why() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let connection = start(broker.options());
    let session = connection.session().await.unwrap();
    let sender = session.sender(SenderOptions::new("missing")).await.unwrap();
    let refused = soon(sender.deliver(Message::data("x"))).await.unwrap_err();
    let expected = "the broker detached the link: amqp:not-found: there is no such node";
    assert_eq!(refused.to_string(), expected);
    assert_eq!(
        soon(sender.attached()).await.unwrap_err().to_string(),
        expected
    );
    let mut receiver = session
        .receiver(ReceiverOptions::new("missing"))
        .await
        .unwrap();
    let refused = soon(receiver.next()).await.unwrap_err();
    assert_eq!(refused.to_string(), expected);
    // The session lives on.
    let sender = session.sender(SenderOptions::new("a")).await.unwrap();
    soon(sender.deliver(Message::data("x"))).await.unwrap();
}

#[tokio::test]
async fn logins_are_proven() {
    let login = |user: &str, password: &str| {
        let (user, password) = (user.to_owned(), password.to_owned());
        [
            Sasl::Plain {
                user: user.clone(),
                password: password.clone(),
            },
            Sasl::ScramSha256 { user, password },
        ]
    };
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    for pipelined in [true, false] {
        let mut right = login("user", "pencil").to_vec();
        right.extend([Sasl::Anonymous, Sasl::External, Sasl::None]);
        for sasl in right {
            let mut options = broker.options();
            options.sasl = sasl.clone();
            options.pipelined = pipelined;
            let connection = soon(Connection::open(options)).await.unwrap();
            let session = connection.session().await.unwrap();
            let sender = session.sender(SenderOptions::new("a")).await.unwrap();
            let outcome = soon(sender.deliver(Message::data("x"))).await;
            assert_eq!(outcome.unwrap(), Outcome::Accepted, "{sasl:?}");
            soon(connection.close()).await.unwrap();
        }
        for sasl in login("user", "pen") {
            let mut options = broker.options();
            options.sasl = sasl;
            options.pipelined = pipelined;
            let error = soon(Connection::open(options)).await.unwrap_err();
            assert!(matches!(error, Error::Refused(_)), "{error}");
        }
    }
    let mut setup = Setup::default();
    setup.mechanisms = vec!["PLAIN"];
    let broker = Broker::start(Scheme::Amqp, setup).await;
    let error = soon(Connection::open(broker.options())).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the broker refused the connection: the server asks for credentials"
    );
}

/// A durable subscription gets what came while its client was away, also with another connection.
#[tokio::test]
async fn durable_subscriptions_are_found_again() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let mut options = broker.options();
    options.container_id = "logger".to_owned();
    let connection = start(options.clone());
    let session = connection.session().await.unwrap();
    let durable = || ReceiverOptions::new("a").durable("log");
    let receiver = session.receiver(durable()).await.unwrap();
    soon(receiver.attached()).await.unwrap();
    soon(receiver.detach()).await.unwrap();
    soon(connection.close()).await.unwrap();
    broker.shared.put("a", Message::data("1").encode());

    let connection = start(options);
    let session = connection.session().await.unwrap();
    let mut receiver = session.receiver(durable()).await.unwrap();
    assert_eq!(text(&next(&mut receiver).await), "1");
    let log = broker.shared.world.lock().unwrap().log.clone();
    assert!(
        log.contains(&"attach log recovered true".to_owned()),
        "{log:?}"
    );
}

#[tokio::test]
async fn a_dynamic_source_has_an_address() {
    let broker = Broker::start(Scheme::AmqpQuic, Setup::default()).await;
    let connection = start(broker.options());
    let session = connection.session().await.unwrap();
    let mut answers = session.receiver(ReceiverOptions::dynamic()).await.unwrap();
    let info = soon(answers.attached()).await.unwrap();
    let address = info.address.clone().unwrap();
    let sender = session.sender(SenderOptions::new(address)).await.unwrap();
    soon(sender.deliver(Message::data("answer"))).await.unwrap();
    assert_eq!(text(&next(&mut answers).await), "answer");
    let both = session.receiver(ReceiverOptions::default()).await;
    assert!(matches!(both.unwrap_err(), Error::Invalid(_)));
}

/// What is posted takes effect with the transaction, and only then.
#[tokio::test]
async fn transactions_take_effect_together() {
    let broker = Broker::start(Scheme::Amqp, Setup::default()).await;
    let connection = start(broker.options());
    let session = connection.session().await.unwrap();
    let controller = session.controller().await.unwrap();
    let sender = session.sender(SenderOptions::new("a")).await.unwrap();
    for (commit, expected) in [(false, 0), (true, 2)] {
        let transaction = soon(controller.declare()).await.unwrap();
        for text in ["1", "2"] {
            let posted = transaction.post(&sender, Message::data(text)).await;
            assert_eq!(soon(posted.unwrap()).await.unwrap(), Outcome::Accepted);
        }
        assert_eq!(broker.shared.accepted("a").len(), 0);
        if commit {
            soon(transaction.commit()).await.unwrap();
        } else {
            soon(transaction.rollback()).await.unwrap();
        }
        assert_eq!(broker.shared.accepted("a").len(), expected);
    }
    let mut receiver = session.receiver(ReceiverOptions::new("a")).await.unwrap();
    let transaction = soon(controller.declare()).await.unwrap();
    let delivery = next(&mut receiver).await;
    soon(transaction.retire(delivery, &Outcome::Accepted))
        .await
        .unwrap();
    soon(transaction.commit()).await.unwrap();
    let log = broker.shared.world.lock().unwrap().log.clone();
    assert!(log.contains(&"a in a transaction".to_owned()), "{log:?}");
}

/// The first session rides the control stream, each further one a stream of its own.
#[tokio::test]
async fn further_sessions_over_quic_have_streams_of_their_own() {
    let broker = Broker::start(Scheme::AmqpQuic, Setup::default()).await;
    let connection = start(broker.options());
    let mut senders = Vec::new();
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let session = connection.session().await.unwrap();
        senders.push(session.sender(SenderOptions::new("a")).await.unwrap());
        sessions.push(session);
    }
    for sender in &senders {
        soon(sender.deliver(Message::data("x"))).await.unwrap();
    }
    let log = broker.shared.world.lock().unwrap().log.clone();
    assert!(log.contains(&"streams 3".to_owned()), "{log:?}");
    assert!(!log.contains(&"streams 4".to_owned()), "{log:?}");
    for session in &sessions {
        soon(session.end()).await.unwrap();
    }
    let ended = soon(senders[0].deliver(Message::data("x"))).await;
    assert!(matches!(ended.unwrap_err(), Error::Ended));
    soon(connection.close()).await.unwrap();
}

/// Each client says which URLs are not its own.
#[tokio::test]
async fn the_other_protocols_urls_are_refused() {
    let options = sterna_client::Options::new("amqp://localhost".parse().unwrap());
    let refused = Client::start(options).unwrap_err();
    assert_eq!(refused, InvalidError::Protocol);
    assert!(refused.to_string().contains("AMQP"), "{refused}");
    let options = Options::new("mqtt://localhost".parse().unwrap());
    let refused = Connection::start(options).unwrap_err();
    assert!(refused.to_string().contains("MQTT"), "{refused}");
}
