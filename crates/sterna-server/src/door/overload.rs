//! The measures of a door when memory is short. It does not read clients that publish. In the last stage it ends
//! the clients that hold most. When memory has been short for long, it ends them in any stage.
//!
//! A client that is not read is read for a moment every second. Then its PINGREQ is answered, and its
//! acknowledgements make room. Its keep-alive stands still otherwise.

use sterna_net::ConnectionId;

use super::{Allowance, Door, Service};
use crate::context::Context;
use crate::inspect::Tally;
use crate::memory::Stage;

/// Bytes of partly arrived input that a client may have and still be read.
const LIGHT_BYTES: usize = 16 << 10;

/// The reading of a client while memory is short, its allowance, and the counts of its traffic.
#[derive(Debug, Default)]
pub(crate) struct Sips {
    /// Whether it has published since it was read for a moment.
    pub(super) publishes: bool,
    /// Whether it is read until something has come.
    is_open: bool,
    /// Whether it is not read because memory is short.
    is_held_back: bool,
    /// Whether it waits for a reader whose queue is half full.
    pub(crate) is_held: bool,
    /// The beginning of its connection, in seconds since the Unix epoch.
    since_s: u32,
    /// Its allowance, if its user has limits.
    pub(super) allowance: Option<Box<Allowance>>,
    pub(crate) tally: Tally,
}

impl Sips {
    /// The state of a client that comes at `now_ms`, in milliseconds since the Unix epoch.
    pub(crate) fn begun(now_ms: u64) -> Self {
        Self {
            since_s: u32::try_from(now_ms / 1000).unwrap_or(u32::MAX),
            ..Self::default()
        }
    }

    /// The beginning of the client's connection, in milliseconds since the Unix epoch, to the second.
    pub(crate) fn since_ms(&self) -> u64 {
        u64::from(self.since_s) * 1000
    }

    /// Whether the client is not to be read; it keeps `partial_bytes` of partly arrived input. Ends the moment in
    /// which it was read.
    pub(crate) fn holds_back(&mut self, cx: &Context<'_>, partial_bytes: usize) -> bool {
        let is_short = cx.memory.stage() >= Stage::PausePublishers;
        self.is_held_back = is_short
            && !std::mem::take(&mut self.is_open)
            && (self.publishes || partial_bytes > LIGHT_BYTES);
        if !is_short {
            (self.publishes, self.is_open) = (false, false);
        }
        self.is_held_back || self.paused_until_ms(cx.now_ms).is_some()
    }

    /// Begins a moment in which the client is read, if it is not read now.
    const fn open(&mut self) -> bool {
        if self.is_held_back {
            self.is_open = true;
            self.publishes = false;
        }
        self.is_held_back
    }
}

impl<S: Service<Id = ConnectionId>> Door<S> {
    /// Memory has become short, or is short no more.
    pub(crate) fn memory_changed(&mut self, cx: &mut Context<'_>) {
        self.with_all(cx, |_, _, _| {});
    }

    /// Reads for a moment the clients that are not read because memory is short. From the stage on in which
    /// messages are dropped, clients with more than a little partly arrived input stay unread. More of that input
    /// helps nobody.
    pub(crate) fn sip(&mut self, cx: &mut Context<'_>) {
        let is_hard = cx.memory.stage() >= Stage::Drop;
        let ids: Vec<ConnectionId> = self.clients.ids().collect();
        for id in ids {
            let opens = self.clients.get_mut(id).is_some_and(|client| {
                (!is_hard || S::partial_bytes(client) <= LIGHT_BYTES) && S::sips(client).open()
            });
            if opens {
                // The step's end lets the transport read.
                self.with_client(cx, id, |_, _, _| {});
            }
        }
    }

    /// The clients that hold more than a little, and their bytes. Bytes that the door keeps of them count, and
    /// bytes not sent or not read yet. So do the queues, ledgers and filters of their sessions.
    pub(crate) fn heavy(&self, cx: &Context<'_>) -> Vec<(u64, ConnectionId)> {
        let ids = self.clients.ids();
        let weighed = ids.filter_map(|id| {
            let client = self.clients.get(id)?;
            let own_bytes =
                S::kept_bytes(client) + cx.net.unsent_bytes(id) + cx.net.unread_bytes(id);
            let mut bytes = own_bytes as u64;
            S::each_session(client, &mut |session| {
                bytes += cx.broker.held_bytes(session);
            });
            Some((bytes, id))
        });
        weighed
            .filter(|(bytes, _)| *bytes > LIGHT_BYTES as u64)
            .collect()
    }

    /// Ends a client because memory is short and it holds more than others.
    pub(crate) fn shed(&mut self, cx: &mut Context<'_>, id: ConnectionId) {
        self.with_client(cx, id, S::shed);
    }
}
