//! The section `bans`.

use serde::{Deserialize, Serialize};

/// Bans by behaviour. The admin API makes bans by hand.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bans {
    /// Most bans at a time, by hand and by behaviour.
    pub maximum_bans: u32,
    /// Logins of one client within `flapping_window_s` that are free; one more and it is banned. 0: any number.
    pub flapping_logins: u32,
    /// See `flapping_logins`, in seconds.
    pub flapping_window_s: u32,
    /// Length of the ban of a client that flaps, in seconds.
    pub flapping_ban_s: u32,
    /// Clients whose logins are counted; the one that has not come for longest is forgotten.
    pub maximum_flapping_entries: u32,
    /// Wrong credentials of one address, for any users, with which it is banned. They are forgotten as
    /// `guessing` says. 0: any number.
    pub guessing_failures: u32,
    /// Length of the ban of an address that guesses, in seconds.
    pub guessing_ban_s: u32,
}

impl Default for Bans {
    fn default() -> Self {
        Self {
            maximum_bans: 10_000,
            flapping_logins: 0,
            flapping_window_s: 60,
            flapping_ban_s: 300,
            maximum_flapping_entries: 100_000,
            guessing_failures: 0,
            guessing_ban_s: 3_600,
        }
    }
}

impl Bans {
    /// A sentence for each fault.
    pub(super) fn problems(&self) -> Vec<String> {
        let least = [
            ("maximum_bans", self.maximum_bans),
            ("flapping_window_s", self.flapping_window_s),
            ("flapping_ban_s", self.flapping_ban_s),
            ("maximum_flapping_entries", self.maximum_flapping_entries),
            ("guessing_ban_s", self.guessing_ban_s),
        ];
        let faults = least.into_iter().filter(|(_, value)| *value == 0);
        faults
            .map(|(name, _)| format!("bans.{name} is at least 1"))
            .collect()
    }
}
