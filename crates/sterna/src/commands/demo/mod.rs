//! `sterna demo`: a broker, devices and a live view in one process.

mod telemetry;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crossterm::event::{Event as Key, KeyCode, KeyEventKind, KeyModifiers};
use sterna_client::arguments::seconds;
use sterna_client::{
    Client, Event, Fingerprint, Login, Message, Options, Publish, QoS, Scheme, Subscription, Tls,
    Url, Version,
};
use sterna_server::Server;
use sterna_server::config::{Config, Listener, Store};
use tokio::sync::mpsc;

use self::telemetry::{Device, Meter, Reading};
use self::view::{Arrival, Board, Screen};

use super::exit::{self, Failure};
use super::{output, signals};

/// Between two pictures.
const FRAME: Duration = Duration::from_millis(250);
/// The user property with which each message of this run carries when and over what it was sent.
const MARK: &str = "sterna-demo";

/// See Sterna at work: this host's telemetry over QUIC and TCP, live.
///
/// Starts a broker on free ports of this host. Several devices publish the load of its processors,
/// memory, network and disks over MQTT on QUIC and on TCP. A subscriber shows each value, with its
/// delay. Nothing leaves this host.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
On a terminal: q ends it, m moves the QUIC devices to other ports, as a phone that changes its
network would: no message is lost and nothing connects anew. Piped, it prints one line a second,
and the last values in the end.

Examples:
  sterna demo
  sterna demo --seconds 10 | cat
  sterna demo --url mqtt+quic://broker.example --url mqtts://broker.example --cafile ca.pem")]
pub(crate) struct Args {
    /// Use this broker instead of starting one; several for several transports
    #[arg(long = "url", value_name = "URL")]
    urls: Vec<Url>,
    /// Seconds between two measurements of a device
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = seconds)]
    interval: Duration,
    /// End after this number of seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<Duration>,
    /// With --url: PEM file of authorities to trust
    #[arg(long, value_name = "FILE", requires = "urls")]
    cafile: Option<PathBuf>,
    /// With --url: trust exactly the certificate with this SHA-256
    #[arg(long, value_name = "SHA256", requires = "urls")]
    fingerprint: Vec<Fingerprint>,
    /// With --url: user name
    #[arg(short, long, value_name = "USER", requires = "urls")]
    username: Option<String>,
    /// With --url: password
    #[arg(
        short = 'P',
        long = "pw",
        value_name = "PASSWORD",
        requires = "username"
    )]
    password: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let result = brokers(args).and_then(|(server, brokers)| {
        let result = super::block_on(async {
            let board = demonstrate(args, &brokers).await?;
            output::print((board.summary().join("\n") + "\n").as_bytes())
        });
        if let Some(server) = server {
            server.shutdown();
        }
        result
    });
    exit::code(result, false)
}

/// Where to connect, and how.
struct Brokers {
    urls: Vec<Url>,
    tls: Tls,
    login: Login,
}

/// The brokers of the command line, or a new one on free ports.
fn brokers(args: &Args) -> Result<(Option<Server>, Brokers), Failure> {
    let mut tls = Tls::default();
    if !args.urls.is_empty() {
        tls.ca_file.clone_from(&args.cafile);
        tls.fingerprints.clone_from(&args.fingerprint);
        let login = match &args.username {
            None => Login::Anonymous,
            Some(user) => Login::Password {
                user: Some(user.clone()),
                password: args
                    .password
                    .as_ref()
                    .map(|password| password.clone().into_bytes()),
            },
        };
        return Ok((
            None,
            Brokers {
                urls: args.urls.clone(),
                tls,
                login,
            },
        ));
    }
    let listeners = ["mqtt+quic://127.0.0.1:0", "mqtt://127.0.0.1:0"]
        .map(Listener::at)
        .to_vec();
    // Its state ends with it, and other brokers of this host are not disturbed.
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let server = Server::start(&Config {
        listeners,
        data_directory: Some(folder.path().to_owned()),
        store: Store {
            enabled: false,
            ..Store::default()
        },
        ..Config::default()
    })?;
    let urls = server
        .listeners()
        .iter()
        .map(|url| url.parse().map_err(|error| format!("{url}: {error}")))
        .collect::<Result<_, String>>()?;
    let fingerprint = &server.certificate().fingerprint;
    tls.fingerprints.push(
        fingerprint
            .parse()
            .map_err(|error| format!("the broker's certificate: {error}"))?,
    );
    Ok((
        Some(server),
        Brokers {
            urls,
            tls,
            login: Login::Anonymous,
        },
    ))
}

impl Brokers {
    fn options(&self, number: usize, id: &str) -> Options {
        let mut options = Options::new(self.urls[number % self.urls.len()].clone());
        options.tls = self.tls.clone();
        if self.login != Login::Anonymous {
            options.login = self.login.clone();
        }
        options.client_id = Some(id.to_owned());
        options
    }

    fn transports(&self) -> Vec<String> {
        let name = |url: &Url| match url.scheme() {
            Scheme::MqttQuic => "QUIC",
            Scheme::Mqtt => "TCP",
            Scheme::Mqtts => "TLS",
            Scheme::Ws => "WS",
            Scheme::Wss => "WSS",
            // No client of MQTT goes there.
            other => other.name(),
        };
        self.urls.iter().map(|url| name(url).to_owned()).collect()
    }
}

/// The mark of this run's messages, and the clock for their delays.
#[derive(Clone, Copy)]
struct Run {
    id: u32,
    started: Instant,
}

impl Run {
    fn mark(self, transport: usize) -> String {
        format!(
            "{:08x} {transport} {}",
            self.id,
            self.started.elapsed().as_micros()
        )
    }

    /// Transport and delay, of a message of this run.
    fn unmark(self, mark: &str) -> Option<(usize, Duration)> {
        let mut words = mark.split(' ');
        if words.next()? != format!("{:08x}", self.id) {
            return None;
        }
        let transport = words.next()?.parse().ok()?;
        let sent = Duration::from_micros(words.next()?.parse().ok()?);
        Some((transport, self.started.elapsed().saturating_sub(sent)))
    }
}

/// Runs the demonstration; the board tells what it has seen.
async fn demonstrate(args: &Args, brokers: &Brokers) -> Result<Board, Failure> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(Failure::local)?;
    let run = Run {
        id: u32::from_ne_bytes(random),
        started: Instant::now(),
    };
    let host = telemetry::host_name();
    let failed = |error: &sterna_client::Error| Failure::client(error, Version::V5);

    let mut viewer = brokers.options(0, &format!("demo-{:08x}-viewer", run.id));
    viewer.incoming_messages = 4_096;
    let (viewer, mut events) = Client::connect(viewer)
        .await
        .map_err(|error| failed(&error))?;
    let filter =
        Subscription::new(format!("host/{host}/#"), QoS::AtLeastOnce).map_err(Failure::local)?;
    let granted = viewer
        .subscribe([filter])
        .await
        .map_err(|error| failed(&error))?;
    if let Some(refused) = granted.iter().find(|code| code.is_error()) {
        return Err(Failure::new(
            *refused as u8,
            format_args!("the broker refused the subscription: {}", refused.name()),
        ));
    }

    let mut devices = Vec::new();
    for (number, device) in Device::ALL.into_iter().enumerate() {
        let options = brokers.options(number, &format!("demo-{:08x}-{}", run.id, device.name()));
        let (client, events) = Client::connect(options)
            .await
            .map_err(|error| failed(&error))?;
        drop(events);
        let transport = number % brokers.urls.len();
        let prefix = format!("host/{host}/{}", device.name());
        tokio::spawn(publish(
            client.clone(),
            device,
            prefix,
            run,
            transport,
            args.interval,
        ));
        devices.push(client);
    }

    let board = Board::new(&brokers.transports(), run.started).map_err(Failure::local)?;
    let urls: Vec<_> = brokers.urls.iter().map(Url::to_string).collect();
    let title = format!(
        "Sterna   {}   q ends, m moves the QUIC devices to other ports",
        urls.join("   ")
    );
    let mut show = Show {
        args,
        board,
        run,
        title,
        screen: None,
    };
    show.screen =
        Screen::take().map_err(|error| Failure::local(format_args!("terminal: {error}")))?;
    if show.screen.is_none() {
        output::print(
            format!(
                "watch along: sterna sub '{}/host/{host}/#' -v\n",
                urls[urls.len() - 1]
            )
            .as_bytes(),
        )?;
    }
    let result = show.run(&mut events, &devices).await;
    // The terminal is itself again before anything is printed.
    show.screen = None;
    for client in devices.iter().chain([&viewer]) {
        let _ = client.disconnect().await;
    }
    result.map(|()| show.board)
}

/// Measures a device and publishes what it tells, until the client ends.
async fn publish(
    client: Client,
    device: Device,
    prefix: String,
    run: Run,
    transport: usize,
    interval: Duration,
) {
    let mut meter = Meter::new(device);
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // A file of /proc that is not there gives a device without readings.
        for reading in meter.measure().unwrap_or_default() {
            let Ok(message) = message(&prefix, &reading, &run.mark(transport)) else {
                continue;
            };
            if client.send(message).await.is_err() {
                return;
            }
        }
    }
}

fn message(
    prefix: &str,
    reading: &Reading,
    mark: &str,
) -> Result<Publish, sterna_client::InvalidError> {
    Publish::new(
        format!("{prefix}/{}", reading.topic),
        format!("{:.2}", reading.value),
    )?
    .qos(QoS::AtLeastOnce)
    .utf8()?
    .user_property("unit", reading.unit)?
    .user_property(MARK, mark)
}

struct Show<'a> {
    args: &'a Args,
    board: Board,
    run: Run,
    title: String,
    screen: Option<Screen>,
}

impl Show<'_> {
    async fn run(
        &mut self,
        events: &mut sterna_client::Events,
        devices: &[Client],
    ) -> Result<(), Failure> {
        let mut frames = tokio::time::interval(FRAME);
        let mut keys = if self.screen.is_some() {
            keys()
        } else {
            mpsc::channel(1).1
        };
        let mut keys_alive = true;
        let mut signals = signals::listen();
        let mut signals_alive = true;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::Message(message)) => self.arrived(&message),
                    Some(Event::Disconnected { error, retry_in: Some(_) }) => {
                        self.board.notice = format!("{error}; trying again");
                    }
                    Some(Event::Disconnected { error, retry_in: None }) => {
                        return Err(Failure::client(&error, Version::V5));
                    }
                    Some(_) => self.board.notice.clear(),
                    None => return Ok(()),
                },
                _ = frames.tick() => {
                    self.show()?;
                    if self.args.seconds.is_some_and(|most| self.run.started.elapsed() >= most) {
                        return Ok(());
                    }
                }
                key = keys.recv(), if keys_alive => match key {
                    Some('m') => self.board.notice = migrate(devices).await,
                    Some(_) => return Ok(()),
                    None => keys_alive = false,
                },
                word = super::subscribe::signal(&mut signals), if signals_alive => {
                    if word {
                        return Ok(());
                    }
                    signals_alive = false;
                }
            }
        }
    }

    fn arrived(&mut self, message: &Message) {
        let properties = message.properties();
        let property = |wanted| {
            properties
                .user_properties()
                .find_map(|(name, value)| (name == wanted).then_some(value))
        };
        let Some((transport, delay)) = property(MARK).and_then(|mark| self.run.unmark(mark)) else {
            return;
        };
        let value = std::str::from_utf8(message.payload_bytes())
            .ok()
            .and_then(|text| text.parse().ok());
        if let Some(value) = value {
            let unit = property("unit").unwrap_or_default();
            self.board.arrived(&Arrival {
                topic: message.topic(),
                value,
                unit,
                transport,
                delay,
            });
        }
    }

    fn show(&mut self) -> Result<(), Failure> {
        let new_second = self.board.tick();
        match &self.screen {
            Some(screen) => screen
                .draw(&self.board, &self.title)
                .map_err(|error| Failure::local(format_args!("terminal: {error}"))),
            None if new_second => output::print((self.board.line() + "\n").as_bytes()),
            None => Ok(()),
        }
    }
}

/// Moves the devices that are connected over QUIC, and tells how many.
async fn migrate(devices: &[Client]) -> String {
    let mut moved = 0;
    for device in devices {
        moved += u32::from(device.migrate().await.is_ok());
    }
    format!("{moved} devices moved to other ports and stay connected")
}

/// The keys that mean something, read by a thread of their own.
fn keys() -> mpsc::Receiver<char> {
    let (sender, receiver) = mpsc::channel(8);
    std::thread::spawn(move || {
        while let Ok(event) = crossterm::event::read() {
            let Key::Key(key) = event else { continue };
            let meant = match key.code {
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => 'q',
                KeyCode::Char('q') | KeyCode::Esc => 'q',
                KeyCode::Char('m') => 'm',
                _ => continue,
            };
            if key.kind != KeyEventKind::Release && sender.blocking_send(meant).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_belong_to_their_run() {
        let run = Run {
            id: 7,
            started: Instant::now(),
        };
        let mark = run.mark(1);
        let (transport, delay) = run.unmark(&mark).unwrap();
        assert_eq!(transport, 1);
        assert!(delay < Duration::from_secs(5));
        assert!(Run { id: 8, ..run }.unmark(&mark).is_none());
        for mark in [
            "",
            "00000007",
            "00000007 x 1",
            "00000007 1 -1",
            "00000007 1",
        ] {
            assert!(run.unmark(mark).is_none(), "{mark}");
        }
    }

    /// The whole of it: a broker on free ports, devices on both transports, and what the viewer
    /// counts.
    #[test]
    fn everything_arrives_over_both_transports() {
        let folder = tempfile::tempdir().unwrap();
        let listeners = ["mqtt+quic://127.0.0.1:0", "mqtt://127.0.0.1:0"]
            .map(Listener::at)
            .to_vec();
        let data_directory = Some(folder.path().to_owned());
        let server = Server::start(&Config {
            listeners,
            data_directory,
            ..Config::default()
        })
        .unwrap();
        let mut tls = Tls::default();
        tls.fingerprints
            .push(server.certificate().fingerprint.parse().unwrap());
        let urls = server
            .listeners()
            .iter()
            .map(|url| url.parse().unwrap())
            .collect();
        let brokers = Brokers {
            urls,
            tls,
            login: Login::Anonymous,
        };
        let args = Args {
            urls: Vec::new(),
            interval: Duration::from_millis(10),
            seconds: Some(Duration::from_secs(2)),
            cafile: None,
            fingerprint: Vec::new(),
            username: None,
            password: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let board = runtime.block_on(demonstrate(&args, &brokers)).unwrap();
        server.shutdown();
        let messages = board.messages();
        assert!(
            messages.len() == 2 && messages.iter().all(|count| *count > 10),
            "{messages:?}"
        );
    }
}
