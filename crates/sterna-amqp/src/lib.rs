//! AMQP 1.0 types, frames and connection, session and link state, sans-IO.
