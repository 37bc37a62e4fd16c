//! The section `network`, and balancers in front of listeners.

use serde::{Deserialize, Serialize};

use super::{AddressPrefix, Listener, ListenerUrl};

/// Longest header of version 1 of the PROXY protocol, in bytes.
const LONGEST_PROXY_HEADER_1_BYTES: u64 = 107;

settings! {
    /// Sockets and handshakes. All is per shard, but for the limit by address.
    ///
    /// [Time to connect](configuring.md#time-to-connect) has the reasons for the timeouts.
    #[derive(Eq)]
    pub struct Network {
        /// Longest handshake: TLS, WebSocket upgrade, QUIC without a profile.
        restart handshake_timeout_ms: u64 = 30_000;
        /// Time from the accept of a balancer's connection to the end of its header (PROXY protocol).
        restart proxy_header_timeout_ms: u64 = 2_000, within 1..;
        /// Longest header of a balancer.
        restart maximum_proxy_header_bytes: u16 = 4_096, within LONGEST_PROXY_HEADER_1_BYTES..;
        /// Time from the handshake to CONNECT (MQTT), open (AMQP) or the first request (HTTP, all versions). Also from a
        /// close of AMQP to its answer.
        restart connect_timeout_ms: u64 = 30_000, within 1..;
        /// Handshakes under way.
        restart maximum_half_open: u32 = 10_000;
        /// Handshakes under way from one address.
        restart maximum_half_open_per_address: u32 = 5_000;
        /// Connections of one shard.
        restart maximum_connections: u32 = 1_000_000;
        /// Connections from one IPv4 address, or one /64 of IPv6, over all listeners and shards. A site behind one
        /// address (NAT, a proxy, a load generator) with more devices needs more. TCP connections beyond it are closed
        /// as they are accepted, QUIC is told `CONNECTION_REFUSED`.
        restart maximum_connections_per_address: u32 = 10_000, within 1..;
        /// Open files that connections over TCP leave to the store and everything else; at most half of the limit. The
        /// broker raises its limit of open files (`ulimit -n`) as far as the system lets it. Where the rest is less than
        /// `maximum_connections`, the shards share it. The log says so at the start, and connections beyond it are
        /// closed as they are accepted.
        restart reserved_files: u32 = 256;
        /// Time in a turn for reading from connections over TCP, and as long over QUIC. Those that are left are the first in
        /// the next one, where those of each address have their turns. At least one is read.
        restart reading_per_turn_ms: u32 = 10, within 1..;
        /// The same for writing.
        restart writing_per_turn_ms: u32 = 10, within 1..;
        /// Bytes that a QUIC listener sends in a turn. The rest is for the next one, in the same way.
        restart quic_sent_per_turn_bytes: u32 = 4 << 20, within 1..;
        /// Connections that a listener takes in a turn.
        restart accepts_per_turn: u32 = 256, within 1..;
        /// Handshakes of TLS and WebSocket in a turn, and of each QUIC listener.
        restart handshakes_per_turn: u32 = 16, within 1..;
        /// Bytes queued towards one client, above which its queue is no longer drained.
        restart high_watermark_bytes: u32 = 256 << 10;
        /// Time that a closing connection waits for the client to take or acknowledge the next bytes. Over QUIC: at
        /// least three probe timeouts of the path. In all it waits ten times this.
        restart linger_ms: u64 = 3_000;
        /// Time for which a broker that is to stop still takes new clients. `/readyz` says `draining` meanwhile, so that
        /// balancers choose others. A second signal ends it. 0: none.
        restart drain_notice_ms: u64 = 0;
        /// Time from the signal to stop, or the end of that notice, to the end of the process. Meanwhile everything is
        /// committed, and clients are told goodbye. Work that takes longer is given up.
        restart shutdown_timeout_ms: u64 = 20_000, within 1..;
    }
}

/// The PROXY protocol of a listener, versions 1 and 2. It is a value: `{ from = ["10.0.0.0/8"] }`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyProtocol {
    /// Addresses and prefixes of the balancers.
    pub from: Vec<AddressPrefix>,
}

impl Listener {
    /// The fault of its balancers, in words; `None` without one.
    pub(super) fn proxy_protocol_problem(&self) -> Option<&'static str> {
        let proxy = self.proxy_protocol.as_ref()?;
        let url = self.url.parse::<ListenerUrl>().ok()?;
        let detail = if proxy.from.is_empty() {
            "proxy_protocol names no balancer in `from`"
        } else if url.scheme.is_quic() {
            "QUIC has no header of the PROXY protocol"
        } else {
            return None;
        };
        Some(detail)
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
        assert!(found.contains("which has proxy_protocol"), "{found}");
        assert!(found.contains("default_allow"), "{found}");
    }
}
