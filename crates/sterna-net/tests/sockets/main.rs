//! Shards on sockets of the loopback, with real clients. The QUIC driver alone is in `quic`, in virtual time.

mod balancer;
mod chaos;
mod handshakes;
mod last_words;
mod proxy;
mod support;
mod tcp;
mod tls;
mod udp;
mod websocket;
