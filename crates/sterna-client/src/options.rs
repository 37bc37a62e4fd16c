//! Options of a client.

use std::fmt;
use std::time::Duration;

use sterna_mqtt::{Property, PropertyBuf, PropertyContext, Version};

use crate::link::{LinkOptions, has_link_options};
use crate::message::{InvalidError, Will, push};
use crate::url::{Protocol, Url};

/// Letters and digits in a Client Identifier that the client makes up. With [`ID_PREFIX`] they stay
/// within the 23 characters that every server must take ([MQTT-3.1.3-3]).
const RANDOM_ID_CHARACTERS: usize = 14;

/// Start of a Client Identifier that the client makes up.
const ID_PREFIX: &str = "sterna";

/// Streams besides the first that one QUIC connection may have at once, as long as nothing else is
/// said.
const DEFAULT_STREAMS: u8 = 16;
/// Most of them.
const MAX_STREAMS: u8 = 128;

/// Distribution of messages over the streams of a QUIC connection. Other transports have one
/// stream.
///
/// Streams are not ordered among each other. Requests and deliveries stay on the first stream in
/// every mode. It precedes all others when the network is the bottleneck. The server must take
/// messages on further streams, as Sterna, EMQX and NanoMQ do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Streams {
    /// One stream for everything, which every server understands.
    #[default]
    Single,
    /// A stream for each topic, so that a lost packet holds up the messages of its topic and no
    /// others. The messages of a topic keep their order. When all streams are in use, the one that
    /// was used least recently ends. Topics without a stream stay on the first one.
    PerTopic,
    /// A stream for each message, which ends when the message is acknowledged. A lost packet holds
    /// up one message. Messages may overtake each other, also on the same topic.
    PerPublish,
    /// Two streams. Bulk ([`Publish::is_bulk`](crate::Publish::is_bulk)) waits on the second one,
    /// in a queue of its own, until no other message waits. It may use three quarters of the
    /// server's Receive Maximum.
    Priority,
}

impl std::str::FromStr for Streams {
    type Err = InvalidError;

    fn from_str(text: &str) -> Result<Self, InvalidError> {
        match text {
            "single" => Ok(Self::Single),
            "per-topic" => Ok(Self::PerTopic),
            "per-publish" => Ok(Self::PerPublish),
            "priority" => Ok(Self::Priority),
            _ => Err(InvalidError::Range),
        }
    }
}

/// Authentication of a client, besides its certificate.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// No credentials.
    Anonymous,
    /// User name and password in the CONNECT. Over an encrypted transport only the server sees
    /// them.
    Password {
        /// User name.
        user: Option<String>,
        /// Password; any bytes.
        password: Option<Vec<u8>>,
    },
    /// An exchange that does not reveal the password (SCRAM-SHA-256, RFC 7677; MQTT 5). The server
    /// has to prove that it knows the password.
    Scram {
        /// User name.
        user: String,
        /// Password.
        password: String,
    },
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("Anonymous"),
            Self::Password { user, .. } => write!(f, "Password {{ user: {user:?}, .. }}"),
            Self::Scram { user, .. } => write!(f, "Scram {{ user: {user:?}, .. }}"),
        }
    }
}

has_link_options!(Options);

/// Settings of a client. [`Options::new`] has the defaults.
///
/// ```
/// use sterna_client::{Login, Options};
///
/// let mut options = Options::new("mqtt+quic://broker.example".parse()?);
/// options.keep_alive_s = 120;
/// options.login = Login::Scram { user: "sensor".into(), password: "secret".into() };
/// # Ok::<(), sterna_client::UrlError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// URL, TLS, QUIC and reconnecting. Its fields can be set as if they were here.
    pub link: LinkOptions,
    /// Version of MQTT; 5.0 by default.
    pub version: Version,
    /// Client Identifier; a random one by default. An empty one asks the server to choose.
    pub client_id: Option<String>,
    /// Start anew at the first connection, which is the default. When false, the client goes on
    /// with the session that an earlier process had under its identifier. This client keeps no
    /// session in a file, so a message that was under way then is not sent again, and one with QoS
    /// 2 may be received again. New messages with QoS 2 are safe: the broker first releases what it
    /// holds of the earlier process, which costs one round trip.
    pub clean_start: bool,
    /// Seconds that the session outlives a connection (MQTT 5); 0 by default, `u32::MAX` for ever.
    /// With older versions a session lives for ever exactly when `clean_start` is false.
    pub session_expiry_s: u32,
    /// Seconds after which the client sends a PINGREQ if it has sent no packet or received none; 60
    /// by default, 0 turns it off. Over QUIC, packets that it receives do not count: the idle timeout of
    /// QUIC, three times as long, finds out that the broker is gone.
    pub keep_alive_s: u16,
    /// User name and password; by default those of the URL.
    pub login: Login,
    /// Message that the server publishes if it loses the client.
    pub will: Option<Will>,
    /// Longest wait, at the end of the connection, for the broker to acknowledge the written bytes;
    /// 30 s by default. Over QUIC the wait is shorter on a fast path. It begins anew with each
    /// acknowledgement.
    pub close_timeout: Duration,
    /// Number of messages with QoS 1 and 2 that the server may send ahead of their acknowledgement
    /// (MQTT 5). By default 1,024; at least 1.
    pub receive_maximum: u16,
    /// Largest packet that is taken, in bytes; 16 MiB by default, not 0. Servers before MQTT 5 are
    /// not told.
    pub max_packet_bytes: u32,
    /// Topic Aliases that the server may set (MQTT 5); 32 by default.
    pub topic_alias_maximum: u16,
    /// Send requests and messages right behind the CONNECT, without waiting for the server's
    /// answer; on by default.
    pub early_requests: bool,
    /// Messages that wait in the client for their turn; 1,024 by default. Beyond, publishing waits.
    pub queued_messages: usize,
    /// Received messages that wait for the application; 1,024 by default. Beyond, the client stops
    /// reading, and so, in the end, the server stops sending.
    pub incoming_messages: usize,
    /// Acknowledge messages with QoS 1 and 2 as soon as they are received; on by default. When off,
    /// the application acknowledges each with [`Client::acknowledge`](crate::Client::acknowledge)
    /// after its work. If the session continues, unacknowledged messages with QoS 1 are delivered
    /// again. Those with QoS 2 are delivered again to the next client of the session only.
    pub acknowledge_on_receipt: bool,
    /// Distribution of messages over QUIC's streams; one stream by default.
    pub streams: Streams,
    /// Streams besides the first that may be open at once; 16 by default, 1 to 128.
    pub max_streams: u8,
    /// Over QUIC: send and receive messages with QoS 0 in datagrams of their own, if the server
    /// agrees (RFC 9221). Off by default. A message in a datagram may be lost or overtake others
    /// even while the connection stands. It holds up nothing. Larger messages travel on a stream.
    ///
    /// A User Property of the CONNECT asks a server of MQTT 5, and one of the CONNACK agrees.
    /// Servers of older versions get datagrams if QUIC says that they take them.
    pub datagrams: bool,
    /// Longest wait for the application's first message or request, if CONNECT travels as early
    /// data. Both then share the first datagram. 5 ms by default. An application that hands it over
    /// right after [`Client::start`](crate::Client::start) waits for nothing.
    pub early_wait: Duration,
    /// Further properties of the CONNECT.
    pub(crate) properties: PropertyBuf,
}

impl Options {
    /// The defaults for this broker.
    #[must_use]
    pub fn new(url: Url) -> Self {
        let login = if url.user().is_some() || url.password().is_some() {
            Login::Password {
                user: url.user().map(str::to_owned),
                password: url.password().map(|password| password.as_bytes().to_vec()),
            }
        } else {
            Login::Anonymous
        };
        Self {
            link: LinkOptions::new(url),
            version: Version::V5,
            client_id: None,
            clean_start: true,
            session_expiry_s: 0,
            keep_alive_s: 60,
            login,
            will: None,
            close_timeout: Duration::from_secs(30),
            receive_maximum: 1_024,
            max_packet_bytes: 16 << 20,
            topic_alias_maximum: 32,
            early_requests: true,
            queued_messages: 1_024,
            incoming_messages: 1_024,
            acknowledge_on_receipt: true,
            streams: Streams::Single,
            max_streams: DEFAULT_STREAMS,
            datagrams: false,
            early_wait: Duration::from_millis(5),
            properties: PropertyBuf::new(),
        }
    }

    /// Adds a property to the CONNECT: a User Property, Request Problem Information or Request
    /// Response Information. Others have their own settings.
    ///
    /// # Errors
    /// When the property is another one, stands there already, or its value is not valid.
    pub fn property(&mut self, property: Property<'_>) -> Result<(), InvalidError> {
        if !matches!(
            property,
            Property::UserProperty(..)
                | Property::RequestProblemInformation(_)
                | Property::RequestResponseInformation(_)
        ) {
            return Err(InvalidError::Range);
        }
        push(&mut self.properties, property, PropertyContext::Connect)
    }

    /// Checks what types cannot.
    pub(crate) fn check(&self) -> Result<(), InvalidError> {
        if self.url.scheme().protocol() != Protocol::Mqtt {
            return Err(InvalidError::Protocol);
        }
        let counts = [self.queued_messages, self.incoming_messages];
        if self.receive_maximum == 0
            || self.max_packet_bytes == 0
            || counts.contains(&0)
            || !(1..=MAX_STREAMS).contains(&self.max_streams)
        {
            return Err(InvalidError::Range);
        }
        if !self.link.is_valid() {
            return Err(InvalidError::Range);
        }
        let id = self.client_id.as_deref().unwrap_or_default();
        if id.len() > 65_535 || id.contains('\0') {
            return Err(InvalidError::Field);
        }
        match &self.login {
            // [MQTT311-3.1.2-22] no password without a user name
            Login::Scram { .. }
            | Login::Password {
                user: None,
                password: Some(_),
            } if !self.version.is_v5() => Err(InvalidError::Version),
            Login::Password { user, password } => {
                let user = user.as_deref().unwrap_or_default();
                let password_bytes = password.as_ref().map_or(0, Vec::len);
                if user.len() > 65_535 || user.contains('\0') || password_bytes > 65_535 {
                    return Err(InvalidError::Field);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether the server keeps the session when a connection ends.
    pub(crate) const fn keeps_session(&self) -> bool {
        if self.version.is_v5() {
            self.session_expiry_s > 0
        } else {
            !self.clean_start
        }
    }
}

/// A new Client Identifier of letters and digits.
pub(crate) fn random_id() -> String {
    format!("{ID_PREFIX}{}", random_characters(RANDOM_ID_CHARACTERS))
}

/// Random letters and digits, of which each stands for 5 bits.
pub(crate) fn random_characters(count: usize) -> String {
    const CHARACTERS: &[u8; 32] = b"0123456789abcdefghijkmnpqrstuvwx";
    let mut random = vec![0; count];
    random_bytes(&mut random);
    random
        .iter()
        .map(|byte| char::from(CHARACTERS[usize::from(byte % 32)]))
        .collect()
}

/// Fills a buffer with random bytes from the operating system.
pub(crate) fn random_bytes(buffer: &mut [u8]) {
    // The system's source fails only before it is seeded, at boot; then nothing else works either.
    if let Err(error) = getrandom::fill(buffer) {
        unreachable!("the system has no random numbers: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Options {
        Options::new(url.parse().unwrap())
    }

    #[test]
    fn the_url_brings_the_login() {
        let login = options("mqtt://u:p@h").login;
        assert_eq!(
            login,
            Login::Password {
                user: Some("u".into()),
                password: Some(b"p".to_vec())
            }
        );
        assert_eq!(format!("{login:?}"), "Password { user: Some(\"u\"), .. }");
        assert_eq!(options("mqtt://h").login, Login::Anonymous);
    }

    #[test]
    fn impossible_settings_are_refused() {
        let check = |change: fn(&mut Options)| {
            let mut options = options("mqtt://h");
            change(&mut options);
            options.check()
        };
        assert_eq!(check(|_| {}), Ok(()));
        assert_eq!(
            check(|options| options.receive_maximum = 0),
            Err(InvalidError::Range)
        );
        assert_eq!(
            check(|options| options.queued_messages = 0),
            Err(InvalidError::Range)
        );
        assert_eq!(
            check(|options| options.max_streams = 0),
            Err(InvalidError::Range)
        );
        assert_eq!(
            check(|o| o.client_id = Some("a\0".into())),
            Err(InvalidError::Field)
        );
        let scram = |options: &mut Options| {
            options.version = Version::V311;
            options.login = Login::Scram {
                user: "u".into(),
                password: "p".into(),
            };
        };
        assert_eq!(check(scram), Err(InvalidError::Version));
        let mut options = options("mqtt://h");
        assert_eq!(
            options.property(Property::ReceiveMaximum(3)),
            Err(InvalidError::Range)
        );
        options.property(Property::UserProperty("a", "b")).unwrap();
    }

    #[test]
    fn made_up_identifiers_suit_every_server() {
        let (one, two) = (random_id(), random_id());
        assert_ne!(one, two);
        assert!(
            one.len() <= 23 && one.chars().all(|c| c.is_ascii_alphanumeric()),
            "{one}"
        );
    }
}
