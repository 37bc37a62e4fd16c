//! Publishes a message by HTTP:
//! `cargo run --example http_publish -- http://localhost:8080`

use std::error::Error;

use sterna_client::http::{Client, Options};
use sterna_client::{Publish, QoS};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    publish(url.as_deref().unwrap_or("http://localhost:8080")).await
}

pub(crate) async fn publish(url: &str) -> Result<(), Box<dyn Error>> {
    let client = Client::new(Options::new(url.parse()?))?;
    let message = Publish::new("house/kitchen", "21.5")?.qos(QoS::AtLeastOnce);
    // With QoS 1 the request has an Idempotency-Key, and may be repeated without harm.
    client.publish(message).await?;
    client.close().await;
    Ok(())
}
