//! The front door of AMQP, driven by hand: what a client asks for, what it gets, and what is refused.

mod fields;
mod limits;
mod links;
mod nodes;
mod queues;
mod security;
mod stealing;
mod streams;
mod transactions;
