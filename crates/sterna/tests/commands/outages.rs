//! What the client commands say and do while the broker is away.
#![allow(clippy::unwrap_used)] // it is all test

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, ChildStderr, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use sterna_server::config::Listener;

use crate::process::{Broker, sterna};

/// The protocols, with and without QUIC.
const SCHEMES: [&str; 6] = ["mqtt", "mqtt+quic", "amqp", "http", "https", "h3"];

/// A broker that goes and comes back at the same place.
struct Place {
    scheme: &'static str,
    address: String,
    broker: Option<Broker>,
}

impl Place {
    fn new(scheme: &'static str) -> Self {
        // Nobody else takes the port while the broker is away: no other test has this address.
        static PLACES: AtomicU8 = AtomicU8::new(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        let own = Ipv4Addr::new(127, PLACES.fetch_add(1, Ordering::Relaxed), high, low | 1);
        let socket = TcpListener::bind((own, 0)).unwrap();
        let address = socket.local_addr().unwrap().to_string();
        drop(socket);
        let mut place = Self {
            scheme,
            address,
            broker: None,
        };
        place.open();
        place
    }

    fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    fn open(&mut self) {
        let listener = Listener::at(&self.url());
        self.broker = Some(Broker::start(&[], &[], |config, _| {
            config.listeners = vec![listener];
        }));
    }

    fn close(&mut self) {
        self.broker = None;
    }

    fn spawn(&self, command: &str, rest: &[&str]) -> Running {
        let mut sterna = sterna();
        sterna.args([command, "--url", &self.url(), "-t", "a", "-q", "1", "-d"]);
        match self.scheme {
            // A closed port does not refuse there, so each attempt takes its full time.
            "mqtt+quic" | "h3" => sterna.args(["--insecure", "--connect-timeout", "3"]),
            "https" => sterna.args(["--insecure", "--no-http3"]),
            _ => &mut sterna,
        };
        let mut child = sterna
            .args(rest)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Running { child, log }
    }

    /// A subscriber whose subscription is in force.
    fn subscriber(&self, rest: &[&str]) -> Running {
        let mut subscriber = self.spawn("sub", rest);
        subscriber.wait_for(&["request answered", "link attached", "subscribed"]);
        subscriber
    }

    /// A publisher of lines that has published one.
    fn publisher(&self, rest: &[&str]) -> Running {
        let witness = self.subscriber(&["-C", "1"]);
        let mut publisher = self.spawn("pub", &[&["-l"], rest].concat());
        publisher.write("before");
        assert_eq!(witness.end(), (Vec::new(), 0));
        publisher
    }
}

struct Running {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Running {
    /// Hands a line over, if it has not ended yet.
    fn write(&mut self, line: &str) {
        let _ = writeln!(self.child.stdin.as_mut().unwrap(), "{line}");
    }

    fn wait_for(&mut self, words: &[&str]) -> String {
        self.find(|line| words.iter().any(|word| line.contains(word)))
    }

    fn find(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        let mut lines = self.log.by_ref().map(Result::unwrap);
        lines.find(|line| wanted(line)).expect("it ended early")
    }

    /// The next line that is no part of the log.
    fn said(&mut self) -> String {
        self.find(|line| line.starts_with("sterna: "))
    }

    /// The same while its standard input stays open.
    fn give_up(mut self) -> (Vec<String>, i32) {
        let _open = self.child.stdin.take();
        self.end()
    }

    /// What it said from now on, and its exit code.
    fn end(mut self) -> (Vec<String>, i32) {
        drop(self.child.stdin.take());
        let lines = self.log.map(Result::unwrap);
        let said = lines.filter(|line| line.starts_with("sterna: ")).collect();
        (said, self.child.wait().unwrap().code().unwrap())
    }
}

/// The line about a lost connection names the place and the reason.
fn assert_lost(line: &str, place: &Place) {
    let (scheme, address) = (place.scheme, &place.address);
    let reason = line
        .strip_prefix("sterna: ")
        .and_then(|rest| rest.strip_suffix("; trying again"));
    assert!(
        reason.is_some_and(|it| it.contains(address) && it.len() > address.len() + 10),
        "{scheme}: {line}"
    );
}

#[test]
fn an_outage_is_told_once_with_its_end() {
    for scheme in SCHEMES {
        let mut place = Place::new(scheme);
        let mut publisher = place.publisher(&[]);
        let mut subscriber = place.subscriber(&["-C", "2"]);
        place.close();
        assert_lost(&subscriber.said(), &place);
        publisher.write("during");
        assert_lost(&publisher.said(), &place);
        // So that more than one attempt fails.
        std::thread::sleep(Duration::from_millis(1_500));
        place.open();
        let back = format!("sterna: {}: connected again", place.address);
        assert_eq!(subscriber.said(), back, "{scheme}");
        assert_eq!(publisher.said(), back, "{scheme}");
        assert_eq!(publisher.end(), (Vec::new(), 0), "{scheme}");
        // It may have come back after what the publisher had to say.
        let last = place.spawn("pub", &["-m", "after", "--repeat", "2"]);
        assert_eq!(last.end(), (Vec::new(), 0), "{scheme}");
        assert_eq!(subscriber.end(), (Vec::new(), 0), "{scheme}");
    }
}

/// With a limit the end comes though standard input stays open, and its code says that the
/// connection was lost.
#[test]
fn a_broker_that_stays_away_is_given_up() {
    for scheme in SCHEMES {
        for times in ["0", "1"] {
            let limit = ["--maximum-reconnect-times", times];
            let mut place = Place::new(scheme);
            let mut publisher = place.publisher(&limit);
            let subscriber = place.subscriber(&limit);
            place.close();
            publisher.write("during");
            for given_up in [publisher, subscriber] {
                let (said, code) = given_up.give_up();
                assert_eq!(code, 7, "{scheme}: {said:?}");
                let end = said.last().unwrap();
                assert!(end.contains(&place.address), "{scheme}: {said:?}");
                assert!(end.contains("not regained"), "{scheme}: {said:?}");
                assert!(said.len() <= 2, "{scheme}: {said:?}");
            }
        }
    }
}

/// Who asked for silence has it, and the code.
#[test]
fn a_quiet_command_says_nothing() {
    let mut place = Place::new("mqtt");
    let publisher = place.publisher(&["--quiet", "--maximum-reconnect-times", "0"]);
    place.close();
    assert_eq!(publisher.give_up(), (Vec::new(), 7));
}
