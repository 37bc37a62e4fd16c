//! What this process remembers of the SETTINGS of HTTP/3 servers, for requests in early data (RFC
//! 9114, section 7.2.4.2). It is forgotten with the process, as the tickets are.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use sterna_h3::Settings;

/// Most servers that are remembered; the oldest are forgotten first.
const MAX_SERVERS: usize = 256;

/// A server as the URL names it, and its settings.
type Entry = ((String, u16), Settings);

static SERVERS: Mutex<VecDeque<Entry>> = Mutex::new(VecDeque::new());

/// The settings of the server's last connection.
pub(super) fn recall(host: &str, port: u16) -> Option<Settings> {
    let servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = servers
        .iter()
        .find(|((name, its_port), _)| name == host && *its_port == port);
    found.map(|(_, settings)| *settings)
}

/// Keeps the settings of a server.
pub(super) fn remember(host: &str, port: u16, settings: Settings) {
    let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    servers.retain(|((name, its_port), _)| name != host || *its_port != port);
    if servers.len() == MAX_SERVERS {
        servers.pop_front();
    }
    servers.push_back(((host.to_owned(), port), settings));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_settings_count() {
        assert_eq!(recall("settings.example", 1), None);
        remember("settings.example", 1, Settings::INITIAL);
        let later = Settings {
            max_field_section_bytes: Some(5),
            ..Settings::INITIAL
        };
        remember("settings.example", 1, later);
        assert_eq!(recall("settings.example", 1), Some(later));
        assert_eq!(recall("settings.example", 2), None);
        for port in 0..MAX_SERVERS as u16 {
            remember("settings-of-others.example", port, later);
        }
        assert_eq!(recall("settings.example", 1), None);
    }
}
