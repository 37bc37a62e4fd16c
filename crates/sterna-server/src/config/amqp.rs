//! Limits and settings of AMQP clients.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::Durability;

/// Limits and settings of AMQP clients.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Amqp {
    /// The broker's container-id.
    pub container_id: String,
    /// `HOST:PORT` of another broker, told to clients at shutdown as `amqp:connection:redirect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_reference: Option<String>,
    /// Largest frame accepted, in bytes (max-frame-size), from 512.
    pub maximum_frame_bytes: u32,
    /// Sessions of one connection (channel-max, plus one).
    pub maximum_sessions_per_connection: u16,
    /// Links of one session (handle-max, plus one).
    pub maximum_links_per_session: u32,
    /// Longest name of a link, in bytes.
    pub maximum_link_name_bytes: u32,
    /// Longest container-id of a client, in bytes.
    pub maximum_container_id_bytes: u32,
    /// Unsettled deliveries of one link, in either direction.
    pub maximum_unsettled_deliveries: u32,
    /// Largest message accepted, in bytes (max-message-size).
    pub maximum_message_bytes: u64,
    /// Bytes of all messages of one connection of which only parts have arrived.
    pub maximum_assembling_bytes: u64,
    /// Transfers that a session may send before the broker renews its window (incoming-window).
    pub incoming_window: u32,
    /// Credit that each sending link is given, and renewed when half of it is used.
    pub link_credit: u32,
    /// Longest silence of a client on TCP, TLS or WebSocket, in milliseconds (idle-time-out). After
    /// twice this it is disconnected. 0: any. On QUIC the transport notices a dead client.
    pub idle_timeout_ms: u32,
    /// Bytes of one connection that wait for a decision about earlier ones.
    pub maximum_held_bytes: u32,
    /// Further prefixes of addresses that name topics; `topic://` always does.
    pub topic_prefixes: Vec<String>,
    /// Further prefixes of addresses that name queues; `queue://` always does.
    pub queue_prefixes: Vec<String>,
    /// Whether a link that names a queue which is not there makes it.
    pub queues_on_first_use: bool,
    /// Queues in all.
    pub maximum_queues: u32,
    /// Queues that the links of one user may have made; clients without a name are one user.
    pub maximum_queues_per_user: u32,
    /// Failed deliveries after which a queue's message goes to its dead letters. 0: any number.
    pub queue_maximum_deliveries: u16,
    /// The queue for the dead letters of queues. These are messages that receivers reject, or whose
    /// deliveries failed too often. Without this queue they are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_dead_letter: Option<String>,
    /// The longest time that a queue holds a message until it is due, in seconds; longer ones are
    /// shortened.
    pub queue_maximum_delay_s: u32,
    /// Whether queues deliver messages of a higher priority first.
    pub queue_priorities: bool,
    /// Longest time that a source outlives its link, in seconds (timeout; 4,294,967,295 also allows
    /// `never`).
    pub maximum_source_timeout_s: u32,
    /// Time that the unsettled deliveries of a client's sending link are remembered when its connection
    /// is lost, in seconds.
    pub suspended_link_timeout_s: u32,
    /// Sending links whose unsettled deliveries are remembered, on all connections.
    pub maximum_suspended_links: u32,
    /// Bytes of the unsettled deliveries of such links, as the account of memory counts them. Beyond
    /// that, those that would be forgotten first are forgotten.
    pub maximum_suspended_bytes: u64,
    /// Transactions of one connection at a time.
    pub maximum_transactions: u32,
    /// Messages and outcomes in one transaction.
    pub maximum_transaction_deliveries: u32,
    /// Bytes of the messages in one transaction.
    pub maximum_transaction_bytes: u64,
    /// Longest selector, in bytes.
    pub maximum_selector_bytes: u32,
    /// Message annotations of one message after a receiver has modified them, in bytes. Modifications
    /// that lead to more are not kept.
    pub maximum_modified_annotations_bytes: u32,
    /// Queues that are there from the start.
    #[serde(rename = "queue")]
    pub queues: Vec<Queue>,
}

/// A queue that is there from the start.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Name of the queue: its address after `queue/`.
    pub name: String,
    /// Topic filter of the queue, instead of the topic `queue/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Overrides `amqp.queue_maximum_deliveries`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_deliveries: Option<u16>,
    /// Overrides `amqp.queue_dead_letter`; empty for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<String>,
    /// Overrides `amqp.queue_priorities`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priorities: Option<bool>,
    /// Least durability for which acknowledgements of the queue's messages wait. The stricter of
    /// this and the listener's holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
}

impl Default for Amqp {
    fn default() -> Self {
        Self {
            container_id: "sterna".to_owned(),
            server_reference: None,
            maximum_frame_bytes: 64 << 10,
            maximum_sessions_per_connection: 256,
            maximum_links_per_session: 256,
            maximum_link_name_bytes: 1024,
            maximum_container_id_bytes: 256,
            maximum_unsettled_deliveries: 2048,
            maximum_message_bytes: 64 << 20,
            maximum_assembling_bytes: 128 << 20,
            incoming_window: 2048,
            link_credit: 256,
            idle_timeout_ms: 60_000,
            maximum_held_bytes: 64 << 10,
            topic_prefixes: Vec::new(),
            queue_prefixes: Vec::new(),
            queues_on_first_use: true,
            maximum_queues: 10_000,
            maximum_queues_per_user: 1_000,
            queue_maximum_deliveries: 0,
            queue_dead_letter: None,
            queue_maximum_delay_s: 7 * 24 * 3600,
            queue_priorities: false,
            maximum_source_timeout_s: u32::MAX,
            suspended_link_timeout_s: 60,
            maximum_suspended_links: 10_000,
            maximum_suspended_bytes: 16 << 20,
            maximum_transactions: 16,
            maximum_transaction_deliveries: 10_000,
            maximum_transaction_bytes: 16 << 20,
            maximum_selector_bytes: 8192,
            maximum_modified_annotations_bytes: 4096,
            queues: Vec::new(),
        }
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
        if self.maximum_frame_bytes < sterna_amqp::MIN_MAX_FRAME_BYTES {
            problems.push("amqp.maximum_frame_bytes is at least 512".to_owned());
        }
        for (name, value) in [
            (
                "maximum_sessions_per_connection",
                u32::from(self.maximum_sessions_per_connection),
            ),
            ("maximum_links_per_session", self.maximum_links_per_session),
            ("incoming_window", self.incoming_window),
            ("link_credit", self.link_credit),
            (
                "maximum_unsettled_deliveries",
                self.maximum_unsettled_deliveries,
            ),
        ] {
            if value == 0 {
                problems.push(format!("amqp.{name} is at least 1"));
            }
        }
        if self.container_id.is_empty() {
            problems.push("amqp.container_id is empty".to_owned());
        }
        let mut names = HashSet::new();
        for queue in &self.queues {
            let name = &queue.name;
            if !is_queue_name(name) {
                problems.push(format!("amqp.queue: `{name}` is not a queue's name"));
            }
            if !names.insert(name) {
                problems.push(format!("amqp.queue: `{name}` is declared twice"));
            }
            if let Some(filter) = &queue.filter
                && !is_filter(filter)
            {
                problems.push(format!(
                    "amqp.queue: the filter `{filter}` of `{name}` is not a topic filter"
                ));
            }
        }
        for name in self.dead_letters() {
            let declared = self.queues.iter().find(|queue| queue.name == name);
            if !is_queue_name(name) {
                problems.push(format!(
                    "amqp.queue_dead_letter: `{name}` is not a queue's name"
                ));
            } else if declared.is_some_and(|queue| queue.dead_letter.as_deref() == Some(name)) {
                problems.push(format!(
                    "amqp.queue: `{name}` cannot take its own dead letters"
                ));
            } else if declared.is_some_and(|queue| queue.filter.is_some()) {
                problems.push(format!(
                    "amqp.queue_dead_letter: the queue `{name}` has a filter, so nothing can be sent to it"
                ));
            }
        }
        problems
    }

    /// Whether queues are declared, and made, as by other settings.
    pub(crate) fn has_queues_of(&self, other: &Self) -> bool {
        let rules = |amqp: &Self| {
            (
                amqp.queue_maximum_deliveries,
                amqp.queue_dead_letter.clone(),
                amqp.queue_priorities,
                amqp.queue_maximum_delay_s,
            )
        };
        self.queues == other.queues && rules(self) == rules(other)
    }

    /// Declares and makes queues as by other settings.
    pub(crate) fn take_queues_of(&mut self, other: &Self) {
        self.queues.clone_from(&other.queues);
        self.queue_maximum_deliveries = other.queue_maximum_deliveries;
        self.queue_dead_letter.clone_from(&other.queue_dead_letter);
        self.queue_priorities = other.queue_priorities;
        self.queue_maximum_delay_s = other.queue_maximum_delay_s;
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
pub(crate) const QUEUE_LEVEL: &str = "queue/";

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
