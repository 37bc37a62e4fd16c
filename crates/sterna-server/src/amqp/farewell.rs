//! Ends that clients ask for: a detach, an end or a close is answered behind what waits for the client.
//!
//! A sender that sends a thousand messages and ends at once has outcomes to come, which wait for the store. Without
//! them it would send those messages again. So the frame that ends something is input that is held, until the answers
//! before it have left. It waits as long as a broker that stops waits for its store
//! ([`Policy::drain_ms`](crate::policy::Policy::drain_ms)), and is done then all the same.

use sterna_amqp::frame::Unit;
use sterna_net::StreamId;

use super::Door;
use super::client::Client;
use crate::context::Context;

/// The wait of a client's ends.
#[derive(Debug, Default)]
pub(super) struct Farewell {
    /// When the wait is over in any case, in milliseconds; `None` before the first of them comes. All that come until
    /// nothing is owed any more wait together.
    until_ms: Option<u64>,
    /// The streams on which one waits.
    on: Vec<StreamId>,
}

impl Farewell {
    /// Whether a frame that ends something waits on a stream, and all input behind it.
    pub(super) fn is_waiting_on(&self, stream: StreamId) -> bool {
        self.on.contains(&stream)
    }

    /// Whether any waits.
    pub(super) const fn is_waiting(&self) -> bool {
        !self.on.is_empty()
    }

    /// When the wait is over in any case, while one waits.
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        self.until_ms.filter(|_| self.is_waiting())
    }

    /// Nobody is there any more to be told first.
    pub(super) fn give_up(&mut self) {
        self.until_ms = Some(0);
        self.on.clear();
    }
}

impl Client {
    /// Whether something is owed to the client that has to leave before a frame of a stream is answered. A close ends
    /// what is on other streams, too.
    fn is_owed(&self, stream: StreamId, is_close: bool) -> bool {
        let mut held = self.held.iter();
        self.promises.is_waiting() || is_close && held.any(|held| held.stream() != stream)
    }
}

impl Door {
    /// Whether a frame has to wait because it ends something, and the client is still to be told of what came before.
    pub(super) fn must_be_last(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        stream: StreamId,
        unit: &Unit<'_>,
    ) -> bool {
        let Some(end) = unit.end() else {
            return false;
        };
        self.write_accepted(cx, client);
        if !client.is_owed(stream, end.is_close()) {
            if !client.promises.is_waiting() {
                client.farewell.until_ms = None;
            }
            return false;
        }
        let now_ms = cx.now_ms;
        let until_ms = now_ms.saturating_add(cx.policy.drain_ms);
        if *client.farewell.until_ms.get_or_insert(until_ms) <= now_ms {
            return false;
        }
        client.farewell.on.push(stream);
        true
    }

    /// Lets ends go on that have waited long enough, or for which nothing is owed any more. They are looked at again,
    /// and wait again where something is.
    pub(super) fn look_at_ends(cx: &Context<'_>, client: &mut Client) {
        let is_late = (client.farewell.until_ms).is_some_and(|until_ms| until_ms <= cx.now_ms);
        let is_told = !client.promises.is_waiting();
        if is_told && client.held.is_empty() {
            // The next one has its whole time again.
            client.farewell.until_ms = None;
        }
        if is_late || is_told {
            client.farewell.on.clear();
        }
    }

    /// A connection is gone while ends wait: what its client has said is done before all else of it ends.
    pub(super) fn end_at_once(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        if client.farewell.is_waiting() {
            client.farewell.give_up();
            self.release(cx, client);
        }
    }
}
