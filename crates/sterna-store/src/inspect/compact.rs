//! Makes the files of a store smaller while no broker has it open.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use sterna_broker::LogNeeds;

use crate::disk::{Disk, remove_if_there, replace};
use crate::engine::Engine;
use crate::engine::kept::{Kept, Room};
use crate::engine::records;
use crate::engine::shared::HandleNeeds;
use crate::error::OpenError;
use crate::log::frame::{Draft, Seal, messages, put_messages};
use crate::log::index::{IndexBuilder, IndexFile};
use crate::log::recovery::{SegmentFile, Walk, Walked, open_segments, walk};
use crate::log::segment::{FOLDER, SegmentHeader, index_name};
use crate::settings::Settings;

/// Effect of compacting.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Compacted {
    /// Bytes of the log and the records' file before.
    pub before_bytes: u64,
    /// The same afterwards.
    pub after_bytes: u64,
    /// Segments that were written anew.
    pub rewritten: u64,
}

/// Makes a store smaller.
///
/// It brings the records' file up to date, and gives back free pages. It takes applied changes out of the log's
/// segments, and messages that nobody needs. The messages of a frame stay or go together.
///
/// `needs` are those of all readers: [`needs`](super::needs) has them, by their records.
///
/// # Errors
/// When the store cannot be opened, or the disk fails. Work up to then stays, and nothing is lost.
pub fn compact(
    disk: &Arc<dyn Disk>,
    settings: &Settings,
    needs: LogNeeds,
) -> Result<Compacted, OpenError> {
    let failed = |error: io::Error| OpenError::Disk {
        file: disk.display_name(""),
        error,
    };
    if disk.open(records::FILE).is_err() {
        return Err(OpenError::Missing);
    }
    let mut compacted = Compacted {
        before_bytes: size(&**disk).map_err(failed)?,
        ..Compacted::default()
    };
    let engine = Engine::open(Arc::clone(disk), settings.clone())?;
    engine
        .finish()
        .map_err(|error| failed(io::Error::other(error)))?;
    let found = records::open(disk, settings.records_cache_bytes)?.ok_or(OpenError::Missing)?;
    let seal = Seal::of(found.identity);
    let applied = found.applied.sequence;
    let needs = [HandleNeeds {
        all_from: needs.all_from,
        needs: Arc::new(needs),
    }];
    let most_bytes = settings.maximum_rewrite_memory_bytes;
    let files = open_segments(&**disk)?;
    for (index, file) in files.iter().enumerate() {
        // The last segment tells where the log goes on.
        let next = files.get(index + 1).and_then(|next| next.header);
        let next = next.filter(|next| next.first_sequence <= applied + 1);
        if let Some(next) = next
            && rewrite(&**disk, file, &next, seal, &needs, most_bytes).map_err(failed)?
        {
            compacted.rewritten += 1;
        }
    }
    found
        .records
        .compact()
        .map_err(|reason| failed(io::Error::other(reason)))?;
    drop(found);
    compacted.after_bytes = size(&**disk).map_err(failed)?;
    Ok(compacted)
}

fn size(disk: &dyn Disk) -> io::Result<u64> {
    let mut bytes = disk.open(records::FILE)?.length()?;
    for name in disk.list(FOLDER)? {
        bytes += disk.open(&format!("{FOLDER}/{name}"))?.length()?;
    }
    Ok(bytes)
}

/// Whether all frames of a segment were found, up to that which the next begins with. A damaged file stays as it is, so
/// that it can be looked at.
fn is_sound(file: &SegmentFile, walked: &Walked, next: &SegmentHeader) -> bool {
    // The walk does not know that another file follows, and takes what is missing at the end for room.
    let is_whole = walked.extents.last().is_some_and(|last| {
        if file.has_gaps() {
            last.end.offset == file.length
        } else {
            last.end.sequence + 1 >= next.first_sequence
        }
    });
    is_whole && walked.damage.is_empty() && walked.torn.is_none()
}

/// Writes a segment anew that ends where the next begins, if it gets smaller by that.
fn rewrite(
    disk: &dyn Disk,
    file: &SegmentFile,
    next: &SegmentHeader,
    seal: Seal,
    needs: &[HandleNeeds],
    most_bytes: usize,
) -> io::Result<bool> {
    let end = next.first_position;
    let Some(header) = file.header else {
        return Ok(false);
    };
    let wanted = Walk {
        seal,
        applied: 0,
        from_sequence: 0,
    };
    let alone = std::slice::from_ref(file);
    let mut index = IndexBuilder::new(header.first_position);
    let walked = walk(disk, alone, &wanted, &mut |_, offset, header, body| {
        index.add_frame(offset, header.first_position, body);
        Ok(())
    })?;
    if !is_sound(file, &walked, next) {
        return Ok(false);
    }
    let kept = if needs.iter().all(|needs| end <= needs.all_from) {
        let bytes = index.encode(file.number, file.length, end, seal);
        let index = IndexFile::decode(bytes, file.number, file.length, seal);
        let account = AtomicU64::new(0);
        let room = Room::new(most_bytes, &account);
        let positions = header.first_position..end;
        index.and_then(|index| {
            let kept = Kept::of(&index, &positions, needs, &room)?;
            kept.frames(&index, &room)
        })
    } else {
        None
    };
    let header = SegmentHeader {
        has_gaps: true,
        ..header
    };
    let mut bytes = header.encode().to_vec();
    let mut draft = Draft::default();
    let walked = walk(disk, alone, &wanted, &mut |_, offset, header, body| {
        let positions = match &kept {
            Some(frames) => {
                let found = frames.binary_search_by_key(&offset, |frame| frame.offset);
                found.ok().map(|at| frames[at].positions.clone())
            }
            None => messages(body).next().map(|_| 0..u64::MAX),
        };
        let Some(positions) = positions else {
            return Ok(());
        };
        put_messages(&mut bytes, &mut draft, (header, body), positions, seal)
            .map(|_| ())
            .map_err(io::Error::other)
    })?;
    if !is_sound(file, &walked, next) || bytes.len() as u64 >= file.length {
        return Ok(false);
    }
    remove_if_there(disk, &index_name(file.number))?;
    replace(disk, FOLDER, &file.name, &bytes)?;
    Ok(true)
}
