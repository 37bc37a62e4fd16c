//! The limits of clients of some users.

use serde::{Deserialize, Serialize};

settings! {
    /// Limits of users: see [Limits of users](configuring.md#limits-of-users). The first entry that names a user
    /// holds, as a whole.
    #[derive(Eq)]
    pub struct Limit {
        /// User names. `*` is every client with a name. An entry without `users` and `groups` is for every client.
        reload users: Vec<String>, said "every client";
        /// Groups, whose users it names, too: also groups that tokens and the webhook give.
        reload groups: Vec<String>, said "every client";
        /// Connections of each user, over all protocols and shards. A client of MQTT that comes back takes its own
        /// place.
        reload connections: Option<u32>, said "any number";
        /// Sessions of each user, also while the client is away. A receiving link of AMQP and a subscription of HTTP is
        /// one.
        reload sessions: Option<u32>, said "any number";
        /// Subscriptions of each session of MQTT; receiving links of each connection of AMQP; subscriptions of the user
        /// on each connection of HTTP.
        reload subscriptions: Option<u32>, said "any number";
        /// Messages that each user publishes, over all its connections, protocols and shards.
        reload messages_per_s: Option<u32>, within 1.., said "any number";
        /// Bytes of payloads that each user publishes.
        reload bytes_per_s: Option<u32>, within 1.., said "any number";
        /// Seconds whose worth of messages and bytes may come at once.
        reload burst_s: u32 = 1, within 1..;
        /// Longest backlog of a user that publishes too fast, in seconds at the permitted rate. Messages beyond it are
        /// refused. A single connection may make half of it.
        reload debt_s: u32 = 60, within 1..;
        /// Treatment of a client that publishes faster. `pause`: it is not read until its rate is met again. `refuse`:
        /// its messages are refused.
        reload exceeded: Exceeded = Exceeded::Pause;
    }
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

impl Limit {
    /// Its fault, in words; `None` without one.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let limits = [
            self.connections,
            self.sessions,
            self.subscriptions,
            self.messages_per_s,
            self.bytes_per_s,
        ];
        (limits.iter().all(Option::is_none)).then_some("there is nothing that it limits")
    }
}
