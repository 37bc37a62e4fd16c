//! The whole server in virtual time on a disk that loses, reorders and tears what is not synced. Its power is
//! cut at random moments, and after it the ledgers of its clients are compared.
//!
//! `cargo xtask powercut --cuts N --seed S` is the long form. It says what it wants by `STERNA_POWERCUT`.

mod amqp;
mod http;
mod moves;
mod mqtt;
mod report;
mod wills;
mod world;

use std::hash::{BuildHasher as _, Hasher as _};

use sterna_server::config::Durability;
use world::{Settings, run};

/// Set by `cargo xtask powercut`: the words `cuts=N seed=S durability=WORD early`, each at most once.
const SETTING: &str = "STERNA_POWERCUT";

/// Most power cuts of one run.
const MOST_CUTS: u32 = 1_000;

/// A number that is another one each time.
fn random() -> u64 {
    let state = std::collections::hash_map::RandomState::new();
    state.build_hasher().finish() >> 32
}

fn durability(word: &str) -> Durability {
    match word {
        "commit" => Durability::Commit,
        "interval" => Durability::Interval,
        _ => panic!("{SETTING}: durability is commit or interval, not `{word}`"),
    }
}

/// What the setting asks for.
fn asked(setting: &str) -> Settings {
    let mut asked = Settings::new(random(), 300, Durability::Commit);
    for word in setting.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "cuts" => asked.cuts = value.parse().expect("a number"),
            "seed" => asked.seed = value.parse().expect("a number"),
            "durability" => asked.durability = durability(value),
            "early" => asked.is_early = true,
            _ => panic!("{SETTING}: `{name}` is none of cuts, seed, durability, early"),
        }
    }
    asked
}

/// Divides a long form into runs with seeds that follow each other. A ledger knows all messages of its run, and a
/// comparison looks at each of them, so the time of a run grows with the square of its cuts.
fn divided(asked: &Settings) -> Vec<Settings> {
    let runs = asked.cuts.div_ceil(MOST_CUTS).max(1);
    let run = |number: u32| Settings {
        seed: asked.seed.wrapping_add(u64::from(number)),
        cuts: (asked.cuts - number * MOST_CUTS).min(MOST_CUTS),
        ..asked.clone()
    };
    (0..runs).map(run).collect()
}

/// The long form where it is asked for, otherwise a short one with a seed of its own.
#[test]
fn a_power_cut_breaks_no_promise() {
    let settings = match std::env::var(SETTING) {
        Ok(setting) => divided(&asked(&setting)),
        Err(_) => [Durability::Commit, Durability::Interval]
            .map(|durability| Settings::new(random(), 120, durability))
            .to_vec(),
    };
    let all: u32 = settings.iter().map(|settings| settings.cuts).sum();
    let mut cuts = 0;
    for settings in settings {
        let outcome = run(&settings);
        cuts += outcome.cuts;
        let report = outcome.report(&settings);
        println!("{report}{cuts} of {all} power cuts\n");
        assert!(outcome.is_clean(), "promises were broken\n{report}");
        assert!(
            outcome.is_busy(settings.cuts),
            "the run shows nothing\n{report}"
        );
    }
}

/// The test must notice acknowledgements that leave before the commit.
#[test]
fn an_acknowledgement_before_the_commit_is_caught() {
    let settings = Settings {
        is_early: true,
        ..Settings::new(1, 30, Durability::Commit)
    };
    let outcome = run(&settings);
    assert!(outcome.is_losing(), "{}", outcome.report(&settings));
}

#[test]
fn two_runs_from_one_seed_are_equal() {
    let settings = Settings::new(5, 10, Durability::Interval);
    let [first, second] = [(); 2].map(|()| run(&settings).report(&settings));
    assert_eq!(first, second);
}
