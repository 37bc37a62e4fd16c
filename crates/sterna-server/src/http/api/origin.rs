//! Whom a request names, and whose page sent it: what protects the browser's user, not the broker's.

use std::net::IpAddr;

use crate::config::Http;
use crate::http::exchange::Head;

/// The origin of a page elsewhere that may read the response; nothing for everybody else.
pub(super) type Reader = Option<Box<str>>;

/// What pages may read of a response beside its content.
pub(super) const EXPOSED_FIELDS: &str = "allow, content-type, etag, idempotent-replayed, link, \
    retry-after, sterna-correlation-data, sterna-expiry, sterna-payload-format, sterna-qos, \
    sterna-response-topic, sterna-retain, sterna-session, sterna-topic, sterna-user-property";

/// What pages may send.
pub(super) const ALLOWED_FIELDS: &str = "accept, authorization, content-type, idempotency-key, \
    if-none-match, last-event-id, sterna-correlation-data, sterna-expiry, sterna-payload-format, \
    sterna-qos, sterna-response-topic, sterna-retain, sterna-user-property";

/// Host and port of an authority; the port is empty where it is not given.
fn split_port(authority: &str) -> (&str, &str) {
    match authority.rfind([':', ']']) {
        Some(at) if authority.as_bytes()[at] == b':' => (&authority[..at], &authority[at + 1..]),
        _ => (authority, ""),
    }
}

/// Whether a request may address the broker by this authority (RFC 9110, section 7.4).
pub(super) fn is_host(http: &Http, on_loopback: bool, authority: &str) -> bool {
    let (host, _) = split_port(authority);
    if !http.hosts.is_empty() {
        return (http.hosts.iter()).any(|known| known.eq_ignore_ascii_case(host));
    }
    if !on_loopback {
        return true;
    }
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost") || address.unwrap_or(host).parse::<IpAddr>().is_ok()
}

/// Whether an origin is the request's own, scheme aside: what forwards requests may have ended TLS.
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

/// Decides whether the page that sent a request may.
///
/// # Errors
/// When it may not; the text says why.
pub(super) fn admit(http: &Http, head: &Head, authority: &str) -> Result<Reader, &'static str> {
    let Some(origin) = head.field("origin") else {
        // Browsers say nothing of the origin where a page only embeds something, but this they say.
        return match head.field("sec-fetch-site") {
            Some(b"cross-site" | b"same-site") => Err("a page of another origin asks for this"),
            _ => Ok(None),
        };
    };
    let origin = std::str::from_utf8(origin).map_err(|_| "the field origin is not text")?;
    if is_same(origin, authority) {
        return Ok(None);
    }
    let is_named = |known: &String| known == "*" || known.eq_ignore_ascii_case(origin);
    if http.cors_origins.iter().any(is_named) {
        Ok(Some(origin.into()))
    } else {
        Err("pages of this origin may not use the broker; http.cors_origins names those that may")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &[(&str, &str)]) -> Head {
        let mut request = http::Request::builder().uri("/v1/topics/a");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        Head::Tcp(Box::new(parts))
    }

    fn admit(http: &Http, fields: &[(&str, &str)]) -> Result<Reader, ()> {
        super::admit(http, &head(fields), "broker:8443").map_err(|_| ())
    }

    #[test]
    fn a_listener_on_loopback_has_no_other_names() {
        let http = Http::default();
        for good in [
            "localhost",
            "LocalHost:8443",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:8443",
            "10.0.0.1",
        ] {
            assert!(is_host(&http, true, good), "{good}");
        }
        for bad in [
            "example.org",
            "localhost.example.org:8443",
            "127.0.0.1.example.org",
            "",
        ] {
            assert!(!is_host(&http, true, bad), "{bad}");
            assert!(is_host(&http, false, bad), "{bad}");
        }
        let http = Http {
            hosts: vec!["Broker.example".to_owned()],
            ..Http::default()
        };
        assert!(is_host(&http, true, "broker.example:8443"));
        assert!(!is_host(&http, true, "localhost"));
        assert!(!is_host(&http, false, "other.example"));
    }

    #[test]
    fn pages_of_other_origins_are_let_in_by_name() {
        let mut http = Http::default();
        assert_eq!(admit(&http, &[]), Ok(None));
        assert_eq!(admit(&http, &[("origin", "https://broker:8443")]), Ok(None));
        for bad in [
            "https://broker",
            "null",
            "https://evil.example",
            "ws://broker:8443",
        ] {
            assert_eq!(admit(&http, &[("origin", bad)]), Err(()), "{bad}");
        }
        assert_eq!(admit(&http, &[("sec-fetch-site", "cross-site")]), Err(()));
        assert_eq!(admit(&http, &[("sec-fetch-site", "same-origin")]), Ok(None));
        assert_eq!(admit(&http, &[("sec-fetch-site", "none")]), Ok(None));
        http.cors_origins = vec!["https://app.example".to_owned()];
        let reader = Some("https://app.example".into());
        assert_eq!(
            admit(&http, &[("origin", "https://app.example")]),
            Ok(reader)
        );
        assert_eq!(
            admit(&http, &[("origin", "https://app.example:1")]),
            Err(())
        );
        http.cors_origins = vec!["*".to_owned()];
        assert_eq!(admit(&http, &[("origin", "null")]), Ok(Some("null".into())));
    }

    #[test]
    fn default_ports_need_not_be_said() {
        assert!(is_same("https://a.example", "a.example:443"));
        assert!(is_same("http://A.example:80", "a.example"));
        assert!(!is_same("http://a.example", "a.example:443"));
        assert!(is_same("https://[::1]:8443", "[::1]:8443"));
    }
}
