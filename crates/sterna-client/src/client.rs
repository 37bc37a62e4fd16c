//! The application's side: a handle for requests, and a stream of events.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sterna_mqtt::client::ServerLimits;
use sterna_mqtt::{PacketId, PropertyBuf, ReasonCode};
use tokio::sync::{mpsc, oneshot};

use crate::driver::{self, Publication, Request};
use crate::error::Error;
use crate::link::Watched;
use crate::mailbox::{Letter, Reader, mailbox};
use crate::message::{InvalidError, Message, Publish, Subscription};
use crate::options::{Options, Streams};
use crate::path::PathStatistics;
use crate::transport::quic::EarlyData;

/// Requests (subscriptions and the like) that wait for their turn.
pub(crate) const QUEUED_REQUESTS: usize = 64;

/// State of the connection after the server has accepted the client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Connected {
    /// Whether the server still had the session.
    pub session_present: bool,
    /// The client's identifier, chosen by itself or by the server.
    pub client_id: String,
    /// The server's address.
    pub peer: SocketAddr,
    /// Limits of the server.
    pub limits: ServerLimits,
    /// Base of response topics (MQTT 5, section 3.2.2.3.15), if it was requested and the server
    /// gave one.
    pub response_information: Option<String>,
    /// Number of connections up to now, with this one.
    pub connections: u64,
    /// Verdict of the server on data that was written before the handshake was complete.
    pub early_data: EarlyData,
}

/// A message's fate, for QoS 1 and 2; with QoS 0 that it was handed to the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// Success, or that the topic has no subscribers.
    pub reason: ReasonCode,
}

/// An event of a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A message came. With QoS 1 and 2 it has been acknowledged, unless
    /// [`Options::acknowledge_on_receipt`] is off.
    Message(Message),
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
    /// The broker refuses a subscription that it granted before. It had lost the session, so the
    /// client asked for the subscription again.
    SubscriptionRefused {
        /// The topic filter.
        filter: String,
        /// Why. [`ReasonCode::QuotaExceeded`] is temporary: the client asks again on its next
        /// connection. After any other reason it has forgotten the subscription.
        reason: ReasonCode,
    },
}

/// A handle to a client. Clones are handles to the same one; it ends when it is disconnected, or
/// when the last handle is gone.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use sterna_client::{Client, Options, Publish, QoS, Subscription};
///
/// let options = Options::new("mqtt+quic://localhost".parse()?);
/// let (client, mut events) = Client::start(options)?;
/// // Nothing here waits for the connection: all three leave in the first flight.
/// let subscribed = client.subscribe([Subscription::new("house/#", QoS::AtLeastOnce)?]);
/// let published = client.publish(Publish::new("house/door", "open")?.qos(QoS::AtLeastOnce));
/// let (subscribed, published) = tokio::join!(subscribed, published);
/// println!("{:?} {:?}", subscribed?, published?);
/// if let Some(message) = events.message().await {
///     println!("{}: {:?}", message.topic(), message.payload());
/// }
/// client.disconnect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    requests: mpsc::Sender<Request>,
    publications: mpsc::Sender<Publication>,
    /// For messages that must not hold up the others, where there is a stream for them.
    bulk: Option<mpsc::Sender<Publication>>,
    status: Watched<Connected, Error>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Starts a client without waiting for its connection. Requests made meanwhile leave right
    /// behind the CONNECT. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the options are not valid.
    pub fn start(options: Options) -> Result<(Self, Events), InvalidError> {
        options.check()?;
        let (request_sender, requests) = mpsc::channel(QUEUED_REQUESTS);
        let (publication_sender, publications) = mpsc::channel(options.queued_messages);
        let (bulk_sender, bulk) = mpsc::channel(options.queued_messages);
        let (event_writer, events) = mailbox(options.incoming_messages);
        let (status_sender, status) = Watched::new();
        let inlets = driver::Inlets {
            requests,
            publications,
            bulk,
            events: event_writer,
            status: status_sender,
        };
        let has_bulk = options.streams == Streams::Priority
            && options.url.scheme() == crate::url::Scheme::MqttQuic;
        tokio::spawn(driver::run(options, inlets));
        let client = Self {
            requests: request_sender,
            publications: publication_sender,
            bulk: has_bulk.then_some(bulk_sender),
            status,
        };
        Ok((client, Events { reader: events }))
    }

    /// Starts a client and waits for its first connection.
    ///
    /// # Errors
    /// When the options are not valid, or there is no connection to be had.
    pub async fn connect(options: Options) -> Result<(Self, Events), Error> {
        let (client, events) = Self::start(options)?;
        client.connected().await?;
        Ok((client, events))
    }

    /// Waits until there is a connection.
    ///
    /// # Errors
    /// When the client has ended, with the reason.
    pub async fn connected(&self) -> Result<Arc<Connected>, Error> {
        let known = self.status.ready().await;
        known.map_err(|error| error.unwrap_or(Error::Ended))
    }

    /// Why nothing more can be requested.
    fn end(&self) -> Error {
        self.status.end().unwrap_or(Error::Ended)
    }

    /// Hands a message over for publication, waiting for room in the client's queue. The returned
    /// future gives its outcome, and may be dropped.
    ///
    /// # Errors
    /// When the client has ended.
    pub async fn send(&self, message: Publish) -> Result<Delivery, Error> {
        let (done, receiver) = oneshot::channel();
        let publication = Publication {
            message,
            done: Some(done),
        };
        let bulk = self.bulk.as_ref();
        bulk.filter(|_| publication.message.is_bulk())
            .unwrap_or(&self.publications)
            .send(publication)
            .await
            .map_err(|_| self.end())?;
        Ok(Delivery { receiver })
    }

    /// Publishes a message and waits for its outcome. With QoS 1 and 2 that is the server's
    /// acknowledgement, with QoS 0 the hand-over to the operating system. Waits through lost
    /// connections.
    ///
    /// # Errors
    /// When the server refuses the message or cannot take it, or the client ends.
    pub async fn publish(&self, message: Publish) -> Result<Published, Error> {
        self.send(message).await?.await
    }

    async fn request<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Request,
    ) -> Result<T, Error> {
        let (done, receiver) = oneshot::channel();
        self.requests
            .send(request(done))
            .await
            .map_err(|_| self.end())?;
        receiver.await.map_err(|_| self.end())?
    }

    /// Subscribes and waits for the server's answer: one code per subscription, the QoS granted or
    /// an error. Whenever the server has lost the session, the client subscribes again by itself.
    ///
    /// # Errors
    /// When the server cannot take the request, or the client ends. A subscription that the server
    /// refuses is no error here; look at its code.
    pub async fn subscribe(
        &self,
        subscriptions: impl IntoIterator<Item = Subscription>,
    ) -> Result<Vec<ReasonCode>, Error> {
        self.subscribe_with(subscriptions, PropertyBuf::new()).await
    }

    /// Subscribes as [`Client::subscribe`] does, with User Properties. Subscriptions with different
    /// identifiers travel in packets of their own.
    ///
    /// # Errors
    /// As for [`Client::subscribe`].
    pub async fn subscribe_with(
        &self,
        subscriptions: impl IntoIterator<Item = Subscription>,
        properties: PropertyBuf,
    ) -> Result<Vec<ReasonCode>, Error> {
        let mut codes = Vec::new();
        let mut rest: Vec<_> = subscriptions.into_iter().collect();
        if rest.is_empty() {
            return Err(InvalidError::Empty.into());
        }
        while let Some(first) = rest.first() {
            let identifier = first.identifier;
            let same = rest
                .iter()
                .take_while(|one| one.identifier == identifier)
                .count();
            let later = rest.split_off(same);
            let packet = std::mem::replace(&mut rest, later);
            let properties = properties.clone();
            let answer = self
                .request(|done| Request::Subscribe {
                    subscriptions: packet,
                    properties,
                    done,
                })
                .await?;
            codes.extend(answer);
        }
        Ok(codes)
    }

    /// Unsubscribes and waits for the server's answer: one code per filter, and no codes before
    /// MQTT 5.
    ///
    /// # Errors
    /// When a filter is not valid, or the client ends.
    pub async fn unsubscribe<F: Into<String>>(
        &self,
        filters: impl IntoIterator<Item = F>,
    ) -> Result<Vec<ReasonCode>, Error> {
        self.unsubscribe_with(filters, PropertyBuf::new()).await
    }

    /// Unsubscribes as [`Client::unsubscribe`] does, with User Properties.
    ///
    /// # Errors
    /// As for [`Client::unsubscribe`].
    pub async fn unsubscribe_with<F: Into<String>>(
        &self,
        filters: impl IntoIterator<Item = F>,
        properties: PropertyBuf,
    ) -> Result<Vec<ReasonCode>, Error> {
        let filters: Vec<String> = filters.into_iter().map(Into::into).collect();
        if filters.is_empty() {
            return Err(InvalidError::Empty.into());
        }
        self.request(|done| Request::Unsubscribe {
            filters,
            properties,
            done,
        })
        .await
    }

    /// Acknowledges a message with QoS 1 or 2, where [`Options::acknowledge_on_receipt`] is off.
    /// Acknowledgements leave in the order of the messages, so one that is left out holds up those
    /// after it. For a message with QoS 1 that came over an earlier connection it does nothing: that
    /// one comes again. One with QoS 2 comes once, and its acknowledgement is sent over the connection
    /// that there is, or over the next one. It does not wait for that.
    ///
    /// # Errors
    /// When the client has ended.
    pub async fn acknowledge(&self, message: &Message) -> Result<(), Error> {
        let Some(packet_id) = PacketId::new(message.packet_id()) else {
            return Ok(());
        };
        let request = Request::Acknowledge {
            packet_id,
            connection: message.connection(),
        };
        self.requests.send(request).await.map_err(|_| self.end())
    }

    /// Authenticates again on the standing connection (MQTT 5 section 4.12.1), with the login of
    /// the options, which must be SCRAM.
    ///
    /// # Errors
    /// When the login is another one, or the server refuses: then the connection ends, too.
    pub async fn reauthenticate(&self) -> Result<(), Error> {
        self.request(Request::Reauthenticate).await
    }

    /// Over QUIC: moves the connection to another local port, as a change of network would. Nothing
    /// is lost and nothing is connected anew. Call it when the device knows that its network has
    /// changed. Then the server's next answer takes one round trip, and not two.
    ///
    /// # Errors
    /// When there is no QUIC connection at the moment.
    pub async fn migrate(&self) -> Result<(), Error> {
        self.request(Request::Migrate).await
    }

    /// Statistics of the path and the connection, over QUIC.
    ///
    /// # Errors
    /// When there is no QUIC connection at the moment.
    pub async fn path(&self) -> Result<PathStatistics, Error> {
        self.request(Request::Path).await
    }

    /// Writes everything that was handed over before, disconnects and ends the client. Messages
    /// whose acknowledgement is still to come end with an error, so wait for them first.
    ///
    /// # Errors
    /// If there was no connection to end in order. [`Error::Unacknowledged`], with a count, if the
    /// broker has not acknowledged all data in time.
    pub async fn disconnect(&self) -> Result<(), Error> {
        self.disconnect_with(ReasonCode::Success, PropertyBuf::new())
            .await
    }

    /// Disconnects as [`Client::disconnect`] does, with properties and another reason (MQTT 5), for
    /// example [`ReasonCode::DisconnectWithWill`].
    ///
    /// # Errors
    /// As for [`Client::disconnect`], and when DISCONNECT cannot have the properties.
    pub async fn disconnect_with(
        &self,
        reason: ReasonCode,
        properties: PropertyBuf,
    ) -> Result<(), Error> {
        self.request(|done| Request::Disconnect {
            reason,
            properties,
            done,
        })
        .await
    }
}

/// The fate of a message that was handed over with [`Client::send`]. Dropping it changes nothing.
#[derive(Debug)]
pub struct Delivery {
    receiver: oneshot::Receiver<Result<Published, Error>>,
}

impl Future for Delivery {
    type Output = Result<Published, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(ready!(Pin::new(&mut self.receiver).poll(cx)).unwrap_or(Err(Error::Ended)))
    }
}

impl Letter for Event {
    fn is_message(&self) -> bool {
        matches!(self, Self::Message(_))
    }

    fn replaces(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::Connected(_), Self::Connected(_))
            | (Self::Disconnected { .. }, Self::Disconnected { .. }) => true,
            (
                Self::SubscriptionRefused { filter, .. },
                Self::SubscriptionRefused { filter: before, .. },
            ) => filter == before,
            _ => false,
        }
    }
}

/// The events of a client, in order.
///
/// A client that only publishes need not read them. One that subscribes has to read or drop them:
/// when [`Options::incoming_messages`] wait, it stops reading from the server.
///
/// Messages are all there. Of other events, who reads late gets the newest: the last
/// [`Event::Connected`] and the last [`Event::Disconnected`], in their order, and the last
/// [`Event::SubscriptionRefused`] for each filter. [`Connected::connections`] tells how many
/// connections there were.
#[derive(Debug)]
pub struct Events {
    reader: Reader<Event>,
}

impl Events {
    /// The next event; `None` after the client has ended.
    pub async fn next(&mut self) -> Option<Event> {
        self.reader.next().await
    }

    /// The next message, without the other events; `None` after the client has ended.
    pub async fn message(&mut self) -> Option<Message> {
        loop {
            if let Event::Message(message) = self.reader.next().await? {
                return Some(message);
            }
        }
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        self.reader.try_next()
    }
}
