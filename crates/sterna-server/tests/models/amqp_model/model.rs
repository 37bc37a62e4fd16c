//! What the model knows: messages, the stores that they must be in, and how often.

use std::collections::BTreeMap;

/// Numbers from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// How a sender and the broker settle a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Nobody is told.
    Settled,
    /// At least once.
    First,
    /// Exactly once, where both ends remember.
    Second,
}

/// A message as its sender made it.
#[derive(Debug)]
pub struct Message {
    pub topic: String,
    pub kind: i32,
    pub pad_bytes: usize,
    pub mode: Mode,
    /// The sender's link, by its name.
    pub sender: String,
    /// It was sent again: its place among others is open.
    pub is_unordered: bool,
}

impl Message {
    /// The body of message `number`: the number, by which it is found, and then padding.
    pub fn text(&self, number: usize) -> String {
        format!("<{number}>{}", "x".repeat(self.pad_bytes))
    }
}

/// The numbers of messages that begin somewhere in raw bytes.
pub fn numbers_in(bytes: &[u8]) -> Vec<usize> {
    let mut numbers = Vec::new();
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'<') {
        let rest = &bytes[at + 1..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits > 0 && digits < 9 && rest.get(digits) == Some(&b'>') {
            let text = std::str::from_utf8(&rest[..digits]).expect("digits");
            numbers.push(text.parse().expect("a number"));
        }
    }
    numbers
}

/// How often a message is in a store, and how often it was taken out for good: each a lower and an
/// upper bound, which differ where bytes were lost on the way.
#[derive(Clone, Copy, Default, Debug)]
pub struct Account {
    pub min: u32,
    pub max: u32,
    pub gone_min: u32,
    pub gone_max: u32,
    /// It has been delivered before, or may have been.
    pub was_out: bool,
}

/// A queue, or the subscription behind a source.
#[derive(Debug)]
pub struct Store {
    pub name: String,
    /// The filter of topics that it takes.
    pub filter: String,
    /// Only messages of this kind, which a selector asks for.
    pub kind: Option<i32>,
    pub is_queue: bool,
    /// Whether what is published gets in.
    pub is_alive: bool,
    /// Whether a link takes what is in it. Without one nobody keeps settled messages for a subscription.
    pub is_attached: bool,
    pub accounts: BTreeMap<usize, Account>,
    /// Messages from this one on have kept their order: nothing was returned since.
    pub orderly_from: usize,
}

impl Store {
    pub fn takes(&self, message: &Message) -> bool {
        self.is_alive
            && self.kind.is_none_or(|kind| kind == message.kind)
            && matches(&self.filter, &message.topic)
    }

    /// Something of it may be returned to its front.
    pub fn disturb(&mut self, next_message: usize) {
        self.orderly_from = next_message;
    }

    pub fn account(&mut self, message: usize) -> &mut Account {
        self.accounts.entry(message).or_default()
    }

    /// What is left in the end, message by message, against what came.
    pub fn settle_up(&self, rest: &BTreeMap<usize, u32>, messages: &[Message]) {
        for (message, account) in &self.accounts {
            let left = rest.get(message).copied().unwrap_or(0);
            let least = account.min.saturating_sub(account.gone_max);
            let most = account.max.saturating_sub(account.gone_min);
            assert!(
                (least..=most).contains(&left),
                "{}: message {message} is left {left} times, {account:?}, {:?}",
                self.name,
                messages[*message]
            );
        }
        for message in rest.keys() {
            assert!(
                self.accounts.contains_key(message),
                "{}: message {message} was never sent there",
                self.name
            );
        }
    }
}

/// Whether a topic filter of MQTT matches.
pub fn matches(filter: &str, topic: &str) -> bool {
    let mut levels = topic.split('/');
    for part in filter.split('/') {
        match (part, levels.next()) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (part, Some(level)) if part == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

/// One try to bring a message to the broker.
#[derive(Debug)]
pub struct Attempt {
    pub message: usize,
    /// Where it gets in if it arrives.
    pub stores: Vec<usize>,
    pub delivery_id: u32,
    pub accepted: bool,
    /// It belongs to a transaction.
    pub is_posted: bool,
}

/// What is common to all clients: messages, tries, stores.
#[derive(Default)]
pub struct Model {
    pub messages: Vec<Message>,
    pub attempts: Vec<Attempt>,
    pub stores: Vec<Store>,
}

impl Model {
    pub fn add_store(
        &mut self,
        name: &str,
        filter: &str,
        kind: Option<i32>,
        is_queue: bool,
    ) -> usize {
        self.stores.push(Store {
            name: name.to_owned(),
            filter: filter.to_owned(),
            kind,
            is_queue,
            is_alive: true,
            is_attached: false,
            accounts: BTreeMap::new(),
            orderly_from: self.messages.len(),
        });
        self.stores.len() - 1
    }

    /// A message is on its way: it may be in these stores now. Its token is the result.
    pub fn attempt(&mut self, message: usize) -> u64 {
        let token = self.attempt_in_transaction(message);
        self.by_token(token).is_posted = false;
        self.routed(token);
        token
    }

    /// A message is posted in a transaction: it gets nowhere before the commit.
    pub fn attempt_in_transaction(&mut self, message: usize) -> u64 {
        self.attempts.push(Attempt {
            message,
            stores: Vec::new(),
            delivery_id: 0,
            accepted: false,
            is_posted: true,
        });
        self.attempts.len() as u64
    }

    /// A message gets where it belongs now, if it arrives.
    pub fn routed(&mut self, token: u64) {
        let message = self.by_token(token).message;
        let stores: Vec<usize> = (0..self.stores.len())
            .filter(|store| self.stores[*store].takes(&self.messages[message]))
            .collect();
        for store in &stores {
            self.stores[*store].account(message).max += 1;
        }
        self.by_token(token).stores = stores;
    }

    /// The link of a subscription is detached, or may be: settled messages are not kept for it.
    pub fn unattended(&mut self, store: usize) {
        let store = &mut self.stores[store];
        store.is_attached = false;
        if !store.is_queue {
            for (message, account) in &mut store.accounts {
                if self.messages[*message].mode == Mode::Settled {
                    account.min = 0;
                }
            }
        }
    }

    pub fn by_token(&mut self, token: u64) -> &mut Attempt {
        &mut self.attempts[token as usize - 1]
    }

    /// The broker has taken a message over: it is in its stores for sure.
    pub fn accepted(&mut self, token: u64) {
        let attempt = &mut self.attempts[token as usize - 1];
        if !std::mem::replace(&mut attempt.accepted, true) {
            let is_settled = self.messages[attempt.message].mode == Mode::Settled;
            for store in &attempt.stores {
                let store = &mut self.stores[*store];
                if !is_settled || store.is_queue || store.is_attached {
                    store.account(attempt.message).min += 1;
                }
            }
        }
    }

    /// The broker says that it never had this one.
    pub fn withdrawn(&mut self, token: u64) {
        let attempt = &mut self.attempts[token as usize - 1];
        assert!(
            !attempt.accepted,
            "withdrawn after it was accepted: {attempt:?}"
        );
        for store in std::mem::take(&mut attempt.stores) {
            self.stores[store].account(attempt.message).max -= 1;
        }
    }
}
