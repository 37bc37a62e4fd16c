//! A named limit for everything a peer can make the broker hold.

/// The way a message for a full queue is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QueueFull {
    /// The new message is dropped; what is queued stays (Mosquitto's choice).
    #[default]
    DropNewest,
    /// The oldest message that was not yet sent makes room (EMQX's choice).
    DropOldest,
}

/// The broker's limits. Counts and bytes are inclusive: the limit itself is still allowed.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sessions on all shards, connected or away. More are refused at `open`.
    pub sessions: usize,
    /// Subscriptions of one session.
    pub subscriptions_per_session: usize,
    /// Bytes of the filters of one session.
    pub filter_bytes_per_session: usize,
    /// Subscriptions of all sessions.
    pub subscriptions: usize,
    /// Levels of a topic name or filter. Deeper ones are refused.
    pub topic_levels: usize,
    /// Bytes of a topic name or filter; the wire format allows 65,535.
    pub topic_bytes: usize,
    /// Messages of QoS 1 and 2 waiting in memory in one session's queue. Those that were sent do not count. Nor do
    /// retained messages that a subscription asked for, which are shared with the retained store. A session that is
    /// kept in the store reads there what has no room.
    pub queued_messages: usize,
    /// The time in which a connected reader whose queue is half full has to take its share of what waits, in
    /// milliseconds. A reader that does holds publishers. One that does not holds nobody until it does. With 0 nobody is held.
    pub reader_stall_ms: u64,
    /// That share, in percent of the messages that waited at the beginning; one message at least.
    pub reader_share_percent: usize,
    /// Bytes of the bodies of one session's messages of QoS 1 and 2 that wait, or were sent and not
    /// settled. Where they fill it, sending waits for what is settled. One message may have any size
    /// where nothing else is held.
    pub queued_bytes: usize,
    /// Messages of QoS 1 and 2 that the store keeps for one session of those that were published while it had no
    /// consumer. Those that were published while it had one do not count, nor those that were sent before.
    pub away_messages: u64,
    /// The same in bytes of their bodies. One message may have any size.
    pub away_bytes: u64,
    /// Bytes of one session's messages of QoS 0 that wait: their bodies, and 64 for each.
    pub queued_qos0_bytes: usize,
    /// Time since its publication after which a message of QoS 0 that still waits is dropped, in
    /// milliseconds. Consumers on demand are not concerned.
    pub queued_qos0_age_ms: u64,
    /// The way a message is treated where a session's queue is full by these limits, in memory or in the store. The same holds for a shared
    /// subscription's queue that isn't kept. A kept queue refuses publications
    /// ([`SubscribeOptions::keep`](crate::SubscribeOptions::keep)).
    pub queue_full: QueueFull,
    /// Messages of one session that were sent and not settled.
    pub unacknowledged: usize,
    /// Bytes that all shards' messages take: queued, sent and not settled, or retained. A body that
    /// several queues share counts once. Each entry of a queue counts, too. Above it, only consumers that
    /// are connected and have nothing waiting get messages, and kept queues refuse publications.
    pub message_bytes: u64,
    /// Messages waiting in one shared subscription's queue.
    pub group_queued_messages: usize,
    /// Bytes of message bodies waiting in one shared subscription's queue.
    pub group_queued_bytes: usize,
    /// Members of one shared subscription.
    pub group_members: usize,
    /// Messages of one shared subscription that one member holds without having settled them, unless
    /// it takes them on demand.
    pub group_window: u32,
    /// Whether a delivery counts as failed whose consumer's connection is lost. An end in order never counts.
    pub counts_lost: bool,
    /// Steps of work that selectors and lookups of retained messages take in one turn ([`Selector::selects`](crate::Selector::selects)). The rest
    /// waits for the next one.
    pub steps_per_turn: u64,
    /// Copies of messages that a shard makes in one turn ([`Broker::copies_of_turn`](crate::Broker::copies_of_turn)), before
    /// publications that go to many wait for the next one. One publication may make any number. Front doors deliver as many in
    /// one turn ([`Broker::deliveries_of_turn`](crate::Broker::deliveries_of_turn)).
    pub copies_per_turn: u64,
    /// Pause before a message of a shared subscription is delivered again that was lost with its consumer twice, or for
    /// which the dead letters have no room, in milliseconds. It doubles each time.
    pub redelivery_pause_ms: u64,
    /// The longest such pause, in milliseconds.
    pub redelivery_pause_most_ms: u64,
    /// In a cluster: messages of one shared subscription that members on this node hold together.
    pub branch_messages: usize,
    /// Time after which a node looks again for who gives a shared subscription's messages to nodes, in milliseconds.
    pub group_seek_interval_ms: u64,
    /// Time for which a shared subscription of a cluster goes on after its last member has left, in milliseconds.
    pub group_linger_ms: u64,
    /// Retained messages.
    pub retained_messages: usize,
    /// Bytes of retained messages: of their bodies, of long topics, and [`RETAINED_MESSAGE_BYTES`] for each.
    pub retained_bytes: usize,
    /// The part of these two limits above which no principal has a new retained message that holds at least half of the bytes
    /// that the heaviest holds, in percent. The rest is for all others.
    pub retained_heavy_percent: usize,
    /// Retained messages waiting in one session's queue because subscriptions asked for them.
    pub retained_deliveries: usize,
    /// Bytes of the bodies of all wills, of connections that are open or whose will is delayed.
    pub will_bytes: usize,
    /// Users, and networks of clients without a user, whose memory is counted apart; those beyond are counted together.
    pub principals: usize,
    /// Time from the start to the earliest publication of a will whose connection ended with the broker, in
    /// milliseconds. Its client has that long to return.
    pub will_grace_ms: u64,
    /// Topics whose matching subscribers a shard remembers.
    pub match_cache_topics: usize,
    /// Subscribers of one topic up to which its matches are remembered.
    pub match_cache_targets: usize,
    /// Route updates a shard may be behind before it is told to catch up.
    pub route_backlog: usize,
    /// Messages that a session has waiting while it reads the log, in number.
    pub read_ahead_messages: usize,
    /// The same in bytes of their bodies; one message may have more.
    pub read_ahead_bytes: usize,
    /// Bytes of the bodies of all messages that were read in the log and that sessions and queues still have. Above it a session
    /// gets a small part of the log at a time, and more as it settles what it has.
    pub replayed_bytes: u64,
    /// Time between two writings of what readers of the log have settled, in milliseconds. After a crash,
    /// consumers may get again at QoS 1 what they have settled since the last.
    pub cursor_interval_ms: u64,
    /// Time between two surveys of what of the log nobody needs any more, in milliseconds.
    pub survey_interval_ms: u64,
}

/// Bytes that a retained message takes beside its body, with the nodes and names of a topic of a few levels.
pub const RETAINED_MESSAGE_BYTES: usize = 420;

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 1_000_000,
            subscriptions_per_session: 10_000,
            filter_bytes_per_session: 1 << 20,
            subscriptions: 10_000_000,
            topic_levels: 128, // EMQX: 128, Mosquitto: 200
            topic_bytes: 65_535,
            queued_messages: 1_000, // Mosquitto and EMQX
            reader_stall_ms: 2_000,
            reader_share_percent: 10,
            queued_bytes: 64 << 20,
            away_messages: 1_000_000,
            away_bytes: 256 << 20,
            queued_qos0_bytes: 16 << 20,
            queued_qos0_age_ms: 60_000,
            queue_full: QueueFull::DropNewest,
            unacknowledged: 65_535,
            message_bytes: 2 << 30,
            group_queued_messages: 10_000,
            group_queued_bytes: 64 << 20,
            group_members: 10_000,
            group_window: 32,
            counts_lost: false,
            steps_per_turn: 1_000_000,
            copies_per_turn: 16_384,
            redelivery_pause_ms: 1_000,
            redelivery_pause_most_ms: 60_000,
            branch_messages: 16_384,
            group_seek_interval_ms: 500,
            group_linger_ms: 5_000,
            retained_messages: 1_000_000,
            retained_bytes: 1 << 30,
            retained_heavy_percent: 85,
            retained_deliveries: 100_000,
            will_bytes: 256 << 20,
            principals: 1_000,
            will_grace_ms: 30_000,
            match_cache_topics: 16_384,
            match_cache_targets: 4_096,
            route_backlog: 1_024,
            read_ahead_messages: 256,
            read_ahead_bytes: 1 << 20,
            replayed_bytes: 256 << 20,
            cursor_interval_ms: 200,
            survey_interval_ms: 10_000,
        }
    }
}
