//! A circuit breaker: a service that does not live is left alone for a while.
//!
//! Only questions without any answer count: an answer, of whatever status, proves that the service lives. A service that
//! cannot be reached is nobody's fault. One that falls silent may do so because of the question. So silence weighs by
//! the address that asked. It is left alone for everybody after silence to enough of them, and for one address after
//! silence to that one alone. The first to ask after a pause is none that was met with silence.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::giving_way::{Owner, Table};
use crate::identity::endpoint::Silence;
use crate::identity::guesses::origin;

/// Addresses that are remembered. Beyond it the one that was met with silence least lately is forgotten.
const MOST_SUSPECTS: usize = 1_024;

/// Failures in a row, and the time until which nothing is asked because of them.
#[derive(Debug)]
pub(super) struct Breaker {
    most: u32,
    pause: Duration,
    until: Option<Instant>,
    /// Connections in a row that could not be made.
    unreachable: u32,
    /// Addresses that were met with silence since the last answer.
    silenced: u32,
    /// Answers so far: tells rows of failures apart.
    answers: u64,
    suspects: Table<IpAddr, Suspect>,
}

/// An address that was met with silence.
#[derive(Default, Debug)]
struct Suspect {
    /// In a row.
    failures: u32,
    until: Option<Instant>,
    /// The answers that there had been when it was met with silence last.
    answers: Option<u64>,
}

impl Breaker {
    pub(super) fn new(most: u32, pause: Duration) -> Self {
        Self {
            most,
            pause,
            until: None,
            unreachable: 0,
            silenced: 0,
            answers: 0,
            suspects: Table::new(),
        }
    }

    /// Whether the service may be asked now for a client at an address. After a pause one question may, and others when
    /// it has been answered. For two pauses that is no question of an address that was met with silence.
    pub(super) fn admits(&mut self, address: IpAddr, now: Instant) -> bool {
        let pause = self.pause;
        let suspect = self.suspects.get_mut(&origin(address));
        if let Some(until) = self.until {
            let first = if suspect.is_some() {
                until + pause
            } else {
                until
            };
            if now < first {
                return false;
            }
            self.until = Some(now + pause);
            return true;
        }
        match suspect.and_then(|suspect| suspect.until.as_mut()) {
            None => true,
            Some(until) if now < *until => false,
            Some(until) => {
                *until = now + pause;
                true
            }
        }
    }

    /// Whether the service is left alone now, for everybody.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Notes an answer to an address; whether it ends a pause for everybody.
    pub(super) fn succeeded(&mut self, address: IpAddr) -> bool {
        self.suspects.remove(&origin(address));
        self.answers += 1;
        (self.unreachable, self.silenced) = (0, 0);
        self.until.take().is_some()
    }

    /// Notes that an address got no answer; whether it begins a pause for everybody.
    pub(super) fn failed(&mut self, address: IpAddr, silence: Silence, now: Instant) -> bool {
        match silence {
            Silence::Unreachable => self.unreachable = self.unreachable.saturating_add(1),
            Silence::Silent => self.suspect(origin(address), now),
        }
        if self.unreachable < self.most && self.silenced < self.most {
            return false;
        }
        let is_new = self.until.is_none();
        self.until = Some(now + self.pause);
        is_new
    }

    fn suspect(&mut self, address: IpAddr, now: Instant) {
        let owner = Owner::by(address);
        let suspect = self.suspects.entry(owner, address, MOST_SUSPECTS);
        if suspect.answers != Some(self.answers) {
            suspect.answers = Some(self.answers);
            self.silenced = self.silenced.saturating_add(1);
        }
        suspect.failures = suspect.failures.saturating_add(1);
        if suspect.failures >= self.most {
            suspect.until = Some(now + self.pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(host: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, host])
    }

    #[test]
    fn after_failures_there_is_a_pause_and_then_one_attempt() {
        let begin = Instant::now();
        let at = |seconds: u32| begin + seconds * SECOND;
        let mut breaker = Breaker::new(3, 5 * SECOND);
        let one = address(1);
        let failed =
            |breaker: &mut Breaker, seconds| breaker.failed(one, Silence::Unreachable, at(seconds));
        assert!(!failed(&mut breaker, 0) && !failed(&mut breaker, 0));
        assert!(!breaker.succeeded(one), "only those in a row count");
        assert!(!failed(&mut breaker, 1) && !failed(&mut breaker, 1));
        assert!(breaker.admits(one, at(1)));
        assert!(failed(&mut breaker, 1));
        assert!(!breaker.admits(one, at(5)));
        assert!(breaker.admits(one, at(6)), "one attempt");
        assert!(!breaker.admits(one, at(6)), "and no other");
        assert!(!failed(&mut breaker, 7), "it was said already");
        assert!(!breaker.admits(one, at(11)) && breaker.admits(one, at(12)));
        assert!(breaker.succeeded(one) && breaker.admits(one, at(12)));
    }

    #[test]
    fn one_address_that_is_met_with_silence_pauses_itself_alone() {
        let begin = Instant::now();
        let at = |seconds: u32| begin + seconds * SECOND;
        let mut breaker = Breaker::new(3, 5 * SECOND);
        let (liar, honest) = (address(1), address(2));
        for _ in 0..100 {
            assert!(!breaker.failed(liar, Silence::Silent, at(0)));
        }
        assert!(!breaker.is_paused(at(0)) && !breaker.admits(liar, at(4)));
        assert!(breaker.admits(honest, at(4)) && !breaker.succeeded(honest));
        // What others are answered does not help him, but the time does.
        assert!(!breaker.admits(liar, at(4)));
        assert!(breaker.admits(liar, at(5)) && !breaker.admits(liar, at(5)));
        assert!(!breaker.failed(liar, Silence::Silent, at(5)));
        assert!(!breaker.admits(liar, at(9)) && breaker.admits(liar, at(10)));
        breaker.succeeded(liar);
        assert!(breaker.admits(liar, at(10)) && breaker.admits(liar, at(10)));
    }

    #[test]
    fn silence_to_many_pauses_everybody_and_the_suspects_do_not_try_again() {
        let begin = Instant::now();
        let at = |seconds: u32| begin + seconds * SECOND;
        let mut breaker = Breaker::new(3, 5 * SECOND);
        assert!(!breaker.failed(address(1), Silence::Silent, at(0)));
        breaker.succeeded(address(9));
        assert!(!breaker.failed(address(2), Silence::Silent, at(0)));
        assert!(!breaker.failed(address(1), Silence::Silent, at(0)));
        assert!(breaker.failed(address(3), Silence::Silent, at(0)));
        assert!(!breaker.admits(address(9), at(4)));
        for suspect in 1..=3 {
            assert!(!breaker.admits(address(suspect), at(5)));
        }
        assert!(breaker.admits(address(9), at(5)), "nothing against it");
        assert!(breaker.succeeded(address(9)));
        // Where there is nobody else, one of them has to.
        for suspect in 1..=3 {
            breaker.failed(address(suspect), Silence::Silent, at(20));
        }
        assert!(!breaker.admits(address(1), at(29)) && breaker.admits(address(1), at(30)));
    }

    #[test]
    fn suspects_are_bounded() {
        let now = Instant::now();
        let mut breaker = Breaker::new(u32::MAX, SECOND);
        for number in 0..5_000_u32 {
            let address = IpAddr::from(number.to_be_bytes());
            breaker.failed(address, Silence::Silent, now + number * SECOND);
        }
        assert_eq!(breaker.suspects.len(), MOST_SUSPECTS);
        let latest = IpAddr::from(4_999_u32.to_be_bytes());
        assert!(breaker.suspects.get(&latest).is_some());
    }
}
