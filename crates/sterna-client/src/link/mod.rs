//! One connection of any protocol: its options, its life, and its state as the application sees it.

mod driver;
mod echoes;
mod options;
mod status;

pub(crate) use driver::{Driver, DriverError, End, Link, live};
pub(crate) use echoes::Echoes;
pub use options::LinkOptions;
pub(crate) use options::has_link_options;
pub(crate) use status::{Status, Told, Watched};
