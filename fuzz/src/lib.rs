//! What the fuzz targets do with the bytes that they are given. A target proper (`fuzz/targets`) is one line. The test
//! plays the seeds of all targets (`fuzz/corpus`), without libFuzzer and its build.

pub mod client_hello;
pub mod cluster;
pub mod configuration;
pub mod http_client;
pub mod http_frames;
pub mod mapping;
pub mod mqtt;
pub mod proxy_header;
mod queue;
pub mod routing;
pub mod scram;
pub mod store;
pub mod targets;
pub mod topics;
pub mod websocket;

// Modules of the server that need nothing but each other. Taken from there as they are, because
// the server's crate would bring sockets, TLS and QUIC along, and minutes of building.
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "its own crate uses and shows more of it"
)]
#[path = "../../crates/sterna-server/src/authorization/mod.rs"]
mod authorization;
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::struct_field_names,
    reason = "its own crate uses and shows more"
)]
#[path = "../../crates/sterna-server/src/config/mod.rs"]
mod config;
#[allow(dead_code, reason = "its own crate uses more of it")]
#[path = "../../crates/sterna-server/src/giving_way.rs"]
mod giving_way;

// The same of the client's.
#[allow(
    dead_code,
    unreachable_pub,
    reason = "its own crate uses and shows more of it"
)]
#[path = "../../crates/sterna-client/src/http/frames.rs"]
mod client_frames;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "its own crate uses and shows more of it"
)]
#[path = "../../crates/sterna-client/src/http/problem.rs"]
mod client_problem;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "its own crate uses and shows more of it"
)]
#[path = "../../crates/sterna-client/src/http/session.rs"]
mod client_session;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "its own crate uses and shows more of it"
)]
#[path = "../../crates/sterna-client/src/harmless.rs"]
mod harmless;
#[allow(
    dead_code,
    unreachable_pub,
    rustdoc::broken_intra_doc_links,
    reason = "its own crate uses and shows more of it"
)]
#[path = "../../crates/sterna-client/src/message.rs"]
mod message;

// Checks that are property tests of their crates, too.
#[allow(dead_code, reason = "the tests of its crate use all of it")]
#[path = "../../crates/sterna-amqp/tests/engine/bodies.rs"]
mod amqp;
#[path = "../../crates/sterna-amqp/tests/engine/script.rs"]
mod amqp_script;
#[allow(dead_code, reason = "the tests of its crate use all of it")]
#[path = "../../crates/sterna-h3/tests/engine/bodies.rs"]
mod h3;
#[path = "../../crates/sterna-h3/tests/engine/script.rs"]
mod h3_script;
#[allow(dead_code, reason = "the tests of its crate use all of it")]
#[path = "../../crates/sterna-mqtt/tests/engine/bodies.rs"]
mod mqtt_engine;
