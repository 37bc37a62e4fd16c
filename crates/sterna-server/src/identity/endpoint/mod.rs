//! One request over HTTP, with or without TLS, by a thread that may wait.
//!
//! The client is small on purpose: no redirects, no cookies, no compression. A limit bounds the time of the whole
//! request and the bytes of its answer. A connection is used again where the settings say so. There are as many
//! connections as threads that ask at a time. One that the server has closed meanwhile is replaced, and the request
//! sent again: no byte of an answer had come then. A connection with bytes that nobody asked for is replaced, too. They
//! would be taken for the next answer (RFC 9112, section 9.2).

mod answer;
mod url;

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};

use answer::content_of;
pub(super) use url::Plain;
use url::Url;

/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Silence {
    /// There was no connection, and nothing was asked.
    Unreachable,
    /// The question was sent, and no answer came to its end.
    Silent,
}

/// The settings of an endpoint, with the names of those that can be at fault.
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

    /// Gets the content of the URL, and waits for it.
    ///
    /// # Errors
    /// The reason, in words.
    pub(super) fn get(&self) -> Result<String, String> {
        let answer = self.ask("GET", "", b"", Instant::now() + self.timeout);
        answer.map_err(|unanswered| unanswered.why)
    }

    /// The URL without what may be secret in it.
    pub(super) fn shown(&self) -> &str {
        &self.url.shown
    }

    /// Sends JSON, with further fields (each with its end of line), and waits for the answer until a
    /// deadline.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn post(
        &self,
        fields: &str,
        content: &[u8],
        deadline: Instant,
    ) -> Result<String, Unanswered> {
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
    ) -> Result<String, Unanswered> {
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
                Err(fault) => return Err(fault.into()),
                Ok(answer) => return Ok(answer),
            }
        }
        let connection = self.connect(deadline).map_err(|error| Unanswered {
            why: said(&error),
            silence: Some(Silence::Unreachable),
        })?;
        self.connects.fetch_add(1, Ordering::Relaxed);
        Ok(self.exchange(connection, &request)?)
    }

    /// Sends a request on a connection, which is kept if it can be used again.
    fn exchange(&self, mut connection: Connection, request: &[u8]) -> Result<String, Fault> {
        let stream = connection.stream();
        let mut answer = Vec::new();
        let silent = |error: io::Error| match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Fault::Cut(said(&error)),
            _ => Fault::Silent,
        };
        stream.write_all(request).map_err(silent)?;
        stream.flush().map_err(silent)?;
        let mut bytes = vec![0; READ_BYTES];
        loop {
            // A complete answer needs no end of the connection.
            if let Some(content) = content_of(&answer, false, self.maximum_bytes)? {
                if content.is_last {
                    return Ok(content.text);
                }
                self.keep(connection);
                return Ok(content.text);
            }
            let read = match stream.read(&mut bytes) {
                Err(error) if answer.is_empty() => return Err(silent(error)),
                read => read.map_err(|error| Fault::Cut(said(&error)))?,
            };
            match read {
                0 if answer.is_empty() => return Err(Fault::Silent),
                0 => break,
                read => answer.extend_from_slice(&bytes[..read]),
            }
        }
        let content = content_of(&answer, true, self.maximum_bytes)?;
        let cut_off = || Fault::Cut("the answer is cut off".to_owned());
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
    /// The answer did not come to its end, in words.
    Cut(String),
    /// There is an answer, and what is wrong with it, in words.
    Said(String),
}

/// Why there is no good answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unanswered {
    /// In words.
    pub(super) why: String,
    /// `None` where there was an answer: the server lives.
    pub(super) silence: Option<Silence>,
}

impl From<Fault> for Unanswered {
    fn from(fault: Fault) -> Self {
        let (why, silence) = match fault {
            Fault::Silent => (
                "the connection ended without an answer".to_owned(),
                Some(Silence::Silent),
            ),
            Fault::Cut(why) => (why, Some(Silence::Silent)),
            Fault::Said(why) => (why, None),
        };
        Self { why, silence }
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

#[cfg(test)]
mod tests;
