//! Subscribes by HTTP and prints the first message:
//! `cargo run --example http_subscribe -- http://localhost:8080`

use std::error::Error;

use sterna_client::QoS;
use sterna_client::http::{Client, Options, Subscribe};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    println!(
        "{}",
        subscribe(url.as_deref().unwrap_or("http://localhost:8080")).await?
    );
    Ok(())
}

pub(crate) async fn subscribe(url: &str) -> Result<String, Box<dyn Error>> {
    let client = Client::new(Options::new(url.parse()?))?;
    let house = Subscribe::new("house/#", QoS::AtLeastOnce)?;
    // A response that does not end. Where it is cut off, it goes on behind the last message.
    let mut messages = client.subscribe(house).await?;
    let message = messages.next().await?.message;
    client.close().await;
    let payload = String::from_utf8_lossy(message.payload_bytes());
    Ok(format!("{}: {payload}", message.topic()))
}
