//! Connections.

/// A session of a connection: its channel number in the direction of what is sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u16);

/// A link of a session: its handle in the direction of what is sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId {
    /// The session.
    pub session: SessionId,
    /// The handle.
    pub handle: u32,
}
