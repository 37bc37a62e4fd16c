//! Rights that are back when a reload has answered: for sessions that are away, many of them.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use sterna_server::Server;
use sterna_server::config::{ActionName, Config, Effect, Listener, Rule};

/// Sessions that are away. They are judged in parts of a thousand.
const AWAY: usize = 5_000;

/// A broker where these topics may not be subscribed to, and its port.
fn started(folder: &Path, denied: &str) -> (Server, Config, u16) {
    let config = Config {
        listeners: vec![Listener::at("mqtt://127.0.0.1:0")],
        data_directory: Some(folder.join("state")),
        shards: 2,
        ..denying(&Config::default(), denied)
    };
    let server = Server::start(&config).expect("a broker");
    let (_, port) = server.listeners()[0].rsplit_once(':').expect("a port");
    let port = port.parse().expect("a number");
    (server, config, port)
}

fn denying(config: &Config, topics: &str) -> Config {
    let mut config = config.clone();
    config.authorization.rules = vec![Rule {
        effect: Effect::Deny,
        actions: vec![ActionName::Subscribe],
        topics: vec![topics.to_owned()],
        ..Rule::default()
    }];
    config
}

/// A client of MQTT 3.1.1 whose session stays.
struct Client(TcpStream);

impl Client {
    fn connect(port: u16, name: &str) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connects");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a socket");
        let mut client = Self(stream);
        let mut connect = b"\x10\x00\x00\x04MQTT\x04\x00\x00\x00\x00".to_vec();
        connect.push(name.len() as u8);
        connect.extend(name.as_bytes());
        connect[1] = connect.len() as u8 - 2;
        client.send(&connect);
        let (head, connack) = client.packet();
        assert_eq!((head, connack[1]), (0x20, 0));
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("sends");
    }

    fn packet(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).expect("a packet");
        let mut rest = vec![0; usize::from(head[1])];
        self.0.read_exact(&mut rest).expect("its rest");
        (head[0], rest)
    }

    fn subscribe(&mut self, topic: &str) {
        let mut packet = vec![0x82, topic.len() as u8 + 5, 0, 1, 0, topic.len() as u8];
        packet.extend(topic.as_bytes());
        packet.push(1);
        self.send(&packet);
        assert_eq!(self.packet(), (0x90, vec![0, 1, 1]));
    }

    /// Publishes at QoS 1, and waits for the PUBACK.
    fn publish(&mut self, topic: &str, payload: &str) {
        let length = topic.len() + payload.len() + 4;
        let mut packet = vec![0x32, length as u8, 0, topic.len() as u8];
        packet.extend(topic.as_bytes());
        packet.extend([0, 1]);
        packet.extend(payload.as_bytes());
        self.send(&packet);
        assert_eq!(self.packet(), (0x40, vec![0, 1]));
    }

    /// The payload of the next message, at QoS 1.
    fn message(&mut self, topic: &str) -> String {
        let (head, content) = self.packet();
        assert_eq!(head & 0xf0, 0x30, "a PUBLISH");
        let (number, payload) = content[topic.len() + 2..].split_at(2);
        self.send(&[0x40, 2, number[0], number[1]]);
        String::from_utf8_lossy(payload).into_owned()
    }

    fn leave(mut self) {
        self.send(&[0xe0, 0]);
        assert_eq!(self.0.read(&mut [0]).expect("the end"), 0);
    }
}

/// The rules take a right while no broker runs, and a reload gives it back. What is published when the reload has answered
/// is kept, although nobody else wants it.
#[test]
fn a_right_is_back_for_all_who_are_away_when_the_reload_has_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, _, port) = started(folder.path(), "else");
    for number in 0..AWAY {
        let mut client = Client::connect(port, &format!("away-{number}"));
        client.subscribe(&format!("secret/{number}"));
        client.leave();
    }
    let last = AWAY - 1;
    let topic = format!("secret/{last}");
    let mut publisher = Client::connect(port, "publisher");
    publisher.publish(&topic, "before");
    assert!(server.shutdown());

    let (server, config, port) = started(folder.path(), "secret/#");
    let mut publisher = Client::connect(port, "publisher");
    publisher.publish(&topic, "while denied");
    let reloaded = server.reload_with(&denying(&config, "else"), false);
    assert!(!reloaded.expect("sound").is_judging);
    for number in 0..AWAY {
        publisher.publish(&format!("secret/{number}"), "after");
    }
    for number in [0, AWAY / 2, last] {
        let topic = format!("secret/{number}");
        let mut client = Client::connect(port, &format!("away-{number}"));
        if number == last {
            assert_eq!(client.message(&topic), "before");
        }
        assert_eq!(client.message(&topic), "after", "{number}");
        publisher.publish(&topic, "last");
        assert_eq!(client.message(&topic), "last", "{number}");
    }
    server.shutdown();
}
