//! The client library against servers of the tests' own, and against a Sterna broker.

mod aborts;
mod amqp;
mod amqp_broker;
mod amqp_recovery;
mod amqp_sterna;
mod away;
mod broker;
mod endings;
mod examples;
mod http;
mod http_broker;
mod http_first;
mod http_given_up;
mod http_sterna;
mod inherited;
mod path;
mod patience;
mod quic;
mod sessions;
mod transports;
