//! A server that aborts streams at random, and keeps a ledger of what it received.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{RecvStream, SendStream};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use sterna_client::{Client, Fingerprint, Options, Publish, QoS, ReasonCode, Streams};
use sterna_mqtt::packet::{Ack, ConnAck, Packet};
use sterna_mqtt::{Framer, MAX_PACKET_BYTES, PacketId, Properties, Version};

/// What the server received.
#[derive(Default)]
struct Ledger {
    /// By payload: how often the message was handed on.
    messages: HashMap<Vec<u8>, usize>,
    /// QoS 2 messages that are not released.
    unreleased: HashSet<PacketId>,
    /// Streams that were aborted.
    aborted: usize,
    /// State of the generator of random numbers.
    random: u64,
}

impl Ledger {
    fn one_in(&mut self, n: u64) -> bool {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.is_multiple_of(n)
    }

    /// Handles a packet and gives the answer.
    fn handle(&mut self, packet: &Packet<'_>) -> Option<Packet<'static>> {
        let success = |id| Ack::new(id, ReasonCode::Success);
        match packet {
            Packet::Connect(_) => Some(Packet::ConnAck(ConnAck {
                session_present: false,
                reason: ReasonCode::Success,
                properties: Properties::EMPTY,
            })),
            Packet::Publish(publish) => {
                let new = match (publish.qos, publish.packet_id) {
                    (QoS::ExactlyOnce, Some(id)) => self.unreleased.insert(id),
                    _ => true,
                };
                if new {
                    *self.messages.entry(publish.payload.to_vec()).or_default() += 1;
                }
                let id = publish.packet_id?;
                Some(match publish.qos {
                    QoS::ExactlyOnce => Packet::PubRec(success(id)),
                    _ => Packet::PubAck(success(id)),
                })
            }
            Packet::PubRel(ack) => {
                self.unreleased.remove(&ack.packet_id);
                Some(Packet::PubComp(success(ack.packet_id)))
            }
            _ => None,
        }
    }
}

async fn serve(mut send: SendStream, mut receive: RecvStream, ledger: Arc<Mutex<Ledger>>) {
    let is_control = send.id().index() == 0;
    let mut framer = Framer::new();
    let mut buffer = vec![0; 4096];
    while let Ok(Some(bytes)) = receive.read(&mut buffer).await {
        let mut input = &buffer[..bytes];
        while let Some(frame) = framer.next(&mut input, MAX_PACKET_BYTES).unwrap() {
            let packet = Packet::decode(&frame, Version::V5).unwrap();
            let (answer, lost) = {
                let mut ledger = ledger.lock().unwrap();
                // Before the packet is handled, or after it and before its answer.
                let before = !is_control && ledger.one_in(12);
                let answer = (!before).then(|| ledger.handle(&packet)).flatten();
                let after = !is_control && ledger.one_in(12);
                ledger.aborted += usize::from(before || after);
                (answer, before || after)
            };
            if lost {
                let _ = send.reset(1_u8.into());
                let _ = receive.stop(1_u8.into());
                return;
            }
            if let Some(answer) = answer {
                let mut out = BytesMut::new();
                answer
                    .encode(Version::V5, MAX_PACKET_BYTES, &mut out)
                    .unwrap();
                if send.write_all(&out).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Whatever streams are aborted when, every message is acknowledged in the end, what was
/// acknowledged was received, and what has QoS 2 was received once.
#[tokio::test]
async fn no_abort_loses_or_doubles_a_message() {
    const MESSAGES: usize = 400;
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = certified.signing_key.serialize_der();
    for (seed, streams) in [
        (1, Streams::PerTopic),
        (2, Streams::PerTopic),
        (3, Streams::PerPublish),
        (4, Streams::PerPublish),
    ] {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certified.cert.der().clone()],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.clone())),
            )
            .unwrap();
        tls.alpn_protocols = vec![b"mqtt".to_vec()];
        let crypto = QuicServerConfig::try_from(tls).unwrap();
        let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        let endpoint = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
        let port = endpoint.local_addr().unwrap().port();
        let ledger = Arc::new(Mutex::new(Ledger {
            random: 0x9E37_79B9_7F4A_7C15 ^ seed,
            ..Ledger::default()
        }));
        tokio::spawn({
            let ledger = Arc::clone(&ledger);
            async move {
                let connection = endpoint.accept().await.unwrap().await.unwrap();
                while let Ok((send, receive)) = connection.accept_bi().await {
                    tokio::spawn(serve(send, receive, Arc::clone(&ledger)));
                }
            }
        });
        let mut options = Options::new(format!("mqtt+quic://127.0.0.1:{port}").parse().unwrap());
        options.tls.fingerprints = vec![Fingerprint::of(certified.cert.der())];
        options.streams = streams;
        options.reconnect = None;
        let (client, _events) = Client::start(options).unwrap();
        let mut deliveries = Vec::new();
        for number in 0..MESSAGES {
            let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][number / 2 % 2];
            let message = Publish::new(format!("t/{}", number % 7), number.to_string());
            let message = message.unwrap().qos(qos);
            deliveries.push(client.send(message).await.unwrap());
            if number % 8 == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        }
        let all = async {
            for delivery in deliveries {
                delivery.await.unwrap();
            }
        };
        let patience = std::time::Duration::from_secs(60);
        tokio::time::timeout(patience, all)
            .await
            .expect("all are acknowledged");
        let ledger = ledger.lock().unwrap();
        assert!(ledger.aborted > 10, "{streams:?}: {}", ledger.aborted);
        assert_eq!(ledger.messages.len(), MESSAGES, "{streams:?} {seed}");
        for (payload, times) in &ledger.messages {
            let number: usize = std::str::from_utf8(payload).unwrap().parse().unwrap();
            assert!(
                (number / 2).is_multiple_of(2) || *times == 1,
                "{streams:?} {seed} {number}"
            );
        }
        assert!(ledger.unreleased.is_empty());
        println!("{streams:?}: {} streams aborted", ledger.aborted);
    }
}
