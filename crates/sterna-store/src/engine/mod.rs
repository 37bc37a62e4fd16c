//! The engine: one log for all shards, and the records.
//!
//! Handles append to a buffer in memory. The *writer* takes all that is in it, writes it to the log, tells
//! the handles, and syncs it. The *reader* answers requests for messages. The *maintenance* brings changes of
//! records into their file, and removes unneeded segments. Each is a value with a step; [`Running`] gives
//! each a thread, and [`Engine::turn`] does their steps in virtual time.

pub(crate) mod changes;
mod check;
mod failure;
mod handle;
mod inbox;
pub(crate) mod kept;
mod maintenance;
mod read;
pub(crate) mod records;
pub(crate) mod rewrite;
mod running;
pub(crate) mod shared;
mod usage;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

pub use handle::{Appended, Full, Handle};
pub use read::{Answer, Request, StoredMessage};
pub use running::{Running, Unwritten};
pub use shared::{Damage, Progress};
pub use usage::{SyncTimes, Usage, UsageReader};

use crate::disk::{Disk, DiskFile, UNFINISHED, read_around, remove_if_it_can_be};
use crate::error::OpenError;
use crate::log::frame::{Item, Seal, items};
use crate::log::index::IndexBuilder;
use crate::log::recovery::{
    SegmentFile, Soundness, Walk, Walked, open_segments, remove_replaced, walk,
};
use crate::log::segment::{
    FOLDER, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, SegmentState, number_of, segment_name,
};
use crate::settings::Settings;
use changes::Changes;
use maintenance::{Checkpoint, Maintenance};
use read::Reader;
use records::{REMEDY, Records};
use shared::{Shared, Start};
use writer::{Step, Writer};

/// The state of a store when it was opened.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// There was none before.
    pub is_new: bool,
    /// Damaged places. They cost the frames and records that are named, nothing else.
    pub damage: Vec<Damage>,
    /// The rest of an append that was cut off, at the end of the log. No sync was acknowledged for it.
    pub torn: Option<Damage>,
    /// Frames that were newer than the records' file.
    pub replayed_frames: u64,
    /// Number of records in the records' file.
    pub records: u64,
}

/// A store that is open. Nothing goes on by itself: see [`turn`](Self::turn) and [`spawn`](Self::spawn).
///
/// Dropping it is like killing a process: appends that are not written yet are lost.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    records: Arc<Records>,
    writer: Writer,
    reader: Reader,
    maintenance: Maintenance,
    report: OpenReport,
    /// The virtual clock of [`finish`](Self::finish).
    now_ms: u64,
}

/// Number of attempts on a disk that fails, in [`Engine::finish`].
const MOST_ATTEMPTS: usize = 20;

impl Engine {
    /// A reader of the store's figures.
    #[must_use]
    pub fn usage_reader(&self) -> UsageReader {
        UsageReader::new(Arc::clone(&self.shared))
    }

    /// Opens the store of a disk, and makes it where there is none. Only one process may have it open.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(disk: Arc<dyn Disk>, settings: Settings) -> Result<Self, OpenError> {
        let mut identity = [0; 16];
        getrandom::fill(&mut identity).map_err(|error| OpenError::Disk {
            file: "the system's random numbers".to_owned(),
            error: io::Error::other(error.to_string()),
        })?;
        Self::open_with_identity(disk, settings, identity)
    }

    /// As [`open`](Self::open), with the identity that a new store gets: for tests that are the same each
    /// time.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_with_identity(
        disk: Arc<dyn Disk>,
        settings: Settings,
        new_identity: [u8; 16],
    ) -> Result<Self, OpenError> {
        settings.check().map_err(OpenError::Setting)?;
        let failed = |error: io::Error| OpenError::Disk {
            file: disk.display_name(""),
            error,
        };
        disk.create_folder("").map_err(failed)?;
        disk.create_folder(FOLDER).map_err(failed)?;
        for folder in ["", FOLDER] {
            remove_unfinished(&*disk, folder).map_err(failed)?;
            try_folder(&*disk, folder)?;
        }
        let files = open_segments(&*disk)?;
        let replaced = remove_replaced(&*disk, &files).map_err(failed)?;
        let mut report = OpenReport::default();
        let found = if let Some(found) = records::open(&disk, settings.records_cache_bytes)? {
            found
        } else {
            report.is_new = files.is_empty();
            records::create(
                &disk,
                identity_without_records(&*disk, &files, new_identity)?,
                settings.records_cache_bytes,
            )?;
            records::open(&disk, settings.records_cache_bytes)?.ok_or(OpenError::Missing)?
        };
        report.records = found.count;
        report.damage = found.damage;
        let applied = found.applied;
        let mut changes = Changes::default();
        let wanted = Walk {
            seal: Seal::of(found.identity),
            applied: applied.sequence,
            from_sequence: applied.sequence + 1,
        };
        let indexed = disk.list(FOLDER).map_err(failed)?;
        let indexed: BTreeSet<u64> = indexed
            .iter()
            .filter_map(|name| number_of(name, "index"))
            .collect();
        let mut builders: BTreeMap<u64, IndexBuilder> = BTreeMap::new();
        let walked = walk(
            &*disk,
            &files,
            &wanted,
            &mut |file, offset, header, body| {
                if header.sequence > applied.sequence {
                    report.replayed_frames += 1;
                    take_changes(body, &mut changes);
                }
                let file: &SegmentFile = &files[file];
                if !indexed.contains(&file.number) {
                    let first =
                        (file.header).map_or(header.first_position, |own| own.first_position);
                    let index = builders.entry(file.number);
                    (index.or_insert_with(|| IndexBuilder::new(first))).add_frame(
                        offset,
                        header.first_position,
                        body,
                    );
                }
                Ok(())
            },
        )
        .map_err(failed)?;
        report
            .damage
            .extend(missing_front(&*disk, &files, found.first_sequence, applied));
        report.damage.extend(walked.damage.iter().cloned());
        report.torn.clone_from(&walked.torn);
        for damage in &report.damage {
            tracing::warn!("damaged store: {damage}");
        }
        if let Some(torn) = &report.torn {
            tracing::info!("store: {torn}");
        }
        let segments = take_over(&*disk, &files, &walked, builders).map_err(failed)?;
        let last = segments.last().map(|segment| segment.end());
        let start = Start {
            identity: found.identity,
            last_sequence: last.map_or(0, |end| end.sequence).max(applied.sequence),
            next_position: last
                .map_or(1, |end| end.position)
                .max(applied.next_position),
            segments,
            changes,
            damage: report.damage.clone(),
        };
        let shared = Arc::new(Shared::new(disk, settings, start));
        let records = Arc::new(found.records);
        Ok(Self {
            writer: Writer::new(Arc::clone(&shared)),
            reader: Reader::new(Arc::clone(&shared)),
            maintenance: Maintenance::new(
                Arc::clone(&shared),
                Arc::clone(&records),
                applied,
                indexed,
                replaced,
            ),
            shared,
            records,
            report,
            now_ms: 0,
        })
    }

    /// The state of the store when it was opened.
    #[must_use]
    pub fn report(&self) -> &OpenReport {
        &self.report
    }

    /// A handle for a shard. The engine's threads call `waker` when an answer has come. They also call it when an
    /// append is as safe as the shard has asked for. It must not call the handle.
    #[must_use]
    pub fn handle(&self, waker: Box<dyn Fn() + Send + Sync>) -> Handle {
        Handle::new(Arc::clone(&self.shared), Arc::clone(&self.records), waker)
    }

    /// Damage that has been found so far.
    #[must_use]
    pub fn damage(&self) -> Vec<Damage> {
        self.shared.damage()
    }

    /// Looks at every segment, frame in memory, sum and flag of the store; for tests, after each of their steps.
    ///
    /// # Panics
    /// Where something does not agree with what it stands for.
    pub fn check(&self) {
        check::segments(&self.shared);
        self.writer.check();
        self.reader.check();
        self.maintenance.check();
    }

    /// Does the work of the threads of [`Running`] up to a time, in milliseconds of a virtual clock.
    ///
    /// `is_busy` is asked before each step, and the turn ends when it is true. A simulated disk that takes its time
    /// has steps wait for it. Returns whether something was done.
    pub fn turn(&mut self, now_ms: u64, is_busy: &mut dyn FnMut() -> bool) -> bool {
        let mut did_something = false;
        loop {
            if is_busy() {
                return did_something;
            }
            let wrote = self.writer.step(now_ms) == Step::Again;
            let answered = !is_busy() && self.answer_one();
            let maintained =
                !is_busy() && self.maintenance.step(now_ms, Checkpoint::WhenDue) == Step::Again;
            if !(wrote || answered || maintained) {
                return did_something;
            }
            did_something = true;
        }
    }

    fn answer_one(&mut self) -> bool {
        if std::mem::take(&mut self.shared.read_queue().segments_gone) {
            self.reader.close_gone();
        }
        let request = self.shared.read_queue().requests.pop_front();
        let Some((handle, request)) = request else {
            return false;
        };
        if let Some(answer) = self.reader.answer(&request) {
            handle.push_answer(answer);
            true
        } else {
            self.shared
                .read_queue()
                .requests
                .push_front((handle, request));
            false
        }
    }

    /// Writes and syncs everything that was appended.
    pub(crate) fn write_out(&mut self) -> Result<(), Unwritten> {
        let last = self.shared.inbox().next_sequence - 1;
        self.shared.want_synced(last);
        let mut attempts = 0;
        while !self.writer.is_done() {
            // Room may come, but there is no waiting here.
            if let Step::At(at_ms) = self.writer.step(self.now_ms) {
                self.now_ms = at_ms;
                attempts += 1;
            }
            if attempts > MOST_ATTEMPTS {
                return Err(Unwritten);
            }
        }
        Ok(())
    }

    /// Writes and syncs everything that was appended, and brings the records' file up to date.
    pub(crate) fn finish(mut self) -> Result<(), Unwritten> {
        self.write_out()?;
        let mut attempts = 0;
        loop {
            match self.maintenance.step(self.now_ms, Checkpoint::Now) {
                Step::Again => {}
                _ if self.maintenance.is_done() => {
                    self.writer.close();
                    return Ok(());
                }
                Step::At(at_ms) => self.now_ms = at_ms,
                Step::Idle => {}
            }
            attempts += 1;
            if attempts > MOST_ATTEMPTS + self.shared.segments().len() {
                return Err(Unwritten);
            }
        }
    }

    /// Gives the writer, the reader and the maintenance a thread each.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn spawn(self) -> io::Result<Running> {
        Running::start(self)
    }
}

/// Makes a file in a folder and removes it: a store that can write nothing would keep nothing. A full disk is no
/// reason, room may come.
fn try_folder(disk: &dyn Disk, folder: &str) -> Result<(), OpenError> {
    let separator = if folder.is_empty() { "" } else { "/" };
    let name = format!("{folder}{separator}probe{UNFINISHED}");
    let tried = disk.create(&name).and_then(|_| disk.remove(&name));
    let is_full = |error: &io::Error| {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(error.kind(), StorageFull | QuotaExceeded)
    };
    match tried {
        Err(error) if !is_full(&error) => Err(OpenError::Disk {
            file: disk.display_name(folder),
            error: io::Error::new(error.kind(), format!("no file can be made here: {error}")),
        }),
        _ => Ok(()),
    }
}

/// Files that are missing at the front of the log, although nobody noted that they may go.
pub(crate) fn missing_front(
    disk: &dyn Disk,
    files: &[SegmentFile],
    first_sequence: u64,
    applied: records::Applied,
) -> Option<Damage> {
    let begins_with = match files.first() {
        // A header that is damaged is told elsewhere.
        Some(file) => file.header?.first_sequence,
        None => applied.sequence + 1,
    };
    (begins_with > first_sequence).then(|| Damage {
        file: disk.display_name(FOLDER),
        offset: 0,
        bytes: 0,
        reason: format!(
            "files are missing at the front of the log: frames {first_sequence} to {}",
            begins_with - 1
        ),
    })
}

fn remove_unfinished(disk: &dyn Disk, folder: &str) -> io::Result<()> {
    for name in disk.list(folder)? {
        if name.ends_with(UNFINISHED) {
            let separator = if folder.is_empty() { "" } else { "/" };
            remove_if_it_can_be(disk, &format!("{folder}{separator}{name}"));
        }
    }
    Ok(())
}

/// The identity of a store whose records' file is missing. That is no loss where the log begins with the first
/// frame and is not compacted. All changes are then in the log.
pub(crate) fn identity_without_records(
    disk: &dyn Disk,
    files: &[SegmentFile],
    new: [u8; 16],
) -> Result<[u8; 16], OpenError> {
    let Some(first) = files.iter().find_map(|file| file.header) else {
        return if files.is_empty() {
            Ok(new)
        } else {
            Err(OpenError::Damaged {
                file: disk.display_name(records::FILE),
                reason: format!("it is missing, and no segment's header is whole. {REMEDY}"),
            })
        };
    };
    let lost = |reason: String| {
        Err(OpenError::Damaged {
            file: disk.display_name(records::FILE),
            reason: format!("{reason}. {REMEDY}"),
        })
    };
    if first.first_sequence != 1 {
        return lost(format!(
            "it is missing, and the log begins with frame {}: the records before it are lost",
            first.first_sequence
        ));
    }
    if let Some(file) = files.iter().find(|file| file.has_gaps()) {
        return lost(format!(
            "it is missing, and the log was compacted: the records that were taken out of {} are lost",
            disk.display_name(&file.name)
        ));
    }
    Ok(first.identity)
}

pub(crate) fn take_changes(body: &[u8], changes: &mut Changes) {
    for item in items(body) {
        match item {
            Ok(Item::Put { key, value }) => changes.change(key, Some(value)),
            Ok(Item::Remove { key }) => changes.change(key, None),
            _ => {}
        }
    }
}

/// Makes the files fit the walk. The last is cut where it ends, and put onto the disk. No more is written
/// to these files. `indexes` are those that the walk has made, by the segment's number.
fn take_over(
    disk: &dyn Disk,
    files: &[SegmentFile],
    walked: &Walked,
    mut indexes: BTreeMap<u64, IndexBuilder>,
) -> io::Result<Vec<Arc<Segment>>> {
    let mut segments = Vec::with_capacity(files.len());
    for (index, (file, extent)) in files.iter().zip(&walked.extents).enumerate() {
        if index + 1 == files.len() {
            // An empty one may stay.
            if extent.end.offset <= SEGMENT_HEADER_BYTES as u64
                && remove_if_it_can_be(disk, &segment_name(file.number))
            {
                disk.sync_folder(FOLDER)?;
                continue;
            }
            if file.length != extent.end.offset {
                file.file.set_length(extent.end.offset)?;
            }
            write_again(&*file.file, walked.synced_offset, extent.end.offset)?;
            file.file.sync()?;
        }
        let header = SegmentHeader {
            // This, and what it stands for, are not asked for again.
            identity: [0; 16],
            number: file.number,
            first_sequence: extent.first_sequence,
            first_position: extent.first_position,
            has_gaps: file.has_gaps(),
            joined: 0,
        };
        let index = indexes.remove(&file.number);
        let index = match extent.found {
            Soundness::Sound => index,
            Soundness::Damaged => index.map(|mut index| {
                index.set_damaged();
                index
            }),
            // It is made again from the file, which may be readable then.
            Soundness::Unreadable => None,
        };
        let state = SegmentState {
            end: extent.end,
            file: None,
            index,
            lacks_index: false,
            is_replaced: false,
        };
        segments.push(Arc::new(Segment::new(&header, state)));
    }
    Ok(segments)
}

/// Writes the bytes of a file between two offsets once more.
///
/// They may be known to the operating system only. Where a sync failed before the process died, the system takes
/// them for written, and would sync nothing. Only bytes that are written again are synced.
fn write_again(file: &dyn DiskFile, from: u64, end: u64) -> io::Result<()> {
    const CHUNK_BYTES: u64 = 1 << 18;
    let mut bytes = Vec::new();
    let mut at = from;
    while at < end {
        bytes.resize((end - at).min(CHUNK_BYTES) as usize, 0);
        let (read, unreadable) = read_around(file, at, &mut bytes)?;
        // A place that cannot be read today keeps what it has.
        let mut from = 0;
        for place in unreadable {
            let (start, end) = ((place.start - at) as usize, (place.end - at) as usize);
            file.write_at(at + from as u64, &bytes[from..start])?;
            from = end;
        }
        file.write_at(at + from as u64, &bytes[from..read])?;
        at += bytes.len() as u64;
    }
    Ok(())
}
