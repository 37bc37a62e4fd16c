//! fe2o3-amqp (crates.io) as a driver of the AMQP scenario: JSON lines in, JSON lines out (../../../README.md).

mod links;
mod values;

use std::collections::HashMap;
use std::fmt::Debug;
use std::io::Write;
use std::net::Shutdown;
use std::process::ExitCode;
use std::sync::Arc;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::sasl_profile::{SaslProfile, SaslScramSha256};
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::transaction::{OwnedTransaction, TransactionDischarge};
use fe2o3_amqp::types::messaging::{
    DistributionMode, FilterSet, Source, Target, TerminusDurability, TerminusExpiryPolicy,
};
use fe2o3_amqp::types::primitives::{Array, Symbol};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use fe2o3_amqp_types::definitions::{ReceiverSettleMode, SenderSettleMode};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc, oneshot};

use links::{Command, Transaction};
use values::{decode, encode};

/// What a request is answered with.
pub(crate) enum Answer {
    Ok(Json),
    Refused(String, Option<String>),
    Cannot(&'static str),
}

impl Answer {
    pub(crate) fn refused(why: impl ToString, condition: Option<String>) -> Self {
        Self::Refused(why.to_string(), condition)
    }
}

/// The condition that is named somewhere in one of the library's errors.
pub(crate) fn condition(text: &str) -> Option<String> {
    const FAMILIES: [(&str, &str); 5] = [
        ("AmqpError(", "amqp:"),
        ("LinkError(", "amqp:link:"),
        ("SessionError(", "amqp:session:"),
        ("ConnectionError(", "amqp:connection:"),
        ("TransactionError(", "amqp:transaction:"),
    ];
    FAMILIES.into_iter().find_map(|(family, prefix)| {
        let after = &text[text.find(family)? + family.len()..];
        let name: String = after
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .collect();
        let mut made = prefix.to_owned();
        for (at, letter) in name.chars().enumerate() {
            if at > 0 && letter.is_ascii_uppercase() {
                made.push('-');
            }
            made.push(letter.to_ascii_lowercase());
        }
        Some(made)
    })
}

pub(crate) fn refused(why: &impl Debug) -> Answer {
    let text = format!("{why:?}");
    let found = condition(&text);
    Answer::Refused(text, found)
}

/// What a link was refused with. Where the detach comes before the library has looked at the attach, it loses what
/// the detach says, and answers it twice.
fn link_refused(why: &impl Debug) -> Answer {
    match refused(why) {
        Answer::Refused(text, None) if text.contains("IllegalState") => Answer::Cannot(
            "the library raced with the detach of a refused link, and lost its reason",
        ),
        other => other,
    }
}

pub(crate) fn out(line: &Json) {
    let mut to = std::io::stdout().lock();
    let _ = writeln!(to, "{line}");
    let _ = to.flush();
}

struct Open {
    handle: Mutex<ConnectionHandle<()>>,
    /// The socket itself, to cut it.
    socket: std::net::TcpStream,
}

#[derive(Default)]
struct Driver {
    connections: Mutex<HashMap<u64, Arc<Open>>>,
    sessions: Mutex<HashMap<u64, Arc<Mutex<SessionHandle<()>>>>>,
    links: Mutex<HashMap<u64, mpsc::UnboundedSender<Command>>>,
    /// Sessions on which transactions are declared, by the number of the link to the coordinator.
    coordinators: Mutex<HashMap<u64, Arc<Mutex<SessionHandle<()>>>>>,
    transactions: Mutex<HashMap<u64, Transaction>>,
}

fn number(said: &Json, key: &str) -> u64 {
    said[key].as_u64().unwrap_or_default()
}

fn name<'a>(said: &'a Json, key: &str) -> &'a str {
    said[key].as_str().unwrap_or_default()
}

fn symbols(said: &Json) -> Option<Array<Symbol>> {
    let names = said["capabilities"].as_array()?;
    Some(Array(
        names
            .iter()
            .filter_map(Json::as_str)
            .map(Symbol::from)
            .collect(),
    ))
}

fn expiry(said: &Json) -> TerminusExpiryPolicy {
    match name(said, "expiry") {
        "link-detach" => TerminusExpiryPolicy::LinkDetach,
        "connection-close" => TerminusExpiryPolicy::ConnectionClose,
        "never" => TerminusExpiryPolicy::Never,
        _ => TerminusExpiryPolicy::SessionEnd,
    }
}

fn durable(said: &Json) -> TerminusDurability {
    match number(said, "durable") {
        1 => TerminusDurability::Configuration,
        2 => TerminusDurability::UnsettledState,
        _ => TerminusDurability::None,
    }
}

fn source(said: &Json) -> Result<Source, String> {
    let mut filters = None;
    if let Some(entries) = said["filters"].as_object() {
        let mut made = FilterSet::new();
        for (name, value) in entries {
            made.insert(Symbol::from(name.as_str()), decode(value)?);
        }
        filters = Some(made);
    }
    Ok(Source {
        address: said["address"].as_str().map(str::to_owned),
        durable: durable(said),
        expiry_policy: expiry(said),
        timeout: number(said, "timeout") as u32,
        dynamic: said["dynamic"].as_bool().unwrap_or_default(),
        distribution_mode: match name(said, "distribution") {
            "copy" => Some(DistributionMode::Copy),
            "move" => Some(DistributionMode::Move),
            _ => None,
        },
        filter: filters,
        capabilities: symbols(said),
        ..Source::default()
    })
}

fn target(said: &Json) -> Target {
    Target {
        address: said["address"].as_str().map(str::to_owned),
        durable: durable(said),
        expiry_policy: expiry(said),
        timeout: number(said, "timeout") as u32,
        dynamic: said["dynamic"].as_bool().unwrap_or_default(),
        capabilities: symbols(said),
        ..Target::default()
    }
}

fn settle_modes(said: &Json) -> (SenderSettleMode, ReceiverSettleMode) {
    let sender = match name(said, "snd") {
        "settled" => SenderSettleMode::Settled,
        "unsettled" => SenderSettleMode::Unsettled,
        _ => SenderSettleMode::Mixed,
    };
    let receiver = match name(said, "rcv") {
        "second" => ReceiverSettleMode::Second,
        _ => ReceiverSettleMode::First,
    };
    (sender, receiver)
}

fn tls(ca: &str) -> Result<tokio_rustls::TlsConnector, String> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).map_err(|why| why.to_string())? {
        roots
            .add(certificate.map_err(|why| why.to_string())?)
            .map_err(|why| why.to_string())?;
    }
    let settings = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(tokio_rustls::TlsConnector::from(Arc::new(settings)))
}

impl Driver {
    async fn connect(&self, said: &Json) -> Result<Answer, String> {
        let profile = match name(said, "sasl") {
            "" => None,
            "ANONYMOUS" => Some(SaslProfile::Anonymous),
            "PLAIN" => Some(SaslProfile::Plain {
                username: name(said, "user").to_owned(),
                password: name(said, "password").to_owned(),
            }),
            "SCRAM-SHA-256" => Some(SaslProfile::from(SaslScramSha256::new(
                name(said, "user"),
                name(said, "password"),
            ))),
            _ => {
                return Ok(Answer::Cannot(
                    "the library takes EXTERNAL only with TLS of its own making",
                ));
            }
        };
        let host = name(said, "host");
        let failed = |why: std::io::Error| why.to_string();
        let stream = TcpStream::connect((host, number(said, "port") as u16))
            .await
            .map_err(failed)?
            .into_std()
            .map_err(failed)?;
        let socket = stream.try_clone().map_err(failed)?;
        let stream = TcpStream::from_std(stream).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let mut builder = Connection::builder()
            .container_id(name(said, "container"))
            .hostname(host)
            .scheme("amqp");
        if let Some(profile) = profile {
            builder = builder.sasl_profile(profile);
        }
        if let Some(limit) = said["max_frame"].as_u64() {
            builder = builder.max_frame_size(limit as u32);
        }
        if let Some(seconds) = said["idle_s"].as_f64() {
            builder = builder.idle_time_out((seconds * 1000.0) as u32);
        }
        let opened = if name(said, "transport") == "tls" {
            let server = ServerName::try_from(host.to_owned()).map_err(|why| why.to_string())?;
            let stream = tls(name(said, "ca"))?
                .connect(server, stream)
                .await
                .map_err(failed)?;
            builder.open_with_stream(stream).await
        } else {
            builder.open_with_stream(stream).await
        };
        Ok(match opened {
            Ok(handle) => {
                let open = Open {
                    handle: Mutex::new(handle),
                    socket,
                };
                self.connections
                    .lock()
                    .await
                    .insert(number(said, "c"), Arc::new(open));
                Answer::Ok(json!({}))
            }
            Err(why) => refused(&why),
        })
    }

    async fn connection(&self, said: &Json) -> Result<Arc<Open>, String> {
        let found = self
            .connections
            .lock()
            .await
            .get(&number(said, "c"))
            .cloned();
        found.ok_or_else(|| "no such connection".to_owned())
    }

    async fn session(&self, said: &Json) -> Result<Arc<Mutex<SessionHandle<()>>>, String> {
        let found = self.sessions.lock().await.get(&number(said, "s")).cloned();
        found.ok_or_else(|| "no such session".to_owned())
    }

    async fn sender(&self, said: &Json) -> Result<Answer, String> {
        let session = self.session(said).await?;
        let l = number(said, "l");
        if said["target"]["coordinator"].as_bool().unwrap_or_default() {
            self.coordinators.lock().await.insert(l, session);
            return Ok(Answer::Ok(json!({})));
        }
        let (sender_mode, receiver_mode) = settle_modes(said);
        let mut session = session.lock().await;
        let attached = Sender::builder()
            .name(name(said, "name"))
            .source(name(said, "name"))
            .target(target(&said["target"]))
            .sender_settle_mode(sender_mode)
            .receiver_settle_mode(receiver_mode)
            .attach(&mut session)
            .await;
        Ok(match attached {
            Ok(link) => {
                let address = link
                    .target()
                    .as_ref()
                    .and_then(|target| target.address.clone());
                let answer = json!({"address": address, "max_message": link.max_message_size()});
                let (commands, taken) = mpsc::unbounded_channel();
                self.links.lock().await.insert(l, commands);
                tokio::spawn(links::send(link, taken));
                Answer::Ok(answer)
            }
            Err(why) => link_refused(&why),
        })
    }

    async fn receiver(&self, said: &Json) -> Result<Answer, String> {
        let session = self.session(said).await?;
        let l = number(said, "l");
        let (sender_mode, receiver_mode) = settle_modes(said);
        let mut session = session.lock().await;
        let attached = Receiver::builder()
            .name(name(said, "name"))
            .source(source(&said["source"])?)
            .sender_settle_mode(sender_mode)
            .receiver_settle_mode(receiver_mode)
            .credit_mode(CreditMode::Manual)
            .attach(&mut session)
            .await;
        let mut link = match attached {
            Ok(link) => link,
            Err(why) => return Ok(link_refused(&why)),
        };
        let credit = number(said, "credit") as u32;
        if credit > 0
            && let Err(why) = link.set_credit(credit).await
        {
            return Ok(refused(&why));
        }
        let granted = link.source().clone().unwrap_or_default();
        let filters: serde_json::Map<String, Json> = granted
            .filter
            .iter()
            .flat_map(|set| set.iter())
            .map(|(name, value)| (name.as_str().to_owned(), encode(value)))
            .collect();
        let (commands, taken) = mpsc::unbounded_channel();
        self.links.lock().await.insert(l, commands);
        tokio::spawn(links::receive(link, l, taken));
        Ok(Answer::Ok(
            json!({"address": granted.address, "filters": filters}),
        ))
    }

    async fn declare(&self, said: &Json) -> Result<Answer, String> {
        let found = self
            .coordinators
            .lock()
            .await
            .get(&number(said, "l"))
            .cloned();
        let session = found.ok_or("no link to the coordinator")?;
        let mut session = session.lock().await;
        let label = format!("txn-{}", number(said, "x"));
        Ok(
            match OwnedTransaction::declare(&mut session, label, None).await {
                Ok(open) => {
                    let open = Arc::new(Mutex::new(Some(open)));
                    self.transactions
                        .lock()
                        .await
                        .insert(number(said, "x"), open);
                    Answer::Ok(json!({}))
                }
                Err(why) => refused(&why),
            },
        )
    }

    async fn discharge(&self, said: &Json) -> Result<Answer, String> {
        let found = self.transactions.lock().await.remove(&number(said, "x"));
        let open = found.ok_or("no such transaction")?.lock().await.take();
        let open = open.ok_or("it was discharged")?;
        let result = if said["fail"].as_bool().unwrap_or_default() {
            open.rollback().await
        } else {
            open.commit().await
        };
        Ok(match result {
            Ok(()) => Answer::Ok(json!({})),
            Err(why) => refused(&why),
        })
    }

    /// Hands a request to the task of its link.
    async fn on_link(&self, said: &Json) -> Result<Answer, String> {
        let commands = self.links.lock().await.get(&number(said, "l")).cloned();
        let transaction = match said["txn"].as_u64() {
            Some(number) => self.transactions.lock().await.get(&number).cloned(),
            None => None,
        };
        let (answer, answered) = oneshot::channel();
        commands
            .ok_or("no such link")?
            .send((said.clone(), transaction, answer))
            .map_err(|_| "the link has ended")?;
        answered.await.map_err(|_| "the link has ended".to_owned())
    }

    async fn answer(&self, said: &Json) -> Result<Answer, String> {
        let done = || Answer::Ok(json!({}));
        match name(said, "op") {
            "connect" => self.connect(said).await,
            "close" => {
                let open = self.connection(said).await?;
                let result = open.handle.lock().await.close().await;
                Ok(result.map_or_else(|why| refused(&why), |()| done()))
            }
            "abort" => {
                let open = self.connection(said).await?;
                open.socket
                    .shutdown(Shutdown::Both)
                    .map_err(|why| why.to_string())?;
                Ok(done())
            }
            "session" => {
                let open = self.connection(said).await?;
                let begun = Session::begin(&mut *open.handle.lock().await).await;
                Ok(match begun {
                    Ok(session) => {
                        let session = Arc::new(Mutex::new(session));
                        self.sessions
                            .lock()
                            .await
                            .insert(number(said, "s"), session);
                        done()
                    }
                    Err(why) => refused(&why),
                })
            }
            "end" => {
                let session = self.session(said).await?;
                let result = session.lock().await.end().await;
                Ok(result.map_or_else(|why| refused(&why), |()| done()))
            }
            "sender" => self.sender(said).await,
            "receiver" => self.receiver(said).await,
            "declare" => self.declare(said).await,
            "discharge" => self.discharge(said).await,
            "send" | "burst" | "credit" | "drain" | "settle" | "detach" => self.on_link(said).await,
            _ => Ok(Answer::Cannot("the driver has no such operation")),
        }
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    out(&json!({"hello": {
        "client": "fe2o3-amqp 0.18.4", "transports": ["tcp", "tls"], "transactions": true,
        "cannot": {
            "drain": "the library does not show that a link is drained",
            "sasl-external": "the library takes EXTERNAL only with TLS of its own making",
            "sasl-external-without-certificate": "the library takes EXTERNAL only with TLS of its own making",
        },
    }}));
    let driver = Arc::new(Driver::default());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(said) = serde_json::from_str::<Json>(&line) else {
            continue;
        };
        let driver = driver.clone();
        tokio::spawn(async move {
            let n = &said["n"];
            out(&match driver.answer(&said).await {
                Ok(Answer::Ok(ok)) => json!({"n": n, "ok": ok}),
                Ok(Answer::Refused(why, condition)) => {
                    json!({"n": n, "error": why, "condition": condition})
                }
                Ok(Answer::Cannot(why)) => json!({"n": n, "cannot": why}),
                Err(why) => json!({"n": n, "error": why, "condition": null}),
            });
        });
    }
    ExitCode::SUCCESS
}
