//! Invariants of a shard's queues, for tests: the check looks at everything.

use std::collections::BTreeMap;

use crate::account::Account;
use crate::api::DoorState;
use crate::counters::Counters;
use crate::group::{GROUP_OWNER, Group};
use crate::nodes::{List, NIL, Phase};
use crate::queues::{QueueKey, Queues};
use crate::session::{BrokerSession, NEVER_MS};

impl<P: DoorState> Queues<P> {
    /// # Panics
    /// Where a sum, a list, a timer or a flag does not agree with what it stands for.
    pub(crate) fn check(&self) {
        self.check_holders();
        let mut sums = Counters::default();
        for slot in self
            .sessions
            .slots()
            .filter(|&slot| self.sessions.is_packed(slot))
        {
            let subscriptions = (self.sessions).look(slot, |session| session.subscriptions.len());
            sums.subscriptions += subscriptions.expect("what was packed can be unpacked") as u64;
            let deadline_ms = self.sessions.packed_deadline_ms(slot);
            assert!(
                deadline_ms == NEVER_MS
                    || (self.timers).contains(&(deadline_ms, QueueKey::Session(slot))),
                "the timer of a packed session"
            );
        }
        for (slot, session) in self.sessions.open() {
            self.check_session(slot, session);
            self.sum_up(&mut sums, session.pending);
            self.sum_up(&mut sums, session.ledger);
            sums.subscriptions += session.subscriptions.len() as u64;
            sums.sessions_connected += u64::from(session.is_connected());
        }
        for group in self.groups.values() {
            self.check_group(group);
            self.sum_up(&mut sums, group.queue);
            self.sum_up(&mut sums, group.delayed_list());
            let delayed = group.delayed.as_ref();
            let delayed = delayed.map_or(0, |delayed| delayed.logged_len());
            sums.logged_messages += (group.tail.len() + delayed) as u64;
        }
        let sums = Counters {
            stored_messages: sums.stored_messages,
            stored_bytes: sums.stored_bytes,
            logged_messages: sums.logged_messages,
            alone_messages: sums.alone_messages,
            alone_bytes: sums.alone_bytes,
            subscriptions: sums.subscriptions,
            sessions_connected: sums.sessions_connected,
            ..self.counters
        };
        assert_eq!(self.counters, sums, "the sums of all queues");
        assert_eq!(
            self.nodes.len() as u64,
            sums.stored_messages,
            "entries lie in queues and ledgers, and nowhere else"
        );
    }

    fn sum_up(&self, sums: &mut Counters, list: List) {
        self.nodes.each(list, |entry| sums.stored(entry.held()));
    }

    fn check_session(&self, slot: u32, session: &BrokerSession<P>) {
        let name = session.name.text();
        self.nodes.check(session.pending, slot);
        self.nodes.check(session.ledger, slot);
        let account = Account::of(&self.nodes, session.pending, session.ledger);
        assert_eq!(session.account, account, "the account of {name}");
        assert!(
            session.ledger.len() <= self.limits.unacknowledged,
            "the ledger of {name}"
        );
        let mut assigned: BTreeMap<u32, u32> = BTreeMap::new();
        self.nodes.each(session.pending, |entry| {
            assert_eq!(entry.phase, Phase::Pending, "what waits in {name}");
            assert!(entry.message.is_some(), "what waits in {name} has a body");
            if entry.group != NIL {
                *assigned.entry(entry.group).or_default() += 1;
            }
        });
        let mut node = session.ledger.first();
        while node != NIL {
            if let Some(entry) = self.nodes.entry(node) {
                assert_ne!(entry.phase, Phase::Pending, "what {name} was sent");
                assert!(entry.qos.is_acknowledged() && !entry.retained_copy);
                let found = self.find_sent(slot, entry.tag);
                assert_eq!(found, Some(node), "a tag of {name} finds its entry");
            }
            node = self.nodes.next(node);
        }
        if let Some(demand) = session.rare.as_ref().and_then(|rare| rare.demand.as_ref()) {
            for share in &demand.shares {
                assert!(share.pending <= share.outstanding, "the demand of {name}");
                let pending = assigned.get(&share.group).copied().unwrap_or(0);
                assert_eq!(share.pending, pending, "what {name} was assigned");
            }
        }
        assert!(
            // A root waits for branches that take more.
            !session.is_ready() || session.is_listed || self.is_current(slot) || session.is_root(),
            "{name} is ready and nobody knows"
        );
        assert!(
            session.timer_ms == NEVER_MS
                || (self.timers).contains(&(session.timer_ms, QueueKey::Session(slot))),
            "the timer of {name}"
        );
    }

    fn check_group(&self, group: &Group) {
        let name = &group.filter;
        self.nodes.check(group.queue, GROUP_OWNER);
        let (mut bytes, mut before) = (0, None);
        let mut logged = (0, 0);
        self.nodes.each(group.queue, |entry| {
            bytes += entry.body_bytes();
            if entry.may_wait_in_log() {
                logged = (logged.0 + 1, logged.1 + entry.body_bytes());
            }
            assert_eq!(entry.phase, Phase::Pending, "what waits in {name}");
            assert!(
                before.replace(entry.tag).is_none_or(|tag| tag < entry.tag),
                "the order of {name}"
            );
        });
        assert_eq!(
            group.logged, logged,
            "what {name} has in memory and in the log"
        );
        group.check_class_ends(&self.nodes);
        group.tail.check();
        bytes += group
            .tail
            .after(0)
            .map(|waiting| u64::from(waiting.body_bytes))
            .sum::<u64>();
        bytes += (group.delayed.as_ref()).map_or(0, |delayed| delayed.logged_bytes());
        self.nodes.check(group.delayed_list(), GROUP_OWNER);
        self.nodes
            .each(group.delayed_list(), |entry| bytes += entry.body_bytes());
        assert_eq!(group.queued_bytes, bytes, "the bytes of {name}");
        let members = group.members.iter();
        let attending = members.filter(|(_, member)| member.attendance != 0).count();
        assert_eq!(group.attending, attending, "who attends {name}");
        assert!(
            group
                .members
                .iter()
                .all(|(_, member)| member.credit <= member.window),
            "the windows of {name}"
        );
        if let Some(fill) = &group.fill {
            let (messages, filled_bytes) = fill.now();
            let waiting = group.waiting() + group.delayed_len();
            assert!(
                messages >= waiting as u64 && filled_bytes >= bytes,
                "publishers see at least what {name} holds"
            );
        }
    }
}
