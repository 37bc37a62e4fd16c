//! Errors as problem details (RFC 9457).

use std::borrow::Cow;

use bytes::{BufMut as _, BytesMut};

use super::format::json;

/// The prefix of every `type`.
const TYPE_PREFIX: &str = "urn:sterna:problem:";

/// Seconds after which to try again where the reason passes by itself.
const RETRY_AFTER_S: u32 = 1;

macro_rules! problem_kinds {
    ($($(#[$comment:meta])* $kind:ident = $status:literal, $name:literal, $title:literal;)*) => {
        /// The kind of a problem: its `type`.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum ProblemKind {
            $($(#[$comment])* $kind,)*
        }

        impl ProblemKind {
            /// All of them, in the order of the documentation.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// The status of the response.
            pub(crate) const fn status(self) -> u16 {
                match self {
                    $(Self::$kind => $status,)*
                }
            }

            /// The last part of the `type`.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// The same for every problem of its type.
            pub(crate) const fn title(self) -> &'static str {
                match self {
                    $(Self::$kind => $title,)*
                }
            }
        }
    };
}

problem_kinds! {
    InvalidTopic = 400, "invalid-topic", "Invalid topic";
    InvalidFilter = 400, "invalid-filter", "Invalid filter";
    /// A parameter of the query.
    InvalidParameter = 400, "invalid-parameter", "Invalid parameter";
    InvalidField = 400, "invalid-field", "Invalid field";
    InvalidContent = 400, "invalid-content", "Invalid content";
    /// With `WWW-Authenticate`.
    Unauthenticated = 401, "unauthenticated", "Not authenticated";
    /// By a rule.
    Forbidden = 403, "forbidden", "Not allowed";
    /// A page of another origin.
    Origin = 403, "origin", "Not allowed to this origin";
    NoTopic = 404, "no-topic", "No such topic";
    NoSession = 404, "no-session", "No such session";
    /// Of the admin API.
    NoClient = 404, "no-client", "No such client";
    /// Of the admin API.
    NoBan = 404, "no-ban", "No such ban";
    /// Of the admin API.
    NoQueue = 404, "no-queue", "No such queue";
    /// Of the admin API: the cluster has no node of this name.
    NoNode = 404, "no-node", "No such node";
    NoResource = 404, "no-resource", "No such resource";
    NoRetainedMessage = 404, "no-retained-message", "No retained message";
    /// With `Allow`.
    Method = 405, "method", "Method not allowed";
    NotAcceptable = 406, "not-acceptable", "No acceptable form";
    /// The content came too slowly.
    Timeout = 408, "timeout", "Too slow";
    /// It is on its way between shards, or being opened.
    SessionBusy = 409, "session-busy", "Session busy";
    /// Of the admin API: the change contradicts the present state.
    Conflict = 409, "conflict", "Conflict";
    /// A request with the same key is not answered yet.
    KeyInUse = 409, "key-in-use", "Key in use";
    ContentTooLarge = 413, "content-too-large", "Content too large";
    UriTooLong = 414, "uri-too-long", "Target too long";
    /// Not a name of this server.
    Host = 421, "host", "Misdirected request";
    /// Of the admin API of a cluster's node.
    QueueElsewhere = 421, "queue-elsewhere", "Queue of another node";
    /// The key was used for something else.
    KeyReused = 422, "key-reused", "Key used for something else";
    /// Of the admin API.
    ReloadRefused = 422, "reload-refused", "Reload refused";
    TooEarly = 425, "too-early", "Too early";
    TooManyRequests = 429, "too-many-requests", "Too many requests";
    TooManySubscriptions = 429, "too-many-subscriptions", "Too many subscriptions";
    FieldsTooLarge = 431, "fields-too-large", "Fields too large";
    /// An extended CONNECT for a protocol that is not served (RFC 9220, section 3).
    NotImplemented = 501, "not-implemented", "Not implemented";
    /// A kept queue that the message is for.
    QueueFull = 503, "queue-full", "Queue full";
    /// Other nodes want the message, and the engine between nodes does not take it.
    ClusterAway = 503, "cluster-away", "Other nodes out of reach";
    Busy = 503, "busy", "Busy";
    MemoryShort = 503, "memory-short", "Memory is short";
    Stopping = 503, "stopping", "Shutting down";
    TooManyTopics = 507, "too-many-topics", "Too many topics";
    TooManySessions = 507, "too-many-sessions", "Too many sessions";
    RetainedFull = 507, "retained-full", "Too many retained messages";
    StoreFull = 507, "store-full", "Store full";
}

impl ProblemKind {
    /// The kind of a problem's `type`.
    pub(crate) fn of_type(text: &str) -> Option<Self> {
        let name = text.strip_prefix(TYPE_PREFIX)?;
        let mut all = Self::ALL.iter();
        all.find(|kind| kind.name() == name).copied()
    }

    /// The value of `Retry-After`, in seconds, where the same request may do better later.
    pub(crate) const fn retry_after_s(self) -> Option<u32> {
        match self.status() {
            429 | 503 => Some(RETRY_AFTER_S),
            _ => None,
        }
    }

    /// A problem of this kind.
    pub(crate) fn because(self, detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem {
            kind: self,
            detail: detail.into(),
        }
    }
}

/// An error as its client is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Problem {
    pub(crate) kind: ProblemKind,
    /// The explanation for this request. It may quote the request, and nothing else that is secret.
    pub(crate) detail: Cow<'static, str>,
}

impl Problem {
    /// The media type of [`write`](Self::write).
    pub(crate) const MEDIA_TYPE: &'static str = "application/problem+json";

    /// Appends the content of the response.
    pub(crate) fn write(&self, out: &mut BytesMut) {
        let kind = self.kind;
        out.put_slice(b"{\"type\":\"");
        out.put_slice(TYPE_PREFIX.as_bytes());
        out.put_slice(kind.name().as_bytes());
        out.put_slice(b"\",\"title\":");
        json::write_string(kind.title(), out);
        out.put_slice(b",\"status\":");
        json::write_number(kind.status().into(), out);
        out.put_slice(b",\"detail\":");
        json::write_string(&self.detail, out);
        out.put_u8(b'}');
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_problem_is_written_with_all_its_members() {
        let problem = ProblemKind::InvalidField.because("sterna-qos: \"7\"\n");
        let mut out = BytesMut::new();
        problem.write(&mut out);
        let read: Value = serde_json::from_slice(&out).unwrap();
        let expected = json!({
            "type": "urn:sterna:problem:invalid-field",
            "title": "Invalid field",
            "status": 400,
            "detail": "sterna-qos: \"7\"\n",
        });
        assert_eq!(read, expected);
    }

    #[test]
    fn names_are_unique_and_statuses_are_errors() {
        let names: HashSet<_> = ProblemKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ProblemKind::ALL.len());
        for kind in ProblemKind::ALL {
            assert!((400..600).contains(&kind.status()));
            assert!(
                kind.name()
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
            );
            assert!(!kind.title().is_empty());
            let may_retry = matches!(kind.status(), 429 | 503);
            assert_eq!(kind.retry_after_s().is_some(), may_retry);
        }
    }

    /// The tables of `docs/http.md` and `docs/admin.md` have every problem with its status, and no other.
    #[test]
    fn the_documentation_has_them_all() {
        let page = concat!(
            include_str!("../../../../docs/http.md"),
            include_str!("../../../../docs/admin.md")
        );
        let mut documented = HashSet::new();
        let rows = page.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let statuses: Result<Vec<u16>, _> = cells.next()?.split(", ").map(str::parse).collect();
            Some((statuses.ok()?, cells.next()?))
        });
        for (statuses, names) in rows {
            let names = names.split(", ").map(|name| name.trim_matches('`'));
            for (at, name) in names.enumerate() {
                let status = statuses.get(at).or_else(|| statuses.last()).copied();
                documented.insert((status.unwrap_or_default(), name));
            }
        }
        let known = ProblemKind::ALL.iter();
        let known: HashSet<_> = known.map(|kind| (kind.status(), kind.name())).collect();
        assert_eq!(documented, known);
    }
}
