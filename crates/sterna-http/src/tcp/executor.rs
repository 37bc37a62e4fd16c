//! Drives the library's futures: one executor for each connection, within the shard's turn. A
//! future is polled when its waker was called. That is when bytes arrived, the application has
//! answered, or there is room to write again.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

type Work = Pin<Box<dyn Future<Output = ()>>>;

/// Says that a future is to be polled.
#[derive(Debug)]
pub(super) struct Flag(AtomicBool);

impl Flag {
    pub(super) fn raised() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true)))
    }

    pub(super) fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was raised; it no longer is.
    pub(super) fn lower(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.raise();
    }
}

/// Where the library leaves the futures of HTTP/2's streams.
#[derive(Clone, Default)]
pub(super) struct Executor(Rc<RefCell<Vec<Work>>>);

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").finish_non_exhaustive()
    }
}

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, work: F) {
        self.0.borrow_mut().push(Box::pin(work));
    }
}

/// The futures beside that of the connection.
#[derive(Default)]
pub(super) struct Tasks {
    new: Executor,
    running: Vec<Task>,
}

struct Task {
    work: Work,
    flag: Arc<Flag>,
    waker: Waker,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks")
            .field("running", &self.running.len())
            .finish_non_exhaustive()
    }
}

impl Tasks {
    /// Where futures are left.
    pub(super) fn executor(&self) -> Executor {
        self.new.clone()
    }

    /// Polls those that are to be polled; whether there were any.
    pub(super) fn poll(&mut self) -> bool {
        let new = std::mem::take(&mut *self.new.0.borrow_mut());
        self.running.extend(new.into_iter().map(|work| {
            let flag = Flag::raised();
            let waker = Waker::from(Arc::clone(&flag));
            Task { work, flag, waker }
        }));
        let mut any = false;
        self.running.retain_mut(|task| {
            if !task.flag.lower() {
                return true;
            }
            any = true;
            let mut cx = Context::from_waker(&task.waker);
            task.work.as_mut().poll(&mut cx).is_pending()
        });
        if self.running.is_empty() {
            self.running = Vec::new();
        }
        any
    }
}
