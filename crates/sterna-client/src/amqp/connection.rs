//! The application's side of a connection and its sessions.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::driver::{self, Arrived, Command, Done, Held};
use super::options::{MAX_IN_FLIGHT, Options, ReceiverOptions, ReceiverSettles, SenderOptions};
use super::receiver::Receiver;
use super::sender::Sender;
use super::transaction::Controller;
use super::{Error, LinkInfo};
use crate::link::Watched;
use crate::mailbox::{Letter, Reader, mailbox};
use crate::options::random_id;
use crate::path::PathStatistics;
use crate::transport::quic::EarlyData;

/// Requests (sessions, links) that wait for their turn.
const QUEUED_REQUESTS: usize = 64;

/// The next number of a session or link. No connection has another's, so that a transaction is not
/// taken for one of another connection.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// State of the connection after the server's open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connected {
    /// The server's address.
    pub peer: SocketAddr,
    /// The server's container-id.
    pub container_id: String,
    /// Number of connections up to now, with this one.
    pub connections: u64,
    /// Verdict of the server, up to now, on data that was written before the handshake was
    /// complete.
    pub early_data: EarlyData,
}

/// An event of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A connection stands.
    Connected(Arc<Connected>),
    /// A connection was lost, or an attempt to connect failed.
    Disconnected {
        /// Why.
        error: Error,
        /// Time until the next attempt. `None` if there is no further attempt; then this is the
        /// last event.
        retry_in: Option<Duration>,
    },
}

impl Letter for Event {
    fn is_message(&self) -> bool {
        false
    }

    fn replaces(&self, earlier: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(earlier)
    }
}

/// The events of a connection. They need not be read.
///
/// A late reader gets the last [`Event::Connected`] and the last [`Event::Disconnected`], in their
/// order. [`Connected::connections`] tells how many connections there were.
#[derive(Debug)]
pub struct Events {
    reader: Reader<Event>,
}

impl Events {
    /// The next event; `None` after the client has ended.
    pub async fn next(&mut self) -> Option<Event> {
        self.reader.next().await
    }
}

/// State that each handle shares.
pub(super) struct Inlet {
    commands: mpsc::UnboundedSender<Command>,
    status: Watched<Connected, Error>,
    requests: Arc<Semaphore>,
    /// Room for messages that are to be sent, in bytes.
    bytes: Arc<Semaphore>,
    bytes_limit: usize,
    pub(super) held: Arc<Held>,
}

impl fmt::Debug for Inlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inlet").finish_non_exhaustive()
    }
}

impl Inlet {
    pub(super) fn send(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).map_err(|_| self.end())
    }

    /// Why nothing more can be requested.
    pub(super) fn end(&self) -> Error {
        self.status.end().unwrap_or(Error::Ended)
    }

    fn key() -> u64 {
        NEXT_KEY.fetch_add(1, Ordering::Relaxed)
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        let permit = Arc::clone(&self.requests).acquire_owned().await;
        permit.map_err(|_| self.end())
    }

    /// Room for a message of this size; one that is larger than all the room has all of it.
    pub(super) async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
        let bytes = bytes.min(self.bytes_limit) as u32;
        let permit = Arc::clone(&self.bytes).acquire_many_owned(bytes).await;
        permit.map_err(|_| self.end())
    }

    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(Done<T>) -> Command,
    ) -> Result<T, Error> {
        let (done, answer) = oneshot::channel();
        self.send(command(done))?;
        answer.await.map_err(|_| self.end())?
    }
}

/// A handle to a connection. Clones are handles to the same connection. It ends when it is closed,
/// or when the last handle to it, its sessions and links is dropped.
#[derive(Clone, Debug)]
pub struct Connection {
    inlet: Arc<Inlet>,
}

impl Connection {
    /// Starts a connection without waiting for it. Requests made meanwhile leave with its first
    /// packets. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the options are not valid.
    pub fn start(options: Options) -> Result<(Self, Events), Error> {
        options.check()?;
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let (event_writer, events) = mailbox(0);
        let (status_sender, status) = Watched::new();
        let held = Arc::new(Held::default());
        let bytes_limit = options.outgoing_bytes.min(Semaphore::MAX_PERMITS);
        let outlets = driver::Outlets {
            commands: command_receiver,
            events: event_writer,
            status: status_sender,
            held: Arc::clone(&held),
        };
        tokio::spawn(driver::run(options, outlets));
        let inlet = Inlet {
            commands,
            status,
            requests: Arc::new(Semaphore::new(QUEUED_REQUESTS)),
            bytes: Arc::new(Semaphore::new(bytes_limit)),
            bytes_limit,
            held,
        };
        let connection = Self {
            inlet: Arc::new(inlet),
        };
        Ok((connection, Events { reader: events }))
    }

    /// Starts a connection and waits until it stands.
    ///
    /// # Errors
    /// When the options are not valid, or there is no connection to be had.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let (connection, _) = Self::start(options)?;
        connection.connected().await?;
        Ok(connection)
    }

    /// Waits until there is a connection.
    ///
    /// # Errors
    /// When the client has ended, with the reason.
    pub async fn connected(&self) -> Result<Arc<Connected>, Error> {
        let known = self.inlet.status.ready().await;
        known.map_err(|error| error.unwrap_or(Error::Ended))
    }

    /// Begins a session; over QUIC each but the first has a stream of its own. Waits for room among the requests
    /// only.
    ///
    /// # Errors
    /// When the client has ended.
    pub async fn session(&self) -> Result<Session, Error> {
        let key = Inlet::key();
        let permit = self.inlet.permit().await?;
        self.inlet.send(Command::Begin {
            session: key,
            permit,
        })?;
        Ok(Session {
            inlet: Arc::clone(&self.inlet),
            key,
        })
    }

    /// Statistics of the path and the connection, over QUIC.
    ///
    /// # Errors
    /// When there is no QUIC connection at the moment.
    pub async fn path(&self) -> Result<PathStatistics, Error> {
        self.inlet.ask(Command::Path).await
    }

    /// Closes the connection, and with it its sessions and links. Messages that have not been settled
    /// end with an error, so wait for them first.
    ///
    /// # Errors
    /// If the client had ended before, with the reason. [`Error::Unacknowledged`], with a count, if
    /// the broker has not answered in time and messages were sent settled.
    pub async fn close(&self) -> Result<(), Error> {
        self.inlet.ask(|done| Command::Close(Some(done))).await
    }
}

/// A handle to a session (part 2, section 2.5), which keeps the order of all frames of its links.
/// Clones are handles to the same session. The session lasts until it is ended or its connection is
/// closed.
#[derive(Clone, Debug)]
pub struct Session {
    inlet: Arc<Inlet>,
    key: u64,
}

impl Session {
    /// Attaches a sender. Doesn't wait for the peer: [`Sender::attached`] does.
    ///
    /// # Errors
    /// When the options are not valid, or the client has ended.
    pub async fn sender(&self, options: SenderOptions) -> Result<Sender, Error> {
        self.attach_sender(options, false).await
    }

    /// Attaches a receiver. Doesn't wait for the peer: [`Receiver::attached`] does.
    ///
    /// # Errors
    /// When the options are not valid, or the client has ended.
    pub async fn receiver(&self, options: ReceiverOptions) -> Result<Receiver, Error> {
        if options.dynamic == options.address.is_some() {
            return Err(Error::Invalid(
                "a receiver has an address, or is dynamic, but not both",
            ));
        }
        let (deliveries, receiver) = mpsc::unbounded_channel::<Arrived>();
        let (status, watched) = Watched::new();
        let link = Inlet::key();
        let name = options.name.clone().unwrap_or_else(random_id);
        let outlives_link = options.outlives_link();
        let permit = self.inlet.permit().await?;
        self.inlet.send(Command::AttachReceiver {
            session: self.key,
            link,
            name: name.clone(),
            options: Box::new(options),
            status,
            deliveries,
            permit,
        })?;
        let handle = LinkHandle::new(Arc::clone(&self.inlet), link, name, watched);
        Ok(Receiver::new(handle, receiver, outlives_link))
    }

    /// Attaches a link to the peer's coordinator of transactions.
    ///
    /// # Errors
    /// When the client has ended.
    pub async fn controller(&self) -> Result<Controller, Error> {
        let options = SenderOptions {
            // So the coordinator knows an outcome until it has been told here.
            receiver_settles: ReceiverSettles::Second,
            ..SenderOptions::default()
        };
        let sender = self.attach_sender(options, true).await?;
        Ok(Controller::new(sender))
    }

    async fn attach_sender(
        &self,
        options: SenderOptions,
        coordinator: bool,
    ) -> Result<Sender, Error> {
        if !(1..=MAX_IN_FLIGHT).contains(&options.in_flight) {
            return Err(Error::Invalid("1 to 16,384 messages can be under way"));
        }
        let (status, watched) = Watched::new();
        let link = Inlet::key();
        let name = options.name.clone().unwrap_or_else(random_id);
        let room = Arc::new(Semaphore::new(options.in_flight));
        let settles = options.sender_settles;
        let permit = self.inlet.permit().await?;
        self.inlet.send(Command::AttachSender {
            session: self.key,
            link,
            name: name.clone(),
            options: Box::new(options),
            coordinator,
            status,
            permit,
        })?;
        let handle = LinkHandle::new(Arc::clone(&self.inlet), link, name, watched);
        Ok(Sender::new(handle, room, settles))
    }

    /// Ends the session and its links.
    ///
    /// # Errors
    /// When it, or the client, had ended before.
    pub async fn end(&self) -> Result<(), Error> {
        let session = self.key;
        self.inlet.ask(|done| Command::End { session, done }).await
    }
}

/// State that senders and receivers share.
#[derive(Debug)]
pub(super) struct LinkHandle {
    pub(super) inlet: Arc<Inlet>,
    pub(super) link: u64,
    pub(super) name: String,
    status: Watched<LinkInfo, Error>,
}

impl LinkHandle {
    fn new(inlet: Arc<Inlet>, link: u64, name: String, status: Watched<LinkInfo, Error>) -> Self {
        Self {
            inlet,
            link,
            name,
            status,
        }
    }

    pub(super) async fn attached(&self) -> Result<Arc<LinkInfo>, Error> {
        let known = self.status.ready().await;
        known.map_err(|error| error.unwrap_or_else(|| self.inlet.end()))
    }

    /// Why the link is over.
    pub(super) fn end(&self) -> Error {
        self.status.end().unwrap_or_else(|| self.inlet.end())
    }

    pub(super) async fn detach(&self, closed: bool) -> Result<(), Error> {
        let link = self.link;
        self.inlet
            .ask(|done| Command::Detach {
                link,
                closed,
                done: Some(done),
            })
            .await
    }

    /// The handle is gone: so is the link, as soon as may be.
    pub(super) fn abandon(&self, closed: bool) {
        let _ = self.inlet.send(Command::Detach {
            link: self.link,
            closed,
            done: None,
        });
    }
}
