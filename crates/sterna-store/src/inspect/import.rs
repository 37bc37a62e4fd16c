//! Makes a store from an [`export`](super::export).

use std::fmt;
use std::io::{self, BufRead};
use std::sync::Arc;

use sterna_broker::shared_of;

use super::lines::{Item, LineError, LineReader};
use crate::disk::Disk;
use crate::engine::records;
use crate::engine::{Engine, Full, Handle};
use crate::error::OpenError;
use crate::log::frame::Draft;
use crate::log::segment::FOLDER;
use crate::settings::{Durability, Settings};

/// Bytes of lines that are written at a time.
const FLUSH_BYTES: usize = 1 << 20;

/// Content of an import.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Imported {
    /// Number of records.
    pub records: u64,
    /// Number of messages.
    pub messages: u64,
    /// Records that are of a cluster, and mean nothing to a store: they were left out.
    pub of_cluster: u64,
}

/// Why nothing, or not everything, was imported.
#[derive(Debug)]
pub enum ImportError {
    /// There is a store already.
    Exists,
    /// A line that no export has: its number, from 1, and the reason.
    Line(u64, String),
    /// The input cannot be read.
    Input(io::Error),
    /// The disk does not take it.
    Full,
    /// The store cannot be made.
    Store(OpenError),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists => f.write_str("there is a store already: an import needs an empty place"),
            Self::Line(number, reason) => write!(f, "line {number}: {reason}"),
            Self::Input(error) => write!(f, "{error}"),
            Self::Full => f.write_str("the disk has no room for it"),
            Self::Store(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ImportError {}

impl From<LineError> for ImportError {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Line(number, reason) => Self::Line(number, reason),
            LineError::Input(error) => Self::Input(error),
        }
    }
}

/// Makes a store from an export, with the same positions. After an error the files of the disk are of no use.
///
/// # Errors
/// See [`ImportError`].
pub fn import(
    disk: &Arc<dyn Disk>,
    settings: &Settings,
    input: &mut dyn BufRead,
) -> Result<Imported, ImportError> {
    let is_there =
        disk.open(records::FILE).is_ok() || disk.list(FOLDER).is_ok_and(|names| !names.is_empty());
    if is_there {
        return Err(ImportError::Exists);
    }
    let settings = Settings {
        durability: Durability::Memory,
        ..settings.clone()
    };
    let mut engine = Engine::open(Arc::clone(disk), settings).map_err(ImportError::Store)?;
    let mut handle = engine.handle(Box::new(|| {}));
    let mut draft = Draft::default();
    let (mut unwritten_bytes, mut of_cluster) = (0, 0);
    let mut reader = LineReader::begin(input)?;
    while let Some(item) = reader.next_item()? {
        let wrong = |reason: String| ImportError::Line(reader.line_number(), reason);
        draft.clear();
        let position = match item {
            Item::Record { key, .. } if shared_of(&key).is_some() => {
                of_cluster += 1;
                continue;
            }
            Item::Record { key, value } => {
                draft
                    .change(&key, Some(&value))
                    .map_err(|error| wrong(error.to_string()))?;
                None
            }
            Item::Message {
                position,
                topic,
                content,
            } => {
                draft
                    .message(&topic, |out| out.extend_from_slice(&content))
                    .map_err(|error| wrong(error.to_string()))?;
                Some(position)
            }
        };
        unwritten_bytes += reader.line_bytes();
        append(&mut engine, &mut handle, &draft, position)?;
        if unwritten_bytes >= FLUSH_BYTES {
            write(&mut engine)?;
            unwritten_bytes = 0;
        }
    }
    // A frame without anything says where positions go on.
    draft.clear();
    append(
        &mut engine,
        &mut handle,
        &draft,
        Some(reader.next_position()),
    )?;
    drop(handle);
    engine.finish().map_err(|_| ImportError::Full)?;
    let counts = reader.counts();
    Ok(Imported {
        records: counts.records - of_cluster,
        messages: counts.messages,
        of_cluster,
    })
}

fn append(
    engine: &mut Engine,
    handle: &mut Handle,
    draft: &Draft,
    position: Option<u64>,
) -> Result<(), ImportError> {
    if handle.append_at(draft, position) == Err(Full) {
        write(engine)?;
        handle
            .append_at(draft, position)
            .map_err(|Full| ImportError::Full)?;
    }
    Ok(())
}

fn write(engine: &mut Engine) -> Result<(), ImportError> {
    engine.write_out().map_err(|_| ImportError::Full)
}
