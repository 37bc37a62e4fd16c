//! The local time, written as the C library's `strftime` writes it.
//!
//! `-F` promises every conversion of strftime, in the user's time zone and language. Only the C
//! library knows both, so it is asked.
#![allow(unsafe_code)] // localtime_r and strftime have no safe counterpart in the standard library

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest text of one conversion, in bytes.
const MAX_TEXT_BYTES: usize = 256;

/// A moment, and how the clocks on the wall show it.
#[derive(Clone, Copy)]
pub(super) struct LocalTime {
    since_epoch: Duration,
    fields: libc::tm,
}

impl LocalTime {
    /// Now.
    pub(super) fn now() -> Self {
        Self::at(SystemTime::now())
    }

    /// A given moment; moments before 1970 are shown as its start.
    pub(super) fn at(moment: SystemTime) -> Self {
        let since_epoch = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = libc::time_t::try_from(since_epoch.as_secs()).unwrap_or(libc::time_t::MAX);
        let mut fields = MaybeUninit::<libc::tm>::zeroed();
        // SAFETY: both pointers are valid for the call. An all-zero `tm` is valid, and stays there
        // should the function fail.
        let fields = unsafe {
            libc::localtime_r(&raw const seconds, fields.as_mut_ptr());
            fields.assume_init()
        };
        Self {
            since_epoch,
            fields,
        }
    }

    /// Seconds since 1970.
    pub(super) fn seconds(&self) -> u64 {
        self.since_epoch.as_secs()
    }

    /// Nanoseconds within the second.
    pub(super) fn nanoseconds(&self) -> u32 {
        self.since_epoch.subsec_nanos()
    }

    /// The text that `strftime` writes for `format`. It is empty when the text would be longer than
    /// 256 bytes, or `format` holds a null.
    pub(super) fn format(&self, format: &str) -> Vec<u8> {
        let Ok(format) = CString::new(format) else {
            return Vec::new();
        };
        let mut text = vec![0_u8; MAX_TEXT_BYTES];
        // SAFETY: `text` is valid for its length, `format` ends with a null and `fields` is a `tm`
        // that localtime_r filled in.
        let written = unsafe {
            libc::strftime(
                text.as_mut_ptr().cast(),
                text.len(),
                format.as_ptr(),
                &raw const self.fields,
            )
        };
        text.truncate(written);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_those_of_the_c_library() {
        // Noon in UTC on the third day of 1970 is on the second, third or fourth everywhere.
        let time = LocalTime::at(UNIX_EPOCH + Duration::new(2 * 86_400 + 43_200, 7));
        assert_eq!(time.format("%Y-%m"), b"1970-01");
        assert!([&b"02"[..], b"03", b"04"].contains(&time.format("%d").as_slice()));
        assert_eq!(time.format("%%"), b"%");
        assert_eq!(time.format("a\0b"), b"");
        assert_eq!((time.seconds(), time.nanoseconds()), (216_000, 7));
    }
}
