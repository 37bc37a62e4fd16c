//! Responses, with the fields that every one of them carries.

use std::borrow::Cow;

use bytes::BytesMut;
use sterna_broker::{EndCause, PublishRefusal};
use sterna_http::{Content, ExchangeId, Refusal, Responses};

use super::origin::{EXPOSED_FIELDS, Reader};
use crate::http::problem::{Problem, ProblemKind as Kind};

/// Why a request fails, with the fields that go with it.
#[derive(Debug)]
pub(crate) struct Trouble {
    problem: Problem,
    /// The methods of the resource, for a request with a method that it has not.
    allow: Option<&'static str>,
    /// The credentials that would be accepted, for a request without good ones.
    challenge: Option<String>,
    /// A line of the log is about it.
    is_logged: bool,
}

impl Trouble {
    pub(crate) fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            problem: kind.because(detail),
            allow: None,
            challenge: None,
            is_logged: false,
        }
    }

    /// The same, with a line of the log that says all about it.
    pub(crate) fn logged(self) -> Self {
        Self {
            is_logged: true,
            ..self
        }
    }

    /// Whether the log has a line about it, so that another one is of no use.
    pub(crate) const fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// The cause of an end for which a client is told this.
    pub(super) const fn cause(&self) -> EndCause {
        match self.problem.kind.status() {
            401 | 403 => EndCause::NotAllowed,
            429 | 503 | 507 => EndCause::Limit,
            _ => EndCause::Refused,
        }
    }

    /// The problem of a message that the broker has refused.
    pub(crate) fn of_publication(refusal: PublishRefusal) -> Self {
        let kind = match refusal {
            PublishRefusal::QueueFull => Kind::QueueFull,
            PublishRefusal::StoreFull => Kind::StoreFull,
            PublishRefusal::ClusterAway => Kind::ClusterAway,
        };
        Self::new(kind, refusal.detail())
    }

    /// The problem of a request that its carrier refuses.
    pub(crate) fn of(refusal: Refusal, is_stopping: bool) -> Self {
        let (kind, detail) = match refusal {
            Refusal::Malformed(detail) => (Kind::InvalidField, detail),
            Refusal::Timeout => (Kind::Timeout, "the content came too slowly"),
            Refusal::ContentTooLarge => (
                Kind::ContentTooLarge,
                "the content is larger than http.maximum_content_bytes",
            ),
            Refusal::TargetTooLong => (
                Kind::UriTooLong,
                "the target is longer than http.maximum_target_bytes",
            ),
            Refusal::FieldsTooLarge => (
                Kind::FieldsTooLarge,
                "the fields are larger than http.maximum_fields_bytes",
            ),
            Refusal::Busy if is_stopping => (Kind::Stopping, "the broker is stopping"),
            Refusal::Busy => (Kind::Busy, "too much is under way on this connection"),
        };
        Self::new(kind, detail)
    }

    /// The resource has other methods.
    pub(crate) fn method(allow: &'static str) -> Self {
        Self {
            allow: Some(allow),
            ..Self::new(Kind::Method, format!("the resource has {allow}"))
        }
    }

    /// There are no credentials, or bad ones.
    pub(crate) fn unauthenticated(detail: &str, challenge: String) -> Self {
        Self {
            challenge: Some(challenge),
            ..Self::new(Kind::Unauthenticated, detail.to_owned())
        }
    }

    pub(crate) const fn status(&self) -> u16 {
        self.problem.kind.status()
    }

    pub(crate) const fn kind(&self) -> Kind {
        self.problem.kind
    }

    pub(crate) fn detail(&self) -> &str {
        &self.problem.detail
    }
}

/// Begins or gives a response, with the fields that a page of another origin needs to read it.
pub(crate) fn respond(
    out: &mut dyn Responses,
    id: ExchangeId,
    reader: &Reader,
    status: u16,
    fields: &[(&str, &[u8])],
    content: Content<'_>,
) {
    let is_endless = matches!(content, Content::Open);
    if reader.is_none() && !is_endless {
        return out.respond(id, status, fields, content);
    }
    let mut all = Vec::with_capacity(fields.len() + 4);
    all.extend_from_slice(fields);
    if is_endless {
        // Otherwise nginx gathers it before it sends anything.
        all.push(("x-accel-buffering", b"no"));
    }
    let Some(reader) = reader else {
        return out.respond(id, status, &all, content);
    };
    all.push(("access-control-allow-origin", reader.as_bytes()));
    all.push(("access-control-expose-headers", EXPOSED_FIELDS.as_bytes()));
    all.push(("vary", b"origin"));
    out.respond(id, status, &all, content);
}

/// Answers with a problem (RFC 9457).
pub(crate) fn fail(out: &mut dyn Responses, id: ExchangeId, reader: &Reader, trouble: &Trouble) {
    let mut fields: Vec<(&str, &[u8])> = vec![
        ("content-type", Problem::MEDIA_TYPE.as_bytes()),
        ("cache-control", b"no-store"),
    ];
    if let Some(allow) = trouble.allow {
        fields.push(("allow", allow.as_bytes()));
    }
    if let Some(challenge) = &trouble.challenge {
        fields.push(("www-authenticate", challenge.as_bytes()));
    }
    let retry_after_s = trouble.problem.kind.retry_after_s().map(|s| s.to_string());
    if let Some(retry_after_s) = &retry_after_s {
        fields.push(("retry-after", retry_after_s.as_bytes()));
    }
    let mut json = BytesMut::new();
    trouble.problem.write(&mut json);
    respond(
        out,
        id,
        reader,
        trouble.status(),
        &fields,
        Content::Whole(&json),
    );
}
