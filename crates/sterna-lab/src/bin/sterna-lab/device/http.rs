//! A device that speaks HTTP: a message is a request.

use std::future::Future;

use sterna_client::http::{self, Client, Options, Subscribe, Subscription};
use sterna_client::{PathStatistics, Url};
use sterna_lab::measure::device::{Credentials, Task};
use tokio::task::JoinHandle;

use super::roles::{Arrival, Device};
use super::{CONNECT_TIMEOUT, FILTER, arrival, publication, qlog, qos, socket_setup, text, tls};

pub(super) struct Http {
    client: Client,
    subscription: Option<Subscription>,
}

impl Device for Http {
    type Options = Options;
    type Sending = JoinHandle<Result<(), http::Error>>;

    fn options(task: &Task, url: Url) -> Result<Options, String> {
        if task.datagrams || task.streams.is_some() {
            return Err("HTTP has a stream for each message, and no other way".into());
        }
        let mut options = Options::new(url);
        tls(task, &mut options.tls);
        if let Credentials::Password {
            user,
            password,
            once,
        } = &task.credentials
        {
            options.credentials = http::Credentials::Basic {
                user: user.clone(),
                password: password.clone(),
            };
            options.credentials_once = *once;
        }
        options.early_data = task.early_data;
        options.socket_setup = socket_setup(task);
        options.qlog = qlog(task);
        options.connect_timeout = CONNECT_TIMEOUT;
        // A response may be lost and repeated; the task has its own limit.
        options.response_timeout = CONNECT_TIMEOUT;
        for (name, value) in &task.quic {
            options.quic.set(name, value)?;
        }
        Ok(options)
    }

    fn start(options: Options) -> Result<Self, String> {
        Ok(Self {
            client: Client::new(options).map_err(text)?,
            subscription: None,
        })
    }

    fn connected(&self) -> impl Future<Output = Result<(), String>> + use<> {
        let client = self.client.clone();
        async move { client.connected().await.map(drop).map_err(text) }
    }

    /// Publishes beside other work in progress.
    async fn send(&mut self, task: &Task, number: u32) -> Result<(Self::Sending, u64), String> {
        let (message, at_ns) = publication(task, number)?;
        let client = self.client.clone();
        let sending = tokio::spawn(async move { client.publish(message).await });
        Ok((sending, at_ns))
    }

    async fn settle(number: u32, sending: Self::Sending) -> Result<(), String> {
        match sending.await {
            Ok(published) => published.map_err(|error| format!("message {number}: {error}")),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn subscribe(&mut self, task: &Task) -> Result<(), String> {
        let subscribe = Subscribe::new(FILTER, qos(task)).map_err(text)?;
        match self.client.subscribe(subscribe).await {
            Ok(subscription) => {
                self.subscription = Some(subscription);
                Ok(())
            }
            Err(error) => Err(format!("cannot subscribe: {error}")),
        }
    }

    async fn take(&mut self, _: &Task) -> Result<(), String> {
        Err("HTTP has no queues that a device could take from".into())
    }

    async fn receive(&mut self) -> Result<Arrival, String> {
        let subscription = self.subscription.as_mut().ok_or("not subscribed")?;
        let received = subscription.next().await.map_err(text)?;
        arrival(received.message.payload_bytes())
    }

    async fn path(&mut self) -> Option<PathStatistics> {
        self.client.path()
    }

    fn reconnections(&mut self) -> u32 {
        let connections = self
            .client
            .connection()
            .map_or(1, |connected| connected.connections);
        u32::try_from(connections.saturating_sub(1)).unwrap_or(u32::MAX)
    }

    async fn end(self) -> Result<(), String> {
        self.client.close().await;
        Ok(())
    }
}
