//! What the two ends of a QUIC connection have to agree with the path about.
//!
//! - [`Settings`]: every value that the transports take from a configuration, each with unit, default
//!   and consequence; [`Profile`]: named sets of them; [`Overrides`]: changes on top of a profile.
//! - [`Settings::transport_config`]: the same for the QUIC library.
//! - [`SavedPath`], [`PathMemory`]: what a connection remembers of its path for the next one.
//!
//! The crate opens no socket, reads no clock and knows no message protocol; servers and clients
//! share it.

mod careful_resume;
mod choice;
mod profile;
mod saved_path;
mod settings;
mod transport;

pub use careful_resume::{CarefulResume, PathMemory, Phase, Refused};
pub use choice::{Cipher, CongestionControl, KeyShare, KeyShareUnavailable};
pub use profile::Profile;
pub use saved_path::SavedPath;
pub use settings::{Overrides, Settings};
pub use transport::Role;
