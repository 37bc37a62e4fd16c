//! Makes the files of a store smaller while no broker has it open.

use std::io;
use std::sync::Arc;

use crate::disk::Disk;
use crate::engine::Engine;
use crate::engine::records;
use crate::error::OpenError;
use crate::log::frame::{Draft, Header, Seal, messages};
use crate::log::recovery::{SegmentFile, Walk, open_segments, walk};
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
/// It brings the records' file up to date, and gives back free pages. It takes applied
/// changes and unwanted messages out of the log's segments. `is_wanted` tells by position and topic whether a
/// message is wanted. The messages of a frame stay or go together.
///
/// Only messages that no reader wants may be left out: positions in records go on to count.
///
/// # Errors
/// When the store cannot be opened, or the disk fails. Work up to then stays, and nothing is lost.
pub fn compact(
    disk: &Arc<dyn Disk>,
    settings: &Settings,
    is_wanted: &mut dyn FnMut(u64, &str) -> bool,
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
    let files = open_segments(&**disk)?;
    for (index, file) in files.iter().enumerate() {
        // The last segment tells where the log goes on.
        let is_applied = files.get(index + 1).and_then(|next| next.header);
        let is_applied = is_applied.is_some_and(|next| next.first_sequence <= applied + 1);
        if is_applied && rewrite(&**disk, file, seal, is_wanted).map_err(failed)? {
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

/// Writes a segment anew, if it gets smaller by that.
fn rewrite(
    disk: &dyn Disk,
    file: &SegmentFile,
    seal: Seal,
    is_wanted: &mut dyn FnMut(u64, &str) -> bool,
) -> io::Result<bool> {
    let Some(header) = file.header else {
        return Ok(false);
    };
    let wanted = Walk {
        seal,
        applied: 0,
        from_sequence: 0,
    };
    let alone = std::slice::from_ref(file);
    let header = SegmentHeader {
        has_gaps: true,
        ..header
    };
    let mut bytes = header.encode().to_vec();
    let mut draft = Draft::default();
    let walked = walk(disk, alone, &wanted, &mut |_, _, header, body| {
        draft.clear();
        let mut any = false;
        for (position, (topic, content)) in (header.first_position..).zip(messages(body)) {
            any |= is_wanted(position, topic);
            let copied = draft.message(topic, |out| out.extend_from_slice(content));
            copied.map_err(io::Error::other)?;
        }
        // A frame's positions follow from its first: its messages stay or go together.
        if any {
            let body = draft.body();
            let header = Header {
                body_bytes: body.len() as u32,
                body_checksum: seal.checksum(body),
                ..*header
            };
            bytes.extend_from_slice(&header.encode(seal));
            bytes.extend_from_slice(body);
        }
        Ok(())
    })?;
    // A damaged file stays as it is, so that it can be looked at.
    let is_sound = walked.damage.is_empty() && walked.torn.is_none();
    if !is_sound || bytes.len() as u64 >= file.length {
        return Ok(false);
    }
    match disk.remove(&index_name(file.number)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    crate::disk::replace(disk, FOLDER, &file.name, &bytes)?;
    Ok(true)
}
