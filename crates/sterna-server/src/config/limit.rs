//! The limits of clients of some users.

use serde::{Deserialize, Serialize};

/// Limits of some users. The first entry that names a user holds, as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limit {
    /// User names; `*` is every client with a name, empty beside empty `groups` is every client.
    pub users: Vec<String>,
    /// Groups, whose users it names, too.
    pub groups: Vec<String>,
    /// Connections of each user, over all protocols and shards. Clients without a name are one user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Sessions of each user, also of clients that are away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
    /// Subscriptions of each session of MQTT, and of each connection of AMQP and HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriptions: Option<u32>,
    /// Messages that each user may publish in a second, over all its connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_s: Option<u32>,
    /// Bytes of payloads that each user may publish in a second, over all its connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u32>,
    /// Seconds whose worth of messages and bytes may come at once.
    pub burst_s: u32,
    /// Longest debt of a user, in seconds. Messages beyond it are refused. A single connection may
    /// make half of it.
    pub debt_s: u32,
    /// Treatment of a client that publishes faster.
    pub exceeded: Exceeded,
}

/// Treatment of a client that publishes faster than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Exceeded {
    /// It is not read until it may publish again.
    #[default]
    Pause,
    /// Its messages are refused. Clients of MQTT 3.1 and 3.1.1 cannot be told, and are paused.
    Refuse,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            users: Vec::new(),
            groups: Vec::new(),
            connections: None,
            sessions: None,
            subscriptions: None,
            messages_per_s: None,
            bytes_per_s: None,
            burst_s: 1,
            debt_s: 60,
            exceeded: Exceeded::default(),
        }
    }
}

impl Limit {
    /// Its fault, in words; `None` without one.
    pub(super) fn problem(&self) -> Option<&'static str> {
        if self.burst_s == 0 || self.debt_s == 0 {
            return Some("burst_s and debt_s are at least 1");
        }
        let rates = [self.messages_per_s, self.bytes_per_s];
        if rates.contains(&Some(0)) {
            return Some(
                "messages_per_s and bytes_per_s are at least 1: a rule denies all of them",
            );
        }
        let counts = [self.connections, self.sessions, self.subscriptions];
        let limits = counts.iter().chain(&rates).flatten().count();
        (limits == 0).then_some("there is nothing that it limits")
    }
}
