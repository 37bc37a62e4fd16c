//! Figures of the trust in broker and clients: certificates, revocation lists, keys of tokens.

use std::collections::BTreeMap;

use super::Sources;
use super::page::Page;
use crate::certificate::CertificateUse;
use crate::identity::Issuer;

/// Writes the figures.
pub(super) fn write(sources: &Sources, issuer: &Issuer, page: &mut Page<'_>) {
    let expiries = earliest(sources, |usage| usage != CertificateUse::RevocationList);
    page.gauges(
        "sterna_certificate_expiry_timestamp_seconds",
        "When the first certificate of a file expires, in seconds since the Unix epoch; 0 where it is not known",
        ["file"],
        (expiries.iter()).map(|(file, expires_s)| ([file.as_str()], *expires_s)),
    );
    let due = earliest(sources, |usage| usage == CertificateUse::RevocationList);
    page.gauges(
        "sterna_revocation_list_due_timestamp_seconds",
        "When the next revocation list of a file is due, in seconds since the Unix epoch; 0 where it does not say",
        ["file"],
        (due.iter()).map(|(file, due_s)| ([file.as_str()], *due_s)),
    );
    page.gauge(
        "sterna_token_keys",
        "Keys of signed tokens that are trusted",
        issuer.key_count() as u64,
    );
    let requests = issuer.key_requests().into_iter();
    page.counters(
        "sterna_token_key_requests",
        "Requests to the URL of the keys of signed tokens, by what came of them",
        ["outcome"],
        requests.map(|(outcome, number)| ([outcome], number)),
    );
}

/// The earliest end in each file with certificates of a use.
fn earliest(sources: &Sources, is_wanted: fn(CertificateUse) -> bool) -> BTreeMap<String, u64> {
    let mut by_file = BTreeMap::new();
    for certificate in sources.certificates() {
        if !is_wanted(certificate.usage) {
            continue;
        }
        let end_s = u64::try_from(certificate.expires_s).unwrap_or(0);
        let file = certificate.file.display().to_string();
        let earliest = by_file.entry(file).or_insert(end_s);
        *earliest = end_s.min(*earliest);
    }
    by_file
}
