//! The issuer's keys from a URL: they are read, followed, and kept when the URL is down, slow or lying.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use serde_json::json;
use sterna_server::Server;
use sterna_server::config::{Config, Listener};

use crate::scrape::metric;

/// How long anything may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A key of the issuer.
struct Key {
    name: &'static str,
    pair: Arc<Ed25519KeyPair>,
}

impl Key {
    fn new(name: &'static str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("a key");
        let pair = Arc::new(pair);
        Self { name, pair }
    }

    /// The same key by another name.
    fn renamed(&self, name: &'static str) -> Self {
        let pair = Arc::clone(&self.pair);
        Self { name, pair }
    }

    fn jwk(&self) -> serde_json::Value {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref());
        json!({"kty": "OKP", "crv": "Ed25519", "kid": self.name, "x": x})
    }

    fn token(&self) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let end_s = now.expect("a time").as_secs() + 3600;
        let header = json!({"alg": "EdDSA", "kid": self.name});
        let claims = json!({"iss": "i", "aud": "sterna", "sub": "ann", "exp": end_s});
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

fn set(keys: &[&Key]) -> Answer {
    let keys: Vec<_> = keys.iter().map(|key| key.jwk()).collect();
    let text = json!({ "keys": keys }).to_string();
    let length = text.len();
    Answer::Text(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{text}"
    ))
}

/// What the URL answers.
#[derive(Clone)]
enum Answer {
    Text(String),
    /// Nothing, and the connection stays open.
    Silence,
    /// The connection is closed before TLS.
    Down,
}

/// A server of HTTPS, which counts the requests that it has answered.
struct Url {
    address: SocketAddr,
    state: Arc<Mutex<(Answer, u32)>>,
    directory: tempfile::TempDir,
}

impl Url {
    fn start(answer: Answer) -> Self {
        let directory = tempfile::tempdir().expect("a folder");
        let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
        let own = own.expect("a certificate");
        std::fs::write(directory.path().join("ca"), own.cert.pem()).expect("written");
        let pem = own.signing_key.serialize_pem();
        std::fs::write(directory.path().join("key"), pem).expect("written");
        let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key.into())
            .expect("a certificate");
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new((answer, 0)));
        let (shared, tls) = (Arc::clone(&state), Arc::new(tls));
        // Ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                let answer = shared.lock().expect("a lock").0.clone();
                match answer {
                    Answer::Down => {}
                    // It stays open as long as the process.
                    Answer::Silence => std::mem::forget(stream),
                    Answer::Text(text) => serve(stream, &tls, &text),
                }
                shared.lock().expect("a lock").1 += 1;
            }
        });
        Self {
            address,
            state,
            directory,
        }
    }

    fn answers(&self, answer: Answer) {
        self.state.lock().expect("a lock").0 = answer;
    }

    fn asked(&self) -> u32 {
        self.state.lock().expect("a lock").1
    }

    /// Waits until some requests more have been answered.
    fn await_requests(&self, more: u32) {
        let until = self.asked() + more;
        await_that("requests", || self.asked() >= until);
    }

    fn ca(&self) -> PathBuf {
        self.directory.path().join("ca")
    }

    fn config(&self) -> Config {
        let mut config = Config {
            listeners: vec![
                Listener::at("mqtt://127.0.0.1:0"),
                Listener::at("admin://127.0.0.1:0"),
            ],
            ..Config::default()
        };
        config.store.enabled = false;
        config.data_directory = Some(self.directory.path().join("data"));
        let jwt = &mut config.authentication.jwt;
        jwt.keys_url = Some(format!("https://localhost:{}/keys", self.address.port()));
        jwt.keys_ca = Some(self.ca());
        jwt.issuer = Some("i".to_owned());
        jwt.audiences = vec!["sterna".to_owned()];
        jwt.keys_refresh_s = 1;
        jwt.keys_retry_s = 1;
        jwt.keys_timeout_ms = 2000;
        jwt.maximum_keys_bytes = 4096;
        config
    }
}

/// The client may find the answer bad and leave.
fn serve(mut stream: TcpStream, tls: &Arc<rustls::ServerConfig>, text: &str) {
    let mut server = rustls::ServerConnection::new(Arc::clone(tls)).expect("a server");
    let mut stream = rustls::Stream::new(&mut server, &mut stream);
    let mut request = [0; 4096];
    let Ok(read) = stream.read(&mut request) else {
        return;
    };
    let request = std::str::from_utf8(&request[..read]).expect("text");
    assert!(request.starts_with("GET /keys HTTP/1.1\r\nHost: localhost:"));
    let _ = stream.write_all(text.as_bytes());
    stream.conn.send_close_notify();
    let _ = stream.flush();
}

fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Connects with MQTT 5 and a token; the connection, if it is admitted.
fn enter(server: &Server, token: &str) -> Option<TcpStream> {
    let url = &server.listeners()[0];
    let address = url.trim_start_matches("mqtt://");
    let mut stream = TcpStream::connect(address).expect("connects");
    let mut body = b"\x00\x04MQTT\x05\xc2\x00\x00\x00\x00\x00\x00\x03ann".to_vec();
    body.extend((token.len() as u16).to_be_bytes());
    body.extend(token.as_bytes());
    let mut packet = vec![0x10, body.len() as u8 | 0x80, (body.len() >> 7) as u8];
    packet.extend(body);
    stream.write_all(&packet).expect("writes");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut head = [0; 4];
    stream.read_exact(&mut head).expect("CONNACK");
    assert_eq!(head[0], 0x20);
    let mut properties = vec![0; usize::from(head[1]) - 2];
    stream.read_exact(&mut properties).expect("CONNACK");
    (head[3] == 0).then_some(stream)
}

/// Whether a client is answered a ping.
fn is_alive(stream: &mut (impl Read + Write)) -> bool {
    let mut answer = [0; 2];
    stream.write_all(&[0xc0, 0]).is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && answer == [0xd0, 0]
}

fn requests(server: &Server, outcome: &str) -> u64 {
    let sample = format!("sterna_token_key_requests_total{{outcome=\"{outcome}\"}}");
    metric(server, &sample)
}

#[test]
fn keys_are_followed_and_the_last_good_ones_stay() {
    let (first, second) = (Key::new("first"), Key::new("second"));
    let url = Url::start(set(&[&first]));
    let server = Server::start(&url.config()).expect("starts");
    let mut early = enter(&server, &first.token()).expect("known at once");
    assert!(enter(&server, &second.token()).is_none());
    // The issuer goes over to another key.
    url.answers(set(&[&first, &second]));
    await_that("the new key", || enter(&server, &second.token()).is_some());
    assert!(enter(&server, &first.token()).is_some());
    assert_eq!(metric(&server, "sterna_token_keys"), 2);
    assert_eq!(requests(&server, "failed"), 0);
    assert!(requests(&server, "good") >= 2);

    let ok = "HTTP/1.1 200 OK\r\n\r\n";
    for bad in [
        Answer::Down,
        Answer::Silence,
        Answer::Text("HTTP/1.1 500 No\r\n\r\n".to_owned()),
        Answer::Text("HTTP/1.1 302 Found\r\nLocation: https://evil.example/\r\n\r\n".to_owned()),
        Answer::Text("garbage".to_owned()),
        Answer::Text(format!("{ok}{{}}")),
        Answer::Text(format!("{ok}{}", "x".repeat(5000))),
        Answer::Text("HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n{".to_owned()),
    ] {
        url.answers(bad);
        // The second one was asked when the answer to the first was done with.
        url.await_requests(2);
        for key in [&first, &second] {
            assert!(enter(&server, &key.token()).is_some(), "{}", key.name);
        }
    }
    assert!(requests(&server, "failed") >= 8, "one for each bad answer");
    // The old key is withdrawn, and its client goes with it.
    url.answers(set(&[&second]));
    await_that("the withdrawal", || {
        enter(&server, &first.token()).is_none()
    });
    assert!(enter(&server, &second.token()).is_some());
    let mut rest = Vec::new();
    early.read_to_end(&mut rest).expect("the end");
    let disconnect = rest
        .windows(3)
        .any(|part| part[0] == 0xe0 && part[2] == 0x87);
    assert!(disconnect, "{rest:?}");
    // An answer without a good key withdraws all, until there is one again.
    let shared =
        json!({"keys": [{"kty": "oct", "kid": "second", "k": "A".repeat(64)}]}).to_string();
    for empty in [r#"{"keys":[]}"#, &shared] {
        url.answers(Answer::Text(format!("{ok}{empty}")));
        await_that("the withdrawal of all", || {
            enter(&server, &second.token()).is_none()
        });
        url.answers(set(&[&second]));
        await_that("its return", || enter(&server, &second.token()).is_some());
    }

    // A reload keeps what was published, also while the URL is down; another URL has to answer.
    url.answers(Answer::Down);
    let failed = requests(&server, "failed");
    server.reload(&url.config()).expect("reloads");
    assert!(requests(&server, "failed") >= failed, "counts go on");
    assert!(enter(&server, &second.token()).is_some());
    let mut other = url.config();
    other.authentication.jwt.keys_url = Some("https://localhost:1/keys".to_owned());
    let why = server.reload(&other).expect_err("is refused");
    assert!(why.contains("authentication.jwt.keys_url"), "{why}");
    assert!(enter(&server, &second.token()).is_some());
}

#[test]
fn a_key_is_followed_to_another_name() {
    let first = Key::new("first");
    let url = Url::start(set(&[&first]));
    let server = Server::start(&url.config()).expect("starts");
    let mut early = enter(&server, &first.token()).expect("known at once");
    let second = first.renamed("second");
    assert!(enter(&server, &second.token()).is_none());
    url.answers(set(&[&second]));
    await_that("the new name", || enter(&server, &second.token()).is_some());
    assert!(enter(&server, &first.token()).is_none());
    // The key is trusted as before, so nobody is ended.
    assert!(is_alive(&mut early));
}

/// An authority with a key of its own, and the same name as each other one.
fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name.push(DnType::CommonName, "x");
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signs")
}

/// Connects to the listener with TLS, with a certificate of an authority.
fn enter_certified(
    server: &Server,
    url: &Url,
    authority: &CertifiedIssuer<'static, KeyPair>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let params = CertificateParams::new(vec!["device".to_owned()]).expect("parameters");
    let key = KeyPair::generate().expect("a key");
    let own = params.signed_by(&key, authority).expect("signs");
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(url.ca()).expect("a certificate");
    roots.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![own.der().clone()], key.into())
        .expect("a key");
    let address = server.listeners()[2]
        .trim_start_matches("mqtts://")
        .to_owned();
    let stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(Arc::new(tls), name).expect("a client");
    let mut stream = StreamOwned::new(client, stream);
    let connect = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00";
    stream.write_all(connect).expect("writes");
    let mut head = [0; 4];
    stream.read_exact(&mut head).expect("CONNACK");
    assert_eq!((head[0], head[3]), (0x20, 0));
    let mut properties = vec![0; usize::from(head[1]) - 2];
    stream.read_exact(&mut properties).expect("CONNACK");
    stream
}

/// Clients that came back after their authority's change of keys have nothing to do with keys of tokens.
#[test]
fn other_keys_of_tokens_end_nobody_whose_authority_has_changed_before() {
    let (first, second) = (Key::new("first"), Key::new("second"));
    let url = Url::start(set(&[&first]));
    let file = |name: &str| url.directory.path().join(name);
    let write = |name: &str, authority: &CertifiedIssuer<'static, KeyPair>| {
        std::fs::write(file(name), authority.pem()).expect("written");
        Some(file(name))
    };
    let (before, after) = (authority(), authority());
    let mut config = url.config();
    config.shards = 1;
    config.listeners.push(Listener::at("mqtts://127.0.0.1:0"));
    config.tls.certificate = Some(url.ca());
    config.tls.key = Some(file("key"));
    // The reload of this test is the last one.
    config.tls.watch_interval_s = 0;
    config.tls.client_ca = write("before", &before);
    let server = Server::start(&config).expect("starts");
    let mut gone = enter_certified(&server, &url, &before);
    assert!(is_alive(&mut gone));
    config.tls.client_ca = write("after", &after);
    server.reload(&config).expect("reloads");
    let mut stays = enter_certified(&server, &url, &after);
    assert!(is_alive(&mut stays) && !is_alive(&mut gone));
    url.answers(set(&[&second]));
    await_that("the new key", || enter(&server, &second.token()).is_some());
    assert!(is_alive(&mut stays));
}

#[test]
fn a_url_that_nobody_vouches_for_gives_no_keys() {
    let key = Key::new("own");
    let (url, other) = (Url::start(set(&[&key])), Url::start(Answer::Down));
    let mut config = url.config();
    config.authentication.jwt.keys_ca = Some(other.ca());
    let server = Server::start(&config).expect("starts");
    url.await_requests(1);
    assert!(enter(&server, &key.token()).is_none());
    config.authentication.jwt.keys_ca = Some(url.ca());
    server.reload(&config).expect("reloads");
    await_that("the key", || enter(&server, &key.token()).is_some());
    for bad in ["http://localhost/keys", "https://", "https://a@localhost/"] {
        config.authentication.jwt.keys_url = Some(bad.to_owned());
        let why = server.reload(&config).expect_err(bad);
        assert!(why.contains("keys_url"), "{why}");
    }
}
