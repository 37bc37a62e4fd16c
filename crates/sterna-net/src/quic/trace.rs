//! The trace of one connection as qlog: version 0.4, one JSON text sequence (RFC 7464).
//!
//! quinn-proto can write qlog itself, but it must be told before a connection exists, when its
//! client is not known yet. It also serialises every packet of each of these connections. This
//! trace is switched at run time, for one connection, and costs the others a null pointer. It has
//! the driver's knowledge: datagrams, not the frames in them.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use quinn_proto::{Connection, StreamId};
use sterna_quic::Meter;

use crate::{CloseReason, PathStatistics, Trace};

/// Left free for the record that says that the trace was cut.
const LAST_RECORD_BYTES: u64 = 128;
/// That record.
const CUT: &str = "\u{1e}{\"time\":0,\"name\":\"sterna:trace_cut\",\"data\":{}}\n";

/// Writes a connection's events.
pub(super) struct Tracer {
    trace: Trace,
    started: Instant,
    record: String,
    last: Recovery,
    lost: (u64, u64),
    over: bool,
}

/// Values for `metrics_updated`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Recovery {
    min_rtt_us: u64,
    smoothed_rtt_us: u64,
    rtt_variance_us: u64,
    congestion_window: u64,
    bytes_in_flight: u32,
    pto_count: u32,
}

impl Tracer {
    /// Begins a trace. `wall_ms` is the time since the Unix epoch; `path` is where the connection's
    /// statistics stand.
    pub(super) fn new(
        trace: Trace,
        now: Instant,
        wall_ms: u64,
        peer: SocketAddr,
        path: &PathStatistics,
    ) -> Box<Self> {
        let mut tracer = Box::new(Self {
            trace,
            started: now,
            record: String::new(),
            last: Recovery::default(),
            lost: (path.lost_packets, path.lost_bytes),
            over: false,
        });
        let title = Text(&tracer.trace.title).to_string();
        let header = format!(
            "{{\"qlog_version\":\"0.4\",\"qlog_format\":\"JSON-SEQ\",\"title\":{title},\
             \"trace\":{{\"vantage_point\":{{\"type\":\"server\"}},\"common_fields\":\
             {{\"time_format\":\"relative\",\"reference_time\":{wall_ms}}}}}}}"
        );
        tracer.write(|record| record.push_str(&header));
        // Earlier counts, so that later counts add up.
        tracer.event(now, "sterna:statistics", |data| {
            let _ = write!(
                data,
                "\"datagrams_received\":{},\"bytes_received\":{},\"datagrams_sent\":{},\
                 \"bytes_sent\":{},\"packets_lost\":{},\"resumed\":{},\"early_data\":\"{:?}\"",
                path.received_datagrams,
                path.received_bytes,
                path.sent_datagrams,
                path.sent_bytes,
                path.lost_packets,
                path.resumed,
                path.early_data
            );
        });
        tracer.path(now, peer);
        tracer
    }

    fn write(&mut self, fill: impl FnOnce(&mut String)) {
        if self.over {
            return;
        }
        self.record.clear();
        self.record.push('\u{1e}');
        fill(&mut self.record);
        self.record.push('\n');
        let length = self.record.len() as u64;
        let left = &mut self.trace.max_bytes;
        if length + LAST_RECORD_BYTES > *left {
            self.over = true;
            if CUT.len() as u64 <= *left {
                self.trace.sink.record(CUT.as_bytes());
            }
            return;
        }
        *left -= length;
        self.trace.sink.record(self.record.as_bytes());
    }

    /// One event; `data` writes the members of its object.
    fn event(&mut self, now: Instant, name: &str, data: impl FnOnce(&mut String)) {
        let since = now.saturating_duration_since(self.started).as_micros();
        self.write(|record| {
            let (ms, us) = (since / 1_000, since % 1_000);
            let _ = write!(
                record,
                "{{\"time\":{ms}.{us:03},\"name\":\"{name}\",\"data\":{{"
            );
            data(record);
            record.push_str("}}");
        });
    }

    /// A datagram arrived.
    pub(super) fn received(&mut self, now: Instant, bytes: usize) {
        self.event(now, "transport:datagrams_received", |data| {
            let _ = write!(data, "\"count\":1,\"raw\":[{{\"length\":{bytes}}}]");
        });
    }

    /// Datagrams leave: `bytes` in all, of `segment_bytes` each but the last.
    pub(super) fn sent(&mut self, now: Instant, bytes: usize, segment_bytes: Option<usize>) {
        let each = segment_bytes.unwrap_or(bytes).max(1);
        self.event(now, "transport:datagrams_sent", |data| {
            let _ = write!(data, "\"count\":{},\"raw\":[", bytes.div_ceil(each));
            for from in (0..bytes).step_by(each) {
                let comma = if from == 0 { "" } else { "," };
                let length = each.min(bytes - from);
                let _ = write!(data, "{comma}{{\"length\":{length}}}");
            }
            data.push(']');
        });
    }

    /// Changes of the path since the last call.
    pub(super) fn metrics(&mut self, now: Instant, quic: &Connection, path: &PathStatistics) {
        let lost = (path.lost_packets, path.lost_bytes);
        if lost != self.lost {
            let (packets, bytes) = (lost.0 - self.lost.0, lost.1 - self.lost.1);
            self.lost = lost;
            self.event(now, "sterna:packets_lost", |data| {
                let _ = write!(data, "\"count\":{packets},\"bytes\":{bytes}");
            });
        }
        let recovery = Recovery {
            min_rtt_us: path.min_rtt_us,
            smoothed_rtt_us: path.rtt_us,
            rtt_variance_us: path.rtt_variance_us,
            congestion_window: path.congestion_window_bytes,
            bytes_in_flight: Meter::of(quic).in_flight_bytes(),
            pto_count: path.probe_timeouts,
        };
        if recovery == self.last {
            return;
        }
        self.last = recovery;
        self.event(now, "recovery:metrics_updated", |data| {
            let ms = |us: u64| us as f64 / 1_000.0;
            let _ = write!(
                data,
                "\"min_rtt\":{},\"smoothed_rtt\":{},\"rtt_variance\":{},\
                 \"congestion_window\":{},\"bytes_in_flight\":{},\"pto_count\":{}",
                ms(recovery.min_rtt_us),
                ms(recovery.smoothed_rtt_us),
                ms(recovery.rtt_variance_us),
                recovery.congestion_window,
                recovery.bytes_in_flight,
                recovery.pto_count
            );
        });
    }

    /// The peer's address, at the start and when it changes.
    pub(super) fn path(&mut self, now: Instant, peer: SocketAddr) {
        let family = match peer.ip().to_canonical() {
            IpAddr::V4(_) => "v4",
            IpAddr::V6(_) => "v6",
        };
        let (ip, port) = (peer.ip().to_canonical(), peer.port());
        self.event(now, "connectivity:path_assigned", |data| {
            let _ = write!(
                data,
                "\"path_id\":\"{ip} {port}\",\"path_remote\":{{\"ip_{family}\":\"{ip}\",\
                 \"port_{family}\":{port}}}"
            );
        });
    }

    /// A stream's state as this side sees it: `open`, `half_closed_remote`, `reset_received`, …
    pub(super) fn stream(&mut self, now: Instant, stream: StreamId, state: &str) {
        let id = u64::from(stream);
        self.event(now, "transport:stream_state_updated", |data| {
            let _ = write!(data, "\"stream_id\":{id},\"new\":\"{state}\"");
        });
    }

    /// The handshake is over.
    pub(super) fn confirmed(&mut self, now: Instant) {
        self.event(now, "connectivity:connection_state_updated", |data| {
            data.push_str("\"new\":\"handshake_confirmed\"");
        });
    }

    /// The end.
    pub(super) fn closed(&mut self, now: Instant, reason: &CloseReason) {
        let (owner, trigger, text) = match reason {
            CloseReason::Local | CloseReason::Shutdown => ("local", "application", String::new()),
            CloseReason::Peer { code } => ("remote", "application", code.to_string()),
            CloseReason::TimedOut => ("local", "idle_timeout", String::new()),
            CloseReason::Failed(why) => ("local", "error", why.clone()),
        };
        self.event(now, "connectivity:connection_closed", |data| {
            let _ = write!(
                data,
                "\"owner\":\"{owner}\",\"trigger\":\"{trigger}\",\"reason\":{}",
                Text(&text)
            );
        });
    }
}

/// A string as JSON writes it.
struct Text<'a>(&'a str);

impl std::fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c < ' ' || c == '\u{7f}' => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
