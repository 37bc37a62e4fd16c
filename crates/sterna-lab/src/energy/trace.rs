//! A time line of packets from a capture of the lab's own ([`crate::capture`]).

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use super::radio::RadioPacket;
use crate::capture::read_packets;

/// Largest capture that is read, in bytes.
const MAX_CAPTURE_BYTES: u64 = 1 << 30;

/// The packets of a client's capture. Those that the link dropped are on the client's air too.
///
/// # Errors
///
/// If the file cannot be read or isn't a capture of the lab.
pub fn read(path: &Path) -> io::Result<Vec<RadioPacket>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_CAPTURE_BYTES)
        .read_to_end(&mut bytes)?;
    let packets = read_packets(&bytes)?;
    let Some(first) = packets.first() else {
        return Ok(Vec::new());
    };
    let start_ns = first.at_ns;
    Ok(packets
        .iter()
        .map(|packet| RadioPacket {
            at_s: packet.at_ns.saturating_sub(start_ns) as f64 / 1e9,
            bytes: packet.length_bytes,
            is_sent: packet.is_outbound,
        })
        .collect())
}
