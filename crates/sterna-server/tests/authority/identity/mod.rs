//! Who a client is, at every door: one verdict on what it shows, and what belongs to it.

mod bans;
mod causes;
mod early;
mod guessing;
mod hook;
mod hook_attacks;
mod hook_conditions;
mod hook_words;
mod limits;
mod names;
mod ownership;
mod revocation;
mod standings;
mod table;
mod tokens;
mod world;
