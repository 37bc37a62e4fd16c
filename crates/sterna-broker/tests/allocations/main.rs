//! What the broker allocates: budgets, not times, so they do not flake. The allocator counts for each thread alone.

mod away;
mod counting;
mod routing;
