//! Proving the rights of this node in NATS: before it joins, after each reconnect, and from time to time.

use std::rc::Rc;
use std::time::Duration;

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use futures_util::StreamExt;

use super::{Core, Retry};
use crate::rights::{Need, Trial, needs};

/// How often is looked whether rights are to be proved.
const LOOK: Duration = Duration::from_millis(100);

/// Time after which rights that hold are proved again: NATS tells nobody that a right to publish was taken away.
const AGAIN_MS: u64 = 10_000;

/// The header with the condition of a trial. No stream has a last entry of this number.
const CONDITION: (&str, &str) = ("Nats-Expected-Last-Sequence", "9223372036854775807");

impl Core {
    /// Proves the rights of this node on the present connection: all of them, or all but those whose trial is work for
    /// servers of NATS.
    ///
    /// # Errors
    /// A sentence for the operator: what NATS refuses, or why that is not known.
    pub(super) async fn prove_rights(&self, all: bool) -> Result<(), String> {
        let (status, connects) = (&self.status, self.status.connects.get());
        let inbox = self.client.new_inbox();
        let mut wanted = needs(&self.settings, &inbox);
        wanted.retain(|need| all || !need.is_work());
        let trials = status.rights.begin(wanted, &self.settings);
        for need in &trials {
            self.try_right(need).await?;
        }
        // Behind the first, NATS has told of all violations. Behind the second, this node has heard of them.
        let is_answered = self.comes_back(&inbox).await? && self.comes_back(&inbox).await?;
        if !status.is_connected() || status.connects.get() != connects {
            return Err("the connection to NATS is another".to_owned());
        }
        if !is_answered {
            return Err(status.rights.sentence().unwrap_or_else(|| {
                "NATS does not bring this node's own words back: its rights are not known"
                    .to_owned()
            }));
        }
        if !status.rights.end() {
            let refused = status.rights.sentence();
            return Err(refused.unwrap_or_else(|| "rights are tried again".to_owned()));
        }
        if status.rights.are_proved(connects) {
            return Ok(());
        }
        // The library does not know which subscriptions the server has: a new connection has them all.
        tracing::info!("this node has its rights in NATS again, and connects anew");
        let reconnects = self.client.force_reconnect().await;
        reconnects.map_err(|error| error.to_string())?;
        Err("subscriptions that NATS had refused begin anew".to_owned())
    }

    async fn try_right(&self, need: &Need) -> Result<(), String> {
        let subject = Subject::from(&*need.right.subject);
        let said = match &need.trial {
            Trial::Subscription => {
                let begun = self.client.subscribe(subject).await;
                return begun.map(drop).map_err(|error| error.to_string());
            }
            Trial::Message => self.client.publish(subject, Bytes::new()).await,
            Trial::Unstored => {
                let mut headers = HeaderMap::new();
                headers.insert(CONDITION.0, CONDITION.1);
                (self.client)
                    .publish_with_headers(subject, headers, Bytes::new())
                    .await
            }
            Trial::Question(body) => self.client.publish(subject, body.clone().into()).await,
        };
        said.map_err(|error| error.to_string())
    }

    /// Whether a word to itself comes back to this node. NATS has taken all before it by then.
    async fn comes_back(&self, inbox: &str) -> Result<bool, String> {
        let subject = Subject::from(format!("{inbox}.own"));
        let heard = self.client.subscribe(subject.clone()).await;
        let mut heard = heard.map_err(|error| error.to_string())?;
        let said = self.client.publish(subject, Bytes::new()).await;
        said.map_err(|error| error.to_string())?;
        let within = Duration::from_millis(self.settings.answer_timeout_ms);
        let word = tokio::time::timeout(within, heard.next()).await;
        Ok(word.is_ok_and(|word| word.is_some()))
    }

    /// Proves rights again when one was refused, after each reconnect, and every ten seconds.
    pub(super) async fn keep_proving(self: Rc<Self>) {
        let (mut retry, mut proved_ms) = (Retry::new(), self.now_ms());
        let mut last = String::new();
        loop {
            tokio::time::sleep(LOOK).await;
            let status = &self.status;
            let holds = status.has_rights();
            if !status.is_connected() || (holds && self.now_ms() - proved_ms < AGAIN_MS) {
                continue;
            }
            match self.prove_rights(!holds).await {
                Ok(()) => {
                    proved_ms = self.now_ms();
                    retry = Retry::new();
                    if !holds {
                        self.look_at_gate();
                    }
                    last.clear();
                }
                Err(why) => {
                    if why != last {
                        tracing::warn!(why, "the rights of this node in NATS are not proved");
                        last = why;
                    }
                    self.look_at_gate();
                    retry.wait().await;
                }
            }
        }
    }
}
