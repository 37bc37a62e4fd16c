//! The static table (RFC 9204, appendix A) and its lookup.

/// Names and values by index. The order of the specification.
pub(super) const ENTRIES: [(&str, &str); 99] = [
    (":authority", ""),
    (":path", "/"),
    ("age", "0"),
    ("content-disposition", ""),
    ("content-length", "0"),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("referer", ""),
    ("set-cookie", ""),
    (":method", "CONNECT"),
    (":method", "DELETE"),
    (":method", "GET"),
    (":method", "HEAD"),
    (":method", "OPTIONS"),
    (":method", "POST"),
    (":method", "PUT"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "103"),
    (":status", "200"),
    (":status", "304"),
    (":status", "404"),
    (":status", "503"),
    ("accept", "*/*"),
    ("accept", "application/dns-message"),
    ("accept-encoding", "gzip, deflate, br"),
    ("accept-ranges", "bytes"),
    ("access-control-allow-headers", "cache-control"),
    ("access-control-allow-headers", "content-type"),
    ("access-control-allow-origin", "*"),
    ("cache-control", "max-age=0"),
    ("cache-control", "max-age=2592000"),
    ("cache-control", "max-age=604800"),
    ("cache-control", "no-cache"),
    ("cache-control", "no-store"),
    ("cache-control", "public, max-age=31536000"),
    ("content-encoding", "br"),
    ("content-encoding", "gzip"),
    ("content-type", "application/dns-message"),
    ("content-type", "application/javascript"),
    ("content-type", "application/json"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "image/gif"),
    ("content-type", "image/jpeg"),
    ("content-type", "image/png"),
    ("content-type", "text/css"),
    ("content-type", "text/html; charset=utf-8"),
    ("content-type", "text/plain"),
    ("content-type", "text/plain;charset=utf-8"),
    ("range", "bytes=0-"),
    ("strict-transport-security", "max-age=31536000"),
    (
        "strict-transport-security",
        "max-age=31536000; includesubdomains",
    ),
    (
        "strict-transport-security",
        "max-age=31536000; includesubdomains; preload",
    ),
    ("vary", "accept-encoding"),
    ("vary", "origin"),
    ("x-content-type-options", "nosniff"),
    ("x-xss-protection", "1; mode=block"),
    (":status", "100"),
    (":status", "204"),
    (":status", "206"),
    (":status", "302"),
    (":status", "400"),
    (":status", "403"),
    (":status", "421"),
    (":status", "425"),
    (":status", "500"),
    ("accept-language", ""),
    ("access-control-allow-credentials", "FALSE"),
    ("access-control-allow-credentials", "TRUE"),
    ("access-control-allow-headers", "*"),
    ("access-control-allow-methods", "get"),
    ("access-control-allow-methods", "get, post, options"),
    ("access-control-allow-methods", "options"),
    ("access-control-expose-headers", "content-length"),
    ("access-control-request-headers", "content-type"),
    ("access-control-request-method", "get"),
    ("access-control-request-method", "post"),
    ("alt-svc", "clear"),
    ("authorization", ""),
    (
        "content-security-policy",
        "script-src 'none'; object-src 'none'; base-uri 'none'",
    ),
    ("early-data", "1"),
    ("expect-ct", ""),
    ("forwarded", ""),
    ("if-range", ""),
    ("origin", ""),
    ("purpose", "prefetch"),
    ("server", ""),
    ("timing-allow-origin", "*"),
    ("upgrade-insecure-requests", "1"),
    ("user-agent", ""),
    ("x-forwarded-for", ""),
    ("x-frame-options", "deny"),
    ("x-frame-options", "sameorigin"),
];

/// Indices of [`ENTRIES`] by length and bytes of the name, then by index.
const BY_NAME: [u8; ENTRIES.len()] = sorted();

const fn sorted() -> [u8; ENTRIES.len()] {
    let mut order = [0; ENTRIES.len()];
    let mut filled = 0;
    while filled < order.len() {
        // Insertion keeps entries of one name in the order of their indices.
        let mut place = filled;
        while place > 0 && is_after(order[place - 1], filled as u8) {
            order[place] = order[place - 1];
            place -= 1;
        }
        order[place] = filled as u8;
        filled += 1;
    }
    order
}

const fn is_after(one: u8, other: u8) -> bool {
    let one = ENTRIES[one as usize].0.as_bytes();
    let other = ENTRIES[other as usize].0.as_bytes();
    if one.len() != other.len() {
        return one.len() > other.len();
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return one[at] > other[at];
        }
        at += 1;
    }
    false
}

/// Result of a lookup in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// Name and value.
    Field(u8),
    /// The name: the lowest index, which is the shortest to write.
    Name(u8),
    /// Neither.
    Nothing,
}

/// Looks a field up.
pub(super) fn find(name: &[u8], value: &[u8]) -> Found {
    let key = |index: &u8| {
        let name = ENTRIES[usize::from(*index)].0.as_bytes();
        (name.len(), name)
    };
    let first = BY_NAME.partition_point(|index| key(index) < (name.len(), name));
    let same = BY_NAME[first..]
        .iter()
        .take_while(|index| ENTRIES[usize::from(**index)].0.as_bytes() == name);
    let mut found = Found::Nothing;
    for index in same {
        if ENTRIES[usize::from(*index)].1.as_bytes() == value {
            return Found::Field(*index);
        }
        if found == Found::Nothing {
            found = Found::Name(*index);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found() {
        for (index, (name, value)) in ENTRIES.iter().enumerate() {
            assert_eq!(
                find(name.as_bytes(), value.as_bytes()),
                Found::Field(index as u8)
            );
            let lowest = ENTRIES.iter().position(|(other, _)| other == name).unwrap();
            assert_eq!(find(name.as_bytes(), b"other"), Found::Name(lowest as u8));
        }
        for name in [
            "",
            "a",
            "x-other",
            "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
        ] {
            assert_eq!(find(name.as_bytes(), b""), Found::Nothing);
        }
    }
}
