//! Asking nodes and servers of NATS for the time, and judging this node's clock before it takes part.
//!
//! A process reads the wall clock at its start alone. One that goes by a wrong clock begins anew when the wall clock is
//! right. One that has joined does so at once: it leaves as a node does that stops, so its clients end, and other nodes take
//! its sessions and wills over.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::Subject;
use futures_util::StreamExt;
use serde::Deserialize;

use super::streams::{INBOX, KEPT, LOG, NODES, RETAINED, SESSIONS};
use super::{Core, Ended};
use crate::clocks::{Answer, Owner, Verdict};
use crate::subjects;

/// A node's answer, as a line of text.
const FORM: &str = "1";
/// Time between two rounds of questions.
const PAUSE: Duration = Duration::from_secs(5);
/// Most time of a round, in milliseconds.
const ROUND_MS: u64 = 1_000;

/// The part of NATS' answer about a stream that is read: its leader has answered, and says when.
#[derive(Deserialize)]
struct StreamTime {
    ts: Option<String>,
    cluster: Option<Leader>,
}

#[derive(Deserialize)]
struct Leader {
    leader: Option<String>,
}

impl Core {
    /// The clock by which this node dates, in milliseconds since the Unix epoch.
    pub(super) fn wall_ms(&self) -> u64 {
        (self.clock)()
    }

    /// Answers nodes that ask for the time.
    pub(super) async fn answer_clock(self: Rc<Self>) {
        let answer = async |question: async_nats::Message| {
            if let Some(reply) = question.reply {
                let line = format!("{FORM} {} {}", self.settings.node, self.wall_ms());
                // The node that asks gives up by itself.
                let _ = self.client.publish(reply, line.into()).await;
            }
        };
        self.hear_each(subjects::CLOCK, answer).await;
    }

    /// Looks at all clocks again and again.
    pub(super) async fn look_at_clocks(self: Rc<Self>) {
        loop {
            tokio::time::sleep(PAUSE).await;
            if self.status.is_connected() {
                self.judge_clocks().await;
            }
        }
    }

    /// Whether this node's clock lets it take part.
    ///
    /// # Errors
    /// A sentence that names its clock.
    pub(super) async fn may_date(&self) -> Result<(), String> {
        let verdict = self.judge_clocks().await;
        if verdict.is_own_wrong() {
            return Err(verdict.sentence().unwrap_or_default());
        }
        Ok(())
    }

    /// Asks for the time, and notes which clocks are wrong.
    async fn judge_clocks(&self) -> Verdict {
        let mut verdict = self.read_clocks().await;
        if verdict.is_own_wrong() && self.status.has_joined() {
            // Nobody's clients end because a machine was busy for a moment.
            verdict = self.read_clocks().await;
        }
        let before = self.status.note_clocks(&verdict);
        let is_wrong = verdict.is_own_wrong();
        if verdict.clocks > 1 {
            self.fence.set_clock_wrong(is_wrong);
        }
        if before.wrong != verdict.wrong {
            self.tell_of_clocks(&before, &verdict);
        }
        if (self.status.is_clock_wrong).swap(is_wrong, Ordering::AcqRel) != is_wrong {
            self.look_at_gate();
        }
        let wall_ahead_ms = system_ms().wrapping_sub(self.wall_ms()).cast_signed();
        if self.clocks.borrow().is_set(&verdict, wall_ahead_ms) {
            self.begin_anew("the wall clock is right again, and this process goes by another one");
        } else if is_wrong && self.status.has_joined() {
            let why = verdict.sentence().unwrap_or_default();
            self.begin_anew(&format!("{why}: it serves nobody until that is right"));
        }
        verdict
    }

    async fn read_clocks(&self) -> Verdict {
        let within = Duration::from_millis(self.settings.answer_timeout_ms.min(ROUND_MS));
        tokio::join!(
            self.ask_nodes_for_time(within),
            self.ask_servers_for_time(within)
        );
        self.clocks.borrow_mut().judge(self.wall_ms())
    }

    /// Has the process leave the cluster in order, and begin anew: once.
    pub(super) fn begin_anew(&self, why: &str) {
        if !self.begins_anew.replace(true) {
            (self.report)(Ended::Anew(why.to_owned()));
        }
    }

    /// Says in the log which clocks have become wrong, or right.
    fn tell_of_clocks(&self, before: &Verdict, now: &Verdict) {
        let (clocks, most_ms) = (now.clocks, self.settings.maximum_clock_skew_ms);
        let was = |owner: &Owner| before.wrong.iter().any(|wrong| wrong.owner == *owner);
        for wrong in now.wrong.iter().filter(|wrong| !was(&wrong.owner)) {
            let what = if !now.is_sure {
                "too few clocks are known to say which is right"
            } else if wrong.owner == Owner::Own {
                "this node serves nobody until its clock is right: set it"
            } else {
                "what is dated there ends early or late"
            };
            tracing::warn!(
                clocks,
                most_ms,
                "{wrong}: {what} (cluster.maximum_clock_skew_ms)"
            );
        }
        let is = |owner: &Owner| now.wrong.iter().any(|wrong| wrong.owner == *owner);
        for wrong in before.wrong.iter().filter(|wrong| !is(&wrong.owner)) {
            tracing::info!("the clock of {} is no longer known to differ", wrong.owner);
        }
    }

    async fn ask_nodes_for_time(&self, within: Duration) {
        let asked = async {
            let reply = Subject::from(self.client.new_inbox());
            let mut answers = self.client.subscribe(reply.clone()).await.ok()?;
            let subject = self.settings.subject(subjects::CLOCK);
            let asked_ms = self.wall_ms();
            let asked = (self.client).publish_with_reply(subject, reply, "".into());
            asked.await.ok()?;
            // Nobody knows how many there are.
            loop {
                let answer = answers.next().await?;
                let came_ms = self.wall_ms();
                // A node hears itself, too: its clock counts once.
                let heard =
                    time_of(&answer.payload).filter(|(node, _)| *node != self.settings.node);
                if let Some((node, theirs_ms)) = heard {
                    let answer = Answer {
                        asked_ms,
                        came_ms,
                        theirs_ms,
                    };
                    let owner = Owner::Node(node.into());
                    self.clocks.borrow_mut().heard(owner, answer);
                }
            }
            #[allow(unreachable_code, reason = "it says the type")]
            Some(())
        };
        let _ = tokio::time::timeout(within, asked).await;
    }

    /// The leaders of this cluster's streams date what is in them, and say the time when they are asked about them.
    async fn ask_servers_for_time(&self, within: Duration) {
        let streams = [NODES, INBOX, RETAINED, LOG, KEPT, SESSIONS];
        let asked = streams.map(|stream| async move {
            let subject = format!("$JS.API.STREAM.INFO.{}", self.settings.stream(stream));
            let asked_ms = self.wall_ms();
            let answer = self.client.request(subject, "".into()).await.ok()?;
            let came_ms = self.wall_ms();
            let told: StreamTime = serde_json::from_slice(&answer.payload).ok()?;
            let theirs_ms = milliseconds(&told.ts?)?;
            let leader = told.cluster.and_then(|cluster| cluster.leader);
            // A server that is alone leads all.
            let name = leader.filter(|name| !name.is_empty());
            let name = name.unwrap_or_else(|| self.client.server_info().server_name);
            let answer = Answer {
                asked_ms,
                came_ms,
                theirs_ms,
            };
            let owner = Owner::Server(name.into());
            self.clocks.borrow_mut().heard(owner, answer);
            Some(())
        });
        let asked = futures_util::future::join_all(asked);
        let _ = tokio::time::timeout(within, asked).await;
    }
}

/// A node's answer: the form, its name, and the time.
fn time_of(payload: &[u8]) -> Option<(&str, u64)> {
    let line = std::str::from_utf8(payload).ok()?;
    let mut words = line.split(' ');
    let (FORM, node, at_ms) = (words.next()?, words.next()?, words.next()?) else {
        return None;
    };
    let is_whole = words.next().is_none() && crate::is_name(node);
    Some((node, at_ms.parse().ok()?)).filter(|_| is_whole)
}

/// The machine's wall clock, in milliseconds since the Unix epoch.
pub(super) fn system_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// A date as NATS writes it (RFC 3339), in milliseconds since the Unix epoch.
fn milliseconds(date: &str) -> Option<u64> {
    let form = &time::format_description::well_known::Rfc3339;
    let date = time::OffsetDateTime::parse(date, form).ok()?;
    u64::try_from(date.unix_timestamp_nanos() / 1_000_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_its_name_and_the_time() {
        assert_eq!(
            time_of(b"1 node-1 1800000000000"),
            Some(("node-1", 1_800_000_000_000))
        );
        for line in [
            "", "1", "2 a 5", "1 a", "1 a b", "1 a 5 6", "1 a.b 5", "1 a -5",
        ] {
            assert_eq!(time_of(line.as_bytes()), None, "{line:?}");
        }
    }

    #[test]
    fn a_server_says_the_time_as_a_date() {
        assert_eq!(milliseconds("1970-01-01T00:00:01.234567891Z"), Some(1_234));
        assert_eq!(milliseconds("1970-01-01T02:00:01+02:00"), Some(1_000));
        assert_eq!(milliseconds("1969-12-31T23:59:59Z"), None);
        assert_eq!(milliseconds("now"), None);
    }
}
