//! Limits of sessions, queues, subscriptions, retained messages and memory.

use super::MemoryCeiling;

settings! {
    /// Limits of sessions, queues, subscriptions and retained messages, and the ceiling of memory.
    ///
    /// A restart with lower limits keeps the sessions and messages that are there; the limits hold for new ones
    /// ([durability](durability.md#start-and-stop)). A message for a full queue is dropped and counted
    /// (`$SYS/broker/publish/messages/dropped`). Messages of QoS 0 and others do not take each other's room. QoS 0 is
    /// limited by bytes and age, so that a burst of small messages fits. QoS 1 and 2 are limited by number and bytes,
    /// until they are acknowledged.
    #[derive(Eq)]
    pub struct Broker {
        /// Sessions, connected or not.
        restart maximum_sessions: u64 = 1_000_000;
        /// Messages of QoS 1 and 2 that wait in memory for one session. One that the store keeps [reads in the
        /// log](durability.md#awake-and-asleep) what has no room; another loses it.
        restart maximum_queued_messages: u32 = 1000;
        /// Bytes of QoS 1 and 2 that wait in memory for one session or are sent to it and not acknowledged. Where they
        /// fill it, sending stops until some are acknowledged.
        restart maximum_queued_bytes: u64 = 64 << 20;
        /// Bytes of QoS 1 and 2 that the store keeps for one session of what was published while its client was away:
        /// [what counts](durability.md#what-counts-against-a-sessions-limits).
        restart maximum_away_bytes: u64 = 256 << 20;
        /// The same in messages.
        restart maximum_away_messages: u64 = 1_000_000;
        /// Time in which a connected reader whose queue is half full takes its share of what waits. One that does [holds
        /// its publishers](operations.md#slow-readers) of QoS 1 and 2; another holds nobody until it does. 0: nobody is
        /// held.
        restart reader_stall_ms: u64 = 2_000;
        /// That share of the waiting messages; one message at least.
        restart reader_share_percent: u8 = 10, within 1..=100;
        /// Time for which readers hold one publisher in all. While nobody holds it, the time comes back.
        restart publisher_hold_ms: u64 = 30_000;
        /// Time after its last message in which a held publisher may send one more all the same. So one that sends a message
        /// now and then is not held. 0: none may.
        restart held_publisher_interval_ms: u64 = 1_000;
        /// Bytes of QoS 0 that wait for one session. Each message counts 64 more.
        restart maximum_queued_qos0_bytes: u64 = 16 << 20;
        /// Time since its publication after which a waiting message of QoS 0 is dropped. Not for AMQP receivers, which
        /// give credit when they please.
        restart maximum_queued_qos0_age_ms: u64 = 60_000;
        /// Messages that wait in the queue of one shared subscription, or in one AMQP queue, in memory and in the log.
        restart maximum_group_queued_messages: u32 = 10_000;
        /// Bytes that wait there.
        restart maximum_group_queued_bytes: u64 = 64 << 20;
        /// Members of one shared subscription.
        restart maximum_group_members: u32 = 10_000;
        /// Messages of one shared subscription that one MQTT client holds unacknowledged. Fewer spread work more evenly.
        restart maximum_group_unacknowledged: u32 = 32, within 1..;
        /// Pause before a message of a shared subscription or an AMQP queue is delivered again. It follows the second
        /// consumer that was lost with the message. It also follows where
        /// [full dead letters](amqp.md#dead-letters-priorities-delays-browsing) did not take the message. It doubles each
        /// time. 0: none.
        restart redelivery_pause_ms: u64 = 1_000;
        /// The longest such pause.
        restart maximum_redelivery_pause_ms: u64 = 60_000;
        /// Bytes of all messages of all shards: waiting, not acknowledged and retained. Above it, only clients that
        /// keep up get messages, and AMQP queues refuse them.
        restart maximum_total_message_bytes: u64 = 2 << 30;
        /// Bytes of the wills of all clients; in a cluster also of those that wait for NATS. Beyond it a client with a
        /// will gets 0x97 (3.1.1: 3).
        restart maximum_will_bytes: u64 = 256 << 20;
        /// Subscriptions of one session, with those that have ended and have messages in the log yet.
        restart maximum_subscriptions_per_session: u32 = 1000;
        /// Bytes of the filters of these subscriptions. Beyond it a subscription is refused as one too many.
        restart maximum_filter_bytes_per_session: u32 = 1 << 20;
        /// Subscriptions of all sessions.
        restart maximum_subscriptions: u64 = 10_000_000;
        /// Retained messages, one a topic. Those of `$SYS` do not count, here and in `maximum_retained_bytes`.
        restart maximum_retained_messages: u64 = 1_000_000;
        /// Bytes of all retained messages, with 420 for each beside its body. Topics of many levels count more.
        restart maximum_retained_bytes: u64 = 1 << 30;
        /// Part of these two limits, and of `memory_retained_percent`. From there on a user or address retains nothing new
        /// that has at least half of the bytes of who has most. The rest is for all others. 100: who has most may fill all.
        restart retained_heavy_percent: u8 = 85, within 1..=100;
        /// Retained messages that wait for one session because it has subscribed.
        restart maximum_retained_deliveries: u32 = 100_000;
        /// Work of selectors and of lookups of retained messages in one turn of a shard, in steps of some nanoseconds. The
        /// rest waits for the next turn, so that other clients are served between.
        restart maximum_steps_per_turn: u32 = 1_000_000, within 1..;
        /// Copies of messages that a shard makes in one turn. Then messages that go to many readers wait for the next one, so
        /// that other clients are served between. One delivery is a copy, and each 16 KiB of the body one more. It sends
        /// as many in one turn. There each KiB that is copied for one connection, or written in its form, counts as four.
        restart maximum_copies_per_turn: u32 = 16_384, within 1..;
        /// Levels of a topic or filter.
        restart maximum_topic_levels: u16 = 128;
        /// Memory that the process may take: a share such as `"80%"`, a size such as `"512 MiB"`, or bytes; at least 64
        /// MiB. A share is of the machine's memory, or of what the limits of control groups and on addresses leave. Near it the broker does more and more to stay below: [short
        /// memory](operations.md#short-memory) has the stages.
        restart memory_ceiling: MemoryCeiling = MemoryCeiling::Percent(80);
        /// Share of the ceiling that retained messages may take at most, besides `maximum_retained_bytes`. They stay
        /// when their publishers go, so they leave room for all others. At most `memory_pause_percent`.
        restart memory_retained_percent: u8 = 25, within 1..=100;
        /// The same for wills, besides `maximum_will_bytes`.
        restart memory_wills_percent: u8 = 15, within 1..=100;
        /// The same for subscriptions, besides `maximum_subscriptions`; each counts with 1 KiB.
        restart memory_subscriptions_percent: u8 = 50, within 1..=100;
        /// The same for messages that were read in the log and that sessions and queues still have. Above it each session
        /// reads a small part at a time, and more as it settles what it has.
        restart memory_replay_percent: u8 = 15, within 1..=100;
        /// Users whose memory is counted apart, and addresses of clients without a user: of IPv6 by /48. The others are
        /// counted together. Where memory is short, who holds most gets no more and is ended first.
        restart maximum_principals: u32 = 16_384, within 1..;
        /// Share of the ceiling from which on clients that publish are not read, where their user or address holds most.
        restart memory_pause_percent: u8 = 70, within ..=100;
        /// Share of the ceiling from which on waiting messages leave memory if they are in the log.
        restart memory_move_percent: u8 = 80, within ..=100;
        /// Share of the ceiling from which on waiting messages are dropped, new ones refused, and clients of the heaviest user
        /// or address ended.
        restart memory_drop_percent: u8 = 90, within ..=100;
        /// Share of the ceiling from which on new clients are refused.
        restart memory_refuse_percent: u8 = 95, within ..=100;
        /// Distance between the beginning of a stage and its end below that, as a share of the ceiling. Less than
        /// `memory_pause_percent`.
        restart memory_hysteresis_percent: u8 = 5, within 1..=100;
        /// Time that memory may be short before the clients that hold most are ended in any stage.
        restart memory_patience_ms: u64 = 30_000;
    }
}
