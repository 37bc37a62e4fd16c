//! What the fuzz targets do with the bytes that they are given. A target proper is one line; what it
//! checks lies here, where the targets share it.

pub mod mqtt;
pub mod routing;
pub mod scram;
pub mod topics;
pub mod websocket;
