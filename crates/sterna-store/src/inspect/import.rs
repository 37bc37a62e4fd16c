//! Makes a store from an [`export`](super::export).

use std::fmt;
use std::io::{self, BufRead};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::export::{FORM, Line};
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
    let mut imported = Imported::default();
    // The position behind the last message.
    let mut begun = None;
    let mut has_ended = false;
    let mut draft = Draft::default();
    let mut line = Vec::new();
    let mut number = 0_u64;
    let mut unwritten_bytes = 0;
    let mut sum = 0;
    loop {
        line.clear();
        number += 1;
        let read = input.read_until(b'\n', &mut line);
        if read.map_err(ImportError::Input)? == 0 {
            break;
        }
        let wrong = |reason: &str| ImportError::Line(number, reason.to_owned());
        let decode = |text: &str| {
            STANDARD
                .decode(text)
                .map_err(|error| wrong(&format!("no base64: {error}")))
        };
        let read = serde_json::from_slice(&line).map_err(|_| {
            wrong("neither the first line of an export, nor a record, nor a message")
        })?;
        draft.clear();
        if has_ended {
            return Err(wrong("the export ends before"));
        }
        let sum_before = sum;
        sum = crc32c::crc32c_append(sum, &line);
        let position = match (read, begun) {
            (
                Line::Store {
                    store,
                    next_position: next,
                },
                None,
            ) => {
                if store != FORM {
                    return Err(wrong(&format!("exports of form {store} are not known")));
                }
                begun = Some(next);
                continue;
            }
            (Line::Store { .. }, Some(_)) => return Err(wrong("a second first line")),
            (_, None) => return Err(wrong("an export begins with {\"store\":1,…}")),
            (
                Line::End {
                    records,
                    messages,
                    crc32c,
                },
                Some(_),
            ) => {
                if crc32c != sum_before {
                    return Err(wrong(
                        "the lines before are not those of the export: the checksum differs",
                    ));
                }
                if (records, messages) != (imported.records, imported.messages) {
                    return Err(wrong(&format!(
                        "the export had {records} records and {messages} messages, and there are {} and {}",
                        imported.records, imported.messages
                    )));
                }
                has_ended = true;
                continue;
            }
            (Line::Record { key, value }, Some(_)) => {
                imported.records += 1;
                let (key, value) = (decode(&key)?, decode(&value)?);
                draft
                    .change(&key, Some(&value))
                    .map_err(|error| wrong(&error.to_string()))?;
                None
            }
            (
                Line::Message {
                    position,
                    topic,
                    content,
                },
                Some(next),
            ) => {
                imported.messages += 1;
                let content = decode(&content)?;
                if position < handle.next_position() || position >= next {
                    return Err(wrong("positions rise, up to next_position"));
                }
                draft
                    .message(&topic, |out| out.extend_from_slice(&content))
                    .map_err(|error| wrong(&error.to_string()))?;
                Some(position)
            }
        };
        unwritten_bytes += line.len();
        append(&mut engine, &mut handle, &draft, position)?;
        if unwritten_bytes >= FLUSH_BYTES {
            write(&mut engine)?;
            unwritten_bytes = 0;
        }
    }
    if !has_ended {
        let reason = "the export is cut off: its last line is missing".to_owned();
        return Err(ImportError::Line(number, reason));
    }
    // A frame without anything says where positions go on.
    draft.clear();
    append(&mut engine, &mut handle, &draft, begun)?;
    drop(handle);
    engine.finish().map_err(|_| ImportError::Full)?;
    Ok(imported)
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
