//! The password file: one `user:record` per line.

use std::collections::HashMap;
use std::fmt;

use crate::foreign::ForeignRecord;
use crate::record::{
    DEFAULT_ITERATIONS, DecoySecret, MAX_USER_BYTES, Record, RecordError, prepared,
};

/// Largest number of users in one file. A million records take about 300 MB of memory. Larger sets
/// of users belong in a database behind the server's webhook.
pub const MAX_USERS: usize = 1_000_000;

/// Why a password file was refused, and where. The text never contains any part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PasswordFileError {
    /// The line (counted from 1) holds no colon, or a user name or record that is not valid.
    Line {
        /// Line number, from 1.
        line: usize,
        /// The fault of the record.
        error: RecordError,
    },
    /// The line names a user for the second time.
    Duplicate {
        /// Line number, from 1.
        line: usize,
    },
    /// More than [`MAX_USERS`] users.
    TooMany,
}

impl fmt::Display for PasswordFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { line, error } => write!(f, "line {line}: {error}"),
            Self::Duplicate { line } => {
                write!(f, "line {line}: this user stands in the file twice")
            }
            Self::TooMany => write!(f, "more than {MAX_USERS} users"),
        }
    }
}

impl std::error::Error for PasswordFileError {}

#[derive(Clone, Debug)]
enum Line {
    /// A comment or an empty line, kept as it is.
    Other(String),
    User(String),
    /// The place of a removed user.
    Removed,
}

/// How a user's password is kept.
#[derive(Clone, Debug)]
enum Kept {
    Own(Record),
    Foreign(ForeignRecord),
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(record) => record.fmt(f),
            Self::Foreign(record) => record.fmt(f),
        }
    }
}

/// The line of a file whose last user was removed.
const EMPTY: &str = "# no users";

/// Users and their records, in the order of the file, with the file's comments.
///
/// The text form is UTF-8, one `user:record` per line. Lines that start with `#`, and empty lines,
/// are kept when the file is written again, without carriage returns at their ends. Records may be Mosquitto's
/// ([`ForeignRecord`]), which stay until they are replaced.
#[derive(Clone, Debug, Default)]
pub struct PasswordFile {
    lines: Vec<Line>,
    users: HashMap<String, (usize, Kept)>,
    /// A user with a record of Mosquitto's: each check of a password asks for one.
    some_foreign: Option<String>,
    /// See [`PasswordFile::is_meant_empty`].
    says_empty: bool,
}

impl PasswordFile {
    /// A file without users.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the text of a password file.
    ///
    /// # Errors
    /// If a line is neither a comment, nor empty, nor a valid `user:record`. Also if a user occurs
    /// twice, or the file has more than [`MAX_USERS`].
    pub fn parse(text: &str) -> Result<Self, PasswordFileError> {
        let mut file = Self::default();
        for (at, content) in text.lines().enumerate() {
            let line = at + 1;
            if content.trim_end() == EMPTY {
                file.says_empty = true;
                continue;
            }
            if content.trim().is_empty() || content.starts_with('#') {
                let kept = content.trim_end_matches('\r');
                file.lines.push(Line::Other(kept.to_owned()));
                continue;
            }
            let wrong = |error| PasswordFileError::Line { line, error };
            let (user, record) = content
                .split_once(':')
                .ok_or_else(|| wrong(RecordError::Form))?;
            let record = record.trim_end();
            let kept = if record.starts_with('$') {
                record.parse().map(Kept::Foreign)
            } else {
                record.parse().map(Kept::Own)
            };
            let kept = kept.map_err(wrong)?;
            if file.users.contains_key(user) {
                return Err(PasswordFileError::Duplicate { line });
            }
            if file.users.len() == MAX_USERS {
                return Err(PasswordFileError::TooMany);
            }
            file.keep(user, kept).map_err(wrong)?;
        }
        Ok(file)
    }

    /// Adds a user or replaces their record; true when the user is new.
    ///
    /// # Errors
    /// When the user name is empty, too long, or has control characters, a colon, or a leading `#`.
    pub fn set(&mut self, user: &str, record: Record) -> Result<bool, RecordError> {
        self.keep(user, Kept::Own(record))
    }

    fn keep(&mut self, user: &str, record: Kept) -> Result<bool, RecordError> {
        if !prepared(user, MAX_USER_BYTES) || user.contains(':') || user.starts_with('#') {
            return Err(RecordError::User);
        }
        if matches!(record, Kept::Foreign(_)) {
            self.some_foreign = Some(user.to_owned());
        } else {
            self.forget_foreign(user);
        }
        if let Some((_, old)) = self.users.get_mut(user) {
            *old = record;
            return Ok(false);
        }
        self.users
            .insert(user.to_owned(), (self.lines.len(), record));
        self.lines.push(Line::User(user.to_owned()));
        Ok(true)
    }

    /// Removes a user; true when there was one.
    pub fn remove(&mut self, user: &str) -> bool {
        let Some((at, _)) = self.users.remove(user) else {
            return false;
        };
        self.lines[at] = Line::Removed;
        self.forget_foreign(user);
        true
    }

    /// The record of a user; `None` also where it is Mosquitto's.
    #[must_use]
    pub fn get(&self, user: &str) -> Option<&Record> {
        match self.users.get(user) {
            Some((_, Kept::Own(record))) => Some(record),
            _ => None,
        }
    }

    /// The record of a user that Mosquitto has made.
    #[must_use]
    pub fn foreign(&self, user: &str) -> Option<&ForeignRecord> {
        match self.users.get(user) {
            Some((_, Kept::Foreign(record))) => Some(record),
            _ => None,
        }
    }

    /// Some record that Mosquitto has made: a check of it costs as much as one of the others, where they were made alike.
    #[must_use]
    pub fn any_foreign(&self) -> Option<&ForeignRecord> {
        self.foreign(self.some_foreign.as_deref()?)
    }

    /// Names another user with such a record, where this one was it.
    fn forget_foreign(&mut self, user: &str) {
        if self.some_foreign.as_deref() == Some(user) {
            let mut users = self.users.iter();
            let another = users.find(|(name, (_, kept))| {
                matches!(kept, Kept::Foreign(_)) && name.as_str() != user
            });
            self.some_foreign = another.map(|(name, _)| name.clone());
        }
    }

    /// Whether there is a user of this name, with a record of any form.
    #[must_use]
    pub fn has(&self, user: &str) -> bool {
        self.users.contains_key(user)
    }

    /// The text of a user's record, of any form.
    #[must_use]
    pub fn record_text(&self, user: &str) -> Option<String> {
        self.users.get(user).map(|(_, kept)| kept.to_string())
    }

    /// The record of a user. For an unknown user, and one with a record of Mosquitto's, it is a decoy, which looks the
    /// same from outside.
    #[must_use]
    pub fn get_or_decoy(&self, user: &str, secret: &DecoySecret) -> Record {
        // The decoy is made in either case, so that the time for it tells nothing.
        let decoy = secret.record(user, self.usual_iterations());
        self.get(user).cloned().unwrap_or(decoy)
    }

    /// The number of users.
    #[must_use]
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Whether there are no users, and the file says so in a line of its own. Without that it may be one that is being
    /// written.
    #[must_use]
    pub fn is_meant_empty(&self) -> bool {
        self.is_empty() && self.says_empty
    }

    /// Whether there are no users.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// The users, in the order of the file.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| match line {
            Line::User(user) => Some(user.as_str()),
            Line::Other(_) | Line::Removed => None,
        })
    }

    /// The iterations of the first user with a record of this crate's, which a decoy copies; files are usually made with one
    /// setting.
    fn usual_iterations(&self) -> u32 {
        self.users()
            .find_map(|user| self.get(user))
            .map_or(DEFAULT_ITERATIONS, Record::iterations)
    }
}

impl fmt::Display for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_removed = || (self.lines.iter()).any(|line| matches!(line, Line::Removed));
        if self.is_empty() && (self.says_empty || has_removed()) {
            writeln!(f, "{EMPTY}")?;
        }
        for line in &self.lines {
            match line {
                Line::Other(text) => writeln!(f, "{text}")?,
                Line::User(user) => {
                    if let Some((_, kept)) = self.users.get(user) {
                        writeln!(f, "{user}:{kept}")?;
                    }
                }
                Line::Removed => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(password: &str) -> Record {
        Record::from_password(password, &[3; 16], 5000).unwrap()
    }

    #[test]
    fn text_and_comments_survive() {
        let mut file = PasswordFile::parse("# devices\n\n").unwrap();
        assert!(file.set("sensor", record("one")).unwrap());
        assert!(file.set("gate", record("two")).unwrap());
        assert!(
            !file.set("sensor", record("three")).unwrap(),
            "replaced, not added"
        );
        let text = file.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[..2], ["# devices", ""]);
        assert!(lines[2].starts_with("sensor:SCRAM-SHA-256$5000:"));

        let mut again = PasswordFile::parse(&text).unwrap();
        assert_eq!(again.to_string(), text);
        assert_eq!(again.users().collect::<Vec<_>>(), ["sensor", "gate"]);
        assert!(again.get("sensor").unwrap().verify_password(b"three"));
        assert!(again.remove("sensor"));
        assert!(!again.remove("sensor"));
        assert_eq!((again.len(), again.is_empty()), (1, false));
        assert!(!again.to_string().contains("sensor"));
    }

    /// Made by `mosquitto_passwd` 2.0 for the password `pass word`.
    const FOREIGN: &str = "$7$101$TW8yJOn8lwmx+LAH$mwDPYDx8osXJwYsxCEKHamrwAUtxS3jEr2ENsE43jWZkN55wqwGBXPzcPYT2/QkYhu6QAYB161OzABMU8LCepA==";

    #[test]
    fn a_record_of_mosquitto_stays_until_it_is_replaced() {
        let text = format!("ann:{FOREIGN}\n");
        let mut file = PasswordFile::parse(&text).unwrap();
        assert_eq!(file.to_string(), text);
        assert!(file.has("ann") && file.get("ann").is_none());
        assert_eq!(file.record_text("ann").as_deref(), Some(FOREIGN));
        assert!(file.foreign("ann").unwrap().verify_password(b"pass word"));
        let secret = DecoySecret::new([5; 32]);
        assert!(
            file.get_or_decoy("ann", &secret).is_decoy(),
            "nothing for SCRAM"
        );
        assert!(!file.set("ann", record("pass word")).unwrap());
        assert!(file.foreign("ann").is_none() && file.get("ann").is_some());
        assert!(file.any_foreign().is_none());
        assert!(file.to_string().starts_with("ann:SCRAM-SHA-256$"));
    }

    #[test]
    fn carriage_returns_at_the_ends_of_comments_go() {
        for text in ["# devices\r", "# devices\r\r\n", "# devices\r\n"] {
            let written = PasswordFile::parse(text).unwrap().to_string();
            assert_eq!(written, "# devices\n", "{text:?}");
        }
    }

    #[test]
    fn faults_name_their_line_and_nothing_else() {
        let good = format!("a:{}", record("x"));
        for (text, error) in [
            (
                "#\nplain".to_owned(),
                PasswordFileError::Line {
                    line: 2,
                    error: RecordError::Form,
                },
            ),
            (
                "a:secret".to_owned(),
                PasswordFileError::Line {
                    line: 1,
                    error: RecordError::Form,
                },
            ),
            (
                good.replacen('a', "", 1),
                PasswordFileError::Line {
                    line: 1,
                    error: RecordError::User,
                },
            ),
            (
                format!("{good}\n{good}"),
                PasswordFileError::Duplicate { line: 2 },
            ),
        ] {
            let refused = PasswordFile::parse(&text).unwrap_err();
            assert_eq!(refused, error);
            assert!(!refused.to_string().contains("secret"));
        }
        assert_eq!(
            PasswordFile::new().set("#a", record("x")),
            Err(RecordError::User)
        );
        assert_eq!(
            PasswordFile::new().set("a\n", record("x")),
            Err(RecordError::User)
        );
    }

    #[test]
    fn unknown_users_look_like_known_ones() {
        let mut file = PasswordFile::new();
        file.set("sensor", record("one")).unwrap();
        let secret = DecoySecret::new([5; 32]);
        let known = file.get_or_decoy("sensor", &secret);
        let unknown = file.get_or_decoy("nobody", &secret);
        assert!(!known.is_decoy());
        assert!(unknown.is_decoy());
        assert_eq!(known.iterations(), unknown.iterations());
        assert_eq!(known.salt().len(), unknown.salt().len());
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "[a-c:#$\n =SCRAM0-9-]{0,200}") {
            if let Ok(file) = PasswordFile::parse(&text) {
                prop_assert_eq!(PasswordFile::parse(&file.to_string()).unwrap().len(), file.len());
            }
        }
    }
}
