//! The door of operators: `/metrics`, `/healthz`, `/readyz`.

mod access;
mod agreement;
mod documents;
mod ends;
mod panics;
