//! Whom a request names, and whose page sent it: what protects the browser's user, not the broker's.

use sterna_http::Head;
use sterna_net::Pages;

/// The origin of a page elsewhere that may read the response; nothing for everybody else.
pub(super) type Reader = Option<Box<str>>;

/// What pages may read of a response beside its content.
pub(super) const EXPOSED_FIELDS: &str = "allow, content-type, etag, idempotent-replayed, link, \
    retry-after, sterna-correlation-data, sterna-expiry, sterna-payload-format, sterna-qos, \
    sterna-response-topic, sterna-retain, sterna-session, sterna-topic, sterna-user-property";

/// What pages may send.
pub(super) const ALLOWED_FIELDS: &str = "accept, authorization, content-type, idempotency-key, \
    if-none-match, last-event-id, sterna-correlation-data, sterna-expiry, sterna-payload-format, \
    sterna-qos, sterna-response-topic, sterna-retain, sterna-user-property";

/// Decides whether the page that sent a request may.
///
/// # Errors
/// When it may not; the text says why.
pub(super) fn admit(pages: &Pages, head: &Head, authority: &str) -> Result<Reader, &'static str> {
    let (origin, site) = (head.field("origin"), head.field("sec-fetch-site"));
    let elsewhere = pages.admit(origin, site, authority)?;
    Ok(elsewhere.map(Into::into))
}
