//! Writes all of a store as JSON lines.
//!
//! The first line is `{"store":1,"next_position":N}`, with the version of this form. Then come the records
//! as `{"key":"…","value":"…"}`, in the order of keys, and the messages as
//! `{"position":N,"topic":"…","content":"…"}`, in the order of positions. Keys, values and contents are
//! in base64. The last line is `{"records":N,"messages":N,"crc32c":N}`, so that an export that was cut off or changed
//! is noticed. The checksum is that of all bytes of the lines before.

use std::io::{self, Write};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::ClosedStore;
use crate::disk::Disk;
use crate::engine::Damage;
use crate::error::OpenError;
use crate::log::frame::messages;

/// Version of the form.
pub(super) const FORM: u32 = 1;

/// A line.
#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(super) enum Line<'a> {
    Store {
        store: u32,
        next_position: u64,
    },
    Record {
        #[serde(borrow)]
        key: std::borrow::Cow<'a, str>,
        value: std::borrow::Cow<'a, str>,
    },
    Message {
        position: u64,
        topic: std::borrow::Cow<'a, str>,
        content: std::borrow::Cow<'a, str>,
    },
    End {
        records: u64,
        messages: u64,
        /// Of the lines before.
        crc32c: u32,
    },
}

/// A writer, and the checksum of what was written.
struct Summed<'w> {
    out: &'w mut dyn Write,
    crc32c: u32,
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.crc32c = crc32c::crc32c_append(self.crc32c, &bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

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

fn put(out: &mut dyn Write, line: &Line<'_>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

/// Writes all of a store that no broker has open. It changes nothing in the store.
///
/// # Errors
/// When the store cannot be read, or `out` not be written.
pub fn export(disk: &Arc<dyn Disk>, out: &mut dyn Write) -> Result<Exported, OpenError> {
    let store = ClosedStore::open(disk)?;
    let out = &mut Summed { out, crc32c: 0 };
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
    let first = Line::Store {
        store: FORM,
        next_position: end.next_position,
    };
    put(out, &first).map_err(failed)?;
    let mut written = Ok(());
    let records = &store.records.records;
    let snapshot = records.snapshot(records.turn_to_read());
    let visited = snapshot.and_then(|snapshot| {
        snapshot.visit(&changes, &mut |key, value| {
            if written.is_ok() {
                exported.records += 1;
                let line = Line::Record {
                    key: STANDARD.encode(key).into(),
                    value: STANDARD.encode(value).into(),
                };
                written = put(out, &line);
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
            exported.messages += 1;
            let line = Line::Message {
                position,
                topic: topic.into(),
                content: STANDARD.encode(content).into(),
            };
            put(out, &line)?;
        }
        Ok(())
    })?;
    // A place that could be read before may not be readable now.
    for damage in walked.damage {
        if !exported.damage.contains(&damage) {
            exported.damage.push(damage);
        }
    }
    let last = Line::End {
        records: exported.records,
        messages: exported.messages,
        crc32c: out.crc32c,
    };
    put(out, &last).map_err(failed)?;
    out.flush().map_err(failed)?;
    Ok(exported)
}
