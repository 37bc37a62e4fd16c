//! What all shards know of HTTP.

use crate::config::Http;

/// What all shards know of HTTP.
#[derive(Debug)]
pub struct Registry {}

impl Registry {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(_http: &Http) -> Self {
        Self {}
    }
}
