//! What a route carries from a subscription to its deliveries.

/// What all deliveries of a subscription share. Subscriptions without identifier and hint, which
/// are most, have none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Context {
    /// Subscription Identifiers.
    pub(crate) identifiers: Box<[u32]>,
    /// The stream that asked, zero for none.
    pub(crate) hint: u64,
    /// The session's attendance in which it asked; the hint means nothing in a later one.
    pub(crate) attendance: u32,
}
