//! Questions to shards, and their answers so far.

use std::ops::Range;
use std::sync::Arc;

use sterna_http::ExchangeId;
use sterna_net::ConnectionId;

use crate::mail::admin::Answer;

/// The request that a question was asked for.
type Asker = (ConnectionId, ExchangeId);

/// The method and the path of a request, for lines of the log about it.
pub(super) type Asked = Option<Arc<(Box<str>, Box<str>)>>;

/// A question to shards. `P` is the purpose of their answers.
#[derive(Debug)]
struct Gather<P> {
    number: u64,
    /// `None` where nobody waits for the answers any more.
    asker: Option<Asker>,
    asked: Asked,
    purpose: P,
    deadline_ms: u64,
    /// The shards that are asked, in ascending order.
    answers: Vec<(usize, Option<Answer>)>,
    missing: usize,
}

/// A question that all shards that were asked have answered.
#[derive(Debug)]
pub(super) struct Gathered<P> {
    /// The request that waits for the answers, if one does.
    pub(super) asker: Option<Asker>,
    pub(super) asked: Asked,
    pub(super) purpose: P,
    /// In the order of the shards.
    pub(super) answers: Vec<Answer>,
    pub(super) deadline_ms: u64,
}

/// A request that shards have left without an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub(super) exchange: ExchangeId,
    pub(super) asked: Asked,
    /// The names of those who have not answered.
    pub(super) missing: Vec<String>,
}

/// The questions of one shard that are open.
#[derive(Debug)]
pub(super) struct Gathers<P> {
    open: Vec<Gather<P>>,
    asked: u64,
}

impl<P> Default for Gathers<P> {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            asked: 0,
        }
    }
}

impl<P> Gathers<P> {
    /// How many are open.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Opens a question to some shards; returns its number.
    pub(super) fn open(
        &mut self,
        asker: Asker,
        purpose: P,
        shards: Range<usize>,
        deadline_ms: u64,
    ) -> u64 {
        self.asked += 1;
        self.open.push(Gather {
            number: self.asked,
            asker: Some(asker),
            asked: None,
            purpose,
            deadline_ms,
            missing: shards.len(),
            answers: shards.map(|shard| (shard, None)).collect(),
        });
        self.asked
    }

    /// Notes which request the latest question is for.
    pub(super) fn note_asked(&mut self, asked: &Asked) {
        if let Some(latest) = self.open.last_mut() {
            latest.asked.clone_from(asked);
        }
    }

    /// A shard has answered; returns the question if it was the last one.
    pub(super) fn answered(
        &mut self,
        number: u64,
        shard: usize,
        answer: Answer,
    ) -> Option<Gathered<P>> {
        let at = (self.open.iter()).position(|gather| gather.number == number)?;
        let gather = &mut self.open[at];
        let (_, place) = (gather.answers.iter_mut()).find(|(asked, _)| *asked == shard)?;
        if place.replace(answer).is_none() {
            gather.missing -= 1;
        }
        if gather.missing > 0 {
            return None;
        }
        let gather = self.open.swap_remove(at);
        Some(Gathered {
            asker: gather.asker,
            asked: gather.asked,
            purpose: gather.purpose,
            answers: (gather.answers.into_iter())
                .filter_map(|(_, answer)| answer)
                .collect(),
            deadline_ms: gather.deadline_ms,
        })
    }

    /// When the first question of a connection is given up, in milliseconds since the Unix epoch.
    pub(super) fn deadline_ms(&self, connection: ConnectionId) -> Option<u64> {
        let is_own = |gather: &&Gather<P>| gather.asker.is_some_and(|(own, _)| own == connection);
        let own = self.open.iter().filter(is_own);
        own.map(|gather| gather.deadline_ms).min()
    }

    /// Returns the overdue requests of a connection, which wait no longer. Of their questions those stay open whose
    /// purpose `outlasts` them. Each missing shard has a `name` by the purpose and its number.
    pub(super) fn overdue(
        &mut self,
        connection: ConnectionId,
        now_ms: u64,
        outlasts: impl Fn(&P) -> bool,
        name: impl Fn(&P, usize) -> String,
    ) -> Vec<Unanswered> {
        let mut overdue = Vec::new();
        self.open.retain_mut(|gather| {
            let asker = gather.asker.filter(|(own, _)| *own == connection);
            let Some((_, exchange)) = asker.filter(|_| gather.deadline_ms <= now_ms) else {
                return true;
            };
            let missing = (gather.answers.iter()).filter(|(_, answer)| answer.is_none());
            overdue.push(Unanswered {
                exchange,
                asked: gather.asked.clone(),
                missing: missing
                    .map(|(shard, _)| name(&gather.purpose, *shard))
                    .collect(),
            });
            gather.asker = None;
            outlasts(&gather.purpose)
        });
        overdue
    }

    /// A request of a connection waits no longer; `None` for all of them. Of their questions those stay open whose
    /// purpose `outlasts` them.
    pub(super) fn leave(
        &mut self,
        connection: ConnectionId,
        exchange: Option<ExchangeId>,
        outlasts: impl Fn(&P) -> bool,
    ) {
        self.open.retain_mut(|gather| {
            let leaves = gather.asker.is_some_and(|(own, asked)| {
                own == connection && exchange.is_none_or(|exchange| exchange == asked)
            });
            if leaves {
                gather.asker = None;
            }
            !leaves || outlasts(&gather.purpose)
        });
    }

    /// Takes a question back that no shard has got.
    pub(super) fn withdraw(&mut self, number: u64) {
        self.open.retain(|gather| gather.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ConnectionId = ConnectionId {
        slot: 1,
        generation: 1,
    };
    const FIRST: ExchangeId = ExchangeId(1);

    fn name<P>(_: &P, shard: usize) -> String {
        format!("shard {shard}")
    }

    #[test]
    fn the_last_answer_completes_a_question_and_a_second_of_the_same_shard_does_not() {
        let mut gathers = Gathers::default();
        let number = gathers.open((HERE, FIRST), (), 0..2, 100);
        assert!(gathers.answered(number, 1, Answer::Present).is_none());
        assert!(gathers.answered(number, 1, Answer::Present).is_none());
        assert!(
            gathers.answered(number, 7, Answer::Present).is_none(),
            "no such shard"
        );
        assert!(gathers.answered(number + 1, 0, Answer::Present).is_none());
        let gathered = gathers
            .answered(number, 0, Answer::Present)
            .expect("complete");
        assert_eq!(gathered.asker, Some((HERE, FIRST)));
        assert_eq!(gathered.answers.len(), 2);
        assert!(gathers.answered(number, 0, Answer::Present).is_none());
        assert_eq!(gathers.len(), 0);
    }

    #[test]
    fn what_waits_too_long_names_the_shards_that_are_missing() {
        let mut gathers = Gathers::default();
        let number = gathers.open((HERE, FIRST), (), 0..3, 100);
        gathers.open((HERE, ExchangeId(2)), (), 0..3, 200);
        gathers.answered(number, 1, Answer::Present);
        assert_eq!(gathers.deadline_ms(HERE), Some(100));
        assert!(gathers.overdue(HERE, 99, |()| false, name).is_empty());
        let missing = Unanswered {
            asked: None,
            exchange: FIRST,
            missing: vec!["shard 0".to_owned(), "shard 2".to_owned()],
        };
        assert_eq!(gathers.overdue(HERE, 100, |()| false, name), [missing]);
        assert_eq!(gathers.deadline_ms(HERE), Some(200));
        gathers.leave(HERE, Some(FIRST), |()| false);
        assert_eq!(gathers.len(), 1);
        gathers.leave(HERE, None, |()| false);
        assert_eq!(gathers.len(), 0);
    }

    #[test]
    fn what_outlasts_its_request_is_open_until_the_last_answer() {
        let mut gathers = Gathers::default();
        let is_change = |is_change: &bool| *is_change;
        let open = |gathers: &mut Gathers<bool>, exchange| {
            for is_change in [true, false] {
                gathers.open((HERE, ExchangeId(exchange)), is_change, 0..1, 100);
            }
        };
        open(&mut gathers, 1);
        assert_eq!(gathers.overdue(HERE, 100, is_change, name).len(), 2);
        assert!(
            gathers.overdue(HERE, 100, is_change, name).is_empty(),
            "once"
        );
        open(&mut gathers, 2);
        gathers.leave(HERE, Some(ExchangeId(2)), is_change);
        open(&mut gathers, 3);
        gathers.leave(HERE, None, is_change);
        assert_eq!(gathers.len(), 3);
        assert_eq!(gathers.deadline_ms(HERE), None);
        for number in [1, 3, 5] {
            let gathered = gathers.answered(number, 0, Answer::Present);
            let gathered = gathered.expect("complete");
            assert_eq!((gathered.asker, gathered.purpose), (None, true));
        }
        let number = gathers.open((HERE, FIRST), true, 0..1, 100);
        gathers.withdraw(number);
        assert_eq!(gathers.len(), 0);
    }
}
