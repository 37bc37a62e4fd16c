//! Limits and settings of AMQP clients.

use std::collections::HashSet;

use super::Durability;

settings! {
    /// Limits and features for AMQP clients; see [AMQP](amqp.md).
    #[derive(Eq)]
    pub struct Amqp {
        /// The broker's container-id.
        reload container_id: String = "sterna".to_owned();
        /// Another broker, as `HOST:PORT`, told to clients at shutdown: `amqp:connection:redirect` instead of
        /// `amqp:connection:forced`.
        reload server_reference: Option<String>;
        /// Largest frame accepted (max-frame-size). Larger ones end the connection (`amqp:connection:framing-error`).
        reload maximum_frame_bytes: u32 = 64 << 10, within u64::from(sterna_amqp::MIN_MAX_FRAME_BYTES)..;
        /// Sessions of one connection (channel-max plus 1).
        reload maximum_sessions_per_connection: u16 = 256, within 1..;
        /// Links of one session (handle-max plus 1), and sources of a connection that are detached and not closed.
        reload maximum_links_per_session: u32 = 256, within 1..;
        /// Links of one connection, on all of its sessions. Another one is refused (`amqp:resource-limit-exceeded`).
        reload maximum_links_per_connection: u32 = 4096, within 1..;
        /// Longest name of a link.
        reload maximum_link_name_bytes: u32 = 1024;
        /// Longest container-id of a client.
        reload maximum_container_id_bytes: u32 = 256;
        /// Unsettled deliveries of one link, in either direction.
        reload maximum_unsettled_deliveries: u32 = 2048, within 1..;
        /// Largest message accepted (max-message-size). Larger ones end the link (`amqp:link:message-size-exceeded`).
        reload maximum_message_bytes: u64 = 64 << 20;
        /// Bytes of all incomplete messages of one connection.
        reload maximum_assembling_bytes: u64 = 128 << 20;
        /// Transfers that a session may send before the broker renews its window (incoming-window).
        reload incoming_window: u32 = 2048, within 1..;
        /// Credit of each sending link, renewed when half of it is used.
        reload link_credit: u32 = 256, within 1..;
        /// Longest silence of a client on TCP, TLS or WebSocket (idle-time-out). After twice this it is disconnected.
        /// 0: any. On QUIC the transport says who lives.
        reload idle_timeout_ms: u32 = 60_000;
        /// Bytes kept of a client about which something is still being decided.
        reload maximum_held_bytes: u32 = 64 << 10;
        /// Prefixes of addresses that name topics, beside `topic://`.
        reload topic_prefixes: Vec<String>;
        /// Prefixes of addresses that name queues, beside `queue://`. An empty one makes every plain name a queue
        /// ([AMQP](amqp.md#addresses)).
        reload queue_prefixes: Vec<String>;
        /// Whether a link makes the queue that it names, where there is none.
        reload queues_on_first_use: bool = true;
        /// Queues in all.
        reload maximum_queues: u32 = 10_000;
        /// Queues that the links of one user have made. Clients without a name are one user.
        reload maximum_queues_per_user: u32 = 1_000;
        /// Failed deliveries after which a message goes to the dead letters, for queues without `maximum_deliveries`.
        /// 0: any number.
        restart queue_maximum_deliveries: u16 = 0;
        /// Whether a delivery counts as failed whose consumer's connection is lost. An end in order never counts, and a
        /// queue without dead letters drops nothing because of lost connections.
        restart queue_counts_lost_connections: bool = false;
        /// Queue of dead letters, for queues without `dead_letter`. They are messages that receivers reject, or whose
        /// deliveries failed too often. Without either setting they are dropped and counted.
        restart queue_dead_letter: Option<String>;
        /// Longest time that a queue holds a message until it is due. Longer delays are shortened to it.
        restart queue_maximum_delay_s: u32 = 7 * 24 * 3600;
        /// Whether queues without `priorities` deliver messages of a higher priority first.
        restart queue_priorities: bool = false;
        /// Longest time that a source outlives its link (timeout). 4294967295 also allows `never`.
        reload maximum_source_timeout_s: u32 = u32::MAX;
        /// Time that the unsettled deliveries of a client's sending link are remembered when its connection is lost.
        reload suspended_link_timeout_s: u32 = 60;
        /// Sending links whose unsettled deliveries are remembered, on all connections.
        reload maximum_suspended_links: u32 = 10_000;
        /// Bytes of those deliveries, with the memory that each takes beside. Beyond it, or beyond the number of links,
        /// the oldest of the user or address with most are forgotten.
        reload maximum_suspended_bytes: u64 = 16 << 20;
        /// Transactions of one connection at a time.
        reload maximum_transactions: u32 = 16;
        /// Messages and outcomes in one transaction.
        reload maximum_transaction_deliveries: u32 = 10_000;
        /// Bytes of the messages in one transaction.
        reload maximum_transaction_bytes: u64 = 16 << 20;
        /// Copies of the messages in one transaction that go to its messages' readers. A transaction with more is rolled
        /// back at its end, since it takes effect in one turn. One message alone may go to any number.
        reload maximum_transaction_copies: u32 = 100_000;
        /// Longest selector.
        reload maximum_selector_bytes: u32 = 8192;
        /// Bytes of all patterns of `LIKE` in one selector.
        reload maximum_selector_pattern_bytes: u32 = 1024;
        /// Work that a link's filters may take for each 64 KiB of one message, begun ones included. A step is a part of an expression, or four bytes of a
        /// text, and takes some nanoseconds. A filter that needs more ends the link (`amqp:resource-limit-exceeded`).
        reload maximum_selector_steps: u32 = 250_000, within 1..;
        /// Message annotations of one message after a receiver returned it as `modified`. Annotations that lead to more
        /// are not kept.
        reload maximum_modified_annotations_bytes: u32 = 4096;
        /// Queues that are there from the start.
        section queues as "queue": Vec<Queue>;
    }
}

settings! {
    /// Queues that are there from the start; see [AMQP](amqp.md).
    #[derive(Eq)]
    pub struct Queue {
        /// Name of the queue: its address after `queue/`.
        restart name: String, said "required";
        /// Topic filter of the messages that the queue takes.
        restart filter: Option<String>, said "the topic `queue/NAME`";
        /// Failed deliveries after which a message is a dead letter. 0: any number.
        restart maximum_deliveries: Option<u16>, said "as `amqp.queue_maximum_deliveries` says";
        /// Queue that takes the dead letters. Empty: none.
        restart dead_letter: Option<String>, said "as `amqp.queue_dead_letter` says";
        /// Whether messages of a higher priority are delivered first.
        restart priorities: Option<bool>, said "as `amqp.queue_priorities` says";
        /// Durability for which acknowledgements of the queue's messages wait at least. The stricter of this and the
        /// listener's holds.
        restart durability: Option<Durability>, said "as the listener says";
    }
}

impl Amqp {
    /// Host and port of the broker that clients are told at shutdown.
    pub(crate) fn redirect(&self) -> Option<(&str, u16)> {
        let (host, port) = self.server_reference.as_deref()?.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().ok().filter(|port| *port != 0)?;
        (!host.is_empty()).then_some((host, port))
    }

    /// The faults of the settings, each a sentence that names one setting.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.server_reference.is_some() && self.redirect().is_none() {
            problems.push("amqp.server_reference is HOST:PORT".to_owned());
        }
        if self.container_id.is_empty() {
            problems.push("amqp.container_id is empty".to_owned());
        }
        let mut names = HashSet::new();
        for (number, queue) in (1..).zip(&self.queues) {
            let name = &queue.name;
            if !is_queue_name(name) {
                problems.push(format!(
                    "amqp.queue {number}: `{name}` is not a queue's name"
                ));
            }
            if !names.insert(name) {
                problems.push(format!("amqp.queue {number}: `{name}` is declared twice"));
            }
            if let Some(filter) = &queue.filter
                && !is_filter(filter)
            {
                problems.push(format!(
                    "amqp.queue {number}: the filter `{filter}` of `{name}` is not a topic filter"
                ));
            }
        }
        for name in self.dead_letters() {
            let declared = (1_usize..)
                .zip(&self.queues)
                .find(|(_, queue)| queue.name == name);
            if !is_queue_name(name) {
                problems.push(format!(
                    "amqp.queue_dead_letter: `{name}` is not a queue's name"
                ));
            } else if let Some((number, queue)) = declared
                && queue.dead_letter.as_deref() == Some(name)
            {
                problems.push(format!(
                    "amqp.queue {number}: `{name}` cannot take its own dead letters"
                ));
            } else if declared.is_some_and(|(_, queue)| queue.filter.is_some()) {
                problems.push(format!(
                    "amqp.queue_dead_letter: the queue `{name}` has a filter, so nothing can be sent to it"
                ));
            }
        }
        problems
    }

    /// The names of all queues that take dead letters.
    pub(crate) fn dead_letters(&self) -> impl Iterator<Item = &str> {
        let of_queues = (self.queues.iter()).filter_map(|queue| queue.dead_letter.as_deref());
        (self.queue_dead_letter.as_deref().into_iter())
            .chain(of_queues)
            .filter(|name| !name.is_empty())
    }
}

/// First level of a queue's own topic, and of its address.
pub(crate) const QUEUE_LEVEL: &str = sterna_broker::QUEUE_TOPICS;

/// Longest name of a queue, in bytes.
const MAX_QUEUE_NAME_BYTES: usize = 1024;

/// Whether a text can be a queue's name: a topic name of up to 1,024 bytes.
pub(crate) fn is_queue_name(name: &str) -> bool {
    name.len() <= MAX_QUEUE_NAME_BYTES && is_topic_name(name)
}

/// Whether a text can be a queue's filter: a topic filter that is not shared, since the queue itself is.
fn is_filter(text: &str) -> bool {
    let is_shared = text == "$share" || text.starts_with("$share/");
    !is_shared && sterna_mqtt::topic::check_filter(text).is_ok()
}

/// Whether a text can be a topic name.
pub(crate) fn is_topic_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(['+', '#', '\0'])
}
