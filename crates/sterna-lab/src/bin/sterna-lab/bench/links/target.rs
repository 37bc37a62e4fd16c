//! Where the broker is.

use std::net::{SocketAddr, ToSocketAddrs as _};

use sterna_client::{Tls, Url};

/// Transport of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Scheme {
    /// TCP in the clear.
    Tcp,
    /// TLS on TCP.
    Tls,
    /// WebSocket.
    WebSocket,
    /// WebSocket on TLS.
    SecureWebSocket,
    /// One bidirectional stream of QUIC, ALPN `mqtt`.
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
    /// Transport of the bytes.
    pub(in super::super) scheme: Scheme,
    /// The name that the certificate must carry.
    pub(in super::super) name: String,
    /// Host and port as in the URL.
    pub(in super::super) authority: String,
    /// The first address that the host resolves to.
    pub(in super::super) address: SocketAddr,
    /// Path of WebSocket.
    pub(in super::super) path: String,
}

impl Target {
    /// Resolves a URL of MQTT.
    pub(in super::super) fn resolve(url: &Url, tls: &Tls) -> Result<Self, String> {
        let scheme = match url.scheme() {
            sterna_client::Scheme::Mqtt => Scheme::Tcp,
            sterna_client::Scheme::Mqtts => Scheme::Tls,
            sterna_client::Scheme::Ws => Scheme::WebSocket,
            sterna_client::Scheme::Wss => Scheme::SecureWebSocket,
            sterna_client::Scheme::MqttQuic => Scheme::Quic,
            other => {
                return Err(format!(
                    "{other}:// is not loaded: use mqtt, mqtts, ws, wss or mqtt+quic"
                ));
            }
        };
        let place = url.place();
        let address = (url.host(), url.port())
            .to_socket_addrs()
            .map_err(|e| format!("cannot resolve {place}: {e}"))?
            .next()
            .ok_or_else(|| format!("{place} has no address"))?;
        let name = tls.server_name.as_deref().unwrap_or_else(|| url.host());
        Ok(Self {
            scheme,
            name: name.to_owned(),
            address,
            path: url.websocket_path().to_owned(),
            authority: place,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_resolve_with_defaults() {
        let resolve = |url: &str| Target::resolve(&url.parse().unwrap(), &Tls::default());
        let target = resolve("mqtts://127.0.0.1").unwrap();
        assert_eq!(target.scheme, Scheme::Tls);
        assert_eq!(target.address.port(), 8883);
        assert_eq!(target.name, "127.0.0.1");
        let target = resolve("ws://[::1]:9001/socket").unwrap();
        assert_eq!(target.path, "/socket");
        assert_eq!(target.authority, "[::1]:9001");
        assert_eq!(target.address.to_string(), "[::1]:9001");
        let target = resolve("mqtt+quic://[::1]").unwrap();
        assert_eq!(target.address.to_string(), "[::1]:14567");
        assert!(resolve("http://127.0.0.1").is_err());
    }
}
