//! The version of the wire form that this node writes, and those that it reads.
//!
//! Each node says which it reads, and writes the highest that all read. So the nodes of a cluster come to a later
//! version one after the other: it is written when the last of them reads it.

use bytes::Bytes;

use super::Core;
use crate::wire::{self, EncodedRun, Run, Section, Versions, WireError};

impl Core {
    /// The versions that this node reads.
    pub(super) fn reads(&self) -> Versions {
        self.table.borrow().reads()
    }

    /// The version that this node writes now.
    pub(super) fn version(&self) -> u8 {
        self.table.borrow().version()
    }

    /// The batch of some runs, as all nodes read it.
    pub(super) fn batch<'a>(
        &self,
        runs: impl IntoIterator<Item = &'a EncodedRun> + Clone,
    ) -> Bytes {
        wire::batch(self.version(), runs)
    }

    /// The runs of a batch of a node.
    pub(super) fn read(&self, batch: &[u8]) -> Result<Vec<Run>, WireError> {
        wire::read(self.reads(), batch)
    }

    /// The same, where nothing but lengths is looked at.
    pub(super) fn sections(&self, batch: &[u8]) -> Result<Vec<Section>, WireError> {
        wire::sections(self.reads(), batch)
    }
}

#[cfg(test)]
mod tests {
    use sterna_broker::{Encoded, Message, MessageHeader, NodeSet, Outbound, Recipients};

    use super::*;
    use crate::engine::offline::{self, Silent};
    use crate::engine::outgoing::LiveByNode;
    use crate::settings::Settings;

    const NAMES: [&str; 3] = ["a", "b", "c"];

    /// Nodes of a program that has version 1 alone, and of the next one. Version 2 is of this test. It is as version 1
    /// is: who does not read it refuses it by its number.
    const TODAY: Versions = wire::READS;
    const NEXT: Versions = Versions {
        lowest: 1,
        highest: 2,
    };

    fn message(payload_bytes: usize) -> Message {
        let payload = vec![7; payload_bytes];
        Message::copy("t", &[], &payload, MessageHeader::default()).expect("it fits")
    }

    /// A cluster: words and batches of nodes come to the others. The log stays.
    struct World {
        nodes: Vec<Core>,
        log: Vec<Bytes>,
        starts: u64,
    }

    impl World {
        /// A cluster whose nodes have heard each other.
        async fn new(reads: Versions) -> Self {
            let mut world = Self {
                nodes: Vec::new(),
                log: Vec::new(),
                starts: 0,
            };
            for at in 0..NAMES.len() {
                let node = world.node(at, reads).await;
                world.nodes.push(node);
            }
            for at in 0..NAMES.len() {
                world.has_come(at);
            }
            world
        }

        async fn node(&mut self, at: usize, reads: Versions) -> Core {
            let settings = Settings {
                node: NAMES[at].to_owned(),
                ..Settings::sample(None)
            };
            let core = offline::core(settings, |_| Silent).await;
            self.starts += 1;
            core.incarnation.set(self.starts);
            let mut table = core.table.borrow_mut();
            table.set_reads(reads);
            table.set_own_incarnation(self.starts);
            table.begins_to_hear(0);
            drop(table);
            core
        }

        /// A node says a word to the others.
        fn says(&self, at: usize, word: &str) {
            let line = self.nodes[at].own_line(word);
            let subject = format!("sterna.c.alive.{}", NAMES[at]);
            for (other, node) in self.nodes.iter().enumerate() {
                if other != at {
                    node.heard(&subject, line.as_bytes());
                }
            }
        }

        /// A node says that it is here, and has heard all others.
        fn has_come(&self, at: usize) {
            for at in 0..self.nodes.len() {
                self.says(at, "here");
            }
            let node = &self.nodes[at];
            (node.table.borrow_mut()).look(node.settings.lease_ms / 2);
        }

        /// A node leaves, and another process takes its place. Others have not heard of that yet.
        async fn restart(&mut self, at: usize, reads: Versions) {
            self.says(at, "leaving");
            self.nodes[at] = self.node(at, reads).await;
        }

        /// A node sends messages to the others, and appends some to the log. Returns the version of all of it.
        fn publish(&mut self, at: usize) -> u8 {
            let node = &self.nodes[at];
            let mut batches = Vec::new();
            for number in node.table.borrow().heard_of(None) {
                let mut recipients = Recipients {
                    acknowledged: NodeSet::EMPTY,
                    at_most_once: NodeSet::EMPTY,
                };
                recipients.at_most_once.insert(number);
                let mut live = LiveByNode::new();
                // The memory of the second becomes the batch.
                for payload_bytes in [10, 5_000] {
                    let mut encoded = Encoded::default();
                    for _ in 0..2 {
                        encoded.push(message(payload_bytes).parts(), recipients, 1, true);
                    }
                    let turn = Outbound {
                        token: 1,
                        encoded,
                        outgoing: Vec::new(),
                    };
                    node.sort(0, turn, Vec::new(), &mut live);
                }
                let name = node.table.borrow().node(number).map(|(name, _)| name);
                let mut waiting = live[&number].as_slice();
                while let Some((batch, _, rest)) = node.next_live(waiting) {
                    waiting = rest;
                    batches.push((name.clone().expect("a node"), batch));
                }
            }
            let mut run = EncodedRun::new(0);
            run.push(&message(10), true);
            self.log.push(node.batch([&run]));
            let version = node.version();
            let written = batches
                .iter()
                .map(|(_, batch)| batch)
                .chain(self.log.last());
            assert!(written.into_iter().all(|batch| batch[0] == version));
            for (name, batch) in batches {
                let to = NAMES.iter().position(|known| **known == *name);
                let subject = format!("sterna.c.to.{name}.{}", NAMES[at]);
                self.nodes[to.expect("a node")].received(&subject, &batch);
            }
            version
        }

        /// All nodes publish. Returns the versions, by node.
        fn publish_all(&mut self) -> Vec<u8> {
            (0..NAMES.len()).map(|at| self.publish(at)).collect()
        }

        /// The number of batches that a node could not read, and of entries of the log.
        fn unread(&self, at: usize) -> (u64, usize) {
            let node = &self.nodes[at];
            let unread = self.log.iter().filter(|entry| node.read(entry).is_err());
            (node.status.unreadable_batches.get(), unread.count())
        }

        fn expect_all_read(&self) {
            for (at, name) in NAMES.iter().enumerate() {
                assert_eq!(self.unread(at), (0, 0), "{name}");
                let received = self.nodes[at].status.received_messages.get();
                assert!(received > 0, "{name}");
            }
        }
    }

    /// A rolling upgrade: three nodes become nodes of a program with one more version, one after the other.
    #[tokio::test]
    async fn a_later_version_is_written_when_the_last_node_reads_it() {
        let mut world = World::new(TODAY).await;
        assert_eq!(world.publish_all(), [1, 1, 1]);
        world.expect_all_read();
        for at in 0..2 {
            world.restart(at, NEXT).await;
            assert_eq!(world.publish_all(), [1, 1, 1], "it has heard nobody");
            world.has_come(at);
            assert_eq!(world.publish_all(), [1, 1, 1]);
            world.expect_all_read();
        }
        world.restart(2, NEXT).await;
        assert_eq!(world.publish_all(), [1, 1, 1], "it may be a restart");
        world.has_come(2);
        assert_eq!(world.publish_all(), [2, 2, 2]);
        world.expect_all_read();
    }

    /// The last node goes back to the program before: from its first word on all write what it reads.
    #[tokio::test]
    async fn a_node_that_returns_to_the_version_before_is_written_to_in_that() {
        let mut world = World::new(NEXT).await;
        assert_eq!(world.publish_all(), [2, 2, 2]);
        world.restart(2, TODAY).await;
        world.has_come(2);
        assert_eq!(world.publish_all(), [1, 1, 1]);
        let in_log = world.log.iter().filter(|entry| entry[0] == 2).count();
        assert_eq!(world.unread(2), (0, in_log), "what was written before");
        assert_eq!([world.unread(0), world.unread(1)], [(0, 0); 2]);
        let (why, entry) = ("version 2", &world.log[0]);
        let error = world.nodes[2].read(entry).map(drop).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        // A batch that comes all the same is counted, and harms nothing.
        world.nodes[2].received("sterna.c.to.c.a", entry);
        assert_eq!(world.unread(2).0, 1);
    }

    /// A word that does not say what its node reads is none.
    #[tokio::test]
    async fn a_node_that_does_not_say_what_it_reads_is_not_heard() {
        let world = World::new(TODAY).await;
        let node = &world.nodes[0];
        for word in ["1 9 here", "1 9 here x", "1 9 here 0", "2 9 here 1"] {
            node.heard("sterna.c.alive.d", word.as_bytes());
            assert_eq!(node.table.borrow().presence("d"), None, "{word}");
        }
        node.heard("sterna.c.alive.d", b"1 9 here 1");
        let here = crate::table::Presence::Here;
        assert_eq!(node.table.borrow().presence("d"), Some(here));
    }
}
