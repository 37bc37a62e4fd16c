//! The broker core: topics, routing, sessions, queues and the ledger, sans-IO.
