//! The section `network`, and balancers in front of listeners.

use serde::{Deserialize, Serialize};

use super::{AddressPrefix, Listener, ListenerUrl};

/// Sockets and handshakes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Time a TLS, WebSocket or QUIC handshake may take, in milliseconds.
    pub handshake_timeout_ms: u64,
    /// Time from the accept of a balancer's connection to the end of its header (PROXY protocol), in
    /// milliseconds.
    pub proxy_header_timeout_ms: u64,
    /// Longest header of a balancer, in bytes.
    pub maximum_proxy_header_bytes: u16,
    /// Time from the accept of a connection to the CONNECT of MQTT, open of AMQP or first request
    /// of HTTP. In milliseconds. It bounds a close of AMQP that waits for its answer, too.
    pub connect_timeout_ms: u64,
    /// Handshakes under way at once on one shard.
    pub maximum_half_open: u32,
    /// Handshakes under way at once from one address on one shard.
    pub maximum_half_open_per_address: u32,
    /// Connections of one shard.
    pub maximum_connections: u32,
    /// Connections from one address (IPv6: from one /64), over all listeners, transports and shards.
    pub maximum_connections_per_address: u32,
    /// Open files that connections over TCP leave to the store and everything else.
    pub reserved_files: u32,
    /// Bytes queued towards one client at which its queue is no longer drained.
    pub high_watermark_bytes: u32,
    /// Time that a closing connection may take to send queued bytes, in milliseconds.
    pub linger_ms: u64,
    /// Milliseconds for which a broker that is to stop still takes new clients. `/readyz` says that it
    /// drains, so that balancers choose others.
    pub drain_notice_ms: u64,
    /// Time from the end of the notice to the end of the process, in milliseconds.
    pub shutdown_timeout_ms: u64,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            handshake_timeout_ms: 30_000,
            proxy_header_timeout_ms: 2_000,
            maximum_proxy_header_bytes: 4_096,
            connect_timeout_ms: 30_000,
            maximum_half_open: 10_000,
            maximum_half_open_per_address: 5_000,
            maximum_connections: 1_000_000,
            maximum_connections_per_address: 10_000,
            reserved_files: 256,
            high_watermark_bytes: 256 << 10,
            linger_ms: 3_000,
            drain_notice_ms: 0,
            shutdown_timeout_ms: 20_000,
        }
    }
}

/// The PROXY protocol of a listener, versions 1 and 2.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyProtocol {
    /// Addresses and prefixes of the balancers.
    pub from: Vec<AddressPrefix>,
}

impl Network {
    /// A sentence for each fault.
    pub(super) fn problems(&self) -> Vec<String> {
        let least = [
            ("connect_timeout_ms", self.connect_timeout_ms, 1),
            (
                "maximum_connections_per_address",
                self.maximum_connections_per_address.into(),
                1,
            ),
            ("shutdown_timeout_ms", self.shutdown_timeout_ms, 1),
            ("proxy_header_timeout_ms", self.proxy_header_timeout_ms, 1),
            // The longest one of version 1.
            (
                "maximum_proxy_header_bytes",
                self.maximum_proxy_header_bytes.into(),
                107,
            ),
        ];
        let faults = least.into_iter().filter(|(_, value, least)| value < least);
        faults
            .map(|(name, _, least)| format!("network.{name} is at least {least}"))
            .collect()
    }
}

impl Listener {
    /// The fault of its balancers, in words; `None` without one.
    pub(super) fn proxy_protocol_problem(&self) -> Option<String> {
        let proxy = self.proxy_protocol.as_ref()?;
        let url = self.url.parse::<ListenerUrl>().ok()?;
        let detail = if proxy.from.is_empty() {
            "proxy_protocol names no balancer in `from`"
        } else if url.scheme.is_quic() {
            "QUIC has no header of the PROXY protocol"
        } else {
            return None;
        };
        Some(format!("listener `{}`: {detail}", self.url))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    fn problems(text: &str) -> String {
        let config = parse("x", text).expect("a configuration");
        config.check().err().unwrap_or_default().join("\n")
    }

    #[test]
    fn balancers_are_named_and_not_for_quic() {
        let listener = |url: &str, from: &str| {
            problems(&format!(
                "[[listener]]\nurl = '{url}'\nproxy_protocol = {{ from = [{from}] }}\n\
                 [authorization]\ndefault_allow = false\n\
                 [authentication]\nallow_anonymous_beyond_loopback = true\n"
            ))
        };
        assert_eq!(listener("mqtt://*:1883", "'10.0.0.0/8'"), "");
        assert!(listener("mqtt://*:1883", "").contains("names no balancer"));
        assert!(listener("mqtt+quic://127.0.0.1:0", "'10.0.0.1'").contains("QUIC"));
    }

    /// Clients of a balancer on this host are not on this host.
    #[test]
    fn a_balancer_on_loopback_exposes_the_listener() {
        let listener = "[[listener]]\nurl = 'mqtt://localhost:1883'\n";
        assert_eq!(problems(listener), "");
        let found = problems(&format!(
            "{listener}proxy_protocol = {{ from = ['127.0.0.1'] }}\n"
        ));
        assert!(found.contains("without credentials"), "{found}");
        assert!(found.contains("default_allow"), "{found}");
    }
}
