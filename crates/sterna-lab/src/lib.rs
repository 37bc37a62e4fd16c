//! The lab: links as the papers had them, on one machine.
//!
//! - [`link`] is the model of a link: delay, rate, queue, loss and the rest, in virtual time and
//!   from a seed. It knows no socket and reads no clock.
//! - [`profile`] names links that papers and standards describe, and [`quantity`] reads the way
//!   people write rates, times and losses.
//! - [`netns`] makes network namespaces, [`emulator`] joins them by the model, [`netem`] by the
//!   kernel's own emulator where there is one. [`capture`] records packets.
//! - [`calibrate`] compares what a link was asked to do with what it does on this machine.
//! - [`relay`] is what needs no rights: TCP and UDP through a link in user space.
//! - [`energy`] models what packets cost a device's radio and battery.
//! - [`campaign`] describes experiments: transports, grids, figures and a paper's claims, in one file.
//!   [`measure`] runs them, [`report`] compares what came out with what the paper says.
//! - [`session`] is one link with programs at its ends: what `sterna-lab link` runs.

pub mod calibrate;
pub mod campaign;
pub mod capture;
pub mod emulator;
pub mod energy;
pub mod kernel;
pub mod link;
pub mod measure;
pub mod netem;
pub mod netns;
pub mod profile;
pub mod quantity;
pub mod relay;
pub mod report;
pub mod session;
