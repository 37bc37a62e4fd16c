//! The smallest handler: one shard that sends back what it receives, over TCP.
//!
//! ```text
//! cargo run -p sterna-net --example echo -- 127.0.0.1:7007
//! ```

use std::net::SocketAddr;

use sterna_net::{
    Chunk, CloseReason, ConnectionId, Handler, ListenerConfig, ListenerTransport, Network,
    ShardConfig, StreamEnd, StreamId, bind,
};

struct Echo;

impl Handler for Echo {
    type Mail = ();

    fn opened(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        if let Some(info) = net.info(connection) {
            println!("{connection:?} opened by {}", info.peer);
        }
    }

    fn received(&mut self, net: &mut dyn Network, connection: ConnectionId, chunk: Chunk<'_>) {
        net.send(connection, chunk.stream, chunk.bytes);
        // A peer that does not read is not read from: the queue stays bounded.
        if net.unsent_bytes(connection) > ShardConfig::default().high_watermark_bytes {
            net.pause(connection, true);
        }
    }

    fn writable(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        net.pause(connection, false);
    }

    fn stream_ended(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        _stream: StreamId,
        end: StreamEnd,
    ) {
        if end == StreamEnd::Finished {
            net.close(connection, 0);
        }
    }

    fn closed(&mut self, _net: &mut dyn Network, connection: ConnectionId, reason: &CloseReason) {
        println!("{connection:?} closed: {reason:?}");
    }

    fn mail(&mut self, _net: &mut dyn Network, mail: &mut Vec<()>) {
        mail.clear();
    }

    fn timeout(&mut self, _net: &mut dyn Network) {}

    fn end_of_turn(&mut self, _net: &mut dyn Network) {}

    fn deadline_ms(&self) -> Option<u64> {
        None
    }

    fn finished(&self) -> bool {
        false
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let address: SocketAddr = address.as_deref().unwrap_or("[::]:7007").parse()?;
    let listener = ListenerConfig {
        address,
        transport: ListenerTransport::Tcp,
        balancers: None,
        connections: usize::MAX,
    };
    let shards = bind(&ShardConfig::default(), &[listener], 1)?;
    for shard in shards {
        println!("listening on {}", shard.addresses()[0]);
        shard.run(Echo)?;
    }
    Ok(())
}
