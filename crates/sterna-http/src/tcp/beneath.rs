//! Things that the library does not tell: fragments that it cuts off targets, and frames of HTTP/2 that it answers by itself.
//! Both are read from the bytes, on their way to the library.

use std::collections::VecDeque;

use crate::limits::TOO_MANY_RESETS;

/// Most bytes of a line of a head that are looked at.
const LINE_BYTES: usize = 64 << 10;
/// Most targets with a fragment that are remembered at a time. The library has few requests that nobody knows of yet.
const MOST_KEPT: usize = 64;

/// Where the bytes of HTTP/1.1 stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// In the line of a request.
    Request,
    /// In its fields. Has the length of its content so far.
    Fields(u64),
    /// In its content, of which this many bytes follow.
    Content(u64),
    /// In a content of chunks. Nothing is known until the next pause between two requests.
    Unknown,
}

/// The targets of requests of HTTP/1.1. A client sends no fragment (RFC 9112, section 3.2.1); the library cuts one off without a
/// word, so that the request is for something else.
#[derive(Debug)]
pub(super) struct Targets {
    place: Place,
    line: Vec<u8>,
    /// The number of the request whose head is read.
    number: u64,
    /// Requests whose targets have a fragment.
    found: VecDeque<u64>,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            place: Place::Request,
            line: Vec::new(),
            number: 0,
            found: VecDeque::new(),
        }
    }
}

impl Targets {
    /// All that came was taken and answered: the next byte begins a request, which has this number.
    pub(super) fn go_on(&mut self, number: u64) {
        if self.place == Place::Unknown {
            *self = Self {
                number,
                ..Self::default()
            };
        }
    }

    /// Looks at bytes in their order.
    pub(super) fn look(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.place {
                Place::Unknown => return,
                Place::Content(left) => {
                    let read = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    bytes = &bytes[read..];
                    let left = left - read as u64;
                    self.place = if left == 0 {
                        Place::Request
                    } else {
                        Place::Content(left)
                    };
                }
                Place::Request | Place::Fields(_) => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let part = end.map_or(bytes, |end| &bytes[..end]);
                    if self.line.len() + part.len() > LINE_BYTES {
                        // The library refuses it.
                        self.line = Vec::new();
                        self.place = Place::Unknown;
                        return;
                    }
                    let Some(end) = end else {
                        self.line.extend_from_slice(part);
                        return;
                    };
                    bytes = &bytes[end + 1..];
                    if self.line.is_empty() {
                        self.line_ends(part.strip_suffix(b"\r").unwrap_or(part));
                    } else {
                        self.line.extend_from_slice(part);
                        let line = std::mem::take(&mut self.line);
                        self.line_ends(line.strip_suffix(b"\r").unwrap_or(&line));
                    }
                }
            }
        }
    }

    fn line_ends(&mut self, line: &[u8]) {
        match self.place {
            // An empty line in front of a request is passed over (RFC 9112, section 2.2).
            Place::Request if line.is_empty() => {}
            Place::Request => {
                let mut parts = line.split(|byte| *byte == b' ');
                let target = parts.nth(1).unwrap_or_default();
                let is_request = parts
                    .next()
                    .is_some_and(|version| version.starts_with(b"HTTP/1."));
                let has_fragment = is_request && target.contains(&b'#');
                if has_fragment && self.found.len() < MOST_KEPT {
                    self.found.push_back(self.number);
                }
                self.number += 1;
                self.place = Place::Fields(0);
            }
            Place::Fields(0) if line.is_empty() => self.place = Place::Request,
            Place::Fields(length) if line.is_empty() => self.place = Place::Content(length),
            Place::Fields(_) => {
                let colon = line.iter().position(|byte| *byte == b':');
                let (name, value) = line.split_at(colon.unwrap_or(line.len()));
                if name.eq_ignore_ascii_case(b"transfer-encoding") {
                    self.place = Place::Unknown;
                } else if name.eq_ignore_ascii_case(b"content-length") {
                    let value = value.strip_prefix(b":").unwrap_or_default().trim_ascii();
                    let length = std::str::from_utf8(value)
                        .ok()
                        .and_then(|text| text.parse().ok());
                    self.place = length.map_or(Place::Unknown, Place::Fields);
                }
            }
            Place::Content(_) | Place::Unknown => {}
        }
    }

    /// Whether the target of a request had a fragment.
    pub(super) fn had_fragment(&mut self, number: u64) -> bool {
        let place = self.found.iter().position(|found| *found == number);
        place.and_then(|place| self.found.remove(place)).is_some()
    }
}

/// Kinds of frames of HTTP/2 that cost their receiver work and say nothing (RFC 9113, section 10.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Control {
    Priority,
    Settings,
    Ping,
    /// A kind that nobody knows, which is ignored.
    Unknown,
    /// The end of a request from the client's side, also of one that the library has not handed over yet.
    Reset,
}

impl Control {
    /// All but resets.
    const COUNT: usize = 4;

    const fn of(kind: u8) -> Option<Self> {
        match kind {
            2 => Some(Self::Priority),
            3 => Some(Self::Reset),
            4 => Some(Self::Settings),
            6 => Some(Self::Ping),
            0..=9 => None,
            _ => Some(Self::Unknown),
        }
    }

    /// The fault of a client that sends too many of them.
    pub(super) const fn fault(self) -> &'static str {
        match self {
            Self::Priority => "too many PRIORITY frames (http.maximum_control_frames)",
            Self::Reset => TOO_MANY_RESETS,
            Self::Settings => "too many SETTINGS frames (http.maximum_control_frames)",
            Self::Ping => "too many PING frames (http.maximum_control_frames)",
            Self::Unknown => "too many frames of unknown kinds (http.maximum_control_frames)",
        }
    }
}

/// Time in which a whole allowance comes back.
const WINDOW_MS: u64 = 10_000;

/// How many of an allowance of `most` have come back since a time, which is now from then on if some have.
pub(super) fn come_back(since_ms: &mut u64, now_ms: u64, most: u64) -> u64 {
    let back = now_ms.saturating_sub(*since_ms) * most / WINDOW_MS;
    if back > 0 {
        *since_ms = now_ms;
    }
    back
}

/// Counts frames of HTTP/2 by kind.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes of the preface that are still to come.
    preface: usize,
    header: [u8; 9],
    /// Bytes of the header that have come.
    seen: usize,
    /// Bytes of the payload that follow.
    payload: usize,
    /// Frames by kind, less those that time has made up for.
    counts: [u64; Control::COUNT],
    since_ms: u64,
    resets: u64,
    resets_ms: u64,
}

impl Frames {
    /// Frames behind the preface, which has this many bytes.
    pub(super) const fn new(preface: usize, now_ms: u64) -> Self {
        Self {
            preface,
            header: [0; 9],
            seen: 0,
            payload: 0,
            counts: [0; Control::COUNT],
            since_ms: now_ms,
            resets: 0,
            resets_ms: now_ms,
        }
    }

    /// Looks at bytes in their order. Returns a kind of which came more than `most` in ten seconds. Of ends of requests there may
    /// be twice `resets`: some are of requests that were answered.
    pub(super) fn look(
        &mut self,
        mut bytes: &[u8],
        now_ms: u64,
        (most, resets): (u64, u64),
    ) -> Option<Control> {
        let back = come_back(&mut self.since_ms, now_ms, most);
        self.counts = self.counts.map(|count| count.saturating_sub(back));
        let back = come_back(&mut self.resets_ms, now_ms, 2 * resets);
        self.resets = self.resets.saturating_sub(back);
        while !bytes.is_empty() {
            let passed = self.preface.min(bytes.len());
            self.preface -= passed;
            bytes = &bytes[passed..];
            let passed = self.payload.min(bytes.len());
            self.payload -= passed;
            bytes = &bytes[passed..];
            let missing = (self.header.len() - self.seen).min(bytes.len());
            self.header[self.seen..self.seen + missing].copy_from_slice(&bytes[..missing]);
            self.seen += missing;
            bytes = &bytes[missing..];
            if self.seen < self.header.len() {
                return None;
            }
            self.seen = 0;
            let [high, middle, low, kind, ..] = self.header;
            self.payload = u32::from_be_bytes([0, high, middle, low]) as usize;
            let Some(kind) = Control::of(kind) else {
                continue;
            };
            let (count, most) = if kind == Control::Reset {
                (&mut self.resets, 2 * resets)
            } else {
                (&mut self.counts[kind as usize], most)
            };
            *count += 1;
            if *count > most {
                return Some(kind);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requests that have a fragment, with the bytes in pieces of every size.
    fn found(bytes: &[u8]) -> Vec<u64> {
        let with = |size: usize| {
            let mut targets = Targets::default();
            for part in bytes.chunks(size) {
                targets.look(part);
            }
            (0..10)
                .filter(|number| targets.had_fragment(*number))
                .collect::<Vec<u64>>()
        };
        let whole = with(bytes.len());
        for size in 1..bytes.len() {
            assert_eq!(with(size), whole, "{size}");
        }
        whole
    }

    /// Twice the setting, for some are of requests that were answered. A library that hands over no request that ends in the
    /// same piece counts none of them.
    #[test]
    fn ends_of_requests_are_counted_also_of_those_that_nobody_hears_of() {
        let reset = [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8];
        let mut frames = Frames::new(0, 0);
        for _ in 0..6 {
            assert_eq!(frames.look(&reset, 0, (0, 3)), None);
        }
        assert_eq!(frames.look(&reset, 0, (0, 3)), Some(Control::Reset));
        assert_eq!(frames.look(&reset, 10_000, (0, 3)), None);
    }

    #[test]
    fn fragments_are_found_also_behind_other_requests() {
        assert_eq!(found(b"GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n"), [0]);
        assert_eq!(
            found(b"GET /a HTTP/1.1\r\nx: #\r\n\r\nGET /#b HTTP/1.1\r\n\r\n"),
            [1]
        );
        let content =
            b"\r\nPOST /a HTTP/1.1\r\nContent-Length: 12\r\n\r\nGET /# HTTP\nGET /b# HTTP/1.1\n\n";
        assert_eq!(found(content), [1]);
        // Behind chunks nothing is known, and nobody is wronged.
        let chunks =
            b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nGET /#b HTTP/1.1\r\n";
        assert_eq!(found(chunks), Vec::<u64>::new());
    }

    #[test]
    fn after_a_pause_requests_are_known_again() {
        let mut targets = Targets::default();
        targets.look(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
        targets.go_on(7);
        targets.look(b"GET /#b HTTP/1.1\r\n\r\n");
        assert!(targets.had_fragment(7));
        assert!(!targets.had_fragment(7), "it is told once");
    }

    #[test]
    fn frames_are_counted_by_kind_and_in_time() {
        const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        const DATA: [u8; 13] = [0, 0, 4, 0, 0, 0, 0, 0, 1, 6, 6, 6, 6];
        let wire = [&b"PRI"[..], &DATA, &PING, &DATA, &PING].concat();
        for size in 1..wire.len() {
            let mut frames = Frames::new(3, 0);
            let mut look = |most| {
                let mut found = wire
                    .chunks(size)
                    .map(|part| frames.look(part, 0, (most, most)));
                found.find_map(|kind| kind)
            };
            assert_eq!(look(2), None, "{size}");
        }
        let mut frames = Frames::new(0, 0);
        assert_eq!(frames.look(&PING, 0, (1, 1)), None);
        assert_eq!(frames.look(&PING, 5_000, (1, 1)), Some(Control::Ping));
        let mut frames = Frames::new(0, 0);
        assert_eq!(frames.look(&PING, 0, (1, 1)), None);
        assert_eq!(frames.look(&PING, 10_000, (1, 1)), None);
        let mut frames = Frames::new(0, 0);
        let unknown = [0, 0, 0, 0x55, 0, 0, 0, 0, 0];
        assert_eq!(frames.look(&unknown, 0, (0, 0)), Some(Control::Unknown));
    }
}
