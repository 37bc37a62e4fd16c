//! Rights hold now: what is taken away by a reload, and what a rule denies of a wider subscription.

mod bridge;
mod conditions;
pub(crate) mod overlap;
mod reload;
pub(crate) mod users;
