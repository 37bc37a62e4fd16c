//! Endpoints against servers of their own making, with TLS and without.

use std::net::TcpListener;
use std::sync::mpsc::channel;

use rustls::{ServerConfig, ServerConnection};
use rustls_pki_types::PrivatePkcs8KeyDer;

use super::*;

/// A server's certificate, and the folder with the file of its authority.
struct Secure {
    tls: Arc<ServerConfig>,
    folder: tempfile::TempDir,
}

impl Secure {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).expect("written");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .expect("a configuration");
        Self {
            tls: Arc::new(tls),
            folder,
        }
    }
}

/// The server's end of the next connection.
fn accept(
    listener: &TcpListener,
    secure: Option<&Arc<ServerConfig>>,
) -> io::Result<Box<dyn Stream>> {
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(false)?;
    Ok(match secure {
        None => Box::new(stream),
        Some(tls) => {
            let server = ServerConnection::new(Arc::clone(tls)).expect("a connection");
            Box::new(StreamOwned::new(server, stream))
        }
    })
}

/// Writes an answer as a whole.
fn answer(stream: &mut dyn Stream, text: &str) {
    // The client may have gone.
    let _ = stream
        .write_all(text.as_bytes())
        .and_then(|()| stream.flush());
}

/// Where a server listens, as its clients call it.
fn listen(secure: Option<&Secure>) -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("an address").port();
    let scheme = if secure.is_some() { "https" } else { "http" };
    (listener, format!("{scheme}://localhost:{port}/"))
}

/// A client of a server that answers each request, on any connection, with the next of `answers`. The server then ends
/// the connection if `ends`.
fn client_of(
    answers: &'static [&'static str],
    ends: bool,
    keep_alive: Duration,
    secure: Option<&Secure>,
) -> Endpoint {
    let (listener, url) = listen(secure);
    let tls = secure.map(|secure| Arc::clone(&secure.tls));
    std::thread::spawn(move || {
        let mut answers = answers.iter();
        while let Ok(mut stream) = accept(&listener, tls.as_ref()) {
            let mut bytes = [0; 4096];
            // Each request is one write.
            while stream.read(&mut bytes).unwrap_or(0) > 0 {
                let Some(text) = answers.next() else { return };
                answer(&mut *stream, text);
                if ends || text.is_empty() {
                    break;
                }
            }
        }
    });
    endpoint(&url, keep_alive, secure)
}

fn endpoint(url: &str, keep_alive: Duration, secure: Option<&Secure>) -> Endpoint {
    let ca = secure.map(|secure| secure.folder.path().join("ca.pem"));
    Endpoint::new(&Terms {
        url: ("webhook.authentication_url", url),
        ca: ("webhook.ca", ca.as_deref()),
        plain: Plain::Here,
        timeout_ms: 10_000,
        maximum_bytes: ("maximum", 1_000),
        keep_alive,
    })
    .expect("an endpoint")
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
const LAST: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
const OLD: &str = "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}";
const MORE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n";
const TWICE: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n\
    HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n";
const BAD: &str = "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n";
const KEPT: Duration = Duration::from_secs(60);

#[test]
fn a_connection_is_used_again_where_the_answer_lets_it() {
    let secure = Secure::new();
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
        for secure in [None, Some(&secure)] {
            let endpoint = client_of(answers, ends, keep_alive, secure);
            for _ in answers {
                let deadline = Instant::now() + Duration::from_secs(10);
                assert_eq!(endpoint.post("", b"{}", deadline), Ok("{}".to_owned()));
            }
            assert_eq!(endpoint.connects(), connects, "{answers:?}");
        }
    }
}

/// Bytes that come while a connection waits are the answer to nothing.
#[test]
fn what_nobody_asked_for_is_not_the_next_answer() {
    let secure = Secure::new();
    for stray in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "H",
    ] {
        for secure in [None, Some(&secure)] {
            stray_is_no_answer(stray, secure);
        }
    }
}

fn stray_is_no_answer(stray: &'static str, secure: Option<&Secure>) {
    let (listener, url) = listen(secure);
    let tls = secure.map(|secure| Arc::clone(&secure.tls));
    let (kept, is_kept) = channel();
    let (sent, is_sent) = channel();
    let server = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        let mut first = accept(&listener, tls.as_ref()).expect("a connection");
        let _ = first.read(&mut bytes).expect("a request");
        answer(&mut *first, OK);
        is_kept.recv().expect("the answer was read");
        answer(&mut *first, stray);
        sent.send(()).expect("waits");
        // A client that uses the first again does not come here.
        let mut second = accept(&listener, tls.as_ref()).expect("another connection");
        let _ = second.read(&mut bytes).expect("a request");
        answer(&mut *second, OK);
    });
    let endpoint = endpoint(&url, KEPT, secure);
    let deadline = Instant::now() + Duration::from_secs(10);
    assert_eq!(endpoint.post("", b"1", deadline), Ok("{}".to_owned()));
    kept.send(()).expect("waits");
    is_sent.recv().expect("it is sent");
    if let Some((connection, _)) = endpoint.idle().first_mut() {
        connection.by(deadline);
        let stream = match connection {
            Connection::Plain(timed) => &timed.stream,
            Connection::Tls(stream) => &stream.sock.stream,
        };
        let _ = stream.peek(&mut [0]).expect("it has come");
    }
    let second = endpoint.post("", b"2", deadline);
    assert_eq!(second, Ok("{}".to_owned()), "{stray}");
    assert_eq!(endpoint.connects(), 2);
    server.join().expect("no panic");
}

#[test]
fn a_bad_answer_is_not_asked_for_again_and_no_answer_only_once() {
    let now = || Instant::now() + Duration::from_secs(10);
    let bad = client_of(&[OK, BAD, OK], false, KEPT, None);
    assert!(bad.post("", b"1", now()).is_ok());
    let unanswered = bad.post("", b"2", now()).expect_err("a bad answer");
    assert!(unanswered.why.contains("500"), "{unanswered:?}");
    assert_eq!(unanswered.silence, None, "the server lives");
    // The connection of a bad answer is not trusted.
    assert!(bad.idle().is_empty());
    let down = client_of(&[OK, "", "", OK], false, KEPT, None);
    assert!(down.post("", b"1", now()).is_ok());
    let unanswered = down.post("", b"2", now()).expect_err("no answer");
    assert!(
        unanswered.why.contains("without an answer"),
        "{unanswered:?}"
    );
    assert_eq!(unanswered.silence, Some(Silence::Silent));
    assert_eq!(down.connects(), 2);
    let slow = client_of(&[OK], false, KEPT, None);
    assert!(slow.post("", b"1", now()).is_ok());
    let old = Duration::from_secs(61);
    let before = Instant::now().checked_sub(old).expect("a past");
    slow.idle()[0].1 = before;
    assert!(slow.idle_connection().is_none(), "it has waited too long");
}
