//! The task behind a client: connects, keeps the session, connects again.
//!
//! One task does everything for one client. [`Driver`] holds what outlives a connection: the MQTT
//! session, the messages that are not acknowledged yet, the subscriptions. [`Link`](link::Link) is
//! one connection.

mod lanes;
mod link;
mod opening;
mod requests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sterna_mqtt::client::ServerLimits;
use sterna_mqtt::{Lane, MqttSession, PacketId, PropertyBuf, ReasonCode};
use tokio::sync::{mpsc, oneshot, watch};

use crate::backoff::Failures;
use crate::client::{Event, Published, Status};
use crate::clock::Clock;
use crate::error::Error;
use crate::message::{Publish, Subscription};
use crate::options::{Options, random_id};
use crate::path::PathStatistics;
use crate::transport;

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
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) status: watch::Sender<Status>,
}

/// End of a connection or of an attempt.
enum End {
    /// The application wanted it.
    Wanted,
    /// Something went wrong.
    Failed(Error),
}

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
    /// Events that wait for room.
    events: VecDeque<Event>,
    session: MqttSession,
    /// By tag, so in the order of sending.
    sent: BTreeMap<u64, Sent>,
    asked: HashMap<u64, Asked>,
    next_tag: u64,
    /// Subscriptions to request again after the server has lost the session.
    subscriptions: BTreeMap<String, Subscription>,
    /// Connections that the server accepted.
    connections: u64,
    /// Limits of the server on the last connection.
    limits: Option<ServerLimits>,
    /// A connection on which something was sent right behind the CONNECT ended without an answer.
    early_failed: bool,
    clock: Clock,
}

/// Runs a client to its end.
pub(crate) async fn run(options: Options, inlets: Inlets) {
    let client_id = options.client_id.clone().unwrap_or_else(random_id);
    let mut driver = Driver {
        options,
        client_id,
        inlets,
        requests: VecDeque::new(),
        publications: VecDeque::new(),
        bulk: VecDeque::new(),
        events: VecDeque::new(),
        session: MqttSession::new(),
        sent: BTreeMap::new(),
        asked: HashMap::new(),
        next_tag: 1,
        subscriptions: BTreeMap::new(),
        connections: 0,
        limits: None,
        early_failed: false,
        clock: Clock::new(),
    };
    let end = driver.live().await;
    driver.end(end).await;
}

impl Driver {
    /// Connects, and connects again, until there is a reason to stop.
    async fn live(&mut self) -> Error {
        let mut failures = Failures::default();
        loop {
            let connections = self.connections;
            let early_failed = self.early_failed;
            let started = Instant::now();
            let error = match self.connect_once().await {
                End::Wanted => return Error::Ended,
                End::Failed(error) => error,
            };
            tracing::debug!(url = %self.options.url, %error, "no connection");
            if self.early_failed && !early_failed && !self.wants_to_end() {
                // Some servers want to be the first to speak: once more, and at once, in their way.
                self.requests_ended_with_their_connection();
                continue;
            }
            if self.connections > connections {
                failures.lasted(started.elapsed());
            }
            let may_retry = self.connections > 0 || self.options.retry_first;
            let may_retry = may_retry && error.is_temporary();
            let delay = failures.add(self.options.reconnect.filter(|_| may_retry));
            self.requests_ended_with_their_connection();
            let Some(delay) = delay.filter(|_| !self.wants_to_end()) else {
                return error;
            };
            self.inlets.status.send_replace(Status::Connecting);
            self.events.push_back(Event::Disconnected {
                error,
                retry_in: Some(delay),
            });
            if self.wait(delay).await {
                return Error::Ended;
            }
        }
    }

    /// Waits before the next attempt; true when the application wants to end meanwhile.
    async fn wait(&mut self, delay: Duration) -> bool {
        let pause = tokio::time::sleep(delay);
        tokio::pin!(pause);
        loop {
            self.pass_events();
            if self.wants_to_end() {
                return true;
            }
            tokio::select! {
                () = &mut pause => return false,
                () = self.next_request() => {}
            }
        }
    }

    fn wants_to_end(&self) -> bool {
        self.requests
            .iter()
            .any(|request| matches!(request, Request::Disconnect { .. }))
    }

    /// Whether the application has handed something over that is yet to be sent.
    fn has_work(&self) -> bool {
        let asks = |request: &Request| !matches!(request, Request::Disconnect { .. });
        !self.publications.is_empty()
            || !self.inlets.publications.is_empty()
            || !self.bulk.is_empty()
            || !self.inlets.bulk.is_empty()
            || self.requests.iter().any(asks)
    }

    /// Takes a request while there is no connection. Never returns while there is no room for more
    /// requests, or when there will be no more.
    async fn next_request(&mut self) {
        if self.requests.len() >= crate::client::QUEUED_REQUESTS || self.wants_to_end() {
            return std::future::pending().await;
        }
        let request = self.inlets.requests.recv().await;
        self.requests
            .push_back(request.unwrap_or_else(Request::last));
    }

    /// One connection, from the first packet to the last.
    async fn connect_once(&mut self) -> End {
        let mut link = self.options.link.clone();
        link.early_data &= self.may_be_early();
        let settings = transport::Settings {
            link,
            keep_alive_s: self.options.keep_alive_s,
            quic_pings: false,
            max_packet_bytes: self.options.max_packet_bytes as usize,
        };
        let deadline = Instant::now() + self.options.longest_connect();
        tracing::debug!(url = %self.options.url, "connecting");
        let connecting = transport::connect(&settings);
        tokio::pin!(connecting);
        let transport = loop {
            tokio::select! {
                result = &mut connecting => match result {
                    Ok(transport) => break transport,
                    Err(error) => return End::Failed(error.into()),
                },
                () = self.next_request() => {
                    if self.wants_to_end() && !self.has_work() {
                        return End::Wanted;
                    }
                }
            }
        };
        if self.connections == 0 && transport.holds_first_flight() {
            self.await_work().await;
        }
        tracing::debug!(peer = %transport.peer, client_id = self.client_id, "sending CONNECT");
        match link::Link::open(self, transport, deadline) {
            Ok(mut link) => {
                let end = link.run(self).await;
                self.early_failed |= self.limits.is_none() && link.is_unanswered(&end);
                end
            }
            Err(error) => End::Failed(error),
        }
    }

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
                self.requests.push_back(request.unwrap_or_else(Request::last));
            }
        }
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

    /// Passes events to the application as far as it has room.
    fn pass_events(&mut self) {
        while let Some(event) = self.events.pop_front() {
            match self.inlets.events.try_send(event) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(event)) => {
                    self.events.push_front(event);
                    return;
                }
                // The application has dropped its events.
                Err(mpsc::error::TrySendError::Closed(_)) => self.events.clear(),
            }
        }
    }

    /// Whether the application has no room for what comes in.
    fn is_blocked(&mut self) -> bool {
        self.pass_events();
        !self.events.is_empty()
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

    /// SUBSCRIBE and UNSUBSCRIBE that were not answered are asked again on the next connection.
    fn requests_ended_with_their_connection(&mut self) {
        let mut asked: Vec<_> = self.asked.drain().collect();
        asked.sort_unstable_by_key(|(tag, _)| std::cmp::Reverse(*tag));
        for (_, asked) in asked {
            match asked {
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

    /// Tells the application that the client has ended.
    async fn end(mut self, error: Error) {
        self.inlets
            .status
            .send_replace(Status::Ended(error.clone()));
        self.inlets.requests.close();
        self.inlets.publications.close();
        self.inlets.bulk.close();
        self.requests_ended_with_their_connection();
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
            self.events.push_back(Event::Disconnected {
                error,
                retry_in: None,
            });
        }
        // The application reads what came before; should it have dropped its end, this ends at
        // once.
        for event in std::mem::take(&mut self.events) {
            if self.inlets.events.send(event).await.is_err() {
                return;
            }
        }
    }

    fn set_connected(&self, connected: crate::client::Connected) -> Arc<crate::client::Connected> {
        let connected = Arc::new(connected);
        self.inlets
            .status
            .send_replace(Status::Connected(Arc::clone(&connected)));
        connected
    }
}
