//! The field `date` (RFC 9110, section 6.6.1), which every response has.

/// Bytes of a date.
pub(crate) const BYTES: usize = 29;

const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The date as text, which is made once a second. One serves all connections of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Date {
    second: u64,
    text: [u8; BYTES],
}

impl Default for Date {
    fn default() -> Self {
        Self {
            second: 0,
            text: write(0),
        }
    }
}

impl Date {
    /// The date at a time in milliseconds since the Unix epoch.
    pub(crate) fn at(&mut self, now_ms: u64) -> [u8; BYTES] {
        let second = now_ms / 1000;
        if second != self.second {
            self.second = second;
            self.text = write(second);
        }
        self.text
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7), up to the year 9999.
fn write(second: u64) -> [u8; BYTES] {
    let days = second / 86_400;
    let (year, month, day) = civil(days);
    let time = second % 86_400;
    let text = format!(
        "{}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        WEEKDAYS[(days % 7) as usize],
        MONTHS[month],
        time / 3600,
        time / 60 % 60,
        time % 60,
    );
    let mut bytes = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    if text.len() == BYTES {
        bytes.copy_from_slice(text.as_bytes());
    }
    bytes
}

/// Year, month from 0 and day from 1 of the day that is N days after the first of January 1970.
fn civil(days: u64) -> (u64, usize, u64) {
    // Years that begin with March end with the day that leap years have.
    let since_era = days + 719_468;
    let era = since_era / 146_097;
    let day_of_era = since_era % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    (year, month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_the_rfc_writes_them() {
        for (second, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT"),
            (1_795_323_600, "Sun, 22 Nov 2026 05:00:00 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            let mut date = Date::default();
            let written = date.at(second * 1000 + 999);
            assert_eq!(std::str::from_utf8(&written).unwrap(), text);
        }
    }
}
