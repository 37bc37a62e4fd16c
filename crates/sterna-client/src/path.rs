//! Statistics of a QUIC connection's path.

use std::net::SocketAddr;
use std::time::Duration;

use sterna_quic::CongestionControl;

use crate::transport::quic::EarlyData;

/// State and counters of a QUIC connection, for this end's direction of sending unless said
/// otherwise. From [`Client::path`](crate::Client::path).
///
/// The library doesn't tell how often a probe timeout fired.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStatistics {
    /// The server's address.
    pub peer: SocketAddr,
    /// Smoothed round trip (RFC 9002 section 5.3).
    pub rtt: Duration,
    /// Shortest round trip on this path.
    pub min_rtt: Duration,
    /// Mean variation of the round trip; zero before the first sample.
    pub rtt_variation: Duration,
    /// Congestion control; `None` if it is not one of the library's own controllers.
    pub congestion_control: Option<CongestionControl>,
    /// Congestion window, in bytes.
    pub congestion_window_bytes: u64,
    /// Number of reductions of the window.
    pub congestion_events: u64,
    /// QUIC packets sent.
    pub packets_sent: u64,
    /// Number of sent packets that count as lost.
    pub packets_lost: u64,
    /// Bytes of lost packets.
    pub bytes_lost: u64,
    /// Largest UDP payload that the path is known to carry, in bytes.
    pub mtu_bytes: u16,
    /// UDP datagrams sent.
    pub datagrams_sent: u64,
    /// UDP datagrams received.
    pub datagrams_received: u64,
    /// Payload of the sent datagrams in bytes, without headers of UDP and IP.
    pub wire_bytes_sent: u64,
    /// Payload of the received datagrams in bytes, without headers of UDP and IP.
    pub wire_bytes_received: u64,
    /// MQTT packets handed to the transport, in bytes.
    pub packet_bytes_sent: u64,
    /// MQTT packets received, in bytes.
    pub packet_bytes_received: u64,
    /// Verdict on the early data.
    pub early_data: EarlyData,
    /// Number of migrations of this end.
    pub migrations: u64,
    /// Streams that were opened, the first included.
    pub streams: u64,
    /// Messages that travelled in a QUIC datagram of their own, both ways.
    pub datagram_messages: u64,
}

impl PathStatistics {
    /// Writes the statistics as one JSON object, with times in microseconds.
    #[must_use]
    pub fn to_json(&self) -> String {
        let early_data = match self.early_data {
            EarlyData::NotTried => "not tried",
            EarlyData::Pending => "pending",
            EarlyData::Accepted => "accepted",
            EarlyData::Rejected => "rejected",
        };
        format!(
            "{{\"peer\":\"{}\",\"rtt_us\":{},\"min_rtt_us\":{},\"rtt_variation_us\":{},\
             \"congestion_window_bytes\":{},\"congestion_events\":{},\"packets_sent\":{},\
             \"packets_lost\":{},\"bytes_lost\":{},\"mtu_bytes\":{},\"datagrams_sent\":{},\
             \"datagrams_received\":{},\"wire_bytes_sent\":{},\"wire_bytes_received\":{},\
             \"packet_bytes_sent\":{},\"packet_bytes_received\":{},\"early_data\":\"{early_data}\",\
             \"migrations\":{},\"streams\":{},\"datagram_messages\":{}}}",
            self.peer,
            self.rtt.as_micros(),
            self.min_rtt.as_micros(),
            self.rtt_variation.as_micros(),
            self.congestion_window_bytes,
            self.congestion_events,
            self.packets_sent,
            self.packets_lost,
            self.bytes_lost,
            self.mtu_bytes,
            self.datagrams_sent,
            self.datagrams_received,
            self.wire_bytes_sent,
            self.wire_bytes_received,
            self.packet_bytes_sent,
            self.packet_bytes_received,
            self.migrations,
            self.streams,
            self.datagram_messages,
        )
    }
}
