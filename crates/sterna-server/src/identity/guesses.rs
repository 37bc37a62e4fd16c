//! The cost of wrong credentials for their sender, counted over all doors and shards.
//!
//! Three counts, each with a number of free failures that come back over time:
//!
//! - of one address for one user (or token): beyond it the address waits for the user. Each further failure doubles the
//!   wait;
//! - of one address for any users: the same, except for users who have come in from there;
//! - for one user, from any address: then checks from addresses where the user never came in wait until no others do.
//!   Nobody is locked out by that, so that nobody can lock a user out.
//!
//! An attempt that is turned away unseen is not a guess and counts nothing. All tables are bounded: where one is full,
//! the entry that was not asked for longest is forgotten.

use std::net::{IpAddr, Ipv6Addr};

use ring::hmac;

use crate::config::Guessing;
use crate::giving_way::{Owner, Table};

/// The owner of the credentials that an attempt shows.
#[derive(Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// A user.
    User(&'a str),
    /// The bearer of this token.
    Token(&'a [u8]),
}

/// The standing of an address with a subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// The subject has come in from there.
    Known,
    /// Nothing speaks against it.
    Unknown,
    /// The subject is being guessed at, and has not come in from there.
    Suspect,
    /// It has to wait.
    Slowed,
}

/// Where guesses come from: an IPv4 address, or the /64 of an IPv6 address, all of which belongs to one
/// host.
pub(crate) fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// A digest of a subject: the memory for a name does not depend on its length.
type SubjectId = [u8; 16];

/// Failures, some of which are forgotten by now.
#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    /// Thousandths of a failure.
    count_m: u64,
    counted_ms: u64,
    /// Until then nothing is looked at.
    until_ms: u64,
}

impl Failures {
    /// How many there are now: `free` of them are forgotten in `guessing.forget_after_s`.
    fn at(&self, limits: &Guessing, free: u32, now_ms: u64) -> u64 {
        let passed_ms = now_ms.saturating_sub(self.counted_ms);
        let forgotten_m =
            passed_ms.saturating_mul(free.into()) / u64::from(limits.forget_after_s.max(1));
        self.count_m.saturating_sub(forgotten_m)
    }

    /// Counts one more; true where a wait begins with it.
    fn add(&mut self, limits: &Guessing, free: u32, now_ms: u64) -> bool {
        self.count_m = self.at(limits, free, now_ms) + 1000;
        self.counted_ms = self.counted_ms.max(now_ms);
        let beyond = (self.count_m / 1000).saturating_sub(u64::from(free));
        if free == 0 || beyond == 0 {
            return false;
        }
        let doublings = (beyond - 1).min(31) as u32;
        let delay_ms = limits.first_delay_ms.saturating_mul(1 << doublings);
        self.until_ms = now_ms + delay_ms.min(limits.maximum_delay_ms);
        true
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Guesses {
    key: hmac::Key,
    of_address_for_subject: Table<(IpAddr, SubjectId), Failures>,
    of_address: Table<IpAddr, Failures>,
    for_subject: Table<SubjectId, Failures>,
    /// From where subjects have come in.
    known: Table<(IpAddr, SubjectId), ()>,
}

impl Guesses {
    /// Nobody has guessed yet; the key is for the digests of names.
    pub(super) fn new(key: hmac::Key) -> Self {
        Self {
            key,
            of_address_for_subject: Table::new(),
            of_address: Table::new(),
            for_subject: Table::new(),
            known: Table::new(),
        }
    }

    fn id(&self, subject: Subject<'_>) -> SubjectId {
        let mut context = hmac::Context::with_key(&self.key);
        match subject {
            Subject::User(user) => {
                context.update(b"u");
                context.update(user.as_bytes());
            }
            Subject::Token(token) => {
                context.update(b"t");
                context.update(token);
            }
        }
        let mut id = SubjectId::default();
        id.copy_from_slice(&context.sign().as_ref()[..16]);
        id
    }

    /// The standing of an attempt before it is looked at.
    pub(crate) fn standing(
        &self,
        limits: &Guessing,
        address: IpAddr,
        subject: Subject<'_>,
        now_ms: u64,
    ) -> Standing {
        let (origin, id) = (origin(address), self.id(subject));
        let waits = |failures: Option<&Failures>| {
            failures.is_some_and(|failures| failures.until_ms > now_ms)
        };
        let is_known = self.known.get(&(origin, id)).is_some();
        if waits(self.of_address_for_subject.get(&(origin, id)))
            || (!is_known && waits(self.of_address.get(&origin)))
        {
            return Standing::Slowed;
        }
        let is_guessed_at = self.is_guessed_at(limits, subject, now_ms);
        match (is_known, is_guessed_at) {
            (true, _) => Standing::Known,
            (false, true) => Standing::Suspect,
            (false, false) => Standing::Unknown,
        }
    }

    /// Whether a subject is being guessed at, from whatever addresses.
    pub(crate) fn is_guessed_at(
        &self,
        limits: &Guessing,
        subject: Subject<'_>,
        now_ms: u64,
    ) -> bool {
        let (free, id) = (limits.free_failures_per_user, self.id(subject));
        let failures = self.for_subject.get(&id).filter(|_| free > 0);
        failures.is_some_and(|failures| failures.at(limits, free, now_ms) > u64::from(free) * 1000)
    }

    /// Counts wrong credentials whose sender has not shown that it is at its address: against the subject alone.
    pub(crate) fn note_unproved(&mut self, limits: &Guessing, subject: Subject<'_>, now_ms: u64) {
        let id = self.id(subject);
        // Nobody has it: who is at the address may be anybody.
        let owner = Owner::of(None, None);
        let failures = self
            .for_subject
            .entry(owner, id, limits.maximum_entries as usize);
        failures.add(limits, limits.free_failures_per_user, now_ms);
    }

    /// Wrong credentials of an address that are not forgotten.
    pub(crate) fn failures(&self, limits: &Guessing, address: IpAddr, now_ms: u64) -> u64 {
        let free = limits.free_failures_per_address;
        let failures = self.of_address.get(&origin(address));
        failures.map_or(0, |failures| failures.at(limits, free, now_ms) / 1000)
    }

    /// Forgets the wrong credentials of an address as such.
    pub(crate) fn forgive(&mut self, address: IpAddr) {
        self.of_address.remove(&origin(address));
    }

    /// Counts an attempt that was looked at.
    pub(crate) fn note(
        &mut self,
        limits: &Guessing,
        address: IpAddr,
        subject: Subject<'_>,
        is_right: bool,
        now_ms: u64,
    ) {
        let (origin, id) = (origin(address), self.id(subject));
        let most = limits.maximum_entries as usize;
        let owner = Owner::of(None, Some(address));
        if is_right {
            self.of_address_for_subject.remove(&(origin, id));
            self.known.entry(owner, (origin, id), most);
            return;
        }
        let pair = self.of_address_for_subject.entry(owner, (origin, id), most);
        let waits_for_subject = pair.add(limits, limits.free_failures, now_ms);
        let pair_m = pair.count_m;
        let all = self.of_address.entry(owner, origin, most);
        let waits = all.add(limits, limits.free_failures_per_address, now_ms);
        let subject_failures = self.for_subject.entry(owner, id, most);
        subject_failures.add(limits, limits.free_failures_per_user, now_ms);
        // The count that the wait is for: that of the pair grows faster.
        let failures = if waits_for_subject {
            pair_m
        } else {
            all.count_m
        } / 1000;
        if waits || waits_for_subject {
            let user = match subject {
                Subject::User(user) => Some(user),
                Subject::Token(_) => None,
            };
            tracing::warn!(
                address = %origin,
                user,
                failures,
                "too many wrong credentials: the address has to wait"
            );
        }
    }

    /// Entries of the largest table.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.of_address_for_subject.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guesses() -> Guesses {
        Guesses::new(hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]))
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    const ANN: Subject<'static> = Subject::User("ann");

    /// How many of `attempts` wrong ones, one a second, are looked at.
    fn looked_at(guesses: &mut Guesses, limits: &Guessing, from: IpAddr, attempts: u64) -> u64 {
        (0..attempts)
            .filter(|second| {
                let now_ms = second * 1000;
                let is_free = guesses.standing(limits, from, ANN, now_ms) != Standing::Slowed;
                if is_free {
                    guesses.note(limits, from, ANN, false, now_ms);
                }
                is_free
            })
            .count() as u64
    }

    /// An address that guesses at many names makes the counts of no other forgotten.
    #[test]
    fn one_address_does_not_empty_the_tables() {
        let limits = Guessing {
            maximum_entries: 100,
            free_failures_per_address: 0,
            ..Guessing::default()
        };
        let mut guesses = guesses();
        let (here, there) = (address("192.0.2.1"), address("198.51.100.1"));
        guesses.note(&limits, here, Subject::User("bob"), true, 0);
        looked_at(&mut guesses, &limits, here, 60);
        assert_eq!(
            guesses.standing(&limits, here, ANN, 60_000),
            Standing::Slowed
        );
        for number in 0..10_000 {
            let name = format!("user-{number}");
            guesses.note(&limits, there, Subject::User(&name), false, 60_000);
        }
        assert_eq!(
            guesses.standing(&limits, here, ANN, 60_000),
            Standing::Slowed
        );
        let bob = guesses.standing(&limits, here, Subject::User("bob"), 60_000);
        assert_eq!(bob, Standing::Known);
        assert_eq!(guesses.len(), 100);
    }

    #[test]
    fn an_address_waits_longer_after_each_wrong_guess() {
        let limits = Guessing::default();
        let mut guesses = guesses();
        let there = address("192.0.2.1");
        let day = looked_at(&mut guesses, &limits, there, 24 * 3600);
        assert!((5..150).contains(&day), "{day} guesses in a day");
        assert_eq!(
            guesses.standing(&limits, there, ANN, 24 * 3_600_000),
            Standing::Slowed
        );
        // Elsewhere the user comes in, and there, too, when it has been quiet.
        let here = address("192.0.2.2");
        assert_eq!(
            guesses.standing(&limits, here, ANN, 24 * 3_600_000),
            Standing::Unknown
        );
        assert_eq!(
            guesses.standing(&limits, there, ANN, 25 * 3_600_000),
            Standing::Unknown
        );
    }

    #[test]
    fn a_right_password_forgives_the_wrong_ones_for_that_user() {
        let limits = Guessing::default();
        let mut guesses = guesses();
        let there = address("192.0.2.1");
        for round in 0..10 {
            for _ in 0..limits.free_failures {
                guesses.note(&limits, there, ANN, false, round);
            }
            assert_ne!(
                guesses.standing(&limits, there, ANN, round),
                Standing::Slowed
            );
            guesses.note(&limits, there, ANN, true, round);
        }
    }

    #[test]
    fn an_address_that_guesses_at_many_users_waits_and_known_neighbours_do_not() {
        let limits = Guessing::default();
        let mut guesses = guesses();
        let there = address("192.0.2.1");
        guesses.note(&limits, there, ANN, true, 0);
        for number in 0..=limits.free_failures_per_address {
            let user = format!("user-{number}");
            guesses.note(&limits, there, Subject::User(&user), false, 0);
        }
        let other = Subject::User("bob");
        assert_eq!(guesses.standing(&limits, there, other, 0), Standing::Slowed);
        assert_eq!(guesses.standing(&limits, there, ANN, 0), Standing::Known);
    }

    #[test]
    fn a_user_who_is_guessed_at_from_everywhere_is_not_locked_out() {
        let limits = Guessing::default();
        let mut guesses = guesses();
        let home = address("192.0.2.1");
        guesses.note(&limits, home, ANN, true, 0);
        for number in 0..1000_u32 {
            let from = IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number));
            guesses.note(&limits, from, ANN, false, 0);
        }
        assert_eq!(guesses.standing(&limits, home, ANN, 0), Standing::Known);
        let new = address("192.0.2.2");
        assert_eq!(guesses.standing(&limits, new, ANN, 0), Standing::Suspect);
        let later_ms = 100 * 3_600_000;
        assert_eq!(
            guesses.standing(&limits, new, ANN, later_ms),
            Standing::Unknown
        );
    }

    #[test]
    fn a_network_of_one_host_is_one_origin() {
        assert_eq!(
            origin(address("2001:db8::1")),
            origin(address("2001:db8::ffff:1"))
        );
        assert_ne!(
            origin(address("2001:db8::1")),
            origin(address("2001:db8:0:1::1"))
        );
        assert_eq!(origin(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }

    #[test]
    fn tables_are_bounded_and_keep_what_was_used_last() {
        let limits = Guessing {
            maximum_entries: 100,
            ..Guessing::default()
        };
        let mut guesses = guesses();
        let victim = address("192.0.2.1");
        for number in 0..10_000_u32 {
            let from = IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number));
            guesses.note(&limits, from, ANN, false, 0);
            assert!(guesses.len() <= 100);
            if number % 10 == 0 {
                guesses.note(&limits, victim, ANN, false, 0);
            }
        }
        assert_eq!(guesses.standing(&limits, victim, ANN, 0), Standing::Slowed);
    }
}
