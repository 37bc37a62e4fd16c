//! Every workload over TCP, TLS and QUIC against the least broker that answers at all.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use clap::{CommandFactory as _, Parser};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{Args, measure, workload_common};

/// Where the listeners of the stand-in are.
struct StandIn {
    tcp: SocketAddr,
    tls: SocketAddr,
    quic: SocketAddr,
    /// Of the certificate of both.
    fingerprint: sterna_client::Fingerprint,
}

/// Granted QoS and the way to the connection.
type Subscriber = (u8, UnboundedSender<Vec<u8>>);

#[derive(Default)]
struct Routes(Mutex<HashMap<Vec<u8>, Vec<Subscriber>>>);

/// Reads one packet: its first byte and its body.
async fn packet(from: &mut (impl AsyncRead + Unpin)) -> Option<(u8, Vec<u8>)> {
    let first = from.read_u8().await.ok()?;
    let (mut length, mut shift) = (0, 0);
    loop {
        let byte = from.read_u8().await.ok()?;
        length |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await.ok()?;
    Some((first, body))
}

/// MQTT 3.1.1 with exact topics, no state and no mercy.
async fn serve(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
    routes: Arc<Routes>,
) {
    let (sender, mut queue) = unbounded_channel::<Vec<u8>>();
    tokio::spawn(async move {
        while let Some(bytes) = queue.recv().await {
            if to.write_all(&bytes).await.is_err() || to.flush().await.is_err() {
                break;
            }
        }
    });
    let send = |bytes: &[u8]| drop(sender.send(bytes.to_vec()));
    while let Some((first, body)) = packet(&mut from).await {
        match first >> 4 {
            // A persistent session is always there, and two messages wait in it.
            1 if body[7] & 2 == 0 => {
                send(&[0x20, 2, 1, 0]);
                for id in 1..=2 {
                    send(&[0x32, 6, 0, 1, b't', 0, id, b'!']);
                }
            }
            1 => send(&[0x20, 2, 0, 0]),
            3 => {
                let qos = first >> 1 & 3;
                let topic_end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
                let payload = topic_end + if qos > 0 { 2 } else { 0 };
                let kinds = [0, 0x40, 0x50];
                if qos > 0 {
                    send(&[
                        kinds[usize::from(qos)],
                        2,
                        body[topic_end],
                        body[topic_end + 1],
                    ]);
                }
                let guard = routes.0.lock().unwrap();
                for (granted, subscriber) in guard.get(&body[2..topic_end]).into_iter().flatten() {
                    let mut out = body[..topic_end].to_vec();
                    let qos = qos.min(*granted);
                    if qos > 0 {
                        out.extend_from_slice(&[0, 7]);
                    }
                    out.extend_from_slice(&body[payload..]);
                    let mut bytes = vec![0x30 | qos << 1];
                    let mut left = out.len();
                    while left > 0x7f {
                        bytes.push(left as u8 | 0x80);
                        left >>= 7;
                    }
                    bytes.push(left as u8);
                    bytes.extend_from_slice(&out);
                    let _ = subscriber.send(bytes);
                }
            }
            5 => send(&[0x62, 2, body[0], body[1]]),
            6 => send(&[0x70, 2, body[0], body[1]]),
            8 => {
                let qos = body[body.len() - 1];
                let filter = body[4..body.len() - 1].to_vec();
                let mut guard = routes.0.lock().unwrap();
                guard.entry(filter).or_default().push((qos, sender.clone()));
                drop(guard);
                send(&[0x90, 3, body[0], body[1], qos]);
            }
            12 => send(&[0xd0, 0]),
            14 => break,
            _ => {}
        }
    }
}

/// Starts the stand-in on threads of its own; it ends with the process.
fn stand_in() -> StandIn {
    let key = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let chain: Vec<CertificateDer<'static>> = vec![key.cert.der().clone()];
    let fingerprint = sterna_client::Fingerprint::of(&chain[0]);
    let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS13])
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(chain, private)
    .unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let routes = Arc::new(Routes::default());
            let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let secure = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls.clone()));
            tls.alpn_protocols = vec![b"mqtt".to_vec()];
            let crypto = quinn_proto::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
            let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
            let any = "127.0.0.1:0".parse().unwrap();
            let quic = quinn::Endpoint::server(config, any).unwrap();
            let place = StandIn {
                tcp: tcp.local_addr().unwrap(),
                tls: secure.local_addr().unwrap(),
                quic: quic.local_addr().unwrap(),
                fingerprint,
            };
            sender.send(place).unwrap();
            loop {
                tokio::select! {
                    Ok((socket, _)) = tcp.accept() => {
                        let (from, to) = socket.into_split();
                        tokio::spawn(serve(from, to, Arc::clone(&routes)));
                    }
                    Ok((socket, _)) = secure.accept() => {
                        let (acceptor, routes) = (acceptor.clone(), Arc::clone(&routes));
                        tokio::spawn(async move {
                            let Ok(stream) = acceptor.accept(socket).await else { return };
                            let (from, to) = tokio::io::split(stream);
                            serve(from, to, routes).await;
                        });
                    }
                    Some(incoming) = quic.accept() => {
                        let routes = Arc::clone(&routes);
                        tokio::spawn(async move {
                            let Ok(connection) = incoming.await else { return };
                            let Ok((to, from)) = connection.accept_bi().await else { return };
                            serve(from, to, routes).await;
                            connection.close(0_u32.into(), b"");
                        });
                    }
                }
            }
        });
    });
    receiver.recv().unwrap()
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn try_bench(line: &str) -> Result<Value, String> {
    let args = Cli::try_parse_from(std::iter::once("bench").chain(line.split(' ')));
    let args = args.map_err(|error| error.to_string())?;
    let super::Benchmark::Load(workload) = args.args.benchmark else {
        panic!("{line}: no load");
    };
    let report = measure(&workload, workload_common(&workload))?;
    Ok(serde_json::from_str(&report.show(true)).unwrap())
}

fn bench(line: &str) -> Value {
    try_bench(line).unwrap_or_else(|why| panic!("{line}: {why}"))
}

/// The flags of `sterna pub` and `sterna sub` for where, who, trust and QUIC.
const SHARED: [&str; 20] = [
    "url",
    "host",
    "port",
    "quic",
    "username",
    "pw",
    "cafile",
    "capath",
    "fingerprint",
    "server-key",
    "cert",
    "key",
    "insecure",
    "server-name",
    "tls-alpn",
    "tls-version",
    "tls-use-os-certs",
    "quic-profile",
    "quic-set",
    "protocol-version",
];

#[test]
fn every_load_takes_the_flags_of_its_neighbours() {
    let mut command = Cli::command();
    command.build();
    for load in [
        "pairs", "rate", "fan-in", "fan-out", "idle", "silent", "connect", "http",
    ] {
        let command = command.find_subcommand(load).unwrap();
        for flag in SHARED {
            // HTTP has no version of MQTT.
            let is_there = command
                .get_arguments()
                .any(|it| it.get_long() == Some(flag));
            assert_eq!(
                is_there,
                load != "http" || flag != "protocol-version",
                "{load} --{flag}"
            );
        }
        let help = command.clone().render_long_help().to_string();
        assert!(help.contains("-h, --host <HOST>"), "{load}: {help}");
        let shorts = |flag: &str| {
            let mut arguments = command.get_arguments();
            arguments
                .find(|it| it.get_long() == Some(flag))
                .unwrap()
                .get_short()
        };
        assert_eq!(
            (shorts("username"), shorts("pw")),
            (Some('u'), Some('P')),
            "{load}"
        );
        assert_eq!(
            (shorts("url"), shorts("port")),
            (Some('L'), Some('p')),
            "{load}"
        );
    }
}

#[test]
fn flags_that_do_nothing_are_errors() {
    for (line, why) in [
        (
            "idle mqtt://127.0.0.1 --cafile x",
            "--cafile: mqtt:// is not encrypted",
        ),
        (
            "idle mqtts://127.0.0.1 --quic-profile lan",
            "--quic-profile: mqtts:// does not travel",
        ),
        (
            "idle mqtt+quic://127.0.0.1 --tls-alpn x",
            "--tls-alpn: QUIC has",
        ),
        (
            "idle mqtt+quic://127.0.0.1 --quic-set cipher=chacha20",
            "AES-128-GCM",
        ),
        ("idle amqp://127.0.0.1", "amqp:// is not loaded"),
        ("idle mqtt://127.0.0.1 -P secret", "needs a user name"),
        ("idle mqtt://127.0.0.1 -q 1", "unexpected argument '-q'"),
        ("pairs mqtt://127.0.0.1 -q 3", "QoS is 0, 1 or 2"),
        (
            "idle mqtts://127.0.0.1 --cafile /nowhere/ca.pem",
            "/nowhere/ca.pem",
        ),
    ] {
        let error = try_bench(line).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
    }
}

#[test]
fn every_workload_runs_on_every_transport() {
    let place = stand_in();
    let urls = [
        format!("mqtt://{}", place.tcp),
        format!("mqtts://{} --insecure", place.tls),
        format!("mqtt+quic://{} --insecure", place.quic),
        format!("mqtt+quic://{} --insecure --shared-udp-socket", place.quic),
        format!(
            "--quic -h 127.0.0.1 -p {} --fingerprint {} --quic-profile lan",
            place.quic.port(),
            place.fingerprint
        ),
    ];
    for url in &urls {
        for line in [
            "pairs -n 3 -q 0",
            "pairs -n 3 -q 1",
            "pairs -n 3 -q 2",
            "rate -n 2 -r 500 -q 2",
        ]
        .into_iter()
        .chain(["pairs -n 2 -w 1 -q 0", "fan-out -n 20 -q 1"])
        {
            let result = bench(&format!(
                "{line} {url} --messages 100 --seconds 20 --warm-up 0"
            ));
            assert!(result["delivered"].as_u64().unwrap() >= 100, "{result}");
            assert_eq!(result["lost"], 0, "{result}");
            assert_eq!(result["repeated"], 0, "{result}");
            assert!(
                result["latency_us"]["p50"].as_f64().unwrap() > 1.0,
                "{result}"
            );
        }
        let result = bench(&format!(
            "pairs -n 2 --payload 100000 --messages 9 --seconds 20 --warm-up 0 {url}"
        ));
        assert!(result["delivered"].as_u64().unwrap() >= 9, "{result}");
    }
    for url in &urls[..3] {
        let result = bench(&format!("idle -n 30 --hold 0.1 {url}"));
        assert_eq!(result["alive"], 40, "{result}");
        let resume = if url.starts_with("mqtt:") {
            ""
        } else {
            " --resume"
        };
        let result = bench(&format!("connect -n 40 --at-once 4 {url}{resume}"));
        assert_eq!(
            (&result["connects"], &result["failed"]),
            (&40.into(), &0.into()),
            "{result}"
        );
        let result = bench(&format!(
            "silent -n 20 --connects 20 --rounds 2 --forget 0.1 {url}"
        ));
        let answered = if url.starts_with("mqtt+quic") { 20 } else { 0 };
        assert_eq!(
            (&result["silent_answered"], &result["failed"]),
            (&answered.into(), &0.into()),
            "{result}"
        );
        assert!(result["ratio"].as_f64().unwrap() > 0.0, "{result}");
        assert!(result["alone_us"].as_f64().unwrap() > 0.0, "{result}");
    }
}

#[test]
fn sessions_are_made_and_returned_to_and_acknowledgements_counted() {
    let place = stand_in();
    let url = format!("mqtt://{}", place.tcp);
    let result = bench(&format!(
        "sessions -n 30 --at-once 4 --own-filters --client-prefix p {url}"
    ));
    assert_eq!(result["sessions"], 30, "{result}");
    let result = bench(&format!(
        "wake -n 3 --first 7 --messages 2 --client-prefix p {url}"
    ));
    assert_eq!(
        (&result["sessions"], &result["delivered"]),
        (&3.into(), &6.into()),
        "{result}"
    );
    let first_us = result["first_us"]["p50"].as_f64().unwrap();
    assert!(
        (0.1..=result["last_us"]["p50"].as_f64().unwrap()).contains(&first_us),
        "{result}"
    );
    let few = "--messages 100 --seconds 20 --warm-up 0";
    let result = bench(&format!(
        "publish -n 2 -q 1 --own-topics 5 --every 3 {few} {url}"
    ));
    assert!(result["acknowledged"].as_u64().unwrap() >= 100, "{result}");
    assert_eq!(
        (&result["lost"], &result["delivered"]),
        (&0.into(), &0.into())
    );
    assert!(result["acknowledgement_us"]["p99"].as_f64().unwrap() > 1.0);
    let result = bench(&format!("pairs -n 3 -q 1 --durable {few} {url}"));
    assert!(result["delivered"].as_u64().unwrap() >= 100, "{result}");
    assert_eq!(result["lost"], 0, "{result}");
    let why = try_bench(&format!("sessions -n 1 -V 5 {url}")).unwrap_err();
    assert!(why.contains("--protocol-version 311"), "{why}");
}

#[test]
fn a_fixed_rate_is_kept_and_bounded() {
    let place = stand_in();
    let url = format!("mqtt://{}", place.tcp);
    let result = bench(&format!(
        "rate -n 2 -r 1000 --seconds 1 --warm-up 0.2 {url}"
    ));
    let rate = result["rate_per_s"].as_f64().unwrap();
    assert!((900.0..1100.0).contains(&rate), "{result}");
    let result = bench(&format!(
        "pairs -n 2 --messages 100 --seconds 60 --warm-up 0.1 {url}"
    ));
    assert!(
        (100..200).contains(&result["delivered"].as_u64().unwrap()),
        "{result}"
    );
}
