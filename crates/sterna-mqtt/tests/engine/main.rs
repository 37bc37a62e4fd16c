//! Tests of the whole engine through its public face. One file per concern.

mod bodies;
mod generate;
mod malformed;
mod robustness;
mod round_trip;
