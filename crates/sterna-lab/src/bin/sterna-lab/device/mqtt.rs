//! A device that speaks MQTT.

use std::future::Future;

use sterna_client::{
    Client, Delivery, Event, Events, Login, Options, PathStatistics, Subscription, Url,
};
use sterna_lab::measure::device::{Credentials, Role, Task};

use super::roles::{Arrival, Device};
use super::{
    CONNECT_TIMEOUT, Connections, FILTER, arrival, publication, qlog, qos, socket_setup, text, tls,
};

pub(super) struct Mqtt {
    client: Client,
    /// Received messages, until only connections are counted.
    events: Option<Events>,
    connections: Connections,
}

impl Device for Mqtt {
    type Options = Options;
    type Sending = Delivery;

    fn options(task: &Task, url: Url) -> Result<Options, String> {
        let mut options = Options::new(url);
        tls(task, &mut options.tls);
        if let Credentials::Password { user, password, .. } = &task.credentials {
            options.login = Login::Password {
                user: Some(user.clone()),
                password: Some(password.clone().into_bytes()),
            };
        }
        options.early_data = task.early_data;
        options.socket_setup = socket_setup(task);
        options.qlog = qlog(task);
        options.connect_timeout = CONNECT_TIMEOUT;
        options.datagrams = task.datagrams;
        if let Some(keep_alive_s) = task.keep_alive_s {
            options.keep_alive_s = keep_alive_s;
        }
        // Of many that call at once, some may have to call again.
        options.retry_first = task.role == Role::Fleet;
        if let Some(streams) = &task.streams {
            options.streams = streams
                .parse()
                .map_err(|error| format!("streams: {error}"))?;
        }
        for (name, value) in &task.quic {
            options.quic.set(name, value)?;
        }
        Ok(options)
    }

    fn start(options: Options) -> Result<Self, String> {
        let (client, events) = Client::start(options).map_err(text)?;
        Ok(Self {
            client,
            events: Some(events),
            connections: Connections::default(),
        })
    }

    fn connected(&self) -> impl Future<Output = Result<(), String>> + use<> {
        let client = self.client.clone();
        async move { client.connected().await.map(drop).map_err(text) }
    }

    fn only_send(&mut self) {
        let Some(mut events) = self.events.take() else {
            return;
        };
        let connections = self.connections.clone();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let Event::Connected(connected) = event {
                    connections.note(connected.connections);
                }
            }
        });
    }

    async fn send(&mut self, task: &Task, number: u32) -> Result<(Delivery, u64), String> {
        let (message, at_ns) = publication(task, number)?;
        match self.client.send(message).await {
            Ok(delivery) => Ok((delivery, at_ns)),
            Err(error) => Err(format!("message {number}: {error}")),
        }
    }

    async fn settle(number: u32, delivery: Delivery) -> Result<(), String> {
        match delivery.await {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("message {number}: {error}")),
        }
    }

    async fn subscribe(&mut self, task: &Task) -> Result<(), String> {
        let subscription = Subscription::new(FILTER, qos(task)).map_err(text)?;
        let codes = self
            .client
            .subscribe([subscription])
            .await
            .map_err(|error| format!("cannot subscribe: {error}"))?;
        match codes.iter().find(|code| code.is_error()) {
            Some(code) => Err(format!("cannot subscribe: {code:?}")),
            None => Ok(()),
        }
    }

    async fn take(&mut self, _: &Task) -> Result<(), String> {
        Err("MQTT has no queues that a device could take from".into())
    }

    async fn receive(&mut self) -> Result<Arrival, String> {
        let message = match &mut self.events {
            Some(events) => events.message().await,
            None => None,
        };
        arrival(message.ok_or("the connection has ended")?.payload_bytes())
    }

    async fn path(&mut self) -> Option<PathStatistics> {
        self.client.path().await.ok()
    }

    fn reconnections(&mut self) -> u32 {
        self.connections.beyond_the_first()
    }

    fn last_connected_ns(&self) -> u64 {
        self.connections.last_ns()
    }

    async fn end(self) -> Result<(), String> {
        self.client.disconnect().await.map_err(text)
    }
}
