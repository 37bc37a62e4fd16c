//! The task behind an AMQP connection: connects, begins sessions, attaches links, and does so again
//! when the connection was lost.
//!
//! One task does everything. [`Driver`] holds what outlives a connection: the application's
//! sessions and links, and the messages that are not settled. [`Wire`](wire::Wire) is one
//! connection. The state tells what to do. It begins a session without a channel, attaches a link
//! without a handle, and sends a message without a delivery. After a loss it only needs another
//! connection.

mod commands;
mod events;
mod lanes;
mod pump;
mod sending;
mod state;
mod wire;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sterna_amqp::connection::{LinkId, SessionId};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};

use super::Error;
use super::connection::{Connected, Event};
use super::memory::CREDITS;
use super::options::{Credit, Options, ReceiverOptions, SenderOptions};
use crate::clock::Clock;
use crate::link::{self, Driver as _, Link as _, LinkOptions, Status, Told};
use crate::mailbox::Writer;
use crate::path::PathStatistics;
use crate::transport::{Settings, Transport};

pub use state::LinkInfo;
pub(super) use state::{Arrived, Attachment, Done, Fate, OutgoingAmqpMessage, Sent};
use state::{Decision, DriverLink, DriverSession, Kind};

/// A request of the application. Each is bounded by something that its handle holds: a permit, a
/// delivery, or the handle itself.
pub(super) enum Command {
    Begin {
        session: u64,
        permit: OwnedSemaphorePermit,
    },
    End {
        session: u64,
        done: Done<()>,
    },
    AttachSender {
        session: u64,
        link: u64,
        name: String,
        options: Box<SenderOptions>,
        coordinator: bool,
        status: Told<LinkInfo, Error>,
        permit: OwnedSemaphorePermit,
    },
    AttachReceiver {
        session: u64,
        link: u64,
        name: String,
        options: Box<ReceiverOptions>,
        status: Told<LinkInfo, Error>,
        deliveries: mpsc::UnboundedSender<Arrived>,
        permit: OwnedSemaphorePermit,
    },
    Send {
        link: u64,
        message: OutgoingAmqpMessage,
    },
    Decide {
        generation: u64,
        decision: Decided,
    },
    /// The application has taken a message that needs no decision.
    Taken {
        link: u64,
    },
    Credit {
        link: u64,
        add: u32,
    },
    Drain {
        link: u64,
        done: Done<()>,
    },
    Detach {
        link: u64,
        closed: bool,
        done: Option<Done<()>>,
    },
    Path(Done<PathStatistics>),
    Close(Option<Done<()>>),
}

/// A decision about a delivery, as it comes from the application.
pub(super) struct Decided {
    pub(super) link: u64,
    pub(super) delivery_id: u32,
    pub(super) tag: sterna_amqp::link::DeliveryTag,
    pub(super) state: sterna_amqp::messaging::DeliveryStateBuf,
    pub(super) second: bool,
    /// Of the transaction that it belongs to.
    pub(super) attachment: Option<Attachment>,
    pub(super) done: Done<()>,
}

/// Bytes of received messages that the application has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: AtomicUsize,
    /// Rung when it has taken some.
    taken: Arc<Notify>,
}

impl Held {
    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(super) fn take(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        debug_assert!(before >= bytes, "what the application takes was counted");
        self.taken.notify_one();
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }
}

/// The driver's ends of what connects it to the application.
pub(super) struct Outlets {
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) events: Writer<Event>,
    pub(super) status: Told<Connected, Error>,
    pub(super) held: Arc<Held>,
}

/// The application's wish to end, and who is told.
struct Farewell(Option<Done<()>>);

type End = link::End<Error>;

/// State that outlives connections.
struct Driver {
    options: Options,
    outlets: Outlets,
    sessions: HashMap<u64, DriverSession>,
    links: HashMap<u64, DriverLink>,
    /// From the numbers of this connection to the application's.
    session_keys: HashMap<SessionId, u64>,
    link_keys: HashMap<LinkId, u64>,
    /// Sessions that are to be begun.
    unbegun: BTreeSet<u64>,
    /// Links that are to be attached.
    unattached: BTreeSet<u64>,
    /// Senders that may have something to send and credit for it.
    active: BTreeSet<u64>,
    /// Receivers whose credit is to be looked at.
    thirsty: BTreeSet<u64>,
    /// Links and sessions that are to end.
    leaving: BTreeSet<u64>,
    ending: BTreeSet<u64>,
    decisions: Vec<Decision>,
    path_requests: Vec<Done<PathStatistics>>,
    /// The application wants to end.
    closing: Option<Farewell>,
    next_token: u64,
    connections: u64,
    /// Connections whose open the server has answered were refused before anything was said: once
    /// more without running ahead.
    ran_ahead_in_vain: bool,
    clock: Clock,
}

/// Runs a connection to its end.
pub(super) async fn run(options: Options, outlets: Outlets) {
    let mut driver = Driver {
        options,
        outlets,
        sessions: HashMap::new(),
        links: HashMap::new(),
        session_keys: HashMap::new(),
        link_keys: HashMap::new(),
        unbegun: BTreeSet::new(),
        unattached: BTreeSet::new(),
        active: BTreeSet::new(),
        thirsty: BTreeSet::new(),
        leaving: BTreeSet::new(),
        ending: BTreeSet::new(),
        decisions: Vec::new(),
        path_requests: Vec::new(),
        closing: None,
        next_token: 1,
        connections: 0,
        ran_ahead_in_vain: false,
        clock: Clock::new(),
    };
    let error = link::live(&mut driver).await;
    driver.end(&error);
}

impl link::Driver for Driver {
    type Error = Error;

    fn options(&self) -> &LinkOptions {
        &self.options
    }

    fn settings(&self) -> Settings {
        let mut link = self.options.link.clone();
        link.early_data &= self.runs_ahead();
        Settings {
            link,
            keep_alive_s: self.options.idle_timeout_s,
            quic_pings: true,
            max_packet_bytes: self.options.max_frame_bytes as usize,
        }
    }

    fn connections(&self) -> u64 {
        self.connections
    }

    fn ran_ahead_in_vain(&self) -> bool {
        self.ran_ahead_in_vain
    }

    fn wants_to_end(&self) -> bool {
        self.closing.is_some()
    }

    fn has_work(&self) -> bool {
        self.links.values().any(|link| match &link.kind {
            Kind::Sender(sender) => !sender.waiting.is_empty(),
            Kind::Receiver(_) => false,
        })
    }

    async fn take_request(&mut self) {
        if self.closing.is_some() {
            return std::future::pending().await;
        }
        let command = self.outlets.commands.recv().await;
        self.take(command);
    }

    fn tell_retry(&mut self, error: Error, retry_in: Duration) {
        self.outlets.status.send_replace(Status::Pending);
        self.outlets.events.put(Event::Disconnected {
            error,
            retry_in: Some(retry_in),
        });
    }

    async fn serve(&mut self, mut transport: Transport, mut deadline: Instant) -> End {
        let mut credit = 0;
        if transport.holds_first_flight() {
            // Tickets of TLS over TCP come without credit, also from a server at the same port.
            if transport.quic.is_some() {
                credit = CREDITS.recall(&self.options.url).unwrap_or(0);
            }
            if self.connections == 0 {
                self.await_work().await;
            }
        }
        let run_ahead = self.runs_ahead();
        loop {
            tracing::debug!(peer = %transport.peer, credit, "opening");
            let mut wire = match wire::Wire::open(self, transport, deadline, credit) {
                Ok(wire) => wire,
                Err(error) => return End::Failed(error),
            };
            match wire.run(self).await {
                End::StartOver(Some(again)) => {
                    tracing::debug!("early data rejected, starting over");
                    (transport, deadline) = *again;
                    credit = 0;
                }
                end => {
                    self.ran_ahead_in_vain |= run_ahead && wire.is_unanswered(&end);
                    return end;
                }
            }
        }
    }
}

impl Driver {
    /// Whether everything is sent that need not wait for the server.
    fn runs_ahead(&self) -> bool {
        self.options.pipelined && !self.ran_ahead_in_vain
    }

    /// Waits for data that may travel in the first datagram. On a runtime with several threads, an
    /// application that has just started the client is about to hand it over.
    async fn await_work(&mut self) {
        let pause = tokio::time::sleep(self.options.early_wait);
        tokio::pin!(pause);
        while let Ok(command) = self.outlets.commands.try_recv() {
            self.take(Some(command));
        }
        while !self.may_leave_early() && self.closing.is_none() {
            tokio::select! {
                () = &mut pause => return,
                () = self.take_request() => {}
            }
        }
    }

    /// Whether there is a message to send, or credit for one to receive.
    fn may_leave_early(&self) -> bool {
        let is_waited_for = |link: &DriverLink| match &link.kind {
            Kind::Sender(_) => false,
            Kind::Receiver(receiver) => {
                receiver.granted > 0 || receiver.options.credit != Credit::Manual
            }
        };
        !self.active.is_empty() || self.links.values().any(is_waited_for)
    }

    /// Whether the transaction of a message or decision has ended with its coordinator's attachment.
    fn is_over(&self, attachment: Option<Attachment>) -> bool {
        attachment.is_some_and(|of| {
            let link = self.links.get(&of.link);
            link.is_none_or(|link| !link.is_attached || link.attached != of.number)
        })
    }

    fn token(&mut self) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        token
    }

    /// A link is over.
    fn end_link(&mut self, key: u64, error: &Error) {
        for keys in [
            &mut self.unattached,
            &mut self.active,
            &mut self.thirsty,
            &mut self.leaving,
        ] {
            keys.remove(&key);
        }
        let Some(link) = self.links.remove(&key) else {
            return;
        };
        if let Some(id) = link.id {
            self.link_keys.remove(&id);
        }
        self.drop_decisions(key);
        // The request for the end is answered.
        if let Some((_, Some(done))) = link.detaching {
            let _ = done.send(match error {
                Error::Ended | Error::Detached(None) => Ok(()),
                error => Err(error.clone()),
            });
        }
        link.status.send_replace(Status::Ended(error.clone()));
        match link.kind {
            Kind::Sender(sender) => {
                let sending = sender.sending.and_then(|sending| sending.settled);
                // A coordinator that detaches with an error tells with it what became of its requests.
                let is_told = matches!(error, Error::Detached(Some(_)));
                let of_sent = if sender.coordinator && !is_told {
                    &Error::Unknown
                } else {
                    error
                };
                for message in sender.sent.into_values() {
                    message.sent.tell(Err(of_sent.clone()));
                }
                for message in sender.waiting.into_values().chain(sending) {
                    message.sent.tell(Err(error.clone()));
                }
            }
            Kind::Receiver(receiver) => {
                let decided = receiver.decided.into_values().map(|(_, done)| done);
                for done in decided
                    .chain(receiver.recovering.into_values())
                    .chain(receiver.drain)
                {
                    let _ = done.send(Err(error.clone()));
                }
            }
        }
    }

    /// Decisions that were not told in time are about deliveries that come again.
    fn drop_decisions(&mut self, key: u64) {
        let (stale, rest) = std::mem::take(&mut self.decisions)
            .into_iter()
            .partition(|decision: &Decision| decision.link == key);
        self.decisions = rest;
        for decision in stale {
            let _ = decision.done.send(Err(Error::Stale));
        }
    }

    /// A session is over, and so are its links.
    fn end_session(&mut self, key: u64, error: &Error) {
        self.unbegun.remove(&key);
        self.ending.remove(&key);
        let links: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, link)| link.session == key)
            .map(|(key, _)| *key)
            .collect();
        for link in links {
            self.end_link(link, error);
        }
        if let Some(session) = self.sessions.remove(&key) {
            if let Some(id) = session.id {
                self.session_keys.remove(&id);
            }
            if let Some(done) = session.ending {
                let _ = done.send(match error {
                    Error::Ended | Error::SessionEnded(None) => Ok(()),
                    error => Err(error.clone()),
                });
            }
        }
    }

    /// Tells the application that the client has ended.
    fn end(mut self, error: &Error) {
        self.outlets
            .status
            .send_replace(Status::Ended(error.clone()));
        self.outlets.commands.close();
        while let Ok(command) = self.outlets.commands.try_recv() {
            self.take(Some(command));
        }
        let sessions: Vec<u64> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.end_session(session, error);
        }
        for done in self.path_requests.drain(..) {
            let _ = done.send(Err(error.clone()));
        }
        if let Some(Farewell(Some(done))) = self.closing.take() {
            let _ = done.send(match error {
                Error::Ended => Ok(()),
                error => Err(error.clone()),
            });
        }
        if !matches!(error, Error::Ended) {
            self.outlets.events.put(Event::Disconnected {
                error: error.clone(),
                retry_in: None,
            });
        }
    }

    fn set_connected(&self, connected: Connected) {
        let connected = Arc::new(connected);
        self.outlets
            .status
            .send_replace(Status::Ready(Arc::clone(&connected)));
        self.outlets.events.put(Event::Connected(connected));
    }
}
