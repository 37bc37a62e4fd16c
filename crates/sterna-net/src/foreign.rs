//! Clients at the port of another protocol, by their first bytes: what they speak is for the log.

/// The protocol that a client speaks which begins with these bytes; `None` where they tell nothing.
pub(crate) const fn spoken(first: &[u8]) -> Option<&'static str> {
    Some(match first {
        [0x16, 3, ..] => "TLS",
        [0x10, ..] => "MQTT",
        [b'A', b'M', b'Q', b'P', 0, 0, 9, 1, ..] => "AMQP 0-9-1",
        [b'A', b'M', b'Q', b'P', 0 | 2 | 3, 1, 0, 0, ..] => "AMQP 1.0",
        [b'A', b'M', b'Q', b'P', ..] => "AMQP",
        [b'P', b'R', b'I', b' ', ..] => "HTTP/2",
        [b'P', b'R', b'O', b'X', b'Y', ..] | [b'\r', b'\n', b'\r', b'\n', 0, ..] => {
            "the PROXY protocol, which listener.proxy_protocol_from permits"
        }
        [b'G', b'E', b'T', b' ', ..]
        | [b'P', b'U', b'T', b' ', ..]
        | [b'H', b'E', b'A', b'D', ..]
        | [b'P', b'O', b'S', b'T', ..]
        | [b'P', b'A', b'T', b'C', ..]
        | [b'O', b'P', b'T', b'I', ..]
        | [b'D', b'E', b'L', b'E', ..]
        | [b'C', b'O', b'N', b'N', ..] => "HTTP",
        _ => return None,
    })
}

/// The sentence about a client that begins with these bytes, where they are those of another protocol than the `own` one.
#[must_use]
pub fn foreign(first: &[u8], own: &str) -> Option<String> {
    let spoken = spoken(first)?;
    let is_own = spoken.starts_with(own) || own.starts_with(spoken);
    (!is_own).then(|| format!("the client speaks {spoken}, and this end {own}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spoken_is_named_unless_it_is_the_own_protocol() {
        for (first, own, said) in [
            (&b"\x16\x03\x01\x00\xf0"[..], "MQTT", Some("TLS")),
            (b"GET / HTTP/1.1\r\n", "MQTT", Some("HTTP")),
            (b"OPTIONS * HTTP/1.1\r\n", "MQTT", Some("HTTP")),
            (b"PRI * HTTP/2.0\r\n", "AMQP 1.0", Some("HTTP/2")),
            (b"AMQP\0\0\x09\x01", "HTTP", Some("AMQP 0-9-1")),
            (b"AMQP\x03\x01\0\0", "HTTP", Some("AMQP 1.0")),
            (b"\x10\x0c\0\x04MQTT", "HTTP", Some("MQTT")),
            (b"PROXY TCP4 ", "MQTT", Some("the PROXY protocol")),
            (b"\x10\x0c\0\x04MQTT", "MQTT", None),
            (b"GET / HTTP/1.1\r\n", "HTTP/1.1 for WebSocket", None),
            (b"PRI * HTTP/2.0\r\n", "HTTP", None),
            (b"\0\0\0\x08\x02\0\0\0", "MQTT", None),
            (b"", "MQTT", None),
        ] {
            let found = foreign(first, own);
            let expected = said.map(|said| format!("the client speaks {said}"));
            let is_it = match (&found, &expected) {
                (Some(found), Some(expected)) => found.starts_with(expected),
                (found, expected) => found == expected,
            };
            assert!(is_it, "{first:?}: {found:?}");
        }
    }
}
