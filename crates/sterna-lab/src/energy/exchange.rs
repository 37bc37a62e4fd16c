//! Exchanges in a time line of packets, and the cost of each in a period that nobody waits for.
//!
//! A device that sends a message every hour costs the same in each of them. So the packets of one
//! exchange are enough, and a run with short pauses has them.

use super::period;
use super::radio::{Conditions, Radio, RadioPacket};

/// A packet, and which connection of the client it is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowPacket {
    /// The packet.
    pub packet: RadioPacket,
    /// The client's port.
    pub port: u16,
}

const IPV4: u8 = 4;
const IPV6_HEADER_BYTES: usize = 40;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ICMP_HEADER_BYTES: usize = 8;

impl FlowPacket {
    /// The client's port in an IP packet with TCP or UDP. An ICMP message has the port of the packet
    /// that it answers, which went the other way. 0 where there is none.
    #[must_use]
    pub fn client_port(packet: &[u8], is_sent: bool) -> u16 {
        let first = packet.first().copied().unwrap_or(0);
        let (header_bytes, protocol) = if first >> 4 == IPV4 {
            (usize::from(first & 0x0f) * 4, packet.get(9))
        } else {
            (IPV6_HEADER_BYTES, packet.get(6))
        };
        if matches!(protocol, Some(&(ICMP | ICMPV6))) {
            let answered = packet.get(header_bytes + ICMP_HEADER_BYTES..);
            return Self::client_port(answered.unwrap_or_default(), !is_sent);
        }
        let at = header_bytes + if is_sent { 0 } else { 2 };
        let port = packet.get(at..).and_then(|rest| rest.first_chunk::<2>());
        port.map_or(0, |port| u16::from_be_bytes(*port))
    }
}

/// The packets of each connection, in the order of their first packets. The time of each begins with
/// it.
#[must_use]
pub fn by_connection(packets: &[FlowPacket]) -> Vec<Vec<RadioPacket>> {
    let mut ports: Vec<u16> = Vec::new();
    let mut exchanges: Vec<Vec<RadioPacket>> = Vec::new();
    for it in packets {
        let place = ports.iter().position(|port| *port == it.port);
        let place = place.unwrap_or_else(|| {
            ports.push(it.port);
            exchanges.push(Vec::new());
            ports.len() - 1
        });
        exchanges[place].push(it.packet);
    }
    exchanges.into_iter().map(from_zero).collect()
}

/// The packets from each of these moments to the next one; those after the last moment are of no
/// exchange. The time of each begins with its first packet.
#[must_use]
pub fn by_time(packets: &[FlowPacket], moments_s: &[f64]) -> Vec<Vec<RadioPacket>> {
    let between = |begin_s: f64, end_s: f64| {
        let all = packets.iter().map(|it| it.packet);
        from_zero(all.filter(|p| (begin_s..end_s).contains(&p.at_s)).collect())
    };
    let pairs = moments_s.windows(2);
    pairs.map(|pair| between(pair[0], pair[1])).collect()
}

fn from_zero(mut packets: Vec<RadioPacket>) -> Vec<RadioPacket> {
    let begin_s = packets.first().map_or(0.0, |first| first.at_s);
    for packet in &mut packets {
        packet.at_s -= begin_s;
    }
    packets
}

/// Energy of the radio in a period with one exchange, in joules: the mean of some exchanges.
///
/// # Errors
///
/// If there is none, one has no packets, or one does not fit into the period.
pub fn mean_j(
    radio: &Radio,
    exchanges: &[Vec<RadioPacket>],
    period_s: f64,
    conditions: &Conditions,
) -> Result<f64, String> {
    let mut sum_j = 0.0;
    for packets in exchanges {
        let last = packets.last().ok_or("an exchange without packets")?;
        if last.at_s >= period_s {
            return Err(format!(
                "an exchange takes {:.1} s, longer than its period of {period_s} s",
                last.at_s
            ));
        }
        sum_j += period(radio, packets, period_s, conditions, 0.0).joules;
    }
    if exchanges.is_empty() {
        return Err("no exchange that could be repeated".into());
    }
    Ok(sum_j / exchanges.len() as f64)
}
