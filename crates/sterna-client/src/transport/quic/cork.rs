//! Holds a new connection's first datagram back until there is something to put into it.
//!
//! quinn sends when the task that drives a connection runs. On a runtime with one thread that is when the
//! caller waits for something; with several it is at any moment. So the task of a connection that may carry
//! early data starts only on request. That comes after CONNECT and the data that follows it at once have
//! been written. They then ride in the datagram of the ClientHello, which is filled up to 1,200 bytes
//! anyway.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};

/// Waiting tasks; `None` after the wait is over.
type Waiting = Mutex<Option<Vec<Waker>>>;

/// Keeps the tasks of a [`CorkedRuntime`] from running as long as it exists.
#[derive(Debug)]
pub(super) struct Cork(Arc<Waiting>);

impl Drop for Cork {
    fn drop(&mut self) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        for waker in waiting.into_iter().flatten() {
            waker.wake();
        }
    }
}

/// Tokio, with tasks that start when their [`Cork`] is gone.
#[derive(Debug)]
pub(super) struct CorkedRuntime(Arc<Waiting>);

impl CorkedRuntime {
    pub(super) fn new() -> (Arc<Self>, Cork) {
        let waiting = Arc::new(Mutex::new(Some(Vec::new())));
        (Arc::new(Self(Arc::clone(&waiting))), Cork(waiting))
    }
}

impl Runtime for CorkedRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, mut future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let waiting = Arc::clone(&self.0);
        let mut corked = true;
        let task = poll_fn(move |cx| {
            if corked {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(wakers) = &mut *waiting {
                    wakers.retain(|waker| !waker.will_wake(cx.waker()));
                    wakers.push(cx.waker().clone());
                    return Poll::Pending;
                }
                corked = false;
            }
            future.as_mut().poll(cx)
        });
        TokioRuntime.spawn(Box::pin(task));
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
