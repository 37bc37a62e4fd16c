//! The opening handshake of RFC 6455, section 4.2: one HTTP/1.1 request, one answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use crate::config::WebSocketConfig;
use crate::foreign::foreign;
use crate::handshake::HandshakeFault;
use crate::is_authority;

/// Most header fields of a request.
const FIELDS: usize = 64;
/// Section 1.3.
const ACCEPT_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Result of a request head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// More bytes are needed.
    Incomplete,
    /// Switch protocols.
    Accept {
        /// Bytes of the request head; frames follow.
        head_bytes: usize,
        /// The subprotocol, empty when none was agreed on.
        subprotocol: String,
        /// The response.
        response: Vec<u8>,
    },
    /// Answer with an error and close.
    Refuse {
        /// HTTP status code.
        status: u16,
        /// The response.
        response: Vec<u8>,
        /// The fault, for metrics.
        fault: HandshakeFault,
        /// Text for the log.
        detail: String,
    },
}

struct Refusal {
    status: u16,
    reason: &'static str,
    /// A header field that the status requires.
    field: &'static str,
    fault: HandshakeFault,
    what: &'static str,
    /// The client's wish, for the log alone.
    asked: Option<String>,
}

const fn refusal(status: u16, reason: &'static str, what: &'static str) -> Refusal {
    Refusal {
        status,
        reason,
        field: "",
        fault: HandshakeFault::Upgrade,
        what,
        asked: None,
    }
}

const fn bad_request(what: &'static str) -> Refusal {
    refusal(400, "Bad Request", what)
}

/// Answers a request head; `bytes` are the bytes received so far.
pub(crate) fn answer(bytes: &[u8], config: &WebSocketConfig) -> Answer {
    match examine(bytes, config) {
        Ok(None) => Answer::Incomplete,
        Ok(Some((head_bytes, subprotocol, key))) => Answer::Accept {
            head_bytes,
            subprotocol: subprotocol.to_owned(),
            response: accept(key, subprotocol),
        },
        Err(refusal) => Answer::Refuse {
            status: refusal.status,
            response: refuse(&refusal),
            fault: refusal.fault,
            detail: match refusal.asked {
                Some(asked) => format!("{}: {asked}", refusal.what),
                None => refusal.what.to_owned(),
            },
        },
    }
}

/// Length of the head, subprotocol and key of an acceptable request.
type Accepted<'a> = (usize, &'a str, &'a [u8]);

fn examine<'a>(
    bytes: &'a [u8],
    config: &'a WebSocketConfig,
) -> Result<Option<Accepted<'a>>, Refusal> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let head_bytes = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length <= config.request_head_bytes => length,
        Ok(httparse::Status::Partial) if bytes.len() < config.request_head_bytes => {
            return Ok(None);
        }
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            return Err(refusal(
                431,
                "Request Header Fields Too Large",
                "the request head is too long",
            ));
        }
        Err(_) => {
            return Err(Refusal {
                asked: foreign(bytes, "HTTP/1.1 for WebSocket"),
                ..bad_request("the request is not HTTP/1.1")
            });
        }
    };
    if request.method != Some("GET") {
        return Err(Refusal {
            field: "Allow: GET\r\n",
            ..refusal(405, "Method Not Allowed", "the method is not GET")
        });
    }
    if request.version != Some(1) {
        return Err(refusal(
            505,
            "HTTP Version Not Supported",
            "the version is not HTTP/1.1",
        ));
    }
    let path = request.path.unwrap_or_default();
    if path.contains('#') {
        return Err(bad_request("a target has no fragment (`#`)"));
    }
    // A secret may follow.
    let path = path.split('?').next().unwrap_or_default();
    if !config.paths.iter().any(|known| known == path) {
        let served = config.paths.join(", ");
        return Err(Refusal {
            fault: HandshakeFault::Path,
            asked: Some(format!("{}; served are {served}", shown(path.as_bytes()))),
            ..refusal(404, "Not Found", "no such path")
        });
    }
    let fields: &[httparse::Header<'a>] = request.headers;
    let upgrade = Refusal {
        field: "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
        ..refusal(426, "Upgrade Required", "no request for an upgrade")
    };
    if !tokens(fields, "upgrade").any(|token| token.eq_ignore_ascii_case("websocket")) {
        return Err(upgrade);
    }
    let Some(host) = only(fields, "host")? else {
        return Err(bad_request("no Host"));
    };
    let authority = std::str::from_utf8(host).ok();
    let Some(authority) = authority.filter(|text| is_authority(text)) else {
        return Err(bad_request("Host is no name of a host"));
    };
    // Before anything else is told of the server: the page may not be meant to know (RFC 6455,
    // section 10.2).
    let pages = config.pages.current();
    if !pages.is_host(config.on_loopback, authority) {
        return Err(Refusal {
            fault: HandshakeFault::Host,
            asked: Some(shown(host)),
            ..refusal(
                421,
                "Misdirected Request",
                "this is not a name of the broker; http.hosts is the list of those that are",
            )
        });
    }
    let (origin, site) = (only(fields, "origin")?, only(fields, "sec-fetch-site")?);
    if let Err(what) = pages.admit(origin, site, authority) {
        return Err(Refusal {
            fault: HandshakeFault::Origin,
            asked: origin.map(shown),
            ..refusal(403, "Forbidden", what)
        });
    }
    if !tokens(fields, "connection").any(|token| token.eq_ignore_ascii_case("upgrade")) {
        return Err(bad_request("Connection does not name the upgrade"));
    }
    if only(fields, "sec-websocket-version")? != Some(b"13") {
        return Err(Refusal {
            what: "a version other than 13",
            ..upgrade
        });
    }
    let key = only(fields, "sec-websocket-key")?.unwrap_or_default();
    if STANDARD.decode(key).map_or(0, |nonce| nonce.len()) != 16 {
        return Err(bad_request("Sec-WebSocket-Key is not 16 bytes in base64"));
    }
    Ok(Some((head_bytes, agree(fields, config)?, key)))
}

/// The first of our subprotocols that the client offers.
///
/// [MQTT-6.0.0-3] The client includes "mqtt" in its offer. [MQTT-6.0.0-4] The returned name is the
/// one that it offered, in the order of the configuration ("mqtt" first by default).
fn agree<'a>(
    fields: &[httparse::Header<'_>],
    config: &'a WebSocketConfig,
) -> Result<&'a str, Refusal> {
    let name = "sec-websocket-protocol";
    let common = |known: &&String| tokens(fields, name).any(|offered| offered == known.as_str());
    if let Some(agreed) = config.subprotocols.iter().find(common) {
        Ok(agreed)
    } else if tokens(fields, name).next().is_none() && !config.require_subprotocol {
        Ok("")
    } else {
        let offered = (tokens(fields, name).take(MOST_SHOWN)).map(|name| shown(name.as_bytes()));
        let mut offered = offered.collect::<Vec<_>>().join(", ");
        if offered.is_empty() {
            "none".clone_into(&mut offered);
        }
        let served = config.subprotocols.join(", ");
        Err(Refusal {
            fault: HandshakeFault::Subprotocol,
            asked: Some(format!("the client offers {offered}; served are {served}")),
            ..bad_request("no common subprotocol")
        })
    }
}

/// Most names of a client's that the log gets.
const MOST_SHOWN: usize = 8;

/// Bytes of a client's, for the log.
fn shown(bytes: &[u8]) -> String {
    const MOST_BYTES: usize = 100;
    let cut = &bytes[..bytes.len().min(MOST_BYTES)];
    cut.escape_ascii().to_string()
}

fn values<'a>(fields: &'a [httparse::Header<'a>], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    fields
        .iter()
        .filter(move |field| field.name.eq_ignore_ascii_case(name))
        .map(|field| field.value.trim_ascii())
}

/// The value of a field that must not be repeated.
fn only<'a>(
    fields: &[httparse::Header<'a>],
    name: &'static str,
) -> Result<Option<&'a [u8]>, Refusal> {
    let mut values = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case(name))
        .map(|field| field.value.trim_ascii());
    let value = values.next();
    if values.next().is_some() {
        return Err(bad_request("a field is repeated that must not be"));
    }
    Ok(value)
}

/// The members of a field that is a list of tokens.
fn tokens<'a>(fields: &'a [httparse::Header<'a>], name: &'a str) -> impl Iterator<Item = &'a str> {
    values(fields, name)
        .filter_map(|value| std::str::from_utf8(value).ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

fn accept(key: &[u8], subprotocol: &str) -> Vec<u8> {
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(ACCEPT_GUID);
    let accept = STANDARD.encode(hash.finalize());
    let mut response = format!(
        "HTTP/1.1 101 Switching Protocols\r\n\
         Upgrade: websocket\r\n\
         Connection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n"
    );
    if !subprotocol.is_empty() {
        response.push_str("Sec-WebSocket-Protocol: ");
        response.push_str(subprotocol);
        response.push_str("\r\n");
    }
    response.push_str("\r\n");
    response.into_bytes()
}

fn refuse(refusal: &Refusal) -> Vec<u8> {
    let Refusal {
        status,
        reason,
        field,
        what,
        ..
    } = refusal;
    let length = what.len() + 1;
    format!(
        "HTTP/1.1 {status} {reason}\r\n\
         {field}Connection: close\r\n\
         Content-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {length}\r\n\
         \r\n\
         {what}\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pages, SharedPages};

    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

    fn request(line: &str, change: impl Fn(&str) -> Option<String>) -> Vec<u8> {
        let fields = [
            "Host: broker.example:8083",
            "Upgrade: WebSocket",
            "Connection: keep-alive, Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Protocol: mqttv3.1, mqtt",
            "Sec-WebSocket-Version: 13",
        ];
        let mut head = format!("{line}\r\n");
        for field in fields {
            let name = field.split(':').next().unwrap_or_default();
            match change(name) {
                None => head.push_str(&[field, "\r\n"].concat()),
                Some(other) if other.is_empty() => {}
                Some(other) => head.push_str(&[&other, "\r\n"].concat()),
            }
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    fn status(bytes: &[u8]) -> u16 {
        match answer(bytes, &WebSocketConfig::default()) {
            Answer::Refuse {
                status, response, ..
            } => {
                let text = String::from_utf8(response).expect("text");
                assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
                assert!(text.contains("\r\n\r\n"));
                status
            }
            Answer::Accept { .. } => 101,
            Answer::Incomplete => 0,
        }
    }

    /// The example of RFC 6455, section 1.3. [MQTT-6.0.0-4] The subprotocol is "mqtt" although the
    /// client prefers another one.
    #[test]
    fn a_good_request_is_accepted() {
        let mut wire = request("GET /mqtt?x=1 HTTP/1.1", |_| None);
        let head = wire.len();
        wire.extend_from_slice(b"frames");
        let Answer::Accept {
            head_bytes,
            subprotocol,
            response,
        } = answer(&wire, &WebSocketConfig::default())
        else {
            panic!("not accepted");
        };
        assert_eq!(head_bytes, head);
        assert_eq!(subprotocol, "mqtt");
        let response = String::from_utf8(response).expect("text");
        assert!(response.starts_with("HTTP/1.1 101 Switching Protocols\r\n"));
        assert!(response.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        assert!(response.contains("Sec-WebSocket-Protocol: mqtt\r\n"));
        assert!(response.ends_with("\r\n\r\n"));
        for cut in 0..head {
            let config = WebSocketConfig::default();
            assert_eq!(answer(&wire[..cut], &config), Answer::Incomplete);
        }
    }

    /// [MQTT-6.0.0-3] Among others: a client that does not offer "mqtt".
    #[test]
    fn each_mistake_has_its_status() {
        let drop = |dropped: &'static str| move |name: &str| (name == dropped).then(String::new);
        let replace = |field: &'static str| {
            move |name: &str| field.starts_with(name).then(|| field.to_owned())
        };
        let line = "GET / HTTP/1.1";
        assert_eq!(status(&request(line, |_| None)), 101);
        assert_eq!(status(&request("POST / HTTP/1.1", |_| None)), 405);
        assert_eq!(status(&request("GET / HTTP/1.0", |_| None)), 505);
        assert_eq!(status(&request("GET /other HTTP/1.1", |_| None)), 404);
        assert_eq!(status(&request(line, drop("Upgrade"))), 426);
        assert_eq!(status(&request(line, drop("Host"))), 400);
        assert_eq!(status(&request(line, drop("Connection"))), 400);
        assert_eq!(status(&request(line, drop("Sec-WebSocket-Key"))), 400);
        assert_eq!(
            status(&request(line, replace("Sec-WebSocket-Key: AAAA"))),
            400
        );
        assert_eq!(status(&request(line, drop("Sec-WebSocket-Version"))), 426);
        assert_eq!(
            status(&request(line, replace("Sec-WebSocket-Version: 8"))),
            426
        );
        assert_eq!(
            status(&request(line, replace("Sec-WebSocket-Protocol: amqp"))),
            400
        );
        assert_eq!(status(&request(line, drop("Sec-WebSocket-Protocol"))), 400);
        let twice = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Key: x";
        assert_eq!(status(&request(line, replace(twice))), 400);
        assert_eq!(status(b"\x10\x0c\x00\x04MQTT\x05\x02"), 400);
        assert_eq!(status(b"\x16\x03\x01\x00\xf0"), 400);
        assert!(KEY.len() == 24);
    }

    /// DNS rebinding: the page's own name leads to this host, so its origin is the request's.
    #[test]
    fn a_name_that_is_not_ours_is_misdirected() {
        let status_of = |config: &WebSocketConfig, host: &str| {
            let fields = format!("Host: {host}\r\nOrigin: http://{host}");
            let wire = request("GET / HTTP/1.1", |name| {
                (name == "Host").then(|| fields.clone())
            });
            match answer(&wire, config) {
                Answer::Refuse { status, .. } => status,
                Answer::Accept { .. } => 101,
                Answer::Incomplete => 0,
            }
        };
        let on_loopback = WebSocketConfig {
            on_loopback: true,
            ..WebSocketConfig::default()
        };
        assert_eq!(status_of(&on_loopback, "evil.example:8083"), 421);
        assert_eq!(status_of(&on_loopback, "localhost:8083"), 101);
        assert_eq!(status_of(&on_loopback, "127.0.0.1:8083"), 101);
        let named = WebSocketConfig::default();
        named.pages.replace(Pages {
            hosts: vec!["broker.example".into()],
            ..Pages::default()
        });
        assert_eq!(status_of(&named, "evil.example:8083"), 421);
        assert_eq!(status_of(&named, "broker.example:8083"), 101);
    }

    #[test]
    fn long_heads_and_foreign_origins_are_refused() {
        let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(9_000));
        assert_eq!(status(long.as_bytes()), 431);
        let many = "X: y\r\n".repeat(70);
        assert_eq!(status(format!("GET / HTTP/1.1\r\n{many}").as_bytes()), 431);

        // By default no page but those of the listener's own origin.
        for (origin, expected) in [
            ("https://evil.example", 403),
            ("null", 403),
            ("https://broker.example:8083", 101),
            ("http://broker.example:8083", 101),
            ("http://broker.example:8080", 403),
        ] {
            let field = format!("Sec-WebSocket-Version: 13\r\nOrigin: {origin}");
            let wire = request("GET / HTTP/1.1", |name| {
                (name == "Sec-WebSocket-Version").then(|| field.clone())
            });
            assert_eq!(status(&wire), expected, "{origin}");
        }
        let pages = Pages {
            origins: vec!["https://app.example".into()],
            ..Pages::default()
        };
        let config = WebSocketConfig {
            pages: SharedPages::new(pages),
            require_subprotocol: false,
            ..WebSocketConfig::default()
        };
        let with_origin = |origin: &'static str| {
            let wire = request("GET / HTTP/1.1", |name| {
                (name == "Sec-WebSocket-Protocol").then(|| format!("Origin: {origin}"))
            });
            answer(&wire, &config)
        };
        assert!(matches!(
            with_origin("https://evil.example"),
            Answer::Refuse { status: 403, .. }
        ));
        let Answer::Accept {
            subprotocol,
            response,
            ..
        } = with_origin("https://APP.example")
        else {
            panic!("not accepted");
        };
        assert_eq!(subprotocol, "");
        assert!(!String::from_utf8_lossy(&response).contains("Sec-WebSocket-Protocol"));
    }
}
