//! Passwords, the cost of wrong ones, and the users of client identifiers.

settings! {
    /// Records and checks of passwords. [Users](configuring.md#users) says what a check costs.
    #[derive(Eq)]
    pub struct Passwords {
        /// Iterations of PBKDF2 in a record. A record with fewer is raised in the password file when its user logs in
        /// with a plain password. If the file cannot be replaced, the log says so once. 0: none is raised. `sterna
        /// passwd --iterations` makes a record with another number.
        reload iterations: u32 = sterna_auth::DEFAULT_ITERATIONS,
            within u64::from(sterna_auth::MIN_ITERATIONS)..=u64::from(sterna_auth::MAX_ITERATIONS), or 0;
        /// Threads that check passwords. More of them serve a rush of logins sooner.
        restart threads: u16 = 1, within 1..;
        /// Longest time that a password waits to be checked. Then its client is told that the broker is busy.
        reload timeout_ms: u64 = 10_000, within 1..;
        /// Passwords that wait to be checked. Above it, waiting checks of the busiest address are dropped.
        reload maximum_waiting: u32 = 4096, within 1..;
        /// Users whose right password is remembered in memory, as a keyed digest. Their clients then wait for no check
        /// when they come back. 0: none.
        reload maximum_remembered: u32 = 10_000;
    }
}

settings! {
    /// Limits for wrong passwords, SCRAM proofs and tokens. They are counted over all protocols and shards.
    ///
    /// An IPv6 address counts with its /64. [Wrong credentials](configuring.md#wrong-credentials) says what a client
    /// notices.
    #[derive(Eq)]
    pub struct Guessing {
        /// Wrong attempts of one address for one user that cost no wait. After each further one, the address has to
        /// wait for that user. 0: any number.
        reload free_failures: u32 = 5;
        /// Wrong attempts of one address for any users that cost no wait. After each further one, the address has to
        /// wait for all users that have not logged in from there. 0: any number, for example if all clients come
        /// through one proxy.
        reload free_failures_per_address: u32 = 100;
        /// Wrong attempts for one user from any addresses. Beyond them, that user's checks go last, except from
        /// addresses where the user has logged in. 0: any number.
        reload free_failures_per_user: u32 = 100;
        /// The first wait. Each further failure doubles it.
        reload first_delay_ms: u64 = 1_000;
        /// The longest wait.
        reload maximum_delay_ms: u64 = 900_000;
        /// Time after which as many failures as are free are forgotten.
        reload forget_after_s: u32 = 3_600, within 1..;
        /// Entries of each table: addresses, users, and pairs of them. Beyond it, of the entries of the address with most
        /// the least recently used one is forgotten.
        reload maximum_entries: u32 = 100_000, within 1..;
    }
}

settings! {
    /// Client identifiers that users may have. If there is an entry, no client may have an identifier without one.
    ///
    /// [Who a client is](configuring.md#who-a-client-is) has an example.
    #[derive(Eq)]
    pub struct ClientIds {
        /// User names, as in a rule: `*` is every client with a name.
        reload users: Vec<String>, said "every client";
        /// Client identifiers. `%u` is the user's name, and `*` at the end any text.
        reload patterns: Vec<String>, said "required";
    }
}

/// The faults of these settings, each a sentence that names one setting.
pub(super) fn problems(client_ids: &[ClientIds]) -> Vec<String> {
    let empty = (1..)
        .zip(client_ids)
        .filter(|(_, list)| list.patterns.is_empty());
    let problem = |(number, _)| {
        format!("authentication.client_ids {number}: it has no patterns, and so gives nothing")
    };
    empty.map(problem).collect()
}
