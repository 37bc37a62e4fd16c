//! Own requests of connections from before, which a server may read late.

use std::time::Duration;

use crate::backoff::STABLE_AFTER;

/// Most that are remembered.
const MAX_ECHOES: u32 = 3;

/// Requests to own something, a session or a link, without an answer when their connection was lost. A server that
/// reads one only after that of a later connection takes the thing from the later one.
#[derive(Debug, Default)]
pub(crate) struct Echoes {
    count: u32,
    /// The longest time for which the server has not answered one. It may read one as much later.
    longest: Duration,
}

impl Echoes {
    /// A connection was lost after this time. `was_answered` says whether the request on it had its answer.
    pub(crate) fn lost(&mut self, lasted: Duration, was_answered: bool) {
        if !was_answered {
            self.count = (self.count + 1).min(MAX_ECHOES);
            self.longest = lasted.max(self.longest);
        } else if lasted >= self.latest() {
            *self = Self::default();
        }
    }

    /// The thing was taken by another request, so long after its connection began. Returns whether that was an own
    /// one, in all likelihood. Were it another client's, this one takes the thing back once for each own request
    /// from before, and no more.
    pub(crate) fn explain(&mut self, lasted: Duration) -> bool {
        let explains = self.count > 0 && lasted < self.latest();
        self.count -= u32::from(explains);
        explains
    }

    /// How long after a connection began none comes any more.
    fn latest(&self) -> Duration {
        STABLE_AFTER.max(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn each_request_without_an_answer_explains_one_loss() {
        let mut echoes = Echoes::default();
        assert!(!echoes.explain(SHORT), "nothing was asked before");
        echoes.lost(SHORT, true);
        assert!(!echoes.explain(SHORT), "it was answered");
        echoes.lost(SHORT, false);
        assert!(!echoes.explain(STABLE_AFTER), "it comes too late");
        assert!(echoes.explain(SHORT));
        assert!(!echoes.explain(SHORT));
    }

    #[test]
    fn each_attempt_of_a_slow_server_counts_and_may_come_as_late() {
        let mut echoes = Echoes::default();
        let slow = STABLE_AFTER + Duration::from_secs(3);
        echoes.lost(slow, false);
        echoes.lost(slow, false);
        assert!(echoes.explain(STABLE_AFTER));
        assert!(echoes.explain(SHORT), "it had not answered twice");
        assert!(!echoes.explain(SHORT));
        echoes.lost(slow, false);
        assert!(!echoes.explain(slow), "it comes too late");
        echoes.lost(slow, true);
        assert!(!echoes.explain(SHORT), "it had time to come");
    }

    #[test]
    fn a_connection_that_lasts_forgets_them_and_there_is_a_limit() {
        let mut echoes = Echoes::default();
        echoes.lost(SHORT, false);
        echoes.lost(STABLE_AFTER, true);
        assert!(!echoes.explain(SHORT));
        for _ in 0..100 {
            echoes.lost(SHORT, false);
        }
        let explained = (0..100).filter(|_| echoes.explain(SHORT)).count();
        assert_eq!(explained, 3);
    }
}
