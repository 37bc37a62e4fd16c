//! Writes all of a store as [lines](super::lines).

use std::io::{self, Write};
use std::sync::Arc;

use super::ClosedStore;
use super::lines::LineWriter;
use crate::disk::Disk;
use crate::engine::Damage;
use crate::error::OpenError;
use crate::log::frame::messages;

/// Content of an export.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Exported {
    /// Number of records.
    pub records: u64,
    /// Number of messages.
    pub messages: u64,
    /// Damaged places, whose frames and records are missing.
    pub damage: Vec<Damage>,
}

/// Writes all of a store that no broker has open. It changes nothing in the store.
///
/// # Errors
/// When the store cannot be read, or `out` not be written.
pub fn export(disk: &Arc<dyn Disk>, out: &mut dyn Write) -> Result<Exported, OpenError> {
    let store = ClosedStore::open(disk)?;
    let failed = |error: io::Error| OpenError::Disk {
        file: "the export".to_owned(),
        error,
    };
    let (changes, end, walked) = store.unapplied()?;
    let mut exported = Exported {
        damage: store.records.damage.clone(),
        ..Exported::default()
    };
    exported.damage.extend(store.missing_front());
    exported.damage.extend(walked.damage);
    let mut writer = LineWriter::begin(out, end.next_position).map_err(failed)?;
    let mut written = Ok(());
    let records = &store.records.records;
    let snapshot = records.snapshot(records.turn_to_read());
    let visited = snapshot.and_then(|snapshot| {
        snapshot.visit(&changes, &mut |key, value| {
            if written.is_ok() {
                written = writer.record(key, value);
            }
        })
    });
    visited.map_err(|reason| OpenError::Damaged {
        file: disk.display_name(crate::engine::records::FILE),
        reason,
    })?;
    written.map_err(failed)?;
    let walked = store.walk(&mut |_, _, header, body| {
        for (position, (topic, content)) in (header.first_position..).zip(messages(body)) {
            writer.message(position, topic, content)?;
        }
        Ok(())
    })?;
    // A place that could be read before may not be readable now.
    for damage in walked.damage {
        if !exported.damage.contains(&damage) {
            exported.damage.push(damage);
        }
    }
    let counts = writer.finish().map_err(failed)?;
    exported.records = counts.records;
    exported.messages = counts.messages;
    Ok(exported)
}
