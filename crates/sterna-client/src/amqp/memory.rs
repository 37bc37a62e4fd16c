//! The credit that servers announced to this process (`docs/amqp-over-quic.md`, "Initial credit").
//! It is forgotten with the process, as the tickets are.

use sterna_amqp::performatives::Open;
use sterna_amqp::types::Value;

use crate::transport::memory::Memory;

/// The property of a server's open.
const INITIAL_CREDIT: &str = "sterna:initial-credit";
/// Highest credit that is made use of.
const MAX_CREDIT: u32 = 65_536;

/// The credit that a server grants to a connection that resumes with its ticket.
pub(super) static CREDITS: Memory<u32> = Memory::new();

/// The credit that an open announces; 0 without an announcement.
pub(super) fn announced(open: &Open<'_>) -> u32 {
    match open.properties.and_then(|map| map.get(INITIAL_CREDIT)) {
        Some(Value::Uint(credit)) => credit.min(MAX_CREDIT),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use sterna_amqp::types::MapWriter;

    use super::*;

    #[test]
    fn an_open_announces_credit() {
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
        assert_eq!(announced(&with), 7);
        assert_eq!(announced(&Open::new("server")), 0);
    }
}
