//! How long tests wait for what must come. It tells a hang from a slow machine, and measures nothing.

use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a future that ends in time.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("in time")
}
