//! The first record of TLS from any bytes.
//!
//! The reader is private to its crate, and that crate brings sockets and TLS; its one file is taken from
//! there as it is.

#[allow(dead_code, reason = "its own crate uses more of it")]
#[path = "../../crates/sterna-net/src/tls/hello.rs"]
mod reader;

use reader::FirstRecord;

/// Checks that a verdict stays, whatever follows, and that what is kept of a client is bounded.
///
/// # Panics
///
/// Where one of these does not hold.
pub fn first_record(bytes: &[u8]) {
    let mut before = FirstRecord::Incomplete;
    for end in 0..=bytes.len().min(2048) {
        let now = FirstRecord::of(&bytes[..end]);
        assert!(
            before == FirstRecord::Incomplete || before == now,
            "{before:?}, then {now:?}"
        );
        before = now;
    }
    if let FirstRecord::Hello(hello) = FirstRecord::of(bytes) {
        assert!(hello.ciphers.len() <= hello.all_ciphers.min(8));
        let names = hello.protocols.iter().map(|name| name.len());
        assert!(names.clone().count() <= 8 && names.max().unwrap_or(0) <= 32);
        assert!(hello.record_bytes.is_none_or(|bytes| bytes >= 63));
    }
}
