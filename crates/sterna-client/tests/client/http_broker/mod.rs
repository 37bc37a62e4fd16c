//! A server of HTTP/3 and of HTTP over TCP that answers as a test tells it to.
#![allow(clippy::unwrap_used, dead_code)] // it is all test, and each test file uses a part

mod quic;
mod tcp;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sterna_client::http::{Client, Options};
use sterna_client::{Backoff, Fingerprint};
use tokio::sync::mpsc;

pub(crate) use quic::Quic;

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) content: Vec<u8>,
    /// Whether it came before the handshake was complete.
    pub(crate) early: bool,
    /// Which connection of the server's it came over, from 0.
    pub(crate) connection: usize,
    /// "h3", "h2" or "http/1.1".
    pub(crate) version: &'static str,
}

impl Request {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(its, _)| its == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn is(&self, method: &str, target: &str) -> bool {
        self.method == method && self.target == target
    }
}

/// What a server sends of a content that goes on.
pub(crate) enum Part {
    Bytes(Bytes),
    /// The end in order.
    End,
    /// The connection breaks.
    Cut,
}

/// What it answers.
pub(crate) enum Answer {
    Whole(u16, Vec<(&'static str, String)>, Bytes),
    Stream(Vec<(&'static str, String)>, mpsc::UnboundedReceiver<Part>),
    /// The request was done, and the connection breaks.
    Cut,
    /// H3 only: the request is refused and nothing was done about it.
    Refused,
    /// Nothing is ever said.
    Silence,
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        Self::Whole(status, Vec::new(), Bytes::new())
    }

    pub(crate) fn problem(status: u16, name: &str) -> Self {
        let text = format!("{{\"type\":\"urn:sterna:problem:{name}\",\"detail\":\"so it is\"}}");
        let fields = vec![("content-type", "application/problem+json".to_owned())];
        Self::Whole(status, fields, text.into())
    }

    /// A subscription, and where its messages go in.
    pub(crate) fn subscription(session: &str) -> (Self, mpsc::UnboundedSender<Part>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let fields = vec![
            ("content-type", "application/vnd.sterna.stream".to_owned()),
            ("sterna-session", session.to_owned()),
        ];
        (Self::Stream(fields, receiver), sender)
    }
}

/// A frame of a message.
pub(crate) fn frame(id: u64, flags: u8, topic: &str, payload: &[u8]) -> Part {
    use sterna_h3::varint;
    let mut body = Vec::new();
    varint::write(id, &mut body);
    body.push(flags);
    varint::write(topic.len() as u64, &mut body);
    body.extend_from_slice(topic.as_bytes());
    body.push(0);
    body.extend_from_slice(payload);
    let mut frame = Vec::new();
    varint::write(body.len() as u64, &mut frame);
    frame.extend_from_slice(&body);
    Part::Bytes(frame.into())
}

pub(crate) type Handler = Arc<dyn Fn(&Request) -> Answer + Send + Sync>;

/// Who answers, and everything that was asked.
#[derive(Clone)]
pub(crate) struct Script {
    handler: Handler,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Script {
    pub(crate) fn new(handler: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        Self {
            handler: Arc::new(handler),
            asked: Arc::default(),
        }
    }

    /// Everything succeeds.
    pub(crate) fn yes() -> Self {
        Self::new(|_| Answer::status(204))
    }

    fn answer(&self, request: Request) -> Answer {
        let answer = (self.handler)(&request);
        self.asked.lock().unwrap().push(request);
        answer
    }

    /// What was asked since the last call.
    pub(crate) fn asked(&self) -> Vec<Request> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

/// Who the server is.
pub(crate) struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Identity {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        Self {
            certificate: made.cert.der().clone(),
            key: PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap(),
        }
    }

    fn server(&self, alpn: &[&[u8]]) -> rustls::ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        config
    }

    /// Options for a client of this server.
    pub(crate) fn options(&self, scheme: &str, address: SocketAddr) -> Options {
        let mut options = Options::new(format!("{scheme}://{address}").parse().unwrap());
        options.tls.fingerprints = vec![Fingerprint::of(&self.certificate)];
        options.reconnect = Some(Backoff {
            min: Duration::from_millis(5),
            max: Duration::from_millis(20),
            max_attempts: Some(20),
        });
        options
    }
}

/// A server of all versions on one port.
pub(crate) struct Server {
    pub(crate) identity: Identity,
    pub(crate) address: SocketAddr,
    pub(crate) script: Script,
    pub(crate) quic: Option<Quic>,
}

impl Server {
    /// HTTP/3, and HTTP/2 and 1.1 on TLS on the same port.
    pub(crate) async fn both(script: Script) -> Self {
        let identity = Identity::new();
        // Another process may have the port of the other kind: then the next one.
        loop {
            let quic = Quic::start(&identity, &script, "127.0.0.1:0".parse().unwrap()).unwrap();
            let address = quic.address;
            if tcp::start_tls(&identity, &script, address, &[b"h2", b"http/1.1"]).await {
                return Self {
                    identity,
                    address,
                    script,
                    quic: Some(quic),
                };
            }
        }
    }

    pub(crate) fn http3(script: Script) -> Self {
        let identity = Identity::new();
        let quic = Quic::start(&identity, &script, "127.0.0.1:0".parse().unwrap()).unwrap();
        Self {
            address: quic.address,
            identity,
            script,
            quic: Some(quic),
        }
    }

    /// Over TCP: with TLS and these protocols, or in the clear without any.
    pub(crate) async fn tcp(script: Script, alpn: &'static [&'static [u8]]) -> Self {
        let identity = Identity::new();
        let address = tcp::free_address();
        let started = if alpn.is_empty() {
            tcp::start_plain(&script, address).await
        } else {
            tcp::start_tls(&identity, &script, address, alpn).await
        };
        assert!(started);
        Self {
            identity,
            address,
            script,
            quic: None,
        }
    }

    pub(crate) fn options(&self, scheme: &str) -> Options {
        self.identity.options(scheme, self.address)
    }

    pub(crate) fn client(&self, scheme: &str) -> Client {
        Client::new(self.options(scheme)).unwrap()
    }
}
