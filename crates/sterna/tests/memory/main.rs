//! The memory of a real process: its account against the system's, and attacks within every documented limit, by
//! anonymous clients of one address and of several.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod account;
mod attacks;
mod limits;
mod principals;
mod process;
mod wire;
