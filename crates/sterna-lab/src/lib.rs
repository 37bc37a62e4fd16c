//! The lab: links as the papers had them, on one machine.
//!
//! - [`link`] is the model of a link: delay, rate, queue, loss and the rest, in virtual time and
//!   from a seed. It knows no socket and reads no clock.
//! - [`profile`] names links that papers and standards describe, and [`quantity`] reads the way
//!   people write rates, times and losses.
//! - [`netns`] makes network namespaces, [`emulator`] joins them by the model, [`netem`] by the
//!   kernel's own emulator where there is one. [`capture`] records packets.
//! - [`calibrate`] compares a link's settings with its behaviour on this machine.
//! - [`relay`] needs no rights: TCP and UDP through a link in user space.
//! - [`energy`] models the cost of packets for a device's radio and battery.
//! - [`campaign`] describes experiments: transports, grids, figures and a paper's claims, in one
//!   file. [`measure`] runs them, [`report`] compares the results with the paper.
//! - [`crash`] kills a broker under load, and compares its acknowledgements with what clients find.
//! - [`session`] is one link with programs at its ends, for `sterna-lab link`.

pub mod calibrate;
pub mod campaign;
pub mod capture;
pub mod crash;
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
