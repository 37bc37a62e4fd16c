//! Where the broker is.

use std::net::{SocketAddr, ToSocketAddrs as _};

/// How the bytes travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Scheme {
    /// `mqtt://`, `tcp://`: TCP in the clear, port 1883.
    Tcp,
    /// `mqtts://`, `tls://`: TLS 1.3 on TCP, port 8883.
    Tls,
    /// `ws://`: WebSocket, port 8083.
    WebSocket,
    /// `wss://`: WebSocket on TLS 1.3, port 8084.
    SecureWebSocket,
    /// `mqtt+quic://`, `quic://`: one bidirectional stream of QUIC, ALPN `mqtt`, port 14567.
    Quic,
}

impl Scheme {
    /// The name in reports.
    pub(in super::super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::WebSocket => "ws",
            Self::SecureWebSocket => "wss",
            Self::Quic => "quic",
        }
    }
}

/// A resolved URL.
#[derive(Clone, Debug)]
pub(in super::super) struct Target {
    /// How the bytes travel.
    pub(in super::super) scheme: Scheme,
    /// Host as in the URL: the name that the certificate must carry.
    pub(in super::super) host: String,
    /// Host and port as in the URL.
    pub(in super::super) authority: String,
    /// The first address that the host resolves to.
    pub(in super::super) address: SocketAddr,
    /// Path of WebSocket.
    pub(in super::super) path: String,
}

impl Target {
    /// Reads and resolves `scheme://host[:port][/path]`.
    pub(in super::super) fn resolve(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| format!("'{url}' is no URL: no scheme"))?;
        let (scheme, port) = match scheme {
            "mqtt" | "tcp" => (Scheme::Tcp, 1883),
            "mqtts" | "tls" | "ssl" => (Scheme::Tls, 8883),
            "ws" | "mqtt+ws" => (Scheme::WebSocket, 8083),
            "wss" | "mqtt+wss" => (Scheme::SecureWebSocket, 8084),
            "mqtt+quic" | "quic" => (Scheme::Quic, 14567),
            other => {
                return Err(format!(
                    "scheme '{other}' is not known here: use mqtt, mqtts, ws, wss or mqtt+quic"
                ));
            }
        };
        let (authority, path) = rest
            .find('/')
            .map_or((rest, ""), |slash| rest.split_at(slash));
        let authority = authority
            .rsplit_once('@')
            .map_or(authority, |(_, host)| host);
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
        let with_port = if has_port {
            authority.to_owned()
        } else {
            format!("{authority}:{port}")
        };
        let host = with_port.rsplit_once(':').map_or("", |(host, _)| host);
        let address = with_port
            .to_socket_addrs()
            .map_err(|e| format!("cannot resolve '{authority}': {e}"))?
            .next()
            .ok_or_else(|| format!("'{authority}' has no address"))?;
        let path = match path {
            "" | "/" => "/mqtt",
            other => other,
        };
        Ok(Self {
            scheme,
            host: host.trim_matches(['[', ']']).to_owned(),
            address,
            path: path.to_owned(),
            authority: with_port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_resolve_with_defaults() {
        let target = Target::resolve("mqtts://127.0.0.1").unwrap();
        assert_eq!(target.scheme, Scheme::Tls);
        assert_eq!(target.address.port(), 8883);
        assert_eq!(target.host, "127.0.0.1");
        let target = Target::resolve("ws://[::1]:9001/socket").unwrap();
        assert_eq!(target.path, "/socket");
        assert_eq!(target.host, "::1");
        assert_eq!(target.address.to_string(), "[::1]:9001");
        let target = Target::resolve("mqtt+quic://[::1]").unwrap();
        assert_eq!(target.address.to_string(), "[::1]:14567");
        assert!(Target::resolve("http://127.0.0.1").is_err());
        assert!(Target::resolve("127.0.0.1:1883").is_err());
    }
}
