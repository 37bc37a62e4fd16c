//! `sterna handshake`: what it costs to connect and to publish the first message.

mod amqp;
mod http;
mod path;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::ops::DerefMut;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use sterna_client::{
    Client, EarlyData, Error, Event, Events, Fingerprint, LinkOptions, Options, Protocol, Publish,
    QoS, Scheme, Subscription, Tls, TlsVersion, Url, UrlError,
};
use sterna_server::Server;
use sterna_server::config::{Config, EarlyData as Policy, Listener};
use tokio::time::Instant;

use super::connection::{Connection, Settings};
use super::exit::{self, Failure};
use super::output;
use path::{Count, Passed, Path};

/// Longest wait for a message that the broker has acknowledged.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time beyond a round trip in which tickets arrive.
const TICKET_PAUSE: Duration = Duration::from_millis(100);

/// Measure what it takes to connect and to publish a first message.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true, after_help = format!("{HELP}\n\n{}", exit::HELP))]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Delay of the path, each way
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100)]
    delay: u64,
    /// Without a URL: measure AMQP in place of MQTT
    #[arg(long)]
    amqp: bool,
    /// Without a URL: measure HTTP beside MQTT over QUIC
    #[arg(long, conflicts_with = "amqp")]
    http: bool,
    /// Messages of each connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    messages: u32,
    /// Payload of each message
    #[arg(long, value_name = "BYTES", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    bytes: u32,
    /// Connections, one after the other; the line has the medians of their times and the means of the
    /// rest
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// One JSON object for each line of the table
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  sterna handshake                     every transport, against a broker in this process
  sterna handshake mqtt+quic://broker.example --cafile ca.pem
  sterna handshake mqtts://broker.example --delay 300 --json
  sterna handshake --amqp --delay 10 --bytes 138 --connections 100
  sterna handshake --http                          HTTP, beside MQTT over QUIC
  sterna handshake h3://broker.example --cafile ca.pem
  sterna handshake amqp+quic://broker.example --cafile ca.pem --messages 1000

Connects through a path in this process that adds --delay each way, and publishes messages of QoS 1
right behind the CONNECT (in AMQP unsettled ones behind open, begin and attach, in HTTP as soon as a
request can be sent): with a full handshake, with a ticket, and over QUIC with early data. Round trips are times divided by that of the
path, so give it a delay well above the network's own. Bytes and datagrams (TCP: segments with data
of 1,448 bytes, and SYN) are the client's, up to the last PUBACK, acceptance or answer, without
headers of UDP, TCP and IP. \"trips\" of --json counts how often packets had to wait for others, two for
a round trip. \"at broker\" is when a subscriber without delay has the first message.";

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

/// The figures of one way.
#[derive(Clone, Copy)]
struct Measured {
    passed: Passed,
    at_broker: Duration,
    connected: Duration,
    acknowledged: Duration,
    early_data: EarlyData,
}

async fn handshake(args: &Args) -> Result<(), Failure> {
    if args.connection.maximum_reconnect_times.is_some() {
        return Err(Failure::local(
            "--maximum-reconnect-times: each connection is measured once",
        ));
    }
    if args.amqp && args.connection.names_broker() {
        return Err(Failure::local("--amqp: the URL says which protocol it is"));
    }
    if args.http && args.connection.names_broker() {
        return Err(Failure::local("--http: the URL says which protocol it is"));
    }
    if args.amqp || args.connection.protocol()? == Protocol::Amqp {
        return amqp::handshake(args).await;
    }
    if args.http || args.connection.protocol()? == Protocol::Http {
        return http::handshake(args).await;
    }
    let Settings { options, .. } = if args.connection.names_broker() {
        args.connection.settings(&["connect"])?
    } else {
        args.connection.settings_for_any(&["connect"])?
    };
    let one_way = Duration::from_millis(args.delay.max(1));
    let mut targets = Vec::new();
    let own = if args.connection.names_broker() {
        targets.push(options);
        None
    } else {
        let (server, urls, fingerprint) = own_broker(["mqtt", "mqtts", "mqtt+quic"])?;
        for url in urls {
            let mut target = options.clone();
            target.url = url;
            target.tls.fingerprints = vec![fingerprint];
            targets.push(target);
        }
        Some(server)
    };
    print_head(args, ["CONNACK", "PUBACK"])?;
    let mut result = Ok(());
    for options in targets {
        let measured = measure_target(args, &options, one_way).await;
        let is_unread = measured.as_ref().is_err_and(Failure::is_quiet);
        result = result.and(measured);
        if is_unread {
            break;
        }
    }
    if let Some(server) = own {
        server.shutdown();
    }
    result
}

fn print_head(args: &Args, [connected, acknowledged]: [&str; 2]) -> Result<(), Failure> {
    if args.json {
        return Ok(());
    }
    let line = format!(
        "{:24} {:>9} {connected:>8} {acknowledged:>8}   {:>14}   {:>14}\n",
        "round trips to", "at broker", "up", "down"
    );
    output::print(line.as_bytes())
}

/// A broker in this process with listeners of these schemes, their URLs, and the TLS settings to
/// trust it.
fn own_broker(schemes: [&str; 3]) -> Result<(Server, Vec<Url>, Fingerprint), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::local(format_args!("the broker of this process: {error}"))
    };
    let listeners = schemes
        .map(|scheme| Listener::at(&format!("{scheme}://127.0.0.1:0")))
        .to_vec();
    // Its state ends with it, and other brokers of this host are not disturbed.
    let folder = tempfile::tempdir().map_err(|error| failed(&error))?;
    let mut config = Config {
        listeners,
        data_directory: Some(folder.path().to_owned()),
        ..Config::default()
    };
    config.quic.early_data = Policy::All;
    // Nothing of it is to be kept.
    config.store.enabled = false;
    let server = Server::start(&config).map_err(|error| failed(&error))?;
    let fingerprint = &server.certificate().fingerprint;
    let fingerprint = fingerprint.parse().map_err(|error| failed(&error))?;
    let urls = server.listeners().iter().map(|url| url.parse());
    let urls = urls.collect::<Result<_, _>>();
    let urls = urls.map_err(|error: UrlError| failed(&error))?;
    Ok((server, urls, fingerprint))
}

/// The ways of a scheme.
fn ways(scheme: Scheme) -> Result<&'static [Way], Failure> {
    match scheme {
        Scheme::MqttQuic | Scheme::AmqpQuic => Ok(QUIC),
        Scheme::Mqtts | Scheme::Amqps => Ok(TLS),
        Scheme::Mqtt | Scheme::Amqp => Ok(TCP),
        _ => Err(Failure::local(
            "a URL over TCP, TLS or QUIC is measured, not over WebSocket",
        )),
    }
}

async fn measure_target(args: &Args, options: &Options, one_way: Duration) -> Result<(), Failure> {
    measure_ways(args, options, ways(options.url.scheme())?, one_way).await
}

/// The options of a protocol's client, by which each of its connections is made.
trait Measurable: Clone + DerefMut<Target = LinkOptions> {
    /// A client without delay, which shows when the broker has a message.
    type Watcher;

    /// Connects a watcher to the broker. Its tickets are not used by the measured connections.
    async fn watch(&self) -> Result<Self::Watcher, Failure>;

    /// Makes one connection through the path, and says what it took.
    async fn measure(
        &self,
        args: &Args,
        path: &Path,
        watcher: &mut Self::Watcher,
        one_way: Duration,
    ) -> Result<Measured, Failure>;

    /// Ends a watcher's connection.
    async fn dismiss(watcher: Self::Watcher);
}

/// Measures some ways to connect to the broker that the options name.
#[allow(
    clippy::future_not_send,
    reason = "it stays on the thread of the command"
)]
async fn measure_ways<M: Measurable>(
    args: &Args,
    options: &M,
    ways: &[Way],
    one_way: Duration,
) -> Result<(), Failure> {
    let url = &options.url;
    let server = resolve(url).await?;
    let mut watcher = options.watch().await?;
    let mut result = Ok(());
    for way in ways {
        let path = path_to(server, url.scheme(), one_way).await?;
        let mut options = options.clone();
        options.url = through(url, &path, &mut options.tls)?;
        options.reconnect = None;
        options.tls.version = way.version.or(options.tls.version);
        options.tls.resumption = way.kind != Kind::Full;
        options.early_data = way.kind == Kind::Early;
        let measuring = async {
            if way.kind != Kind::Full {
                // For the ticket, and for what is remembered with it: of the path, and of the broker.
                options.measure(args, &path, &mut watcher, one_way).await?;
            }
            let mut all = Vec::new();
            for _ in 0..args.connections {
                all.push(options.measure(args, &path, &mut watcher, one_way).await?);
            }
            Ok(all)
        };
        let measured = measuring.await;
        // A server may do without the one or other version; the rest is measured.
        let reported = report(args, way, measured, one_way);
        let is_unread = reported.as_ref().is_err_and(Failure::is_quiet);
        result = result.and(reported);
        if is_unread {
            break;
        }
    }
    M::dismiss(watcher).await;
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

/// A path for each way, so that nothing is remembered of another one.
async fn path_to(server: SocketAddr, scheme: Scheme, one_way: Duration) -> Result<Path, Failure> {
    if scheme.is_quic() {
        Path::udp(server, one_way).await
    } else {
        Path::tcp(server, one_way).await
    }
    .map_err(|error| Failure::local(format_args!("the path: {error}")))
}

/// The same URL by way of the path.
fn through(url: &Url, path: &Path, tls: &mut Tls) -> Result<Url, Failure> {
    let (host, port) = (path.address.ip().to_string(), path.address.port());
    let name = || url.host().to_owned();
    tls.server_name.get_or_insert_with(name);
    Url::new(url.scheme(), &host, Some(port)).map_err(Failure::local)
}

/// A subscriber without delay, which shows when the broker has a message.
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
        // Its tickets are not used by the measured connections.
        options.tls.resumption = false;
        let failed = |error: Error| Failure::client(&error, version);
        let (client, events) = Client::connect(options).await.map_err(failed)?;
        let id = client.connected().await.map_err(failed)?.client_id.clone();
        let topic = format!("sterna/handshake/{id}");
        let subscription = Subscription::new(&topic, QoS::AtLeastOnce).map_err(Failure::local)?;
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

impl Measurable for Options {
    type Watcher = Watcher;

    async fn watch(&self) -> Result<Watcher, Failure> {
        Watcher::start(self).await
    }

    async fn dismiss(watcher: Watcher) {
        watcher.client.disconnect().await.ok();
    }

    async fn measure(
        &self,
        args: &Args,
        path: &Path,
        watcher: &mut Watcher,
        one_way: Duration,
    ) -> Result<Measured, Failure> {
        let failed = |error: Error| Failure::client(&error, self.version);
        path.start().await;
        let message = Publish::new(&watcher.topic, vec![b'x'; args.bytes as usize])
            .map_err(Failure::local)?
            .qos(QoS::AtLeastOnce);
        let mut options = self.clone();
        // A client with a name of its own: a broker knows its messages again, and may do them early. Each
        // has another name, as if it had not been here before.
        options.client_id.get_or_insert_with(|| {
            static VISITS: AtomicU32 = AtomicU32::new(1);
            let own = watcher.topic.rsplit('/').next().unwrap_or_default();
            format!("{own}-{}", VISITS.fetch_add(1, Ordering::Relaxed))
        });
        let (client, mut events) = Client::start(options).map_err(Failure::local)?;
        let publishing = async {
            let mut under_way = VecDeque::new();
            for _ in 0..args.messages {
                under_way.push_back(client.send(message.clone()).await?);
            }
            for delivery in under_way {
                delivery.await?;
            }
            Ok((Instant::now(), path.take()))
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
            let mut first = None;
            for _ in 0..args.messages {
                let arrived = tokio::time::timeout(PATIENCE, watcher.events.message()).await;
                arrived.ok().flatten()?;
                first.get_or_insert_with(Instant::now);
            }
            first
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
}

/// Prints what was measured, or says why nothing was.
fn report(
    args: &Args,
    way: &Way,
    measured: Result<Vec<Measured>, Failure>,
    one_way: Duration,
) -> Result<(), Failure> {
    match measured {
        Ok(all) => print(args, way, &typical(&all), one_way),
        Err(failure) => {
            let text = format!("{}: {}", way.name, failure.text);
            Err(Failure::new(failure.code, text))
        }
    }
}

/// Medians of the times, means of the rest.
fn typical(all: &[Measured]) -> Measured {
    let median = |time: fn(&Measured) -> Duration| {
        let mut times: Vec<_> = all.iter().map(time).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    let count = all.len().max(1) as u64;
    let mean = |count_of: fn(&Measured) -> Count| {
        let mut sum = Count::default();
        for one in all.iter().map(count_of) {
            sum.packets += one.packets;
            sum.bytes += one.bytes;
        }
        Count {
            packets: (sum.packets + count / 2) / count,
            bytes: (sum.bytes + count / 2) / count,
            trips: all.iter().map(|one| count_of(one).trips).max().unwrap_or(0),
        }
    };
    let accepted = all.iter().all(|one| one.early_data == EarlyData::Accepted);
    Measured {
        passed: Passed {
            started: None,
            up: mean(|one| one.passed.up),
            down: mean(|one| one.passed.down),
        },
        at_broker: median(|one| one.at_broker),
        connected: median(|one| one.connected),
        acknowledged: median(|one| one.acknowledged),
        early_data: if accepted {
            EarlyData::Accepted
        } else {
            EarlyData::NotTried
        },
    }
}

fn print(args: &Args, way: &Way, measured: &Measured, one_way: Duration) -> Result<(), Failure> {
    let round_trip = 2 * one_way;
    let trips = |time: Duration| time.as_secs_f64() / round_trip.as_secs_f64();
    let Passed { up, down, .. } = measured.passed;
    if args.json {
        let early_data =
            (way.kind == Kind::Early).then_some(measured.early_data == EarlyData::Accepted);
        let line = json!({
            "handshake": way.name,
            "delay_ms": one_way.as_millis() as u64,
            "connections": args.connections,
            "messages": args.messages,
            "bytes": args.bytes,
            "startup_ms": measured.at_broker.as_secs_f64() * 1000.0,
            "round_trips_to_broker": trips(measured.at_broker),
            "round_trips_to_connack": trips(measured.connected),
            "round_trips_to_puback": trips(measured.acknowledged),
            "trips": down.trips,
            "up_packets": up.packets,
            "up_bytes": up.bytes,
            "down_packets": down.packets,
            "down_bytes": down.bytes,
            "early_data_accepted": early_data,
        });
        return output::print(format!("{line}\n").as_bytes());
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
    line.push('\n');
    output::print(line.as_bytes())
}
