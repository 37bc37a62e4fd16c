//! Finds the frames of a log after a crash, a power cut, or damage.
//!
//! # Damage, and appends that were cut off
//!
//! After a power cut, frames that were not synced may be missing in any order. Frames that were synced before are
//! there, unless the disk has damaged them. Both look the same in the file, and must not be treated the same.
//! Damage costs the damaged frame alone. Behind a frame that was cut off, nothing counts: no sync was acknowledged
//! for it, and later frames may build on it.
//!
//! So each frame tells up to which frame all was synced when it was appended. In the last segment, frames up to the
//! highest such number were synced. So were frames that a checkpoint has applied. All frames of segments that have
//! a successor were synced, too. A gap among these frames is damage. The first gap behind them is the end of the
//! log.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::frame::{Header, Seal};
use super::scan::{Damaged, Found, Reason, Scanner};
use super::segment::{
    End, FOLDER, HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader, VERSION, number_of, segment_name,
};
use crate::disk::{Disk, DiskFile, remove_if_it_can_be};
use crate::engine::Damage;
use crate::error::OpenError;

/// A segment's file, as it was found.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) length: u64,
    /// `None` where it is damaged.
    pub(crate) header: Option<SegmentHeader>,
}

impl SegmentFile {
    /// Whether frames were taken out of it.
    pub(crate) fn has_gaps(&self) -> bool {
        self.header.is_some_and(|header| header.has_gaps)
    }

    /// Whether it stands for another segment, by its number.
    fn stands_for(&self, number: u64) -> bool {
        self.header
            .is_some_and(|header| header.stands_for().contains(&number))
    }
}

/// Removes the files for which another stands: their rewriting was cut off before it could. Returns the numbers of those
/// that cannot be removed: they do not count, and are no reason not to start.
///
/// # Errors
/// When the disk fails.
pub(crate) fn remove_replaced(disk: &dyn Disk, files: &[SegmentFile]) -> io::Result<BTreeSet<u64>> {
    let mut left = BTreeSet::new();
    let mut replaced = disk.list(FOLDER)?;
    replaced.retain(|name| {
        let number = number_of(name, "log").or_else(|| number_of(name, "index"));
        number.is_some_and(|number| files.iter().any(|file| file.stands_for(number)))
    });
    if replaced.is_empty() {
        return Ok(left);
    }
    // The name of the file that stands for them may not be on the disk yet.
    disk.sync_folder(FOLDER)?;
    for name in replaced {
        let path = format!("{FOLDER}/{name}");
        if !remove_if_it_can_be(disk, &path) {
            left.extend(number_of(&name, "log").or_else(|| number_of(&name, "index")));
        }
    }
    disk.sync_folder(FOLDER)?;
    Ok(left)
}

/// Opens all segments, in order. Those for which another stands are left out.
///
/// # Errors
/// When one is of a newer version, or the disk fails.
pub(crate) fn open_segments(disk: &dyn Disk) -> Result<Vec<SegmentFile>, OpenError> {
    let failed = |name: &str, error| OpenError::Disk {
        file: disk.display_name(name),
        error,
    };
    let names = disk.list(FOLDER).map_err(|error| failed(FOLDER, error))?;
    let mut numbers: Vec<u64> = names
        .iter()
        .filter_map(|name| number_of(name, "log"))
        .collect();
    numbers.sort_unstable();
    let mut segments: Vec<SegmentFile> = Vec::with_capacity(numbers.len());
    for number in numbers {
        if (segments.last()).is_some_and(|before| before.stands_for(number)) {
            continue;
        }
        let name = segment_name(number);
        let open = || {
            let file = disk.open(&name)?;
            let mut header = [0; SEGMENT_HEADER_BYTES];
            let read = file.read_at(0, &mut header)?;
            let length = file.length()?;
            Ok((file, length, SegmentHeader::decode(&header[..read])))
        };
        let (file, length, header) = open().map_err(|error| failed(&name, error))?;
        let header = match header {
            Ok(header) if header.number == number => Some(header),
            Ok(_) | Err(HeaderError::Damaged) => None,
            Err(HeaderError::Newer(version)) => {
                let file = disk.display_name(&name);
                return Err(OpenError::Newer {
                    file,
                    version,
                    known: VERSION,
                });
            }
        };
        segments.push(SegmentFile {
            number,
            name,
            file,
            length,
            header,
        });
    }
    Ok(segments)
}

/// Where a segment begins and ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) first_sequence: u64,
    pub(crate) first_position: u64,
    pub(crate) end: End,
    /// Whether all its frames were found; sound if it was not looked into.
    pub(crate) found: Soundness,
}

/// Whether all frames of a segment were found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Soundness {
    Sound,
    /// Some are damaged or missing.
    Damaged,
    /// Some could not be read, which may pass.
    Unreadable,
}

/// Extent of a log, and its damaged places.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// Of each segment's file.
    pub(crate) extents: Vec<Extent>,
    pub(crate) damage: Vec<Damage>,
    /// The rest of an append that was cut off; it is not damage.
    pub(crate) torn: Option<Damage>,
    /// Up to where the last segment is known to be synced, as an offset.
    pub(crate) synced_offset: u64,
}

/// Frames to walk through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    pub(crate) seal: Seal,
    /// A checkpoint has applied the frames up to here: they were synced.
    pub(crate) applied: u64,
    /// Segments that end before this frame are not looked into.
    pub(crate) from_sequence: u64,
}

/// Called with each frame: the index of its segment, its offset, its header, and its body.
pub(crate) type Visit<'a> = dyn FnMut(usize, u64, &Header, &[u8]) -> io::Result<()> + 'a;

/// Visits the frames of a log in order.
///
/// # Errors
/// When the disk fails, or `visit` does.
pub(crate) fn walk(
    disk: &dyn Disk,
    files: &[SegmentFile],
    walk: &Walk,
    visit: &mut Visit<'_>,
) -> io::Result<Walked> {
    let mut walked = Walked::default();
    let firsts = files.iter().map(|file| first_of(file, walk.seal));
    let firsts = firsts.collect::<io::Result<Vec<_>>>()?;
    // The end of the segment before.
    let mut before: Option<End> = None;
    for (index, file) in files.iter().enumerate() {
        let (first_sequence, first_position) = match (firsts[index], before) {
            (Some(first), _) => first,
            (None, Some(before)) => (before.sequence + 1, before.position),
            (None, None) => (walk.applied + 1, 1),
        };
        let segment = Place {
            disk,
            index,
            file,
            start: End {
                offset: SEGMENT_HEADER_BYTES as u64,
                sequence: first_sequence.saturating_sub(1),
                position: first_position,
            },
            next: firsts.get(index + 1).copied().flatten(),
            is_last: index + 1 == files.len(),
        };
        if file.header.is_none() {
            walked.damage.push(segment.damage(Damaged {
                offset: 0,
                bytes: SEGMENT_HEADER_BYTES as u64,
                reason: Reason::FileHeader,
            }));
        }
        let (end, found) = segment.walk(walk, &mut walked, visit)?;
        before = Some(end);
        walked.extents.push(Extent {
            first_sequence,
            first_position,
            end,
            found,
        });
    }
    Ok(walked)
}

/// A segment among its neighbours.
struct Place<'a> {
    disk: &'a dyn Disk,
    index: usize,
    file: &'a SegmentFile,
    /// Where its first frame begins.
    start: End,
    /// Sequence and position that the next segment begins with.
    next: Option<(u64, u64)>,
    is_last: bool,
}

impl Place<'_> {
    fn damage(&self, damaged: Damaged) -> Damage {
        Damage {
            file: self.disk.display_name(&self.file.name),
            offset: damaged.offset,
            bytes: damaged.bytes,
            reason: damaged.reason.to_string(),
        }
    }

    /// Visits its frames, adds its damage, and returns its end and whether all were found.
    fn walk(
        &self,
        walk: &Walk,
        walked: &mut Walked,
        visit: &mut Visit<'_>,
    ) -> io::Result<(End, Soundness)> {
        walked.synced_offset = self.start.offset;
        if let Some((sequence, position)) = self.next
            && sequence <= walk.from_sequence
        {
            let end = End {
                offset: self.file.length,
                sequence: sequence.saturating_sub(1),
                position,
            };
            return Ok((end, Soundness::Sound));
        }
        let next_sequence = self.next.map_or(u64::MAX, |(sequence, _)| sequence);
        let survey = Survey::of(self.file, walk.seal, self.start, next_sequence)?;
        let synced = if self.is_last {
            survey.synced.max(walk.applied)
        } else {
            u64::MAX
        };
        let cut = survey.gaps.iter().find(|gap| gap.is_torn(synced));
        let limit = cut.map_or(u64::MAX, |gap| gap.offset);
        let stretches = survey.gaps.iter().flat_map(|gap| &gap.stretches);
        let kept = stretches.filter(|stretch| stretch.offset < limit);
        let mut damage: Vec<Damaged> = kept.copied().collect();
        if cut.is_some() {
            walked.torn = Some(self.damage(Damaged {
                offset: limit,
                bytes: survey.last_offset - limit,
                reason: Reason::Torn,
            }));
        }
        let mut frames = Frames::new(self.file, walk.seal, self.start, next_sequence);
        let mut end = self.start;
        while let Some(found) = frames.next()? {
            let (offset, header) = match found {
                Ok(frame) => frame,
                Err(stretch) => {
                    // The survey may have read it.
                    let is_new = stretch.reason == Reason::Unreadable
                        && stretch.offset < limit
                        && end.sequence + 1 < next_sequence
                        && !damage.contains(&stretch);
                    damage.extend(is_new.then_some(stretch));
                    continue;
                }
            };
            if offset >= limit {
                break;
            }
            visit(self.index, offset, &header, frames.scanner.body())?;
            end = frames.end;
            if header.sequence <= synced {
                walked.synced_offset = end.offset;
            }
        }
        let is_short = self.is_last && end.sequence < walk.applied;
        if is_short && survey.gaps.is_empty() && !self.file.has_gaps() {
            damage.push(Damaged::missing(end.offset));
        }
        let soundness = |damaged: &Damaged| match damaged.reason {
            Reason::Unreadable => Soundness::Unreadable,
            _ => Soundness::Damaged,
        };
        let found = damage.iter().map(soundness).max();
        let told = damage.iter().map(|damaged| self.damage(*damaged));
        walked.damage.extend(told);
        Ok((end, found.unwrap_or(Soundness::Sound)))
    }
}

/// Sequence and position that a segment begins with: by its header, or by its first sound frame.
fn first_of(file: &SegmentFile, seal: Seal) -> io::Result<Option<(u64, u64)>> {
    if let Some(header) = file.header {
        return Ok(Some((header.first_sequence, header.first_position)));
    }
    let mut scanner = Scanner::new(&*file.file, seal, SEGMENT_HEADER_BYTES as u64, file.length);
    while let Some(found) = scanner.next()? {
        if let Found::Frame { header, .. } = found {
            return Ok(Some((header.sequence, header.first_position)));
        }
    }
    Ok(None)
}

/// The frames of one segment that count: those whose sequence rises, up to that of the next segment.
struct Frames<'a> {
    scanner: Scanner<'a>,
    end: End,
    next_sequence: u64,
    /// A frame was met that the next segment has.
    is_superseded: bool,
}

impl<'a> Frames<'a> {
    fn new(file: &'a SegmentFile, seal: Seal, start: End, next_sequence: u64) -> Self {
        Self {
            scanner: Scanner::new(&*file.file, seal, start.offset, file.length),
            end: start,
            next_sequence,
            is_superseded: false,
        }
    }

    /// The next frame, or a stretch that is none.
    fn next(&mut self) -> io::Result<Option<Result<(u64, Header), Damaged>>> {
        let Some(found) = self.scanner.next()? else {
            return Ok(None);
        };
        let (offset, header) = match found {
            Found::Damaged(damaged) => return Ok(Some(Err(damaged))),
            Found::Frame { offset, header } => (offset, header),
        };
        // The segment failed, and the next one has this frame and all that follow.
        if header.sequence >= self.next_sequence {
            self.is_superseded = true;
            return Ok(None);
        }
        if header.sequence <= self.end.sequence || header.first_position < self.end.position {
            return Ok(Some(Err(Damaged {
                offset,
                bytes: header.frame_bytes(),
                reason: Reason::Header,
            })));
        }
        let messages = super::frame::messages(self.scanner.body()).count() as u64;
        self.end = End {
            offset: offset + header.frame_bytes(),
            sequence: header.sequence,
            position: header.first_position.saturating_add(messages),
        };
        Ok(Some(Ok((offset, header))))
    }
}

/// Where frames of a segment are missing, and up to where it was synced.
#[derive(Debug)]
struct Survey {
    gaps: Vec<Gap>,
    /// The highest sequence that a frame tells to be synced.
    synced: u64,
    /// Where the last frame or stretch ends.
    last_offset: u64,
}

/// A place where frames are missing, or bytes that are no frame.
#[derive(Debug)]
struct Gap {
    offset: u64,
    stretches: Vec<Damaged>,
    /// Sequence of the frame before.
    before: u64,
    /// Sequence of the frame after, if there is one.
    after: Option<u64>,
}

impl Gap {
    fn new(mut stretches: Vec<Damaged>, offset: u64, before: u64, after: Option<u64>) -> Self {
        if stretches.is_empty() {
            stretches.push(Damaged::missing(offset));
        }
        Self {
            offset: stretches[0].offset,
            stretches,
            before,
            after,
        }
    }

    /// Whether something is missing here that was not synced.
    fn is_torn(&self, synced: u64) -> bool {
        // A power cut leaves no such place.
        let mut stretches = self.stretches.iter();
        if stretches.any(|stretch| stretch.reason == Reason::Unreadable) {
            return false;
        }
        match self.after {
            Some(after) => after - 1 > synced,
            None => self.before >= synced,
        }
    }
}

impl Survey {
    fn of(file: &SegmentFile, seal: Seal, start: End, next_sequence: u64) -> io::Result<Self> {
        let mut survey = Self {
            gaps: Vec::new(),
            synced: start.sequence,
            last_offset: start.offset,
        };
        let mut frames = Frames::new(file, seal, start, next_sequence);
        let may_have_gaps = file.has_gaps();
        // Damaged stretches since the last frame.
        let mut open = Vec::new();
        let mut before = start.sequence;
        while let Some(found) = frames.next()? {
            let (offset, header) = match found {
                Ok(frame) => frame,
                Err(damaged) => {
                    survey.last_offset = damaged.offset + damaged.bytes;
                    open.push(damaged);
                    continue;
                }
            };
            let sequence = header.sequence;
            if !open.is_empty() || (sequence != before + 1 && !may_have_gaps) {
                let stretches = std::mem::take(&mut open);
                let gap = Gap::new(stretches, offset, before, Some(sequence));
                survey.gaps.push(gap);
            }
            before = sequence;
            survey.synced = survey.synced.max(header.synced());
            survey.last_offset = offset + header.frame_bytes();
        }
        // A segment that failed may have the rest of frames that the next one has: nothing is missing then.
        let is_whole = before + 1 == next_sequence;
        let is_short = if may_have_gaps {
            // It has no room behind its last frame.
            !frames.is_superseded && frames.end.offset < file.length
        } else {
            !is_whole
        } && next_sequence != u64::MAX;
        if (!open.is_empty() && !is_whole) || is_short {
            survey
                .gaps
                .push(Gap::new(open, frames.end.offset, before, None));
        }
        Ok(survey)
    }
}
