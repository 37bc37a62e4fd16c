//! Memory of QUIC servers, besides their tickets.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use sterna_quic::SavedPath;

use crate::transport::memory::Memory;

/// Facts about one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// The address that answered.
    pub(crate) address: SocketAddr,
    /// The path to it.
    pub(crate) path: Option<SavedPath>,
}

/// The servers that have answered.
pub(crate) static SERVERS: Memory<Known> = Memory::new();

/// The calendar's time in milliseconds since the Unix epoch.
pub(super) fn now_ms() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since_epoch.as_millis() as u64
}
