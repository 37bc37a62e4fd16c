//! Looks into a store that no broker has open, for `sterna store`.

mod compact;
mod export;
mod import;
mod lines;
mod overlay;

use std::collections::BTreeSet;
use std::sync::Arc;

use sterna_broker::{LogNeeds, NeedsLimits};

pub use compact::{Compacted, compact};
pub use export::{Exported, export};
pub use import::{ImportError, Imported, import};
pub use lines::{Counts, Item, LineError, LineReader, LineWriter};

use crate::disk::{Disk, DiskFile, read_all};
use crate::engine::changes::Changes;
use crate::engine::records::{self, Applied};
use crate::engine::{Damage, identity_without_records, missing_front, take_changes};
use crate::error::OpenError;
use crate::log::frame::{Seal, messages};
use crate::log::index::{Index as _, IndexFile};
use crate::log::recovery::{SegmentFile, Visit, Walk, Walked, open_segments, walk};
use crate::log::segment::index_name;
use crate::settings::Settings;
use overlay::Overlay;

/// One segment of the log.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SegmentReport {
    /// Its file, with its folder.
    pub file: String,
    /// Bytes up to the end of its last frame.
    pub bytes: u64,
    /// Its sound frames.
    pub frames: u64,
    /// Its messages.
    pub messages: u64,
    /// Position of its first message, and that behind its last.
    pub positions: (u64, u64),
    /// Number of different topics.
    pub topics: u64,
    /// Whether its index is in a file that fits.
    pub has_index: bool,
    /// Whether it was written anew, without what nobody needed.
    pub is_rewritten: bool,
    /// Number of segments behind it that it stands for, too.
    pub joined: u32,
}

/// Content of a store, and its damaged places.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Inspection {
    /// The segments in order.
    pub segments: Vec<SegmentReport>,
    /// Number of records in their file, and bytes of their keys and values.
    pub records: u64,
    /// Bytes of their keys and values.
    pub record_bytes: u64,
    /// Frames that are newer than the records' file.
    pub unapplied_frames: u64,
    /// Damaged places.
    pub damage: Vec<Damage>,
    /// The rest of an append that was cut off. No sync was acknowledged for it.
    pub torn: Option<Damage>,
}

/// Reads a whole store and changes nothing.
///
/// A missing or damaged index is no damage: it is made again from its segment.
///
/// # Errors
/// When there is no store, it is of a newer version, or nothing of it can be read.
pub fn inspect(disk: &Arc<dyn Disk>) -> Result<Inspection, OpenError> {
    let store = ClosedStore::open(disk)?;
    let mut inspection = Inspection {
        records: store.records.count,
        record_bytes: store.records.bytes,
        damage: store.records.damage.clone(),
        ..Inspection::default()
    };
    let mut segments = vec![SegmentReport::default(); store.files.len()];
    let mut topics: Vec<BTreeSet<Box<str>>> = vec![BTreeSet::new(); store.files.len()];
    let applied = store.records.applied.sequence;
    let walked = store.walk(&mut |segment, _, header, body| {
        segments[segment].frames += 1;
        if header.sequence > applied {
            inspection.unapplied_frames += 1;
        }
        for (topic, _) in messages(body) {
            segments[segment].messages += 1;
            if !topics[segment].contains(topic) {
                topics[segment].insert(topic.into());
            }
        }
        Ok(())
    })?;
    for (index, extent) in walked.extents.iter().enumerate() {
        let segment = &mut segments[index];
        let file = &store.files[index];
        segment.file = disk.display_name(&file.name);
        segment.is_rewritten = file.has_gaps();
        segment.joined = file.header.map_or(0, |header| header.joined);
        segment.bytes = extent.end.offset;
        segment.positions = (extent.first_position, extent.end.position);
        segment.topics = topics[index].len() as u64;
        let read = disk
            .open(&index_name(file.number))
            .and_then(|file| read_all(&*file));
        segment.has_index = read.is_ok_and(|bytes| {
            let index = IndexFile::decode(bytes, file.number, extent.end.offset, store.seal());
            // One that lacks messages is none that readers use.
            index.is_some_and(|index| index.messages() >= segment.messages)
        });
    }
    inspection.damage.extend(store.missing_front());
    inspection.damage.extend(walked.damage);
    inspection.torn = walked.torn;
    inspection.segments = segments;
    Ok(inspection)
}

/// Whether a store has no messages, and no records but those whose key `is_of_node` knows: what a node notes of itself.
/// Also where there is no store.
///
/// # Errors
/// When it is of a newer version, or cannot be read. Then it is not known to be empty.
pub fn is_empty(
    disk: &Arc<dyn Disk>,
    is_of_node: &dyn Fn(&[u8]) -> bool,
) -> Result<bool, OpenError> {
    let store = match ClosedStore::open(disk) {
        Err(OpenError::Missing) => return Ok(true),
        store => store?,
    };
    let (mut has_messages, mut changes) = (false, Changes::default());
    let applied = store.records.applied.sequence;
    let walked = store.walk(&mut |_, _, header, body| {
        if messages(body).next().is_some() {
            has_messages = true;
            // Nothing behind it is of interest.
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        if header.sequence > applied {
            take_changes(body, &mut changes);
        }
        Ok(())
    });
    if has_messages {
        return Ok(false);
    }
    // A damaged place was a frame, or is a file that had some.
    if !walked?.damage.is_empty() || !store.records.damage.is_empty() {
        return Ok(false);
    }
    let mut has_records = false;
    let records = &store.records.records;
    let visited = records.snapshot(records.turn_to_read());
    let visited = visited.and_then(|snapshot| {
        snapshot.visit(&changes, &mut |key, _| has_records |= !is_of_node(key))
    });
    visited.map_err(|reason| OpenError::Damaged {
        file: disk.display_name(records::FILE),
        reason,
    })?;
    Ok(!has_records)
}

/// The needs of a store's readers, by their records: with it, [`compact`] takes out the rest.
///
/// They are told within the limits for rewriting in the settings; everything beyond stays. All stays if a record cannot
/// be understood.
///
/// # Errors
/// When there is no store, it is of a newer version, or its records cannot be read.
pub fn needs(disk: &Arc<dyn Disk>, settings: &Settings) -> Result<LogNeeds, OpenError> {
    let store = ClosedStore::open(disk)?;
    let (changes, ..) = store.unapplied()?;
    let records = &store.records.records;
    let limits = NeedsLimits {
        before: u64::MAX,
        readers: settings.maximum_rewrite_readers,
        filters: settings.maximum_rewrite_filters,
        positions: settings.maximum_rewrite_positions,
    };
    let needs = LogNeeds::of_records(limits, |visit| {
        let snapshot = records.snapshot(records.turn_to_read())?;
        snapshot.visit(&changes, visit)
    });
    let damaged = |reason| OpenError::Damaged {
        file: disk.display_name(records::FILE),
        reason,
    };
    let needs = needs.map_err(damaged)?;
    // A record that is damaged was left out.
    let is_whole = store.records.damage.is_empty();
    Ok(if is_whole { needs } else { LogNeeds::default() })
}

/// The files of a store, opened to be read only.
struct ClosedStore {
    disk: Arc<dyn Disk>,
    files: Vec<SegmentFile>,
    records: records::Found,
}

impl ClosedStore {
    fn open(disk: &Arc<dyn Disk>) -> Result<Self, OpenError> {
        let files = open_segments(&**disk)?;
        let file = match disk.open(records::FILE) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if files.is_empty() {
                    return Err(OpenError::Missing);
                }
                // Where that cannot be, it says why.
                identity_without_records(&**disk, &files, [0; 16])?;
                return Err(OpenError::Damaged {
                    file: disk.display_name(records::FILE),
                    reason: "it is missing. The log has all of it: start the broker, which makes it again"
                        .to_owned(),
                });
            }
            Err(error) => {
                let file = disk.display_name(records::FILE);
                return Err(OpenError::Disk { file, error });
            }
            Ok(file) => file,
        };
        // The library may repair the file when it opens it: not in the file itself.
        let file: Arc<dyn DiskFile> = Arc::new(Overlay::new(file));
        let records = records::open_file(disk, &file, Settings::default().records_cache_bytes)?;
        Ok(Self {
            disk: Arc::clone(disk),
            files,
            records,
        })
    }

    fn seal(&self) -> Seal {
        Seal::of(self.records.identity)
    }

    /// Files that are missing at the front of the log.
    fn missing_front(&self) -> Option<Damage> {
        let (first, applied) = (self.records.first_sequence, self.records.applied);
        missing_front(&*self.disk, &self.files, first, applied)
    }

    fn walk(&self, visit: &mut Visit<'_>) -> Result<Walked, OpenError> {
        let wanted = Walk {
            seal: self.seal(),
            applied: self.records.applied.sequence,
            from_sequence: 0,
        };
        walk(&*self.disk, &self.files, &wanted, visit).map_err(|error| OpenError::Disk {
            file: self.disk.display_name(""),
            error,
        })
    }

    /// Changes of frames that the records' file does not have yet.
    fn unapplied(&self) -> Result<(Changes, Applied, Walked), OpenError> {
        let mut changes = Changes::default();
        let applied = self.records.applied;
        let walked = self.walk(&mut |_, _, header, body| {
            if header.sequence > applied.sequence {
                take_changes(body, &mut changes);
            }
            Ok(())
        })?;
        let end = walked.extents.last().map(|extent| extent.end);
        let end = Applied {
            sequence: end.map_or(0, |end| end.sequence).max(applied.sequence),
            next_position: end.map_or(1, |end| end.position).max(applied.next_position),
        };
        Ok((changes, end, walked))
    }
}
