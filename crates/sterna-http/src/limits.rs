//! Limits of a client's demands on a connection.

/// The reason of an end for too many requests that were given up: the setting is the cure.
pub(crate) const TOO_MANY_RESETS: &str = "more requests were given up than http.maximum_resets";

/// Limits of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum size of a request's fields in bytes: names, values and 32 for each field (RFC 9114,
    /// section 4.2.2). A larger head is refused with [`Refusal::FieldsTooLarge`](crate::Refusal).
    pub max_fields_bytes: u32,
    /// Maximum size of a request's target in bytes. A longer one is refused with
    /// [`Refusal::TargetTooLong`](crate::Refusal).
    pub max_target_bytes: u32,
    /// Maximum size of a request's content in bytes. A larger one is refused with
    /// [`Refusal::ContentTooLarge`](crate::Refusal).
    pub max_content_bytes: u32,
    /// Maximum size of all incomplete contents in bytes. The request that would exceed it is refused
    /// with [`Refusal::Busy`](crate::Refusal).
    pub max_assembling_bytes: u32,
    /// Maximum number of open requests.
    pub max_requests: u32,
    /// Maximum number of requests that clients give up before they are answered, within ten seconds.
    /// One more ends the connection.
    pub max_resets: u32,
    /// Maximum number of PING frames within ten seconds, and as many SETTINGS, PRIORITY, and frames of unknown kinds. One
    /// more ends the connection. HTTP/2 only.
    pub max_control_frames: u32,
    /// Maximum number of open WebTransport sessions; 0 turns WebTransport off. HTTP/3 only.
    pub max_sessions: u32,
    /// Maximum number of open streams that the client has opened in a WebTransport session.
    pub max_session_streams: u32,
    /// Time from the connection's first moment to its first request, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Time from the first byte of a request to the end of its fields, in milliseconds.
    pub fields_timeout_ms: u64,
    /// Time from the end of a request's fields to the end of its content, in milliseconds.
    pub content_timeout_ms: u64,
    /// Time without a request after which a connection is closed, in milliseconds. HTTP/2 and
    /// HTTP/1.1 only; QUIC has an idle timeout of its own.
    pub idle_timeout_ms: u64,
    /// Time for which a client may leave everything unread before its connection is closed, in
    /// milliseconds. HTTP/2 and HTTP/1.1 only.
    pub stalled_timeout_ms: u64,
    /// Bytes queued towards the client above which responses wait. One response has an eighth of it.
    pub high_watermark_bytes: usize,
}

/// Divisor of the high watermark for one response: streams that a client leaves unread must not keep others waiting.
const RESPONSE_SHARE: usize = 8;

impl Limits {
    /// Bytes of one response that wait for the client above which the application waits.
    pub(crate) const fn response_bytes(&self) -> usize {
        self.high_watermark_bytes / RESPONSE_SHARE
    }
}
