//! The end of a thread that nobody has ended, and who is told of it.

use std::fmt;
use std::sync::Mutex;

use super::shared::lock;

/// Gets the reason.
type Listener = Box<dyn Fn(&str) + Send + Sync>;

/// See the module.
#[derive(Default)]
pub(crate) struct Failure(Mutex<(Option<String>, Option<Listener>)>);

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Failure").field(&lock(&self.0).0).finish()
    }
}

impl Failure {
    /// Tells of a failure, the first of which counts.
    pub(crate) fn tell(&self, why: String) {
        let mut state = lock(&self.0);
        let (known, listener) = &mut *state;
        let why = known.get_or_insert(why);
        if let Some(listener) = listener {
            listener(why);
        }
    }

    /// Has a listener be told, at once where it has happened.
    pub(crate) fn listen(&self, listener: Listener) {
        let mut state = lock(&self.0);
        if let Some(why) = &state.0 {
            listener(why);
        }
        state.1 = Some(listener);
    }
}
