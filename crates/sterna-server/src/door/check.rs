//! Invariants of a door, for tests: the check looks at everything.

use std::collections::HashSet;

use sterna_broker::Broker;

use super::{Door, Service};
use crate::session::SessionState;

impl<S: Service> Door<S> {
    /// Looks at every client, sum and timer, between two steps.
    ///
    /// # Panics
    /// Where something does not agree with what it stands for.
    pub(crate) fn check(&mut self, now_ms: u64, broker: &Broker<SessionState>) {
        assert_eq!(self.out.len(), 0, "the output of a step goes at its end");
        let timers: HashSet<(u64, S::Id)> = self.timers.entries().collect();
        let paused: HashSet<(u64, S::Id)> = self.paused.entries().collect();
        let awaited: HashSet<S::Id> = self.awaited.ids().collect();
        let mut kept_bytes = 0;
        let ids: Vec<S::Id> = self.clients.ids().collect();
        for id in ids {
            let Some(client) = self.clients.get_mut(id) else {
                panic!("{id:?} is in its place between two steps");
            };
            let (own, &mut timer_ms) = S::timer(client);
            assert_eq!(own, id, "a client is in its own place");
            assert!(
                timer_ms == u64::MAX || timers.contains(&(timer_ms, id)),
                "the timer of {id:?}"
            );
            S::promises(client).check(awaited.contains(&id));
            S::sips(client).check(now_ms, |until_ms| paused.contains(&(until_ms, id)));
            kept_bytes += S::kept_bytes(client) as u64;
            S::each_session(client, &mut |session| {
                assert!(
                    broker.protocol(session).is_some(),
                    "a session of {id:?} is its own in the broker"
                );
            });
        }
        assert_eq!(
            self.kept_bytes, kept_bytes,
            "bytes that are kept of all clients"
        );
        S::check(self);
    }
}
