//! The lines of an export: all of a store, or of a cluster, as JSON.
//!
//! The first line is `{"store":1,"next_position":N}`, with the version of this form. Then come the records
//! as `{"key":"…","value":"…"}`, in the order of keys, and the messages as
//! `{"position":N,"topic":"…","content":"…"}`, in the order of positions. Keys, values and contents are
//! in base64. The last line is `{"records":N,"messages":N,"crc32c":N}`, so that an export that was cut off or changed
//! is noticed. The checksum is that of all bytes of the lines before.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead, Read as _, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Version of the form.
const FORM: u32 = 1;

/// Bytes of the longest line that is read. The largest message of a broker has a quarter of it.
const LONGEST_LINE_BYTES: u64 = 1 << 31;

/// The most that may be behind all positions. Those of a cluster are 1,024 times the microseconds since 1970, which come
/// there in the year 2112; arithmetic with positions has room above it.
const MOST_POSITION: u64 = 1 << 62;

/// A line.
#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Line<'a> {
    Store {
        store: u32,
        next_position: u64,
    },
    Record {
        #[serde(borrow)]
        key: Cow<'a, str>,
        value: Cow<'a, str>,
    },
    Message {
        position: u64,
        topic: Cow<'a, str>,
        content: Cow<'a, str>,
    },
    End {
        records: u64,
        messages: u64,
        /// Of the lines before.
        crc32c: u32,
    },
}

/// Writes an export: records first, then messages, then [`finish`](Self::finish).
pub struct LineWriter<'w> {
    out: &'w mut dyn Write,
    crc32c: u32,
    counts: Counts,
}

/// The content of an export in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Number of records.
    pub records: u64,
    /// Number of messages.
    pub messages: u64,
}

impl fmt::Debug for LineWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineWriter")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl<'w> LineWriter<'w> {
    /// Begins an export. `next_position` is behind the positions of all its messages.
    ///
    /// # Errors
    /// As `out`; so do the other calls.
    pub fn begin(out: &'w mut dyn Write, next_position: u64) -> io::Result<Self> {
        let mut writer = Self {
            out,
            crc32c: 0,
            counts: Counts::default(),
        };
        writer.put(&Line::Store {
            store: FORM,
            next_position,
        })?;
        Ok(writer)
    }

    fn put(&mut self, line: &Line<'_>) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.crc32c = crc32c::crc32c_append(self.crc32c, &bytes);
        self.out.write_all(&bytes)
    }

    /// Writes a record. Their keys are to rise.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    pub fn record(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.counts.records += 1;
        self.put(&Line::Record {
            key: STANDARD.encode(key).into(),
            value: STANDARD.encode(value).into(),
        })
    }

    /// Writes a message, in the broker's form. Their positions are to rise.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    pub fn message(&mut self, position: u64, topic: &str, content: &[u8]) -> io::Result<()> {
        self.counts.messages += 1;
        self.put(&Line::Message {
            position,
            topic: topic.into(),
            content: STANDARD.encode(content).into(),
        })
    }

    /// Writes the last line.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    pub fn finish(mut self) -> io::Result<Counts> {
        let Counts { records, messages } = self.counts;
        let crc32c = self.crc32c;
        self.put(&Line::End {
            records,
            messages,
            crc32c,
        })?;
        self.out.flush()?;
        Ok(self.counts)
    }
}

/// Why lines are no export.
#[derive(Debug)]
pub enum LineError {
    /// A line that no export has: its number, from 1, and the reason.
    Line(u64, String),
    /// The input cannot be read.
    Input(io::Error),
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(number, reason) => write!(f, "line {number}: {reason}"),
            Self::Input(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for LineError {}

/// An item of an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// A record.
    Record {
        /// Its key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// A message.
    Message {
        /// Its position, higher than those before.
        position: u64,
        /// Its topic.
        topic: String,
        /// The message in the broker's form.
        content: Vec<u8>,
    },
}

/// Reads an export, and checks that it is whole.
pub struct LineReader<'r> {
    input: &'r mut dyn BufRead,
    line: Vec<u8>,
    number: u64,
    sum: u32,
    counts: Counts,
    next_position: u64,
    /// The lowest position that the next message may have.
    lowest: u64,
    has_ended: bool,
}

impl fmt::Debug for LineReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineReader")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl<'r> LineReader<'r> {
    /// Reads the first line.
    ///
    /// # Errors
    /// [`LineError`] where it is not that of an export, or of another form.
    pub fn begin(input: &'r mut dyn BufRead) -> Result<Self, LineError> {
        let mut reader = Self {
            input,
            line: Vec::new(),
            number: 0,
            sum: 0,
            counts: Counts::default(),
            next_position: 0,
            lowest: 1,
            has_ended: false,
        };
        if !reader.read_line()? {
            return Err(reader.cut_off());
        }
        let (store, next_position) = match serde_json::from_slice(&reader.line) {
            Ok(Line::Store {
                store,
                next_position,
            }) => (store, next_position),
            Ok(_) => return Err(reader.wrong("an export begins with {\"store\":1,…}")),
            Err(_) => return Err(reader.no_line()),
        };
        if store != FORM {
            return Err(reader.wrong(&format!("exports of form {store} are not known")));
        }
        if next_position > MOST_POSITION {
            return Err(reader.wrong(&format!(
                "next_position is {next_position}, and no log comes farther than {MOST_POSITION}"
            )));
        }
        reader.next_position = next_position;
        reader.sum = crc32c::crc32c(&reader.line);
        Ok(reader)
    }

    /// The position behind those of all messages.
    #[must_use]
    pub const fn next_position(&self) -> u64 {
        self.next_position
    }

    /// The number of the line that was read last, from 1.
    #[must_use]
    pub const fn line_number(&self) -> u64 {
        self.number
    }

    /// Bytes of the line that was read last.
    #[must_use]
    pub const fn line_bytes(&self) -> usize {
        self.line.len()
    }

    /// The numbers of records and messages that have been read so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    fn wrong(&self, reason: &str) -> LineError {
        LineError::Line(self.number, reason.to_owned())
    }

    fn no_line(&self) -> LineError {
        self.wrong("neither the first line of an export, nor a record, nor a message")
    }

    fn cut_off(&self) -> LineError {
        self.wrong("the export is cut off: its last line is missing")
    }

    /// Reads a line with its end; false where there is none.
    fn read_line(&mut self) -> Result<bool, LineError> {
        self.line.clear();
        self.number += 1;
        let mut input = (&mut *self.input).take(LONGEST_LINE_BYTES);
        let read = input.read_until(b'\n', &mut self.line);
        if read.map_err(LineError::Input)? == 0 {
            return Ok(false);
        }
        if self.line.len() as u64 == LONGEST_LINE_BYTES {
            return Err(self.wrong("it is longer than any of an export"));
        }
        Ok(true)
    }

    fn decode(&self, text: &str) -> Result<Vec<u8>, LineError> {
        STANDARD
            .decode(text)
            .map_err(|error| self.wrong(&format!("no base64: {error}")))
    }

    /// The next record or message; `None` behind the last line, when the export is known to be whole.
    ///
    /// # Errors
    /// [`LineError`] where a line is not as in an export, or the last one is missing.
    pub fn next_item(&mut self) -> Result<Option<Item>, LineError> {
        if !self.read_line()? {
            return if self.has_ended {
                Ok(None)
            } else {
                Err(self.cut_off())
            };
        }
        if self.has_ended {
            return Err(self.wrong("the export ends before"));
        }
        let sum_before = self.sum;
        self.sum = crc32c::crc32c_append(self.sum, &self.line);
        let line = std::mem::take(&mut self.line);
        let read = serde_json::from_slice(&line).map_err(|_| self.no_line());
        let item = read.and_then(|read| self.item(read, sum_before));
        self.line = line;
        match item? {
            None => self.next_item(),
            item => Ok(item),
        }
    }

    /// The item of a line; `None` of the last line.
    fn item(&mut self, read: Line<'_>, sum_before: u32) -> Result<Option<Item>, LineError> {
        match read {
            Line::Store { .. } => Err(self.wrong("a second first line")),
            Line::End {
                records,
                messages,
                crc32c,
            } => {
                if crc32c != sum_before {
                    return Err(self.wrong(
                        "the lines before are not those of the export: the checksum differs",
                    ));
                }
                let read = self.counts;
                if (Counts { records, messages }) != read {
                    return Err(self.wrong(&format!(
                        "the export had {records} records and {messages} messages, and there are {} and {}",
                        read.records, read.messages
                    )));
                }
                self.has_ended = true;
                Ok(None)
            }
            Line::Record { key, value } => {
                self.counts.records += 1;
                let (key, value) = (self.decode(&key)?, self.decode(&value)?);
                Ok(Some(Item::Record { key, value }))
            }
            Line::Message {
                position,
                topic,
                content,
            } => {
                self.counts.messages += 1;
                let content = self.decode(&content)?;
                if position < self.lowest || position >= self.next_position {
                    return Err(self.wrong("positions rise, up to next_position"));
                }
                self.lowest = position + 1;
                let topic = topic.into_owned();
                Ok(Some(Item::Message {
                    position,
                    topic,
                    content,
                }))
            }
        }
    }
}
