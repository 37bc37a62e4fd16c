//! Segments: the files that the log is divided into.
//!
//! `log/NNNNNNNNNN.log`, by a number that rises, is a header and then frames, one after the other. Room
//! for [`segment_bytes`](crate::Settings::segment_bytes) is reserved when it is made, so a file may end
//! with zeros.
//!
//! ```text
//! offset  bytes
//!      0      8  "STERNLOG"
//!      8      4  version of the format: 1
//!     12      4  flags; 1: frames were taken out, so numbers of frames may be missing
//!     16     16  identity of the store, drawn when it is made
//!     32      8  number of the segment
//!     40      8  sequence of its first frame
//!     48      8  position of its first message
//!     56      4  number of segments behind this one that the file stands for, too
//!     60      4  CRC-32C of the 60 bytes before
//! ```
//!
//! Each later version is to have its number and its checksum in these places, so that it is told from damage. Files for which another stands are
//! those of a rewriting that did not come to remove them; they do not count.

use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::frame::{u32_at, u64_at};
use super::index::IndexBuilder;
use crate::disk::DiskFile;

/// The folder of segments and their indexes.
pub(crate) const FOLDER: &str = "log";

/// The version of the format.
pub(crate) const VERSION: u32 = 1;

pub(crate) const SEGMENT_HEADER_BYTES: usize = 64;

const MAGIC: &[u8; 8] = b"STERNLOG";

/// The header of a segment's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub(crate) identity: [u8; 16],
    pub(crate) number: u64,
    pub(crate) first_sequence: u64,
    pub(crate) first_position: u64,
    /// Frames were taken out.
    pub(crate) has_gaps: bool,
    /// Number of segments behind this one that the file stands for, too.
    pub(crate) joined: u32,
}

/// Flag of a segment that frames were taken out of.
const HAS_GAPS: u32 = 1;

/// Why a file's header is none that can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderError {
    /// A newer format, with its version.
    Newer(u32),
    Damaged,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let flags = if self.has_gaps { HAS_GAPS } else { 0 };
        bytes[12..16].copy_from_slice(&flags.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.identity);
        bytes[32..40].copy_from_slice(&self.number.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.first_sequence.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.first_position.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.joined.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The numbers of the other segments that the file stands for.
    pub(crate) const fn stands_for(&self) -> RangeInclusive<u64> {
        self.number + 1..=self.number.saturating_add(self.joined as u64)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let read = || {
            let bytes: &[u8; SEGMENT_HEADER_BYTES] = bytes.first_chunk()?;
            if &bytes[..8] != MAGIC || u32_at(bytes, 60)? != crc32c::crc32c(&bytes[..60]) {
                return None;
            }
            let version = u32_at(bytes, 8)?;
            let identity = *bytes[16..].first_chunk()?;
            let header = Self {
                identity,
                number: u64_at(bytes, 32)?,
                first_sequence: u64_at(bytes, 40)?,
                first_position: u64_at(bytes, 48)?,
                has_gaps: u32_at(bytes, 12)? & HAS_GAPS != 0,
                joined: u32_at(bytes, 56)?,
            };
            Some((version, header))
        };
        match read() {
            Some((VERSION, header)) => Ok(header),
            Some((version, _)) if version > VERSION => Err(HeaderError::Newer(version)),
            _ => Err(HeaderError::Damaged),
        }
    }
}

/// The name of a segment's file.
pub(crate) fn segment_name(number: u64) -> String {
    format!("{FOLDER}/{number:010}.log")
}

/// The name of the file with a segment's index.
pub(crate) fn index_name(number: u64) -> String {
    format!("{FOLDER}/{number:010}.index")
}

/// The number of a file in the folder with this ending, if it is one of the store's.
pub(crate) fn number_of(name: &str, ending: &str) -> Option<u64> {
    let digits = name.strip_suffix(ending)?.strip_suffix('.')?;
    let number = digits.parse().ok()?;
    (name == format!("{number:010}.{ending}")).then_some(number)
}

/// A segment, as all threads know it.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) first_sequence: u64,
    pub(crate) first_position: u64,
    /// Frames were taken out: numbers of frames may be missing.
    pub(crate) has_gaps: bool,
    /// Number of the rewriting that has made its file; 0 where the writer has.
    pub(crate) rewriting: u64,
    state: RwLock<SegmentState>,
}

/// The changing part of a segment.
#[derive(Debug)]
pub(crate) struct SegmentState {
    /// Where its frames end. Nothing is read from there on.
    pub(crate) end: End,
    /// Its open file, while it is written.
    pub(crate) file: Option<Arc<dyn DiskFile>>,
    /// Its index, until that is in a file of its own.
    pub(crate) index: Option<IndexBuilder>,
    /// Its index is in no file that is any good, although there may be one.
    pub(crate) lacks_index: bool,
    /// Another segment stands for it: its files are another's from now on, or gone.
    pub(crate) is_replaced: bool,
}

/// A place between two frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) offset: u64,
    /// Of the last frame before.
    pub(crate) sequence: u64,
    /// Of the next message.
    pub(crate) position: u64,
}

impl Segment {
    pub(crate) fn new(header: &SegmentHeader, state: SegmentState) -> Self {
        Self {
            number: header.number,
            first_sequence: header.first_sequence,
            first_position: header.first_position,
            has_gaps: header.has_gaps,
            rewriting: 0,
            state: RwLock::new(state),
        }
    }

    /// The segment that a rewriting has made, by the rewriting's number.
    pub(crate) fn rewritten(header: &SegmentHeader, state: SegmentState, rewriting: u64) -> Self {
        Self {
            rewriting,
            ..Self::new(header, state)
        }
    }

    pub(crate) fn state(&self) -> RwLockReadGuard<'_, SegmentState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state_mut(&self) -> RwLockWriteGuard<'_, SegmentState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn end(&self) -> End {
        self.state().end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_again_and_no_damage_passes() {
        let header = SegmentHeader {
            identity: [3; 16],
            number: 7,
            first_sequence: 8,
            first_position: 9,
            has_gaps: true,
            joined: 3,
        };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&flipped), Err(HeaderError::Damaged));
        }
        assert_eq!(
            SegmentHeader::decode(&bytes[1..]),
            Err(HeaderError::Damaged)
        );
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let header = SegmentHeader {
            identity: [3; 16],
            number: 7,
            first_sequence: 8,
            first_position: 9,
            has_gaps: true,
            joined: 0,
        };
        let mut bytes = header.encode();
        for (version, expected) in [(0, HeaderError::Damaged), (2, HeaderError::Newer(2))] {
            bytes[8] = version;
            let checksum = crc32c::crc32c(&bytes[..60]);
            bytes[60..].copy_from_slice(&checksum.to_le_bytes());
            assert_eq!(SegmentHeader::decode(&bytes), Err(expected));
        }
    }

    #[test]
    fn only_names_of_the_store_are_numbers() {
        assert_eq!(number_of("0000000012.log", "log"), Some(12));
        assert_eq!(number_of("20000000012.log", "log"), Some(20_000_000_012));
        for other in [
            "12.log",
            "0000000012.index",
            "000000001x.log",
            "0000000012log",
            ".log",
        ] {
            assert_eq!(number_of(other, "log"), None, "{other}");
        }
        assert_eq!(segment_name(12), "log/0000000012.log");
    }
}
