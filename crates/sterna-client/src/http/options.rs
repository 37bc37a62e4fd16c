//! Options of an HTTP client and of its subscriptions.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sterna_mqtt::{QoS, topic};

use super::Error;
use crate::link::{LinkOptions, has_link_options};
use crate::transport;
use crate::url::{Protocol, Scheme, Url};

/// Longest token, user name or password, in bytes: it travels in a field of a request.
const MAX_CREDENTIALS_BYTES: usize = 8_192;
/// Most filters of a subscription.
pub const MAX_FILTERS: usize = 16;
/// Longest name of a session, in characters.
pub const MAX_SESSION_NAME: usize = 64;

/// Authentication of a client, besides its certificate ([`Tls::certificate`](crate::Tls::certificate)).
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// Not at all.
    None,
    /// User name and password (RFC 7617).
    Basic {
        /// User name; without a colon.
        user: String,
        /// Password.
        password: String,
    },
    /// A token (RFC 6750), which `sterna token` makes.
    Bearer(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Basic { user, .. } => write!(f, "Basic {{ user: {user:?}, .. }}"),
            Self::Bearer(_) => f.write_str("Bearer(..)"),
        }
    }
}

impl Credentials {
    /// The value of the field authorization.
    pub(super) fn field(&self) -> Option<Vec<u8>> {
        match self {
            Self::None => None,
            Self::Basic { user, password } => {
                let pair = STANDARD.encode(format!("{user}:{password}"));
                Some(format!("Basic {pair}").into_bytes())
            }
            Self::Bearer(token) => Some(format!("Bearer {token}").into_bytes()),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let is_text = |text: &str| !text.chars().any(char::is_control);
        let bytes = match self {
            Self::None => 0,
            Self::Basic { user, password } => {
                if user.contains(':') || !is_text(user) || !is_text(password) {
                    return Err(Error::invalid(
                        "a user name has no colon, and neither it nor a password control characters",
                    ));
                }
                user.len() + password.len()
            }
            Self::Bearer(token) => {
                let is_plain =
                    |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
                if token.is_empty() || !token.as_bytes().iter().all(is_plain) {
                    return Err(Error::invalid(
                        "a token has letters, digits and -._~+/= only",
                    ));
                }
                token.len()
            }
        };
        if bytes > MAX_CREDENTIALS_BYTES {
            return Err(Error::invalid("the credentials have more than 8,192 bytes"));
        }
        Ok(())
    }
}

has_link_options!(Options);

/// Settings of a client. [`Options::new`] has the defaults.
///
/// ```
/// use sterna_client::http::{Credentials, Options};
///
/// let mut options = Options::new("https://broker.example".parse()?);
/// options.credentials = Credentials::Bearer("dGhlIHRva2Vu".into());
/// options.credentials_once = true;
/// # Ok::<(), sterna_client::UrlError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// URL, TLS, QUIC and reconnecting. Its fields can be set as if they were here.
    pub link: LinkOptions,
    /// Authentication of the client; by default with user name and password of the URL.
    pub credentials: Credentials,
    /// Over HTTP/3: send the credentials only until a request with them was answered, for brokers
    /// with `http.authentication = "connection"`. Off by default. A request that is refused for
    /// want of credentials is sent again with them.
    pub credentials_once: bool,
    /// Longest time from a request to the head of its response, and between two pieces of a
    /// response. It begins anew with each piece of the request that leaves. After it, the request's
    /// connection counts as lost. 20 s by default; also the longest wait for a free connection of
    /// HTTP/1.1. Subscriptions have `silence_timeout` instead.
    pub response_timeout: Duration,
    /// Longest silence of a subscription, after which its connection counts as lost. 45 s by
    /// default. It begins with the first call that waits for a message, and with each sign of life. A
    /// broker sends one every 15 s.
    pub silence_timeout: Duration,
    /// Tries HTTP/3 first, with `https`; on by default. If off, the client uses HTTP/2 or 1.1 over
    /// TLS at once.
    pub http3: bool,
    /// Time that HTTP/3 has alone, with `https`, before a connection over TCP is tried beside it.
    /// 300 ms by default. The first established one is used (the idea of RFC 8305).
    pub head_start: Duration,
    /// Over HTTP/1.1: connections at a time, each with one request; 8 by default, not 0. A
    /// subscription keeps one for itself.
    pub max_connections: usize,
    /// Largest message that is taken, in bytes; 16 MiB by default.
    pub max_message_bytes: usize,
}

impl Options {
    /// The defaults for this broker.
    #[must_use]
    pub fn new(url: Url) -> Self {
        let credentials = match url.user() {
            Some(user) => Credentials::Basic {
                user: user.to_owned(),
                password: url.password().unwrap_or_default().to_owned(),
            },
            None => Credentials::None,
        };
        Self {
            link: LinkOptions::new(url),
            credentials,
            credentials_once: false,
            response_timeout: Duration::from_secs(20),
            silence_timeout: Duration::from_secs(45),
            http3: true,
            head_start: Duration::from_millis(300),
            max_connections: 8,
            max_message_bytes: 16 << 20,
        }
    }

    /// Checks what types cannot.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.url.scheme().protocol() != Protocol::Http {
            return Err(Error::invalid(
                "the URL is of another protocol than HTTP: use Client or amqp::Connection",
            ));
        }
        self.credentials.check()?;
        if self.max_connections == 0 || self.max_message_bytes == 0 {
            return Err(Error::invalid("a limit is 0"));
        }
        if !self.link.is_valid() {
            return Err(Error::invalid("a setting of QUIC is out of its range"));
        }
        Ok(())
    }

    /// Settings of the transport.
    pub(super) fn transport(&self) -> transport::Settings {
        transport::Settings {
            link: self.link.clone(),
            keep_alive_s: IDLE_S / 3,
            quic_pings: false,
            max_packet_bytes: self.max_message_bytes,
        }
    }

    /// Host and port as requests name them.
    pub(super) fn authority(&self) -> String {
        let host = self.url.host();
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let is_default = match self.url.scheme() {
            Scheme::Http => self.url.port() == 80,
            _ => self.url.port() == 443,
        };
        if is_default {
            host
        } else {
            format!("{host}:{}", self.url.port())
        }
    }
}

/// Seconds after which QUIC ends a connection on which nothing comes. Requests and subscriptions
/// notice earlier that the broker is silent.
const IDLE_S: u16 = 180;

/// Options of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    pub(super) filters: Vec<String>,
    pub(super) qos: QoS,
    pub(super) retained: bool,
    pub(super) session: Option<String>,
    pub(super) acknowledge: bool,
}

impl Subscribe {
    /// A subscription to a topic filter with this highest QoS, with retained messages. With QoS 0
    /// nothing is sent again after a cut.
    ///
    /// # Errors
    /// When the filter is not valid.
    pub fn new(filter: impl Into<String>, qos: QoS) -> Result<Self, Error> {
        let new = Self {
            filters: Vec::new(),
            qos,
            retained: true,
            session: None,
            acknowledge: true,
        };
        new.filter(filter)
    }

    /// Adds a topic filter.
    ///
    /// # Errors
    /// When the filter is not valid, or there are [`MAX_FILTERS`] already.
    pub fn filter(mut self, filter: impl Into<String>) -> Result<Self, Error> {
        let filter = filter.into();
        if topic::check_any_filter(&filter).is_err() {
            return Err(crate::message::InvalidError::Filter.into());
        }
        if self.filters.len() == MAX_FILTERS {
            return Err(Error::invalid("a subscription has at most 16 filters"));
        }
        self.filters.push(filter);
        Ok(self)
    }

    /// Sets whether retained messages come first.
    #[must_use]
    pub const fn retained(mut self, retained: bool) -> Self {
        self.retained = retained;
        self
    }

    /// Makes the subscription durable. The broker keeps it and its messages without a listener, and
    /// sends unacknowledged messages again.
    ///
    /// # Errors
    /// When the name does not have 1 to 64 characters, or has others than letters, digits, `.`, `_`
    /// and `-`.
    pub fn session(mut self, name: impl Into<String>) -> Result<Self, Error> {
        let name = name.into();
        check_session(&name)?;
        self.session = Some(name);
        Ok(self)
    }

    /// Sets whether the client acknowledges each message of a durable subscription with the call
    /// for the next one. That is the default. Otherwise the application calls
    /// [`Subscription::acknowledge`](super::Subscription::acknowledge).
    #[must_use]
    pub const fn acknowledge(mut self, acknowledge: bool) -> Self {
        self.acknowledge = acknowledge;
        self
    }
}

/// Checks a name that a client gives to a session.
fn check_session(name: &str) -> Result<(), Error> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    if name.is_empty() || name.len() > MAX_SESSION_NAME || !name.as_bytes().iter().all(is_plain) {
        return Err(Error::invalid(
            "a session's name has 1 to 64 letters, digits, dots, underscores and hyphens",
        ));
    }
    Ok(())
}

/// The same for one that a broker may have given.
pub(super) fn check_any_session(name: &str) -> Result<(), Error> {
    check_session(name.strip_prefix('~').unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_brings_the_credentials_and_the_authority() {
        let options = Options::new("https://u:p@h:8443".parse().unwrap());
        assert_eq!(options.credentials.field().unwrap(), b"Basic dTpw".to_vec());
        assert!(!format!("{options:?}").contains("\"p\""));
        assert_eq!(options.authority(), "h:8443");
        for (url, authority) in [
            ("https://h", "h"),
            ("http://h", "h"),
            ("h3://[::1]", "[::1]"),
            ("http://[::1]:443", "[::1]:443"),
        ] {
            assert_eq!(Options::new(url.parse().unwrap()).authority(), authority);
        }
    }

    #[test]
    fn impossible_settings_are_refused() {
        let check = |url: &str, change: fn(&mut Options)| {
            let mut options = Options::new(url.parse().unwrap());
            change(&mut options);
            options.check().is_ok()
        };
        assert!(check("h3://h", |_| {}));
        assert!(!check("mqtt://h", |_| {}));
        assert!(!check("h3://h", |o| o.max_connections = 0));
        assert!(!check("h3://h", |o| o.credentials =
            Credentials::Bearer("a b".into())));
        assert!(!check("h3://a%3Ab:p@h", |_| {}));
    }

    #[test]
    fn impossible_subscriptions_cannot_be_made() {
        assert!(Subscribe::new("a/#/b", QoS::AtMostOnce).is_err());
        let one = Subscribe::new("a/+", QoS::AtLeastOnce).unwrap();
        for name in ["", "a b", "~x", &"x".repeat(65)] {
            assert!(one.clone().session(name).is_err(), "{name}");
        }
        assert!(one.session("A-1_b.c").is_ok());
        assert!(check_any_session("~x").is_ok());
    }
}
