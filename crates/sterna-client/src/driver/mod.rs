//! The task behind a client: connects, keeps the session, connects again.
//!
//! One task does everything for one client. [`Driver`] holds what outlives a connection: the MQTT
//! session, the messages that are not acknowledged yet, the subscriptions. [`Link`](connection::Link) is
//! one connection.

mod connection;
mod lanes;
mod opening;
mod requests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sterna_mqtt::client::ServerLimits;
use sterna_mqtt::{Lane, MqttSession, PacketId, PropertyBuf, ReasonCode};
use tokio::sync::{mpsc, oneshot};

use crate::client::{Connected, Event, Published};
use crate::clock::Clock;
use crate::error::Error;
use crate::link::{self, Driver as _, Echoes, Link as _, LinkOptions, Status, Told};
use crate::mailbox::Writer;
use crate::message::{Publish, Subscription};
use crate::options::{Options, random_id};
use crate::path::PathStatistics;
use crate::transport::{Settings, Transport};

/// Where an answer goes.
pub(crate) type Done<T> = oneshot::Sender<Result<T, Error>>;

/// A request of the application, except for publishing.
pub(crate) enum Request {
    Subscribe {
        /// All with the same subscription identifier.
        subscriptions: Vec<Subscription>,
        properties: PropertyBuf,
        done: Done<Vec<ReasonCode>>,
    },
    Unsubscribe {
        filters: Vec<String>,
        properties: PropertyBuf,
        done: Done<Vec<ReasonCode>>,
    },
    Acknowledge {
        packet_id: PacketId,
        connection: u64,
    },
    Reauthenticate(Done<()>),
    Migrate(Done<()>),
    Path(Done<PathStatistics>),
    Disconnect {
        reason: ReasonCode,
        properties: PropertyBuf,
        done: Done<()>,
    },
}

impl Request {
    /// The request after the last handle was dropped.
    fn last() -> Self {
        let (done, _) = oneshot::channel();
        let properties = PropertyBuf::new();
        Self::Disconnect {
            reason: ReasonCode::Success,
            properties,
            done,
        }
    }

    fn fail(self, error: Error) {
        // The requester may have given up meanwhile.
        match self {
            Self::Subscribe { done, .. } | Self::Unsubscribe { done, .. } => {
                let _ = done.send(Err(error));
            }
            Self::Acknowledge { .. } => {}
            Self::Path(done) => {
                let _ = done.send(Err(error));
            }
            Self::Reauthenticate(done) | Self::Migrate(done) | Self::Disconnect { done, .. } => {
                let _ = done.send(Err(error));
            }
        }
    }
}

/// A message on its way out.
pub(crate) struct Publication {
    pub(crate) message: Publish,
    /// Recipient of its outcome.
    pub(crate) done: Option<Done<Published>>,
}

impl Publication {
    fn finish(self, fate: Result<Published, Error>) {
        if let Some(done) = self.done {
            let _ = done.send(fate);
        }
    }
}

/// A message with QoS 1 or 2 that was sent.
struct Sent {
    publication: Publication,
    /// The server has said that it received it (QoS 2).
    handed_over: bool,
    /// Where it was sent last.
    lane: Lane,
}

/// A subscription that the server has granted.
struct Granted {
    subscription: Subscription,
    standing: Standing,
}

/// The client's knowledge of a subscription that the server granted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// The server's session has it.
    Confirmed,
    /// The server's session may lack it, so it has to be requested again.
    Due,
    /// It was requested on this connection. Without a SUBACK of success it is due on the next one.
    Asked,
}

/// A request that was sent.
enum Asked {
    Subscribe {
        subscriptions: Vec<Subscription>,
        properties: PropertyBuf,
        /// `None` if the client itself subscribes again.
        done: Option<Done<Vec<ReasonCode>>>,
    },
    Unsubscribe {
        filters: Vec<String>,
        properties: PropertyBuf,
        done: Done<Vec<ReasonCode>>,
    },
}

/// The driver's ends of the channels to the application.
pub(crate) struct Inlets {
    pub(crate) requests: mpsc::Receiver<Request>,
    pub(crate) publications: mpsc::Receiver<Publication>,
    /// Messages that must not hold up the others.
    pub(crate) bulk: mpsc::Receiver<Publication>,
    pub(crate) events: Writer<Event>,
    pub(crate) status: Told<Connected, Error>,
}

type End = link::End<Error>;

/// State that outlives connections.
struct Driver {
    options: Options,
    client_id: String,
    inlets: Inlets,
    /// Requests that wait for a connection or for their turn.
    requests: VecDeque<Request>,
    /// Messages before those in the channel: those that could not be sent yet, and the rest of a
    /// lost session.
    publications: VecDeque<Publication>,
    /// A message that could not be sent yet and must not hold up the others.
    bulk: VecDeque<Publication>,
    session: MqttSession,
    /// By tag, so in the order of sending.
    sent: BTreeMap<u64, Sent>,
    asked: HashMap<u64, Asked>,
    next_tag: u64,
    /// Subscriptions to request again after the server has lost the session.
    subscriptions: BTreeMap<String, Granted>,
    /// Messages with QoS 2 that the application has not acknowledged, and the connections that they
    /// came over. They are not delivered again.
    held: BTreeMap<PacketId, u64>,
    /// Connections that the server accepted.
    connections: u64,
    /// Limits of the server on the last connection.
    limits: Option<ServerLimits>,
    /// A connection on which something was sent right behind the CONNECT ended without an answer.
    early_failed: bool,
    /// CONNECTs of earlier connections.
    echoes: Echoes,
    /// The last connection ended because the broker has read one of those late.
    is_echo: bool,
    clock: Clock,
}

/// Runs a client to its end.
pub(crate) async fn run(options: Options, inlets: Inlets) {
    let client_id = options.client_id.clone().unwrap_or_else(random_id);
    // [MQTT-3.2.2-4] an earlier process may have left anything under way
    let session = if options.clean_start {
        MqttSession::new()
    } else {
        MqttSession::inherited()
    };
    let mut driver = Driver {
        options,
        client_id,
        inlets,
        requests: VecDeque::new(),
        publications: VecDeque::new(),
        bulk: VecDeque::new(),
        session,
        sent: BTreeMap::new(),
        asked: HashMap::new(),
        next_tag: 1,
        subscriptions: BTreeMap::new(),
        held: BTreeMap::new(),
        connections: 0,
        limits: None,
        early_failed: false,
        echoes: Echoes::default(),
        is_echo: false,
        clock: Clock::new(),
    };
    let end = link::live(&mut driver).await;
    driver.end(end);
}

impl link::Driver for Driver {
    type Error = Error;

    fn options(&self) -> &LinkOptions {
        &self.options
    }

    fn settings(&self) -> Settings {
        let mut link = self.options.link.clone();
        link.early_data &= self.may_be_early();
        Settings {
            link,
            keep_alive_s: self.options.keep_alive_s,
            quic_pings: false,
            max_packet_bytes: self.options.max_packet_bytes as usize,
        }
    }

    fn connections(&self) -> u64 {
        self.connections
    }

    fn ran_ahead_in_vain(&self) -> bool {
        self.early_failed
    }

    fn may_retry(&mut self, error: &Error) -> bool {
        std::mem::take(&mut self.is_echo) || error.is_temporary()
    }

    fn wants_to_end(&self) -> bool {
        let ends = |request: &Request| matches!(request, Request::Disconnect { .. });
        self.requests.iter().any(ends)
    }

    fn has_work(&self) -> bool {
        let asks = |request: &Request| !matches!(request, Request::Disconnect { .. });
        !self.publications.is_empty()
            || !self.inlets.publications.is_empty()
            || !self.bulk.is_empty()
            || !self.inlets.bulk.is_empty()
            || self.requests.iter().any(asks)
    }

    async fn take_request(&mut self) {
        if !self.has_room_for_requests() {
            return std::future::pending().await;
        }
        let request = self.inlets.requests.recv().await;
        self.queue(request.unwrap_or_else(Request::last), false);
    }

    /// SUBSCRIBE and UNSUBSCRIBE that were not answered are asked again on the next connection.
    /// Acknowledgements that were not sent need none.
    fn connection_ended(&mut self) {
        for request in std::mem::take(&mut self.requests) {
            self.queue(request, false);
        }
        for granted in self.subscriptions.values_mut() {
            if granted.standing == Standing::Asked {
                granted.standing = Standing::Due;
            }
        }
        let mut asked: Vec<_> = self.asked.drain().collect();
        asked.sort_unstable_by_key(|(tag, _)| std::cmp::Reverse(*tag));
        for (_, asked) in asked {
            match asked {
                // Its subscriptions are due again.
                Asked::Subscribe { done: None, .. } => {}
                Asked::Subscribe {
                    subscriptions,
                    properties,
                    done: Some(done),
                } => {
                    let again = Request::Subscribe {
                        subscriptions,
                        properties,
                        done,
                    };
                    self.requests.push_front(again);
                }
                Asked::Unsubscribe {
                    filters,
                    properties,
                    done,
                } => {
                    self.requests.push_front(Request::Unsubscribe {
                        filters,
                        properties,
                        done,
                    });
                }
            }
        }
    }

    fn tell_retry(&mut self, error: Error, retry_in: Duration) {
        self.inlets.status.send_replace(Status::Pending);
        self.inlets.events.put(Event::Disconnected {
            error,
            retry_in: Some(retry_in),
        });
    }

    async fn serve(&mut self, transport: Transport, deadline: Instant) -> End {
        if self.connections == 0 && transport.holds_first_flight() {
            self.await_work().await;
        }
        tracing::debug!(peer = %transport.peer, client_id = self.client_id, "sending CONNECT");
        let started = Instant::now();
        match connection::Link::open(self, transport, deadline) {
            Ok(mut link) => {
                let connections = self.connections;
                let end = link.run(self).await;
                let is_refused = matches!(end, End::Failed(Error::Refused(_)));
                if self.connections == connections && !is_refused {
                    // The server may have made a new session, and its CONNACK is lost. The next one
                    // then says that there is a session.
                    self.doubt_subscriptions();
                }
                self.note_end(&end, link.is_accepted(), started.elapsed());
                self.early_failed |= self.limits.is_none() && link.is_unanswered(&end);
                end
            }
            Err(error) => End::Failed(error),
        }
    }
}

impl Driver {
    /// Waits for data that may travel with CONNECT in the first datagram. On a runtime with several
    /// threads, an application that has just started the client is about to hand it over.
    async fn await_work(&mut self) {
        if self.has_work() || self.wants_to_end() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(self.options.early_wait) => {}
            Some(first) = self.inlets.publications.recv() => self.publications.push_back(first),
            Some(first) = self.inlets.bulk.recv() => self.bulk.push_back(first),
            request = self.inlets.requests.recv() => {
                self.queue(request.unwrap_or_else(Request::last), false);
            }
        }
    }

    /// Whether requests are taken from the application: there is room, and the end is not among them.
    fn has_room_for_requests(&self) -> bool {
        self.requests.len() < crate::client::QUEUED_REQUESTS && !self.wants_to_end()
    }

    /// Puts a request behind those that wait. An acknowledgement does not wait for a connection: where
    /// there is none, it is noted in the session alone.
    fn queue(&mut self, request: Request, is_connected: bool) {
        match request {
            Request::Acknowledge {
                packet_id,
                connection,
            } if !is_connected => {
                // A message with QoS 1 is delivered again.
                if self.let_go(packet_id, connection) {
                    self.session.mark_received(Lane::CONTROL, packet_id);
                }
            }
            request => self.requests.push_back(request),
        }
    }

    /// The application is done with a message. True for one of QoS 2 that was still to be acknowledged.
    fn let_go(&mut self, packet_id: PacketId, connection: u64) -> bool {
        let is_held = self.held.get(&packet_id) == Some(&connection);
        if is_held {
            self.held.remove(&packet_id);
        }
        is_held
    }

    /// The server's session may have none of the subscriptions.
    fn doubt_subscriptions(&mut self) {
        for granted in self.subscriptions.values_mut() {
            if granted.standing == Standing::Confirmed {
                granted.standing = Standing::Due;
            }
        }
    }

    /// Notes how a connection ended, on which a CONNECT was sent.
    fn note_end(&mut self, end: &End, is_accepted: bool, lasted: Duration) {
        let refused = matches!(end, End::Failed(Error::Refused(_)));
        let taken_over = matches!(end, End::Failed(Error::Disconnected(refusal))
            if refusal.reason == ReasonCode::SessionTakenOver);
        self.is_echo = taken_over && self.echoes.explain(lasted);
        self.echoes.lost(lasted, is_accepted || refused);
    }

    /// Whether anything may leave before the server has answered the CONNECT.
    const fn may_be_early(&self) -> bool {
        self.options.early_requests && (self.limits.is_some() || !self.early_failed)
    }

    fn tag(&mut self) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        tag
    }

    /// Handles messages that the session does not know any more. Those that may be sent again as
    /// new messages precede all others.
    fn requeue_lost(&mut self) {
        if self.sent.len() == self.session.outgoing_len() && self.asked.is_empty() {
            return;
        }
        let known: std::collections::BTreeSet<u64> = self
            .session
            .unacknowledged()
            .map(|outgoing| outgoing.tag)
            .collect();
        let lost: Vec<u64> = self
            .sent
            .keys()
            .filter(|tag| !known.contains(tag))
            .copied()
            .collect();
        for tag in lost.into_iter().rev() {
            let Some(Sent {
                publication,
                handed_over,
                ..
            }) = self.sent.remove(&tag)
            else {
                continue;
            };
            if publication.message.qos == sterna_mqtt::QoS::AtLeastOnce {
                self.publications.push_front(publication);
            } else if handed_over {
                publication.finish(Ok(Published {
                    reason: ReasonCode::Success,
                }));
            } else {
                publication.finish(Err(Error::SessionLost));
            }
        }
    }

    /// Tells the application that the client has ended.
    fn end(mut self, error: Error) {
        self.inlets
            .status
            .send_replace(Status::Ended(error.clone()));
        self.inlets.requests.close();
        self.inlets.publications.close();
        self.inlets.bulk.close();
        self.connection_ended();
        while let Ok(request) = self.inlets.requests.try_recv() {
            self.requests.push_back(request);
        }
        for request in self.requests.drain(..) {
            request.fail(error.clone());
        }
        for (_, sent) in std::mem::take(&mut self.sent) {
            sent.publication.finish(Err(error.clone()));
        }
        while let Ok(publication) = self.inlets.publications.try_recv() {
            self.publications.push_back(publication);
        }
        self.publications.append(&mut self.bulk);
        while let Ok(publication) = self.inlets.bulk.try_recv() {
            self.publications.push_back(publication);
        }
        for publication in self.publications.drain(..) {
            publication.finish(Err(error.clone()));
        }
        if !matches!(error, Error::Ended) {
            self.inlets.events.put(Event::Disconnected {
                error,
                retry_in: None,
            });
        }
    }

    fn set_connected(&self, connected: Connected) -> Arc<Connected> {
        let connected = Arc::new(connected);
        self.inlets
            .status
            .send_replace(Status::Ready(Arc::clone(&connected)));
        connected
    }
}
