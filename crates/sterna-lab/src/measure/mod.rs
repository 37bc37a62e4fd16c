//! Runs a campaign: namespaces and links, brokers and devices as processes in them, and their
//! reports.
//!
//! A run is a [process](order) and has a site with a server's and a client's side. A broker
//! (`sterna serve`) is on the server's side, a [device] on the client's. If messages are timed on
//! arrival, a second device is beside the broker. Runs that wait for the network run side by side,
//! CPU-bound runs alone. Each run becomes one [`Sample`], also when it fails. A run with link or
//! machine out of tolerance is repeated, and finally marked.

pub mod archive;
mod broker;
pub mod campaign_run;
pub mod credentials;
mod describe;
pub mod device;
mod exchanges;
mod fleet;
mod negotiated;
mod ns3;
pub mod order;
mod prepare;
mod process;
pub mod program;
mod qlog;
mod run;
pub mod sample;
mod schedule;
mod site;
pub mod store;
mod tolerance;

pub use device::MIN_PAYLOAD_BYTES;
pub use sample::{Sample, Verdict};
