//! Limits and settings of HTTP clients.

use serde::{Deserialize, Serialize};

settings! {
    /// Limits and features for HTTP clients; see [HTTP](http.md). A connection keeps the settings of its beginning.
    #[derive(Eq)]
    pub struct Http {
        /// Identity of a request without credentials. `request`: that of the connection's certificate. `connection`:
        /// also that of an earlier request on the same QUIC connection.
        reload authentication: HttpAuthentication = HttpAuthentication::Request;
        /// Answer to a request in 0-RTT that may not be answered at once. `wait`: after the handshake. `status`: 425
        /// (RFC 8470, section 5.2).
        reload early_data_refusal: HttpEarlyDataRefusal = HttpEarlyDataRefusal::Wait;
        /// Origins of pages that may use the API and WebSocket (`https://example.org`). `*` is every origin. Pages of
        /// the listener's own origin are always allowed.
        reload cors_origins: Vec<String>;
        /// Whether a token may come as `?access_token=` (RFC 6750, section 2.3), for browsers' EventSource and WebTransport,
        /// which cannot send a field. Others keep and show addresses: see [tokens in
        /// addresses](http.md#tokens-in-addresses).
        reload access_token_parameter: bool = false;
        /// Names by which requests and WebSocket clients may address the broker, without port.
        reload hosts: Vec<String>, said "on loopback `localhost` and addresses, elsewhere every name";
        /// Whether `GET /` serves the [page](dashboard.md), also on admin listeners.
        reload page: bool = true;
        /// Bytes of a request's fields: names, values and 32 for each (431).
        reload maximum_fields_bytes: u32 = 16_383, within 1024..;
        /// Bytes of a request's path and query (414).
        reload maximum_target_bytes: u32 = 8 << 10;
        /// Bytes of a request's content (413).
        reload maximum_content_bytes: u32 = 2 << 20;
        /// Bytes of all incomplete contents of a connection (503).
        reload maximum_assembling_bytes: u32 = 8 << 20;
        /// Time from the first byte of a request to the end of its fields.
        reload fields_timeout_ms: u32 = 10_000, within 1..;
        /// Time from there to the end of its content (408).
        reload content_timeout_ms: u32 = 30_000, within 1..;
        /// Time between two requests after which a TCP connection is closed. QUIC has its own.
        reload idle_timeout_ms: u32 = 60_000;
        /// Requests of one connection at a time, subscriptions included.
        reload maximum_requests: u32 = 128, within 1..;
        /// Requests of one connection that may be given up before they are answered, within ten seconds. More end the
        /// connection.
        reload maximum_resets: u32 = 128;
        /// PING frames of one HTTP/2 connection within ten seconds, and as many SETTINGS, PRIORITY, and frames of unknown
        /// kinds. More end the connection.
        reload maximum_control_frames: u32 = 1024;
        /// Subscriptions of one connection at a time.
        reload maximum_subscriptions: u32 = 100;
        /// Filters of one subscription.
        reload maximum_filters: u32 = 16, within 1..;
        /// Messages of a durable subscription that are sent and not acknowledged.
        reload maximum_unacknowledged: u32 = 1024, within 1..;
        /// Bytes of the messages of one subscription that are sent and not acknowledged, or kept after they were sent.
        /// One message may have more.
        reload maximum_unacknowledged_bytes: u64 = 64 << 20, within 1..;
        /// Time that a durable subscription is kept while no client listens.
        reload session_expiry_s: u32 = 7 * 24 * 3600;
        /// Messages of another subscription that are kept after they were sent, for a response that is cut off.
        reload resume_window_messages: u32 = 256;
        /// Time that such a subscription is kept after its response was cut off. 0: not at all.
        reload resume_timeout_s: u32 = 60;
        /// Time without a message after which a response sends a sign of life. 0: never.
        reload heartbeat_interval_s: u32 = 15;
        /// Time that the client of a response may take no bytes before it is cut off.
        reload stalled_timeout_s: u32 = 60, within 1..;
        /// Longest wait of a long poll.
        reload maximum_wait_s: u32 = 300;
        /// Messages in the answer to a poll.
        reload maximum_poll_messages: u32 = 1000, within 1..;
        /// Time that an `Idempotency-Key` is remembered.
        reload idempotency_window_s: u32 = 24 * 3600;
        /// Keys that are remembered. The oldest of the user or address with most make room.
        reload maximum_idempotency_keys: u32 = 100_000;
        /// Topics that were created.
        reload maximum_topics: u32 = 100_000;
        /// Topics that one user has created. Clients without a name are one user.
        reload maximum_topics_per_user: u32 = 10_000;
        /// WebTransport sessions of one connection at a time. 0 turns WebTransport off, and so does
        /// `mqtt.datagrams = false`.
        reload maximum_webtransport_sessions: u32 = 16;
        /// Streams that the client of a WebTransport session may have open at a time.
        reload maximum_webtransport_streams: u32 = 128;
    }
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

impl Http {
    /// The faults of the settings, each a sentence that names one setting.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
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
