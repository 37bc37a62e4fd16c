//! The application's side of a client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sterna_mqtt::{QoS, topic};
use tokio::sync::watch;

use super::error::Error;
use super::exchange::{Inner, Keyed, Request};
use super::fields;
use super::link::Response;
use super::options::{Options, Subscribe, check_any_session};
use super::session::SessionDescription;
use super::subscription::Subscription;
use super::{Version, text};
use crate::message::{InvalidError, Message, Publish};
use crate::path::PathStatistics;
use crate::transport::quic::EarlyData;

/// Most numbers in one acknowledgement.
const MAX_ACKNOWLEDGED: usize = 1_024;

/// State of a client's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connected {
    /// The version of HTTP.
    pub version: Version,
    /// Number of connections up to now, with this one.
    pub connections: u64,
    /// Verdict of the server, up to now, on data that was sent before the handshake was complete.
    pub early_data: EarlyData,
}

/// An event of a client's connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The broker has answered a request.
    Connected(Connected),
    /// A subscription was cut off, or a request that may be repeated was not answered.
    Disconnected {
        /// Why.
        error: Error,
        /// Time until the next attempt. `None` if there is no further attempt; the request or
        /// subscription then ends with this error.
        retry_in: Option<Duration>,
    },
}

/// A client's events.
#[derive(Debug)]
pub struct Events {
    receiver: watch::Receiver<Option<Event>>,
}

impl Events {
    /// The next event; `None` when there will be no more, because all handles are gone. Of events that
    /// come faster than they are asked for, the last counts.
    pub async fn next(&mut self) -> Option<Event> {
        self.receiver.changed().await.ok()?;
        self.receiver.borrow_and_update().clone()
    }
}

/// The answer to a question for a retained message.
#[derive(Clone, Debug)]
pub enum Retained {
    /// The topic has none.
    None,
    /// The message is the one that the caller has.
    NotModified,
    /// There is one.
    Message {
        /// The message.
        message: Message,
        /// The message's entity tag, if the broker gave one.
        etag: Option<String>,
    },
}

/// A handle to a client. Clones are handles to the same client. Its connection ends when it is
/// closed, or when the last handle and the last subscription are dropped.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("url", &self.inner.options.url)
            .finish_non_exhaustive()
    }
}

/// The target of a topic.
fn target(topic: &str) -> String {
    let mut target = String::with_capacity(topic.len() + 16);
    target.push_str("/v1/topics/");
    text::push_path(topic, &mut target);
    target
}

fn session_target(name: &str, rest: &str) -> Result<String, Error> {
    check_any_session(name)?;
    Ok(format!("/v1/sessions/{name}{rest}"))
}

fn check_topic(name: &str) -> Result<(), Error> {
    topic::check_name(name).map_err(|_| InvalidError::Topic.into())
}

impl Client {
    /// A client that connects with its first request: so that this can travel with the handshake.
    ///
    /// # Errors
    /// When the options are not valid.
    pub fn new(options: Options) -> Result<Self, Error> {
        Ok(Self {
            inner: Arc::new(Inner::new(options)?),
        })
    }

    pub(super) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Connects where there is no connection, and waits until the handshake is complete.
    ///
    /// # Errors
    /// When there is no connection to be had.
    pub async fn connected(&self) -> Result<Connected, Error> {
        let link = self.inner.link().await?;
        self.inner.established(&link).await?;
        Ok(self.inner.describe(&link))
    }

    /// The events of the connection from now on.
    #[must_use]
    pub fn events(&self) -> Events {
        Events {
            receiver: self.inner.events.subscribe(),
        }
    }

    /// The connection that there is at the moment.
    #[must_use]
    pub fn connection(&self) -> Option<Connected> {
        self.inner.current().map(|link| self.inner.describe(&link))
    }

    /// Statistics of the path and the connection, over HTTP/3. `None` on other versions or without
    /// a connection.
    #[must_use]
    pub fn path(&self) -> Option<PathStatistics> {
        self.inner.current()?.path()
    }

    /// Publishes a message and waits until it is in every queue that it belongs to. Messages whose
    /// publishing overlaps may overtake each other.
    ///
    /// With QoS 1 and 2 the message has an `Idempotency-Key`. It is sent again if the connection is
    /// lost before the answer. With QoS 0 such a loss is an error, and the arrival of the message
    /// is unknown.
    ///
    /// # Errors
    /// When the broker refuses it, and when it could not be sent.
    pub async fn publish(&self, publish: Publish) -> Result<(), Error> {
        let request = Request {
            method: "POST",
            target: target(&publish.topic),
            fields: fields::of_publish(&publish)?,
            keyed: match publish.qos {
                QoS::AtMostOnce => Keyed::Early,
                QoS::AtLeastOnce | QoS::ExactlyOnce => Keyed::Always,
            },
            content: publish.payload,
            is_safe: false,
        };
        let response = self.inner.execute(&request).await?;
        self.inner.finish(response).await
    }

    /// Subscribes, and waits until the subscription is in force.
    ///
    /// # Errors
    /// When the broker refuses it, and when it could not be asked.
    pub async fn subscribe(&self, subscribe: Subscribe) -> Result<Subscription, Error> {
        Subscription::open(Arc::clone(&self.inner), subscribe).await
    }

    /// The retained message of a topic, unless it is the one with this `etag`.
    ///
    /// # Errors
    /// When the broker refuses to say, and when it could not be asked.
    pub async fn retained(&self, topic: &str, etag: Option<&str>) -> Result<Retained, Error> {
        check_topic(topic)?;
        let mut request = Request::read("GET", target(topic) + "?last");
        if let Some(etag) = etag {
            request
                .fields
                .push(("if-none-match", etag.as_bytes().to_vec()));
        }
        let Some(response) = found(self.inner.execute(&request).await)? else {
            return Ok(Retained::None);
        };
        if response.status == 304 {
            self.inner.finish(response).await?;
            return Ok(Retained::NotModified);
        }
        let etag = response.text("etag").map(str::to_owned);
        let its_fields = response.fields.clone();
        let content = self.inner.content(response).await?;
        Ok(Retained::Message {
            message: fields::to_message(topic, &*its_fields, &content)?,
            etag,
        })
    }

    /// Creates a topic; false where it existed. Publishing and subscribing need no topic before.
    ///
    /// # Errors
    /// When the broker refuses it, and when it could not be asked.
    pub async fn create_topic(&self, topic: &str) -> Result<bool, Error> {
        check_topic(topic)?;
        let response = self.change("PUT", target(topic)).await?;
        let is_new = response.status == 201;
        self.inner.finish(response).await?;
        Ok(is_new)
    }

    /// Whether a topic exists: it was created, or has a retained message.
    ///
    /// # Errors
    /// When the broker refuses to say, and when it could not be asked.
    pub async fn topic_exists(&self, topic: &str) -> Result<bool, Error> {
        check_topic(topic)?;
        let request = Request::read("HEAD", target(topic));
        let answer = self.inner.execute(&request).await;
        self.is_found(answer).await
    }

    /// Removes a topic and its retained message, and ends every subscription whose filter is
    /// exactly this. Returns false if the topic did not exist.
    ///
    /// # Errors
    /// When the broker refuses it, and when it could not be asked.
    pub async fn delete_topic(&self, topic: &str) -> Result<bool, Error> {
        check_topic(topic)?;
        let answer = self.change("DELETE", target(topic)).await;
        self.is_found(answer).await
    }

    /// The state of a session at the broker; `None` if it has no session of this name.
    ///
    /// # Errors
    /// When the broker refuses to say, and when it could not be asked.
    pub async fn session(&self, name: &str) -> Result<Option<SessionDescription>, Error> {
        self.inner.session(name).await
    }

    /// Ends a session; false if there was no session of this name.
    ///
    /// # Errors
    /// When the broker refuses it, and when it could not be asked.
    pub async fn end_session(&self, name: &str) -> Result<bool, Error> {
        let target = session_target(name, "")?;
        let answer = self.change("DELETE", target).await;
        self.is_found(answer).await
    }

    /// Acknowledges everything of a session up to a number.
    ///
    /// # Errors
    /// When the broker refuses it, and when it could not be asked.
    pub async fn acknowledge(&self, session: &str, id: u64) -> Result<(), Error> {
        self.inner.acknowledge(session, id).await
    }

    /// Acknowledges exactly these messages of a session, at most 1,024 at once.
    ///
    /// # Errors
    /// When the broker refuses it, and when it could not be asked.
    pub async fn acknowledge_each(&self, session: &str, ids: &[u64]) -> Result<(), Error> {
        if ids.len() > MAX_ACKNOWLEDGED {
            return Err(Error::invalid(
                "at most 1,024 messages are acknowledged at once",
            ));
        }
        let request = Request {
            fields: vec![("content-type", b"application/json".to_vec())],
            content: serde_json::json!({ "ids": ids }).to_string().into(),
            ..Request::change("POST", session_target(session, "/ack")?)
        };
        let response = self.inner.execute(&request).await?;
        self.inner.finish(response).await
    }

    /// Gives the connection up, as if it had been lost. Repeatable requests and subscriptions
    /// continue on another one. For devices that know that their network has changed.
    pub fn drop_connection(&self) {
        if let Some(link) = self.inner.current() {
            self.inner.give_up(&link);
        }
    }

    /// Ends the connection. Requests under way end with an error.
    pub async fn close(&self) {
        self.inner.close().await;
    }

    /// Whether the broker has said that there is such a thing.
    async fn is_found(&self, answer: Result<Response, Error>) -> Result<bool, Error> {
        let Some(response) = found(answer)? else {
            return Ok(false);
        };
        self.inner.finish(response).await?;
        Ok(true)
    }

    async fn change(&self, method: &'static str, target: String) -> Result<Response, Error> {
        self.inner.execute(&Request::change(method, target)).await
    }
}

/// An answer, or `None` if the broker says that the resource does not exist.
fn found(answer: Result<Response, Error>) -> Result<Option<Response>, Error> {
    match answer {
        Ok(response) => Ok(Some(response)),
        Err(Error::Problem(problem)) if problem.status == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

impl Inner {
    pub(super) async fn session(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<Option<SessionDescription>, Error> {
        let request = Request::read("GET", session_target(name, "")?);
        let Some(response) = found(self.execute(&request).await)? else {
            return Ok(None);
        };
        let content = self.content(response).await?;
        match SessionDescription::parse(&content) {
            Ok(session) => Ok(Some(session)),
            Err(error) => Err(Error::Protocol(format!(
                "a session that cannot be read: {error}"
            ))),
        }
    }

    pub(super) async fn acknowledge(self: &Arc<Self>, name: &str, id: u64) -> Result<(), Error> {
        let target = session_target(name, &format!("/ack?id={id}"))?;
        let response = self.execute(&Request::change("POST", target)).await?;
        self.finish(response).await
    }

    /// The target of a subscription.
    pub(super) fn subscription_target(
        subscribe: &Subscribe,
        session: Option<&str>,
        after: Option<u64>,
    ) -> String {
        let mut filters = subscribe.filters.iter();
        let mut out = target(filters.next().map_or("", String::as_str));
        let mut separator = '?';
        let mut parameter = |name: &str, value: &str| {
            out.push(separator);
            separator = '&';
            out.push_str(name);
            out.push('=');
            text::push_query(value, &mut out);
        };
        match subscribe.qos {
            QoS::AtMostOnce => parameter("qos", "0"),
            QoS::AtLeastOnce => {}
            QoS::ExactlyOnce => parameter("qos", "2"),
        }
        for filter in filters {
            parameter("filter", filter);
        }
        if !subscribe.retained {
            parameter("retained", "no");
        }
        if let Some(session) = session {
            parameter("session", session);
        }
        if let Some(after) = after {
            parameter("after", &after.to_string());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_have_their_targets() {
        let plain = Subscribe::new("a/+/#", QoS::AtLeastOnce).unwrap();
        assert_eq!(
            Inner::subscription_target(&plain, None, None),
            "/v1/topics/a/+/%23"
        );
        let full = Subscribe::new("a b", QoS::ExactlyOnce)
            .unwrap()
            .filter("c/+")
            .unwrap()
            .retained(false);
        assert_eq!(
            Inner::subscription_target(&full, Some("~x"), Some(7)),
            "/v1/topics/a%20b?qos=2&filter=c/%2B&retained=no&session=~x&after=7"
        );
    }
}
