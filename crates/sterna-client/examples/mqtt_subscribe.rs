//! Subscribes by MQTT and prints the first message:
//! `cargo run --example mqtt_subscribe -- mqtt://localhost`

use std::error::Error;

use sterna_client::{Client, Options, QoS, Subscription};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    println!(
        "{}",
        subscribe(url.as_deref().unwrap_or("mqtt://localhost")).await?
    );
    Ok(())
}

pub(crate) async fn subscribe(url: &str) -> Result<String, Box<dyn Error>> {
    let (client, mut events) = Client::connect(Options::new(url.parse()?)).await?;
    let codes = client
        .subscribe([Subscription::new("house/#", QoS::AtLeastOnce)?])
        .await?;
    if let Some(refused) = codes.iter().find(|code| code.is_error()) {
        return Err(refused.name().into());
    }
    // Messages come until the client ends; a lost connection is made anew in between.
    let message = events.message().await.ok_or("the client has ended")?;
    client.disconnect().await?;
    let payload = String::from_utf8_lossy(message.payload_bytes());
    Ok(format!("{}: {payload}", message.topic()))
}
