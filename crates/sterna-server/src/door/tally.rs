//! What one client has exchanged, for operators.

/// Messages of a connection since its beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Messages that the client published, refused ones included.
    pub(crate) received: u64,
    /// Messages that it was sent, repetitions included.
    pub(crate) sent: u64,
}
