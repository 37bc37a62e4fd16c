//! A service and its client, by MQTT 5:
//! `cargo run --example mqtt_request -- mqtt://localhost`

use std::error::Error;

use sterna_client::{Client, Options, Publish, QoS, Subscription};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    println!(
        "{}",
        request(url.as_deref().unwrap_or("mqtt://localhost")).await?
    );
    Ok(())
}

pub(crate) async fn request(url: &str) -> Result<String, Box<dyn Error>> {
    let (service, mut requests) = Client::connect(Options::new(url.parse()?)).await?;
    let jobs = Subscription::new("service/upper-case", QoS::AtLeastOnce)?;
    service.subscribe([jobs]).await?;

    let (client, mut responses) = Client::connect(Options::new(url.parse()?)).await?;
    let answers = Subscription::new("client/responses", QoS::AtLeastOnce)?;
    client.subscribe([answers]).await?;
    let request = Publish::new("service/upper-case", "hello")?
        .qos(QoS::AtLeastOnce)
        .response_topic("client/responses")?
        .correlation_data(b"1")?;
    client.publish(request).await?;

    // The service answers where the request says, and sends back what it is known by.
    let request = requests.message().await.ok_or("the service has ended")?;
    let properties = request.properties();
    let answer = String::from_utf8_lossy(request.payload_bytes()).to_uppercase();
    let topic = properties.response_topic().ok_or("nobody to answer")?;
    let correlation = properties.correlation_data().unwrap_or_default();
    let response = Publish::new(topic, answer)?
        .qos(QoS::AtLeastOnce)
        .correlation_data(correlation)?;
    service.publish(response).await?;

    let response = responses.message().await.ok_or("the client has ended")?;
    if response.properties().correlation_data() != Some(b"1") {
        return Err("the answer to another request".into());
    }
    client.disconnect().await?;
    service.disconnect().await?;
    Ok(String::from_utf8_lossy(response.payload_bytes()).into_owned())
}
