//! Telling of the cluster, and asking other nodes what they say of themselves.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::stream::{Info, PeerInfo};
use futures_util::{StreamExt, TryStreamExt};

use super::streams::INBOX;
use super::{Core, agreement};
use crate::report::{FollowerView, NodeView, NodeWord, Report, StreamView};
use crate::subjects::{self, ASK, DRAIN};
use crate::table::Presence;

/// Most bytes of a node's answer; more are not read.
const WORD_BYTES: usize = 16 * 1024;

impl Core {
    /// Answers other nodes that ask.
    pub(super) async fn answer_nodes(self: Rc<Self>) {
        let answer = async |question: async_nats::Message| {
            let Some(reply) = question.reply else {
                return;
            };
            let Ok(word) = serde_json::to_vec(&self.word()) else {
                return;
            };
            // The node that asks gives up by itself.
            let _ = self.client.publish(reply, word.into()).await;
        };
        self.hear_each(ASK, answer).await;
    }

    /// This node's report on itself.
    pub(super) fn word(&self) -> NodeWord {
        let status = &self.status;
        let nats = self.client.server_info();
        let state = if status.is_draining.load(Ordering::Acquire) {
            "draining".to_owned()
        } else {
            (status.trouble()).unwrap_or_else(|| "ready".to_owned())
        };
        NodeWord {
            node: self.settings.node.clone(),
            incarnation: self.incarnation.get(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            wire: self.reads().to_string(),
            state,
            settings: agreement::shared(&self.settings),
            nats_server: nats.server_name,
            nats_version: nats.version,
            waiting_bytes: self.gate.waiting_bytes(),
            received_messages: status.received_messages.get(),
            sent_messages: status.sent_messages.get(),
        }
    }

    /// Says that this node takes no new clients soon, and ends after that.
    pub(super) async fn say_that_it_drains(self: Rc<Self>) {
        self.status.is_draining.store(true, Ordering::Release);
        if self.status.is_connected() {
            let said = (self.client).publish(
                self.settings.subject(DRAIN),
                self.settings.node.clone().into(),
            );
            let within = Duration::from_millis(self.settings.answer_timeout_ms);
            let _ = tokio::time::timeout(within, said).await;
        }
    }

    /// Hears which nodes drain.
    pub(super) async fn hear_drains(self: Rc<Self>) {
        let say = async |word: async_nats::Message| {
            let node = String::from_utf8_lossy(&word.payload);
            // This node's own word comes back, and one without a name is a trial of rights.
            if node.is_empty() || *node == *self.settings.node {
                return;
            }
            tracing::info!(node = %node.escape_debug(), "a node drains: it will leave");
        };
        self.hear_each(DRAIN, say).await;
    }

    /// The cluster as this node sees it now.
    pub(super) async fn report(&self) -> Report {
        let mut problems = Vec::new();
        let (words, streams) = if self.status.is_connected() {
            let within = Duration::from_millis(self.settings.answer_timeout_ms);
            let streams = tokio::time::timeout(within, self.streams());
            let (words, streams) = tokio::join!(self.ask_nodes(within / 2), streams);
            let streams = streams.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            (words, streams)
        } else {
            (BTreeMap::new(), Err("no server is connected".to_owned()))
        };
        let within = Duration::from_millis(self.settings.answer_timeout_ms);
        let regions = tokio::time::timeout(within, self.region_views()).await;
        if regions.is_err() {
            problems.push("NATS does not tell of other regions in time".to_owned());
        }
        let (streams, inboxes) = match streams {
            Ok((streams, inboxes)) => (streams, Some(inboxes)),
            Err(why) => {
                problems.push(format!("NATS: {why}"));
                (Vec::new(), None)
            }
        };
        let own = self.word();
        self.note_differences(words.values().chain([&own]));
        problems.extend(self.status.trouble());
        problems.extend(self.status.conditions.all_remarks());
        problems.extend(self.status.clocks().sentence());
        let own = NodeView {
            node: self.settings.node.clone(),
            presence: "here",
            filters: self.own.borrow().len(),
            inbox_batches: None,
            told: Some(own),
        };
        let table = self.table.borrow();
        let others = table.nodes().map(|(name, presence, filters)| NodeView {
            node: name.to_string(),
            presence: match presence {
                Presence::Here => "here",
                Presence::Away => "away",
                Presence::Gone => "gone",
            },
            filters,
            inbox_batches: None,
            told: words.get(&**name).cloned(),
        });
        let mut nodes: Vec<NodeView> = others.chain([own]).collect();
        for view in &mut nodes {
            let waiting = inboxes.as_ref();
            view.inbox_batches = waiting.map(|all| all.get(&view.node).copied().unwrap_or(0));
        }
        nodes.sort_by(|a, b| a.node.cmp(&b.node));
        Report {
            cluster: self.settings.name.clone(),
            node: self.settings.node.clone(),
            nodes,
            streams,
            regions: regions.unwrap_or_default(),
            problems,
        }
    }

    /// Asks all nodes, and gives them time until all that are here have answered.
    pub(super) async fn ask_nodes(&self, within: Duration) -> BTreeMap<String, NodeWord> {
        let mut words = BTreeMap::new();
        let here = self.table.borrow().count(Presence::Here);
        let asked = async {
            let reply = Subject::from(self.client.new_inbox());
            let mut answers = self.client.subscribe(reply.clone()).await.ok()?;
            let subject = self.settings.subject(ASK);
            (self
                .client
                .publish_with_reply(subject, reply, "".into())
                .await)
                .ok()?;
            while words.len() < here {
                let answer = answers.next().await?;
                if answer.payload.len() > WORD_BYTES {
                    continue;
                }
                // Of another version, or of nobody.
                let Ok(word) = serde_json::from_slice::<NodeWord>(&answer.payload) else {
                    continue;
                };
                if word.node != self.settings.node {
                    words.insert(word.node.clone(), word);
                }
            }
            Some(())
        };
        // Those that answer later are not waited for.
        let _ = tokio::time::timeout(within, asked).await;
        words
    }

    /// The cluster's streams, and how many batches wait in each node's inbox.
    async fn streams(&self) -> Result<(Vec<StreamView>, BTreeMap<String, u64>), String> {
        let prefix = self.settings.subject("");
        let mut streams = Vec::new();
        let mut found = self.jetstream.streams();
        while let Some(info) = found.try_next().await.map_err(|error| error.to_string())? {
            let subjects = &info.config.subjects;
            if !subjects.is_empty() && subjects.iter().all(|subject| subject.starts_with(&prefix)) {
                streams.push(view(info));
            }
        }
        streams.sort_by(|a, b| a.stream.cmp(&b.stream));
        let inbox = self.stream(INBOX).await?;
        let mut waiting = inbox
            .info_with_subjects(self.settings.subject(&subjects::inbox("*", "*")))
            .await
            .map_err(|error| error.to_string())?;
        let mut inboxes = BTreeMap::new();
        while let Some((subject, batches)) = waiting
            .try_next()
            .await
            .map_err(|error| error.to_string())?
        {
            let node = subject.split('.').nth(3).unwrap_or_default().to_owned();
            *inboxes.entry(node).or_default() += batches as u64;
        }
        Ok((streams, inboxes))
    }
}

fn view(info: Info) -> StreamView {
    let (leader, followers) = info.cluster.map_or_else(
        || (None, Vec::new()),
        |cluster| (cluster.leader, cluster.replicas),
    );
    let follower = |peer: PeerInfo| FollowerView {
        server: peer.name,
        is_current: peer.current,
        is_offline: peer.offline,
        lag: peer.lag,
    };
    StreamView {
        stream: info.config.name,
        messages: info.state.messages,
        bytes: info.state.bytes,
        replicas: info.config.num_replicas,
        leader: leader.filter(|leader| !leader.is_empty()),
        followers: followers.into_iter().map(follower).collect(),
    }
}
