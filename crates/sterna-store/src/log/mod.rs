//! The log: segments of frames, and the index of each.

pub(crate) mod frame;
pub(crate) mod index;
pub(crate) mod recovery;
pub(crate) mod scan;
pub(crate) mod segment;
