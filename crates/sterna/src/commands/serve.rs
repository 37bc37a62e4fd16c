//! `sterna serve`: the broker.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sterna_server::audit::TARGET as AUDIT;
use sterna_server::config::{self, Config, Listener, LogFormat};
use sterna_server::control::{Obeyed, Order, OrderLetter, Reloaded};
use sterna_server::{Failure, Server};
use tracing::{error, info};

use super::config::check::unread;
use super::log_filter::log_filter;
use super::service_manager::{self, State};

/// Run the broker.
///
/// Without options it serves every transport on loopback, and keeps what clients want kept in the data directory. It
/// makes a development certificate on first start. Exit status 0: stopped by a signal. Exit status 1: it cannot start,
/// or could not keep everything at its end. Exit status 2: the configuration is wrong, or a file that it names is
/// missing, unreadable or malformed. Exit status 70: the broker has
/// failed and needs a restart. Exit status 78: its cluster has no place for it.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,

    /// Listen here instead of what the configuration says, also instead of its listener for operators; may be
    /// repeated. Port 0 lets the system choose
    #[arg(long = "listen", value_name = "URL")]
    listen: Vec<String>,

    /// Number of shards, each a thread that serves connections; 0 means one per processor
    #[arg(long, value_name = "N", value_parser = shards)]
    shards: Option<u16>,

    /// Directory of the store and of the development certificate
    #[arg(long = "data-dir", value_name = "DIRECTORY")]
    data_directory: Option<PathBuf>,

    /// Level of the log: error, warn, info, debug, trace, or directives such as sterna_net=debug
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// Form of the log
    #[arg(long, value_name = "FORM", value_parser = ["text", "json"])]
    log_format: Option<String>,

    /// Write the bound addresses here as JSON once everything listens
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
}

/// Where the configuration comes from.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Source {
    /// Configuration file (TOML). Variables such as STERNA__MQTT__RECEIVE_MAXIMUM override it
    #[arg(short, long, value_name = "PATH", env = "STERNA_CONFIG")]
    pub(super) config: Option<PathBuf>,
}

/// A number of shards.
fn shards(text: &str) -> Result<u16, String> {
    let number = text.parse();
    number.map_err(|_| format!("`{text}` is not a whole number from 0 to {}", u16::MAX))
}

impl Args {
    /// The configuration: file, environment, flags, checked.
    fn configuration(&self) -> Result<Config, config::ConfigError> {
        let mut configuration = config::load(self.source.config.as_deref(), std::env::vars())?;
        if !self.listen.is_empty() {
            configuration.listeners = self.listen.iter().map(|url| Listener::at(url)).collect();
        }
        if let Some(shards) = self.shards {
            configuration.shards = shards;
        }
        if let Some(directory) = &self.data_directory {
            configuration.data_directory = Some(directory.clone());
        }
        if let Some(level) = &self.log_level {
            configuration.log.level.clone_from(level);
        }
        match self.log_format.as_deref() {
            Some("json") => configuration.log.format = LogFormat::Json,
            Some(_) => configuration.log.format = LogFormat::Text,
            None => {}
        }
        configuration.check().map_err(|it| self.located(it))?;
        Ok(configuration)
    }

    /// Problems with their places. Listeners of the command line are in no file.
    fn located(&self, problems: Vec<String>) -> config::ConfigError {
        let (listed, rest) = (problems.into_iter())
            .partition(|it| !self.listen.is_empty() && it.starts_with("listener "));
        let rest = config::located(rest, self.source.config.as_deref(), std::env::vars());
        let listed = Vec::into_iter(listed).map(|problem| format!("--listen: {problem}"));
        config::ConfigError::Problems(listed.chain(rest).collect())
    }
}

/// Serves until SIGINT or SIGTERM; SIGHUP reads certificates and configuration again.
pub(crate) fn run(args: &Args) -> ExitCode {
    let checked = args.configuration().and_then(|configuration| {
        // A file that the configuration names is a part of it.
        Server::check(&configuration).map_err(|it| args.located(it))?;
        Ok(configuration)
    });
    let configuration = match checked {
        Ok(configuration) => configuration,
        Err(problem) => {
            eprintln!("sterna serve: {problem}");
            return ExitCode::from(2);
        }
    };
    if args.source.config.is_none() && !unread().is_empty() {
        eprintln!("sterna serve: no configuration file was named{}", unread());
    }
    let was_empty = args.source.config.as_deref().is_some_and(is_empty);
    start_log(&configuration);
    #[cfg(all(unix, any(target_env = "gnu", target_arch = "x86_64")))]
    {
        sterna_server::give_back_with(crate::allocator::give_back);
        sterna_server::keep_one_heap();
    }
    let mut configuration = configuration;
    let mut begun = None;
    loop {
        match serve(args, &configuration, was_empty, &mut begun) {
            Ok(Served::Anew(with)) => configuration = *with,
            Ok(Served::Stopped(code)) => return code,
            Err(problem) => {
                eprintln!("sterna serve: {problem}");
                return ExitCode::FAILURE;
            }
        }
    }
}

/// How a broker has ended.
enum Served {
    /// It was asked to, or has no place in its cluster.
    Stopped(ExitCode),
    /// It is to begin anew with this configuration, for it went by a wrong clock.
    Anew(Box<Config>),
}

/// How long a broker that begins anew waits for what the one before it has not given back yet.
const GIVEN_BACK: Duration = Duration::from_secs(5);

/// Starts a broker; one that `begins_anew` tries for a while.
fn start(configuration: &Config, begins_anew: bool) -> Result<Server, String> {
    let begun = Instant::now();
    loop {
        match Server::start(configuration) {
            Err(_) if begins_anew && begun.elapsed() < GIVEN_BACK => {
                std::thread::sleep(Duration::from_millis(50));
            }
            started => return started,
        }
    }
}

/// The ways of the process's events, from the first broker on.
type Begun = Option<(Sender<Wake>, Receiver<Wake>)>;

/// Starts a broker, and serves until it ends.
fn serve(
    args: &Args,
    configuration: &Config,
    was_empty: bool,
    begun: &mut Begun,
) -> Result<Served, String> {
    let mut server = start(configuration, begun.is_some())?;
    let is_first = begun.is_none();
    // Before the ready file, so that a process that waits for it may send a signal at once.
    let (tell, wakes) = if let Some(begun) = begun {
        begun
    } else {
        let (tell, wakes) = channel();
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
            .map_err(|problem| format!("cannot handle signals: {problem}"))?;
        hear_signals(signals, tell.clone());
        begun.insert((tell, wakes))
    };
    if let Some(failures) = server.take_failures() {
        let tell = tell.clone();
        std::thread::spawn(move || watch(&failures, &tell, |code| std::process::exit(code)));
    }
    if let Some(path) = &args.ready_file {
        write_ready_file(path, &server)
            .map_err(|problem| format!("cannot write {}: {problem}", path.display()))?;
    }
    if is_first {
        greet(&server, configuration);
    }
    service_manager::tell(&State::Ready {
        listeners: server.listeners().len(),
    });
    if let Some(orders) = server.take_orders() {
        hear_orders(orders, tell.clone());
    }
    let (mut left_out, mut begins_anew) = (None, false);
    for wake in &*wakes {
        let letter = match wake {
            Wake::Signal(SIGHUP) => None,
            Wake::Signal(_) => break,
            Wake::LeftOut(why) => {
                left_out = Some(why);
                break;
            }
            Wake::Anew(why) => {
                tracing::warn!(why, "the broker begins anew");
                begins_anew = true;
                break;
            }
            Wake::Order(letter) if letter.order == Order::Drain => {
                letter.answer(Ok(Reloaded::default()));
                break;
            }
            Wake::Order(letter) => Some(letter),
        };
        let is_dry_run = (letter.as_ref()).is_some_and(|letter| letter.order == Order::DryRun);
        if is_dry_run {
            if let Some(letter) = letter {
                letter.answer(reload(args, &server, was_empty, true));
            }
            continue;
        }
        service_manager::tell(&State::Reloading);
        let reloaded = reload(args, &server, was_empty, false);
        service_manager::tell(&State::Ready {
            listeners: server.listeners().len(),
        });
        if let Some(letter) = letter {
            letter.answer(reloaded);
        }
    }
    if begins_anew {
        service_manager::tell(&State::Reloading);
        let configuration = Box::new(server.configuration());
        return if server.shutdown() {
            Ok(Served::Anew(configuration))
        } else {
            Err("it cannot begin anew: clients have not gone in time".to_owned())
        };
    }
    service_manager::tell(&State::Stopping);
    if left_out.is_none() {
        left_out = drain(&server, wakes);
    }
    info!(target: AUDIT, "shutting down");
    let is_kept = server.shutdown();
    if let Some(why) = left_out {
        eprintln!("sterna serve: {why}");
        return Ok(Served::Stopped(ExitCode::from(LEFT_OUT)));
    }
    if is_kept {
        Ok(Served::Stopped(ExitCode::SUCCESS))
    } else {
        Err("not everything could be kept in time; the log says more".to_owned())
    }
}

/// Says that the broker will stop, and waits for as long as clients are still taken. Returns why the cluster goes on
/// without this node, where that came meanwhile.
fn drain(server: &Server, wakes: &Receiver<Wake>) -> Option<String> {
    info!(target: AUDIT, "draining");
    let noticed = Instant::now() + server.drain();
    // A second signal asks to stop without a wait.
    while let Ok(wake) = wakes.recv_timeout(noticed.saturating_duration_since(Instant::now())) {
        match wake {
            // It stops anyway.
            Wake::Signal(SIGHUP) | Wake::Anew(_) => {}
            Wake::Signal(_) => break,
            Wake::LeftOut(why) => return Some(why),
            Wake::Order(letter) => letter.answer(Err("the broker drains".to_owned())),
        }
    }
    None
}

/// An event that the process waits for.
enum Wake {
    Signal(i32),
    /// The cluster goes on without this node, and why.
    LeftOut(String),
    /// The broker is to begin anew, and why.
    Anew(String),
    /// From the admin API.
    Order(OrderLetter),
}

/// Tells of signals as they come.
fn hear_signals(mut signals: Signals, tell: Sender<Wake>) {
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if tell.send(Wake::Signal(signal)).is_err() {
                return;
            }
        }
    });
}

/// Tells of a broker's orders as they come.
fn hear_orders(orders: Receiver<OrderLetter>, tell: Sender<Wake>) {
    std::thread::spawn(move || {
        for letter in orders {
            if tell.send(Wake::Order(letter)).is_err() {
                return;
            }
        }
    });
}

/// A fault of a configuration in one line, without the picture of its place.
fn in_one_line(fault: &str) -> String {
    let is_of_picture = |line: &&str| {
        let behind_number = line.trim_start_matches(|c: char| c.is_ascii_digit());
        behind_number.trim_start().starts_with('|')
    };
    let lines = fault.lines().map(str::trim);
    let words = lines.filter(|line| !line.is_empty() && !is_of_picture(line));
    words.collect::<Vec<_>>().join("; ")
}

/// Reads configuration and certificates again. A dry run puts nothing in force. Returns the effects.
fn reload(args: &Args, server: &Server, was_empty: bool, is_dry_run: bool) -> Obeyed {
    let read = match &args.source.config {
        // An editor or a full disk leaves it behind, without intent.
        Some(path) if !was_empty && is_empty(path) => Err(format!(
            "{}: it was not empty when the broker started, and now it is",
            path.display()
        )),
        // For the log, and an answer of the admin API.
        _ => (args.configuration()).map_err(|error| in_one_line(&error.to_string())),
    };
    let reloaded = read.and_then(|configuration| server.reload_with(&configuration, is_dry_run));
    if is_dry_run {
        return reloaded;
    }
    match reloaded.as_ref().map(|reloaded| &reloaded.unchanged) {
        Ok(kept) if kept.is_empty() => {
            info!(target: AUDIT, "configuration and certificates reloaded");
        }
        Ok(kept) => info!(
            target: AUDIT,
            waiting = kept.join(", "),
            "configuration and certificates reloaded; changes of some settings wait for a restart"
        ),
        Err(problem) => {
            error!(target: AUDIT, %problem, "reload refused; the old configuration stays in force");
        }
    }
    reloaded
}

/// Whether a configuration file can be read and sets nothing.
fn is_empty(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| {
        text.parse::<toml::Table>()
            .is_ok_and(|table| table.is_empty())
    })
}

/// Exit code where a shard has failed: an internal error (`EX_SOFTWARE` of `sysexits.h`).
const SHARD_FAILED: i32 = 70;

/// Exit code where the cluster goes on without this node: a wrong configuration (`EX_CONFIG` of `sysexits.h`). A
/// restart would not mend it, or would take the place of another process.
const LEFT_OUT: u8 = 78;

/// Ends the process when a shard fails: what it had is lost, and a supervisor starts the broker again. Where the
/// cluster goes on without this node, the broker stops in order.
fn watch(failures: &Receiver<Failure>, tell: &Sender<Wake>, end: impl FnOnce(i32)) {
    for failure in failures {
        match failure {
            Failure::Bug(failure) | Failure::Robbed(failure) => {
                error!(%failure, "the broker cannot go on");
                eprintln!("sterna serve: {failure}");
                return end(SHARD_FAILED);
            }
            // It may have begun to stop.
            Failure::LeftOut(why) => drop(tell.send(Wake::LeftOut(why))),
            Failure::Anew(why) => drop(tell.send(Wake::Anew(why))),
        }
    }
}

/// Starts the log on standard error. Only the first call in a process has an effect.
pub(crate) fn start_log(configuration: &Config) {
    use std::io::IsTerminal as _;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(log_filter(&configuration.log))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // A second start in one process (the demo, tests) keeps the first one's log.
    let _ = match configuration.log.format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

/// Writes the file under another name first: who waits for it never reads half of it.
fn write_ready_file(path: &Path, server: &Server) -> std::io::Result<()> {
    let listeners: Vec<_> = server
        .listeners()
        .iter()
        .map(|url| serde_json::json!({ "url": url }))
        .collect();
    let certificate = server.certificate();
    let ready = serde_json::json!({
        "pid": std::process::id(),
        "listeners": listeners,
        "certificate": certificate.trust_anchor,
        "fingerprint": certificate.fingerprint,
    });
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    std::fs::write(&name, format!("{ready}\n"))?;
    std::fs::rename(&name, path)
}

/// Tells a person what listens where and what to type next.
fn greet(server: &Server, configuration: &Config) {
    let mut out = std::io::stdout().lock();
    // Standard output may be closed, which is no reason not to serve.
    let _ = write_greeting(&mut out, server, configuration).and_then(|()| out.flush());
}

/// A listener's URL as one can be reached by from here.
fn reachable(url: &str) -> String {
    url.replace("[::]", "localhost")
        .replace("0.0.0.0", "localhost")
}

fn write_greeting(
    out: &mut impl std::io::Write,
    server: &Server,
    configuration: &Config,
) -> std::io::Result<()> {
    let certificate = server.certificate();
    writeln!(out, "Sterna {}\n", env!("CARGO_PKG_VERSION"))?;
    for url in server.listeners() {
        let what = match url.split("://").next().unwrap_or_default() {
            "mqtt" => "MQTT on TCP",
            "mqtts" => "MQTT on TLS",
            "ws" => "MQTT and AMQP on WebSocket",
            "wss" => "MQTT and AMQP on secure WebSocket",
            "amqp" => "AMQP on TCP",
            "amqps" => "AMQP on TLS",
            "http" => "HTTP on TCP",
            "https" => "HTTP on TLS",
            "admin" => "metrics, health and admin API on TCP",
            "admins" => "metrics, health and admin API on TLS",
            _ => "MQTT, AMQP and HTTP on QUIC",
        };
        writeln!(out, "  {url:<34} {what}")?;
    }
    let anchor = certificate.trust_anchor.display();
    writeln!(out, "\n  certificate SHA-256 {}", certificate.fingerprint)?;
    if certificate.development {
        writeln!(out, "  for development only, signed by {anchor}")?;
    }
    let url = server
        .listeners()
        .iter()
        .find(|url| url.starts_with("mqtt+quic:"))
        .or_else(|| {
            let carries_messages =
                |url: &&String| !url.starts_with("http") && !url.starts_with("admin");
            server.listeners().iter().find(carries_messages)
        });
    let page = (server.listeners().iter()).find(|url| url.starts_with("http:"));
    if let Some(page) = page {
        writeln!(out, "\nin a browser:\n  {}/", reachable(page))?;
    }
    let admin = (server.listeners().iter()).find(|url| url.starts_with("admin"));
    if let Some(admin) = admin.filter(|_| configuration.http.page) {
        let page = reachable(&admin.replacen("admin", "http", 1));
        writeln!(out, "\nthe dashboard, for operators:\n  {page}/")?;
    }
    let Some(url) = url else { return Ok(()) };
    let command = own_command();
    let url = reachable(url);
    let trust = if url.starts_with("mqtt://") || url.starts_with("ws://") {
        String::new()
    } else if certificate.development {
        format!(" --cafile {anchor}")
    } else {
        // Its authority is in no file that the broker knows.
        format!(" --fingerprint {}", certificate.fingerprint)
    };
    let (login, filter, topic) = example(configuration);
    writeln!(
        out,
        "\nsubscribe:\n  {command} sub --url {url}{trust}{login} -t {filter} -v\n\
         publish:\n  {command} pub --url {url}{trust}{login} -t {topic} -m 'Hello from Sterna'\n"
    )
}

/// Login, filter and topic of the lines to copy. Where there are users or rules, only their author knows those.
fn example(configuration: &Config) -> (&'static str, &'static str, &'static str) {
    let authentication = &configuration.authentication;
    let login = if authentication.password_file.is_some() {
        " -u USER -P PASSWORD"
    } else {
        ""
    };
    let authorization = &configuration.authorization;
    if authorization.rules.is_empty() && authorization.default_allow {
        (login, "'hello/#'", "hello/world")
    } else {
        (login, "FILTER", "TOPIC")
    }
}

/// This program as one would type it here.
fn own_command() -> String {
    let Ok(program) = std::env::current_exe() else {
        return "sterna".to_owned();
    };
    let here = std::env::current_dir().unwrap_or_default();
    match program.strip_prefix(&here) {
        // A shell looks for a name without a slash elsewhere.
        Ok(relative) if relative.components().count() == 1 => format!("./{}", relative.display()),
        Ok(relative) => relative.display().to_string(),
        Err(_) => program.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_fails_ends_the_process_and_one_that_stops_does_not() {
        let (report, failures) = channel();
        let (tell, wakes) = channel();
        let bug = "shard 1 has failed: x".to_owned();
        report.send(Failure::Bug(bug)).unwrap();
        let mut code = None;
        watch(&failures, &tell, |with| code = Some(with));
        assert_eq!(code.take(), Some(70));
        report.send(Failure::LeftOut("x".to_owned())).unwrap();
        report.send(Failure::Anew("y".to_owned())).unwrap();
        drop(report);
        watch(&failures, &tell, |with| code = Some(with));
        assert_eq!(code, None);
        assert!(matches!(wakes.try_recv(), Ok(Wake::LeftOut(why)) if why == "x"));
        assert!(matches!(wakes.try_recv(), Ok(Wake::Anew(why)) if why == "y"));
    }

    #[test]
    fn the_lines_to_copy_are_those_of_the_configuration() {
        let mut configuration = Config::default();
        assert_eq!(example(&configuration), ("", "'hello/#'", "hello/world"));
        configuration.authentication.password_file = Some(PathBuf::from("x"));
        configuration.authorization.default_allow = false;
        let expected = (" -u USER -P PASSWORD", "FILTER", "TOPIC");
        assert_eq!(example(&configuration), expected);
    }

    #[test]
    fn a_number_of_shards_is_told_in_words() {
        assert_eq!(shards("4"), Ok(4));
        for wrong in ["x", "-1", "70000"] {
            let expected = format!("`{wrong}` is not a whole number from 0 to 65535");
            assert_eq!(shards(wrong), Err(expected));
        }
    }

    #[test]
    fn flags_override_the_configuration() {
        let args = Args {
            source: Source { config: None },
            listen: vec!["mqtt://127.0.0.1:0".to_owned()],
            shards: Some(3),
            data_directory: Some(PathBuf::from("x")),
            log_level: Some("warn".to_owned()),
            log_format: Some("json".to_owned()),
            ready_file: None,
        };
        let configuration = args.configuration().unwrap();
        assert_eq!(
            configuration.listeners,
            [Listener::at("mqtt://127.0.0.1:0")]
        );
        assert_eq!(configuration.shard_count(), 3);
        assert_eq!(configuration.data_directory(), Ok(PathBuf::from("x")));
        assert_eq!(configuration.log.level, "warn");
        assert_eq!(configuration.log.format, LogFormat::Json);
    }
}
