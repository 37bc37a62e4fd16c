//! A broker's description of a session.

use serde::Deserialize;

/// A session, as `GET /v1/sessions/NAME` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Session {
    /// Its name.
    pub session: String,
    /// Whether a client listens.
    pub connected: bool,
    /// Messages that wait to be sent; `None` while the broker has yet to read its log for the session.
    pub pending: Option<u64>,
    /// Their bytes; `None` as above.
    pub pending_bytes: Option<u64>,
    /// Messages that were sent and are not acknowledged.
    pub unacknowledged: u64,
    /// Its topic filters.
    pub filters: Vec<String>,
}

impl Session {
    /// Reads the content of the response; members that are not known are passed over.
    ///
    /// # Errors
    /// When it is no such JSON, with what is wrong.
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
        let session = Session::parse(text).unwrap();
        assert!(session.connected);
        assert_eq!((session.pending, session.unacknowledged), (Some(3), 2));
        assert_eq!(session.filters, ["x/#"]);
        let unread = Session::parse(br#"{"session":"a","pending":null,"pending_bytes":null}"#);
        assert_eq!(unread.unwrap().pending, None);
        assert!(Session::parse(b"[").is_err());
        assert!(Session::parse(br#"{"pending":-1}"#).is_err());
    }

    proptest! {
        #[test]
        fn reading_never_panics(content in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Session::parse(&content);
        }
    }
}
