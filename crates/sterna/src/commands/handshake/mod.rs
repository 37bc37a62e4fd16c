//! `sterna handshake`: what it costs to connect and to publish the first message.

mod path;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use sterna_client::{
    Client, EarlyData, Error, Event, Events, Options, Publish, QoS, Scheme, Subscription,
    TlsVersion, Url,
};
use sterna_server::Server;
use sterna_server::config::{Config, EarlyData as Policy, Listener};
use tokio::time::Instant;

use super::connection::{Connection, Settings};
use super::exit::{self, Failure};
use path::{Passed, Path};

/// Longest wait for a message that the broker has acknowledged.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time beyond a round trip in which tickets arrive.
const TICKET_PAUSE: Duration = Duration::from_millis(100);

/// Measure what it takes to connect and to publish a first message.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Delay of the path, each way
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100)]
    delay: u64,
    /// One JSON object for each line of the table
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  sterna handshake                     every transport, against a broker in this process
  sterna handshake mqtt+quic://broker.example --cafile ca.pem
  sterna handshake mqtts://broker.example --delay 300 --json

Connects through a path in this process that adds --delay each way, and publishes a message of
QoS 1 right behind the CONNECT: with a full handshake, with a ticket, and over QUIC with early data.
Round trips are times divided by that of the path, so give it a delay well above the network's own.
Bytes and datagrams (TCP: segments with data of 1,448 bytes, and SYN) are the client's, up to the
PUBACK, without headers of UDP, TCP and IP. \"at broker\" is when a subscriber without delay has it.";

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    args.connection.start_log();
    exit::code(super::block_on(handshake(args)), args.connection.quiet)
}

/// A way to connect.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    version: Option<TlsVersion>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Full,
    Resumed,
    Early,
}

const fn way(name: &'static str, version: Option<TlsVersion>, kind: Kind) -> Way {
    Way {
        name,
        version,
        kind,
    }
}

const TCP: &[Way] = &[way("TCP", None, Kind::Full)];
const TLS: &[Way] = &[
    way("TCP + TLS 1.2, full", Some(TlsVersion::Tls12), Kind::Full),
    way(
        "TCP + TLS 1.2, resumed",
        Some(TlsVersion::Tls12),
        Kind::Resumed,
    ),
    way("TCP + TLS 1.3, full", Some(TlsVersion::Tls13), Kind::Full),
    way(
        "TCP + TLS 1.3, resumed",
        Some(TlsVersion::Tls13),
        Kind::Resumed,
    ),
];
const QUIC: &[Way] = &[
    way("QUIC, full", None, Kind::Full),
    way("QUIC, resumed", None, Kind::Resumed),
    way("QUIC, 0-RTT", None, Kind::Early),
];

/// What one way took.
struct Measured {
    passed: Passed,
    at_broker: Duration,
    connected: Duration,
    acknowledged: Duration,
    early_data: EarlyData,
}

async fn handshake(args: &Args) -> Result<(), Failure> {
    let Settings { options, .. } = args.connection.settings(&["connect"])?;
    let one_way = Duration::from_millis(args.delay.max(1));
    let mut targets = Vec::new();
    let own = if args.connection.names_broker() {
        targets.push(options);
        None
    } else {
        let (server, own_targets) = own_broker(&options)?;
        targets = own_targets;
        Some(server)
    };
    if !args.json {
        println!(
            "{:24} {:>9} {:>8} {:>8}   {:>14}   {:>14}",
            "round trips to", "at broker", "CONNACK", "PUBACK", "up", "down"
        );
    }
    let mut result = Ok(());
    for options in targets {
        let measured = measure_target(&options, one_way, args.json).await;
        result = result.and(measured);
    }
    if let Some(server) = own {
        server.shutdown();
    }
    result
}

/// A broker in this process, and how to reach each of its listeners.
fn own_broker(options: &Options) -> Result<(Server, Vec<Options>), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::local(format_args!("the broker of this process: {error}"))
    };
    let listeners = ["mqtt", "mqtts", "mqtt+quic"]
        .map(|scheme| Listener::at(&format!("{scheme}://127.0.0.1:0")))
        .to_vec();
    let mut config = Config {
        listeners,
        ..Config::default()
    };
    config.quic.early_data = Policy::All;
    let server = Server::start(&config).map_err(|error| failed(&error))?;
    let fingerprint = &server.certificate().fingerprint;
    let fingerprint = fingerprint.parse().map_err(|error| failed(&error))?;
    let mut targets = Vec::new();
    for url in server.listeners() {
        let mut target = options.clone();
        target.url = url.parse().map_err(|error| failed(&error))?;
        target.tls.fingerprints = vec![fingerprint];
        targets.push(target);
    }
    Ok((server, targets))
}

async fn measure_target(options: &Options, one_way: Duration, json: bool) -> Result<(), Failure> {
    let scheme = options.url.scheme();
    let ways = match scheme {
        Scheme::MqttQuic => QUIC,
        Scheme::Mqtts => TLS,
        Scheme::Mqtt => TCP,
        _ => {
            return Err(Failure::local(
                "a URL of mqtt, mqtts or mqtt+quic is measured",
            ));
        }
    };
    let server = resolve(&options.url).await?;
    let mut watcher = Watcher::start(options).await?;
    let mut result = Ok(());
    for way in ways {
        // A path for each, so that nothing is remembered of another one.
        let path = match scheme {
            Scheme::MqttQuic => Path::udp(server, one_way).await,
            _ => Path::tcp(server, one_way).await,
        }
        .map_err(|error| Failure::local(format_args!("the path: {error}")))?;
        let mut options = through(options, &path)?;
        options.tls.version = way.version.or(options.tls.version);
        options.tls.resumption = way.kind != Kind::Full;
        options.early_data = way.kind == Kind::Early;
        let measuring = async {
            if way.kind != Kind::Full {
                // For the ticket, and for what is remembered of the path.
                measure(&options, &path, &mut watcher, one_way).await?;
            }
            measure(&options, &path, &mut watcher, one_way).await
        };
        match measuring.await {
            Ok(measured) => print(way, &measured, one_way, json),
            // A server may do without the one or other version; the rest is measured.
            Err(failure) => {
                let text = format!("{}: {}", way.name, failure.text);
                result = result.and_then(|()| Err(Failure::new(failure.code, text)));
            }
        }
    }
    watcher.client.disconnect().await.ok();
    result
}

async fn resolve(url: &Url) -> Result<SocketAddr, Failure> {
    let host = (url.host(), url.port());
    let found = tokio::net::lookup_host(host).await;
    found
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| Failure::local(format_args!("cannot resolve {}", url.host())))
}

/// The same options by way of the path.
fn through(options: &Options, path: &Path) -> Result<Options, Failure> {
    let url = &options.url;
    let (host, port) = (path.address.ip().to_string(), path.address.port());
    let mut changed = options.clone();
    changed.url = Url::new(url.scheme(), &host, Some(port)).map_err(Failure::local)?;
    let name = || url.host().to_owned();
    changed.tls.server_name.get_or_insert_with(name);
    changed.reconnect = None;
    Ok(changed)
}

/// Who says when the broker has a message: a subscriber without delay.
struct Watcher {
    client: Client,
    events: Events,
    topic: String,
}

impl Watcher {
    async fn start(options: &Options) -> Result<Self, Failure> {
        let mut options = options.clone();
        let version = options.version;
        options.client_id = None;
        // Its tickets are none of the measured ones.
        options.tls.resumption = false;
        let failed = |error: Error| Failure::client(&error, version);
        let (client, events) = Client::connect(options).await.map_err(failed)?;
        let id = client.connected().await.map_err(failed)?.client_id.clone();
        let topic = format!("sterna/handshake/{id}");
        let subscription = Subscription::new(&topic, QoS::AtMostOnce).map_err(Failure::local)?;
        let codes = client.subscribe([subscription]).await.map_err(failed)?;
        if let Some(refused) = codes.first().filter(|code| code.is_error()) {
            let text = format!("{topic}: {}", refused.name());
            return Err(Failure::new(*refused as u8, text));
        }
        Ok(Self {
            client,
            events,
            topic,
        })
    }
}

async fn measure(
    options: &Options,
    path: &Path,
    watcher: &mut Watcher,
    one_way: Duration,
) -> Result<Measured, Failure> {
    let failed = |error: Error| Failure::client(&error, options.version);
    path.take();
    let message = Publish::new(&watcher.topic, "handshake")
        .map_err(Failure::local)?
        .qos(QoS::AtLeastOnce);
    let (client, mut events) = Client::start(options.clone()).map_err(Failure::local)?;
    let publishing = async {
        let published = client.publish(message).await;
        published.map(|_| (Instant::now(), path.take()))
    };
    let connecting = async {
        loop {
            match events.next().await {
                Some(Event::Connected(connected)) => {
                    return Ok((Instant::now(), connected.early_data));
                }
                Some(Event::Disconnected { error, .. }) => return Err(error),
                Some(_) => {}
                None => return Err(Error::Ended),
            }
        }
    };
    let arriving = async {
        let arrived = tokio::time::timeout(PATIENCE, watcher.events.message()).await;
        arrived.ok().flatten().map(|_| Instant::now())
    };
    let (published, connected, arrived) = tokio::join!(publishing, connecting, arriving);
    let (connected, early_data) = connected.map_err(failed)?;
    let (acknowledged, passed) = published.map_err(failed)?;
    let arrived =
        arrived.ok_or_else(|| Failure::local("the broker acknowledged and did not deliver"))?;
    let started = passed.started.unwrap_or(acknowledged);
    tokio::time::sleep(2 * one_way + TICKET_PAUSE).await;
    client.disconnect().await.map_err(failed)?;
    Ok(Measured {
        at_broker: arrived.duration_since(started),
        connected: connected.duration_since(started),
        acknowledged: acknowledged.duration_since(started),
        passed,
        early_data,
    })
}

fn print(way: &Way, measured: &Measured, one_way: Duration, json: bool) {
    let round_trip = 2 * one_way;
    let trips = |time: Duration| time.as_secs_f64() / round_trip.as_secs_f64();
    let Passed { up, down, .. } = measured.passed;
    if json {
        let early_data =
            (way.kind == Kind::Early).then_some(measured.early_data == EarlyData::Accepted);
        let line = json!({
            "handshake": way.name,
            "delay_ms": one_way.as_millis() as u64,
            "round_trips_to_broker": trips(measured.at_broker),
            "round_trips_to_connack": trips(measured.connected),
            "round_trips_to_puback": trips(measured.acknowledged),
            "up_packets": up.packets,
            "up_bytes": up.bytes,
            "down_packets": down.packets,
            "down_bytes": down.bytes,
            "early_data_accepted": early_data,
        });
        println!("{line}");
        return;
    }
    let mut line = format!(
        "{:24} {:>9.1} {:>8.1} {:>8.1}   {:>2} / {:>6} B   {:>3} / {:>6} B",
        way.name,
        trips(measured.at_broker),
        trips(measured.connected),
        trips(measured.acknowledged),
        up.packets,
        up.bytes,
        down.packets,
        down.bytes
    );
    if way.kind == Kind::Early && measured.early_data != EarlyData::Accepted {
        let _ = write!(line, "   (the broker took no early data)");
    }
    println!("{line}");
}
