//! A link has one place: AMQP 1.0, part 2, section 2.6.1. One that comes back over another connection, from the
//! same container of the same user, is taken from where it was.

use sterna_amqp::Event;
use sterna_amqp::connection::LinkId;
use sterna_amqp::link::{AttachOptions, OutgoingTransfer};
use sterna_amqp::messaging::{MessageWriter, Source, Target, TargetArchetype};
use sterna_amqp::performatives::{ReceiverSettleMode, Role, SenderSettleMode};
use sterna_net::TransportKind;

use crate::amqp::security::{plain, with_users};
use crate::amqp_client::{Client, Happened, Start};
use crate::fixture::{Broker, everybodys};

/// Shards on which the second connection is, beside the first on shard 0; the queue may be on any.
const SHARDS: [usize; 3] = [0, 1, 2];

fn is_stolen(client: &Client, link: LinkId) -> bool {
    client.happened.iter().any(|happened| {
        matches!(happened, Happened::Detached { link: of, condition: Some(condition), .. }
            if *of == link && condition == "amqp:link:stolen")
    })
}

fn fill(broker: &mut Broker, queue: &str, texts: &[&str]) {
    let mut sender = Client::connect(broker, "filler");
    let session = sender.begin(broker);
    let link = sender.sender(broker, session, queue);
    for (token, text) in texts.iter().enumerate() {
        sender.send(broker, link, token as u64, text);
    }
}

#[test]
fn what_a_stolen_receiver_of_a_queue_has_not_settled_comes_first_and_in_order() {
    for shard in SHARDS {
        for queue in ["queue/a", "queue/b", "queue/c"] {
            let mut broker = Broker::with(&everybodys(), 3);
            fill(&mut broker, queue, &["1", "2", "3", "4", "5"]);
            let mut first = Client::connect(&mut broker, "c");
            let session = first.begin(&mut broker);
            let stolen = first.receiver(&mut broker, session, "in", Source::new(queue), 3);
            assert_eq!(first.texts(), ["1", "2", "3"]);
            let mut second = Client::start(&mut broker, Start::new("c").on(shard));
            let session = second.begin(&mut broker);
            second.receiver(&mut broker, session, "in", Source::new(queue), 10);
            second.turn(&mut broker);
            first.turn(&mut broker);
            assert!(is_stolen(&first, stolen), "{shard} {queue}");
            assert_eq!(second.texts(), ["1", "2", "3", "4", "5"], "{shard} {queue}");
            // A word about what the one before had comes too late.
            first.happened.clear();
            fill(&mut broker, queue, &["6"]);
            second.turn(&mut broker);
            first.turn(&mut broker);
            assert_eq!(second.texts(), ["6"]);
            assert!(first.texts().is_empty());
        }
    }
}

#[test]
fn a_sender_is_stolen_and_its_successor_sends() {
    for shard in SHARDS {
        let mut broker = Broker::with(&everybodys(), 3);
        let mut reader = Client::connect(&mut broker, "reader");
        let session = reader.begin(&mut broker);
        reader.receiver(&mut broker, session, "in", Source::new("t"), 10);
        let mut first = Client::connect(&mut broker, "c");
        let session = first.begin(&mut broker);
        let stolen = first.sender(&mut broker, session, "t");
        first.send(&mut broker, stolen, 1, "one");
        let mut second = Client::start(&mut broker, Start::new("c").on(shard));
        let session = second.begin(&mut broker);
        let link = second.sender(&mut broker, session, "t");
        second.turn(&mut broker);
        second.send(&mut broker, link, 2, "two");
        first.turn(&mut broker);
        assert!(is_stolen(&first, stolen), "{shard}");
        // And back again: the connection may stay.
        let session = first.begin(&mut broker);
        let link_again = first.sender(&mut broker, session, "t");
        first.turn(&mut broker);
        first.send(&mut broker, link_again, 3, "three");
        second.turn(&mut broker);
        assert!(is_stolen(&second, link), "{shard}");
        reader.turn(&mut broker);
        assert_eq!(reader.texts(), ["one", "two", "three"], "{shard}");
    }
}

/// What the one before had not settled is told to the one that comes back.
#[test]
fn a_stolen_sender_leaves_what_is_unsettled_to_its_successor() {
    for shard in SHARDS {
        let mut broker = Broker::with(&everybodys(), 3);
        let options = AttachOptions {
            snd_settle_mode: SenderSettleMode::Unsettled,
            rcv_settle_mode: ReceiverSettleMode::Second,
            source: Some(Source::default()),
            target: Some(TargetArchetype::Target(Target::new("t"))),
            ..AttachOptions::default()
        };
        let mut first = Client::connect(&mut broker, "c");
        let session = first.begin(&mut broker);
        let link = first.attach(&mut broker, session, "out", Role::Sender, &options);
        first.send(&mut broker, link, 1, "one");
        // The client's end is gone, and the broker does not know it.
        first.engine.transport_closed();
        let unsettled =
            std::iter::from_fn(|| first.engine.next_event()).find_map(|event| match event {
                Event::Detached {
                    link: of,
                    unsettled,
                    ..
                } if of == link => Some(unsettled),
                _ => None,
            });
        let unsettled = unsettled.expect("its link");
        let mut second = Client::start(&mut broker, Start::new("c").on(shard));
        let session = second.begin(&mut broker);
        let options = AttachOptions {
            unsettled: &unsettled,
            recover: true,
            ..options
        };
        second.attach(&mut broker, session, "out", Role::Sender, &options);
        second.turn(&mut broker);
        let told = second.happened.iter().any(|happened| {
            matches!(happened, Happened::Recovered(_, recovery) if recovery.starts_with("Settle("))
        });
        assert!(told, "{shard}: {:?}", second.happened);
    }
}

#[test]
fn another_user_container_or_name_steals_nothing() {
    let (_directory, config) = with_users(&["ann", "bob"]);
    for (user, container, name) in [
        ("bob", "c", "l"),
        ("ann", "other", "l"),
        ("ann", "c", "other"),
    ] {
        let mut broker = Broker::with(&config, 2);
        let mut links = Vec::new();
        let mut clients = Vec::new();
        for (shard, (user, container, name)) in [("ann", "c", "l"), (user, container, name)]
            .into_iter()
            .enumerate()
        {
            let start = Start::new(container).on(shard).with(plain(user, "secret"));
            let mut client = Client::start(&mut broker, start);
            client.turn(&mut broker);
            // Not one verdict: a password that was proved before needs none.
            broker.await_verdicts();
            client.turn(&mut broker);
            let session = client.begin(&mut broker);
            links.push(client.receiver(&mut broker, session, name, Source::new("queue/q"), 10));
            let options = AttachOptions {
                source: Some(Source::default()),
                target: Some(TargetArchetype::Target(Target::new("t"))),
                ..AttachOptions::default()
            };
            links.push(client.attach(&mut broker, session, name, Role::Sender, &options));
            clients.push(client);
        }
        for client in &mut clients {
            client.turn(&mut broker);
            for link in &links {
                assert!(!is_stolen(client, *link), "{user} {container} {name}");
            }
        }
    }
}

/// `docs/amqp-over-quic.md`, section 15: a device that roams sends messages behind its attach, whose answer waits
/// until the old connection's link has ended.
#[test]
fn messages_behind_the_attach_of_a_link_that_is_elsewhere_wait_for_its_answer() {
    for shard in SHARDS {
        let mut broker = Broker::with(&everybodys(), 3);
        let mut reader = Client::connect(&mut broker, "reader");
        let session = reader.begin(&mut broker);
        reader.receiver(&mut broker, session, "in", Source::new("t"), 10);
        let mut first = Client::start(&mut broker, Start::new("c").over(TransportKind::Quic));
        let session = first.begin(&mut broker);
        first.sender(&mut broker, session, "t");
        let again = Start::new("c").on(shard).over(TransportKind::Quic);
        let mut second = Client::start(&mut broker, again);
        let session = second.begin(&mut broker);
        let options = AttachOptions {
            source: Some(Source::default()),
            target: Some(TargetArchetype::Target(Target::new("t"))),
            ..AttachOptions::default()
        };
        let (engine, out) = (&mut second.engine, &mut second.out);
        let link = engine.attach(session, "t", Role::Sender, &options, out);
        let link = link.expect("a link");
        engine.assume_credit(link, 2).expect("a new link");
        for text in ["1", "2"] {
            let mut message = bytes::BytesMut::new();
            MessageWriter::new(&mut message).data(text.as_bytes());
            let transfer = OutgoingTransfer {
                settled: true,
                ..OutgoingTransfer::new(text.as_bytes(), 0)
            };
            let sent = engine.transfer(link, &transfer, &[&message], false, out);
            assert!(sent.is_ok_and(|sent| sent.complete));
        }
        second.turn(&mut broker);
        reader.turn(&mut broker);
        assert_eq!(reader.accept_all(&mut broker), ["1", "2"], "{shard}");
        assert_eq!(second.condition(), None);
    }
}
