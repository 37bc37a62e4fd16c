//! One request over HTTP, with or without TLS, by a thread that may wait.
//!
//! The client is small on purpose: no redirects, no cookies, no compression. A limit bounds the time of the whole
//! request and the bytes of its answer. A connection is used again where the settings say so. There are as many as
//! threads that ask at a time. One that the server has closed meanwhile is replaced, and asked again: nothing of an
//! answer had come then. One on which something came that nobody has asked for is replaced too: it would be taken for
//! the next answer (RFC 9112, section 9.2).

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};

/// Largest head of an answer, in bytes.
const MAXIMUM_HEAD_BYTES: usize = 16 << 10;
/// Fields of an answer.
const MAXIMUM_FIELDS: usize = 64;
/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;

/// What the settings say of an endpoint, with the names of those that can be at fault.
pub(super) struct Terms<'a> {
    pub(super) url: (&'static str, &'a str),
    pub(super) ca: (&'static str, Option<&'a Path>),
    /// Whether `http://` is taken: on this host, or anywhere.
    pub(super) plain: Plain,
    pub(super) timeout_ms: u64,
    pub(super) maximum_bytes: (&'static str, u32),
    /// How long a connection waits for the next request; zero: it ends with its first.
    pub(super) keep_alive: Duration,
}

/// Where `http://` is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plain {
    Nowhere,
    /// On loopback.
    Here,
    Everywhere,
}

/// A URL that is asked, and who may answer for it.
#[derive(Debug)]
pub(super) struct Endpoint {
    url: Url,
    /// `None` for plain HTTP.
    tls: Option<Arc<ClientConfig>>,
    timeout: Duration,
    maximum_bytes: (&'static str, usize),
    keep_alive: Duration,
    /// Connections that wait, the latest last, and since when.
    idle: Mutex<Vec<(Connection, Instant)>>,
    /// Connections that were made.
    connects: AtomicU64,
}

/// The parts of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Url {
    is_secure: bool,
    host: String,
    port: u16,
    /// Host and port as the URL has them.
    authority: String,
    target: String,
}

impl Url {
    fn parse((setting, text): (&str, &str), plain: Plain) -> Result<Self, String> {
        let fault = |why: &str| format!("{setting}: `{text}` {why}");
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
        })
    }

    /// The addresses of the host. The system's resolver has no time limit of its own choosing, so it runs
    /// on a thread that is left alone when the time is over.
    fn addresses(&self, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
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

/// A connection to the server.
#[derive(Debug)]
enum Connection {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

impl Connection {
    fn by(&mut self, deadline: Instant) {
        let timed = match self {
            Self::Plain(timed) => timed,
            Self::Tls(stream) => &mut stream.sock,
        };
        timed.deadline = deadline;
    }

    /// Whether nothing has come since the last answer, not even the end of the connection.
    fn is_quiet(&mut self) -> bool {
        let stream = match self {
            Self::Plain(timed) => &timed.stream,
            Self::Tls(stream) => {
                let state = stream.conn.process_new_packets();
                if state.is_ok_and(|state| state.plaintext_bytes_to_read() > 0) {
                    return false;
                }
                &stream.sock.stream
            }
        };
        let peek = || {
            stream.set_nonblocking(true)?;
            let peeked = stream.peek(&mut [0]);
            stream.set_nonblocking(false)?;
            peeked
        };
        peek().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    fn stream(&mut self) -> &mut dyn Stream {
        match self {
            Self::Plain(timed) => timed,
            Self::Tls(stream) => &mut **stream,
        }
    }
}

/// A TCP connection that fails when a time is over, however often a few bytes come.
#[derive(Debug)]
struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A connection, with TLS or without.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Endpoint {
    /// The endpoint that settings name.
    ///
    /// # Errors
    /// A sentence that names the setting, or the file, and its fault.
    pub(super) fn new(terms: &Terms<'_>) -> Result<Self, String> {
        let url = Url::parse(terms.url, terms.plain)?;
        let tls = (url.is_secure).then(|| tls_config(terms)).transpose()?;
        let (setting, most) = terms.maximum_bytes;
        Ok(Self {
            url,
            tls,
            timeout: Duration::from_millis(terms.timeout_ms),
            maximum_bytes: (setting, most as usize),
            keep_alive: terms.keep_alive,
            idle: Mutex::default(),
            connects: AtomicU64::new(0),
        })
    }

    /// Connections that were made so far.
    pub(super) fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }

    /// Gets what the URL has, and waits for it.
    ///
    /// # Errors
    /// What went wrong, in words.
    pub(super) fn get(&self) -> Result<String, String> {
        self.ask("GET", "", b"", Instant::now() + self.timeout)
    }

    /// Sends JSON, with further fields (each with its end of line), and waits for the answer until a
    /// deadline.
    ///
    /// # Errors
    /// What went wrong, in words.
    pub(super) fn post(
        &self,
        fields: &str,
        content: &[u8],
        deadline: Instant,
    ) -> Result<String, String> {
        let length = content.len();
        let mut all = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        all.push_str(fields);
        self.ask("POST", &all, content, deadline)
    }

    fn ask(
        &self,
        method: &str,
        fields: &str,
        content: &[u8],
        deadline: Instant,
    ) -> Result<String, String> {
        let Url {
            authority, target, ..
        } = &self.url;
        let goes_on = if self.keep_alive.is_zero() {
            "close"
        } else {
            "keep-alive"
        };
        let mut request = String::new();
        let _ = write!(
            request,
            "{method} {target} HTTP/1.1\r\nHost: {authority}\r\nAccept: application/json\r\n\
             User-Agent: sterna\r\nConnection: {goes_on}\r\n{fields}\r\n"
        );
        let mut request = request.into_bytes();
        request.extend_from_slice(content);
        while let Some(mut connection) = self.idle_connection() {
            connection.by(deadline);
            match self.exchange(connection, &request) {
                // The server has closed it before it got the request, or with it.
                Err(Fault::Silent) if Instant::now() < deadline => {}
                Err(fault) => return Err(fault.into_words()),
                Ok(answer) => return Ok(answer),
            }
        }
        let connection = (self.connect(deadline)).map_err(|error| said(&error))?;
        self.connects.fetch_add(1, Ordering::Relaxed);
        let answer = self.exchange(connection, &request);
        answer.map_err(Fault::into_words)
    }

    /// Sends a request on a connection, which is kept if it can be used again.
    fn exchange(&self, mut connection: Connection, request: &[u8]) -> Result<String, Fault> {
        let stream = connection.stream();
        let mut answer = Vec::new();
        let silent = |error: io::Error| match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Fault::Said(said(&error)),
            _ => Fault::Silent,
        };
        stream.write_all(request).map_err(silent)?;
        stream.flush().map_err(silent)?;
        let mut bytes = vec![0; READ_BYTES];
        loop {
            // What is complete needs no end of the connection.
            if let Some(content) = content_of(&answer, false, self.maximum_bytes)? {
                if content.is_last {
                    return Ok(content.text);
                }
                self.keep(connection);
                return Ok(content.text);
            }
            let read = match stream.read(&mut bytes) {
                Err(error) if answer.is_empty() => return Err(silent(error)),
                read => read.map_err(|error| Fault::Said(said(&error)))?,
            };
            match read {
                0 if answer.is_empty() => return Err(Fault::Silent),
                0 => break,
                read => answer.extend_from_slice(&bytes[..read]),
            }
        }
        let content = content_of(&answer, true, self.maximum_bytes)?;
        let cut_off = || Fault::Said("the answer is cut off".to_owned());
        Ok(content.ok_or_else(cut_off)?.text)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Connection, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest connection that waits. Those end that have waited too long, and those on which something came.
    fn idle_connection(&self) -> Option<Connection> {
        let mut idle = self.idle();
        idle.retain(|(_, since)| since.elapsed() < self.keep_alive);
        while let Some((mut connection, _)) = idle.pop() {
            if connection.is_quiet() {
                return Some(connection);
            }
            tracing::debug!(
                host = self.url.authority,
                "a connection is not used again: the server has ended it, or sent what nobody asked for"
            );
        }
        None
    }

    fn keep(&self, connection: Connection) {
        if !self.keep_alive.is_zero() {
            self.idle().push((connection, Instant::now()));
        }
    }

    fn connect(&self, deadline: Instant) -> io::Result<Connection> {
        let mut last = io::Error::other("the host has no address");
        for address in self.url.addresses(deadline)? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    // Head and content are one write, and nothing is to wait for an acknowledgement.
                    stream.set_nodelay(true)?;
                    let timed = Timed { stream, deadline };
                    let Some(tls) = &self.tls else {
                        return Ok(Connection::Plain(timed));
                    };
                    let name = ServerName::try_from(self.url.host.clone());
                    let name = name.map_err(io::Error::other)?;
                    let client = ClientConnection::new(Arc::clone(tls), name);
                    let client = client.map_err(io::Error::other)?;
                    return Ok(Connection::Tls(Box::new(StreamOwned::new(client, timed))));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Why there is no answer.
enum Fault {
    /// The connection has ended, and nothing of an answer came.
    Silent,
    /// In words.
    Said(String),
}

impl Fault {
    fn into_words(self) -> String {
        match self {
            Self::Silent => "the connection ended without an answer".to_owned(),
            Self::Said(why) => why,
        }
    }
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        Self::Said(why)
    }
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        // The system's word for a read that took too long.
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "it takes too long".to_owned(),
        _ => error.to_string(),
    }
}

/// TLS that trusts the authority of the settings, or those of the system.
fn tls_config(terms: &Terms<'_>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    let (setting, path) = terms.ca;
    if let Some(path) = path {
        let fault = |why: String| format!("{}: {why}", path.display());
        let pem = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| fault(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| fault(error.to_string()))?;
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        return Err(format!("{setting}: there is no certificate to trust"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(tls))
}

/// The content of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Answered {
    text: String,
    /// The connection cannot be used again.
    is_last: bool,
}

/// The content of an answer of HTTP/1.1, if that is complete; `is_over` says that no more comes.
fn content_of(
    answer: &[u8],
    is_over: bool,
    (setting, most): (&str, usize),
) -> Result<Option<Answered>, String> {
    let too_long = || format!("the answer is longer than {setting} ({most})");
    let mut fields = [httparse::EMPTY_HEADER; MAXIMUM_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let parsed = head.parse(answer).map_err(|error| error.to_string())?;
    let httparse::Status::Complete(head_bytes) = parsed else {
        if answer.len() > MAXIMUM_HEAD_BYTES {
            return Err("the answer's head is too long".to_owned());
        }
        return Ok(None);
    };
    if head.code != Some(200) {
        return Err(format!("the answer has status {}", head.code.unwrap_or(0)));
    }
    let field = |name: &str| {
        let mut found = (head.headers.iter()).filter(|field| field.name.eq_ignore_ascii_case(name));
        found.next().map(|field| field.value)
    };
    let rest = &answer[head_bytes..];
    let closes = field("connection").is_some_and(|value| {
        let mut words = value.split(|byte| *byte == b',');
        words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
    });
    // What follows the content is nothing that was asked for.
    let mut ends = head.version == Some(1) && !closes;
    let content = if let Some(coding) = field("transfer-encoding") {
        if !coding.eq_ignore_ascii_case(b"chunked") {
            return Err("the answer has a transfer coding that was not asked for".to_owned());
        }
        let found = unchunked(rest, most).map_err(|why| why.unwrap_or_else(too_long))?;
        found.map(|(content, after)| {
            ends &= after == b"\r\n";
            content
        })
    } else if let Some(length) = field("content-length") {
        let length = std::str::from_utf8(length)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let length: usize = length.ok_or("the answer's length is not a number")?;
        if length > most {
            return Err(too_long());
        }
        ends &= rest.len() == length;
        rest.get(..length).map(<[u8]>::to_vec)
    } else {
        if rest.len() > most {
            return Err(too_long());
        }
        ends = false;
        is_over.then(|| rest.to_vec())
    };
    let Some(content) = content else {
        return Ok(None);
    };
    let text = String::from_utf8(content).map_err(|_| "the answer is not UTF-8".to_owned())?;
    Ok(Some(Answered {
        text,
        is_last: !ends,
    }))
}

/// Content, and what follows it.
type Parted<'a> = (Vec<u8>, &'a [u8]);

/// Content in chunks, put together, with what follows the last chunk; `None` if more is to come. The error is `None`
/// for too much.
fn unchunked(mut rest: &[u8], most: usize) -> Result<Option<Parted<'_>>, Option<String>> {
    let mut content = Vec::new();
    loop {
        let size = httparse::parse_chunk_size(rest);
        let size = size.map_err(|_| Some("a chunk of the answer has no size".to_owned()))?;
        let httparse::Status::Complete((head, size)) = size else {
            return Ok(None);
        };
        if size == 0 {
            return Ok(Some((content, &rest[head..])));
        }
        let size = usize::try_from(size).map_err(|_| None)?;
        if size > most.saturating_sub(content.len()) {
            return Err(None);
        }
        let Some(chunk) = rest.get(head..head + size) else {
            return Ok(None);
        };
        content.extend_from_slice(chunk);
        match rest.get(head + size..head + size + 2) {
            None => return Ok(None),
            Some(b"\r\n") => rest = &rest[head + size + 2..],
            Some(_) => return Err(Some("a chunk of the answer has no end".to_owned())),
        }
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

    #[test]
    fn answers_are_read_in_each_form_and_bounded() {
        let whole = |text: &str| content_of(text.as_bytes(), true, ("maximum_keys_bytes", 10));
        let ok = "HTTP/1.1 200 OK\r\n";
        for (text, expected) in [
            (format!("{ok}Content-Length: 2\r\n\r\n{{}}"), Ok(Some("{}"))),
            (format!("{ok}Content-Length: 3\r\n\r\n{{}}"), Ok(None)),
            (format!("{ok}\r\n{{}}"), Ok(Some("{}"))),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n1\r\n}}\r\n0\r\n\r\n"),
                Ok(Some("{}")),
            ),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n1\r\n"),
                Ok(None),
            ),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\n1\r\n{{xx"),
                Err("no end"),
            ),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
                Err("no size"),
            ),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\nb\r\n"),
                Err("maximum_keys_bytes"),
            ),
            (
                format!("{ok}Transfer-Encoding: gzip\r\n\r\n"),
                Err("transfer coding"),
            ),
            (
                format!("{ok}Content-Length: 11\r\n\r\n"),
                Err("maximum_keys_bytes"),
            ),
            (
                format!("{ok}Content-Length: x\r\n\r\n"),
                Err("not a number"),
            ),
            (format!("{ok}\r\n12345678901"), Err("maximum_keys_bytes")),
            (
                "HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n".to_owned(),
                Err("status 302"),
            ),
            ("HTTP/1.1 500 No\r\n\r\n".to_owned(), Err("status 500")),
            ("garbage".to_owned(), Err("invalid")),
            (
                format!("{ok}X: {}", "x".repeat(MAXIMUM_HEAD_BYTES)),
                Err("too long"),
            ),
        ] {
            match (whole(&text), expected) {
                (Ok(found), Ok(expected)) => {
                    let found = found.map(|answered| answered.text);
                    assert_eq!(found.as_deref(), expected, "{text}");
                }
                (Err(why), Err(named)) => assert!(why.contains(named), "{text}: {why}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
        assert_eq!(
            content_of(format!("{ok}\r\n{{}}").as_bytes(), false, ("x", 10)),
            Ok(None)
        );
    }

    /// A server that answers each request of each connection with the next of these, and then ends the connection
    /// if `ends`.
    fn server(answers: &'static [&'static str], ends: bool) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let mut answers = answers.iter();
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut bytes = [0; 4096];
                // Each request is one write.
                while stream.read(&mut bytes).unwrap_or(0) > 0 {
                    let Some(answer) = answers.next() else { return };
                    let _ = stream.write_all(answer.as_bytes());
                    if ends || answer.is_empty() {
                        break;
                    }
                }
            }
        });
        format!("http://{address}/")
    }

    fn endpoint(url: &str, keep_alive: Duration) -> Endpoint {
        Endpoint::new(&Terms {
            url: ("webhook.authentication_url", url),
            ca: ("webhook.ca", None),
            plain: Plain::Here,
            timeout_ms: 10_000,
            maximum_bytes: ("maximum", 1_000),
            keep_alive,
        })
        .expect("an endpoint")
    }

    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    const LAST: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
    const OLD: &str = "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    const MORE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n";
    const TWICE: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n";
    const BAD: &str = "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n";
    const KEPT: Duration = Duration::from_secs(60);

    #[test]
    fn a_connection_is_used_again_where_the_answer_lets_it() {
        for (answers, ends, keep_alive, connects) in [
            (&[OK, CHUNKED, OK, OK][..], false, KEPT, 1),
            (&[OK, OK, OK, OK], false, Duration::ZERO, 4),
            (&[LAST, OK, LAST, OK], true, KEPT, 4),
            (&[OLD, OK, OK, OK], true, KEPT, 4),
            (&[MORE, OK, OK, OK], true, KEPT, 4),
            (&[TWICE, OK], false, KEPT, 2),
            // The server ends it without a word: it is asked again on another one.
            (&[OK, OK, OK, OK], true, KEPT, 4),
        ] {
            let endpoint = endpoint(&server(answers, ends), keep_alive);
            for _ in answers {
                let deadline = Instant::now() + Duration::from_secs(10);
                assert_eq!(endpoint.post("", b"{}", deadline), Ok("{}".to_owned()));
            }
            assert_eq!(endpoint.connects(), connects, "{answers:?}");
        }
    }

    /// What comes while a connection waits is the answer to nothing.
    #[test]
    fn what_nobody_asked_for_is_not_the_next_answer() {
        for stray in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
            "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            "H",
        ] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
            let url = format!("http://{}/", listener.local_addr().expect("an address"));
            let (kept, is_kept) = channel();
            let (sent, is_sent) = channel();
            let server = std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                let (mut first, _) = listener.accept().expect("a connection");
                let _ = first.read(&mut bytes).expect("a request");
                first.write_all(OK.as_bytes()).expect("writes");
                is_kept.recv().expect("the answer was read");
                first.write_all(stray.as_bytes()).expect("writes");
                sent.send(()).expect("waits");
                // A client that uses the first again does not come here.
                listener.set_nonblocking(true).expect("a socket");
                while first.peek(&mut bytes).unwrap_or(0) == 0 {
                    if let Ok((mut second, _)) = listener.accept() {
                        second.set_nonblocking(false).expect("a socket");
                        let _ = second.read(&mut bytes).expect("a request");
                        second.write_all(OK.as_bytes()).expect("writes");
                        return true;
                    }
                }
                false
            });
            let endpoint = endpoint(&url, KEPT);
            let deadline = Instant::now() + Duration::from_secs(10);
            assert_eq!(endpoint.post("", b"1", deadline), Ok("{}".to_owned()));
            kept.send(()).expect("waits");
            is_sent.recv().expect("it is sent");
            if let Some((Connection::Plain(timed), _)) = endpoint.idle().first() {
                let _ = timed.stream.peek(&mut [0]).expect("it has come");
            }
            let second = endpoint.post("", b"2", deadline);
            assert_eq!(second, Ok("{}".to_owned()), "{stray}");
            assert_eq!(endpoint.connects(), 2);
            assert!(server.join().expect("no panic"));
        }
    }

    #[test]
    fn a_bad_answer_is_not_asked_for_again_and_no_answer_only_once() {
        let now = || Instant::now() + Duration::from_secs(10);
        let bad = endpoint(&server(&[OK, BAD, OK], false), KEPT);
        assert!(bad.post("", b"1", now()).is_ok());
        let why = bad.post("", b"2", now()).expect_err("a bad answer");
        assert!(why.contains("500"), "{why}");
        // The connection of a bad answer is not trusted.
        assert!(bad.idle().is_empty());
        let down = endpoint(&server(&[OK, "", "", OK], false), KEPT);
        assert!(down.post("", b"1", now()).is_ok());
        let why = down.post("", b"2", now()).expect_err("no answer");
        assert!(why.contains("without an answer"), "{why}");
        assert_eq!(down.connects(), 2);
        let slow = endpoint(&server(&[OK], false), KEPT);
        assert!(slow.post("", b"1", now()).is_ok());
        let old = Duration::from_secs(61);
        let before = Instant::now().checked_sub(old).expect("a past");
        slow.idle()[0].1 = before;
        assert!(slow.idle_connection().is_none(), "it has waited too long");
    }
}
