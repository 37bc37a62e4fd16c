//! The words for the log about a login that is refused: certificates, names that disagree, and bans.

use std::fmt;

use sterna_net::ConnectionId;
use sterna_tls::{CertificateSubject, escaped};
use x509_parser::time::ASN1Time;

use crate::bans::Ban;
use crate::context::Context;
use crate::identity::{Refusal, is_token};

/// Most characters of a name in such words.
const NAME_CHARACTERS: usize = 64;

/// A name that a client says, in quotes.
pub(crate) fn quoted(name: &str) -> String {
    format!("'{}'", escaped(name, NAME_CHARACTERS))
}

/// The ban in words for the log: of whom, why, and until when. They stay the same as long as it holds.
impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, by {}", self.banned, self.cause)?;
        if !self.reason.is_empty() {
            write!(f, ", because: {}", self.reason)?;
        }
        match self.until_ms {
            Some(until_ms) => {
                let end = i64::try_from(until_ms / 1000).unwrap_or(i64::MAX);
                write!(f, ", until {}", date(end))
            }
            None => f.write_str(", for ever"),
        }
    }
}

/// The command that ends the ban of a number.
pub(crate) fn command_that_lifts(number: u64) -> String {
    format!("sterna admin unban {number}")
}

/// Notes a ban, for the line about the refusal.
pub(crate) fn note_ban(cx: &Context<'_>, connection: ConnectionId, number: u64, ban: &Ban) {
    let words = format!("ban {number}: {ban}");
    let command = command_that_lifts(number);
    (cx.meters.last_refusal).note_ban(connection, words, command);
}

/// Notes two names that have to be the same one, for the line about the refusal.
pub(crate) fn note_disagreement(
    cx: &Context<'_>,
    connection: ConnectionId,
    [one, other]: [(&str, &str); 2],
) {
    // A token that stands where a name should is a secret.
    let name = |name: &str| {
        if is_token(name.as_bytes()) {
            "a token".to_owned()
        } else {
            quoted(name)
        }
    };
    let words = format!(
        "{} {}, and {} {}",
        one.0,
        name(one.1),
        other.0,
        name(other.1)
    );
    (cx.meters.last_refusal).note(connection, Refusal::Disagreement, words);
}

/// The subject of a certificate in words.
pub(crate) fn subject_of(chain: &[Box<[u8]>]) -> String {
    let subject = chain
        .first()
        .and_then(|first| CertificateSubject::of(first));
    subject.map_or_else(
        || "no certificate".to_owned(),
        |subject| subject.to_string(),
    )
}

/// The reason why what a client has shown in the handshake is no certificate of now.
pub(crate) fn untimely(chain: &[Box<[u8]>], now_ms: u64) -> String {
    let subject = chain
        .first()
        .and_then(|first| CertificateSubject::of(first));
    let Some(subject) = subject else {
        return "it is neither a certificate nor a key".to_owned();
    };
    let now = i64::try_from(now_ms / 1000).unwrap_or(i64::MAX);
    let times = subject.beyond(now).unwrap_or_default();
    format!("its times are not those of now: {subject}, {times}")
}

/// A moment in seconds since the Unix epoch, for people.
pub(crate) fn date(at_s: i64) -> String {
    let at = ASN1Time::from_timestamp(at_s).ok();
    let date = at.and_then(|at| at.to_rfc2822().ok());
    date.unwrap_or_else(|| at_s.to_string())
}
