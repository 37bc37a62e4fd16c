//! A node's own retained messages on their way through NATS, and which of a topic's messages is the last.
//!
//! A node retains its own message at once. Another node's message that comes by meanwhile is mostly before it in
//! NATS' order, and must not take its place. NATS keeps the last message of each topic alone, so an own message may
//! never come by: another one has overwritten it. The position in NATS' answer tells that, once something later has
//! come by.
//!
//! Own messages have numbers that rise. Those of one topic are handed over one after the other.

use std::collections::HashMap;

/// See the module. `M` is a message of another node.
#[derive(Debug)]
pub struct Echoes<M>(HashMap<Box<str>, UnderWay<M>>);

/// A topic with own messages that have not come by.
#[derive(Debug)]
struct UnderWay<M> {
    /// The number of the last own message.
    last: u64,
    /// The last that NATS is known to have: its number, and its position.
    stored: Option<(u64, u64)>,
    /// The last of other nodes that has come by since, with its position.
    rival: Option<(u64, M)>,
}

impl<M> Default for Echoes<M> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<M> Echoes<M> {
    /// This node retains an own message, and hands it to NATS.
    pub fn begin(&mut self, topic: &str, number: u64) {
        let known = self.0.entry(topic.into()).or_insert(UnderWay {
            last: number,
            stored: None,
            rival: None,
        });
        known.last = number;
    }

    /// Whether an own message of a topic is still to come, as far as this node knows.
    #[must_use]
    pub fn is_under_way(&self, topic: &str) -> bool {
        self.0.contains_key(topic)
    }

    /// An own message comes by. Returns whether a later one is still to come.
    pub fn own_comes(&mut self, topic: &str, number: u64) -> bool {
        let Some(known) = self.0.get_mut(topic) else {
            return false;
        };
        if number < known.last {
            known.rival = None;
            return true;
        }
        self.0.remove(topic);
        false
    }

    /// A message of another node comes by. Returns whether an own one is still to come. The other is remembered
    /// then: it stays if NATS turns out to have it behind the own one.
    pub fn other_comes(&mut self, topic: &str, position: u64, message: impl FnOnce() -> M) -> bool {
        let Some(known) = self.0.get_mut(topic) else {
            return false;
        };
        let last = known.last;
        let is_behind = |(number, at)| number == last && at <= position;
        if known.stored.is_some_and(is_behind) {
            self.0.remove(topic);
            return false;
        }
        known.rival = Some((position, message()));
        true
    }

    /// NATS has an own message at a position. Returns the message of another node that is the topic's last by then.
    pub fn stored(&mut self, topic: &str, number: u64, position: u64) -> Option<M> {
        let known = self.0.get_mut(topic)?;
        known.stored = Some((number, position));
        self.settle(topic)
    }

    /// NATS never takes an own message. Returns the message of another node that is the topic's last by then.
    pub fn give_up(&mut self, topic: &str, number: u64) -> Option<M> {
        let known = self.0.get_mut(topic)?;
        if number == known.last {
            // The message that was stored before it is the last that may come.
            known.last = known.stored.map_or(0, |(before, _)| before);
            if known.stored.is_none() {
                known.stored = Some((0, 0));
            }
        }
        self.settle(topic)
    }

    /// Ends a topic where a message of another node is behind the last own one.
    fn settle(&mut self, topic: &str) -> Option<M> {
        let known = self.0.get_mut(topic)?;
        let (number, at) = known.stored?;
        let is_behind = known.rival.as_ref().is_some_and(|(rival, _)| *rival > at);
        if number == known.last && (is_behind || number == 0) {
            return self.0.remove(topic)?.rival.map(|(_, message)| message);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_in_nats_order_stays() {
        let mut echoes = Echoes::default();
        assert!(!echoes.other_comes("t", 1, || 1), "there is no own one");
        echoes.begin("t", 1);
        echoes.begin("t", 2);
        assert!(echoes.other_comes("t", 3, || 3), "it is before our own");
        assert!(echoes.own_comes("t", 1), "one of our own is still to come");
        assert!(!echoes.own_comes("t", 2));
        assert!(!echoes.other_comes("t", 6, || 6), "it is after");
    }

    #[test]
    fn a_message_that_was_overwritten_counts_as_come_back() {
        let mut echoes = Echoes::default();
        echoes.begin("t", 1);
        assert_eq!(echoes.stored("t", 1, 5), None);
        assert!(echoes.is_under_way("t"));
        assert!(echoes.other_comes("t", 4, || 4), "it is before our own");
        assert!(!echoes.other_comes("t", 6, || 6), "it has overwritten it");
        assert!(!echoes.is_under_way("t"));
        // The answer may be later than what has overwritten it.
        echoes.begin("t", 2);
        assert!(echoes.other_comes("t", 8, || 8), "nobody knows yet");
        assert_eq!(echoes.stored("t", 2, 7), Some(8));
        assert!(!echoes.is_under_way("t"));
    }

    #[test]
    fn a_message_that_nats_never_takes_is_not_waited_for() {
        let mut echoes = Echoes::default();
        echoes.begin("t", 1);
        assert!(echoes.other_comes("t", 3, || 3));
        assert_eq!(echoes.give_up("t", 1), Some(3));
        echoes.begin("t", 2);
        echoes.begin("t", 3);
        assert_eq!(echoes.stored("t", 2, 5), None);
        assert_eq!(echoes.give_up("t", 3), None);
        assert!(echoes.is_under_way("t"), "the one before is to come");
        assert!(!echoes.own_comes("t", 2));
        echoes.begin("t", 4);
        assert_eq!(echoes.give_up("t", 4), None);
        assert!(!echoes.is_under_way("t"));
    }

    /// A node of the model, and its messages: each is the node and a number.
    #[derive(Default)]
    struct Node {
        echoes: Echoes<(usize, u64)>,
        retained: Option<(usize, u64)>,
        number: u64,
        waiting: VecDeque<u64>,
        /// The first message that waits is stored here, and the answer is on its way.
        answer: Option<u64>,
        next: u64,
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Publish(usize),
        Store(usize),
        Answer(usize),
        Read(usize),
        /// NATS forgets that it has what it has not answered about: it is stored again.
        Forget(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        (0..5, 0..3_usize).prop_map(|(kind, node)| match kind {
            0 => Event::Publish(node),
            1 => Event::Store(node),
            2 => Event::Answer(node),
            3 => Event::Read(node),
            _ => Event::Forget(node),
        })
    }

    /// A stream that keeps the last message.
    #[derive(Default)]
    struct World {
        nodes: [Node; 3],
        stream: BTreeMap<u64, (usize, u64)>,
        end: u64,
    }

    impl World {
        fn play(&mut self, event: Event) {
            match event {
                Event::Publish(node) => {
                    let own = &mut self.nodes[node];
                    own.number += 1;
                    own.waiting.push_back(own.number);
                    own.retained = Some((node, own.number));
                    own.echoes.begin("t", own.number);
                }
                Event::Store(node) => {
                    let own = &mut self.nodes[node];
                    if let (Some(&number), None) = (own.waiting.front(), own.answer) {
                        self.end += 1;
                        self.stream = BTreeMap::from([(self.end, (node, number))]);
                        own.answer = Some(self.end);
                    }
                }
                Event::Forget(node) => self.nodes[node].answer = None,
                Event::Answer(node) => {
                    let own = &mut self.nodes[node];
                    if let Some(position) = own.answer.take() {
                        let number = own.waiting.pop_front().expect("it was stored");
                        if let Some(rival) = own.echoes.stored("t", number, position) {
                            own.retained = Some(rival);
                        }
                    }
                }
                Event::Read(node) => {
                    let own = &mut self.nodes[node];
                    let Some((&position, &message)) = self.stream.range(own.next..).next() else {
                        return;
                    };
                    own.next = position + 1;
                    let is_before = if message.0 == node {
                        own.echoes.own_comes("t", message.1)
                    } else {
                        own.echoes.other_comes("t", position, || message)
                    };
                    if !is_before {
                        own.retained = Some(message);
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn all_nodes_agree_in_the_end(events in proptest::collection::vec(event(), 0..60)) {
            let mut world = World::default();
            for event in events {
                world.play(event);
            }
            for _ in 0..60 {
                for node in 0..3 {
                    for event in [Event::Store(node), Event::Answer(node), Event::Read(node)] {
                        world.play(event);
                    }
                }
            }
            let last = world.stream.values().next().copied();
            for node in &world.nodes {
                prop_assert_eq!(node.retained, last);
                prop_assert!(!node.echoes.is_under_way("t"));
            }
        }
    }
}
