//! What this process remembers of the servers that it was connected to: it is forgotten with the
//! process.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use sterna_quic::SavedPath;

/// Most servers that are remembered; the oldest are forgotten first.
const MAX_SERVERS: usize = 256;

/// What is known of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// The address that answered.
    pub(crate) address: SocketAddr,
    /// The path to it.
    pub(crate) path: Option<SavedPath>,
}

/// The calendar's time in milliseconds since the Unix epoch.
pub(super) fn now_ms() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since_epoch.as_millis() as u64
}

/// A server as the URL names it.
type Name = (String, u16);

static SERVERS: Mutex<VecDeque<(Name, Known)>> = Mutex::new(VecDeque::new());

fn with<T>(use_servers: impl FnOnce(&mut VecDeque<(Name, Known)>) -> T) -> T {
    use_servers(&mut SERVERS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What is known of a server.
pub(crate) fn recall(host: &str, port: u16) -> Option<Known> {
    with(|servers| {
        let found = servers
            .iter()
            .find(|((known, its_port), _)| known == host && *its_port == port);
        found.map(|(_, known)| *known)
    })
}

/// Remembers a server that has answered.
pub(crate) fn remember(host: &str, port: u16, known: Known) {
    with(|servers| {
        servers.retain(|((name, its_port), _)| name != host || *its_port != port);
        if servers.len() == MAX_SERVERS {
            servers.pop_front();
        }
        servers.push_back(((host.to_owned(), port), known));
    });
}

/// Forgets a server that didn't answer where it was expected.
pub(crate) fn forget(host: &str, port: u16) {
    with(|servers| servers.retain(|((name, its_port), _)| name != host || *its_port != port));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_servers_are_remembered() {
        let known = Known {
            address: "127.0.0.1:1".parse().unwrap(),
            path: None,
        };
        assert_eq!(recall("memory.example", 1), None);
        remember("memory.example", 1, known);
        assert_eq!(recall("memory.example", 1), Some(known));
        assert_eq!(recall("memory.example", 2), None);
        for port in 0..MAX_SERVERS as u16 {
            remember("other.example", port, known);
        }
        assert_eq!(recall("memory.example", 1), None);
        forget("other.example", 7);
        assert_eq!(recall("other.example", 7), None);
        assert_eq!(recall("other.example", 8), Some(known));
    }
}
