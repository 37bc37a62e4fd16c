//! The connection to NATS, and what this cluster has there.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use futures_util::TryStreamExt as _;
use tokio::sync::Notify;

use super::streams::{INBOX, NODES};
use super::writing::as_last;
use super::{Core, Retry, refusals, retained};
use crate::owners::Fence;
use crate::settings::Settings;
use crate::status::Status;
use crate::subjects;
use crate::wire;

/// Room for the headers of a message to NATS.
pub(super) const HEADER_BYTES: usize = 512;

/// A client that connects in the background.
pub(super) async fn connect(
    settings: &Settings,
    (status, fence): (&Arc<Status>, &Arc<Fence>),
    connected: &Arc<Notify>,
) -> Result<Client, String> {
    let mut addresses = Vec::with_capacity(settings.servers.len());
    for url in &settings.servers {
        let address: ServerAddr = url
            .parse()
            .map_err(|error| format!("cluster.nats: `{url}`: {error}"))?;
        addresses.push(address);
    }
    let (status, connected) = (Arc::clone(status), Arc::clone(connected));
    // Rights are proved before clocks are compared.
    let (fence, judged_ms) = (Arc::clone(fence), 2 * settings.answer_timeout_ms);
    let most_ms = settings.maximum_backoff_ms;
    let mut options = ConnectOptions::new()
        .name(format!("sterna {} {}", settings.name, settings.node))
        .retry_on_initial_connect()
        .max_reconnects(None)
        .ping_interval(Duration::from_millis((settings.lease_ms / 2).max(500)))
        .connection_timeout(Duration::from_millis(settings.answer_timeout_ms))
        .request_timeout(Some(Duration::from_millis(settings.answer_timeout_ms)))
        .require_tls(settings.requires_tls)
        .reconnect_delay_callback(move |attempts| backoff(attempts, most_ms))
        .event_callback(move |event| {
            // In order: the callback does its work before it returns a future.
            if matches!(event, Event::Connected) {
                fence.await_clock(judged_ms);
            }
            noted(&status, &connected, &event);
            std::future::ready(())
        });
    if let Some((user, password)) = &settings.user {
        options = options.user_and_password(user.clone(), password.clone());
    }
    if let Some(file) = &settings.credentials_file {
        options = options
            .credentials_file(file)
            .await
            .map_err(|error| format!("cluster.credentials_file: {}: {error}", file.display()))?;
    }
    if let Some(file) = &settings.ca {
        options = options.add_root_certificates(file.clone());
    }
    if let Some((chain, key)) = &settings.certificate {
        options = options.add_client_certificate(chain.clone(), key.clone());
    }
    options
        .connect(addresses)
        .await
        .map_err(|error| format!("cluster: {error}"))
}

/// The time before another attempt to connect. It doubles with each attempt, from 50 ms up to `most_ms`.
fn backoff(attempts: usize, most_ms: u64) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16) as u32;
    Duration::from_millis((50_u64 << doublings).min(most_ms))
}

fn noted(status: &Status, connected: &Notify, event: &Event) {
    match event {
        Event::Connected => {
            refusals::noted(status, event);
            status.way_is_back();
            tracing::info!("connected to NATS");
            connected.notify_one();
        }
        Event::Disconnected => {
            if status.way_is_lost() {
                tracing::warn!("the connection to NATS is lost");
            }
            connected.notify_one();
        }
        Event::SlowConsumer(_) => {
            // There is an event for each of them.
            if let Some(messages) = status.dropped_fast() {
                tracing::warn!(
                    messages,
                    "messages of QoS 0 from other nodes were dropped: they come too fast"
                );
            }
        }
        other => refusals::noted(status, other),
    }
}

impl Core {
    /// Makes what the cluster needs in NATS, and enters it. Tries until that is done.
    pub(super) async fn join(self: &Rc<Self>) {
        let mut retry = Retry::new();
        let mut last = String::new();
        loop {
            match self.try_join().await {
                Ok(()) => break,
                Err(why) => {
                    self.status.conditions.set_join(why.clone());
                    // By how much a clock is wrong changes with each look.
                    let what = why.replace(|c: char| c.is_ascii_digit(), "");
                    if what != last && self.status.is_connected() {
                        tracing::warn!(why, "the node cannot join the cluster yet");
                        last = what;
                    }
                }
            }
            retry.wait().await;
        }
        // Where nobody has said the time, there is nobody to agree with.
        self.fence.set_clock_wrong(false);
        self.status.has_joined.store(true, Ordering::Release);
        tracing::info!(
            cluster = self.settings.name,
            node = self.settings.node,
            incarnation = self.incarnation.get(),
            "joined the cluster"
        );
    }

    async fn try_join(&self) -> Result<(), String> {
        if !self.status.is_connected() {
            return Err("no server of NATS is connected".to_owned());
        }
        self.prove_rights(true).await?;
        self.is_no_import_under_way().await?;
        self.may_have_regions()?;
        self.may_date().await?;
        self.make_streams().await?;
        self.learn_what_came().await?;
        self.enter().await?;
        let payload = self.client.max_payload();
        let headers = HEADER_BYTES + retained::REACHED_BYTES;
        let overhead = headers + wire::RECORD_OVERHEAD_BYTES + wire::BATCH_OVERHEAD_BYTES;
        // A message of the log may have to go to a member of a group, in a letter.
        let overhead = overhead + sterna_broker::LETTER_OVERHEAD_BYTES;
        (self.gate).set_largest_body_bytes(payload.saturating_sub(overhead) as u64);
        Ok(())
    }

    /// Ends what an earlier start of this node left, and gets a number for this one.
    pub(super) async fn enter(&self) -> Result<(), String> {
        let settings = &self.settings;
        let node = &settings.node;
        let inbox = (self.jetstream.get_stream(settings.stream(INBOX)).await)
            .map_err(|error| error.to_string())?;
        let left = settings.subject(&subjects::inbox(node, ">"));
        inbox
            .purge()
            .filter(left)
            .await
            .map_err(|error| format!("the inbox of an earlier start: {error}"))?;
        self.look_at_names().await?;
        let subject = settings.subject(&subjects::join(node));
        let word = as_last(PublishMessage::build().payload("1".into()));
        let joined = self.jetstream.send_publish(subject, word).await;
        let joined = joined.map_err(|error| format!("entering: {error}"))?;
        let joined = joined.await.map_err(|error| format!("entering: {error}"))?;
        self.incarnation.set(joined.sequence);
        (self.table.borrow_mut()).set_own_incarnation(joined.sequence);
        Ok(())
    }

    /// Looks whether the cluster may have this node's name. Four records of each name stay for good: where a node entered,
    /// its last mark, its floor, and that its filters have ended.
    async fn look_at_names(&self) -> Result<(), String> {
        let settings = &self.settings;
        let own = settings.subject(&subjects::join(&settings.node));
        let nodes = self.stream(NODES).await?;
        let joins = settings.subject(&subjects::join("*"));
        let names = nodes.info_with_subjects(joins).await;
        let mut names = names.map_err(|error| error.to_string())?;
        let (mut count, mut is_known) = (0, false);
        while let Some((subject, _)) = names.try_next().await.map_err(|error| error.to_string())? {
            count += 1;
            is_known |= subject == own;
        }
        self.status.node_names.set(count as u64);
        may_be_named(count, is_known, settings.maximum_node_names)
    }
}

/// Whether a node may enter where the cluster knows so many names.
///
/// # Errors
/// A sentence for the operator.
fn may_be_named(count: usize, is_known: bool, most: usize) -> Result<(), String> {
    if is_known || count < most {
        return Ok(());
    }
    Err(format!(
        "the cluster has had nodes of {count} names, and this node's is another \
         (cluster.maximum_node_names = {most}): give it the name of a node that is gone"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_too_many_is_refused_and_a_known_one_is_not() {
        assert!(may_be_named(2, false, 3).is_ok() && may_be_named(3, true, 3).is_ok());
        let why = may_be_named(3, false, 3).expect_err("a name too many");
        assert!(why.contains("cluster.maximum_node_names = 3"), "{why}");
    }

    #[test]
    fn the_back_off_grows_to_its_limit() {
        let waits: Vec<u128> = [0, 1, 2, 3, 10, 1_000]
            .map(|attempts| backoff(attempts, 2_000).as_millis())
            .to_vec();
        assert_eq!(waits, [50, 50, 100, 200, 2_000, 2_000]);
    }
}
