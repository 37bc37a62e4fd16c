//! A broker's description of a session.

use serde::Deserialize;

/// A session, as `GET /v1/sessions/NAME` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SessionDescription {
    /// Name of the session.
    pub session: String,
    /// Whether a client listens.
    pub connected: bool,
    /// Messages that wait to be sent; `None` while the broker has yet to read its log for the session.
    pub pending: Option<u64>,
    /// Their bytes; `None` as above.
    pub pending_bytes: Option<u64>,
    /// Messages that were sent and are not acknowledged.
    pub unacknowledged: u64,
    /// Topic filters of the session.
    pub filters: Vec<String>,
}

impl SessionDescription {
    /// Reads the content of the response, in JSON. Unknown members are ignored.
    ///
    /// # Errors
    /// When the content is not the JSON of a session. The text names the fault.
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(content).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_session_is_read() {
        let text = br#"{"session":"a","connected":true,"pending":3,"pending_bytes":9,
            "unacknowledged":2,"filters":["x/#"],"later":{}}"#;
        let session = SessionDescription::parse(text).unwrap();
        assert!(session.connected);
        assert_eq!((session.pending, session.unacknowledged), (Some(3), 2));
        assert_eq!(session.filters, ["x/#"]);
        let unread =
            SessionDescription::parse(br#"{"session":"a","pending":null,"pending_bytes":null}"#);
        assert_eq!(unread.unwrap().pending, None);
        assert!(SessionDescription::parse(b"[").is_err());
        assert!(SessionDescription::parse(br#"{"pending":-1}"#).is_err());
    }

    proptest! {
        #[test]
        fn reading_never_panics(content in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = SessionDescription::parse(&content);
        }
    }
}
