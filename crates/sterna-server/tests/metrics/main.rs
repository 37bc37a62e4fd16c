//! The door of operators: `/metrics`, `/healthz`, `/readyz`.

#[path = "../fixture/mod.rs"]
mod fixture;

mod access;
mod agreement;
mod documents;
mod page;
mod panics;
