//! The token file: one `user:digest` or `user:digest:expiry` per line, and the bearer tokens (RFC 6750)
//! that it knows.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::record::{MAX_USER_BYTES, prepared};

/// Most tokens in one file.
pub const MAX_TOKENS: usize = 1_000_000;

/// The line of a file whose last token was removed.
const EMPTY: &str = "# no tokens";

/// Random bytes in a token: a token cannot be guessed, so only a plain digest of it is kept.
pub const TOKEN_BYTES: usize = 32;

/// A token made of random bytes: base64url without padding.
#[must_use]
pub fn token_from_random(random: &[u8; TOKEN_BYTES]) -> String {
    URL_SAFE_NO_PAD.encode(random)
}

/// The SHA-256 of a token's text. Parses from and prints as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// The digest of a token.
    #[must_use]
    pub fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }
}

impl fmt::Display for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for TokenDigest {
    type Err = TokenFault;

    fn from_str(text: &str) -> Result<Self, TokenFault> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut digest = [0; 32];
        if pairs.len() != digest.len() || !rest.is_empty() {
            return Err(TokenFault::Digest);
        }
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(TokenFault::Digest);
        for (byte, &[high, low]) in digest.iter_mut().zip(pairs) {
            *byte = (digit(high)? << 4 | digit(low)?) as u8;
        }
        Ok(Self(digest))
    }
}

/// Fault of a line of a token file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenFault {
    /// The line is not `user:digest` or `user:digest:expiry`.
    Form,
    /// The user name is empty, too long, or has control characters, a colon, or a leading `#`.
    User,
    /// The digest is not 64 hexadecimal digits. A token itself never stands in the file.
    Digest,
    /// The expiry is not a number of seconds since 1970.
    Expiry,
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => "not of the form user:digest or user:digest:expiry",
            Self::User => {
                "the user name is empty, too long, or has control characters, a colon or a leading #"
            }
            Self::Digest => "the digest is not 64 hexadecimal digits",
            Self::Expiry => "the expiry is not a number of seconds since 1970",
        })
    }
}

impl std::error::Error for TokenFault {}

/// Why a token file was refused, and where. The text never contains any part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenFileError {
    /// The line (counted from 1) is wrong.
    Line {
        /// Line number, from 1.
        line: usize,
        /// The fault of the line.
        fault: TokenFault,
    },
    /// The line has a digest that stands in the file before.
    Duplicate {
        /// Line number, from 1.
        line: usize,
    },
    /// More than [`MAX_TOKENS`].
    TooMany,
}

impl fmt::Display for TokenFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { line, fault } => write!(f, "line {line}: {fault}"),
            Self::Duplicate { line } => {
                write!(f, "line {line}: this token stands in the file twice")
            }
            Self::TooMany => write!(f, "more than {MAX_TOKENS} tokens"),
        }
    }
}

impl std::error::Error for TokenFileError {}

/// A token as the file knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    /// User that the token proves.
    pub user: String,
    /// Digest of the token.
    pub digest: TokenDigest,
    /// End of validity, in seconds since the Unix epoch; `None` for a token without an end.
    pub expires_at_s: Option<u64>,
}

#[derive(Clone, Debug)]
enum Line {
    /// A comment or an empty line, kept as it is.
    Other(String),
    Token(TokenRecord),
    /// The place of a removed token.
    Removed,
}

/// Tokens, in the order of the file, with the file's comments. A user may have several.
///
/// The text form is UTF-8. Lines that start with `#` and empty lines are kept when the file is
/// written again, without carriage returns at their ends.
#[derive(Clone, Debug, Default)]
pub struct TokenFile {
    lines: Vec<Line>,
    /// Lines by their digests.
    tokens: HashMap<TokenDigest, usize>,
    /// See [`TokenFile::is_meant_empty`].
    says_empty: bool,
}

impl TokenFile {
    /// A file without tokens.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the text of a token file.
    ///
    /// # Errors
    /// If a line is neither a comment, nor empty, nor a token. Also if a token occurs twice, or the
    /// file has more than [`MAX_TOKENS`].
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
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
            let record = parse_line(content.trim_end())
                .map_err(|fault| TokenFileError::Line { line, fault })?;
            if file.tokens.len() == MAX_TOKENS {
                return Err(TokenFileError::TooMany);
            }
            if !file.insert(record) {
                return Err(TokenFileError::Duplicate { line });
            }
        }
        Ok(file)
    }

    /// Adds a token; false where it is there already.
    ///
    /// # Errors
    /// [`TokenFault::User`] for a user name that can't stand in the file.
    pub fn add(&mut self, record: TokenRecord) -> Result<bool, TokenFault> {
        check_user(&record.user)?;
        Ok(self.insert(record))
    }

    fn insert(&mut self, record: TokenRecord) -> bool {
        if self.tokens.contains_key(&record.digest) {
            return false;
        }
        self.tokens.insert(record.digest, self.lines.len());
        self.lines.push(Line::Token(record));
        true
    }

    /// Removes a user's tokens, or only those whose digests begin with some digits. Returns their
    /// number.
    pub fn remove(&mut self, user: &str, digest_prefix: &str) -> usize {
        let mut removed = 0;
        for line in &mut self.lines {
            if let Line::Token(record) = line
                && record.user == user
                && record.digest.to_string().starts_with(digest_prefix)
            {
                self.tokens.remove(&record.digest);
                *line = Line::Removed;
                removed += 1;
            }
        }
        removed
    }

    /// The user of a token, unless it has expired.
    #[must_use]
    pub fn user_of(&self, token: &[u8], now_s: u64) -> Option<&str> {
        Some(&*self.find(token, now_s)?.user)
    }

    /// The record of a token. `None` for an unknown or expired one; `now_s` is in seconds since the
    /// Unix epoch. The time of the search depends on the token only through its digest, which does
    /// not help to find one.
    #[must_use]
    pub fn find(&self, token: &[u8], now_s: u64) -> Option<&TokenRecord> {
        let digest = TokenDigest::of(token);
        let Line::Token(record) = &self.lines[*self.tokens.get(&digest)?] else {
            return None;
        };
        let is_same = bool::from(record.digest.0.ct_eq(&digest.0));
        let is_valid = record.expires_at_s.is_none_or(|at_s| now_s < at_s);
        (is_same && is_valid).then_some(record)
    }

    /// Whether a user has a token of this digest, also one that has expired.
    #[must_use]
    pub fn is_of(&self, user: &str, digest: &TokenDigest) -> bool {
        let line = self.tokens.get(digest).map(|at| &self.lines[*at]);
        matches!(line, Some(Line::Token(record)) if record.user == user)
    }

    /// Whether a token has a record, also one that has expired.
    #[must_use]
    pub fn has(&self, token: &[u8]) -> bool {
        self.tokens.contains_key(&TokenDigest::of(token))
    }

    /// The tokens, in the order of the file.
    pub fn tokens(&self) -> impl Iterator<Item = &TokenRecord> {
        self.lines.iter().filter_map(|line| match line {
            Line::Token(record) => Some(record),
            Line::Other(_) | Line::Removed => None,
        })
    }

    /// The number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens, and the file says so in a line of its own. Without that it may be one that is being
    /// written.
    #[must_use]
    pub fn is_meant_empty(&self) -> bool {
        self.is_empty() && self.says_empty
    }

    /// Whether there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

fn parse_line(content: &str) -> Result<TokenRecord, TokenFault> {
    let (user, rest) = content.split_once(':').ok_or(TokenFault::Form)?;
    let (digest, expiry) = match rest.split_once(':') {
        Some((digest, expiry)) => (digest, Some(expiry)),
        None => (rest, None),
    };
    check_user(user)?;
    let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
    let number = |text: &str| Some(text).filter(is_number)?.parse::<u64>().ok();
    Ok(TokenRecord {
        user: user.to_owned(),
        digest: digest.parse()?,
        expires_at_s: expiry
            .map(|expiry| number(expiry).ok_or(TokenFault::Expiry))
            .transpose()?,
    })
}

fn check_user(user: &str) -> Result<(), TokenFault> {
    if !prepared(user, MAX_USER_BYTES) || user.contains(':') || user.starts_with('#') {
        return Err(TokenFault::User);
    }
    Ok(())
}

impl fmt::Display for TokenRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.user, self.digest)?;
        match self.expires_at_s {
            Some(at_s) => write!(f, ":{at_s}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_removed = || (self.lines.iter()).any(|line| matches!(line, Line::Removed));
        if self.is_empty() && (self.says_empty || has_removed()) {
            writeln!(f, "{EMPTY}")?;
        }
        for line in &self.lines {
            match line {
                Line::Other(text) => writeln!(f, "{text}")?,
                Line::Token(record) => writeln!(f, "{record}")?,
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

    fn record(user: &str, token: &str, expires_at_s: Option<u64>) -> TokenRecord {
        TokenRecord {
            user: user.to_owned(),
            digest: TokenDigest::of(token.as_bytes()),
            expires_at_s,
        }
    }

    #[test]
    fn carriage_returns_at_the_ends_of_comments_go() {
        for text in ["# gates\r", "# gates\r\r\n", "# gates\r\n"] {
            let written = TokenFile::parse(text).unwrap().to_string();
            assert_eq!(written, "# gates\n", "{text:?}");
        }
    }

    #[test]
    fn tokens_are_known_until_they_expire_or_are_removed() {
        let mut file = TokenFile::parse("# devices\n\n").unwrap();
        for (user, token, expires_at_s) in [
            ("ann", "one", None),
            ("ann", "two", Some(100)),
            ("bob", "three", Some(200)),
        ] {
            assert!(file.add(record(user, token, expires_at_s)).unwrap());
        }
        assert!(
            !file.add(record("eve", "one", None)).unwrap(),
            "it is ann's"
        );
        let again = TokenFile::parse(&file.to_string()).unwrap();
        assert_eq!(again.to_string(), file.to_string());
        assert!(again.to_string().starts_with("# devices\n\nann:"));
        for file in [&file, &again] {
            assert_eq!(file.user_of(b"one", u64::MAX), Some("ann"));
            assert_eq!(file.user_of(b"two", 99), Some("ann"));
            assert_eq!(file.user_of(b"two", 100), None);
            assert_eq!(file.user_of(b"three", 199), Some("bob"));
            assert_eq!(file.user_of(b"four", 0), None);
            assert!(file.has(b"two") && !file.has(b"four"));
        }
        let second = TokenDigest::of(b"two").to_string();
        assert_eq!(file.remove("bob", &second), 0, "it is ann's");
        assert_eq!(file.remove("ann", &second[..8]), 1);
        assert_eq!((file.user_of(b"two", 0), file.has(b"two")), (None, false));
        assert_eq!(file.user_of(b"one", 0), Some("ann"));
        assert_eq!(file.remove("ann", ""), 1);
        assert_eq!((file.len(), file.tokens().count()), (1, 1));
    }

    #[test]
    fn the_digest_is_that_of_the_text() {
        // As printf abc | sha256sum says.
        assert_eq!(
            TokenDigest::of(b"abc").to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let token = token_from_random(&[0xfb; TOKEN_BYTES]);
        assert_eq!((token.len(), &token[..5]), (43, "-_v7-"));
    }

    #[test]
    fn faults_name_their_line_and_nothing_else() {
        let good = record("a", "secret", None).to_string();
        let digest = &good[2..];
        for (text, fault) in [
            ("plain".to_owned(), TokenFault::Form),
            ("a:secret".to_owned(), TokenFault::Digest),
            (format!("{good}0"), TokenFault::Digest),
            (format!("a:{}g", &digest[1..]), TokenFault::Digest),
            (format!(":{digest}"), TokenFault::User),
            (format!("{good}:"), TokenFault::Expiry),
            (format!("{good}:+1"), TokenFault::Expiry),
            (format!("{good}:1:2"), TokenFault::Expiry),
        ] {
            let error = TokenFile::parse(&format!("#\n{text}")).unwrap_err();
            assert_eq!(error, TokenFileError::Line { line: 2, fault }, "{text}");
            assert!(!error.to_string().contains("secret"));
        }
        let twice = TokenFile::parse(&format!("{good}\nb:{digest}"));
        assert_eq!(twice.unwrap_err(), TokenFileError::Duplicate { line: 2 });
        for user in ["", "#a", "a:b", "a\n"] {
            let refused = TokenFile::new().add(record(user, "x", None));
            assert_eq!(refused, Err(TokenFault::User));
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_what_is_read_is_written(text in "([a-c:#\n 0-9a-f]{0,80}|a:[0-9a-f]{64}(:[0-9]{1,3})?\n){0,4}") {
            if let Ok(file) = TokenFile::parse(&text) {
                let written = file.to_string();
                prop_assert_eq!(TokenFile::parse(&written).unwrap().to_string(), written);
            }
        }
    }
}
