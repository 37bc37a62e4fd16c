//! Brokers that keep messages on a disk: Sterna, and peers that registries have.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::broker::{Place, free_ports, spawn, wait_for};
use super::options::Options;
use crate::Failure;
use crate::command::kill_tree;
use crate::workspace::{on_path, write};

/// Longest time until a broker listens. A restart with millions of messages belongs to it.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest time until a broker has ended that was asked to.
const END_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);
/// Messages that wait in memory for a session of Sterna: more than those of ten publishers with the usual window, and less
/// than those for a subscriber that is behind.
const MOST_QUEUED: u32 = 5_000;

/// The event that an acknowledgement waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    Commit,
    Interval,
    Memory,
}

/// A broker with the settings under which it is measured.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// Name in the table.
    pub(super) name: &'static str,
    pub(super) durability: Durability,
    /// Kept when, in the words of the broker's own settings.
    pub(super) keeps: &'static str,
    /// Kind and program; the error says why it is not measured.
    kind: Kind,
    program: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sterna,
    Mosquitto,
    Nats,
    RabbitMq,
    Artemis,
}

/// Brokers to measure, and peers that are not here, each with the reason.
pub(super) fn subjects(options: &Options, sterna: &Path) -> (Vec<Subject>, Vec<String>) {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    // The first makes the sessions that all three have.
    for (durability, keeps) in [
        (Durability::Interval, "interval, 10 ms"),
        (Durability::Commit, "commit"),
        (Durability::Memory, "memory"),
    ] {
        found.push(Subject {
            name: "sterna",
            durability,
            keeps,
            kind: Kind::Sterna,
            program: sterna.to_path_buf(),
        });
    }
    let peers = [
        (
            "mosquitto",
            Kind::Mosquitto,
            program("mosquitto", &["/usr/sbin/mosquitto"])
                .ok_or("not installed (Debian: apt-get install mosquitto)"),
            &[(Durability::Interval, "all of it, each second")][..],
        ),
        (
            "nats",
            Kind::Nats,
            (options.nats.as_ref().map(PathBuf::from))
                .or_else(|| program("nats-server", &[]))
                .ok_or(
                    "not installed (go install github.com/nats-io/nats-server/v2@latest, \
                     then --nats FILE)",
                ),
            &[
                (Durability::Commit, "sync always"),
                (Durability::Interval, "sync each 2 min"),
            ][..],
        ),
        (
            "rabbitmq",
            Kind::RabbitMq,
            program(
                "rabbitmq-server",
                &["/usr/lib/rabbitmq/bin/rabbitmq-server"],
            )
            .ok_or("not installed (Debian: apt-get install rabbitmq-server)"),
            &[(Durability::Commit, "classic queues, confirms")][..],
        ),
        (
            "artemis",
            Kind::Artemis,
            (options
                .artemis
                .as_ref()
                .map(|folder| folder.join("bin/artemis")))
            .ok_or(
                "no package of Debian; --artemis FOLDER takes the archive of Maven Central \
                 (org.apache.activemq:apache-artemis), unpacked",
            ),
            &[(Durability::Commit, "journal, synced")][..],
        ),
    ];
    for (name, kind, program, settings) in peers {
        match program.and_then(|program| {
            let is_there = program.is_file();
            is_there.then_some(program).ok_or("there is no such file")
        }) {
            Ok(program) => found.extend(settings.iter().map(|&(durability, keeps)| Subject {
                name,
                durability,
                keeps,
                kind,
                program: program.clone(),
            })),
            Err(why) => missing.push(format!("{name}: {why}")),
        }
    }
    found.retain(|subject| options.wants(subject.name));
    (found, missing)
}

/// A program by one of these paths, or by its name on the search path. Paths come first: a package may
/// put a wrapper on the search path that only its own user may call.
fn program(name: &str, paths: &[&str]) -> Option<PathBuf> {
    let by_path = paths.iter().map(PathBuf::from).find(|path| path.is_file());
    by_path.or_else(|| {
        let folders = std::env::var_os("PATH").filter(|_| on_path(name))?;
        std::env::split_paths(&folders)
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
    })
}

impl Subject {
    pub(super) fn is_sterna(&self) -> bool {
        self.kind == Kind::Sterna
    }

    /// Starts it on one core, with its data in `folder`, and waits until it listens.
    pub(super) fn start(&self, folder: &Path, place: Place) -> Result<Running, Failure> {
        fs::create_dir_all(folder)?;
        match self.kind {
            Kind::Sterna => self.start_sterna(folder, place, ""),
            Kind::Mosquitto => self.start_mosquitto(folder, place),
            Kind::Nats => self.start_nats(folder, place),
            Kind::RabbitMq => self.start_rabbitmq(folder, place),
            Kind::Artemis => self.start_artemis(folder, place),
        }
    }

    /// Starts Sterna without memory for pages of its records' file.
    pub(super) fn start_uncached(&self, folder: &Path, place: Place) -> Result<Running, Failure> {
        self.start_sterna(folder, place, "records_cache_bytes = 0\n")
    }

    /// Has Sterna, which does not run, bring all records into their file.
    pub(super) fn compact(&self, folder: &Path) -> Result<(), Failure> {
        let mut command = Command::new(&self.program);
        command
            .args(["store", "compact", "--data-dir"])
            .arg(folder.join("data"));
        crate::command::output(&mut command)?;
        Ok(())
    }

    fn start_sterna(
        &self,
        folder: &Path,
        place: Place,
        store_settings: &str,
    ) -> Result<Running, Failure> {
        let ready_file = folder.join("ready.json");
        if ready_file.exists() {
            fs::remove_file(&ready_file)?;
        }
        let durability = match self.durability {
            Durability::Commit => "commit",
            Durability::Interval => "interval",
            Durability::Memory => "memory",
        };
        let file = folder.join("sterna.toml");
        let configuration = format!(
            "[store]\ndurability = \"{durability}\"\n{store_settings}\n\
             [broker]\nmaximum_sessions = 20000000\nmaximum_queued_messages = {MOST_QUEUED}\n"
        );
        write(&file, &configuration)?;
        let mut command = place.command(&self.program);
        command.args(["serve", "--shards", "1", "--listen", "mqtt://127.0.0.1:0"]);
        command.arg("--config").arg(&file);
        command.arg("--data-dir").arg(folder.join("data"));
        command.arg("--ready-file").arg(&ready_file);
        let log = folder.join("broker.log");
        let begin = Instant::now();
        let mut child = spawn(command, &log)?;
        let ready: Value = wait_for(&mut child, &log, PATIENCE, || {
            let text = fs::read_to_string(&ready_file).ok()?;
            serde_json::from_str(&text).ok()
        })?;
        let url = ready["listeners"][0]["url"].as_str().unwrap_or_default();
        Ok(Running::new(child, url.to_owned(), begin))
    }

    fn start_mosquitto(&self, folder: &Path, place: Place) -> Result<Running, Failure> {
        let [port] = free_ports()?;
        let own_user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
        let configuration = format!(
            "persistence true\npersistence_location {}/\nautosave_interval 1\n\
             allow_anonymous true\nset_tcp_nodelay true\nuser {own_user}\nlog_type error\n\
             max_queued_messages 0\nmax_inflight_messages 0\nlistener {port} 127.0.0.1\n",
            folder.display()
        );
        let file = folder.join("mosquitto.conf");
        write(&file, &configuration)?;
        let mut command = place.command(&self.program);
        command.arg("-c").arg(&file);
        listening(command, folder, port)
    }

    fn start_nats(&self, folder: &Path, place: Place) -> Result<Running, Failure> {
        let [port, mqtt] = free_ports()?;
        let sync = match self.durability {
            Durability::Commit => "always",
            Durability::Interval | Durability::Memory => "\"2m\"",
        };
        let configuration = format!(
            "server_name: bench\nhost: 127.0.0.1\nport: {port}\n\
             jetstream {{ store_dir: \"{}\", max_file_store: 8GB, sync_interval: {sync} }}\n\
             mqtt {{ host: 127.0.0.1, port: {mqtt}, max_ack_pending: 10000 }}\n",
            folder.join("data").display()
        );
        let file = folder.join("nats.conf");
        write(&file, &configuration)?;
        let mut command = place.command(&self.program);
        command.arg("-c").arg(&file);
        listening(command, folder, mqtt)
    }

    fn start_rabbitmq(&self, folder: &Path, place: Place) -> Result<Running, Failure> {
        let [mqtt, distribution, mapper] = free_ports()?;
        let configuration = format!(
            "listeners.tcp = none\nmqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}\n\
             mqtt.allow_anonymous = true\nmqtt.default_user = guest\nmqtt.default_pass = guest\n\
             mqtt.prefetch = 10000\ndisk_free_limit.absolute = 50MB\n"
        );
        write(&folder.join("rabbitmq.conf"), &configuration)?;
        write(&folder.join("enabled_plugins"), "[rabbitmq_mqtt].\n")?;
        let pid_file = folder.join("rabbitmq.pid");
        if pid_file.exists() {
            fs::remove_file(&pid_file)?;
        }
        let mut command = place.command(&self.program);
        command
            .env("HOME", folder)
            .env("RABBITMQ_NODENAME", format!("bench-{mqtt}@localhost"))
            .env("RABBITMQ_MNESIA_BASE", folder.join("data"))
            .env("RABBITMQ_LOG_BASE", folder.join("log"))
            .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"))
            .env(
                "RABBITMQ_ENABLED_PLUGINS_FILE",
                folder.join("enabled_plugins"),
            )
            .env("RABBITMQ_PID_FILE", &pid_file)
            .env("RABBITMQ_DIST_PORT", distribution.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_EPMD_PORT", mapper.to_string());
        let mut running = listening(command, folder, mqtt)?;
        // The script stays the parent of Erlang's machine, which writes its own number.
        running.mapper = Some(mapper);
        let pid = fs::read_to_string(&pid_file)?;
        running.pid = (pid.trim().parse())
            .map_err(|_| Failure(format!("rabbitmq: not a process: {}", pid.trim())))?;
        Ok(running)
    }

    fn start_artemis(&self, folder: &Path, place: Place) -> Result<Running, Failure> {
        let [port] = free_ports()?;
        let instance = folder.join("instance");
        if !instance.exists() {
            let mut create = Command::new(&self.program);
            create.arg("create").arg(&instance);
            create.args([
                "--user",
                "bench",
                "--password",
                "bench",
                "--allow-anonymous",
            ]);
            create.args([
                "--silent",
                "--no-web",
                "--no-amqp-acceptor",
                "--no-hornetq-acceptor",
            ]);
            create.args([
                "--no-stomp-acceptor",
                "--no-mqtt-acceptor",
                "--default-port",
            ]);
            create.args([&port.to_string(), "--host", "127.0.0.1"]);
            crate::command::output(&mut create)?;
        }
        let file = instance.join("etc/broker.xml");
        let text = crate::workspace::read(&file)?;
        write(&file, &with_port(&text, port))?;
        let mut command = place.command(&instance.join("bin/artemis"));
        command.arg("run");
        // The script replaces itself by the machine.
        listening(command, folder, port)
    }
}

/// The configuration of Artemis with another port in its one acceptor.
fn with_port(text: &str, port: u16) -> String {
    const BEFORE: &str = "tcp://127.0.0.1:";
    let Some((head, tail)) = text.split_once(BEFORE) else {
        return text.to_owned();
    };
    let tail = tail.trim_start_matches(|digit: char| digit.is_ascii_digit());
    format!("{head}{BEFORE}{port}{tail}")
}

/// Starts a broker that listens on this port.
fn listening(command: Command, folder: &Path, port: u16) -> Result<Running, Failure> {
    let log = folder.join("broker.log");
    let begin = Instant::now();
    let mut child = spawn(command, &log)?;
    wait_for(&mut child, &log, PATIENCE, || {
        TcpStream::connect(("127.0.0.1", port)).ok()
    })?;
    Ok(Running::new(
        child,
        format!("mqtt://127.0.0.1:{port}"),
        begin,
    ))
}

/// A broker that listens. It ends with this value.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    /// The process that does the work.
    pub(super) pid: u32,
    pub(super) url: String,
    /// From its start until it listened.
    pub(super) ready: Duration,
    /// Port of Erlang's port mapper, which outlives what has started it.
    mapper: Option<u16>,
}

impl Running {
    fn new(child: Child, url: String, begin: Instant) -> Self {
        Self {
            pid: child.id(),
            child,
            url,
            ready: begin.elapsed(),
            mapper: None,
        }
    }

    /// Asks it to end, and waits for it; returns how long it took.
    pub(super) fn stop(mut self) -> Result<Duration, Failure> {
        let begin = Instant::now();
        let mut command = Command::new("kill");
        command.args(["-TERM", &self.pid.to_string()]);
        crate::command::output(&mut command)?;
        while self.child.try_wait()?.is_none() {
            if begin.elapsed() > END_PATIENCE {
                let limit = END_PATIENCE.as_secs();
                return Err(Failure(format!("the broker has not ended in {limit} s")));
            }
            std::thread::sleep(POLL);
        }
        Ok(begin.elapsed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Where it has ended already, there is nothing to do.
        if matches!(self.child.try_wait(), Ok(None)) {
            kill_tree(self.child.id());
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        if let Some(port) = self.mapper {
            // It ends when it has seen that its node is gone.
            for _ in 0..50 {
                let mut command = Command::new("epmd");
                command.env("ERL_EPMD_ADDRESS", "127.0.0.1");
                let answer = command.args(["-port", &port.to_string(), "-kill"]).output();
                let is_refused = answer.is_ok_and(|answer| {
                    let said = [answer.stdout, answer.stderr].concat();
                    String::from_utf8_lossy(&said).contains("not allowed")
                });
                if !is_refused {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_not_here_is_named_with_the_reason() {
        let arguments = ["--nats", "/nowhere/nats-server"].map(str::to_owned);
        let options = Options::parse(&arguments).unwrap();
        let (found, missing) = subjects(&options, Path::new("sterna"));
        assert_eq!(found.iter().filter(|one| one.is_sterna()).count(), 3);
        assert!(found.iter().all(|one| one.name != "nats"));
        assert!(missing.contains(&"nats: there is no such file".to_owned()));
        assert!(
            missing
                .iter()
                .any(|line| line.starts_with("artemis: no package"))
        );
    }

    #[test]
    fn the_port_of_artemis_is_replaced() {
        assert_eq!(
            with_port("<acceptor>tcp://127.0.0.1:61616?a=1</acceptor>", 9),
            "<acceptor>tcp://127.0.0.1:9?a=1</acceptor>"
        );
        assert_eq!(with_port("nothing", 9), "nothing");
    }
}
