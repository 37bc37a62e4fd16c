//! A service and its client, by HTTP:
//! `cargo run --example http_request -- http://localhost:8080`

use std::error::Error;

use sterna_client::http::{Client, Options, Subscribe};
use sterna_client::{Publish, QoS};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    println!(
        "{}",
        request(url.as_deref().unwrap_or("http://localhost:8080")).await?
    );
    Ok(())
}

pub(crate) async fn request(url: &str) -> Result<String, Box<dyn Error>> {
    let service = Client::new(Options::new(url.parse()?))?;
    let jobs = Subscribe::new("service/upper-case", QoS::AtLeastOnce)?;
    let mut requests = service.subscribe(jobs).await?;

    let client = Client::new(Options::new(url.parse()?))?;
    let answers = Subscribe::new("client/responses", QoS::AtLeastOnce)?;
    let mut responses = client.subscribe(answers).await?;
    let request = Publish::new("service/upper-case", "hello")?
        .qos(QoS::AtLeastOnce)
        .response_topic("client/responses")?
        .correlation_data(b"1")?;
    client.publish(request).await?;

    // The service answers where the request says, and sends back what it is known by.
    let request = requests.next().await?.message;
    let properties = request.properties();
    let answer = String::from_utf8_lossy(request.payload_bytes()).to_uppercase();
    let topic = properties.response_topic().ok_or("nobody to answer")?;
    let correlation = properties.correlation_data().unwrap_or_default();
    let response = Publish::new(topic, answer)?
        .qos(QoS::AtLeastOnce)
        .correlation_data(correlation)?;
    service.publish(response).await?;

    let response = responses.next().await?.message;
    if response.properties().correlation_data() != Some(b"1") {
        return Err("the answer to another request".into());
    }
    client.close().await;
    service.close().await;
    Ok(String::from_utf8_lossy(response.payload_bytes()).into_owned())
}
