//! The rows of QUIC's transport in `[quic]`. Names, types, defaults and ranges are those of `sterna-quic`.

use sterna_quic::{Overrides, Settings};

use super::kind::{Kind, kind_of_field};
use super::table::{Change, Nested, Row, Section, join};
use super::{Config, Listener};

/// Names and texts, in the order of [`Settings::NAMES`].
const TEXTS: [(&str, &str); 32] = [
    (
        "profile",
        "Set of values for a kind of path. The defaults below are those of `default`.",
    ),
    (
        "initial_rtt_ms",
        "Round trip assumed before the first measurement. If it is too short, handshake \
         packets are sent twice or more.",
    ),
    (
        "handshake_timeout_ms",
        "Longest handshake, at least three times `initial_rtt_ms`. Without a profile, \
         `network.handshake_timeout_ms`.",
    ),
    (
        "idle_timeout_ms",
        "Time without a packet after which a connection is dropped. 0: never. The profile `default` has \
         3600000.",
    ),
    (
        "keep_alive_interval_ms",
        "Time without traffic after which a PING is sent. 0: never, and a device that sleeps \
         is left alone.",
    ),
    (
        "ack_frequency",
        "Whether clients are asked to acknowledge as the next two say \
         (draft-ietf-quic-ack-frequency).",
    ),
    (
        "ack_eliciting_threshold_packets",
        "Packets that may stay unacknowledged.",
    ),
    (
        "max_ack_delay_ms",
        "Longest wait of an acknowledgement; see [tuning](tuning.md#acknowledgements).",
    ),
    (
        "stream_credit_watermark_percent",
        "Part of the granted streams after whose use more are granted (MAX_STREAMS).",
    ),
    (
        "initial_bidirectional_streams",
        "Streams open at once, at first. Each permitted one costs about 50 bytes of memory.",
    ),
    (
        "max_bidirectional_streams",
        "Number that it grows to as a client uses them; at most `mqtt.maximum_data_streams` + \
         1. The profile `default` has 256.",
    ),
    (
        "initial_unidirectional_streams",
        "Streams in one direction, at first. 5 are enough for HTTP/3, and a few for \
         WebTransport: its clients do not wait for more.",
    ),
    (
        "max_unidirectional_streams",
        "Number that it grows to as a client uses them; at most `mqtt.maximum_data_streams`. \
         The profile `default` has 256.",
    ),
    ("initial_window_bytes", "Congestion window at the start."),
    (
        "congestion",
        "Algorithm of the congestion window. `bbr` is not for clients nearby: see \
         [tuning](tuning.md#congestion).",
    ),
    (
        "packet_threshold",
        "Packets by which one may be overtaken before it counts as lost. More on paths that \
         reorder.",
    ),
    (
        "time_threshold",
        "Round trips after which an overtaken packet counts as lost. More on paths whose \
         delay jumps.",
    ),
    (
        "mtu_discovery",
        "Whether packets above `initial_mtu_bytes` are probed for. It costs 11 kB per \
         connection.",
    ),
    ("mtu_upper_bound_bytes", "Largest packet tried."),
    ("mtu_search_interval_ms", "Time between two searches."),
    ("initial_mtu_bytes", "Size of packets without any search."),
    ("max_received_payload_bytes", "Largest packet accepted."),
    (
        "stream_receive_window_bytes",
        "Bytes that a client may send on a stream ahead of the broker's reading.",
    ),
    ("receive_window_bytes", "The same for a connection."),
    (
        "send_window_bytes",
        "Bytes handed to the transport and not yet acknowledged, per connection.",
    ),
    (
        "datagram_buffer_bytes",
        "Buffer for QUIC datagrams, each way. 0 refuses them, as does `mqtt.datagrams = \
         false`.",
    ),
    ("crypto_buffer_bytes", "Handshake bytes kept out of order."),
    (
        "key_share",
        "Group of the key exchange that is liked most. `x25519mlkem768` needs a TLS library that \
         has it.",
    ),
    (
        "cipher",
        "Cipher that is liked most. `auto`: a client's order decides, unless the processor \
         has no AES instructions.",
    ),
    (
        "tickets",
        "Session tickets per connection. 0 turns resumption and early data off.",
    ),
    (
        "address_tokens",
        "NEW_TOKEN frames per connection. Each spares the client one Retry.",
    ),
    (
        "path_memory_lifetime_ms",
        "Time that a path's congestion window is believed when a client comes back with a \
         ticket (RFC 9959). 0: not at all.",
    ),
];

impl Nested for Overrides {
    /// Its settings lie in the section itself.
    fn below(name: &str, _: &str) -> String {
        name.to_owned()
    }

    fn rows(name: &str, repeats: bool, table: &mut Vec<Section>) {
        let at = Section::at(table, name, repeats, "");
        let defaults = Config::default().quic_settings(&Listener::default());
        for (key, text) in TEXTS {
            let range = Settings::range(key);
            let kind = match (kind_of_field::<Self>(key), range) {
                (Kind::Integer(least, most, _), Some((from, to))) => Kind::Integer(
                    from.parse().unwrap_or(least),
                    to.parse().unwrap_or(most),
                    None,
                ),
                (Kind::Number(_), range) => Kind::Number(range),
                (kind, _) => kind,
            };
            table[at].add(Row {
                key,
                text,
                kind,
                bounds: None,
                change: Change::Restart,
                default: defaults.value(key),
                said: (key == "profile").then_some("none: the values below"),
            });
        }
    }

    /// `Config::quic_problems` checks them, with those of listeners.
    fn range_problems(&self, _: &str, _: &mut Vec<String>) {}

    fn keep(&mut self, in_force: &Self, name: &str, kept: &mut Vec<String>) {
        // Both are tables; else nothing would be named, and all be kept.
        let table = |of: &Self| toml::Table::try_from(of).unwrap_or_default();
        let (own, old) = (table(self), table(in_force));
        let keys = TEXTS.iter().map(|(key, _)| *key);
        let changed = keys.filter(|key| own.get(*key) != old.get(*key));
        kept.extend(changed.map(|key| join(name, key)));
        self.clone_from(in_force);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_the_transport_has_a_text() {
        let names: Vec<&str> = TEXTS.iter().map(|(key, _)| *key).collect();
        assert_eq!((names[0], &names[1..]), ("profile", Settings::NAMES));
    }
}
