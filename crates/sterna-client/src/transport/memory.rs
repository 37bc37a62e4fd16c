//! Memory of the servers that this process was connected to. It is forgotten with the process, as
//! the tickets are.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::url::Url;

/// Most servers that are remembered; the oldest are forgotten first.
const MAX_SERVERS: usize = 256;

/// A server as the URL names it, and the memory of it.
type Entry<T> = ((String, u16), T);

/// Facts about each server, by host and port.
pub(crate) struct Memory<T>(Mutex<VecDeque<Entry<T>>>);

impl<T: Copy> Memory<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    fn without(&self, url: &Url, then: impl FnOnce(&mut VecDeque<Entry<T>>)) {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|((host, port), _)| host != url.host() || *port != url.port());
        then(&mut servers);
    }

    /// The facts about a server; `None` if it is unknown.
    pub(crate) fn recall(&self, url: &Url) -> Option<T> {
        let servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        servers
            .iter()
            .find(|((host, port), _)| host == url.host() && *port == url.port())
            .map(|(_, known)| *known)
    }

    /// Remembers this of a server, in place of anything before.
    pub(crate) fn remember(&self, url: &Url, known: T) {
        self.without(url, |servers| {
            if servers.len() == MAX_SERVERS {
                servers.pop_front();
            }
            servers.push_back(((url.host().to_owned(), url.port()), known));
        });
    }

    /// Forgets a server.
    pub(crate) fn forget(&self, url: &Url) {
        self.without(url, |_| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_servers_are_remembered() {
        let memory = Memory::new();
        let server = |name: &str, port: usize| -> Url {
            format!("mqtt+quic://{name}.example:{port}")
                .parse()
                .unwrap()
        };
        let one = server("one", 1);
        assert_eq!(memory.recall(&one), None);
        memory.remember(&one, 5);
        memory.remember(&one, 6);
        assert_eq!(memory.recall(&one), Some(6));
        assert_eq!(memory.recall(&server("one", 2)), None);
        for port in 1..=MAX_SERVERS {
            memory.remember(&server("other", port), 7);
        }
        assert_eq!(memory.recall(&one), None);
        memory.forget(&server("other", 7));
        assert_eq!(memory.recall(&server("other", 7)), None);
        assert_eq!(memory.recall(&server("other", 8)), Some(7));
    }
}
