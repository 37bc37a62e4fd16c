//! The state of a connection or of a link, as its handles see it.

use std::sync::Arc;

use tokio::sync::watch;

/// Where a connection or a link stands.
#[derive(Clone, Debug)]
pub(crate) enum Status<T, E> {
    /// It is being made, perhaps again.
    Pending,
    Ready(Arc<T>),
    Ended(E),
}

/// A handle's view of it.
#[derive(Clone, Debug)]
pub(crate) struct Watched<T, E>(watch::Receiver<Status<T, E>>);

/// The driver's end.
pub(crate) type Told<T, E> = watch::Sender<Status<T, E>>;

impl<T: Send + Sync, E: Clone + Send + Sync> Watched<T, E> {
    /// Both ends of the state of something that is being made.
    pub(crate) fn new() -> (Told<T, E>, Self) {
        let (told, watched) = watch::channel(Status::Pending);
        (told, Self(watched))
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// Its end, with the reason if that is known.
    pub(crate) async fn ready(&self) -> Result<Arc<T>, Option<E>> {
        let mut watched = self.0.clone();
        let is_known = |status: &Status<T, E>| !matches!(status, Status::Pending);
        match watched.wait_for(is_known).await.as_deref() {
            Ok(Status::Ready(what)) => Ok(Arc::clone(what)),
            Ok(Status::Ended(error)) => Err(Some(error.clone())),
            Ok(Status::Pending) | Err(_) => Err(None),
        }
    }

    /// Why it has ended, if that is known.
    pub(crate) fn end(&self) -> Option<E> {
        match &*self.0.borrow() {
            Status::Ended(error) => Some(error.clone()),
            _ => None,
        }
    }
}
