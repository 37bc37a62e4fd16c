//! Publishes a message by MQTT:
//! `cargo run --example mqtt_publish -- mqtt://localhost`

use std::error::Error;

use sterna_client::{Client, Options, Publish, QoS};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    publish(url.as_deref().unwrap_or("mqtt://localhost")).await
}

pub(crate) async fn publish(url: &str) -> Result<(), Box<dyn Error>> {
    let (client, _events) = Client::connect(Options::new(url.parse()?)).await?;
    let message = Publish::new("house/kitchen", "21.5")?.qos(QoS::AtLeastOnce);
    // With QoS 1 this returns when the broker has the message.
    client.publish(message).await?;
    client.disconnect().await?;
    Ok(())
}
