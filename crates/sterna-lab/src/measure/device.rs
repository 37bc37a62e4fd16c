//! Messages between the lab and a device.
//!
//! A device is a process of the measuring program: `sterna-lab device`. It gets its task as one
//! line of JSON on standard input, and answers with lines of JSON on standard output. It prints
//! `ready` when it is set up, and waits for the word `go`. It prints `finished` after its part, and
//! waits for the end of its input. Then it prints its `result`. Any error is a line `failed`. Any
//! other program with this protocol can be measured in its place.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::process::Process;

/// Shortest message. It starts with its number (4 bytes) and the moment when it was handed over
/// (8 bytes, nanoseconds of the monotonic clock). Both have the most significant byte first.
pub const MIN_PAYLOAD_BYTES: u32 = 12;

/// Role of a device.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Publishes a message every interval.
    Publisher,
    /// Notes when messages arrive.
    Subscriber,
    /// Publishes and waits for the message to come back.
    StopAndWait,
    /// Connects, publishes and disconnects.
    ConnectPublish,
    /// Connects, takes messages from a queue and disconnects.
    ConnectReceive,
    /// All connections at once, each with messages of its own. Says `finished` after each phase.
    Fleet,
}

/// A device's authentication.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Credentials {
    /// Not at all.
    #[default]
    None,
    /// In CONNECT, by SASL PLAIN, or by Basic.
    Password {
        /// User name.
        user: String,
        /// Password.
        password: String,
        /// In HTTP: with the first request of a connection only.
        once: bool,
    },
    /// By a certificate; in AMQP by SASL EXTERNAL as well.
    Certificate {
        /// The file that it is in.
        certificate: PathBuf,
        /// The file with its key.
        key: PathBuf,
    },
}

/// A device's task.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Task {
    /// Its role.
    pub role: Role,
    /// Where the broker is.
    pub url: String,
    /// The name that its certificate has.
    pub server_name: String,
    /// The issuer of its certificate; the system's authorities without one.
    pub authority: Option<PathBuf>,
    /// Its credentials.
    #[serde(default)]
    pub credentials: Credentials,
    /// The only version of TLS, `1.2` or `1.3`.
    pub tls: Option<String>,
    /// Whether to make use of tickets.
    pub resumption: bool,
    /// Whether to write before the handshake is complete.
    pub early_data: bool,
    /// Whether TCP connects by Fast Open where it has a cookie.
    #[serde(default)]
    pub fast_open: bool,
    /// Distribution of messages over QUIC's streams.
    pub streams: Option<String>,
    /// Whether messages travel in datagrams.
    pub datagrams: bool,
    /// Whether a client says everything up to its first message without waiting for answers (AMQP).
    pub pipelined: bool,
    /// The queue that messages go to and come from, instead of topics (AMQP).
    pub queue: Option<String>,
    /// Settings of QUIC by their names.
    pub quic: BTreeMap<String, String>,
    /// Quality of service.
    pub qos: u8,
    /// Length of messages, at least [`MIN_PAYLOAD_BYTES`].
    pub payload_bytes: u32,
    /// Messages of a connection; for a subscriber, all that are expected.
    pub messages: u32,
    /// Connections, one after another; of a fleet, at once.
    pub connections: u32,
    /// Topics, in turn.
    pub topics: u32,
    /// Time between messages.
    pub interval_ns: u64,
    /// Without an interval: time from the known outcome of a message to the next message.
    #[serde(default)]
    pub pause_ns: u64,
    /// Time that a connection stays after its last message, for acknowledgements on their way.
    #[serde(default)]
    pub linger_ns: u64,
    /// Of a fleet: time over which the first calls are spread.
    #[serde(default)]
    pub spread_ns: u64,
    /// After which a silent device sends a sign of life, in seconds; its library's default without one.
    #[serde(default)]
    pub keep_alive_s: Option<u16>,
    /// Whether a message waits for CONNACK.
    pub wait_connack: bool,
    /// Place for a qlog of each QUIC connection: the folder, and the NAME before the connection's
    /// number in `NAME-NUMBER.sqlog`.
    pub qlog: Option<(PathBuf, String)>,
    /// After which it gives up.
    pub time_limit_ms: u64,
}

/// A device's message.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Word {
    /// It is set up.
    Ready,
    /// It has done its part.
    Finished,
    /// It cannot go on.
    Failed {
        /// Why.
        reason: String,
    },
    /// Its measurements.
    Result(Box<Measured>),
}

/// A device's measurements. Moments are nanoseconds of the monotonic clock.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Measured {
    /// For each connection: from the first call to CONNACK, in nanoseconds.
    pub connect_ns: Vec<u64>,
    /// For each connection: from the first call to the hand-over of its first message.
    pub sent_after_ns: Vec<u64>,
    /// For each connection: when the first call was made.
    pub started_ns: Vec<u64>,
    /// Fate of each connection's early data: `accepted`, `rejected`, `not tried`.
    pub early_data: Vec<String>,
    /// Round trips of messages through the broker, in nanoseconds.
    pub round_trip_ns: Vec<u64>,
    /// Messages that arrived: number, when handed over, when they arrived.
    pub arrivals: Vec<(u32, u64, u64)>,
    /// When the first message was handed over.
    pub first_ns: u64,
    /// When the work was done.
    pub last_ns: u64,
    /// Lateness of handing over messages, in nanoseconds: 99 % were not later.
    pub late_p99_ns: u64,
    /// The latest.
    pub late_max_ns: u64,
    /// CPU time of the process while it worked, in nanoseconds.
    pub cpu_ns: u64,
    /// Most memory that it ever had, in bytes.
    pub peak_rss_bytes: u64,
    /// Bytes that it allocated while it worked, freed or not; none of a program that does not count.
    pub allocated_bytes: Option<u64>,
    /// Number of allocations.
    pub allocations: Option<u64>,
    /// The most that it allocated at once.
    pub largest_allocation_bytes: Option<u64>,
    /// Whether it ran with real-time priority.
    pub is_real_time: bool,
    /// Number of reconnections.
    pub reconnections: u32,
    /// Of a fleet: when each device was connected again after the broker had been away.
    pub reconnected_ns: Vec<u64>,
    /// QUIC: packets counted as lost, whose content was sent again.
    pub packets_lost: Option<u64>,
    /// QUIC: its smoothed round trip, in nanoseconds.
    pub rtt_ns: Option<u64>,
    /// QUIC: streams that were opened.
    pub streams: Option<u64>,
    /// QUIC: messages that travelled in datagrams.
    pub datagram_messages: Option<u64>,
    /// QUIC: number of moves of this end.
    pub migrations: Option<u64>,
    /// QUIC: bytes and packets of the last connection, in both directions, up to its end.
    pub wire: Option<Wire>,
    /// When the time of its qlog began.
    pub qlog_epoch_ns: u64,
    /// TCP: the kernel's smoothed round trip, in nanoseconds.
    pub tcp_rtt_ns: Option<u64>,
    /// TCP: after which the kernel sends again what is not acknowledged, in nanoseconds.
    pub tcp_rto_ns: Option<u64>,
    /// The congestion control of the last connection: of TCP as its socket tells, of QUIC as its
    /// controller does.
    pub congestion: Option<String>,
}

/// A gateway's report of its connections at the end.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct EarlyConnections {
    /// Connections.
    pub all: u32,
    /// Those whose early data was taken.
    pub early: u32,
}

/// Datagrams of QUIC, and their payload without headers of UDP and IP.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Wire {
    /// Datagrams that were sent.
    pub packets_up: u64,
    /// Datagrams that were received.
    pub packets_down: u64,
    /// Bytes that were sent.
    pub bytes_up: u64,
    /// Bytes that were received.
    pub bytes_down: u64,
}

/// Runs a device by itself: gives the program its task, and returns its result.
///
/// # Errors
///
/// If the program cannot be started, does not keep to the protocol, or says that it failed.
pub fn run_alone(program: &Path, task: &Task) -> Result<Measured, String> {
    let stop = AtomicBool::new(false);
    let deadline = Instant::now() + Duration::from_millis(task.time_limit_ms);
    let mut process = Process::start("device", Command::new(program).arg("device"))
        .map_err(|error| format!("cannot start a device: {error}"))?;
    process.say(&serde_json::to_string(task).map_err(|error| error.to_string())?)?;
    loop {
        match process.word(deadline, &stop)? {
            Word::Ready => process.say("go")?,
            Word::Finished => process.close(),
            Word::Failed { reason } => return Err(reason),
            Word::Result(measured) => {
                process.wait();
                return Ok(*measured);
            }
        }
    }
}

/// Puts number and time at the start of a message.
pub fn stamp(payload: &mut [u8], number: u32, at_ns: u64) {
    if let Some(head) = payload.first_chunk_mut::<{ MIN_PAYLOAD_BYTES as usize }>() {
        head[..4].copy_from_slice(&number.to_be_bytes());
        head[4..].copy_from_slice(&at_ns.to_be_bytes());
    }
}

/// Number and time of a message.
#[must_use]
pub fn read_stamp(payload: &[u8]) -> Option<(u32, u64)> {
    let (number, rest) = payload.split_first_chunk::<4>()?;
    let at_ns = rest.first_chunk::<8>()?;
    Some((u32::from_be_bytes(*number), u64::from_be_bytes(*at_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read_as_written() {
        let mut payload = [0xaa; 14];
        stamp(&mut payload, 7, 1 << 40);
        assert_eq!(read_stamp(&payload), Some((7, 1 << 40)));
        assert_eq!(payload[12..], [0xaa; 2]);
        assert_eq!(read_stamp(&payload[..11]), None);
        let mut short = [1; 11];
        stamp(&mut short, 7, 1);
        assert_eq!(short, [1; 11]);
    }

    #[test]
    fn words_are_lines_of_json() {
        let text = serde_json::to_string(&Word::Failed {
            reason: "no broker".into(),
        })
        .unwrap();
        assert_eq!(text, r#"{"event":"failed","reason":"no broker"}"#);
        let word: Word = serde_json::from_str(r#"{"event":"result","cpu_ns":5}"#).unwrap();
        assert!(matches!(word, Word::Result(measured) if measured.cpu_ns == 5));
    }
}
