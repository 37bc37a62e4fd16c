//! What this process remembers of the credit that servers announced (`docs/amqp-over-quic.md`,
//! "Initial credit"). It is forgotten with the process, as the tickets are.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use sterna_amqp::performatives::Open;
use sterna_amqp::types::Value;

/// The property of a server's open.
const INITIAL_CREDIT: &str = "sterna:initial-credit";
/// Most servers that are remembered; the oldest are forgotten first.
const MAX_SERVERS: usize = 256;
/// Highest credit that is made use of.
const MAX_CREDIT: u32 = 65_536;

/// A server as the URL names it, and the credit.
type Entry = ((String, u16), u32);

static SERVERS: Mutex<VecDeque<Entry>> = Mutex::new(VecDeque::new());

/// The credit that a server with whose ticket a connection resumes will grant; 0 when unknown.
pub(super) fn recall(host: &str, port: u16) -> u32 {
    let servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    servers
        .iter()
        .find(|((name, its_port), _)| name == host && *its_port == port)
        .map_or(0, |(_, credit)| *credit)
}

/// Keeps what an open announces; forgets what was announced before if it announces nothing.
pub(super) fn remember(host: &str, port: u16, open: &Open<'_>) {
    let credit = match open.properties.and_then(|map| map.get(INITIAL_CREDIT)) {
        Some(Value::Uint(credit)) => credit.min(MAX_CREDIT),
        _ => 0,
    };
    let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    servers.retain(|((name, its_port), _)| name != host || *its_port != port);
    if credit > 0 {
        if servers.len() == MAX_SERVERS {
            servers.pop_front();
        }
        servers.push_back(((host.to_owned(), port), credit));
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use sterna_amqp::types::MapWriter;

    use super::*;

    #[test]
    fn what_was_announced_last_counts() {
        let mut bytes = BytesMut::new();
        let mut map = MapWriter::new(&mut bytes);
        map.push(&Value::Symbol(INITIAL_CREDIT), &Value::Uint(7));
        map.finish();
        let Ok(Value::Map(properties)) = Value::decode(&bytes) else {
            unreachable!("a map was written");
        };
        let with = Open {
            properties: Some(properties),
            ..Open::new("server")
        };
        assert_eq!(recall("credit.example", 1), 0);
        remember("credit.example", 1, &with);
        assert_eq!(recall("credit.example", 1), 7);
        assert_eq!(recall("credit.example", 2), 0);
        remember("credit.example", 1, &Open::new("server"));
        assert_eq!(recall("credit.example", 1), 0);
    }
}
