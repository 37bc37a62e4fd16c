//! URLs of brokers: address and transport.

use std::fmt;
use std::str::FromStr;

/// Longest URL taken, in bytes.
pub const MAX_URL_BYTES: usize = 8_192;

/// The transports, by URL scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `mqtt://`: MQTT over TCP, port 1883. Nothing is encrypted.
    Mqtt,
    /// `mqtts://`: MQTT over TLS over TCP, port 8883.
    Mqtts,
    /// `ws://`: MQTT over WebSocket, port 80. Nothing is encrypted.
    Ws,
    /// `wss://`: MQTT over WebSocket over TLS, port 443.
    Wss,
    /// `mqtt+quic://`: MQTT over QUIC, UDP port 14567, ALPN `mqtt`. QUIC is always encrypted.
    MqttQuic,
    /// `amqp://`: AMQP 1.0 over TCP, port 5672. Nothing is encrypted.
    Amqp,
    /// `amqps://`: AMQP 1.0 over TLS over TCP, port 5671.
    Amqps,
    /// `amqp+ws://`: AMQP 1.0 over WebSocket, port 80. Nothing is encrypted.
    AmqpWs,
    /// `amqp+wss://`: AMQP 1.0 over WebSocket over TLS, port 443.
    AmqpWss,
    /// `amqp+quic://`: AMQP 1.0 over QUIC, UDP port 5671, ALPN `amqp`.
    AmqpQuic,
    /// `http://`: HTTP/1.1 over TCP, port 80. Nothing is encrypted.
    Http,
    /// `https://`: HTTP/3 where UDP gets through, else HTTP/2 or 1.1 over TLS over TCP; port 443.
    Https,
    /// `h3://`: HTTP/3 and nothing else, UDP port 443, ALPN `h3`.
    H3,
}

/// The message protocols, which a URL's scheme names together with the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// MQTT, of which [`Client`](crate::Client) is the client.
    Mqtt,
    /// AMQP 1.0, of which [`amqp::Connection`](crate::amqp::Connection) is the client.
    Amqp,
    /// HTTP, of which [`http::Client`](crate::http::Client) is the client.
    Http,
}

impl Protocol {
    /// Its name in ALPN over QUIC, and as a subprotocol of WebSocket.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Amqp => "amqp",
            Self::Http => "h3",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mqtt => "MQTT",
            Self::Amqp => "AMQP 1.0",
            Self::Http => "HTTP",
        })
    }
}

/// Every scheme name that is understood; the first name of a scheme is the one that is printed.
const SCHEMES: [(&str, Scheme); 19] = [
    ("mqtt", Scheme::Mqtt),
    ("mqtts", Scheme::Mqtts),
    ("ws", Scheme::Ws),
    ("wss", Scheme::Wss),
    ("mqtt+quic", Scheme::MqttQuic),
    // Names of other clients and brokers for the same schemes.
    ("tcp", Scheme::Mqtt),
    ("ssl", Scheme::Mqtts),
    ("tls", Scheme::Mqtts),
    ("quic", Scheme::MqttQuic),
    ("mqtt-quic", Scheme::MqttQuic),
    ("amqp", Scheme::Amqp),
    ("amqps", Scheme::Amqps),
    ("amqp+ws", Scheme::AmqpWs),
    ("amqp+wss", Scheme::AmqpWss),
    ("amqp+quic", Scheme::AmqpQuic),
    ("amqp-quic", Scheme::AmqpQuic),
    ("http", Scheme::Http),
    ("https", Scheme::Https),
    ("h3", Scheme::H3),
];

impl Scheme {
    /// The scheme as it stands in a URL, without `://`.
    #[must_use]
    pub fn name(self) -> &'static str {
        SCHEMES
            .iter()
            .find(|(_, scheme)| *scheme == self)
            .map_or("mqtt", |(name, _)| name)
    }

    /// The port of a URL without one.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Mqtt => 1883,
            Self::Mqtts => 8883,
            Self::Ws | Self::AmqpWs | Self::Http => 80,
            Self::Wss | Self::AmqpWss | Self::Https | Self::H3 => 443,
            Self::MqttQuic => 14567,
            Self::Amqp => 5672,
            Self::Amqps | Self::AmqpQuic => 5671,
        }
    }

    /// Whether the scheme means encryption and a certificate of the server.
    #[must_use]
    pub const fn is_encrypted(self) -> bool {
        !matches!(
            self,
            Self::Mqtt | Self::Ws | Self::Amqp | Self::AmqpWs | Self::Http
        )
    }

    /// The same protocol and framing over TLS; the scheme itself where it is encrypted.
    pub(crate) const fn encrypted(self) -> Self {
        match self {
            Self::Mqtt => Self::Mqtts,
            Self::Ws => Self::Wss,
            Self::Amqp => Self::Amqps,
            Self::AmqpWs => Self::AmqpWss,
            Self::Http => Self::Https,
            encrypted => encrypted,
        }
    }

    /// Whether the protocol travels inside WebSocket frames, so that the path of the URL is the HTTP
    /// path.
    #[must_use]
    pub const fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss | Self::AmqpWs | Self::AmqpWss)
    }

    /// Whether the transport is QUIC and no other.
    #[must_use]
    pub const fn is_quic(self) -> bool {
        matches!(self, Self::MqttQuic | Self::AmqpQuic | Self::H3)
    }

    /// The message protocol.
    #[must_use]
    pub const fn protocol(self) -> Protocol {
        match self {
            Self::Mqtt | Self::Mqtts | Self::Ws | Self::Wss | Self::MqttQuic => Protocol::Mqtt,
            Self::Amqp | Self::Amqps | Self::AmqpWs | Self::AmqpWss | Self::AmqpQuic => {
                Protocol::Amqp
            }
            Self::Http | Self::Https | Self::H3 => Protocol::Http,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a URL was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UrlError {
    /// No known `scheme://` at the start. Has the text found there.
    Scheme(String),
    /// No host, or one that cannot be a host.
    Host,
    /// The port is not a number from 1 to 65535.
    Port,
    /// A `%` is not followed by two hexadecimal digits, or the decoded bytes are not UTF-8.
    Escape,
    /// Longer than [`MAX_URL_BYTES`], or with control characters.
    Text,
    /// A URL of HTTP has a query. Use the client's settings instead.
    Query,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme(found) => write!(
                f,
                "a broker's URL starts with mqtt://, mqtts://, ws://, wss://, mqtt+quic://, amqp://, amqps://, amqp+ws://, amqp+wss://, amqp+quic://, http://, https:// or h3://, not with '{found}'"
            ),
            Self::Host => f.write_str("the URL names no valid host"),
            Self::Port => f.write_str("the port in the URL is not a number from 1 to 65535"),
            Self::Escape => {
                f.write_str("a % in the URL is not followed by two hexadecimal digits of UTF-8")
            }
            Self::Text => {
                write!(
                    f,
                    "the URL has control characters or more than {MAX_URL_BYTES} bytes"
                )
            }
            Self::Query => f.write_str(
                "the URL has a query: a question mark in a topic is written %3F, and parameters have options of their own",
            ),
        }
    }
}

impl std::error::Error for UrlError {}

/// A broker's address: `scheme://[user[:password]@]host[:port][/path]`.
///
/// `%XX` escapes are resolved in the user, the password and the topic. `Debug` and `Display` leave
/// the password out.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Url {
    scheme: Scheme,
    user: Option<String>,
    password: Option<String>,
    host: String,
    port: Option<u16>,
    path: String,
}

impl Url {
    /// From its parts, with the scheme's port when `port` is none, and without user or path.
    ///
    /// # Errors
    /// When the host is empty or has characters that no host name or address has, or the port is 0.
    pub fn new(scheme: Scheme, host: &str, port: Option<u16>) -> Result<Self, UrlError> {
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let valid = |byte: u8| {
            !matches!(
                byte,
                0..=b' ' | 0x7F | b'/' | b'@' | b'?' | b'#' | b'[' | b']' | b'%'
            )
        };
        if host.is_empty() || !host.bytes().all(valid) {
            return Err(UrlError::Host);
        }
        if port == Some(0) {
            return Err(UrlError::Port);
        }
        Ok(Self {
            scheme,
            user: None,
            password: None,
            host: host.to_owned(),
            port,
            path: String::new(),
        })
    }

    /// The scheme.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The user name, when the URL has one.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password, when the URL has one.
    #[must_use]
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Host name or address; an IPv6 address without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port: the URL's, or the scheme's.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.unwrap_or_else(|| self.scheme.default_port())
    }

    /// Host and port as one text: `broker.example:1883`, or `[::1]:1883`.
    #[must_use]
    pub fn place(&self) -> String {
        let (host, port) = (self.host(), self.port());
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }

    /// The HTTP path of a WebSocket URL with its query; `/mqtt` or `/amqp` when there is none or only
    /// `/`.
    #[must_use]
    pub fn websocket_path(&self) -> &str {
        match (self.path.len(), self.scheme.protocol()) {
            (0 | 1, Protocol::Mqtt) => "/mqtt",
            (0 | 1, Protocol::Amqp) => "/amqp",
            _ => &self.path,
        }
    }

    /// The topic, topic filter or AMQP address in the path of a URL: all after the first slash.
    /// URLs of WebSockets have none. `#` is an ordinary character there. A URL of HTTP may be that
    /// of the resource, with `/v1/topics/` before the topic.
    ///
    /// # Errors
    /// When the escapes in it are not valid, and when a URL of HTTP has a query.
    pub fn topic(&self) -> Result<Option<String>, UrlError> {
        if self.scheme.is_websocket() || self.path.len() <= 1 {
            return Ok(None);
        }
        let mut topic = &self.path[1..];
        if self.scheme.protocol() == Protocol::Http {
            if self.path.contains('?') {
                return Err(UrlError::Query);
            }
            topic = topic.strip_prefix("v1/topics/").unwrap_or(topic);
        }
        unescape(topic).map(Some)
    }

    /// Returns the same address with another transport. `None` means that transport's default port.
    #[must_use]
    pub fn with_scheme(mut self, scheme: Scheme, port: Option<u16>) -> Self {
        self.scheme = scheme;
        self.port = port;
        self
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(&self.path)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if text.len() > MAX_URL_BYTES || text.chars().any(char::is_control) {
            return Err(UrlError::Text);
        }
        let wrong_scheme = |found: &str| UrlError::Scheme(found.chars().take(40).collect());
        let (name, rest) = text.split_once("://").ok_or_else(|| wrong_scheme(text))?;
        let scheme = SCHEMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, scheme)| *scheme)
            .ok_or_else(|| wrong_scheme(name))?;
        let authority_end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(authority_end);
        // A password may hold an unescaped `@`, a host may not.
        let (credentials, address) = match authority.rsplit_once('@') {
            Some((credentials, address)) => (Some(credentials), address),
            None => (None, authority),
        };
        let (host, port) = if address.starts_with('[') {
            let end = address.find(']').ok_or(UrlError::Host)?;
            let (host, after) = address.split_at(end + 1);
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(UrlError::Host),
            }
        } else {
            match address.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            }
        };
        let port = match port {
            Some(port) if port.bytes().all(|digit| digit.is_ascii_digit()) => {
                Some(port.parse().map_err(|_| UrlError::Port)?)
            }
            Some(_) => return Err(UrlError::Port),
            None => None,
        };
        let mut url = Self::new(scheme, host, port)?;
        if let Some(credentials) = credentials {
            let (user, password) = match credentials.split_once(':') {
                Some((user, password)) => (user, Some(unescape(password)?)),
                None => (credentials, None),
            };
            url.user = Some(unescape(user)?);
            url.password = password;
        }
        path.clone_into(&mut url.path);
        Ok(url)
    }
}

/// Resolves `%XX`.
fn unescape(text: &str) -> Result<String, UrlError> {
    let digit = |byte: Option<u8>| {
        byte.and_then(|byte| char::from(byte).to_digit(16))
            .ok_or(UrlError::Escape)
    };
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
            out.push((high * 16 + low) as u8);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).map_err(|_| UrlError::Escape)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn every_part_is_read() {
        let full = url("mqtts://us%65r:p%40ss:w@broker.example:8884/a/%2B/b");
        assert_eq!(full.scheme(), Scheme::Mqtts);
        assert_eq!(
            (full.user(), full.password()),
            (Some("user"), Some("p@ss:w"))
        );
        assert_eq!((full.host(), full.port()), ("broker.example", 8884));
        assert_eq!(full.topic().unwrap().unwrap(), "a/+/b");
        assert_eq!(full.to_string(), "mqtts://broker.example:8884/a/%2B/b");
        assert!(!format!("{full:?}").contains("p@ss"));
    }

    #[test]
    fn ports_and_paths_have_defaults() {
        for (text, port) in [
            ("mqtt://h", 1883),
            ("MQTTS://h", 8883),
            ("ws://h", 80),
            ("wss://h/", 443),
            ("mqtt+quic://h", 14567),
            ("quic://h", 14567),
            ("amqp://h", 5672),
            ("amqps://h", 5671),
            ("amqp+ws://h", 80),
            ("amqp+wss://h/", 443),
            ("amqp+quic://h", 5671),
            ("http://h", 80),
            ("https://h", 443),
            ("h3://h/", 443),
        ] {
            assert_eq!(url(text).port(), port, "{text}");
            assert_eq!(url(text).topic().unwrap(), None);
        }
        assert_eq!(url("ws://h").websocket_path(), "/mqtt");
        assert_eq!(url("ws://h/").websocket_path(), "/mqtt");
        assert_eq!(url("ws://h/a?b=c").websocket_path(), "/a?b=c");
        assert_eq!(url("amqp+ws://h").websocket_path(), "/amqp");
        assert_eq!(
            url("amqp://h//queues/a%20b").topic().unwrap().unwrap(),
            "/queues/a b"
        );
        assert_eq!(url("mqtt://h/bbc/#").topic().unwrap().unwrap(), "bbc/#");
        assert_eq!(url("mqtt://h//lead").topic().unwrap().unwrap(), "/lead");
        assert_eq!(url("quic://h").to_string(), "mqtt+quic://h");
        for text in ["https://h/a/%23", "h3://h/v1/topics/a/#"] {
            assert_eq!(url(text).topic().unwrap().unwrap(), "a/#");
        }
        assert_eq!(url("http://h/a?qos=1").topic(), Err(UrlError::Query));
    }

    #[test]
    fn ipv6_addresses_stand_in_brackets() {
        let six = url("mqtt://u@[::1]:1884/t");
        assert_eq!((six.host(), six.port()), ("::1", 1884));
        assert_eq!(six.to_string(), "mqtt://[::1]:1884/t");
        assert_eq!(url("mqtt://[fe80::1]").host(), "fe80::1");
        let other = six.with_scheme(Scheme::MqttQuic, None);
        assert_eq!(other.port(), 14567);
    }

    #[test]
    fn faults_are_named() {
        for (text, error) in [
            ("localhost", UrlError::Scheme("localhost".into())),
            ("ftp://h", UrlError::Scheme("ftp".into())),
            ("mqtt://", UrlError::Host),
            ("mqtt://a b", UrlError::Host),
            ("mqtt://[::1", UrlError::Host),
            ("mqtt://[::1]x", UrlError::Host),
            ("mqtt://h:", UrlError::Port),
            ("mqtt://h:0", UrlError::Port),
            ("mqtt://h:+1", UrlError::Port),
            ("mqtt://h:65536", UrlError::Port),
            ("mqtt://u%4@h", UrlError::Escape),
            ("mqtt://u%ff@h", UrlError::Escape),
            ("mqtt://h/\n", UrlError::Text),
        ] {
            assert_eq!(text.parse::<Url>().unwrap_err(), error, "{text}");
        }
        assert_eq!(url("mqtt://h/a%").topic().unwrap_err(), UrlError::Escape);
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in ".{0,60}") {
            let _ = text.parse::<Url>();
            if let Ok(url) = format!("mqtt://{text}").parse::<Url>() {
                let again: Url = url.to_string().parse().unwrap();
                prop_assert_eq!(again.host(), url.host());
                let _ = url.topic();
            }
        }
    }
}
