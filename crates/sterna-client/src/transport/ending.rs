//! The end of a connection: how long it is waited for, and what may be lost with it.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::ReadBuf;
use tokio::time::{Instant, Sleep};

use super::{Channel, Quic};

/// Probe timeouts without an acknowledgement after which a path counts as lost. They are three
/// probes, each with twice the wait of the one before (RFC 9002, section 6.2.1).
const PROBE_TIMEOUTS: u32 = 7;
/// Least time for an acknowledgement, however short the round trip: the peer may be busy.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);
/// Time for a server over TCP to close on its own, before this end does.
const GRACE: Duration = Duration::from_millis(250);
/// Bytes of a stream that are counted together.
const MARK_BYTES: u64 = 4 << 10;
/// More bytes than this are not under way on one stream: earlier bytes have been acknowledged. Systems keep at most 4
/// MiB of a TCP connection, and QUIC keeps its send window.
const WINDOW_BYTES: u64 = 8 << 20;

/// Messages without a confirmation at the end of a connection. They were written, and may have
/// arrived or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unacknowledged {
    /// Messages without an acknowledgement of their own (QoS 0; in AMQP settled ones), at most.
    pub messages: u64,
    /// Bytes of the streams that carry them, at most.
    pub bytes: u64,
}

impl fmt::Display for Unacknowledged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (messages, bytes) = (self.messages, self.bytes);
        f.write_str("the broker has not acknowledged the end of the connection")?;
        match messages {
            0 => Ok(()),
            1 => write!(f, ": 1 message may be lost ({bytes} bytes)"),
            _ => write!(f, ": up to {messages} messages may be lost ({bytes} bytes)"),
        }
    }
}

impl std::ops::AddAssign for Unacknowledged {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// Messages under way on one stream, as far as they have no acknowledgement of their own.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(VecDeque<Mark>);

/// Some messages that were written one after the other.
#[derive(Debug)]
struct Mark {
    start: u64,
    end: u64,
    messages: u64,
}

impl UnderWay {
    /// Notes that a message of `bytes` ends at `end`, counted from the stream's beginning.
    pub(crate) fn add(&mut self, end: u64, bytes: u64) {
        let start = end.saturating_sub(bytes);
        while self
            .0
            .front()
            .is_some_and(|mark| mark.end + WINDOW_BYTES < start)
        {
            self.0.pop_front();
        }
        match self.0.back_mut() {
            Some(last) if end - last.start <= MARK_BYTES => {
                last.end = end;
                last.messages += 1;
            }
            _ => self.0.push_back(Mark {
                start,
                end,
                messages: 1,
            }),
        }
    }

    /// Data that may be lost with the stream.
    pub(crate) fn total(&self) -> Unacknowledged {
        let mut total = Unacknowledged::default();
        for mark in &self.0 {
            total += Unacknowledged {
                messages: mark.messages,
                bytes: mark.end - mark.start,
            };
        }
        total
    }

    /// The peer has all of it.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Values that change while the peer takes something: bytes sent, and its last acknowledgement.
type Progress = (u64, Option<std::time::Instant>);

/// The wait for an end, which lasts while there is progress.
pub(crate) struct Patience {
    longest: Duration,
    progress: Progress,
    timer: Pin<Box<Sleep>>,
}

impl Patience {
    /// Begins to wait, for at most `longest` without progress.
    pub(crate) fn new(longest: Duration, quic: Option<&Quic>, sent_bytes: u64) -> Self {
        let wait = Self::wait(longest, quic);
        Self {
            longest,
            progress: Self::progress(quic, sent_bytes),
            timer: Box::pin(tokio::time::sleep(wait)),
        }
    }

    fn wait(longest: Duration, quic: Option<&Quic>) -> Duration {
        quic.map_or(longest, |quic| {
            let probes = quic.probe_timeout() * PROBE_TIMEOUTS;
            probes.max(LEAST_PATIENCE).min(longest)
        })
    }

    fn progress(quic: Option<&Quic>, sent_bytes: u64) -> Progress {
        (sent_bytes, quic.and_then(Quic::acknowledged))
    }

    /// Ready when there was no progress for too long.
    pub(crate) fn poll(
        &mut self,
        quic: Option<&Quic>,
        sent_bytes: u64,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let progress = Self::progress(quic, sent_bytes);
            if progress == self.progress {
                return Poll::Ready(());
            }
            self.progress = progress;
            let wait = Self::wait(self.longest, quic);
            self.timer.as_mut().reset(Instant::now() + wait);
        }
    }
}

/// Ends a stream in order: true when the peer has everything that was written to it. Over QUIC that is
/// when it has acknowledged the stream's end, else when it has closed its own side. The connection is
/// left as it is. A connection that breaks is no harm where nothing `is_at_risk`.
pub(crate) async fn finish(
    control: &mut Channel,
    quic: Option<&Quic>,
    input: &mut [u8],
    longest: Duration,
    is_at_risk: bool,
) -> bool {
    let mut patience = Patience::new(longest, quic, 0);
    if quic.is_some() {
        return poll_fn(|cx| {
            if let Poll::Ready(ended) = control.poll_shutdown(cx) {
                return Poll::Ready(ended.is_ok() || !is_at_risk);
            }
            patience.poll(quic, 0, cx).map(|()| false)
        })
        .await;
    }
    let mut grace = Box::pin(tokio::time::sleep(GRACE));
    let mut is_shut = false;
    poll_fn(|cx| {
        // The server closes when it has read the last packet. To close earlier could reset the connection, and the
        // packet would be lost. Bytes behind the packet could do the same.
        if !is_shut && grace.as_mut().poll(cx).is_ready() {
            // A peer that has closed takes no end; the read tells.
            is_shut = control.poll_shutdown(cx).is_ready();
        }
        match poll_closed(control, input, cx) {
            Poll::Ready(Ok(())) => Poll::Ready(true),
            Poll::Ready(Err(_)) => Poll::Ready(!is_at_risk),
            Poll::Pending => patience.poll(None, 0, cx).map(|()| false),
        }
    })
    .await
}

/// Ready when the peer has closed its side.
fn poll_closed(
    control: &mut Channel,
    input: &mut [u8],
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    loop {
        let mut buffer = ReadBuf::new(input);
        match ready!(control.poll_read(cx, &mut buffer)) {
            Ok(()) if buffer.filled().is_empty() => return Poll::Ready(Ok(())),
            Ok(()) => {}
            // Without a word of TLS.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Poll::Ready(Ok(()));
            }
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_counted_and_bounded() {
        let mut under_way = UnderWay::default();
        let mut end = 0;
        for _ in 0..1_000 {
            end += 30;
            under_way.add(end, 20);
        }
        let total = under_way.total();
        assert_eq!(total.messages, 1_000);
        assert!((20_000..=end).contains(&total.bytes), "{total:?}");
        assert!(under_way.0.len() < 10, "{}", under_way.0.len());
        for _ in 0..1_000_000 {
            end += 30;
            under_way.add(end, 30);
        }
        let total = under_way.total();
        assert!(total.bytes <= WINDOW_BYTES + 2 * MARK_BYTES, "{total:?}");
        assert!(total.bytes >= WINDOW_BYTES, "{total:?}");
        under_way.clear();
        assert_eq!(under_way.total(), Unacknowledged::default());
    }
}
