//! Runs a campaign: namespaces and links, brokers and devices as processes in them, and what they
//! say afterwards.
//!
//! A run is a [process](order) and has a site with a server's and a client's side, a broker (`sterna serve`) on the
//! server's side, a [device] on the client's, and where messages are timed on arrival a second
//! device beside the broker. What waits for the network runs side by side, what is bound by the CPU
//! alone. Each run becomes one [`Sample`], also when it fails; a run during which the
//! link or the machine was not what it should be is made again, and in the end marked.

mod broker;
pub mod campaign_run;
pub mod credentials;
mod describe;
pub mod device;
mod negotiated;
mod ns3;
pub mod order;
mod process;
mod program;
mod qlog;
mod run;
pub mod sample;
mod schedule;
mod site;
pub mod store;
mod tolerance;

pub use device::MIN_PAYLOAD_BYTES;
pub use sample::{Sample, Verdict};
