//! Limits and settings of HTTP clients.

use serde::{Deserialize, Serialize};

/// Limits and settings of HTTP clients.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Meaning of earlier credentials for a request without any.
    pub authentication: HttpAuthentication,
    /// Answer to a request in early data that may not be done at once.
    pub early_data_refusal: HttpEarlyDataRefusal,
    /// Origins of pages that may use the API and WebSocket, as browsers write them (`https://example.org`); `*` is
    /// every one.
    pub cors_origins: Vec<String>,
    /// Names by which requests may address the broker, without port; empty is any, but on loopback
    /// `localhost` and addresses alone.
    pub hosts: Vec<String>,
    /// Whether `GET /` serves the page.
    pub page: bool,
    /// Bytes of a request's fields, counted as names, values and 32 for each.
    pub maximum_fields_bytes: u32,
    /// Bytes of a request's target.
    pub maximum_target_bytes: u32,
    /// Bytes of a request's content.
    pub maximum_content_bytes: u32,
    /// Bytes of all contents of one connection that are not complete.
    pub maximum_assembling_bytes: u32,
    /// Time from the first byte of a request to the end of its fields, in milliseconds.
    pub fields_timeout_ms: u32,
    /// Time from the end of a request's fields to the end of its content, in milliseconds.
    pub content_timeout_ms: u32,
    /// Time after which a TCP connection without a request is closed, in milliseconds.
    pub idle_timeout_ms: u32,
    /// Requests of one connection at a time, subscriptions included.
    pub maximum_requests: u32,
    /// Requests of one connection that clients may give up before they are answered, within ten
    /// seconds.
    pub maximum_resets: u32,
    /// Subscriptions of one connection at a time.
    pub maximum_subscriptions: u32,
    /// Filters of one subscription.
    pub maximum_filters: u32,
    /// Messages of a durable subscription that are sent and not acknowledged.
    pub maximum_unacknowledged: u32,
    /// Bytes of the messages of one subscription that are sent and not acknowledged, or kept after they
    /// were sent. One message may have more.
    pub maximum_unacknowledged_bytes: u64,
    /// Time that a durable subscription is kept while nobody listens, in seconds.
    pub session_expiry_s: u32,
    /// Messages of another subscription that are kept after they were sent, for a response that is cut
    /// off.
    pub resume_window_messages: u32,
    /// Time that such a subscription is kept after its response was cut off, in seconds; 0: not at all.
    pub resume_timeout_s: u32,
    /// Time without a message after which a response says that it lives, in seconds; 0: never.
    pub heartbeat_interval_s: u32,
    /// Time that a response may take nothing before it is cut off, in seconds.
    pub stalled_timeout_s: u32,
    /// Longest time that a poll waits, in seconds.
    pub maximum_wait_s: u32,
    /// Messages in the answer to a poll.
    pub maximum_poll_messages: u32,
    /// Time that an `Idempotency-Key` is remembered, in seconds.
    pub idempotency_window_s: u32,
    /// Keys that are remembered; the oldest make room.
    pub maximum_idempotency_keys: u32,
    /// Topics that were created.
    pub maximum_topics: u32,
    /// Topics that one user may have created; clients without a name are one user.
    pub maximum_topics_per_user: u32,
    /// WebTransport sessions of one connection at a time; 0 turns WebTransport off.
    pub maximum_webtransport_sessions: u32,
    /// Streams that the client of a WebTransport session may have open at a time.
    pub maximum_webtransport_streams: u32,
}

/// Meaning of earlier credentials for a request without any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HttpAuthentication {
    /// Nothing: each request is judged by its own credentials, or the certificate of its connection.
    #[default]
    Request,
    /// On QUIC, the credentials of an earlier request of the connection.
    Connection,
}

/// Answer to a request in early data that may not be done at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HttpEarlyDataRefusal {
    /// It waits until the handshake is complete.
    #[default]
    Wait,
    /// It is answered with status 425 (RFC 8470, section 5.2).
    Status,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            authentication: HttpAuthentication::default(),
            early_data_refusal: HttpEarlyDataRefusal::default(),
            cors_origins: Vec::new(),
            hosts: Vec::new(),
            page: true,
            maximum_fields_bytes: 16_383,
            maximum_target_bytes: 8 << 10,
            maximum_content_bytes: 2 << 20,
            maximum_assembling_bytes: 8 << 20,
            fields_timeout_ms: 10_000,
            content_timeout_ms: 30_000,
            idle_timeout_ms: 60_000,
            maximum_requests: 128,
            maximum_resets: 128,
            maximum_subscriptions: 100,
            maximum_filters: 16,
            maximum_unacknowledged: 1024,
            maximum_unacknowledged_bytes: 64 << 20,
            session_expiry_s: 7 * 24 * 3600,
            resume_window_messages: 256,
            resume_timeout_s: 60,
            heartbeat_interval_s: 15,
            stalled_timeout_s: 60,
            maximum_wait_s: 300,
            maximum_poll_messages: 1000,
            idempotency_window_s: 24 * 3600,
            maximum_idempotency_keys: 100_000,
            maximum_topics: 100_000,
            maximum_topics_per_user: 10_000,
            maximum_webtransport_sessions: 16,
            maximum_webtransport_streams: 128,
        }
    }
}

impl Http {
    /// The faults of the settings, each a sentence that names one setting.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, value) in [
            ("maximum_requests", self.maximum_requests),
            ("maximum_filters", self.maximum_filters),
            ("maximum_unacknowledged", self.maximum_unacknowledged),
            ("maximum_poll_messages", self.maximum_poll_messages),
            ("fields_timeout_ms", self.fields_timeout_ms),
            ("content_timeout_ms", self.content_timeout_ms),
            ("stalled_timeout_s", self.stalled_timeout_s),
        ] {
            if value == 0 {
                problems.push(format!("http.{name} is at least 1"));
            }
        }
        if self.maximum_unacknowledged_bytes == 0 {
            problems.push("http.maximum_unacknowledged_bytes is at least 1".to_owned());
        }
        if self.maximum_fields_bytes < 1024 {
            problems.push("http.maximum_fields_bytes is at least 1024".to_owned());
        }
        for origin in &self.cors_origins {
            if origin != "*" && !origin.contains("://") {
                problems.push(format!(
                    "http.cors_origins: `{origin}` is not an origin such as https://example.org"
                ));
            }
        }
        problems
    }
}
