//! Settings and memory of the path that the two ends of a QUIC connection have in common.
//!
//! - [`Settings`]: every value that the transports take from a configuration, each with unit,
//!   default and consequence. [`Profile`]: named sets of them. [`Overrides`]: changes on top of a
//!   profile.
//! - [`Settings::transport_config`]: the same for the QUIC library.
//! - [`Meter`]: values that the library's statistics leave out.
//! - [`SavedPath`], [`PathMemory`]: a connection's memory of its path for the next one.
//! - [`advise`]: settings for a described path, with the reason for each.
//!
//! ```
//! use sterna_quic::{Overrides, Profile, Role};
//!
//! // A profile, with one value of one's own, as a configuration or flags give it.
//! let mut overrides = Overrides {
//!     profile: Some(Profile::NbIot),
//!     ..Overrides::default()
//! };
//! overrides.set("initial_rtt_ms", "1_800")?;
//! let settings = overrides.settings();
//! assert_eq!(settings.max_ack_delay_ms, 100);
//!
//! // What the QUIC library takes.
//! let transport = settings.transport_config(Role::Server).map_err(|wrong| wrong.join("; "))?;
//! # let _ = transport;
//! # Ok::<(), String>(())
//! ```
//!
//! The crate opens no socket, reads no clock and knows no message protocol; servers and clients
//! share it.

mod careful_resume;
mod choice;
mod meter;
mod profile;
mod saved_path;
mod settings;
mod transport;
mod tune;

pub use careful_resume::{CarefulResume, PathMemory, Phase, Refused};
pub use choice::{Cipher, CongestionControl, KeyShare, KeyShareUnavailable};
pub use meter::Meter;
pub use profile::Profile;
pub use saved_path::SavedPath;
pub use settings::{Overrides, Settings};
pub use transport::Role;
pub use tune::{Advice, PathDescription, Reason, advise};
