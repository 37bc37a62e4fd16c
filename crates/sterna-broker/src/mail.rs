//! What shards say to each other. The caller carries it, in order per sender and receiver.

/// A letter from one shard's broker to another's.
#[derive(Debug)]
pub struct Mail<P> {
    _protocol: std::marker::PhantomData<P>,
}
