//! `sterna-lab bench http`: a broker's cost of HTTP/3 requests, in memory and CPU.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;
use sterna_client::arguments::{self, Place, Quic, Trust, from_environment};
use sterna_client::http::{Client, Credentials, Error, Options, Subscribe, Subscription};
use sterna_client::{Publish, QoS};

use super::own_broker::OwnBroker;
use super::report::Report;
use crate::broker_program::BrokerProgram;
use crate::console;
use crate::process::{self, Process, Usage};

/// Most connections.
const MAX_CONNECTIONS: u32 = 10_000;
/// Time for a broker to finish the last work.
const SETTLE: Duration = Duration::from_millis(500);

/// Open requests of HTTP/3, publish with them, and print the broker's cost.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Process of the broker on this machine
    #[arg(long)]
    pid: Option<u32>,
    /// Connections
    #[arg(long, short = 'n', default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CONNECTIONS)))]
    connections: u32,
    /// Subscriptions that each connection holds open at a time
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    subscriptions: u32,
    /// Messages that are published in all, one after the other on each connection
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    posts: u32,
    /// Payload of each
    #[arg(long, default_value_t = 32, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(0..=65_536))]
    payload: u32,
    #[command(flatten)]
    trust: Trust,
    #[command(flatten)]
    quic: Quic,
    #[command(flatten)]
    login: arguments::Credentials,
    /// A token to log in with, in place of user name and password [env: STERNA_TOKEN]
    #[arg(
        long,
        value_name = "TOKEN",
        conflicts_with = "username",
        help_heading = "Client"
    )]
    token: Option<String>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sterna: BrokerProgram,
    /// Print this help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

const HELP: &str = "\
Without URL and --pid, Sterna's own broker is started for this run. Memory is what the broker's process has resident, of which each figure is the growth, divided. First
the connections are opened and used once; then each opens its subscriptions, which are requests whose
responses do not end; then these are given up, and messages are published.";

const CONFIGURATION: &str = r#"
[[listener]]
url = "h3://127.0.0.1:0"

[http]
maximum_requests = 10000
maximum_subscriptions = 10000
"#;

/// Runs the workload and prints its result.
pub(super) fn run(args: &Args) -> ExitCode {
    let measured = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(measure(args)));
    console::answer(measured.map(|report| report.show(args.json)))
}

async fn measure(args: &Args) -> Result<Report, String> {
    let own = match (args.place.is_given(), args.pid) {
        (true, Some(_)) => None,
        (false, None) => Some(OwnBroker::start(
            &args.sterna.find()?,
            CONFIGURATION,
            |_| Ok(()),
        )?),
        (true, None) => return Err("--pid: the broker's process is what is measured".to_owned()),
        (false, Some(_)) => return Err("--pid: there is no URL of that broker".to_owned()),
    };
    let url = match &own {
        None => args.place.url(&args.trust)?,
        Some(own) => {
            let url = own.urls.first().ok_or("the broker listens nowhere")?;
            url.parse().map_err(|error| format!("{url}: {error}"))?
        }
    };
    args.trust.refuse_idle(url.scheme())?;
    let mut options = Options::new(url);
    options.tls = args.trust.tls();
    options.quic = args.quic.overrides()?;
    // Each connection is a client of its own, as devices are.
    options.tls.resumption = false;
    options.tls.key_log = true;
    if let Some(own) = &own {
        options.tls.fingerprints = vec![own.fingerprint];
    }
    let login = args.login.login(&options.url);
    options.credentials = match (&args.token, login.user) {
        (Some(token), _) => Credentials::Bearer(token.clone()),
        (None, Some(user)) => Credentials::Basic {
            user,
            password: login.password.unwrap_or_default(),
        },
        (None, None) => {
            from_environment("STERNA_TOKEN").map_or(Credentials::None, Credentials::Bearer)
        }
    };
    let pid = args.pid.or_else(|| own.as_ref().map(OwnBroker::pid));
    let broker = Process::find(pid.ok_or("there is no process to measure")?)?;
    process::raise_open_files();
    let run = Run {
        args,
        options,
        broker,
    };
    run.measure().await.map_err(|error| error.to_string())
}

struct Run<'a> {
    args: &'a Args,
    options: Options,
    broker: Process,
}

impl Run<'_> {
    async fn usage(&self) -> Usage {
        tokio::time::sleep(SETTLE).await;
        self.broker.usage()
    }

    async fn measure(&self) -> Result<Report, Error> {
        let args = self.args;
        // Memory that a broker allocates once belongs to no request.
        let warm = self.connect(1).await?;
        self.publish(&warm, 100).await?;
        let idle = self.usage().await;
        let clients = self.connect(args.connections).await?;
        let connected = self.usage().await;
        let mut subscriptions = Vec::new();
        for (number, client) in clients.iter().enumerate() {
            subscriptions.extend(self.subscribe(client, number).await?);
        }
        let subscribed = self.usage().await;
        let open = subscriptions.len() as f64;
        drop(subscriptions);
        let before = self.usage().await;
        let start = Instant::now();
        let posts = args.posts.div_ceil(args.connections) * args.connections;
        self.publish(&clients, posts).await?;
        let wall = start.elapsed();
        let after = self.usage().await;
        for client in clients.iter().chain(&warm) {
            client.close().await;
        }
        let grown =
            |from: &Usage, to: &Usage| to.resident_bytes as f64 - from.resident_bytes as f64;
        let posts = f64::from(posts);
        let mut report = Report::default();
        report.fact("connections", json!(args.connections));
        report.fact("open_requests", json!(open));
        report.fact("posts", json!(posts));
        let connections = f64::from(args.connections);
        report.figure(
            "bytes_per_connection",
            grown(&idle, &connected) / connections,
            "memory of a connection",
            "bytes",
        );
        report.figure(
            "bytes_per_open_request",
            grown(&connected, &subscribed) / open,
            "memory of an open request",
            "bytes",
        );
        report.figure(
            "bytes_per_post",
            grown(&before, &after) / posts,
            "memory that a POST leaves",
            "bytes",
        );
        let cpu = (after.cpu.saturating_sub(before.cpu)).as_secs_f64();
        report.figure("cpu_us_per_post", cpu / posts * 1e6, "CPU of a POST", "us");
        report.figure(
            "posts_per_second",
            posts / wall.as_secs_f64(),
            "POSTs a second",
            "1/s",
        );
        Ok(report)
    }

    /// Clients whose connections stand, and have been used.
    async fn connect(&self, count: u32) -> Result<Vec<Client>, Error> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let client = Client::new(self.options.clone())?;
            client.publish(self.message(0)?).await?;
            clients.push(client);
        }
        Ok(clients)
    }

    fn message(&self, number: usize) -> Result<Publish, Error> {
        let payload = vec![b'x'; self.args.payload as usize];
        let topic = format!("bench/{number}/post");
        let message = Publish::new(topic, payload).map_err(|e| Error::Invalid(e.to_string()))?;
        Ok(message.qos(QoS::AtLeastOnce))
    }

    async fn subscribe(&self, client: &Client, number: usize) -> Result<Vec<Subscription>, Error> {
        let mut subscriptions = Vec::new();
        for nth in 0..self.args.subscriptions {
            let filter = format!("bench/{number}/{nth}/+");
            let subscribe = Subscribe::new(filter, QoS::AtMostOnce)?;
            subscriptions.push(client.subscribe(subscribe).await?);
        }
        Ok(subscriptions)
    }

    /// Publishes N messages over all clients, on each one after the other.
    async fn publish(&self, clients: &[Client], posts: u32) -> Result<(), Error> {
        let each = posts / clients.len() as u32;
        let mut tasks = tokio::task::JoinSet::new();
        for (number, client) in clients.iter().enumerate() {
            let (client, message) = (client.clone(), self.message(number)?);
            tasks.spawn(async move {
                for _ in 0..each {
                    client.publish(message.clone()).await?;
                }
                Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap_or(Err(Error::Ended))?;
        }
        Ok(())
    }
}
