//! The AMQP client against a Sterna broker, over a relay that breaks its connections.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sterna_client::amqp::{
    Connection, Error, Message, Options, Outcome, ReceiverOptions, ReceiverSettles, SenderOptions,
};
use sterna_client::{Backoff, Url};
use sterna_server::Server;
use sterna_server::config::{Config, Listener};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

const PATIENCE: Duration = Duration::from_secs(30);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("in time")
}

/// A broker, and a relay to it.
struct Broker {
    server: Option<Server>,
    _folder: tempfile::TempDir,
    address: SocketAddr,
    relay: SocketAddr,
    break_all: Arc<Notify>,
}

impl Broker {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            listeners: vec![Listener::at("amqp://127.0.0.1:0")],
            data_directory: Some(folder.path().to_owned()),
            shards: 1,
            ..Config::default()
        };
        let server = Server::start(&config).unwrap();
        let url: Url = server.listeners()[0].parse().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], url.port()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = listener.local_addr().unwrap();
        let break_all = Arc::new(Notify::new());
        let breaking = Arc::clone(&break_all);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, address, Arc::clone(&breaking)));
            }
        });
        Self {
            server: Some(server),
            _folder: folder,
            address,
            relay,
            break_all,
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
