//! What the drivers share: the lines that they speak with the scenario (`../README.md`).

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Prints one line.
pub fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    // The scenario has gone when this fails, and then nobody misses the line.
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Answers a request.
pub fn answer(number: u64, value: Value) {
    say(&json!({"n": number, "ok": value}));
}

/// Answers a request that failed; `reason` is the broker's code where there is one.
pub fn fail(number: u64, error: &str, reason: Option<u8>) {
    say(&json!({"n": number, "error": error, "reason": reason}));
}

/// Says that the library has no way to do what is asked.
pub fn cannot(number: u64, why: &str) {
    say(&json!({"n": number, "cannot": why}));
}

/// Bytes as the lines carry them.
#[must_use]
pub fn pack(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of a field, none where it is missing.
#[must_use]
pub fn unpack(value: &Value) -> Vec<u8> {
    value
        .as_str()
        .and_then(|text| STANDARD.decode(text).ok())
        .unwrap_or_default()
}

/// A text field, empty where it is missing.
#[must_use]
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A list of pairs.
#[must_use]
pub fn pairs(value: &Value) -> Vec<(String, String)> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .map(|pair| (text(&pair[0]), text(&pair[1])))
        .collect()
}

/// Who waits for the end of an exchange: one request, or all messages of a burst together.
#[derive(Debug, Clone)]
pub struct Waiter {
    number: u64,
    left: Arc<AtomicUsize>,
}

impl Waiter {
    /// A request that is answered after `count` exchanges.
    #[must_use]
    pub fn new(number: u64, count: usize) -> Self {
        Self {
            number,
            left: Arc::new(AtomicUsize::new(count)),
        }
    }

    /// One exchange is complete.
    pub fn done(&self, value: Value) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            answer(self.number, value);
        }
    }

    /// One exchange failed.
    pub fn fail(&self, error: &str, reason: Option<u8>) {
        if self.left.swap(0, Ordering::SeqCst) > 0 {
            fail(self.number, error, reason);
        }
    }
}

/// The waiters of one kind of packet: first in the order of sending, then by packet identifier.
#[derive(Debug, Default)]
pub struct Waiters {
    queued: VecDeque<Waiter>,
    sent: HashMap<u16, Waiter>,
}

impl Waiters {
    /// A packet was handed to the library.
    pub fn queue(&mut self, waiter: Waiter) {
        self.queued.push_back(waiter);
    }

    /// The library sent the next packet of the queue. Without an identifier it is complete.
    pub fn sent(&mut self, identifier: u16) {
        let Some(waiter) = self.queued.pop_front() else {
            return;
        };
        if identifier == 0 {
            waiter.done(json!({}));
        } else {
            self.sent.insert(identifier, waiter);
        }
    }

    /// Who waits for this packet's acknowledgement.
    pub fn take(&mut self, identifier: u16) -> Option<Waiter> {
        self.sent.remove(&identifier)
    }

    /// The packet with this identifier is acknowledged, and that completes its exchange.
    pub fn done(&mut self, identifier: u16, value: Value) {
        if let Some(waiter) = self.take(identifier) {
            waiter.done(value);
        }
    }

    /// The connection ended.
    pub fn fail_all(&mut self, error: &str) {
        for waiter in self
            .queued
            .drain(..)
            .chain(self.sent.drain().map(|(_, waiter)| waiter))
        {
            waiter.fail(error, None);
        }
    }
}
