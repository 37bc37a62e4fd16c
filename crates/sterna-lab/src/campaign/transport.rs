//! The compared ways to connect.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Foreign, ForeignDevice};
use crate::quantity;

/// A way to connect.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Transport {
    /// By which grids and claims refer to it.
    pub name: String,
    /// Name in figures.
    pub label: String,
    /// The scheme of the client's URL.
    pub scheme: String,
    /// The only version of TLS, `1.2` or `1.3`; any without one.
    pub tls: Option<String>,
    /// The devices' authentication.
    pub authentication: Authentication,
    /// Whether later connections make use of the tickets of earlier ones.
    pub resumption: bool,
    /// Whether to write before the handshake is complete, where there is a ticket. Over TCP a gateway
    /// beside the broker takes it, which itself takes early data over QUIC alone.
    pub early_data: bool,
    /// Whether TCP connects by Fast Open where it has a cookie.
    pub fast_open: bool,
    /// Whether its link is one of IPv6.
    pub ipv6: bool,
    /// The least time after which TCP sends again what is not acknowledged, on both sides, in
    /// milliseconds; the kernel's 200 without one.
    pub rto_min_ms: Option<u32>,
    /// How long each of several connections stays after its last message: for tickets that are on their
    /// way.
    pub linger: Option<String>,
    /// Congestion control of both sides, for any transport; the system's and the library's default
    /// without one.
    pub congestion: Option<String>,
    /// The quality of service; overrides the grid's.
    pub qos: Option<u8>,
    /// Distribution of messages over QUIC's streams.
    pub streams: Option<String>,
    /// Whether messages of QoS 0 travel in QUIC datagrams.
    pub datagrams: bool,
    /// Whether a client waits for an answer to each of SASL, open, begin and attach, as many clients do.
    /// Without this it sends all of them at once (AMQP).
    pub step_by_step: bool,
    /// Settings of QUIC, on both sides.
    pub quic: BTreeMap<String, String>,
    /// Settings of the broker, such as `quic.early_data`.
    pub broker: BTreeMap<String, String>,
    /// The broker that it goes to, if that is not this project's; no file names one.
    #[serde(skip)]
    pub foreign: Option<Foreign>,
    /// The device that is measured, if that is not this program's; no file names one.
    #[serde(skip)]
    pub device: Option<ForeignDevice>,
}

/// Authentication of a transport's devices. Its broker admits no others.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Authentication {
    /// Not at all.
    #[default]
    None,
    /// By user name and password: in CONNECT, by SASL PLAIN, or by Basic with each request.
    Password,
    /// By Basic with the first request of a connection alone (HTTP/3).
    PasswordOnce,
    /// By a certificate; in AMQP with SASL EXTERNAL.
    Certificate,
}

/// Schemes without TLS, on which there are no certificates.
const PLAIN_SCHEMES: [&str; 5] = ["mqtt", "ws", "amqp", "amqp+ws", "http"];

impl Transport {
    /// Whether it is QUIC, by its scheme.
    #[must_use]
    pub fn is_quic(&self) -> bool {
        self.scheme.ends_with("+quic") || self.scheme == "h3"
    }

    /// Checks what only TCP has.
    fn check_tcp(&self) -> Result<(), String> {
        self.check_rival()?;
        if self.is_rival() {
            return Ok(());
        }
        if self.is_quic() && (self.fast_open || self.rto_min_ms.is_some()) {
            return Err(format!(
                "fast_open and rto_min_ms are TCP's, and {} is QUIC",
                self.scheme
            ));
        }
        if self.rto_min_ms == Some(0) {
            return Err("rto_min_ms is at least 1".into());
        }
        if !self.needs_gateway() {
            return Ok(());
        }
        if !matches!(self.scheme.as_str(), "mqtts" | "amqps") {
            return Err(format!(
                "early data over TCP is taken of mqtts and amqps, not of {}",
                self.scheme
            ));
        }
        if self.tls.as_deref() != Some("1.3") || !self.resumption {
            return Err("early data over TCP needs tls = \"1.3\" and resumption".into());
        }
        if self.authentication == Authentication::Certificate {
            return Err(
                "the gateway that takes early data over TCP asks for no certificates".into(),
            );
        }
        Ok(())
    }

    /// Whether whatever is handed over arrives, as long as the connection lives.
    #[must_use]
    pub const fn is_reliable(&self) -> bool {
        !self.datagrams
    }

    /// The scheme by which the subscriber beside the broker connects. It is TLS on TCP, because the last
    /// leg must be the same for all measured transports. QUIC would not do: its congestion control,
    /// common to this connection and the device's, is not made for the loopback device. A foreign broker
    /// serves the measured scheme, and perhaps nothing else.
    #[must_use]
    pub fn scheme_beside(&self) -> &str {
        match self.scheme.as_str() {
            scheme if self.foreign.is_some() => scheme,
            "mqtt+quic" | "coap" | "coaps" => "mqtts",
            "amqp+quic" => "amqps",
            "h3" => "https",
            scheme => scheme,
        }
    }

    /// Checks that its scheme can prove who a device is.
    fn check_authentication(&self) -> Result<(), String> {
        let scheme = self.scheme.as_str();
        match self.authentication {
            Authentication::Certificate if PLAIN_SCHEMES.contains(&scheme) => Err(format!(
                "authentication by certificate needs TLS, which {scheme} has not"
            )),
            Authentication::PasswordOnce if scheme != "h3" => Err(format!(
                "password-once is for h3, whose connections have many requests; {scheme} has none \
                 or may use several connections"
            )),
            _ => Ok(()),
        }
    }

    /// Checks that its settings fit together.
    ///
    /// # Errors
    ///
    /// The first fault.
    pub(super) fn check(&self) -> Result<(), String> {
        if !matches!(self.tls.as_deref(), None | Some("1.2" | "1.3")) {
            return Err("tls is \"1.2\" or \"1.3\"".into());
        }
        if let Some(time) = &self.linger {
            quantity::time_ns(time)?;
        }
        self.check_tcp()?;
        self.check_authentication()
    }
}
