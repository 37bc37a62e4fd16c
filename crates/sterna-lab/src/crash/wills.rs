//! Clients that are lost, and what the broker publishes in their names.

use std::time::Duration;

use sterna_client::{Client, Publish, QoS, Will};

use sterna_ledger::{Protocol, Sending};

use super::mqtt::{Dialect, text};
use super::site::Site;

/// After this time the broker has noticed the loss of a client, and keeps its will. Nothing says so.
const NOTICED: Duration = Duration::from_secs(3);
/// Longest delay of a will, in seconds.
const MAX_DELAY_S: u64 = 2;

/// One client after another that connects with a will and is cut off for ever.
#[derive(Clone, Debug)]
pub(super) struct Wills {
    pub(super) name: String,
    pub(super) dialect: Dialect,
    /// Longest life of a client, and longest pause between two.
    pub(super) pause_ms: u64,
}

impl Wills {
    /// Loses clients whenever there is load, for ever.
    pub(super) async fn run(self, site: Site) -> Result<(), String> {
        let mut random = site.random(&self.name);
        let mut number = 0;
        loop {
            site.pace(&mut random, self.pause_ms).await;
            number += 1;
            let name = format!("{}-{number}", self.name);
            let sending = Sending {
                protocol: Protocol::Mqtt,
                is_exact: self.dialect.qos == QoS::ExactlyOnce,
            };
            let topic = format!("w/{name}");
            let stamp = {
                let mut ledger = site.ledger();
                let publisher = ledger.publisher(name.clone(), sending);
                ledger.send(publisher, &topic)
            };
            let message = Publish::new(topic, stamp.payload()).map_err(text)?;
            let mut will = Will::new(message.qos(self.dialect.qos)).map_err(text)?;
            let delay_s = random.next_u64() % (MAX_DELAY_S + 1);
            if delay_s > 0 {
                will = will.delay_s(delay_s as u32).map_err(text)?;
            }
            let gate = site.gate(self.dialect.door).await.map_err(text)?;
            let mut options = self.dialect.options(&site, &gate, &name)?;
            options.will = Some(will);
            // One that came back would have another will.
            options.reconnect = None;
            let (client, _events) = Client::start(options).map_err(text)?;
            let is_connected = client.connected().await.is_ok();
            if is_connected {
                site.pause(&mut random, self.pause_ms).await;
            }
            // Nothing that the client says now gets out: it says good-bye when it is dropped.
            gate.shut();
            tokio::time::sleep(NOTICED).await;
            let mut ledger = site.ledger();
            if is_connected {
                // It comes, also where the broker was killed before the client was lost.
                ledger.acknowledged(stamp);
            } else {
                ledger.doubtful(stamp);
            }
        }
    }
}
