//! Requests that a browser sends for a web page: which names the server answers to, and which pages may
//! use it. It protects the user of the browser: any page on the internet can make it send requests to
//! this host.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

/// The names of a server, and the pages of other origins that may use it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Pages {
    /// Names by which requests may address the server, without port. Empty is any name; on loopback it
    /// is `localhost` and addresses alone.
    pub hosts: Vec<String>,
    /// Origins of the pages that may use the server, as browsers write them (`https://example.org`);
    /// `*` is every one. Pages of the server's own origin always may.
    pub origins: Vec<String>,
}

/// [`Pages`] that several listeners share and that change at run time.
#[derive(Clone, Default, Debug)]
pub struct SharedPages(Arc<RwLock<Arc<Pages>>>);

impl SharedPages {
    /// Shares these.
    #[must_use]
    pub fn new(pages: Pages) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(pages))))
    }

    /// The settings in force.
    #[must_use]
    pub fn current(&self) -> Arc<Pages> {
        let pages = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&pages)
    }

    /// Puts others in force, for requests to come.
    pub fn replace(&self, pages: Pages) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(pages);
    }
}

/// Host and port of an authority; the port is empty where it is not given.
fn split_port(authority: &str) -> (&str, &str) {
    match authority.rfind([':', ']']) {
        Some(at) if authority.as_bytes()[at] == b':' => (&authority[..at], &authority[at + 1..]),
        _ => (authority, ""),
    }
}

/// Whether a text can be the host and port of a request (RFC 9110, section 4.2.3): a name or an address, and digits.
#[must_use]
pub fn is_authority(text: &str) -> bool {
    let (host, port) = split_port(text);
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte);
    let is_host = match host.strip_prefix('[') {
        Some(address) => {
            let address = address.strip_suffix(']');
            address.is_some_and(|address| address.bytes().all(|byte| is_name(byte) || byte == b':'))
        }
        None => host.bytes().all(is_name),
    };
    is_host && !host.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether an origin is the request's own, scheme aside: a proxy may have ended TLS.
fn is_same(origin: &str, authority: &str) -> bool {
    let Some((scheme, of_page)) = origin.split_once("://") else {
        return false;
    };
    let default_port = match scheme {
        "https" => "443",
        "http" => "80",
        _ => return false,
    };
    let with_port = |authority| match split_port(authority) {
        (host, "") => (host, default_port),
        (host, port) => (host, port),
    };
    let ((page_host, page_port), (host, port)) = (with_port(of_page), with_port(authority));
    page_host.eq_ignore_ascii_case(host) && page_port == port
}

impl Pages {
    /// Whether a request may address the server by this authority (RFC 9110, section 7.4). A page
    /// may make its own name resolve to this host (DNS rebinding). It is refused on loopback, and
    /// where [`Pages::hosts`] is set.
    #[must_use]
    pub fn is_host(&self, on_loopback: bool, authority: &str) -> bool {
        let (host, _) = split_port(authority);
        if !self.hosts.is_empty() {
            return (self.hosts.iter()).any(|known| known.eq_ignore_ascii_case(host));
        }
        if !on_loopback {
            return true;
        }
        let address = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        host.eq_ignore_ascii_case("localhost") || address.unwrap_or(host).parse::<IpAddr>().is_ok()
    }

    /// Decides whether the page that sent a request may, by the fields `Origin` and `Sec-Fetch-Site` of
    /// the request. Requests without either are no browser's and may. Returns the origin where it is
    /// another than the server's own.
    ///
    /// # Errors
    /// When the page may not; the text says why.
    pub fn admit<'a>(
        &self,
        origin: Option<&'a [u8]>,
        fetch_site: Option<&[u8]>,
        authority: &str,
    ) -> Result<Option<&'a str>, &'static str> {
        let Some(origin) = origin else {
            // Where a page only embeds something, browsers leave the origin out but say this.
            return match fetch_site {
                Some(b"cross-site" | b"same-site") => Err("a page of another origin asks for this"),
                _ => Ok(None),
            };
        };
        let origin = std::str::from_utf8(origin).map_err(|_| "the field origin is not text")?;
        if is_same(origin, authority) {
            return Ok(None);
        }
        let is_named = |known: &String| known == "*" || known.eq_ignore_ascii_case(origin);
        if self.origins.iter().any(is_named) {
            Ok(Some(origin))
        } else {
            Err(
                "pages of this origin may not use the broker; http.cors_origins names those that may",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit<'a>(pages: &Pages, fields: &[(&str, &'a str)]) -> Result<Option<&'a str>, ()> {
        let field = |name: &str| {
            let found = fields.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.as_bytes())
        };
        let (origin, site) = (field("origin"), field("sec-fetch-site"));
        pages.admit(origin, site, "broker:8443").map_err(|_| ())
    }

    #[test]
    fn what_is_no_host_is_none() {
        for good in [
            "a.example",
            "a.example:8443",
            "[::1]:1",
            "10.0.0.1",
            "a_b",
            "a:",
        ] {
            assert!(is_authority(good), "{good}");
        }
        for bad in [
            "",
            "a b",
            "a\tb",
            "a:b",
            "u@a.example",
            "a/b",
            "a#b",
            "[::1",
            ":80",
            "\u{e4}",
        ] {
            assert!(!is_authority(bad), "{bad}");
        }
    }

    #[test]
    fn a_listener_on_loopback_has_no_other_names() {
        let pages = Pages::default();
        for good in [
            "localhost",
            "LocalHost:8443",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:8443",
            "10.0.0.1",
        ] {
            assert!(pages.is_host(true, good), "{good}");
        }
        for bad in [
            "example.org",
            "localhost.example.org:8443",
            "127.0.0.1.example.org",
            "",
        ] {
            assert!(!pages.is_host(true, bad), "{bad}");
            assert!(pages.is_host(false, bad), "{bad}");
        }
        let pages = Pages {
            hosts: vec!["Broker.example".to_owned()],
            ..Pages::default()
        };
        assert!(pages.is_host(true, "broker.example:8443"));
        assert!(!pages.is_host(true, "localhost"));
        assert!(!pages.is_host(false, "other.example"));
    }

    #[test]
    fn pages_of_other_origins_are_let_in_by_name() {
        let mut pages = Pages::default();
        assert_eq!(admit(&pages, &[]), Ok(None));
        assert_eq!(
            admit(&pages, &[("origin", "https://broker:8443")]),
            Ok(None)
        );
        for bad in [
            "https://broker",
            "null",
            "https://evil.example",
            "ws://broker:8443",
        ] {
            assert_eq!(admit(&pages, &[("origin", bad)]), Err(()), "{bad}");
        }
        assert_eq!(admit(&pages, &[("sec-fetch-site", "cross-site")]), Err(()));
        assert_eq!(
            admit(&pages, &[("sec-fetch-site", "same-origin")]),
            Ok(None)
        );
        assert_eq!(admit(&pages, &[("sec-fetch-site", "none")]), Ok(None));
        pages.origins = vec!["https://app.example".to_owned()];
        assert_eq!(
            admit(&pages, &[("origin", "https://app.example")]),
            Ok(Some("https://app.example"))
        );
        assert_eq!(
            admit(&pages, &[("origin", "https://app.example:1")]),
            Err(())
        );
        pages.origins = vec!["*".to_owned()];
        assert_eq!(admit(&pages, &[("origin", "null")]), Ok(Some("null")));
    }

    #[test]
    fn default_ports_need_not_be_said() {
        assert!(is_same("https://a.example", "a.example:443"));
        assert!(is_same("http://A.example:80", "a.example"));
        assert!(!is_same("http://a.example", "a.example:443"));
        assert!(is_same("https://[::1]:8443", "[::1]:8443"));
    }
}
