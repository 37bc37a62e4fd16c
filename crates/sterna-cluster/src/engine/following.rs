//! Reading a stream of NATS on, whichever of its servers goes.

use std::rc::Rc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{ConsumerError, ConsumerErrorKind};
use bytes::Bytes;
use futures_util::StreamExt;

use super::Core;
use super::streams::Known;

/// Time after which NATS is asked anew for what follows.
const EXPIRES: Duration = Duration::from_secs(5);
/// Time in which NATS says that it is there. Where two of them pass without a word, the server with a reader's
/// position is taken for gone.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Time for which NATS keeps a position that nobody reads from.
const INACTIVE: Duration = Duration::from_secs(30);

/// A stream that is followed. The position is in the memory of one server of NATS. When that server is gone, `next`
/// fails, and the caller follows anew from its last position.
pub(super) struct Following {
    messages: pull::Stream,
    /// Messages that were there when this began.
    pub(super) waiting: u64,
    delivered: u64,
    known: Rc<Known>,
}

/// One message of a stream.
pub(super) struct Entry {
    pub(super) subject: String,
    pub(super) headers: Option<HeaderMap>,
    pub(super) payload: Bytes,
    /// Its place in the stream.
    pub(super) position: u64,
    /// Messages that follow it.
    pub(super) pending: u64,
}

impl Core {
    /// Follows the messages of a stream whose subject fits `filter`, or all, from `start` on.
    ///
    /// # Errors
    /// NATS's words, for the log. Also where it does not answer in `cluster.answer_timeout_ms` each time.
    pub(super) async fn follow(
        &self,
        stream: &str,
        filter: Option<&str>,
        start: DeliverPolicy,
    ) -> Result<Following, String> {
        let config = pull::Config {
            filter_subject: (filter.map(|filter| self.settings.subject(filter)))
                .unwrap_or_default(),
            deliver_policy: start,
            ack_policy: AckPolicy::None,
            max_deliver: 1,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: INACTIVE,
            ..pull::Config::default()
        };
        let known = self.known_stream(stream);
        let name = self.settings.stream(stream);
        let begin = async {
            let consumer = (self
                .jetstream
                .create_consumer_on_stream(config, &name)
                .await)
                .map_err(|error| (lacks_stream(&error), error.to_string()))?;
            // After that: a reader of another stream than this one reads nothing any more.
            let found = (self.jetstream.get_stream(&name).await).map_err(other)?;
            (self.found_stream(stream, found.cached_info()).await).map_err(other)?;
            let waiting = consumer.cached_info().num_pending;
            let messages = (consumer.stream().expires(EXPIRES).heartbeat(HEARTBEAT))
                .messages()
                .await
                .map_err(other)?;
            Ok(Following {
                messages,
                waiting,
                delivered: 0,
                known,
            })
        };
        let patience = Duration::from_millis(self.settings.answer_timeout_ms) * 2;
        let answer: Result<_, (bool, String)> = tokio::time::timeout(patience, begin)
            .await
            .unwrap_or_else(|_| Err((false, "NATS does not answer".to_owned())));
        match answer {
            Err((true, why)) => {
                self.lacks_stream(stream).await;
                Err(why)
            }
            answer => answer.map_err(|(_, why)| why),
        }
    }

    /// The last entries of subjects, each as `visit` gets it.
    ///
    /// # Errors
    /// NATS' words, for the log.
    pub(super) async fn each_last(
        &self,
        stream: &str,
        filter: &str,
        mut visit: impl FnMut(Entry),
    ) -> Result<(), String> {
        let start = DeliverPolicy::LastPerSubject;
        let mut entries = self.follow(stream, Some(filter), start).await?;
        if entries.waiting == 0 {
            return Ok(());
        }
        loop {
            let entry = entries.next().await?;
            let is_last = entry.pending == 0;
            visit(entry);
            if is_last {
                return Ok(());
            }
        }
    }
}

fn other(error: impl std::fmt::Display) -> (bool, String) {
    (false, error.to_string())
}

fn lacks_stream(error: &ConsumerError) -> bool {
    match error.kind() {
        ConsumerErrorKind::JetStream(error) => error.error_code() == ErrorCode::STREAM_NOT_FOUND,
        _ => false,
    }
}

impl Following {
    /// The next message.
    ///
    /// # Errors
    /// A reason for the log: nothing more comes this way.
    pub(super) async fn next(&mut self) -> Result<Entry, String> {
        let Some(message) = self.messages.next().await else {
            return Err("NATS sends nothing more".to_owned());
        };
        let message = message.map_err(|error| error.to_string())?;
        let (place, position, pending) = match message.info() {
            Ok(info) => (info.consumer_sequence, info.stream_sequence, info.pending),
            Err(error) => return Err(error.to_string()),
        };
        self.delivered += 1;
        self.known.saw(position);
        if place != self.delivered {
            return Err(format!(
                "message {place} of the reader's came as number {}",
                self.delivered
            ));
        }
        let message = message.message;
        Ok(Entry {
            subject: message.subject.to_string(),
            headers: message.headers,
            payload: message.payload,
            position,
            pending,
        })
    }
}
