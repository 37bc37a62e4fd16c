//! Limits on the memory that a peer can make an engine hold.

/// Limits of one connection. Each is told to the peer where the protocol has a field for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Largest frame that is taken, in bytes (open, max-frame-size). At least 512, at most 1 GiB.
    pub max_frame_bytes: u32,
    /// Largest frame of the SASL layer that is taken, in bytes; the specification says 512 (part
    /// 5, section 5.3.1).
    pub max_sasl_frame_bytes: u32,
    /// Highest channel number (open, channel-max): one session less than there may be.
    pub channel_max: u16,
    /// Most links of a session that are attached at a time (begin, handle-max, plus one).
    pub links_per_session: u32,
    /// Longest name of a link, in bytes.
    pub max_link_name_bytes: u32,
    /// Most unsettled deliveries of a link, in either direction; also most entries that are read
    /// of an unsettled map.
    pub unsettled_per_link: u32,
    /// Largest message that is taken, in bytes (attach, max-message-size).
    pub max_message_bytes: u64,
    /// Most bytes that all messages of the connection together may have of which only parts have
    /// arrived.
    pub max_assembling_bytes: u64,
    /// Transfers that a session takes before it must renew the window (begin, incoming-window).
    pub incoming_window: u32,
    /// Most frames that are ignored for a link or session that was ended with an error. Above it
    /// the peer counts as errant.
    pub max_errant_frames: u32,
    /// Time without a byte, in milliseconds; after twice this time the connection is closed; 0 is
    /// never. It is the idle-time-out of the open: the specification recommends to announce half of
    /// the enforced time.
    pub idle_timeout_ms: u32,
    /// Shortest idle-time-out of the peer that is kept, in milliseconds; a shorter one is refused.
    pub min_peer_idle_timeout_ms: u32,
    /// Time for everything up to the peer's open, and from a close to its answer, in milliseconds.
    pub open_timeout_ms: u32,
    /// Most rounds of challenge and response.
    pub max_sasl_rounds: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_frame_bytes: 65_536,
            max_sasl_frame_bytes: 512,
            channel_max: 255,
            links_per_session: 256,
            max_link_name_bytes: 1_024,
            unsettled_per_link: 16_384,
            max_message_bytes: 64 * 1024 * 1024,
            max_assembling_bytes: 128 * 1024 * 1024,
            incoming_window: 2_048,
            max_errant_frames: 65_536,
            idle_timeout_ms: 60_000,
            min_peer_idle_timeout_ms: 500,
            open_timeout_ms: 10_000,
            max_sasl_rounds: 8,
        }
    }
}

/// Largest frame that a peer may send before it has read the other's open (part 2, section 2.4.1).
pub const MIN_MAX_FRAME_BYTES: u32 = 512;

/// Highest value of [`Limits::max_frame_bytes`] that has an effect. Above it lies the number whose
/// bytes are `AMQP`, by which a protocol header is told from a frame.
pub const MAX_MAX_FRAME_BYTES: u32 = 1 << 30;

impl Limits {
    /// The frame size that is announced and enforced.
    pub(crate) fn frame_bytes(&self) -> u32 {
        self.max_frame_bytes
            .clamp(MIN_MAX_FRAME_BYTES, MAX_MAX_FRAME_BYTES)
    }
}
