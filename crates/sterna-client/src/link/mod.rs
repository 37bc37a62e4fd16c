//! One connection of any protocol: its options.

mod options;

pub use options::LinkOptions;
pub(crate) use options::has_link_options;
