//! Properties of a simulated network.

use std::ops::RangeInclusive;

/// Properties of a simulated network. Times are in microseconds of virtual time, and rounded up to
/// multiples of [`Settings::tick_us`]. So events coincide and come in one turn, as they do under
/// load.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Start of the simulation, in milliseconds since the Unix epoch.
    pub start_ms: u64,
    /// Grain of time.
    pub tick_us: u64,
    /// Time that bytes travel one way; drawn once per connection and direction.
    pub delay_us: RangeInclusive<u64>,
    /// Time between two chunks of a stream that is under way.
    pub gap_us: RangeInclusive<u64>,
    /// Largest piece in which bytes arrive. Every piece has a random length up to this.
    pub chunk_bytes: usize,
    /// Time that letters travel between shards.
    pub mail_us: RangeInclusive<u64>,
    /// Time until a connection that opens with early data is confirmed.
    pub confirm_us: RangeInclusive<u64>,
    /// Time until the server notices that a connection was cut.
    pub cut_us: RangeInclusive<u64>,
    /// Chunks in a million at which a connection is cut by itself. Default: never.
    pub cuts_per_million: u32,
    /// Lost unreliable datagrams in a million.
    pub lost_datagrams_per_million: u32,
    /// Largest unreliable datagram; `None`: connections carry none.
    pub datagram_bytes: Option<usize>,
    /// Bytes towards a client that the transport takes over at once; more count as unsent.
    pub window_bytes: usize,
    /// Unsent bytes above which a connection counts as blocked.
    pub high_watermark_bytes: usize,
    /// Unsent bytes below which a blocked connection becomes writable.
    pub low_watermark_bytes: usize,
    /// Time that a closed connection may take to pass on its queue.
    pub linger_us: u64,
    /// Time for which one pause of the server may hide that the client has ended its side.
    pub half_closed_us: u64,
    /// Turns that a shard may take without time passing, before it is said to spin.
    pub turns_per_instant: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            start_ms: 1_800_000_000_000,
            tick_us: 500,
            delay_us: 500..=20_000,
            gap_us: 0..=2_000,
            chunk_bytes: 1_500,
            mail_us: 0..=3_000,
            confirm_us: 5_000..=50_000,
            cut_us: 0..=5_000_000,
            cuts_per_million: 0,
            lost_datagrams_per_million: 20_000,
            datagram_bytes: Some(1_200),
            window_bytes: 16 * 1024,
            high_watermark_bytes: 256 * 1024,
            low_watermark_bytes: 64 * 1024,
            linger_us: 2_000_000,
            half_closed_us: 10_000_000,
            turns_per_instant: 10_000,
        }
    }
}
