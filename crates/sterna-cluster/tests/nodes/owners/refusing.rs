//! Who is refused because another has the session, and who is not.

use sterna_cluster::owners::{
    Action, Key, Mark, Overtaken, Owners, Record, Refusal, Request, WriteError,
};

use super::{of_alice, process, request_of, with_another_node};

/// The place of the other node's record, and the last that has come by.
const THEIRS: u64 = 4;
const READ_TO: u64 = 40;
const NOW_MS: u64 = 30_100;

/// Why a claim is overtaken, and by which node.
type Told = (Overtaken, Option<String>);

/// What a node does with answers of NATS.
struct Play {
    owners: Owners<u64>,
    now_ms: u64,
    /// The read that it waits for.
    asked: Option<(Key, u64)>,
    /// The other actions that it wants.
    others: Vec<Action<u64>>,
}

impl Play {
    /// A client has come whose session is another node's. NATS was handed its claim, and has not answered.
    fn unanswered() -> Self {
        let mut play = Self {
            owners: with_another_node(),
            now_ms: NOW_MS,
            asked: None,
            others: Vec::new(),
        };
        let request: Request<u64> = request_of(1, false);
        play.owners.claim(play.now_ms, Key::default(), request);
        play.take();
        let theirs = of_alice(process("other", 2), true);
        play.read(Some((THEIRS, theirs)));
        assert_eq!(play.write(Err(WriteError::Unknown)), Some(THEIRS));
        play
    }

    fn take(&mut self) {
        for action in self.owners.take_actions() {
            match action {
                Action::Read { key, attempt } => self.asked = Some((key, attempt)),
                action => self.others.push(action),
            }
        }
    }

    /// Time passes until it reads. Returns how long that was.
    fn wait(&mut self) -> u64 {
        let begun_ms = self.now_ms;
        while self.asked.is_none() {
            self.now_ms += 1;
            self.owners.tick(self.now_ms);
            self.owners.check(self.now_ms);
            self.take();
        }
        self.now_ms - begun_ms
    }

    /// Answers the read.
    fn read(&mut self, found: Option<(u64, Record)>) {
        let (key, attempt) = self.asked.take().expect("it reads");
        self.owners.was_read(self.now_ms, key, attempt, Ok(found));
        self.owners.check(self.now_ms);
    }

    /// Answers a write, if there is one. Returns what it is written over.
    fn write(&mut self, answer: Result<u64, WriteError>) -> Option<u64> {
        self.take();
        let at = (self.others.iter()).position(|action| matches!(action, Action::Write { .. }))?;
        let Action::Write {
            key,
            attempt,
            expected,
            ..
        } = self.others.remove(at)
        else {
            return None;
        };
        (self.owners).was_written(self.now_ms, key, attempt, answer);
        self.owners.check(self.now_ms);
        Some(expected)
    }

    /// Marks of the other node come by, up to a place.
    fn pass(&mut self, from: u64, to: u64) {
        for sequence in from..=to {
            let mark = Mark::Here { sent_ms: 7 };
            (self.owners)
                .mark_passed(self.now_ms, sequence, &process("other", 2), mark)
                .expect("a mark of its time");
        }
    }

    /// Why the claim was refused, and which node is said to have its session.
    fn refused(&mut self) -> Option<(Refusal, Option<Told>)> {
        let (mut refusal, mut said) = (None, None);
        self.take();
        for action in self.others.drain(..) {
            match action {
                Action::Settled {
                    result: Err(why), ..
                } => refusal = Some(why),
                Action::Overtaken { by, why, .. } => {
                    said = Some((why, by.map(|by| by.to_string())));
                }
                _ => {}
            }
        }
        Some((refusal?, said))
    }
}

/// The record that the other node writes when its client leaves in order.
fn ended() -> Record {
    Record {
        is_over: true,
        is_kept: false,
        ..of_alice(process("other", 2), true)
    }
}

/// The client leaves one node in order and comes to another at once. NATS refuses the claim while it is at the end of the
/// session before, and nobody hears the answer.
#[test]
fn who_has_just_left_another_node_is_let_in() {
    let mut play = Play::unanswered();
    play.wait();
    play.read(Some((THEIRS + 1, ended())));
    assert_eq!(play.write(Ok(READ_TO + 1)), Some(THEIRS + 1));
    assert_eq!(play.refused(), None);
}

/// It may be there, with the end of the session behind it.
#[test]
fn a_claim_that_may_be_written_waits_until_all_has_come_by() {
    let mut play = Play::unanswered();
    for _ in 0..3 {
        play.wait();
        play.read(Some((READ_TO + 5, ended())));
        assert_eq!(play.write(Ok(READ_TO + 6)), None);
        assert_eq!(play.refused(), None);
    }
    play.pass(READ_TO + 1, READ_TO + 5);
    play.wait();
    play.read(Some((READ_TO + 5, ended())));
    assert_eq!(play.write(Ok(READ_TO + 6)), Some(READ_TO + 5));
}

#[test]
fn a_claim_that_may_have_come_by_where_something_is_missing_is_refused() {
    let mut play = Play::unanswered();
    play.pass(READ_TO + 3, READ_TO + 5);
    play.wait();
    let theirs = of_alice(process("third", 1), true);
    play.read(Some((READ_TO + 5, theirs)));
    let told = (Overtaken::Unknown, Some("third".to_owned()));
    assert_eq!(play.refused(), Some((Refusal::TakenOver, Some(told))));
}

#[test]
fn a_claim_that_is_overtaken_says_by_whom() {
    let mut play = Play::unanswered();
    play.wait();
    play.read(Some((THEIRS, of_alice(process("other", 2), true))));
    assert_eq!(play.write(Ok(READ_TO + 1)), Some(THEIRS));
    let theirs = of_alice(process("third", 1), true);
    (play.owners).record_passed(play.now_ms, READ_TO + 2, Key::default(), &theirs);
    let told = (Overtaken::Claimed, Some("third".to_owned()));
    assert_eq!(play.refused(), Some((Refusal::TakenOver, Some(told))));
}

/// NATS may be at a write that it does not finish.
#[test]
fn who_finds_another_write_under_way_asks_less_and_less_often() {
    let mut play = Play::unanswered();
    let mut waits_ms = Vec::new();
    play.wait();
    for _ in 0..8 {
        play.read(Some((THEIRS, of_alice(process("other", 2), true))));
        assert_eq!(play.write(Err(WriteError::Conflict)), Some(THEIRS));
        waits_ms.push(play.wait());
    }
    assert_eq!(waits_ms, [5, 10, 20, 40, 80, 160, 200, 200]);
}
