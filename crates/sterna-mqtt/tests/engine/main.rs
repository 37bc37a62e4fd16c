//! Tests of the whole engine through its public face. One file per concern.

mod bodies;
mod both_ends;
mod connecting;
mod delivering;
mod ending;
mod exactly_once;
mod generate;
mod harness;
mod lanes;
mod malformed;
mod publishing;
mod robustness;
mod round_trip;
mod sessions;
mod subscribing;
mod wire;
