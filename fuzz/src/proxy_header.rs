//! Headers of the PROXY protocol from any bytes.
//!
//! The reader is private to its crate, and that crate brings sockets and TLS; its one file is taken from
//! there as it is.

#[path = "../../crates/sterna-net/src/proxy_header.rs"]
mod reader;

use reader::{Header, read};

/// Checks that a header says the same in whatever pieces it comes, that it lies within what came and within the
/// limit, and that a verdict stays.
///
/// # Panics
///
/// Where one of these does not hold.
pub fn header(bytes: &[u8]) {
    const MOST_BYTES: usize = 256;
    let mut before: Result<Option<Header>, &str> = Ok(None);
    for end in 0..=bytes.len() {
        let now = read(&bytes[..end], MOST_BYTES);
        assert!(
            before == Ok(None) || before == now,
            "{before:?}, then {now:?}"
        );
        if let Ok(Some(header)) = now {
            assert!(header.bytes <= end.min(MOST_BYTES));
            assert_eq!(read(&bytes[..header.bytes], MOST_BYTES), now);
        }
        assert!(
            end < MOST_BYTES || now != Ok(None),
            "what is too long is refused"
        );
        before = now;
    }
}
