//! A service and its client, by AMQP 1.0:
//! `cargo run --example amqp_request -- amqp://localhost`

use std::error::Error;

use sterna_client::amqp::{Connection, Message, Options, ReceiverOptions, SenderOptions, Value};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    println!(
        "{}",
        request(url.as_deref().unwrap_or("amqp://localhost")).await?
    );
    Ok(())
}

pub(crate) async fn request(url: &str) -> Result<String, Box<dyn Error>> {
    let (service, _events) = Connection::start(Options::new(url.parse()?))?;
    let service_session = service.session().await?;
    let jobs = ReceiverOptions::new("queue/upper-case");
    let mut requests = service_session.receiver(jobs).await?;

    let (client, _events) = Connection::start(Options::new(url.parse()?))?;
    let session = client.session().await?;
    // The broker makes an address for the answers of this client.
    let mut responses = session.receiver(ReceiverOptions::dynamic()).await?;
    let sender = session
        .sender(SenderOptions::new("queue/upper-case"))
        .await?;
    let mut request = Message::data("hello");
    request
        .properties
        .reply_to
        .clone_from(&responses.attached().await?.address);
    request.properties.correlation_id = Some(Value::from("1"));
    sender.deliver(request).await?;

    // The service answers where the request says, and sends back what it is known by.
    let delivery = requests.next().await?;
    let request = delivery.message()?;
    let text = request.bytes().ok_or("a request without bytes")?;
    let mut response = Message::data(String::from_utf8_lossy(text).to_uppercase());
    response.properties.correlation_id = request.properties.correlation_id.clone();
    let address = request.properties.reply_to.ok_or("nobody to answer")?;
    let answers = service_session.sender(SenderOptions::new(address)).await?;
    answers.deliver(response).await?;
    delivery.accept().await?;

    let delivery = responses.next().await?;
    let response = delivery.message()?;
    delivery.accept().await?;
    if response.properties.correlation_id != Some(Value::from("1")) {
        return Err("the answer to another request".into());
    }
    client.close().await?;
    service.close().await?;
    let text = response.bytes().ok_or("an answer without bytes")?;
    Ok(String::from_utf8_lossy(text).into_owned())
}
