//! Which seeds a simulation or a model test plays. Include this module with `#[path]`.
//!
//! Without a word from outside: the test's fixed seeds, and one that is random. `STERNA_SEEDS` says
//! otherwise: `17` plays that one alone, `17+100` a hundred from there on, and `random+100` a hundred
//! from a random one on, which is the nightly form. A seed that fails is printed with the words that
//! play it again.

use std::hash::{BuildHasher as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The setting.
const SETTING: &str = "STERNA_SEEDS";

/// Plays a test with each of its seeds.
///
/// # Panics
///
/// Where a run does, or the setting is none of its forms.
pub(crate) fn play(test: &str, fixed: std::ops::Range<u64>, run: impl Fn(u64)) {
    let setting = std::env::var(SETTING).ok();
    let seeds: Vec<u64> = match setting.as_deref() {
        None => fixed.chain([random()]).collect(),
        Some(setting) => {
            let (first, count) = setting.split_once('+').unwrap_or((setting, "1"));
            let first = if first == "random" {
                random()
            } else {
                first
                    .parse()
                    .expect("STERNA_SEEDS is N, N+COUNT or random+COUNT")
            };
            let count: u64 = count.parse().expect("STERNA_SEEDS ends with a count");
            (0..count).map(|at| first.wrapping_add(at)).collect()
        }
    };
    let last = seeds.last().copied().unwrap_or(0);
    println!("{test}: {} seeds, the last is {last}", seeds.len());
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!("{test} fails; {SETTING}={seed} plays it again");
            resume_unwind(panic);
        }
    }
}

/// A number that is another one each time.
fn random() -> u64 {
    let state = std::collections::hash_map::RandomState::new();
    // Small enough that a count can be added and that it is read and typed easily.
    state.build_hasher().finish() >> 16
}
