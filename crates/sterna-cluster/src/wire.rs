//! The wire form of messages between nodes: batches of the records that a store keeps of messages.
//!
//! A batch is one byte of version, then *runs*. A run begins with the number of the shard that published it, and the kind
//! of its records. Then come the number of bytes that follow, and the records, each with its length in front. Numbers have
//! seven bits a byte, the lowest first. A record is [`Message::encode`]'s form, the same that a store keeps, or brief.
//! Brief records stay behind the whole one that they need. `docs/cluster-wire.md` has it as a table.
//!
//! There is one version. A later one is written when all nodes read it:
//! [`Table::version`](crate::table::Table::version).

use std::ops::Range;

use bytes::Bytes;
use sterna_broker::{
    Encoded, HEAD_ROOM_BYTES, MOST_GROUP_BYTES, Message, MessageDecoder, MessageEncoder, is_brief,
};

/// Versions of the wire form, from one to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The lowest.
    pub lowest: u8,
    /// The highest.
    pub highest: u8,
}

/// The versions that this program reads, and can write.
pub const READS: Versions = Versions {
    lowest: 1,
    highest: 1,
};

impl Versions {
    /// Whether one is among them.
    #[must_use]
    pub const fn contains(self, version: u8) -> bool {
        self.lowest <= version && version <= self.highest
    }

    /// Those that are in both; `None` where none is.
    #[must_use]
    pub fn common(self, other: Self) -> Option<Self> {
        let lowest = self.lowest.max(other.lowest);
        let highest = self.highest.min(other.highest);
        (lowest <= highest).then_some(Self { lowest, highest })
    }

    /// As a node states them: `1`, or `1-3`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (lowest, highest) = text.split_once('-').unwrap_or((text, text));
        let (lowest, highest) = (lowest.parse().ok()?, highest.parse().ok()?);
        (1 <= lowest && lowest <= highest).then_some(Self { lowest, highest })
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.lowest == self.highest {
            return write!(f, "{}", self.lowest);
        }
        write!(f, "{}-{}", self.lowest, self.highest)
    }
}

/// Bytes that a record may take beside the body of its message.
pub const RECORD_OVERHEAD_BYTES: usize = 96;

/// Bytes that a batch of one run may take beside its records.
pub const BATCH_OVERHEAD_BYTES: usize = 16;

/// The fewest bytes that a batch has to be allowed where records may be brief. Those that stay together do not fit smaller ones.
pub const BRIEF_BATCH_BYTES: usize = BATCH_OVERHEAD_BYTES + MOST_GROUP_BYTES;

/// The most messages of a run that there is room for before one is read.
const FORESEEN_MESSAGES: usize = 1_024;

/// The most bytes of a number.
const NUMBER_BYTES: usize = 10;

/// Why a batch cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// It has another version than those that are read.
    Version {
        /// That version.
        found: u8,
        /// Those that are read.
        reads: Versions,
    },
    /// It is no batch: at this byte it is not what it must be.
    Malformed(usize),
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version { found, reads } => {
                write!(
                    f,
                    "it has version {found} of the wire form, and this node reads {reads}"
                )
            }
            Self::Malformed(at) => write!(f, "byte {at} is not what it must be"),
        }
    }
}

impl std::error::Error for WireError {}

/// The kind of a run's records.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Kind {
    /// Messages.
    #[default]
    Messages,
    /// Letters about shared subscriptions and queues.
    Letters,
}

/// A run as a batch has it: nothing but lengths was looked at.
#[derive(Debug)]
pub struct Section {
    /// The shard, as its node numbers it.
    pub shard: u16,
    /// The kind of its records.
    pub kind: Kind,
    /// Where the records are in the batch, each with its length in front.
    pub records: Range<usize>,
    /// Number of its records.
    pub count: usize,
}

/// Messages or letters of one shard, in its order.
#[derive(Debug)]
pub struct Run {
    /// The shard, as its node numbers it.
    pub shard: u16,
    /// The messages.
    pub messages: Vec<Message>,
    /// Letters; none beside messages.
    pub letters: Vec<Vec<u8>>,
}

/// Encoded messages of one shard, in their order, on their way into a batch.
#[derive(Clone, Debug, Default)]
pub struct EncodedRun {
    shard: u16,
    kind: Kind,
    records: Vec<u8>,
    messages: usize,
    encoder: MessageEncoder,
}

impl EncodedRun {
    /// A run of a shard without messages.
    #[must_use]
    pub fn new(shard: u16) -> Self {
        Self::of(shard, Kind::Messages)
    }

    /// A run of a shard without records.
    #[must_use]
    pub fn of(shard: u16, kind: Kind) -> Self {
        Self {
            shard,
            kind,
            ..Self::default()
        }
    }

    /// Appends a message. Its record may be brief where `may_be_brief`.
    pub fn push(&mut self, message: &Message, may_be_brief: bool) {
        self.encoder.push(&mut self.records, message, may_be_brief);
        self.messages += 1;
    }

    /// The kind of its records.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Appends a message, or a letter, that is encoded already.
    pub fn push_record(&mut self, record: &[u8]) {
        self.encoder.begin_anew();
        put_number(&mut self.records, record.len() as u64);
        self.records.extend_from_slice(record);
        self.messages += 1;
    }

    /// Appends some messages' records, each with its length in front and the first of them whole, if the run then takes
    /// at most `most_bytes` in a batch. False where it takes none of them.
    pub fn push_all(&mut self, records: Records<'_>, most_bytes: usize) -> bool {
        let fits = self.bytes() + records.bytes.len() <= most_bytes;
        if fits {
            self.extend(records.bytes, records.count);
        }
        fits
    }

    /// As [`push_all`](Self::push_all), as far as they fit. At least one whole record with its brief ones, where the run
    /// has none. Returns those that are left.
    pub fn push_fitting<'a>(&mut self, records: Records<'a>, most_bytes: usize) -> Records<'a> {
        let room = most_bytes.saturating_sub(self.bytes());
        let is_empty = self.records.is_empty();
        let (bytes, count) = leading(records.bytes, is_empty, |end, _| end <= room);
        let (fitting, rest) = records.bytes.split_at(bytes);
        debug_assert!(
            count <= records.count,
            "records that fit are among those that came"
        );
        self.extend(fitting, count);
        Records {
            bytes: rest,
            count: records.count.saturating_sub(count),
        }
    }

    fn extend(&mut self, records: &[u8], count: usize) {
        self.encoder.begin_anew();
        self.records.extend_from_slice(records);
        self.messages += count;
    }

    /// Its records.
    #[must_use]
    pub fn as_records(&self) -> Records<'_> {
        Records {
            bytes: &self.records,
            count: self.messages,
        }
    }

    /// Number of its messages.
    #[must_use]
    pub const fn messages(&self) -> usize {
        self.messages
    }

    /// Bytes that it takes in a batch, at most.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.records.len() + 4 + NUMBER_BYTES
    }
}

/// Records of messages that follow each other, each with its length in front.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    /// The records.
    pub bytes: &'a [u8],
    /// Number of messages.
    pub count: usize,
}

/// The batch of some runs, in a version.
#[must_use]
pub fn batch<'a>(version: u8, runs: impl IntoIterator<Item = &'a EncodedRun> + Clone) -> Bytes {
    let bytes: usize = runs.clone().into_iter().map(EncodedRun::bytes).sum();
    let mut out = Vec::with_capacity(1 + bytes);
    out.push(version);
    for run in runs {
        begin_run(&mut out, run.shard, run.kind, run.records.len());
        out.extend_from_slice(&run.records);
    }
    Bytes::from(out)
}

/// As [`batch`], of a shard's turn. The turn's memory becomes the batch, without a copy. Recipients of parts count for
/// nothing.
#[must_use]
pub fn batch_of_turn(version: u8, shard: u16, turn: Encoded) -> Bytes {
    let mut head = Vec::with_capacity(HEAD_ROOM_BYTES);
    head.push(version);
    let bytes = turn.record_bytes();
    begin_run(&mut head, shard, Kind::Messages, bytes);
    turn.into_bytes(&head)
}

/// Bytes that the batch of a shard's turn takes, at most.
#[must_use]
pub const fn bytes_of_turn(turn: &Encoded) -> usize {
    turn.record_bytes() + BATCH_OVERHEAD_BYTES
}

/// Appends all of a run that is in front of its records.
fn begin_run(out: &mut Vec<u8>, shard: u16, kind: Kind, bytes: usize) {
    put_number(out, u64::from(shard));
    out.push(kind as u8);
    put_number(out, bytes as u64);
}

/// The runs of a batch, all or none. Their records are as long as they say, and may not be valid otherwise.
///
/// # Errors
/// [`WireError`] where the bytes are not runs of one of the versions that are read.
pub fn sections(reads: Versions, batch: &[u8]) -> Result<Vec<Section>, WireError> {
    let mut reader = Reader { batch, at: 0 };
    let found = reader.slice(1)?[0];
    if !reads.contains(found) {
        return Err(WireError::Version { found, reads });
    }
    let mut sections = Vec::new();
    while reader.at < batch.len() {
        let start = reader.at;
        let shard = u16::try_from(reader.number()?).map_err(|_| WireError::Malformed(start))?;
        let kind = match reader.number()? {
            0 => Kind::Messages,
            1 => Kind::Letters,
            _ => return Err(WireError::Malformed(start)),
        };
        let bytes = reader.len()?;
        let first = reader.at;
        let end = first.checked_add(bytes).filter(|end| *end <= batch.len());
        let end = end.ok_or(WireError::Malformed(start))?;
        let mut count = 0;
        while reader.at < end {
            let start = reader.at;
            let bytes = reader.len()?;
            reader.slice(bytes)?;
            if reader.at > end {
                return Err(WireError::Malformed(start));
            }
            count += 1;
        }
        sections.push(Section {
            shard,
            kind,
            records: first..end,
            count,
        });
    }
    Ok(sections)
}

/// Reads a batch, whole or not at all. Bodies of messages share no memory with it, so that one message that
/// waits does not hold all others.
///
/// # Errors
/// [`WireError`] where the bytes are not a batch of one of the versions that are read.
pub fn read(reads: Versions, batch: &[u8]) -> Result<Vec<Run>, WireError> {
    let read = |section: Section| {
        let mut reader = Reader {
            batch: &batch[..section.records.end],
            at: section.records.start,
        };
        let mut run = Run {
            shard: section.shard,
            messages: Vec::new(),
            letters: Vec::new(),
        };
        if section.kind == Kind::Messages {
            run.messages.reserve(section.count.min(FORESEEN_MESSAGES));
        }
        let mut decoder = MessageDecoder::default();
        for _ in 0..section.count {
            let start = reader.at;
            let bytes = reader.len()?;
            let record = reader.slice(bytes)?;
            if section.kind == Kind::Messages {
                let message = decoder.message(record);
                (run.messages).push(message.map_err(|_| WireError::Malformed(start))?);
            } else {
                run.letters.push(record.to_vec());
            }
        }
        Ok(run)
    };
    sections(reads, batch)?.into_iter().map(read).collect()
}

/// Records, each with its length in front, up to the first that is none.
pub fn records(records: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut reader = Reader {
        batch: records,
        at: 0,
    };
    std::iter::from_fn(move || {
        let bytes = reader.len().ok()?;
        reader.slice(bytes).ok()
    })
}

/// The first of some messages' records, each with its length in front, as long as they are taken.
///
/// A whole one is taken with the brief ones behind it. `takes` gets where these end, and how many records end there.
/// Where `takes_first`, it is not asked about the first. Returns both of the last that is taken.
pub fn leading(
    records: &[u8],
    takes_first: bool,
    takes: impl Fn(usize, usize) -> bool,
) -> (usize, usize) {
    let mut reader = Reader {
        batch: records,
        at: 0,
    };
    let (mut end, mut count) = (0, 0);
    let mut met = 0;
    while reader.at < records.len() {
        let next = reader.len().and_then(|bytes| reader.slice(bytes));
        // Bytes that are no record belong to none, and stay together.
        if next.is_err() {
            reader.at = records.len();
        }
        met += 1;
        if begins_brief(&records[reader.at..]) {
            continue;
        }
        let is_taken = (takes_first && end == 0) || takes(reader.at, met);
        if !is_taken {
            break;
        }
        (end, count) = (reader.at, met);
    }
    (end, count)
}

/// Whether the first of some records is brief.
fn begins_brief(records: &[u8]) -> bool {
    let mut reader = Reader {
        batch: records,
        at: 0,
    };
    let first = reader.len().and_then(|bytes| reader.slice(bytes));
    first.is_ok_and(is_brief)
}

struct Reader<'a> {
    batch: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    #[inline]
    fn slice(&mut self, bytes: usize) -> Result<&'a [u8], WireError> {
        let malformed = WireError::Malformed(self.at);
        let end = self.at.checked_add(bytes).ok_or(malformed)?;
        let slice = self.batch.get(self.at..end).ok_or(malformed)?;
        self.at = end;
        Ok(slice)
    }

    #[inline]
    fn number(&mut self) -> Result<u64, WireError> {
        match self.batch.get(self.at) {
            // As most lengths are.
            Some(&byte @ ..0x80) => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_number(),
        }
    }

    fn long_number(&mut self) -> Result<u64, WireError> {
        let malformed = WireError::Malformed(self.at);
        let mut number = 0_u64;
        for shift in (0..).step_by(7) {
            let byte = self.slice(1)?[0];
            let bits = u64::from(byte & 0x7f);
            if shift > 63 || bits << shift >> shift != bits {
                return Err(malformed);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(malformed)
    }

    #[inline]
    fn len(&mut self) -> Result<usize, WireError> {
        let at = self.at;
        usize::try_from(self.number()?).map_err(|_| WireError::Malformed(at))
    }
}

/// Appends a number of seven bits a byte, the lowest first.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests;
