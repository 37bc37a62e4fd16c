//! Mosquitto's listeners.

use std::net::IpAddr;
use std::path::PathBuf;

use sterna_server::config::{AdditionalCertificate, Listener, Tls};

use super::Report;
use super::source::Line;

/// A listener as far as it was read.
#[derive(Debug)]
pub(super) struct Draft {
    /// The line that makes it; `None` for what stands before all listeners and has no port.
    made_by: Option<Line>,
    port: Option<u16>,
    address: Option<String>,
    ipv4_or_6: Option<&'static str>,
    websockets: bool,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    revoked: Option<PathBuf>,
    requires_certificate: bool,
    certificate_as_username: bool,
    only_tls13: bool,
    origins: Vec<String>,
    pub(super) anonymous: Option<bool>,
    pub(super) maximum_connections: Option<(u32, Line)>,
    pub(super) maximum_qos: Option<(u8, Line)>,
    pub(super) maximum_aliases: Option<(u16, Line)>,
    /// Whether it would be more than Mosquitto's: it is left out.
    is_left_out: bool,
    /// Lines about it while nothing has made it.
    early: Vec<Line>,
}

impl Draft {
    /// The draft for the lines before all listeners.
    pub(super) const fn first() -> Self {
        Self {
            made_by: None,
            port: None,
            address: None,
            ipv4_or_6: None,
            websockets: false,
            certificate: None,
            key: None,
            client_ca: None,
            revoked: None,
            requires_certificate: false,
            certificate_as_username: false,
            only_tls13: false,
            origins: Vec::new(),
            anonymous: None,
            maximum_connections: None,
            maximum_qos: None,
            maximum_aliases: None,
            is_left_out: false,
            early: Vec::new(),
        }
    }

    /// `listener PORT [ADDRESS]`.
    pub(super) fn new(line: &Line, report: &mut Report) -> Self {
        let mut draft = Self::first();
        let (port, address) = line.value.split_once(' ').unwrap_or((&line.value, ""));
        draft.set_port(line, port, report);
        if draft.port == Some(0) {
            report.missing(line, "Unix sockets are not served");
            draft.is_left_out = true;
        } else if !address.trim().is_empty() {
            draft.address = Some(address.trim().to_owned());
        }
        draft
    }

    fn set_port(&mut self, line: &Line, port: &str, report: &mut Report) {
        self.made_by = Some(line.clone());
        self.port = port.parse().ok();
        if self.port.is_none() {
            report.missing(line, "no port");
            self.is_left_out = true;
        }
    }

    /// Takes a line about a listener. `false`: it is about something else.
    pub(super) fn take(&mut self, line: &Line, report: &mut Report) -> bool {
        let wrong = |report: &mut Report| report.missing(line, "the value is not understood");
        let flag = |report: &mut Report| {
            let flag = line.flag();
            if flag.is_none() {
                wrong(report);
            }
            flag
        };
        match line.key.as_str() {
            "port" => self.set_port(line, &line.value, report),
            "bind_address" => {
                self.made_by = Some(line.clone());
                self.port = self.port.or(Some(1883));
                self.address = Some(line.value.clone());
            }
            "socket_domain" => match line.value.as_str() {
                "ipv4" => self.ipv4_or_6 = Some("0.0.0.0"),
                "ipv6" => self.ipv4_or_6 = Some("[::]"),
                _ => wrong(report),
            },
            "bind_interface" => {
                report.missing(
                    line,
                    "listeners are bound to addresses; this one is left out",
                );
                self.is_left_out = true;
            }
            "protocol" => match line.value.as_str() {
                "mqtt" => {}
                "websockets" => self.websockets = true,
                _ => {
                    report.missing(line, "not served; this listener is left out");
                    self.is_left_out = true;
                }
            },
            "certfile" => self.certificate = Some(line.path()),
            "keyfile" => self.key = Some(line.path()),
            "cafile" => self.client_ca = Some(line.path()),
            "crlfile" => self.revoked = Some(line.path()),
            "require_certificate" => self.requires_certificate = flag(report).unwrap_or(true),
            "use_identity_as_username" => {
                self.certificate_as_username = flag(report).unwrap_or_default();
            }
            "tls_version" => match line.value.as_str() {
                "tlsv1.3" => self.only_tls13 = true,
                "tlsv1.2" => {}
                _ => report.missing(line, "TLS 1.2 and 1.3 are served"),
            },
            "websockets_origin" => self.origins.push(line.value.clone()),
            "listener_allow_anonymous" => self.anonymous = flag(report),
            "max_connections" => match line.value.parse::<i64>() {
                // -1 is no limit.
                Ok(number) => {
                    let most = u32::try_from(number).ok();
                    self.maximum_connections = most.map(|most| (most, line.clone()));
                }
                Err(_) => wrong(report),
            },
            "max_qos" => match line.number().and_then(|it| u8::try_from(it).ok()) {
                Some(number @ 0..=2) => self.maximum_qos = Some((number, line.clone())),
                _ => wrong(report),
            },
            "max_topic_alias" => match line.number().and_then(|it| u16::try_from(it).ok()) {
                Some(number) => self.maximum_aliases = Some((number, line.clone())),
                None => wrong(report),
            },
            "capath" => report.missing(
                line,
                "authorities are one file: put them into one, tls.client_ca",
            ),
            "use_subject_as_username" => {
                report.missing(
                    line,
                    "the common name is the user: tls.certificate_as_username",
                );
            }
            "use_username_as_clientid" => report.missing(
                line,
                "[[authentication.client_ids]] binds client identifiers to users",
            ),
            "mount_point" => {
                report.missing(
                    line,
                    "topics are the same on all listeners; this one is left out",
                );
                self.is_left_out = true;
            }
            "ciphers"
            | "ciphers_tls1.3"
            | "dhparamfile"
            | "tls_engine"
            | "tls_engine_kpass_sha1"
            | "tls_keyform" => report.missing(line, "the TLS library chooses"),
            "psk_file" | "psk_hint" => {
                report.missing(
                    line,
                    "TLS with shared keys is not served; this listener is left out",
                );
                self.is_left_out = true;
            }
            "http_dir" => {
                report.missing(line, "files are not served; an http:// listener has a page");
            }
            _ => return false,
        }
        if self.made_by.is_none() {
            self.early.push(line.clone());
        }
        true
    }

    /// Reports what was said about a listener that nothing makes.
    pub(super) fn report_early(&self, report: &mut Report) {
        for line in self.early.iter().filter(|_| self.made_by.is_none()) {
            report.missing(line, "about the listener of `port`, which is not there");
        }
    }

    /// Whether there is such a listener.
    pub(super) const fn exists(&self) -> bool {
        self.made_by.is_some() && !self.is_left_out
    }

    fn host(&self) -> Result<String, &'static str> {
        match self.address.as_deref() {
            None => Ok(self.ipv4_or_6.unwrap_or("*").to_owned()),
            Some("localhost") => Ok("localhost".to_owned()),
            Some(address) => match address.parse() {
                Ok(IpAddr::V6(address)) => Ok(format!("[{address}]")),
                Ok(IpAddr::V4(address)) => Ok(address.to_string()),
                Err(_) => Err("addresses are numbers, localhost or *; this listener is left out"),
            },
        }
    }

    /// The listener, and what it needs of the certificates that all share.
    pub(super) fn finish(
        self,
        tls: &mut Tls,
        report: &mut Report,
    ) -> Option<(Listener, Vec<String>)> {
        let line = self.made_by.clone().filter(|_| !self.is_left_out)?;
        let host = match self.host() {
            Ok(host) => host,
            Err(why) => {
                report.missing(&line, why);
                return None;
            }
        };
        let is_encrypted = self.certificate.is_some() && self.key.is_some();
        let scheme = match (self.websockets, is_encrypted) {
            (false, false) => "mqtt",
            (false, true) => "mqtts",
            (true, false) => "ws",
            (true, true) => "wss",
        };
        let port = self.port.unwrap_or_default();
        let mut listener = Listener::at(&format!("{scheme}://{host}:{port}"));
        listener.anonymous = self.anonymous;
        let origins = self.origins.clone();
        if is_encrypted {
            self.join(&line, tls, report);
        }
        Some((listener, origins))
    }

    /// All listeners share one `[tls]`. Where two differ, the stricter holds.
    fn join(self, line: &Line, tls: &mut Tls, report: &mut Report) {
        let is_first = tls.certificate.is_none();
        if is_first {
            tls.certificate = self.certificate;
            tls.key = self.key;
        } else if tls.certificate != self.certificate
            && let (Some(certificate), Some(key)) = (self.certificate, self.key)
        {
            let pair = AdditionalCertificate { certificate, key };
            if !tls.additional.contains(&pair) {
                tls.additional.push(pair);
            }
            report.note(
                line,
                "its certificate is chosen by the name that a client asks for (SNI)",
            );
        }
        if self.requires_certificate {
            match (&tls.client_ca, self.client_ca) {
                (Some(known), Some(other)) if *known != other => report.missing(
                    line,
                    "there is one tls.client_ca for all listeners: put the authorities into one file",
                ),
                (_, other) => tls.client_ca = tls.client_ca.take().or(other),
            }
            let known = &mut tls.client_revocation_lists;
            known.extend(self.revoked.filter(|list| !known.contains(list)));
        }
        let common = [
            (
                &mut tls.require_client_certificate,
                self.requires_certificate,
                "require_certificate",
            ),
            (
                &mut tls.certificate_as_username,
                self.certificate_as_username,
                "use_identity_as_username",
            ),
            (&mut tls.only_tls13, self.only_tls13, "tls_version"),
        ];
        for (setting, own, name) in common {
            if !is_first && *setting != own {
                report.note(
                    line,
                    &format!("{name} holds for all listeners that encrypt"),
                );
            }
            *setting |= own;
        }
    }
}
