//! Brokers on threads of their own, with channels for mail: what the directory's locks are for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

use sterna_broker::{
    Broker, Close, ConsumerId, Directory, DoorState, Event, Limits, Mail, Message, MessageHeader,
    NoStore, OpenError, OpenSession, Opened, Outcome, Publication, Qos, RetainHandling, SessionKey,
    SessionName, ShardId, SubscribeError, SubscribeOptions,
};

const SHARDS: usize = 3;
const CLIENTS: usize = 12;
const TURNS: usize = 4_000;
const NOW_MS: u64 = 1_000_000;

/// What a session has received; it moves with the session.
#[derive(Debug, Default)]
struct Received {
    /// By publishing shard: the number of its latest message.
    latest: HashMap<u64, u64>,
    /// Those that came as retained copies.
    copies: HashSet<(u64, u64)>,
    deliveries: u64,
}

impl DoorState for Received {
    fn is_idle(&self) -> bool {
        false
    }
}

/// Where all shards wait for each other. Unlike a barrier it lets the others go when one has failed.
#[derive(Default)]
struct Meeting {
    arrived: AtomicUsize,
    failed: AtomicBool,
}

impl Meeting {
    /// Waits until every shard has come for the `time`-th time.
    fn wait(&self, time: usize) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        while self.arrived.load(Ordering::SeqCst) < time * SHARDS {
            self.check();
            std::thread::yield_now();
        }
    }

    fn check(&self) {
        assert!(!self.failed.load(Ordering::SeqCst), "another shard failed");
    }
}

/// Tells the others of a failure.
struct Member(Arc<Meeting>);

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::SeqCst);
        }
    }
}

struct Shard {
    number: usize,
    broker: Broker<Received>,
    inbox: Receiver<Mail<Received>>,
    outboxes: Vec<Sender<Mail<Received>>>,
    under_way: Arc<AtomicUsize>,
    /// Sessions whose consumers are here, and ready.
    sessions: HashMap<ConsumerId, SessionKey>,
    random: u64,
    published: u64,
    consumers: u64,
}

impl Shard {
    fn random(&mut self, below: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(1);
        (self.random >> 33) as usize % below
    }

    fn open(&mut self) {
        self.consumers += 1;
        let consumer = ConsumerId(self.consumers);
        let client_id = format!("client-{}", self.random(CLIENTS));
        let clean_start = self.random(10) == 0;
        let request = OpenSession {
            name: SessionName::new(None, &client_id),
            clean_start,
            expiry_s: 1_000,
            consumer,
            will: None,
            on_demand: false,
            selector: None,
        };
        let opened = self.broker.open(NOW_MS, request);
        self.take_events();
        match opened {
            Ok(Opened::Ready { session, .. }) => self.opened(consumer, session),
            // Or another shard was quicker.
            Ok(Opened::Pending { .. }) | Err(OpenError::TakenOver) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    fn opened(&mut self, consumer: ConsumerId, session: SessionKey) {
        self.sessions.insert(consumer, session);
        let options = SubscribeOptions {
            qos: Qos::AtLeastOnce,
            retain_handling: RetainHandling::IfNew,
            ..SubscribeOptions::default()
        };
        match self.broker.subscribe(NOW_MS, session, "t/#", options) {
            Ok(_) => {}
            // Another shard has claimed it in the same batch of mail: the eviction is told next.
            Err(SubscribeError::NoSession) => return,
            Err(error) => panic!("{error:?}"),
        }
        // What the connection before was sent and didn't acknowledge counts as received.
        for entry in self.broker.unacknowledged(session) {
            assert!(
                self.broker
                    .settle(NOW_MS, session, entry.tag(), Outcome::Accepted)
            );
        }
    }

    fn publish(&mut self) {
        self.published += 1;
        let payload = [self.number as u64, self.published]
            .map(u64::to_le_bytes)
            .concat();
        let topic = format!("t/{}", self.random(5));
        let retain = self.random(3) == 0;
        let header = MessageHeader {
            qos: Qos::AtLeastOnce,
            retain,
            ..MessageHeader::default()
        };
        let message = Message::copy(&topic, &[], &payload, header).expect("a small message");
        self.broker.publish(NOW_MS, Publication::new(None, message));
    }

    fn take_events(&mut self) {
        while let Some(event) = self.broker.next_event() {
            match event {
                Event::Evicted { consumer, .. } => {
                    self.sessions.remove(&consumer);
                }
                Event::Opened {
                    consumer, session, ..
                } => self.opened(consumer, session),
                Event::Drained { .. } | Event::Unsubscribed { .. } | Event::LostRight { .. } => {
                    panic!("nobody asked")
                }
            }
        }
    }

    /// Sends what is ready, with all checks; leaves some unacknowledged.
    fn send(&mut self) {
        while let Some((_, session)) = self.broker.next_ready() {
            while let Some(delivery) = self.broker.next_delivery(NOW_MS, session) {
                let word = |at: usize| {
                    let bytes = &delivery.message.payload()[at..at + 8];
                    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
                };
                let (shard, number) = (word(0), word(8));
                let received = self.broker.protocol_mut(session).expect("it is ready");
                received.deliveries += 1;
                if delivery.retain {
                    assert!(received.copies.insert((shard, number)), "a copy came twice");
                } else {
                    assert!(
                        !received.copies.contains(&(shard, number)),
                        "retained and live"
                    );
                    let latest = received.latest.insert(shard, number);
                    assert!(
                        latest.is_none_or(|latest| number == latest + 1),
                        "{number} of shard {shard} follows {latest:?}"
                    );
                }
                if self.random(4) > 0 {
                    let tag = delivery.tag;
                    assert!(self.broker.settle(NOW_MS, session, tag, Outcome::Accepted));
                }
            }
        }
        for (to, mail) in self.broker.take_mail() {
            self.under_way.fetch_add(1, Ordering::SeqCst);
            self.outboxes[usize::from(to.0)]
                .send(mail)
                .expect("all shards run");
        }
    }

    /// Takes the mail that is there; one turn of the loop.
    fn turn(&mut self) {
        let mut letters = 0;
        while let Ok(mail) = self.inbox.try_recv() {
            self.broker.mail(NOW_MS, mail);
            letters += 1;
        }
        self.take_events();
        self.send();
        // What they caused is under way by now, so the count never falls to zero too early.
        self.under_way.fetch_sub(letters, Ordering::SeqCst);
    }

    fn run(mut self, member: &Member) -> u64 {
        let meeting = &member.0;
        meeting.wait(1);
        for _ in 0..TURNS {
            match self.random(20) {
                0 => self.open(),
                1 => {
                    if let Some((&consumer, &session)) = self.sessions.iter().next() {
                        self.sessions.remove(&consumer);
                        self.broker.close(NOW_MS, session, Close::LOST);
                    }
                }
                _ => self.publish(),
            }
            self.turn();
        }
        meeting.wait(2);
        while self.under_way.load(Ordering::SeqCst) > 0 {
            meeting.check();
            self.turn();
            std::thread::yield_now();
        }
        meeting.wait(3);
        let deliveries = |&key| {
            let received = self.broker.protocol(key);
            received
                .expect("whoever lost a session was told")
                .deliveries
        };
        self.sessions.values().map(deliveries).sum()
    }
}

/// [MQTT-4.6.0-6] and the retained messages' rule: each message reaches a subscriber once, live or
/// as retained, in each publisher's order and without a gap, however its session moves.
#[test]
fn order_and_completeness_hold_between_threads() {
    let limits = Limits {
        queued_messages: 1_000_000,
        ..Limits::default()
    };
    let directory = Directory::new(SHARDS as u16, limits, 1);
    let under_way = Arc::new(AtomicUsize::new(0));
    let meeting = Arc::new(Meeting::default());
    let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..SHARDS).map(|_| channel()).unzip();
    let threads: Vec<_> = inboxes
        .into_iter()
        .enumerate()
        .map(|(number, inbox)| {
            let shard = ShardId(number as u16);
            let shard = Shard {
                number,
                broker: Broker::new(shard, Arc::clone(&directory), Box::new(NoStore)),
                inbox,
                outboxes: outboxes.clone(),
                under_way: Arc::clone(&under_way),
                sessions: HashMap::new(),
                random: number as u64,
                published: 0,
                consumers: number as u64 * 1_000_000,
            };
            let member = Member(Arc::clone(&meeting));
            std::thread::spawn(move || shard.run(&member))
        })
        .collect();
    let received: u64 = threads
        .into_iter()
        .map(|thread| thread.join().expect("no check failed"))
        .sum();
    assert!(received > 0);
    assert!(directory.sessions() <= CLIENTS);
}

/// Who subscribes while another shard publishes retained messages gets the one there is as a copy,
/// and all later ones live: none twice, none not at all.
#[test]
fn a_new_subscriber_gets_each_message_one_way() {
    const SUBSCRIPTIONS: usize = 3_000;
    let directory = Directory::new(2, Limits::default(), 1);
    let mut publisher: Broker<()> =
        Broker::new(ShardId(0), Arc::clone(&directory), Box::new(NoStore));
    let mut broker: Broker<()> = Broker::new(ShardId(1), Arc::clone(&directory), Box::new(NoStore));
    // The publisher may be ahead by so much: else the subscriber wades through what came before.
    let (to_subscriber, inbox) = sync_channel::<Mail<()>>(64);
    let subscribed = Arc::new(AtomicUsize::new(0));
    let progress = Arc::clone(&subscribed);
    let thread = std::thread::spawn(move || {
        let mut number = 0_u64;
        while progress.load(Ordering::Relaxed) < SUBSCRIPTIONS {
            number += 1;
            let header = MessageHeader {
                retain: true,
                ..MessageHeader::default()
            };
            let message = Message::copy("t", &[], &number.to_le_bytes(), header).expect("small");
            publisher.publish(NOW_MS, Publication::new(None, message));
            for (_, mail) in publisher.take_mail() {
                to_subscriber
                    .send(mail)
                    .expect("the subscriber waits for it");
            }
        }
    });
    for i in 0..SUBSCRIPTIONS {
        let client_id = format!("client-{i}");
        let request = OpenSession {
            name: SessionName::new(None, &client_id),
            clean_start: true,
            expiry_s: 0,
            consumer: ConsumerId(1),
            will: None,
            on_demand: false,
            selector: None,
        };
        let opened = broker.open(NOW_MS, request).expect("within limits");
        let Opened::Ready { session, .. } = opened else {
            panic!("{opened:?}")
        };
        let options = SubscribeOptions::default();
        broker
            .subscribe(NOW_MS, session, "t", options)
            .expect("a valid filter");
        let mut latest = None;
        let mut live = 0;
        while live < 3 {
            while let Some(delivery) = broker.next_delivery(NOW_MS, session) {
                let payload = delivery.message.payload().try_into().expect("eight bytes");
                let number = u64::from_le_bytes(payload);
                assert!(!delivery.retain || latest.is_none(), "a copy comes first");
                assert!(
                    latest.is_none_or(|latest| number == latest + 1),
                    "{latest:?}, {number}"
                );
                latest = Some(number);
                live += usize::from(!delivery.retain);
            }
            if live < 3 {
                broker.mail(NOW_MS, inbox.recv().expect("the publisher goes on"));
            }
        }
        broker.close(NOW_MS, session, Close::NORMAL);
        subscribed.fetch_add(1, Ordering::Relaxed);
    }
    inbox.iter().for_each(drop);
    thread.join().expect("no check failed");
}
