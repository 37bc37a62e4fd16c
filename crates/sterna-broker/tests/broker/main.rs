//! The broker through its public face: one or several shards, virtual time, mail carried by hand.

mod choice;
mod cluster;
mod delivery;
mod demand;
mod ended;
mod far_groups;
mod far_queues;
mod far_world;
mod handed_over;
mod kept;
mod late_store;
mod limits;
mod log_node;
mod losses;
mod model;
mod nodes;
mod owned;
mod packed;
mod passing;
mod peers;
mod queue_rules;
mod random;
mod restored;
mod retained;
mod rights;
mod room;
#[path = "../seeds/mod.rs"]
mod seeds;
mod sessions;
mod shared;
mod subscriptions;
mod takeover;
mod threads;
mod upkeep;
mod wills;
mod window;
