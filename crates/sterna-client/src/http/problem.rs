//! Problems: how a broker says that it refuses a request.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use crate::harmless::Harmless;

/// Before the name of a problem in its type.
const PREFIX: &str = "urn:sterna:problem:";
/// Longest text of a problem that is kept, in characters.
const MAX_TEXT: usize = 1_000;

/// A broker's refusal of a request (RFC 9457; `docs/http.md`, "Errors"). Its texts are as the broker sent them; only
/// `Display` makes them [`Harmless`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The status of the response.
    pub status: u16,
    /// The problem's name, for example `unauthenticated` or `queue-full`. Of another server's
    /// problem it is the whole type, and empty without a type.
    pub name: String,
    /// Summary of the kind of problem.
    pub title: Option<String>,
    /// Description of this case.
    pub detail: Option<String>,
    /// Time after which a repetition may succeed, if the broker gave one.
    pub retry_after: Option<Duration>,
}

/// A problem as JSON, of which each member may be anything.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    r#type: serde_json::Value,
    title: serde_json::Value,
    detail: serde_json::Value,
}

impl Problem {
    /// Reads the content of a response with this status. Content of another form says nothing.
    #[must_use]
    pub fn parse(status: u16, content: &[u8]) -> Self {
        let document: Document = serde_json::from_slice(content).unwrap_or_default();
        let text = |value: &serde_json::Value| {
            let text: String = value.as_str()?.chars().take(MAX_TEXT).collect();
            Some(text)
        };
        let name = text(&document.r#type).unwrap_or_default();
        let name = match name.strip_prefix(PREFIX) {
            Some(name) => name.to_owned(),
            None if name == "about:blank" => String::new(),
            None => name,
        };
        Self {
            status,
            name,
            title: text(&document.title),
            detail: text(&document.detail),
            retry_after: None,
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(self.status, 408 | 409 | 425 | 429 | 500..=504)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.detail.as_ref().or(self.title.as_ref()).map(Harmless);
        let name = (!self.name.is_empty()).then_some(Harmless(&self.name));
        match (what, name) {
            (Some(what), None) => write!(f, "{what} ({})", self.status),
            (Some(what), Some(name)) => write!(f, "{what} ({}, {name})", self.status),
            (None, None) => write!(f, "status {}", self.status),
            (None, Some(name)) => write!(f, "{name} ({})", self.status),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn problems_are_read_whatever_they_are() {
        let text = br#"{"type":"urn:sterna:problem:queue-full","title":"t","detail":"d","x":[1]}"#;
        let problem = Problem::parse(503, text);
        assert_eq!(problem.name, "queue-full");
        assert_eq!(problem.to_string(), "d (503, queue-full)");
        assert!(problem.is_temporary());
        let foreign = Problem::parse(404, br#"{"type":"about:blank","title":"Not Found"}"#);
        assert_eq!(foreign.to_string(), "Not Found (404)");
        let odd = Problem::parse(400, br#"{"type":7,"title":null}"#);
        assert_eq!(odd.to_string(), "status 400");
        assert_eq!(Problem::parse(500, b"<html>").to_string(), "status 500");
    }

    proptest! {
        #[test]
        fn reading_never_panics(content in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Problem::parse(500, &content).to_string();
        }
    }
}
