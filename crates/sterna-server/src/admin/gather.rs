//! Questions to all shards, and their answers so far.

use sterna_http::ExchangeId;
use sterna_net::ConnectionId;

use crate::mail::admin::{Answer, Ask};
use crate::metrics::Figures;

/// A request that waits for all shards.
#[derive(Debug)]
struct Gather {
    number: u64,
    connection: ConnectionId,
    exchange: ExchangeId,
    ask: Ask,
    deadline_ms: u64,
    /// By shard.
    answers: Vec<Option<Answer>>,
    missing: usize,
}

/// A request for which all shards have answered.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) connection: ConnectionId,
    pub(super) exchange: ExchangeId,
    pub(super) ask: Ask,
    /// By shard; empty for [`Ask::Presence`].
    pub(super) figures: Vec<Figures>,
}

/// A request that shards have left without an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub(super) exchange: ExchangeId,
    /// Their numbers.
    pub(super) shards: Vec<usize>,
}

/// The questions of one shard that are open.
#[derive(Debug, Default)]
pub(super) struct Gathers {
    open: Vec<Gather>,
    asked: u64,
}

impl Gathers {
    /// How many are open.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Opens a question to all shards; returns its number.
    pub(super) fn open(
        &mut self,
        (connection, exchange): (ConnectionId, ExchangeId),
        ask: Ask,
        shards: usize,
        deadline_ms: u64,
    ) -> u64 {
        self.asked += 1;
        self.open.push(Gather {
            number: self.asked,
            connection,
            exchange,
            ask,
            deadline_ms,
            answers: (0..shards).map(|_| None).collect(),
            missing: shards,
        });
        self.asked
    }

    /// A shard has answered; returns the request if it was the last one.
    pub(super) fn answered(
        &mut self,
        number: u64,
        shard: usize,
        answer: Answer,
    ) -> Option<Gathered> {
        let at = (self.open.iter()).position(|gather| gather.number == number)?;
        let gather = &mut self.open[at];
        let place = gather.answers.get_mut(shard)?;
        if place.replace(answer).is_none() {
            gather.missing -= 1;
        }
        if gather.missing > 0 {
            return None;
        }
        let gather = self.open.swap_remove(at);
        let figures = gather.answers.into_iter().flatten();
        let figures = figures.filter_map(|answer| match answer {
            Answer::Figures(figures) => Some(*figures),
            Answer::Present => None,
        });
        Some(Gathered {
            connection: gather.connection,
            exchange: gather.exchange,
            ask: gather.ask,
            figures: figures.collect(),
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
        let is_overdue =
            |gather: &mut Gather| gather.connection == connection && gather.deadline_ms <= now_ms;
        let overdue = self.open.extract_if(.., is_overdue);
        overdue
            .map(|gather| {
                let answers = gather.answers.iter().enumerate();
                let missing = answers.filter(|(_, answer)| answer.is_none());
                Unanswered {
                    exchange: gather.exchange,
                    shards: missing.map(|(shard, _)| shard).collect(),
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
        let number = gathers.open((HERE, FIRST), Ask::Presence, 2, 100);
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
        assert_eq!((gathered.exchange, gathered.figures.len()), (FIRST, 0));
        assert!(gathers.answered(number, 0, Answer::Present).is_none());
        assert_eq!(gathers.len(), 0);
    }

    #[test]
    fn what_waits_too_long_names_the_shards_that_are_missing() {
        let mut gathers = Gathers::default();
        let number = gathers.open((HERE, FIRST), Ask::Presence, 3, 100);
        gathers.open((HERE, ExchangeId(2)), Ask::Presence, 3, 200);
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
