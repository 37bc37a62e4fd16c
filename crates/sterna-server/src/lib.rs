//! The broker process: listeners, protocol front doors, authentication, authorization,
//! configuration.

pub mod authentication;
pub mod authorization;
pub mod certificate;
pub mod config;
pub mod sys;
