//! Walks through the frames of a file, and around damage.

use std::io;
use std::ops::Range;

use super::frame::{HEADER_BYTES, Header, Seal, is_sound};
use crate::disk::{DiskFile, read_around};

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 1 << 18;

/// Room that was reserved: most of a file that a crash has left.
static ZEROS: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

/// A finding of a scanner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// A sound frame; its body is in [`Scanner::body`].
    Frame { offset: u64, header: Header },
    /// Bytes that are no sound frame.
    Damaged(Damaged),
}

/// A stretch of a file that is no sound frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damaged {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) reason: Reason,
}

impl Damaged {
    /// Frames that are missing before an offset.
    pub(crate) const fn missing(offset: u64) -> Self {
        Self {
            offset,
            bytes: 0,
            reason: Reason::Missing,
        }
    }
}

/// The kind of damage of a stretch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// A frame's header is whole, its body is not.
    Body,
    /// There is no header where one should be.
    Header,
    /// The header of the file.
    FileHeader,
    /// Frames that should be here are missing.
    Missing,
    /// An append was cut off before it was complete.
    Torn,
    /// The device cannot read it.
    Unreadable,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Body => "a frame's body does not fit its checksum",
            Self::Header => "no frame's header where one should be",
            Self::FileHeader => "the file's header does not fit its checksum",
            Self::Missing => "frames are missing",
            Self::Torn => "an append that was cut off",
            Self::Unreadable => "the device cannot read it",
        })
    }
}

/// Walks from frame to frame. Zeros up to the end, as in a file that was reserved and not yet filled,
/// are its end.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    file: &'a dyn DiskFile,
    seal: Seal,
    /// Where the next frame begins.
    at: u64,
    end: u64,
    /// Bytes of the file from an offset on.
    window: Vec<u8>,
    window_at: u64,
    /// Places that the device could not read, in order.
    unreadable: Vec<Range<u64>>,
    /// The last frame's body, as a range of the window.
    body: Range<usize>,
    chunk_bytes: usize,
}

impl<'a> Scanner<'a> {
    /// Scans from an offset to an end.
    pub(crate) fn new(file: &'a dyn DiskFile, seal: Seal, from: u64, end: u64) -> Self {
        Self {
            file,
            seal,
            at: from,
            end,
            window: Vec::new(),
            window_at: from,
            unreadable: Vec::new(),
            body: 0..0,
            chunk_bytes: CHUNK_BYTES,
        }
    }

    /// The body of the frame that was found last.
    pub(crate) fn body(&self) -> &[u8] {
        &self.window[self.body.clone()]
    }

    /// The next frame or damaged stretch, `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Found>> {
        let offset = self.at;
        let Some(header) = self.header_at(offset)? else {
            return self.resynchronise(offset);
        };
        let length = header.frame_bytes();
        self.at = offset + length;
        let start = self.fill(offset, length as usize)?;
        self.body = start + HEADER_BYTES..start + length as usize;
        if is_sound(&header, self.body(), self.seal) {
            Ok(Some(Found::Frame { offset, header }))
        } else {
            Ok(Some(Found::Damaged(Damaged {
                offset,
                bytes: length,
                reason: self.reason(offset, self.at, Reason::Body),
            })))
        }
    }

    /// The header at an offset, if its frame ends within the file.
    fn header_at(&mut self, offset: u64) -> io::Result<Option<Header>> {
        if self.end.saturating_sub(offset) < HEADER_BYTES as u64 {
            return Ok(None);
        }
        let start = self.fill(offset, HEADER_BYTES)?;
        let header = Header::decode(&self.window[start..], self.seal);
        Ok(header.filter(|header| header.frame_bytes() <= self.end - offset))
    }

    /// Goes on at the next byte that a header begins at.
    fn resynchronise(&mut self, from: u64) -> io::Result<Option<Found>> {
        let magic = self.seal.magic();
        let mut at = from;
        let mut last_set = None;
        while at < self.end {
            // Bytes that are here are not read once more, whatever number of hits they have.
            let start = self.fill(at, 1)?;
            let wanted = (self.window.len() - start).min(CHUNK_BYTES);
            let bytes = &self.window[start..start + wanted];
            if bytes == &ZEROS[..wanted] {
                at += wanted as u64;
                continue;
            }
            let hit = bytes.iter().position(|byte| *byte == magic[0]);
            let passed = &bytes[..hit.unwrap_or(wanted)];
            if let Some(index) = passed.iter().rposition(|byte| *byte != 0) {
                last_set = Some(at + index as u64);
            }
            at += passed.len() as u64;
            if hit.is_some() {
                if at > from && self.header_at(at)?.is_some() {
                    self.at = at;
                    return Ok(Some(Found::Damaged(Damaged {
                        offset: from,
                        bytes: at - from,
                        reason: self.reason(from, at, Reason::Header),
                    })));
                }
                last_set = Some(at);
                at += 1;
            }
        }
        self.at = self.end;
        // Unreadable bytes are no room that was reserved.
        let unreadable = self.unreadable.last().map(|place| place.end - 1);
        let last = last_set.max(unreadable.filter(|last| *last >= from));
        Ok(last.map(|last| {
            Found::Damaged(Damaged {
                offset: from,
                bytes: last + 1 - from,
                reason: self.reason(from, last + 1, Reason::Header),
            })
        }))
    }

    /// Why bytes are no frame: `otherwise`, unless some of them could not be read.
    fn reason(&self, from: u64, end: u64, otherwise: Reason) -> Reason {
        let mut places = self.unreadable.iter();
        if places.any(|place| place.start < end && from < place.end) {
            Reason::Unreadable
        } else {
            otherwise
        }
    }

    /// Has bytes in the window, and returns where in it they begin. They end before the file does.
    fn fill(&mut self, offset: u64, count: usize) -> io::Result<usize> {
        let window_end = self.window_at + self.window.len() as u64;
        if offset < self.window_at || offset + count as u64 > window_end {
            let wanted = (self.end - offset).min(count.max(self.chunk_bytes) as u64) as usize;
            self.window.resize(wanted, 0);
            self.window_at = offset;
            let (read, unreadable) = read_around(self.file, offset, &mut self.window)?;
            let known = self.unreadable.last().map_or(0, |place| place.end);
            (self.unreadable).extend(unreadable.into_iter().filter(|place| place.end > known));
            // A file that is shorter than it should be reads as zeros.
            self.window[read..].fill(0);
        }
        Ok((offset - self.window_at) as usize)
    }
}
