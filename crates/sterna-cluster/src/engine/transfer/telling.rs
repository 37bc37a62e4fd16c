//! Telling nodes that somebody exports the cluster: their audit logs say so.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::super::Core;
use crate::port::ToShard;
use crate::subjects;

/// The most characters that are taken of who says that he exports.
const MOST_CHARACTERS: usize = 200;

/// Time in which further words are not told.
const PAUSE_MS: u64 = 1_000;

impl Core {
    /// Tells nodes that run. Waits until NATS has it.
    pub(super) async fn say_that_it_exports(&self, by: &str) -> Result<(), String> {
        let subject = self.settings.subject(subjects::EXPORT);
        let said = async {
            let word = self.client.publish(subject, by.to_owned().into()).await;
            word.map_err(|error| error.to_string())?;
            (self.client.flush().await).map_err(|error| error.to_string())
        };
        let within = Duration::from_millis(self.settings.answer_timeout_ms);
        let said = tokio::time::timeout(within, said).await;
        said.unwrap_or_else(|_| Err("NATS does not answer".to_owned()))
            .map_err(|why| self.explained(&why))
    }

    /// Hears of exports.
    pub(in crate::engine) async fn hear_exports(self: Rc<Self>) {
        let last_ms = Cell::new(None::<u64>);
        let tell = async |word: async_nats::Message| {
            // One without a name is a trial of rights.
            if word.payload.is_empty() {
                return;
            }
            let now_ms = self.now_ms();
            if last_ms.get().is_some_and(|last| now_ms < last + PAUSE_MS) {
                return;
            }
            last_ms.set(Some(now_ms));
            let by = String::from_utf8_lossy(&word.payload);
            let by = by.chars().take(MOST_CHARACTERS).collect();
            self.post(0, ToShard::Exporting(by));
        };
        self.hear_each(subjects::EXPORT, tell).await;
    }
}
