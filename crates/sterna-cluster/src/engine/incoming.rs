//! From other nodes to shards.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use futures_util::StreamExt;
use sterna_broker::FromPeer;

use super::connection::INBOX;
use super::{Core, Retry};
use crate::port::ToShard;
use crate::wire;

/// Letters that a shard may have before its node's inbox is read on.
const BACKLOG: usize = 1_024;

/// Batches of an inbox that are acknowledged together.
const TOGETHER: usize = 64;

/// Batches that are read ahead of their acknowledgements.
const READ_AHEAD: i64 = 2_048;

/// The last batch of each node that was taken: its incarnation and its number.
type Last = HashMap<String, (u64, u64)>;

impl Core {
    /// Receives messages that may be missed.
    pub(super) async fn receive_live(self: Rc<Self>) {
        let mut retry = Retry::new();
        loop {
            let subject = format!("to.{}.*", self.settings.node);
            let subject = self.settings.subject(&subject);
            if let Ok(mut batches) = self.client.subscribe(subject).await {
                retry = Retry::new();
                while let Some(batch) = batches.next().await {
                    self.received(batch.subject.as_str(), &batch.payload);
                }
            }
            retry.wait().await;
        }
    }

    /// Receives messages that must arrive.
    pub(super) async fn receive_inbox(self: Rc<Self>) {
        let mut retry = Retry::new();
        let mut last = Last::new();
        let mut is_first = true;
        loop {
            if let Err(why) = self.receive_inbox_once(&mut last, &mut is_first).await {
                tracing::debug!(why, "the inbox is opened anew");
                self.status.failed_attempts.add(1);
            }
            retry.wait().await;
        }
    }

    async fn receive_inbox_once(&self, last: &mut Last, is_first: &mut bool) -> Result<(), String> {
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let node = &self.settings.node;
        let stream = (self.jetstream)
            .get_stream(self.settings.stream(INBOX))
            .await
            .map_err(|error| said(&error))?;
        if *is_first {
            // An earlier start of this node has left it, or there is none.
            let _ = stream.delete_consumer(node).await;
        }
        let config = pull::Config {
            durable_name: Some(node.clone()),
            filter_subject: self.settings.subject(&format!("inbox.{node}.>")),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::All,
            ack_wait: Duration::from_secs(30),
            max_ack_pending: READ_AHEAD,
            ..pull::Config::default()
        };
        let consumer = stream
            .get_or_create_consumer(node, config)
            .await
            .map_err(|error| said(&error))?;
        *is_first = false;
        let batches = consumer.messages().await.map_err(|error| said(&error))?;
        let mut batches = batches.ready_chunks(TOGETHER);
        while let Some(chunk) = batches.next().await {
            let mut taken = None;
            for batch in chunk {
                let batch = batch.map_err(|error| said(&error))?;
                let source = source_of(batch.subject.as_str());
                if is_new(last, source, batch.headers.as_ref()) {
                    self.received(batch.subject.as_str(), &batch.payload);
                } else {
                    self.status.repeated_batches.add(1);
                }
                taken = Some(batch);
            }
            // Each shard has its letters: they are lost only with the process, and its sessions with it.
            if let Some(batch) = taken {
                batch
                    .ack_with(AckKind::Ack)
                    .await
                    .map_err(|error| said(&error))?;
            }
            while self.is_behind() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(())
    }

    fn is_behind(&self) -> bool {
        let shards = self.shards.borrow();
        (0..self.settings.shards).any(|shard| shards.backlog(shard) > BACKLOG)
    }

    fn received(&self, subject: &str, payload: &[u8]) {
        let source = source_of(subject);
        let runs = match wire::read(payload) {
            Ok(runs) => runs,
            Err(error) => {
                self.status.unreadable_batches.add(1);
                tracing::warn!(node = source, %error, "a batch of another node cannot be read");
                return;
            }
        };
        self.status.received_batches.add(1);
        for run in runs {
            // A publisher has one shard there, and so it has one here.
            let shard = usize::from(run.shard);
            self.status.received_messages.add(run.messages.len() as u64);
            let messages = (run.messages.into_iter())
                .map(|message| (message, FromPeer::Publish))
                .collect();
            self.post(shard, ToShard::Messages(messages));
        }
    }
}

/// The node that a subject's message is from: its last token.
pub(super) fn source_of(subject: &str) -> &str {
    subject.rsplit('.').next().unwrap_or_default()
}

/// Whether a batch is not one that came before. Its number is in the id by which NATS knows it, too.
fn is_new(last: &mut Last, source: &str, headers: Option<&HeaderMap>) -> bool {
    let id = headers.and_then(|headers| headers.get(NATS_MESSAGE_ID));
    let Some((incarnation, serial)) = id.and_then(|id| numbers(id.as_str())) else {
        return true; // nothing tells
    };
    let known = last.get(source).copied().unwrap_or_default();
    if (incarnation, serial) <= known {
        return false;
    }
    last.insert(source.to_owned(), (incarnation, serial));
    true
}

/// Incarnation and number of `node.incarnation.node.number`.
fn numbers(id: &str) -> Option<(u64, u64)> {
    let mut parts = id.split('.');
    let incarnation = parts.nth(1)?.parse().ok()?;
    let serial = parts.nth(1)?.parse().ok()?;
    Some((incarnation, serial))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_came_before_is_known_again() {
        let mut last = Last::new();
        let mut take = |source: &str, id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(NATS_MESSAGE_ID, id);
            is_new(&mut last, source, Some(&headers))
        };
        assert!(take("b", "b.7.a.1"));
        assert!(take("b", "b.7.a.2"));
        assert!(!take("b", "b.7.a.2"), "the same again");
        assert!(!take("b", "b.7.a.1"), "one from before");
        assert!(take("c", "c.3.a.1"), "another node counts for itself");
        assert!(take("b", "b.9.a.1"), "a new start counts anew");
        assert!(!take("b", "b.7.a.3"), "what the earlier start has left");
        assert!(is_new(&mut Last::new(), "b", None));
    }
}
