//! The options of a connection that no protocol changes.

use std::net::IpAddr;
use std::time::Duration;

use sterna_quic::Overrides;

use crate::SocketSetup;
use crate::backoff::Backoff;
use crate::tls::Tls;
use crate::url::{Scheme, Url};

/// Options of a connection that all protocols have. They are part of the options of each protocol,
/// and can be set there: `options.tls`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkOptions {
    /// URL of the broker.
    pub url: Url,
    /// Trusted servers and the client's certificate, for encrypted transports.
    pub tls: Tls,
    /// Local address to connect from.
    pub bind: Option<IpAddr>,
    /// Function that sets up each TCP socket before it connects; `None` by default.
    pub socket_setup: Option<SocketSetup>,
    /// Longest time to connect; 20 s by default. It begins with the first packet, and ends with MQTT's
    /// CONNACK, AMQP's open, or HTTP's handshake. A profile in `quic` with a longer handshake
    /// timeout lengthens it.
    pub connect_timeout: Duration,
    /// Back-off after a connection was lost; `None` for no further connection. HTTP repeats
    /// subscriptions, and requests that do no harm.
    pub reconnect: Option<Backoff>,
    /// Whether to try again also when the very first connection fails; off by default.
    pub retry_first: bool,
    /// Over QUIC: a profile and changes to it. MQTT without a profile and an idle timeout has one
    /// of three times `keep_alive_s`, and at least 30 s. Without keep alive it has none.
    pub quic: Overrides,
    /// Over QUIC: where to write traces of connections; nowhere by default.
    #[cfg(feature = "qlog")]
    pub qlog: Option<crate::Qlog>,
    /// Writes before the handshake is complete (0-RTT), over QUIC. The server must be one that this
    /// process was connected to before. That saves a round trip. On by default.
    ///
    /// MQTT sends the packets behind the CONNECT, if `early_requests` is on. AMQP sends transfers
    /// if the server has announced credit, and `pipelined` is on. HTTP sends requests that only
    /// read, and publications, which then have an `Idempotency-Key`.
    ///
    /// A third party that records these packets can send them to the server again. That does no
    /// harm where a ticket works only once, as on a Sterna broker. A Sterna broker also keeps early
    /// data until the handshake is complete. Turn it off for servers that don't protect themselves.
    pub early_data: bool,
    /// In place of the network.
    #[cfg(test)]
    pub(crate) dial: Option<crate::transport::Dial>,
}

impl LinkOptions {
    /// The defaults for this broker.
    pub(crate) fn new(url: Url) -> Self {
        Self {
            url,
            tls: Tls::default(),
            bind: None,
            socket_setup: None,
            connect_timeout: Duration::from_secs(20),
            reconnect: Some(Backoff::default()),
            retry_first: false,
            quic: Overrides::default(),
            #[cfg(feature = "qlog")]
            qlog: None,
            early_data: true,
            #[cfg(test)]
            dial: None,
        }
    }

    /// Whether QUIC's settings are within their ranges.
    pub(crate) fn is_valid(&self) -> bool {
        self.quic.settings().check().is_ok()
    }

    /// Whether QUIC finds out that the server is gone, for a client of MQTT with a keep alive.
    pub(crate) fn has_idle_timeout(&self) -> bool {
        let is_own = self.quic.idle_timeout_ms.is_none() && self.quic.profile.is_none();
        is_own || self.quic.settings().idle_timeout_ms > 0
    }

    /// Longest time to connect: as configured, or what a profile of QUIC for slow paths needs.
    pub(crate) fn longest_connect(&self) -> Duration {
        let scheme = self.url.scheme();
        let over_quic = scheme.is_quic() || scheme == Scheme::Https;
        if !over_quic || self.quic.profile.is_none() {
            return self.connect_timeout;
        }
        let handshake_ms = self.quic.settings().handshake_timeout_ms;
        self.connect_timeout
            .max(Duration::from_millis(handshake_ms.into()))
    }
}

/// Makes the fields of the link's options those of a protocol's.
macro_rules! has_link_options {
    ($options:ty) => {
        impl std::ops::Deref for $options {
            type Target = $crate::link::LinkOptions;

            fn deref(&self) -> &Self::Target {
                &self.link
            }
        }

        impl std::ops::DerefMut for $options {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.link
            }
        }
    };
}
pub(crate) use has_link_options;
