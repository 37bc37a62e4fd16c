//! An engine that has no server of NATS, for tests.

use std::rc::Rc;
use std::sync::Arc;

use async_nats::ConnectOptions;
use sterna_broker::PeerGate;

use super::{Core, Engine};
use crate::port::{Shards, ToShard};
use crate::settings::Settings;

/// Bytes that may wait for the engine.
const WAITING_BYTES: u64 = 1 << 20;

/// Shards that take letters and do nothing.
#[derive(Debug)]
pub(super) struct Silent;

impl Shards for Silent {
    fn post(&mut self, _: usize, _: ToShard) {}

    fn backlog(&self, _: usize) -> usize {
        0
    }
}

/// The state of such an engine. `shards` gets the gate.
pub(super) async fn core<S: Shards + 'static>(
    settings: Settings,
    shards: impl FnOnce(Arc<PeerGate>) -> S,
) -> Core {
    let engine = Engine::new(settings, WAITING_BYTES);
    let shards = Box::new(shards(engine.gate()));
    // Nobody listens there.
    let connecting = ConnectOptions::new().retry_on_initial_connect();
    let client = connecting.connect("127.0.0.1:1").await;
    let client = client.expect("it connects later");
    engine.core(
        client,
        shards,
        Arc::default(),
        (Box::new(|| 1_800_000_000_000), Rc::new(|_| {})),
    )
}

/// Has the node know of all others, which are none.
pub(super) fn has_heard_all(core: &Core) {
    let mut table = core.table.borrow_mut();
    table.begins_to_hear(0);
    table.look(core.settings.lease_ms);
}
