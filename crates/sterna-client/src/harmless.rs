//! Texts of a peer, as people may see them.

use std::fmt::{self, Write as _};

/// A text of a peer for people to read, without what a terminal or an editor would obey.
///
/// Control characters (line ends and U+0080 to U+009F among them) are escaped, and so is what turns the direction of
/// text or ends a line.
///
/// ```
/// # use sterna_client::Harmless;
/// assert_eq!(Harmless("a\x1b[2J\u{202e}b").to_string(), "a\\u{1b}[2J\\u{202e}b");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Harmless<T>(pub T);

impl<T: fmt::Display> fmt::Display for Harmless<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

/// Escapes what is written to it.
struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, order)) = rest.char_indices().find(|&(_, c)| is_obeyed(c)) {
            self.0.write_str(&rest[..at])?;
            if order.is_control() {
                write!(self.0, "{}", order.escape_debug())?;
            } else {
                write!(self.0, "{}", order.escape_unicode())?;
            }
            rest = &rest[at + order.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

/// Whether a character is one that [`Harmless`] escapes: a terminal or an editor would obey it, or show the text around
/// it otherwise.
#[must_use]
pub fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'
                | '\u{2029}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use sterna_mqtt::ReasonCode;

    use super::*;
    use crate::{ConnectError, Error, Refusal, amqp, http};

    const HOSTILE: &str =
        "é\x1b]0;x\x07\r\nsterna: all is well\u{9b}2J\u{202a}\u{202e}\u{2066}\u{2069}\u{2028}";

    #[test]
    fn letters_stay_and_orders_are_escaped() {
        assert_eq!(
            Harmless(HOSTILE).to_string(),
            "é\\u{1b}]0;x\\u{7}\\r\\nsterna: all is well\\u{9b}2J\
             \\u{202a}\\u{202e}\\u{2066}\\u{2069}\\u{2028}"
        );
        let plain = "naïve שלום 😀 \\n";
        assert_eq!(Harmless(plain).to_string(), plain);
    }

    #[test]
    fn no_error_shows_a_peers_orders() {
        let text = || HOSTILE.to_owned();
        let lost = || Arc::new(io::Error::other(HOSTILE));
        let refusal = || Refusal {
            reason: ReasonCode::NotAuthorized,
            return_code: None,
            text: Some(text()),
            server_reference: Some(text()),
        };
        let remote = || {
            Some(amqp::Remote {
                condition: text(),
                description: Some(text()),
            })
        };
        let problem = |detail, title| http::Problem {
            status: 400,
            name: text(),
            title,
            detail,
            retry_after: None,
        };
        let problems = [
            problem(Some(text()), None),
            problem(None, Some(text())),
            problem(None, None),
        ];
        let connects = [
            ConnectError::Socket(lost()),
            ConnectError::Handshake(text()),
            ConnectError::WebSocket(text()),
            ConnectError::Http(text()),
            ConnectError::Quic(text()),
            ConnectError::Resolve {
                host: text(),
                error: lost(),
            },
        ];
        let mut shown: Vec<String> = connects.iter().map(ToString::to_string).collect();
        shown.extend(problems.iter().map(ToString::to_string));
        shown.extend([
            Error::Refused(refusal()).to_string(),
            Error::Disconnected(refusal()).to_string(),
            Error::Rejected(refusal()).to_string(),
            Error::Lost(lost()).to_string(),
            amqp::Error::Closed(remote()).to_string(),
            amqp::Error::SessionEnded(remote()).to_string(),
            amqp::Error::Detached(remote()).to_string(),
            amqp::Error::Lost(lost()).to_string(),
            http::Error::Lost(lost()).to_string(),
            http::Error::Protocol(text()).to_string(),
            http::Error::Unexpected {
                status: 302,
                location: Some(text()),
            }
            .to_string(),
        ]);
        for text in shown {
            assert!(text.contains("\\u{202e}"), "it has the words: {text:?}");
            assert!(!text.chars().any(is_obeyed), "{text:?}");
        }
    }
}
