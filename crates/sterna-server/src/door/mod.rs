//! What the front doors of all protocols share: output gathered per stream, deadlines, and input that
//! has to wait.

mod clients;
mod framers;
mod held;
mod outgoing;
mod timers;

pub(crate) use clients::Clients;
pub(crate) use framers::Framers;
pub(crate) use held::{Early, Held, held_bytes, note_early};
pub(crate) use outgoing::Outgoing;
pub(crate) use timers::Timers;
