//! The lab: links as the papers had them, on one machine.
//!
//! - [`link`] is the model of a link: delay, rate, queue, loss and the rest, in virtual time and
//!   from a seed. It knows no socket and reads no clock.
//! - [`profile`] names links that papers and standards describe, and [`quantity`] reads the way
//!   people write rates, times and losses.

pub mod link;
pub mod profile;
pub mod quantity;
