//! The content of a request on its way, and the time that the broker has for its answer.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Instant;

/// Bytes that are handed to the transport at once. Each piece that it takes is progress.
pub(super) const PIECE_BYTES: usize = 16 << 10;

/// When a request has last come forward. `None` before it has a connection.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct Progress(Arc<Mutex<Option<Instant>>>);

impl Progress {
    /// The request has come forward: its time begins anew.
    pub(super) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn last(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of a request; `None` if it does not come forward for this time. A wait for a free
    /// connection does not count.
    pub(in crate::http) async fn within<T>(
        &self,
        timeout: Duration,
        mut request: impl Future<Output = T> + Unpin,
    ) -> Option<T> {
        loop {
            // Without a start, the next look is soon enough.
            let due = self.last().unwrap_or_else(Instant::now) + timeout;
            tokio::select! {
                biased;
                ended = &mut request => return Some(ended),
                () = tokio::time::sleep_until(due) => {}
            }
            if self.last().is_some_and(|last| last.elapsed() >= timeout) {
                return None;
            }
        }
    }
}

/// Content that notes what the transport takes of it.
pub(super) struct Upload {
    content: Bytes,
    progress: Progress,
}

impl Upload {
    pub(super) const fn new(content: Bytes, progress: Progress) -> Self {
        Self { content, progress }
    }

    /// The next piece.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        if self.content.is_empty() {
            return None;
        }
        self.progress.note();
        let bytes = self.content.len().min(PIECE_BYTES);
        Some(self.content.split_to(bytes))
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.content.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces take longer together than the time, and each a small part of it.
    #[tokio::test(start_paused = true)]
    async fn the_time_counts_from_the_last_progress() {
        let timeout = Duration::from_secs(2);
        let progress = Progress::default();
        let mut upload = Upload::new(vec![7; 10 * PIECE_BYTES].into(), progress.clone());
        let request = async {
            let mut bytes = 0;
            while let Some(piece) = upload.next() {
                bytes += piece.len();
                tokio::time::sleep(timeout / 8).await;
            }
            bytes
        };
        let sent = progress.within(timeout, Box::pin(request)).await;
        assert_eq!(sent, Some(10 * PIECE_BYTES));
    }

    /// The wait for a connection has a limit of its own.
    #[tokio::test(start_paused = true)]
    async fn the_time_begins_with_the_request() {
        let timeout = Duration::from_millis(10);
        let waiting = Box::pin(tokio::time::sleep(10 * timeout));
        assert!(Progress::default().within(timeout, waiting).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_stands_still_is_given_up() {
        let progress = Progress::default();
        let mut upload = Upload::new(vec![7; 10 * PIECE_BYTES].into(), progress.clone());
        let request = async {
            upload.next().unwrap();
            std::future::pending::<()>().await;
        };
        let timeout = Duration::from_millis(10);
        assert!(progress.within(timeout, Box::pin(request)).await.is_none());
    }
}
