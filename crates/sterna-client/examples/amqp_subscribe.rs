//! Receives by AMQP 1.0 and prints the first message:
//! `cargo run --example amqp_subscribe -- amqp://localhost`

use std::error::Error;

use sterna_client::amqp::{Connection, Options, ReceiverOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    println!(
        "{}",
        subscribe(url.as_deref().unwrap_or("amqp://localhost")).await?
    );
    Ok(())
}

pub(crate) async fn subscribe(url: &str) -> Result<String, Box<dyn Error>> {
    let (connection, _events) = Connection::start(Options::new(url.parse()?))?;
    let session = connection.session().await?;
    let mut receiver = session.receiver(ReceiverOptions::new("house/#")).await?;
    let delivery = receiver.next().await?;
    let message = delivery.message()?;
    // From now on it is this client's and nobody else's.
    delivery.accept().await?;
    connection.close().await?;
    let payload = message.bytes().ok_or("a message without bytes")?;
    Ok(String::from_utf8_lossy(payload).into_owned())
}
