//! Mosquitto's listeners.

use std::net::IpAddr;
use std::path::PathBuf;

use sterna_server::config::{AdditionalCertificate, Listener, Tls};

use super::Report;
use super::access::Access;
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
    /// Whether authorities are in a folder, which is not read here.
    has_folder_of_authorities: bool,
    revoked: Option<PathBuf>,
    requires_certificate: bool,
    certificate_as_username: bool,
    only_tls13: bool,
    origins: Vec<String>,
    /// Its own lines about clients, where listeners differ in that.
    pub(super) access: Access,
    pub(super) anonymous: Option<bool>,
    pub(super) maximum_connections: Option<u32>,
    pub(super) maximum_qos: Option<(u8, Line)>,
    pub(super) maximum_aliases: Option<(u16, Line)>,
    /// Whether it would be more than Mosquitto's: it is left out.
    is_left_out: bool,
    /// Lines about it while nothing has made it.
    early: Vec<Line>,
}

impl Draft {
    /// The draft for the lines before all listeners.
    pub(super) fn first() -> Self {
        Self {
            made_by: None,
            port: None,
            address: None,
            ipv4_or_6: None,
            websockets: false,
            certificate: None,
            key: None,
            client_ca: None,
            has_folder_of_authorities: false,
            revoked: None,
            requires_certificate: false,
            certificate_as_username: false,
            only_tls13: false,
            origins: Vec::new(),
            access: Access::default(),
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
            draft.leave_out(line, "Unix sockets are not served", report);
        } else if !address.trim().is_empty() {
            draft.address = Some(address.trim().to_owned());
        }
        draft
    }

    fn set_port(&mut self, line: &Line, port: &str, report: &mut Report) {
        self.made_by = Some(line.clone());
        self.port = port.parse().ok();
        if self.port.is_none() {
            self.leave_out(line, "no port", report);
        }
    }

    fn leave_out(&mut self, line: &Line, why: &str, report: &mut Report) {
        report.less(line, &format!("{why}; this listener is left out"));
        self.is_left_out = true;
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
                _ => self.leave_out(line, "the value is not understood", report),
            },
            "bind_interface" => {
                self.leave_out(line, "listeners are bound to addresses", report);
            }
            "protocol" => match line.value.as_str() {
                "mqtt" => {}
                "websockets" => self.websockets = true,
                _ => self.leave_out(line, "not served", report),
            },
            "certfile" => self.certificate = Some(line.path()),
            "keyfile" => self.key = Some(line.path()),
            "cafile" => self.client_ca = Some(line.path()),
            "crlfile" => self.revoked = Some(line.path()),
            "require_certificate" => self.requires_certificate = flag(report).unwrap_or(true),
            "use_identity_as_username" => match line.flag() {
                Some(flag) => self.certificate_as_username = flag,
                None => self.leave_out(line, "the value is not understood", report),
            },
            "tls_version" => match line.value.as_str() {
                "tlsv1.3" => self.only_tls13 = true,
                "tlsv1.2" => {}
                _ => report.less(line, "TLS 1.2 and 1.3 are served"),
            },
            "websockets_origin" => self.origins.push(line.value.clone()),
            "listener_allow_anonymous" => self.anonymous = Some(flag(report).unwrap_or_default()),
            "max_connections" => match line.value.parse::<i64>() {
                // -1 is no limit.
                Ok(0) => self.leave_out(line, "it takes no connection", report),
                Ok(number) => self.maximum_connections = u32::try_from(number).ok(),
                Err(_) => self.leave_out(line, "the value is not understood", report),
            },
            "max_qos" => match line.number().and_then(|it| u8::try_from(it).ok()) {
                Some(number @ 0..=2) => self.maximum_qos = Some((number, line.clone())),
                _ => wrong(report),
            },
            "max_topic_alias" => match line.number().and_then(|it| u16::try_from(it).ok()) {
                Some(number) => self.maximum_aliases = Some((number, line.clone())),
                None => wrong(report),
            },
            "capath" => {
                self.has_folder_of_authorities = true;
                report.missing(
                    line,
                    "authorities are one file: put them into one, tls.client_ca",
                );
            }
            "use_subject_as_username" => {
                if flag(report) != Some(false) {
                    self.leave_out(line, "the common name is the user, not the subject", report);
                }
            }
            "mount_point" => {
                self.leave_out(line, "topics are the same on all listeners", report);
            }
            "accept_protocol_versions" => {
                let has =
                    |version: &str| line.value.split([',', ' ', '\t']).any(|it| it == version);
                if !["3", "4", "5"].into_iter().all(has) {
                    self.leave_out(line, "all versions of MQTT are served", report);
                }
            }
            "enable_proxy_protocol" | "proxy_protocol" => self.leave_out(
                line,
                "listener.proxy_protocol names the addresses of balancers, which are not known",
                report,
            ),
            "ciphers"
            | "ciphers_tls1.3"
            | "dhparamfile"
            | "tls_engine"
            | "tls_engine_kpass_sha1"
            | "tls_keyform" => report.missing(line, "the TLS library chooses"),
            "psk_file" | "psk_hint" => {
                self.leave_out(line, "TLS with shared keys is not served", report);
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
            report.less(line, "about the listener of `port`, which is not there");
        }
    }

    /// Whether no line is about it: Mosquitto then listens on this host.
    pub(super) const fn is_usual(&self) -> bool {
        self.made_by.is_none() && !self.is_left_out && self.early.is_empty()
    }

    /// Whether there is such a listener.
    pub(super) const fn exists(&self) -> bool {
        self.made_by.is_some() && !self.is_left_out
    }

    fn host(&self) -> Result<String, &'static str> {
        // Mosquitto keeps its sockets of IPv6 to that.
        let both = "[::] takes IPv4 here, too: name an address";
        match self.address.as_deref() {
            None if self.ipv4_or_6 == Some("[::]") => Err(both),
            None => Ok(self.ipv4_or_6.unwrap_or("*").to_owned()),
            Some("localhost") => Ok("localhost".to_owned()),
            Some(address) => match address.parse() {
                Ok(IpAddr::V6(address)) if address.is_unspecified() => Err(both),
                Ok(IpAddr::V6(address)) => Ok(format!("[{address}]")),
                Ok(IpAddr::V4(address)) => Ok(address.to_string()),
                Err(_) => Err("addresses are numbers, localhost or *"),
            },
        }
    }

    /// The fault of a listener that would admit more than it does in Mosquitto.
    fn fault(&self, tls: &Tls) -> Option<&'static str> {
        if self.certificate.is_some() != self.key.is_some() {
            return Some("certfile and keyfile go together");
        }
        if self.certificate.is_none() {
            let fault = "without certfile there is no certificate of clients";
            return (self.requires_certificate || self.certificate_as_username).then_some(fault);
        }
        if self.certificate_as_username && !self.requires_certificate {
            return Some("use_identity_as_username lets nobody in without require_certificate");
        }
        if self.requires_certificate && (self.client_ca.is_none() || self.has_folder_of_authorities)
        {
            return Some("require_certificate needs its authorities in one cafile");
        }
        // All listeners that encrypt share one `[tls]`, which is that of the first one.
        let is_first = tls.certificate.is_none();
        if !is_first && tls.certificate_as_username != self.certificate_as_username {
            return Some(
                "use_identity_as_username is one for all listeners that encrypt, tls.certificate_as_username, and \
                 another one differs",
            );
        }
        let is_of_others = |known| self.client_ca.as_ref().is_some_and(|own| own != known);
        if self.requires_certificate && tls.client_ca.as_ref().is_some_and(is_of_others) {
            return Some(
                "there is one tls.client_ca for all listeners, and another one has other authorities",
            );
        }
        None
    }

    /// The listener, the pages that may use it, and what decides there. `None`: it is left out.
    pub(super) fn finish(
        self,
        tls: &mut Tls,
        report: &mut Report,
    ) -> Option<(Listener, Vec<String>, Access)> {
        let line = self.made_by.clone().filter(|_| !self.is_left_out)?;
        let host = match self.fault(tls).map_or_else(|| self.host(), Err) {
            Ok(host) => host,
            Err(why) => {
                report.less(&line, &format!("{why}; this listener is left out"));
                return None;
            }
        };
        let is_encrypted = self.certificate.is_some();
        let scheme = match (self.websockets, is_encrypted) {
            (false, false) => "mqtt",
            (false, true) => "mqtts",
            (true, false) => "ws",
            (true, true) => "wss",
        };
        let port = self.port.unwrap_or_default();
        let mut listener = Listener::at(&format!("{scheme}://{host}:{port}"));
        listener.anonymous = self.anonymous;
        listener.maximum_connections = self.maximum_connections;
        let (origins, access) = (self.origins.clone(), self.access.clone());
        if is_encrypted {
            self.join(&line, tls, report);
        }
        Some((listener, origins, access))
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
            tls.client_ca = self.client_ca;
            let known = &mut tls.client_revocation_lists;
            known.extend(self.revoked.filter(|list| !known.contains(list)));
        }
        // One that differs was left out.
        tls.certificate_as_username = self.certificate_as_username;
        let common = [
            (
                &mut tls.require_client_certificate,
                self.requires_certificate,
                "require_certificate",
            ),
            (&mut tls.only_tls13, self.only_tls13, "tls_version"),
        ];
        for (setting, own, name) in common {
            if !is_first && *setting != own {
                report.less(
                    line,
                    &format!("{name} holds for all listeners that encrypt"),
                );
            }
            *setting |= own;
        }
    }
}
