//! The message of PLAIN (RFC 4616).

use std::fmt;

/// Longest part of a PLAIN message that is taken, in bytes.
const MAX_PART_BYTES: usize = 4_096;

/// User name and password from a PLAIN message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PlainCredentials<'a> {
    /// User whose rights are requested; empty for the authenticated user.
    pub authorization_identity: &'a str,
    /// The user to be authenticated.
    pub user: &'a str,
    /// The password.
    pub password: &'a str,
}

impl fmt::Debug for PlainCredentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainCredentials")
            .field("authorization_identity", &self.authorization_identity)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl<'a> PlainCredentials<'a> {
    /// Reads an initial response: `[authzid] NUL authcid NUL passwd`. `None` if it is not that, or a
    /// part is longer than 4,096 bytes. RFC 4616 (section 2) has no empty name and no empty password; devices whose fields
    /// nobody has filled in send them, and the server decides what they are worth.
    #[must_use]
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(message).ok()?;
        let mut parts = text.split('\0');
        let (authorization_identity, user, password) =
            (parts.next()?, parts.next()?, parts.next()?);
        let fits = [authorization_identity, user, password]
            .iter()
            .all(|part| part.len() <= MAX_PART_BYTES);
        (parts.next().is_none() && fits).then_some(Self {
            authorization_identity,
            user,
            password,
        })
    }

    /// Writes the initial response.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        [self.authorization_identity, self.user, self.password]
            .join("\0")
            .into_bytes()
    }
}
