//! Sends a message by AMQP 1.0:
//! `cargo run --example amqp_publish -- amqp://localhost`

use std::error::Error;

use sterna_client::amqp::{Connection, Message, Options, Outcome, SenderOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    publish(url.as_deref().unwrap_or("amqp://localhost")).await
}

pub(crate) async fn publish(url: &str) -> Result<(), Box<dyn Error>> {
    let (connection, _events) = Connection::start(Options::new(url.parse()?))?;
    let session = connection.session().await?;
    let sender = session.sender(SenderOptions::new("house/kitchen")).await?;
    match sender.deliver(Message::data("21.5")).await? {
        Outcome::Accepted => {}
        outcome => return Err(format!("not taken: {outcome:?}").into()),
    }
    connection.close().await?;
    Ok(())
}
