//! The section `bans`.

settings! {
    /// Bans by behaviour: [who may not come in](configuring.md#bans-by-behaviour) for a while. Both are off unless they
    /// are set.
    ///
    /// Bans by hand are made by the [admin API](admin.md#bans), which also lists and lifts all bans.
    #[derive(Eq)]
    pub struct Bans {
        /// Bans at a time, by hand and by behaviour. Beyond it, the oldest by behaviour of the user or address with most
        /// gives way. Where all are by hand, no other is taken.
        reload maximum_bans: u32 = 10_000, within 1..;
        /// Logins of one client of MQTT or AMQP within `flapping_window_s`; one more, and it is banned. 0: any number.
        reload flapping_logins: u32 = 0;
        /// Time in which logins are counted.
        reload flapping_window_s: u32 = 60, within 1..;
        /// Length of the ban of a client that flaps.
        reload flapping_ban_s: u32 = 300, within 1..;
        /// Clients whose logins are counted. Beyond it, of the clients of the user or address with most the least recent
        /// one is forgotten.
        reload maximum_flapping_entries: u32 = 100_000, within 1..;
        /// Wrong credentials of one address, for any users, with which it is banned. They are forgotten as `[guessing]`
        /// says. 0: any number.
        reload guessing_failures: u32 = 0;
        /// Length of the ban of an address that guesses.
        reload guessing_ban_s: u32 = 3_600, within 1..;
    }
}
