//! The program `sterna-lab` as people and scripts use it.

mod bench;
mod campaign;
mod crash;
mod lab;
mod process;
