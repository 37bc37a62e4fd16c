//! The section `listener`: listeners, and their URLs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sterna_quic::Profile;

use super::{Durability, ProxyProtocol};

settings! {
    /// Addresses at which the broker takes connections.
    ///
    /// Two listeners cannot share an address and a port; TCP and QUIC have ports of their own. [Listeners
    /// and ports](configuring.md#listeners-and-ports) has the ports of a broker without any.
    #[derive(Eq)]
    pub struct Listener {
        /// Scheme, address and port, such as `mqtts://*:8883`. Schemes: `mqtt://`, `mqtts://`, `ws://`, `wss://`,
        /// `mqtt+quic://`, `amqp://`, `amqps://`, `amqp+quic://`, `http://`, `https://`, `h3://`, and `admin://` and
        /// `admins://` for [metrics and health](operations.md#health). The address is an IP address, `localhost` or `*`
        /// (both families). Port 0: the system chooses. The path of a WebSocket URL is served beside `/` and `/amqp`;
        /// `/mqtt` without one. Every WebSocket listener serves MQTT and AMQP by subprotocol, every QUIC listener by
        /// ALPN.
        restart url: String, said "required";
        /// Name of the listener, by which [rules](configuring.md#rules) name it.
        restart name: Option<String>;
        /// Whether clients without credentials are admitted here. An admin listener beyond loopback never admits them.
        restart anonymous: Option<bool>,
            said "as `[authentication]` says; on an admin listener whether it is on loopback";
        /// Connections of this listener, over all shards. TCP connections beyond it are closed as they are accepted, QUIC
        /// is told `CONNECTION_REFUSED`.
        restart maximum_connections: Option<u32>, said "as many as `network.maximum_connections` of each shard";
        /// Effect of early data (0-RTT) on this listener, instead of `quic.early_data`.
        restart early_data: Option<EarlyData>, said "as `quic.early_data` says";
        /// Keep alive told to every MQTT 5 client of this listener instead of its own. 0: none, so that only the
        /// transport detects lost clients.
        restart server_keep_alive_s: Option<u16>, said "as `mqtt.server_keep_alive_s` says";
        /// Profile of QUIC's settings on this listener. Changes to a profile in `[quic]` hold here, too.
        restart profile: Option<Profile>, said "as `[quic]` says";
        /// Durability for which acknowledgements to clients of this listener wait, instead of `store.durability`.
        restart durability: Option<Durability>, said "as `store.durability` says";
        /// Balancers that connect here for clients: `{ from = ["10.0.0.0/8"] }`. See [behind a
        /// balancer](configuring.md#behind-a-balancer).
        restart proxy_protocol: Option<ProxyProtocol>;
    }
}

/// Packets of early data (0-RTT) that take effect before the handshake has shown that they are no
/// replay. All others wait for that, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EarlyData {
    /// Early data is refused; clients send it again after the handshake.
    #[default]
    Off,
    /// Requests that a replay cannot harm are done at once: CONNECT, SUBSCRIBE, UNSUBSCRIBE and PINGREQ. So is PUBLISH
    /// of QoS 1 and 2 from clients with a name of their own, by which a repetition is known. So is PUBLISH of QoS 0 if
    /// the rule that allows it says `idempotent`.
    Idempotent,
    /// Everything is done at once. Tickets work once, so a replay can only succeed instead of the
    /// original, and the client then repeats the refused requests.
    All,
}

impl Listener {
    /// A listener with defaults at a URL.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            ..Self::default()
        }
    }

    /// Whether clients without credentials are admitted, where `[authentication]` says `default`.
    pub(crate) fn admits_anonymous(&self, default: bool) -> bool {
        self.anonymous.unwrap_or_else(|| {
            let url = self.url.parse::<ListenerUrl>().ok();
            match url.filter(|url| url.scheme.protocol() == Protocol::Admin) {
                Some(url) => self.is_for_this_host(&url),
                None => default,
            }
        })
    }

    /// The address at which it takes encrypted connections, if it names one and not all of this host.
    pub(super) fn encrypted_address(&self) -> Option<IpAddr> {
        let url = self.url.parse::<ListenerUrl>().ok()?;
        let address = url.address().ip();
        (url.scheme.is_encrypted() && !address.is_unspecified()).then_some(address)
    }

    /// Whether only this host can reach the listener; `url` is its own. Through a balancer others can.
    pub(crate) fn is_for_this_host(&self, url: &ListenerUrl) -> bool {
        url.is_loopback() && self.proxy_protocol.is_none()
    }

    pub(super) fn encrypts(&self) -> bool {
        self.url
            .parse::<ListenerUrl>()
            .is_ok_and(|url| url.scheme.is_encrypted())
    }
}

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// MQTT.
    #[default]
    Mqtt,
    /// AMQP 1.0.
    Amqp,
    /// HTTP.
    Http,
    /// Metrics and health for operators, by HTTP.
    Admin,
}

impl Protocol {
    /// Those that carry messages.
    pub(crate) const OF_MESSAGES: [Self; 3] = [Self::Mqtt, Self::Amqp, Self::Http];
    /// All.
    pub(crate) const ALL: [Self; 4] = [Self::Mqtt, Self::Amqp, Self::Http, Self::Admin];

    /// The name in metrics and the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Amqp => "amqp",
            Self::Http => "http",
            Self::Admin => "admin",
        }
    }
}

/// Transport of a listener's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `mqtt`, `tcp`: MQTT on TCP.
    Mqtt,
    /// `mqtts`, `tls`, `ssl`: MQTT on TLS.
    Mqtts,
    /// `ws`: WebSocket. The subprotocol names the client's protocol.
    Ws,
    /// `wss`: WebSocket on TLS.
    Wss,
    /// `mqtt+quic`, `quic`: QUIC, on the port of MQTT. ALPN names the client's protocol.
    MqttQuic,
    /// `amqp`: AMQP on TCP.
    Amqp,
    /// `amqps`: AMQP on TLS.
    Amqps,
    /// `amqp+quic`: QUIC, on the port of AMQP. ALPN names the client's protocol.
    AmqpQuic,
    /// `http`: HTTP/1.1 and HTTP/2 on TCP.
    Http,
    /// `https`: HTTP/2 and HTTP/1.1 on TLS.
    Https,
    /// `h3`: QUIC, on the port of HTTP. ALPN names the client's protocol.
    H3,
    /// `admin`: metrics and health, by HTTP on TCP.
    Admin,
    /// `admins`: metrics and health, by HTTP on TLS.
    Admins,
}

/// Further names that other clients and brokers have for a scheme.
const ALIASES: [(&str, Scheme); 4] = [
    ("tcp", Scheme::Mqtt),
    ("tls", Scheme::Mqtts),
    ("ssl", Scheme::Mqtts),
    ("quic", Scheme::MqttQuic),
];

impl Scheme {
    /// The scheme's usual name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Mqtts => "mqtts",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::MqttQuic => "mqtt+quic",
            Self::Amqp => "amqp",
            Self::Amqps => "amqps",
            Self::AmqpQuic => "amqp+quic",
            Self::Http => "http",
            Self::Https => "https",
            Self::H3 => "h3",
            Self::Admin => "admin",
            Self::Admins => "admins",
        }
    }

    /// Port where the URL names none.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Mqtt => 1883,
            Self::Mqtts => 8883,
            Self::Ws => 8083,
            Self::Wss => 8084,
            Self::MqttQuic => 14567,
            Self::Amqp => 5672,
            Self::Amqps | Self::AmqpQuic => 5671,
            Self::Http => 8080,
            Self::Https | Self::H3 => 8443,
            Self::Admin | Self::Admins => 9464,
        }
    }

    /// Whether a certificate is needed.
    #[must_use]
    pub const fn is_encrypted(self) -> bool {
        matches!(
            self,
            Self::Mqtts
                | Self::Wss
                | Self::MqttQuic
                | Self::Amqps
                | Self::AmqpQuic
                | Self::Https
                | Self::H3
                | Self::Admins
        )
    }

    /// Whether the listener speaks QUIC.
    #[must_use]
    pub const fn is_quic(self) -> bool {
        matches!(self, Self::MqttQuic | Self::AmqpQuic | Self::H3)
    }

    /// Protocol of connections that negotiate none.
    #[must_use]
    pub const fn protocol(self) -> Protocol {
        match self {
            Self::Mqtt | Self::Mqtts | Self::Ws | Self::Wss | Self::MqttQuic => Protocol::Mqtt,
            Self::Amqp | Self::Amqps | Self::AmqpQuic => Protocol::Amqp,
            Self::Http | Self::Https | Self::H3 => Protocol::Http,
            Self::Admin | Self::Admins => Protocol::Admin,
        }
    }

    /// Whether the listener speaks WebSocket.
    #[must_use]
    pub const fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }
}

/// A listener's URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerUrl {
    /// Transport.
    pub scheme: Scheme,
    /// Host as written, without brackets.
    pub host: String,
    /// Port; 0 lets the system choose.
    pub port: u16,
    /// Path of a WebSocket listener, `/mqtt` where the URL has none.
    pub path: String,
}

impl ListenerUrl {
    /// The address to bind. `localhost` is 127.0.0.1, `*` is every address of both families.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), self.port)
    }

    fn ip(&self) -> IpAddr {
        match self.host.as_str() {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            "*" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            host => host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        }
    }

    /// Whether only this host can reach the address.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.ip().is_loopback()
    }

    /// Whether the system cannot open both: one transport and port, and an address of both.
    fn overlaps(&self, other: &Self) -> bool {
        // `[::]` takes IPv4, too.
        let covers = |one: IpAddr, other: IpAddr| {
            one == other || one.is_unspecified() && (one.is_ipv6() || other.is_ipv4())
        };
        let (own, others) = (self.ip(), other.ip());
        self.port != 0
            && self.port == other.port
            && self.scheme.is_quic() == other.scheme.is_quic()
            && (covers(own, others) || covers(others, own))
    }

    /// The URL with the port that was bound.
    #[must_use]
    pub fn with_port(&self, port: u16) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else if self.host == "*" {
            "[::]".to_owned()
        } else {
            self.host.clone()
        };
        let path = if self.scheme.is_websocket() {
            self.path.as_str()
        } else {
            ""
        };
        format!("{}://{host}:{port}{path}", self.scheme.name())
    }
}

/// Fault of a listener's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerUrlError {
    /// No `scheme://`.
    NoScheme,
    /// A scheme that is not served.
    Scheme(String),
    /// The host is neither an IP address, `localhost` nor `*`.
    Host(String),
    /// The port is not a number from 0 to 65535.
    Port(String),
}

impl fmt::Display for ListenerUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoScheme => {
                f.write_str("a listener is scheme://host:port, for example mqtts://[::]:8883")
            }
            Self::Scheme(scheme) => write!(
                f,
                "unknown scheme `{scheme}`; served are mqtt, mqtts, ws, wss, mqtt+quic, \
                 amqp, amqps, amqp+quic, http, https, h3, admin and admins"
            ),
            Self::Host(host) => {
                write!(f, "`{host}` is neither an IP address, `localhost` nor `*`")
            }
            Self::Port(port) => write!(f, "`{port}` is not a port from 0 to 65535"),
        }
    }
}

impl std::error::Error for ListenerUrlError {}

impl FromStr for ListenerUrl {
    type Err = ListenerUrlError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let (scheme, rest) = url.split_once("://").ok_or(ListenerUrlError::NoScheme)?;
        let scheme = match scheme {
            "mqtt" => Scheme::Mqtt,
            "mqtts" => Scheme::Mqtts,
            "ws" => Scheme::Ws,
            "wss" => Scheme::Wss,
            "mqtt+quic" => Scheme::MqttQuic,
            "amqp" => Scheme::Amqp,
            "amqps" => Scheme::Amqps,
            "amqp+quic" => Scheme::AmqpQuic,
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "h3" => Scheme::H3,
            "admin" => Scheme::Admin,
            "admins" => Scheme::Admins,
            other => {
                let alias = ALIASES.iter().find(|(alias, _)| *alias == other);
                let (_, scheme) =
                    alias.ok_or_else(|| ListenerUrlError::Scheme(other.to_owned()))?;
                *scheme
            }
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => (&rest[..at], &rest[at..]),
            None => (rest, "/mqtt"),
        };
        let (host, port) = if let Some(bracketed) = authority.strip_prefix('[') {
            let (host, after) = bracketed
                .split_once(']')
                .ok_or_else(|| ListenerUrlError::Host(authority.to_owned()))?;
            (host, after.strip_prefix(':'))
        } else {
            match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            }
        };
        let port = match port {
            None => scheme.default_port(),
            Some(port) => port
                .parse()
                .map_err(|_| ListenerUrlError::Port(port.to_owned()))?,
        };
        if !(host == "localhost" || host == "*" || host.parse::<IpAddr>().is_ok()) {
            return Err(ListenerUrlError::Host(host.to_owned()));
        }
        Ok(Self {
            scheme,
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        })
    }
}

/// The faults of the names of listeners.
pub(super) fn name_problems(listeners: &[Listener]) -> Vec<String> {
    let problem = |(at, listener): (usize, &Listener)| {
        let name = listener.name.as_deref()?;
        let what = if name.is_empty() {
            "its name is empty".to_owned()
        } else {
            let same = |other: &Listener| other.name.as_deref() == Some(name);
            let first = listeners[..at].iter().position(same)?;
            format!("`{name}` is the name of listener {}, too", first + 1)
        };
        Some(format!("listener {}: {what}", at + 1))
    };
    listeners.iter().enumerate().filter_map(problem).collect()
}

/// The faults of listeners of which only one can be opened.
pub(super) fn address_problems(listeners: &[Listener]) -> Vec<String> {
    let urls = listeners
        .iter()
        .map(|it| it.url.parse::<ListenerUrl>().ok());
    let urls: Vec<Option<ListenerUrl>> = urls.collect();
    let problem = |at: usize| {
        let own = urls[at].as_ref()?;
        let is_taken = |it: &Option<ListenerUrl>| it.as_ref().is_some_and(|it| it.overlaps(own));
        let first = urls[..at].iter().position(is_taken)?;
        let (own, other) = (&listeners[at].url, &listeners[first].url);
        Some(format!(
            "listener {}: the address of `{own}` is taken by listener {}, `{other}`: give one of them another port",
            at + 1,
            first + 1
        ))
    };
    (0..listeners.len()).filter_map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_listeners_have_two_addresses() {
        for (first, second, are_one) in [
            ("mqtt://localhost:1883", "mqtt://localhost:1883", true),
            ("tcp://127.0.0.1:1883", "ws://localhost:1883/mqtt", true),
            ("mqtt://*:1883", "mqtt://127.0.0.1:1883", true),
            ("mqtt://0.0.0.0:1883", "mqtt://[::]:1883", true),
            ("quic://localhost:5671", "amqp+quic://localhost", true),
            ("mqtt://0.0.0.0:1883", "mqtt://[::1]:1883", false),
            ("https://localhost:8443", "h3://localhost:8443", false),
            ("mqtt://localhost:0", "mqtt://localhost:0", false),
            ("mqtt://localhost:1883", "mqtt://[::1]:1883", false),
            ("mqtt://localhost:1883", "mqtt://localhost:1884", false),
        ] {
            let problems = address_problems(&[Listener::at(first), Listener::at(second)]);
            assert_eq!(problems.len(), usize::from(are_one), "{first} {second}");
            for problem in problems {
                assert!(problem.starts_with("listener 2: "), "{problem}");
                assert!(
                    problem.contains(first) && problem.contains(second),
                    "{problem}"
                );
            }
        }
        assert_eq!(
            address_problems(&crate::config::Config::default_listeners()),
            [""; 0]
        );
    }

    #[test]
    fn the_page_names_every_alias() {
        let page = include_str!("../../../../docs/configuring.md");
        let (line, _) = page
            .split_once("Schemes have other names, too: ")
            .unwrap()
            .1
            .split_once('\n')
            .unwrap();
        for (alias, scheme) in ALIASES {
            let url: ListenerUrl = format!("{alias}://localhost").parse().unwrap();
            assert_eq!(url.scheme, scheme);
            let is_told = |part: &str| {
                part.contains(&format!("`{alias}://`"))
                    && part.contains(&format!("`{}://`", scheme.name()))
            };
            assert!(line.split(';').any(is_told), "{alias}: {line}");
        }
    }

    #[test]
    fn urls_are_taken_apart() {
        let url: ListenerUrl = "wss://[::1]:0/devices".parse().unwrap();
        assert_eq!(url.scheme, Scheme::Wss);
        assert_eq!(url.address(), "[::1]:0".parse().unwrap());
        assert_eq!(url.with_port(4000), "wss://[::1]:4000/devices");
        assert!(url.is_loopback());
        let url: ListenerUrl = "mqtt+quic://localhost".parse().unwrap();
        assert_eq!(url.with_port(14567), "mqtt+quic://localhost:14567");
        assert!(
            !"mqtt://*:1883"
                .parse::<ListenerUrl>()
                .unwrap()
                .is_loopback()
        );
    }

    #[test]
    fn bad_urls_say_what_is_wrong() {
        for (url, error) in [
            ("localhost:1883", ListenerUrlError::NoScheme),
            ("coap://localhost", ListenerUrlError::Scheme("coap".into())),
            (
                "mqtt://broker.example:1883",
                ListenerUrlError::Host("broker.example".into()),
            ),
            (
                "mqtt://localhost:70000",
                ListenerUrlError::Port("70000".into()),
            ),
        ] {
            assert_eq!(url.parse::<ListenerUrl>(), Err(error), "{url}");
        }
    }
}
