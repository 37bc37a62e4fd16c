//! The AMQP client against a Sterna broker, over a relay that breaks its connections.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sterna_client::amqp::{
    Condition, Connection, Error, Event, Message, Options, Outcome, Receiver, ReceiverOptions,
    ReceiverSettles, SenderOptions,
};
use sterna_client::{Backoff, Url};
use sterna_server::Server;
use sterna_server::config::{Config, Listener};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::patience::soon;

/// A broker, and a relay to it.
struct Broker {
    server: Option<Server>,
    _folder: tempfile::TempDir,
    address: SocketAddr,
    relay: SocketAddr,
    break_all: Arc<Notify>,
    late: Arc<Late>,
}

/// A connection that the broker gets to see only after the client has lost it.
#[derive(Default)]
struct Late {
    /// It is the next one.
    is_next: AtomicBool,
    arrives: Notify,
}

/// What comes up to an attach of the link "log".
async fn until_attach(stream: &mut TcpStream) -> Vec<u8> {
    const NAME: &[u8] = b"\xa1\x03log";
    // Room for the whole flight, which is read at once.
    let mut bytes = Vec::with_capacity(65_536);
    while !bytes.windows(NAME.len()).any(|at| at == NAME) {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0);
    }
    bytes
}

impl Late {
    /// Takes what the client sends up to its attach, hangs up on it, and passes it on when it is time.
    async fn carry(&self, mut client: TcpStream, server: SocketAddr) {
        let flight = until_attach(&mut client).await;
        drop(client);
        self.arrives.notified().await;
        let mut server = TcpStream::connect(server).await.unwrap();
        server.write_all(&flight).await.unwrap();
        until_attach(&mut server).await;
    }
}

impl Broker {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            listeners: vec![Listener::at("amqp://127.0.0.1:0")],
            data_directory: Some(folder.path().to_owned()),
            shards: 2,
            ..Config::default()
        };
        let server = Server::start(&config).unwrap();
        let url: Url = server.listeners()[0].parse().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], url.port()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = listener.local_addr().unwrap();
        let break_all = Arc::new(Notify::new());
        let breaking = Arc::clone(&break_all);
        let late = Arc::new(Late::default());
        let carrying = Arc::clone(&late);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if carrying.is_next.swap(false, Ordering::SeqCst) {
                    let carrying = Arc::clone(&carrying);
                    tokio::spawn(async move { carrying.carry(client, address).await });
                    continue;
                }
                tokio::spawn(forward(client, address, Arc::clone(&breaking)));
            }
        });
        Self {
            server: Some(server),
            _folder: folder,
            address,
            relay,
            break_all,
            late,
        }
    }

    fn options(&self, address: SocketAddr) -> Options {
        let mut options = Options::new(format!("amqp://{address}").parse().unwrap());
        options.reconnect = Some(Backoff {
            min: Duration::from_millis(5),
            max: Duration::from_millis(20),
            max_attempts: None,
        });
        // Ahead of what is broken again and again.
        options.retry_first = true;
        assert_ne!(self.relay, self.address);
        options
    }

    async fn break_often(&self, times: u32) {
        for _ in 0..times {
            tokio::time::sleep(Duration::from_millis(11)).await;
            self.break_all.notify_waiters();
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown();
        }
    }
}

async fn forward(mut client: TcpStream, server: SocketAddr, breaking: Arc<Notify>) {
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        () = breaking.notified() => {
            let _ = server.shutdown().await;
        }
    }
}

fn counts(messages: &[Vec<u8>]) -> BTreeMap<Vec<u8>, u32> {
    let mut counts = BTreeMap::new();
    for message in messages {
        *counts.entry(message.clone()).or_default() += 1;
    }
    counts
}

/// A sender over a connection that breaks again and again, and a receiver over one that does not:
/// nothing is lost, and with receiver settle mode second nothing comes twice.
#[tokio::test]
async fn senders_recover_their_links() {
    for settles in [ReceiverSettles::First, ReceiverSettles::Second] {
        let broker = Broker::start().await;
        let (steady, _events) = Connection::start(broker.options(broker.address)).unwrap();
        let session = steady.session().await.unwrap();
        let queue = ReceiverOptions::new("queue/q");
        let mut receiver = session.receiver(queue).await.unwrap();
        soon(receiver.attached()).await.unwrap();

        let (connection, _events) = Connection::start(broker.options(broker.relay)).unwrap();
        let session = connection.session().await.unwrap();
        let mut options = SenderOptions::new("queue/q");
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
        let receiving = async {
            let mut got = Vec::new();
            while counts(&got).len() < 400 {
                let delivery = receiver.next().await.unwrap();
                got.push(delivery.message().unwrap().bytes().unwrap().to_vec());
                delivery.accept().await.unwrap();
            }
            got
        };
        let all = async { tokio::join!(sending, receiving, broker.break_often(10)) };
        let ((), mut got, ()) = soon(all).await;
        let info = soon(sender.attached()).await.unwrap();
        assert!(info.attached > 1, "the connection was broken");
        while let Some(delivery) = receiver.try_next() {
            got.push(delivery.message().unwrap().bytes().unwrap().to_vec());
        }
        if settles == ReceiverSettles::Second {
            let twice: Vec<_> = counts(&got).into_iter().filter(|one| one.1 > 1).collect();
            assert!(twice.is_empty(), "{twice:?}");
        }
    }
}

/// A durable subscription over a connection that breaks again and again: every message stands accepted
/// once.
#[tokio::test]
async fn receivers_recover_their_links() {
    let broker = Broker::start().await;
    let mut options = broker.options(broker.relay);
    options.container_id = "logger".to_owned();
    let (connection, _events) = Connection::start(options).unwrap();
    let session = connection.session().await.unwrap();
    let mut options = ReceiverOptions::new("t/#").durable("log");
    options.receiver_settles = ReceiverSettles::Second;
    let mut receiver = session.receiver(options).await.unwrap();
    soon(receiver.attached()).await.unwrap();

    let (steady, _events) = Connection::start(broker.options(broker.address)).unwrap();
    let session = steady.session().await.unwrap();
    let mut target = SenderOptions::new("t/a");
    target.receiver_settles = ReceiverSettles::Second;
    let sender = session.sender(target).await.unwrap();
    for number in 0..200 {
        let message = Message::data(format!("{number}"));
        assert_eq!(
            soon(sender.deliver(message)).await.unwrap(),
            Outcome::Accepted
        );
    }
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
    let (accepted, ()) = soon(async { tokio::join!(receiving, broker.break_often(10)) }).await;
    assert_eq!(
        counts(&accepted).len(),
        200,
        "none is lost, none comes twice"
    );
}

/// The durable subscription of before by its name on a connection.
async fn logger(broker: &Broker, address: SocketAddr) -> (Connection, Receiver) {
    let mut options = broker.options(address);
    "logger".clone_into(&mut options.container_id);
    let (connection, _events) = Connection::start(options).unwrap();
    let session = connection.session().await.unwrap();
    let options = ReceiverOptions::new("t/#").durable("log");
    let receiver = session.receiver(options).await.unwrap();
    soon(receiver.attached()).await.unwrap();
    (connection, receiver)
}

async fn attached_times(receiver: &Receiver, times: u64) {
    let attached = async {
        while receiver.attached().await.unwrap().attached < times {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(attached).await;
}

/// What a broker reads of a lost connection only after the next one's attach takes the link from that:
/// it is attached again. When another client takes the link it stays there.
#[tokio::test]
async fn a_link_comes_back_from_a_connection_of_before() {
    let broker = Broker::start().await;
    let (_connection, mut receiver) = logger(&broker, broker.relay).await;
    broker.late.is_next.store(true, Ordering::SeqCst);
    broker.break_all.notify_waiters();
    // The second attach is held back, the third arrives.
    attached_times(&receiver, 2).await;
    assert!(!broker.late.is_next.load(Ordering::SeqCst));
    broker.late.arrives.notify_one();
    attached_times(&receiver, 3).await;

    let (thief, mut stolen) = logger(&broker, broker.address).await;
    let error = soon(receiver.next()).await.unwrap_err();
    let Error::Detached(Some(remote)) = error else {
        panic!("{error}");
    };
    assert!(remote.is(Condition::STOLEN), "{remote}");
    let session = thief.session().await.unwrap();
    let sender = session.sender(SenderOptions::new("t/a")).await.unwrap();
    soon(sender.deliver(Message::data("m"))).await.unwrap();
    let delivery = soon(stolen.next()).await.unwrap();
    assert_eq!(delivery.message().unwrap().bytes().unwrap(), "m");
    soon(delivery.accept()).await.unwrap();
}

/// What is done with a transaction of a lost connection fails; its sender goes on, and another
/// transaction has none of it.
#[tokio::test]
async fn a_lost_transaction_takes_nothing_along() {
    let broker = Broker::start().await;
    let (connection, mut events) = Connection::start(broker.options(broker.relay)).unwrap();
    let session = connection.session().await.unwrap();
    let controller = session.controller().await.unwrap();
    let sender = session.sender(SenderOptions::new("queue/q")).await.unwrap();
    let lost = soon(controller.declare()).await.unwrap();
    let posted = lost.post(&sender, Message::data("1")).await.unwrap();
    assert_eq!(soon(posted).await.unwrap(), Outcome::Accepted);
    assert!(matches!(
        soon(events.next()).await,
        Some(Event::Connected(_))
    ));
    broker.break_all.notify_waiters();
    assert!(matches!(
        soon(events.next()).await,
        Some(Event::Disconnected { .. })
    ));
    let current = soon(controller.declare()).await.unwrap();
    let posted = lost.post(&sender, Message::data("2")).await.unwrap();
    assert!(matches!(soon(posted).await, Err(Error::TransactionLost)));
    let posted = current.post(&sender, Message::data("3")).await.unwrap();
    assert_eq!(soon(posted).await.unwrap(), Outcome::Accepted);
    let committed = soon(lost.commit()).await;
    assert!(matches!(committed, Err(Error::TransactionLost)));
    soon(current.commit()).await.unwrap();

    let source = ReceiverOptions::new("queue/q");
    let mut receiver = session.receiver(source).await.unwrap();
    let delivery = soon(receiver.next()).await.unwrap();
    assert_eq!(delivery.message().unwrap().bytes().unwrap(), "3");
    soon(delivery.accept()).await.unwrap();
    soon(receiver.drain()).await.unwrap();
    assert!(receiver.try_next().is_none(), "nothing else took effect");
}

/// Transactions on the real thing: what is posted and retired takes effect together.
#[tokio::test]
async fn transactions_move_messages() {
    let broker = Broker::start().await;
    let (connection, _events) = Connection::start(broker.options(broker.address)).unwrap();
    let session = connection.session().await.unwrap();
    let first = session
        .sender(SenderOptions::new("queue/from"))
        .await
        .unwrap();
    soon(first.deliver(Message::data("m"))).await.unwrap();
    let controller = session.controller().await.unwrap();
    let to = session
        .sender(SenderOptions::new("queue/to"))
        .await
        .unwrap();
    for commit in [false, true] {
        let source = ReceiverOptions::new("queue/from");
        let mut from = session.receiver(source).await.unwrap();
        let delivery = soon(from.next()).await.unwrap();
        let message = delivery.message().unwrap();
        assert_eq!(message.bytes().unwrap(), "m");
        let transaction = soon(controller.declare()).await.unwrap();
        let posted = transaction.post(&to, Message::data("m")).await.unwrap();
        assert_eq!(soon(posted).await.unwrap(), Outcome::Accepted);
        soon(transaction.retire(delivery, &Outcome::Accepted))
            .await
            .unwrap();
        if commit {
            soon(transaction.commit()).await.unwrap();
        } else {
            soon(transaction.rollback()).await.unwrap();
        }
        soon(from.close()).await.unwrap();
    }
    let mut moved = session
        .receiver(ReceiverOptions::new("queue/to"))
        .await
        .unwrap();
    let delivery = soon(moved.next()).await.unwrap();
    assert_eq!(delivery.message().unwrap().bytes().unwrap(), "m");
    soon(delivery.accept()).await.unwrap();
    let rest = tokio::time::timeout(Duration::from_millis(50), moved.next()).await;
    assert!(rest.is_err(), "it was moved once");
}
