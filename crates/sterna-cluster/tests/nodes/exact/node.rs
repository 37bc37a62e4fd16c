//! A node with one shard, and what it has handed over for the log and the records.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sterna_broker::{
    Appended, Broker, Change, Committed, CompanionRecord, Companions, ConsumerId, Directory, Event,
    Frame, Full, Keeping, Limits, Message, MessageHeader, MessageName, OpenSession, Outbound,
    Outgoing, Ownership, PeerGate, Publication, Qos, ReadAnswer, ReadRequest, Record, Records,
    SessionKey, SessionName, ShardId, Store, Wanted,
};
use sterna_cluster::owners::Process;

pub(crate) const CLIENT: &str = "c";

/// A store without readers.
#[derive(Debug)]
struct NoReaders {
    end: Arc<AtomicU64>,
    committed: Arc<AtomicU64>,
}

impl Store for NoReaders {
    fn next_position(&self) -> u64 {
        self.end.load(Ordering::SeqCst)
    }

    fn append(&mut self, _: Frame<'_>) -> Result<Appended, Full> {
        Err(Full)
    }

    fn committed(&self) -> Committed {
        let token = self.committed.load(Ordering::SeqCst);
        Committed {
            written: token,
            synced: token,
        }
    }

    fn read(&mut self, _: ReadRequest) {}

    fn next_answer(&mut self) -> Option<ReadAnswer> {
        None
    }

    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        ReadAnswer {
            next: request.to,
            ..ReadAnswer::default()
        }
    }

    fn load(&mut self, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn needed_from(&mut self, _: u64) {}
    fn hold_from(&mut self, _: u64) {}
}

/// What the shard had in one turn.
pub(crate) struct Turn {
    pub(crate) token: u64,
    /// None once they are in the log.
    pub(crate) outgoing: Vec<Outgoing>,
    pub(crate) changes: Vec<Change>,
    /// The end of the log when it was handed over.
    pub(crate) from: u64,
}

pub(crate) struct Node {
    pub(crate) process: Process,
    broker: Broker<()>,
    end: Arc<AtomicU64>,
    committed: Arc<AtomicU64>,
    pub(crate) turns: VecDeque<Turn>,
    /// What it writes of the session, as a whole, and in which epoch it has the session.
    pub(crate) records: Records,
    pub(crate) epoch: u64,
    consumers: u64,
}

impl Node {
    pub(crate) fn start(process: Process, now_ms: u64) -> Self {
        let (end, committed) = (Arc::new(AtomicU64::new(1)), Arc::default());
        let store = NoReaders {
            end: Arc::clone(&end),
            committed: Arc::clone(&committed),
        };
        let directory = Directory::new(1, Limits::default(), 42);
        let mut broker = Broker::new(ShardId(0), directory, Box::new(store));
        let gate = PeerGate::new(1 << 30);
        gate.set_open(true);
        broker.join_cluster(Arc::new(gate));
        broker.set_keeping(Keeping::Synced);
        broker.restore(now_ms);
        let wanted = Wanted {
            is_durable: true,
            ..Wanted::NOBODY
        };
        broker.set_wanted(vec![(Arc::from("t"), wanted)]);
        Self {
            process,
            broker,
            end,
            committed,
            turns: VecDeque::new(),
            records: Records::new(),
            epoch: 0,
            consumers: 0,
        }
    }

    /// The log has come by up to here.
    pub(crate) fn follow(&self, end: u64) {
        self.end.store(end, Ordering::SeqCst);
    }

    /// Whether all is kept up to a token.
    pub(crate) fn has_kept(&self, token: u64) -> bool {
        self.committed.load(Ordering::SeqCst) >= token
    }

    /// The shard hands over what it has.
    pub(crate) fn end_turn(&mut self) {
        let changes = self.broker.take_changes();
        if let Some(Outbound {
            token, outgoing, ..
        }) = self.broker.take_outgoing()
        {
            let from = self.end.load(Ordering::SeqCst);
            self.turns.push_back(Turn {
                token,
                outgoing,
                changes,
                from,
            });
        }
    }

    /// Takes the changes of the next turn. False where none waits, or its messages are not in the log.
    pub(crate) fn keep_next(&mut self) -> bool {
        let is_next = (self.turns.front()).is_some_and(|turn| turn.outgoing.is_empty());
        let Some(turn) = is_next.then(|| self.turns.pop_front()).flatten() else {
            return false;
        };
        for Change { key, value } in turn.changes {
            match value {
                Some(value) => self.records.insert(key, value),
                None => self.records.remove(&key),
            };
        }
        self.committed.store(turn.token, Ordering::SeqCst);
        true
    }

    /// Opens the client's session, which goes on with records that are known of it, and says whether it does. What the
    /// front door has kept is returned.
    pub(crate) fn open(
        &mut self,
        now_ms: u64,
        records: &Records,
    ) -> (SessionKey, bool, Vec<Record>) {
        self.consumers += 1;
        let request = OpenSession {
            name: SessionName::new(None, CLIENT),
            clean_start: false,
            expiry_s: 3_600,
            consumer: ConsumerId(self.consumers),
            will: None,
            on_demand: false,
            selector: None,
        };
        self.broker.open(now_ms, request).expect("within limits");
        let notes = self.broker.take_ownership();
        let session = notes.into_iter().find_map(|note| match note {
            Ownership::Claim { session, .. } => Some(session),
            _ => None,
        });
        let session = session.expect("no node has it");
        let records = records.iter();
        let records = records.map(|(key, value)| (key.clone(), value.clone()));
        (self.broker).session_restored(now_ms, session, records.collect());
        let mut present = None;
        while let Some(event) = self.broker.next_event() {
            if let Event::Opened { present: found, .. } = event {
                present = Some(found);
            }
        }
        let kept = self.broker.take_records(session);
        self.end_turn();
        (session, present.expect("it is granted"), kept)
    }

    /// Another node has the session.
    pub(crate) fn lose(&mut self, now_ms: u64) {
        self.broker
            .lose_session(now_ms, &SessionName::new(None, CLIENT));
        while self.broker.next_event().is_some() {}
        self.broker.take_ownership();
        self.end_turn();
    }

    /// Publishes a message with its record, and returns the token by which its acknowledgement waits.
    pub(crate) fn publish(
        &mut self,
        now_ms: u64,
        session: SessionKey,
        (key, packet_id, is_link): (&[u8], u16, bool),
        payload: &str,
    ) -> u64 {
        let header = MessageHeader {
            qos: Qos::ExactlyOnce,
            ..MessageHeader::default()
        };
        let message = Message::copy("t", &[], payload.as_bytes(), header).expect("a small one");
        let record = CompanionRecord::Session {
            session,
            key,
            value: &[],
        };
        let name = if is_link {
            let number = packet_id;
            MessageName::Logged { session, number }
        } else {
            MessageName::Counted { session, packet_id }
        };
        let publication = Publication {
            origin: Some(session),
            publisher: None,
            message,
            companions: Companions {
                record: Some(record),
                name: Some(name),
            },
        };
        let routed = self.broker.publish(now_ms, publication);
        assert!(routed.token > 0, "it goes by the log");
        self.end_turn();
        routed.token
    }

    /// Forgets a record, and returns the token by which that is kept.
    pub(crate) fn forget(&mut self, session: SessionKey, key: &[u8]) -> u64 {
        self.broker.forget(session, key);
        self.end_turn();
        self.broker.token()
    }

    /// All that it has appended before this position has its records.
    pub(crate) fn settled_to(&self, end: u64) -> u64 {
        let from = self.turns.iter().map(|turn| turn.from);
        from.fold(end, u64::min)
    }
}
