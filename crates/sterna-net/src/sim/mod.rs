//! The simulated network: shards and scripted clients in one thread, in virtual time, from a seed.
