//! Events of a device's QUIC over the time, from its qlog.
//!
//! A device of a watched workload writes a qlog of each of its connections (`docs/lab.md`). The
//! files stay with the results, as the source of the figures.

use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::sample::Sample;
use crate::campaign::Run;

/// The folder of a campaign's traces, within its results.
pub(super) const FOLDER: &str = "qlog";
/// Start of each record of a JSON text sequence (RFC 7464, section 2.2).
const RECORD_START: char = '\x1e';

/// A moment of a connection. Bytes are those of QUIC packets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moment {
    /// Since the device's trace began, in milliseconds.
    pub(super) at_ms: f64,
    /// The congestion window.
    pub(super) window_bytes: u64,
    /// Of packets that ask for an acknowledgement: neither acknowledged nor taken for lost.
    pub(super) in_flight_bytes: u64,
    /// Sent so far, acknowledgements and repeated content included.
    pub(super) sent_bytes: u64,
    /// Acknowledged so far.
    pub(super) acknowledged_bytes: u64,
    /// Taken for lost so far.
    pub(super) lost_bytes: u64,
    /// The smoothed round trip, in milliseconds; the assumed one before the first.
    pub(super) rtt_ms: f64,
}

/// A run's traces, which may not be there.
#[derive(Debug)]
pub(super) struct Traces {
    folder: PathBuf,
    name: String,
}

impl Traces {
    /// Those of a run, below this folder.
    pub(super) fn of(folder: &Path, run: &Run) -> Self {
        let in_names = |character: char| {
            if character.is_ascii_alphanumeric() || "-.".contains(character) {
                character
            } else {
                '_'
            }
        };
        // The repetition, which follows the last `#`, is told from the cell by a dash.
        let name = run.key().replace('#', "-").chars().map(in_names).collect();
        Self {
            folder: folder.to_owned(),
            name,
        }
    }

    /// Where the device is to write them.
    pub(super) fn place(&self) -> (PathBuf, String) {
        (self.folder.clone(), self.name.clone())
    }

    fn file(&self, connection: u32) -> PathBuf {
        self.folder
            .join(format!("{}-{connection}.sqlog", self.name))
    }

    /// Removes the files of an earlier attempt.
    pub(super) fn clear(&self) -> io::Result<()> {
        for connection in 0.. {
            match fs::remove_file(self.file(connection)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Values of all connections, one after the other, at most once every `every_ns`; empty for
    /// transports without a trace.
    pub(super) fn read(&self, every_ns: u64) -> Result<Vec<Moment>, String> {
        let mut moments = Vec::new();
        for connection in 0.. {
            let path = self.file(connection);
            let file = match fs::File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(format!("{}: {error}", path.display())),
            };
            let all = follow(BufReader::new(file))
                .map_err(|error| format!("{}: {error}", path.display()))?;
            thin(&all, every_ns as f64 / 1e6, &mut moments);
        }
        Ok(moments)
    }
}

/// The last moment of each interval.
fn thin(all: &[Moment], every_ms: f64, moments: &mut Vec<Moment>) {
    let interval = |moment: &Moment| (moment.at_ms / every_ms).floor();
    for (index, moment) in all.iter().enumerate() {
        let next = all.get(index + 1);
        #[allow(clippy::float_cmp, reason = "whole numbers")]
        if next.is_none_or(|next| interval(next) != interval(moment)) {
            moments.push(*moment);
        }
    }
}

/// An event, as far as it matters here.
#[derive(Deserialize)]
struct Event {
    /// Milliseconds since the trace began.
    time: f64,
    name: String,
    data: Data,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    header: Header,
    congestion_window: Option<u64>,
    bytes_in_flight: Option<u64>,
    /// In seconds, as the library writes it; the draft has milliseconds.
    smoothed_rtt: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Header {
    length: Option<u64>,
}

/// Reads a trace event by event.
///
/// The library reports sent and lost packets, and bytes in flight at each change. Bytes that are no
/// longer in flight and were not lost were acknowledged, or are no longer waited for. Examples are an
/// unanswered probe for a larger MTU, packets of the handshake, and packets before a change of address.
fn follow(trace: impl io::BufRead) -> Result<Vec<Moment>, String> {
    let mut moments = Vec::new();
    let mut now = Moment::default();
    let mut lost_bytes = 0;
    // The first record describes the trace.
    for (number, line) in trace.lines().enumerate().skip(1) {
        let line = line.map_err(|error| error.to_string())?;
        let event: Event = serde_json::from_str(line.trim_start_matches(RECORD_START))
            .map_err(|error| format!("record {}: {error}", number + 1))?;
        now.at_ms = event.time;
        let length = event.data.header.length.unwrap_or(0);
        match event.name.as_str() {
            "transport:packet_sent" => now.sent_bytes += length,
            "recovery:packet_lost" => {
                now.lost_bytes += length;
                lost_bytes += length;
            }
            "recovery:metrics_updated" => {
                if let Some(in_flight_bytes) = event.data.bytes_in_flight {
                    let gone = now.in_flight_bytes.saturating_sub(in_flight_bytes);
                    now.acknowledged_bytes += gone.saturating_sub(lost_bytes);
                    lost_bytes = 0;
                    now.in_flight_bytes = in_flight_bytes;
                }
                if let Some(window_bytes) = event.data.congestion_window {
                    now.window_bytes = window_bytes;
                }
                if let Some(rtt_s) = event.data.smoothed_rtt {
                    now.rtt_ms = rtt_s * 1e3;
                }
            }
            _ => continue,
        }
        moments.push(now);
    }
    Ok(moments)
}

/// Puts the series of a congestion plot into a sample. `first_ns` and `epoch_ns` are when the work and the
/// trace began.
pub(super) fn describe(moments: &[Moment], first_ns: u64, epoch_ns: u64, sample: &mut Sample) {
    if moments.is_empty() {
        return;
    }
    let ahead_ms = (epoch_ns as i64 - first_ns as i64) as f64 / 1e6;
    // Whole microseconds are more than a machine is exact to.
    let round = |ms: f64| (ms * 1e3).round() / 1e3;
    let mut put = |name: &str, of: &dyn Fn(&Moment) -> f64| {
        let values = moments.iter().map(of).collect();
        sample.series.insert(name.to_owned(), values);
    };
    put("flow_at_ms", &|moment| round(moment.at_ms + ahead_ms));
    put("flow_window_bytes", &|moment| moment.window_bytes as f64);
    put("flow_in_flight_bytes", &|moment| {
        moment.in_flight_bytes as f64
    });
    put("flow_sent_bytes", &|moment| moment.sent_bytes as f64);
    put("flow_acknowledged_bytes", &|moment| {
        moment.acknowledged_bytes as f64
    });
    put("flow_lost_bytes", &|moment| moment.lost_bytes as f64);
    put("flow_rtt_ms", &|moment| round(moment.rtt_ms));
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = concat!(
        "\x1e{\"qlog_version\":\"0.3\",\"qlog_format\":\"JSON-SEQ\"}\n",
        "\x1e{\"time\":1.0,\"name\":\"transport:packet_sent\",\"data\":{\"header\":{\"packet_type\":\"initial\",\"length\":1200}}}\n",
        "\x1e{\"time\":1.0,\"name\":\"recovery:metrics_updated\",\"data\":{\"smoothed_rtt\":0.333,\"bytes_in_flight\":1200,\"congestion_window\":12000}}\n",
        "\x1e{\"time\":2.0,\"name\":\"transport:packet_sent\",\"data\":{\"header\":{\"packet_type\":\"1RTT\",\"length\":40}}}\n",
        "\x1e{\"time\":3.0,\"name\":\"transport:packet_sent\",\"data\":{\"header\":{\"length\":800}}}\n",
        "\x1e{\"time\":3.0,\"name\":\"recovery:metrics_updated\",\"data\":{\"bytes_in_flight\":2000}}\n",
        "\x1e{\"time\":9.0,\"name\":\"transport:packet_received\",\"data\":{\"header\":{}}}\n",
        "\x1e{\"time\":9.5,\"name\":\"recovery:packet_lost\",\"data\":{\"header\":{\"length\":1200}}}\n",
        "\x1e{\"time\":9.5,\"name\":\"recovery:metrics_updated\",\"data\":{\"bytes_in_flight\":0,\"congestion_window\":6000}}\n",
    );

    #[test]
    fn a_trace_tells_what_became_of_bytes() {
        let moments = follow(TRACE.as_bytes()).unwrap();
        // Only received packets give no moment.
        assert_eq!(moments.len(), 7);
        let last = Moment {
            at_ms: 9.5,
            window_bytes: 6_000,
            in_flight_bytes: 0,
            sent_bytes: 2_040,
            acknowledged_bytes: 800,
            lost_bytes: 1_200,
            rtt_ms: 333.0,
        };
        assert_eq!(moments.last(), Some(&last));
        let mut few = Vec::new();
        thin(&moments, 5.0, &mut few);
        assert_eq!(few.len(), 2);
        assert_eq!((few[0].at_ms, few[0].in_flight_bytes), (3.0, 2_000));
        assert_eq!(few[1], last);
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let error = follow(&b"{}\n\x1e{\"time\":\n"[..]).unwrap_err();
        assert!(error.starts_with("record 2: "), "{error}");
    }
}
