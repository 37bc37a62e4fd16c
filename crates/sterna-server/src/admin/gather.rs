//! Questions to shards, and their answers so far.

use std::ops::Range;

use sterna_http::ExchangeId;
use sterna_net::ConnectionId;

use crate::mail::admin::Answer;

/// A request that waits for shards. `P` is the purpose of their answers.
#[derive(Debug)]
struct Gather<P> {
    number: u64,
    connection: ConnectionId,
    exchange: ExchangeId,
    purpose: P,
    deadline_ms: u64,
    /// The shards that are asked, in ascending order.
    answers: Vec<(usize, Option<Answer>)>,
    missing: usize,
}

/// A request for which all shards that were asked have answered.
#[derive(Debug)]
pub(super) struct Gathered<P> {
    pub(super) connection: ConnectionId,
    pub(super) exchange: ExchangeId,
    pub(super) purpose: P,
    /// In the order of the shards.
    pub(super) answers: Vec<Answer>,
    pub(super) deadline_ms: u64,
}

/// A request that shards have left without an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub(super) exchange: ExchangeId,
    /// Their numbers.
    pub(super) shards: Vec<usize>,
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
        (connection, exchange): (ConnectionId, ExchangeId),
        purpose: P,
        shards: Range<usize>,
        deadline_ms: u64,
    ) -> u64 {
        self.asked += 1;
        self.open.push(Gather {
            number: self.asked,
            connection,
            exchange,
            purpose,
            deadline_ms,
            missing: shards.len(),
            answers: shards.map(|shard| (shard, None)).collect(),
        });
        self.asked
    }

    /// A shard has answered; returns the request if it was the last one.
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
            connection: gather.connection,
            exchange: gather.exchange,
            purpose: gather.purpose,
            answers: (gather.answers.into_iter())
                .filter_map(|(_, answer)| answer)
                .collect(),
            deadline_ms: gather.deadline_ms,
        })
    }

    /// When the first question of a connection is given up, in milliseconds since the Unix epoch.
    pub(super) fn deadline_ms(&self, connection: ConnectionId) -> Option<u64> {
        let own = self.open.iter();
        let own = own.filter(|gather| gather.connection == connection);
        own.map(|gather| gather.deadline_ms).min()
    }

    /// Removes and returns the overdue requests of a connection.
    pub(super) fn overdue(&mut self, connection: ConnectionId, now_ms: u64) -> Vec<Unanswered> {
        let is_overdue = |gather: &mut Gather<P>| {
            gather.connection == connection && gather.deadline_ms <= now_ms
        };
        let overdue = self.open.extract_if(.., is_overdue);
        overdue
            .map(|gather| {
                let missing = (gather.answers.iter()).filter(|(_, answer)| answer.is_none());
                Unanswered {
                    exchange: gather.exchange,
                    shards: missing.map(|(shard, _)| *shard).collect(),
                }
            })
            .collect()
    }

    /// Forgets a request of a connection; `None` for all of them.
    pub(super) fn forget(&mut self, connection: ConnectionId, exchange: Option<ExchangeId>) {
        self.open.retain(|gather| {
            gather.connection != connection
                || exchange.is_some_and(|exchange| gather.exchange != exchange)
        });
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
        assert_eq!((gathered.exchange, gathered.answers.len()), (FIRST, 2));
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
        assert!(gathers.overdue(HERE, 99).is_empty());
        let missing = Unanswered {
            exchange: FIRST,
            shards: vec![0, 2],
        };
        assert_eq!(gathers.overdue(HERE, 100), [missing]);
        assert_eq!(gathers.deadline_ms(HERE), Some(200));
        gathers.forget(HERE, Some(FIRST));
        assert_eq!(gathers.len(), 1);
        gathers.forget(HERE, None);
        assert_eq!(gathers.len(), 0);
    }
}
