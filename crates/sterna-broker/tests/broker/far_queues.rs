//! Queues of a cluster, in virtual time: the queue as a whole is at its root, consumers are on any node.

use std::sync::Arc;

use sterna_broker::{
    DEFAULT_PRIORITY, DeadLetter, Limits, Message, MessageHeader, MessageReader, Qos, QueueRules,
};

use crate::far_world::{DEAD, NODES, World};

/// Reads payloads such as `12 p7`: a number, a priority.
#[derive(Debug)]
struct Reader;

impl MessageReader for Reader {
    fn priority(&self, message: &Message) -> u8 {
        let payload = String::from_utf8_lossy(message.payload());
        let priority = payload.split(" p").nth(1);
        priority.map_or(DEFAULT_PRIORITY, |one| one.parse().expect("a priority"))
    }

    fn due_ms(&self, _: &Message) -> Option<u64> {
        None
    }

    fn dead_letter(&self, message: &Message, letter: &DeadLetter<'_>) -> Option<Message> {
        let payload = String::from_utf8_lossy(message.payload());
        let payload = format!("{payload} {}", letter.cause.as_str());
        let header = MessageHeader {
            qos: Qos::AtLeastOnce,
            ..MessageHeader::default()
        };
        Message::copy(letter.topic, &[], payload.as_bytes(), header).ok()
    }
}

fn rules(maximum_deliveries: Option<u16>) -> QueueRules {
    QueueRules {
        name: "g".into(),
        maximum_deliveries,
        dead_letter: Some(DEAD.into()),
        has_priorities: false,
        reader: Arc::new(Reader),
    }
}

fn settle(world: &mut World) {
    for at in 0..NODES {
        world.take_turns(at, usize::MAX);
        world.end_turn(at);
    }
}

fn play(seed: u64, with_fence: bool) -> Option<String> {
    let mut world = World::with(seed, with_fence, Some(rules(Some(3))), Limits::default());
    world.join(0);
    world.end_turn(0);
    settle(&mut world);
    for _ in 0..400 {
        world.step();
    }
    world.rest();
    let fault = world.judge();
    if std::env::var("SHOW").is_ok() {
        let dead = world.dead_letters();
        eprintln!("seed {seed}: {} published, {} acknowledged, {} done, {} dead, {} twice, epoch {:?}", world.published, world.acknowledged.len(), world.done.len(), dead.len(), dead.values().filter(|&&n| n > 1).count(), world.nodes.iter().map(|n| n.epoch).collect::<Vec<_>>());
    }
    let doubled = (world.dead_letters().into_iter()).find(|&(_, count)| count > 2);
    fault.or_else(|| doubled.map(|(number, _)| format!("{number} is a dead letter three times")))
}

#[test]
fn a_message_of_a_queue_is_with_one_consumer_of_all_nodes_at_a_time() {
    crate::seeds::play("queues of nodes", 0..40, |seed| {
        assert_eq!(play(seed, true), None, "seed {seed}");
    });
}
