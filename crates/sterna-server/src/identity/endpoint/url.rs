//! The URL of an endpoint.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc::channel;
use std::time::Instant;

/// Where `http://` is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identity) enum Plain {
    Nowhere,
    /// On loopback.
    Here,
    Everywhere,
}

/// The parts of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Url {
    pub(super) is_secure: bool,
    pub(super) host: String,
    port: u16,
    /// Host and port as the URL has them.
    pub(super) authority: String,
    pub(super) target: String,
    /// The URL without the values of its query, which may be secret.
    pub(super) shown: String,
}

impl Url {
    /// Reads the value of a setting.
    ///
    /// # Errors
    /// A sentence that names the setting, and the fault of its value.
    pub(super) fn parse((setting, text): (&str, &str), plain: Plain) -> Result<Self, String> {
        let shown = crate::config::without_secrets(text);
        let fault = |why: &str| format!("{setting}: `{shown}` {why}");
        let (is_secure, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) if plain != Plain::Nowhere => (false, rest),
            _ if plain == Plain::Nowhere => return Err(fault("is not an https:// URL")),
            _ => return Err(fault("is not an https:// or http:// URL")),
        };
        if text.chars().any(|one| !one.is_ascii_graphic()) || text.contains(['#', '@', '\\']) {
            return Err(fault(
                "has a user, a fragment, or a character that is not allowed",
            ));
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse().map_err(|_| fault("has a port that is none"))?;
                (host, port)
            }
            _ => (authority, if is_secure { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || port == 0 {
            return Err(fault("names no host or port"));
        }
        let is_here = host == "localhost"
            || (host.parse::<IpAddr>()).is_ok_and(|address| address.is_loopback());
        if !is_secure && plain == Plain::Here && !is_here {
            return Err(fault(
                "is sent in the clear to another host: use https://, or set \
                 webhook.allow_plaintext_beyond_loopback = true if that is meant",
            ));
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(Self {
            is_secure,
            host: host.to_owned(),
            port,
            authority: authority.to_owned(),
            target: format!("{slash}{target}"),
            shown: shown.into_owned(),
        })
    }

    /// The addresses of the host. The system's resolver takes no time limit. So it runs on a thread that is left alone
    /// when the time is over.
    pub(super) fn addresses(&self, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![(address, self.port).into()]);
        }
        let (sender, receiver) = channel();
        let (host, port) = (self.host.clone(), self.port);
        let thread = std::thread::Builder::new().name("resolver".to_owned());
        thread.spawn(move || {
            let found = (host.as_str(), port).to_socket_addrs();
            // Nobody waits any more where it took too long.
            let _ = sender.send(found.map(Iterator::collect));
        })?;
        let left = deadline.saturating_duration_since(Instant::now());
        let found = receiver.recv_timeout(left);
        found.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_their_parts() {
        let parts = |text: &str, plain: Plain| {
            let url = Url::parse(("x", text), plain).ok()?;
            Some(format!(
                "{}|{}|{}|{}",
                url.host, url.port, url.authority, url.target
            ))
        };
        for (text, expected) in [
            (
                "https://a.example/keys",
                Some("a.example|443|a.example|/keys"),
            ),
            ("https://a.example", Some("a.example|443|a.example|/")),
            (
                "https://a.example?x=1",
                Some("a.example|443|a.example|/?x=1"),
            ),
            (
                "https://a.example:8443/k?x",
                Some("a.example|8443|a.example:8443|/k?x"),
            ),
            ("https://[::1]:9/k", Some("::1|9|[::1]:9|/k")),
            ("https://[::1]/k", Some("::1|443|[::1]|/k")),
            ("http://a.example/", None),
            ("https://", None),
            ("https:///x", None),
            ("https://a:b/x", None),
            ("https://user@a/x", None),
            ("https://a/x#y", None),
            ("https://a/x y", None),
            ("https://a/\r\nHost: b", None),
        ] {
            assert_eq!(parts(text, Plain::Nowhere).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn plain_http_is_for_this_host_unless_the_operator_says_otherwise() {
        let is = |text: &str, plain: Plain| Url::parse(("x", text), plain).is_ok();
        for (text, nowhere, here) in [
            ("http://localhost:8000/x", false, true),
            ("http://127.0.0.1/x", false, true),
            ("http://[::1]:8/x", false, true),
            ("http://localhost.evil.example/x", false, false),
            ("http://192.0.2.1/x", false, false),
            ("https://192.0.2.1/x", true, true),
        ] {
            assert_eq!(is(text, Plain::Nowhere), nowhere, "{text}");
            assert_eq!(is(text, Plain::Here), here, "{text}");
            assert!(is(text, Plain::Everywhere), "{text}");
        }
        assert!(!is("ftp://localhost/", Plain::Everywhere));
    }
}
