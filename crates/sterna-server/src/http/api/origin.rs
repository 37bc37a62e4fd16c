//! The host that a request names, and the page that sent it. These checks protect the browser's user, not the
//! broker's.

use sterna_http::Head;
use sterna_net::Pages;

/// The origin of a page elsewhere that may read the response; nothing for everybody else.
pub(super) type Reader = Option<Box<str>>;

/// Fields of a response that pages of other origins may read.
pub(super) const EXPOSED_FIELDS: &str = "allow, content-type, etag, idempotent-replayed, link, \
    retry-after, sterna-correlation-data, sterna-expiry, sterna-payload-format, sterna-qos, \
    sterna-response-topic, sterna-retain, sterna-session, sterna-topic, sterna-user-property";

/// Fields of a request that pages of other origins may send.
pub(super) const ALLOWED_FIELDS: &str = "accept, authorization, cache-control, content-type, \
    idempotency-key, if-none-match, last-event-id, sterna-correlation-data, sterna-expiry, sterna-payload-format, \
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
