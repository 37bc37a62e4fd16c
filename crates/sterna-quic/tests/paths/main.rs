//! Settings and path memory on the real QUIC library, in virtual time.
#![allow(clippy::unwrap_used)] // it is all test

mod guide;
mod link;
mod path_memory;
mod profiles;
