//! Many nodes of Sterna on NATS JetStream. So far: topics as subjects.

pub mod subject;
