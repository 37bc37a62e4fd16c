//! The wire form of messages between nodes: batches of the records that a store keeps of messages.
//!
//! A batch is one byte of version, then *runs*. A run begins with the number of the shard that published it. From
//! version 2 on, the kind of its records follows. Then come the number of bytes that follow, and the records, each
//! with its length in front. Numbers have seven bits a byte, the lowest first. A record is [`Message::encode`]'s
//! form, the same that a store keeps. From version 4 on it may be brief. Brief records stay behind the whole one that
//! they need. `docs/cluster.md` has it as a table.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use sterna_broker::{Encoded, HEAD_ROOM_BYTES, Message, MessageDecoder, MessageEncoder, is_brief};

/// Versions of the wire form, from one to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The lowest.
    pub lowest: u8,
    /// The highest.
    pub highest: u8,
}

/// The versions that this node reads, and can write.
pub const READS: Versions = Versions {
    lowest: 1,
    highest: 4,
};

/// The first version whose nodes find messages of several topics in one entry of the log.
pub const TOGETHER: u8 = 2;

/// The first version that has letters about shared subscriptions.
pub const GROUPS: u8 = 2;

/// The first version that has letters about queues.
pub const QUEUES: u8 = 3;

/// The first version that has brief records of messages.
pub const BRIEF: u8 = 4;

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

/// The most messages of a run that there is room for before one is read.
const FORESEEN_MESSAGES: usize = 1_024;

/// The most bytes of a number.
const NUMBER_BYTES: usize = 10;

/// Why a batch cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// It has another version, which is told.
    Version(u8),
    /// It is no batch: at this byte it is not what it must be.
    Malformed(usize),
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version(version) => {
                write!(
                    f,
                    "it has version {version} of the wire form, and this node reads {READS}"
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
    /// Letters about shared subscriptions.
    Letters,
    /// Letters about queues.
    QueueLetters,
}

impl Kind {
    /// The first version that has it.
    #[must_use]
    pub const fn since(self) -> u8 {
        match self {
            Self::Messages => 1,
            Self::Letters => GROUPS,
            Self::QueueLetters => QUEUES,
        }
    }
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
    /// Letters about shared subscriptions or queues; none beside messages.
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
    has_brief: bool,
}

impl EncodedRun {
    /// A run of a shard without messages.
    #[must_use]
    pub fn new(shard: u16) -> Self {
        Self::of(shard, Kind::Messages)
    }

    /// A run of a shard without records. A batch with it needs the version [`Kind::since`].
    #[must_use]
    pub fn of(shard: u16, kind: Kind) -> Self {
        Self {
            shard,
            kind,
            ..Self::default()
        }
    }

    /// Appends a message. Its record may be brief where `may_be_brief`: [`BRIEF`] is needed then.
    pub fn push(&mut self, message: &Message, may_be_brief: bool) {
        self.has_brief |= self.encoder.push(&mut self.records, message, may_be_brief);
        self.messages += 1;
    }

    /// The run as nodes of a version read it. `messages` are those that were pushed to it.
    pub fn for_version<'a>(
        &self,
        version: u8,
        messages: impl IntoIterator<Item = &'a Message>,
    ) -> Cow<'_, Self> {
        if version >= BRIEF || !self.has_brief {
            return Cow::Borrowed(self);
        }
        let mut whole = Self::of(self.shard, self.kind);
        for message in messages {
            whole.push(message, false);
        }
        Cow::Owned(whole)
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
            self.extend(records.bytes, records.count, records.has_brief);
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
        self.extend(fitting, count, records.has_brief);
        Records {
            bytes: rest,
            count: records.count.saturating_sub(count),
            ..records
        }
    }

    fn extend(&mut self, records: &[u8], count: usize, has_brief: bool) {
        self.encoder.begin_anew();
        self.records.extend_from_slice(records);
        self.messages += count;
        self.has_brief |= has_brief;
    }

    /// Its records.
    #[must_use]
    pub fn as_records(&self) -> Records<'_> {
        Records {
            bytes: &self.records,
            count: self.messages,
            has_brief: self.has_brief,
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
    /// Whether one of them may be brief.
    pub has_brief: bool,
}

/// The batch of some runs, in a version that is one of [`READS`]. It is [`BRIEF`] at least where a record is brief: all nodes
/// read that when the record was made.
#[must_use]
pub fn batch<'a>(version: u8, runs: impl IntoIterator<Item = &'a EncodedRun> + Clone) -> Bytes {
    let bytes: usize = runs.clone().into_iter().map(EncodedRun::bytes).sum();
    let has_brief = runs.clone().into_iter().any(|run| run.has_brief);
    let version = with_brief(version, has_brief);
    let mut out = Vec::with_capacity(1 + bytes);
    out.push(version);
    for run in runs {
        begin_run(&mut out, version, run.shard, run.kind, run.records.len());
        out.extend_from_slice(&run.records);
    }
    Bytes::from(out)
}

/// As [`batch`], of a shard's turn. The turn's memory becomes the batch, without a copy. Recipients of parts count for
/// nothing.
#[must_use]
pub fn batch_of_turn(version: u8, shard: u16, turn: Encoded) -> Bytes {
    let version = with_brief(version, turn.has_brief());
    let mut head = Vec::with_capacity(HEAD_ROOM_BYTES);
    head.push(version);
    let bytes = turn.record_bytes();
    begin_run(&mut head, version, shard, Kind::Messages, bytes);
    turn.into_bytes(&head)
}

/// Bytes that the batch of a shard's turn takes, at most.
#[must_use]
pub const fn bytes_of_turn(turn: &Encoded) -> usize {
    turn.record_bytes() + BATCH_OVERHEAD_BYTES
}

const fn with_brief(version: u8, has_brief: bool) -> u8 {
    if has_brief && version < BRIEF {
        BRIEF
    } else {
        version
    }
}

/// Appends all of a run that is in front of its records.
fn begin_run(out: &mut Vec<u8>, version: u8, shard: u16, kind: Kind, bytes: usize) {
    put_number(out, u64::from(shard));
    if version >= GROUPS {
        out.push(kind as u8);
    }
    put_number(out, bytes as u64);
}

/// The runs of a batch, all or none. Their records are as long as they say, and may not be valid otherwise.
///
/// # Errors
/// [`WireError`] where the bytes are not runs of this version.
pub fn sections(batch: &[u8]) -> Result<Vec<Section>, WireError> {
    let mut reader = Reader { batch, at: 0 };
    let version = reader.slice(1)?[0];
    if !READS.contains(version) {
        return Err(WireError::Version(version));
    }
    let mut sections = Vec::new();
    while reader.at < batch.len() {
        let start = reader.at;
        let shard = u16::try_from(reader.number()?).map_err(|_| WireError::Malformed(start))?;
        let kind = match if version >= GROUPS {
            reader.number()?
        } else {
            0
        } {
            0 => Kind::Messages,
            1 => Kind::Letters,
            2 if version >= QUEUES => Kind::QueueLetters,
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
/// [`WireError`] where the bytes are not a batch of this version.
pub fn read(batch: &[u8]) -> Result<Vec<Run>, WireError> {
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
    sections(batch)?.into_iter().map(read).collect()
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
mod tests {
    use std::sync::Arc;

    use sterna_broker::{MessageHeader, NodeSet, Origin, Qos, Recipients, messages_of};

    use super::*;

    fn message(number: usize) -> Arc<Message> {
        let header = MessageHeader {
            qos: Qos::from_u8((number % 3) as u8).expect("a level"),
            retain: number.is_multiple_of(2),
            published_ms: 1_790_000_000_000,
            expires_at_ms: Some(1_790_000_060_000),
        };
        let payload = vec![number as u8; number * 97];
        let message = Message::copy(&format!("a/{number}"), &[1, 1], &payload, header);
        Arc::new(message.expect("it fits").with_origin(Origin(7)))
    }

    type Runs = Vec<(u16, Vec<Arc<Message>>)>;

    fn sample() -> (Runs, Bytes) {
        let runs: Runs = vec![
            (0, (0..5).map(message).collect()),
            (300, vec![]),
            (7, vec![message(40)]),
        ];
        let encoded: Vec<EncodedRun> = (runs.iter())
            .map(|(shard, messages)| {
                let mut run = EncodedRun::new(*shard);
                for message in messages {
                    run.push(message, false);
                }
                run
            })
            .collect();
        let batch = batch(READS.highest, &encoded);
        assert!(
            batch.len() <= encoded.iter().map(EncodedRun::bytes).sum::<usize>() + 1,
            "bytes are foreseen"
        );
        (runs, batch)
    }

    #[test]
    fn versions_are_stated_and_understood() {
        for text in ["1", "1-3", "254-255"] {
            assert_eq!(
                Versions::parse(text).map(|one| one.to_string()).as_deref(),
                Some(text)
            );
        }
        for text in ["", "0", "3-1", "-", "1-", "1-x", "256"] {
            assert_eq!(Versions::parse(text), None, "{text}");
        }
        let of = |text| Versions::parse(text).expect("versions");
        assert_eq!(of("1-3").common(of("2-9")), Some(of("2-3")));
        assert_eq!(of("1-3").common(of("4-9")), None);
    }

    #[test]
    fn a_batch_comes_back_whole() {
        let (runs, batch) = sample();
        let read = read(&batch).expect("it is one");
        assert_eq!(read.len(), runs.len());
        for (run, (shard, messages)) in read.iter().zip(&runs) {
            assert_eq!(run.shard, *shard);
            assert_eq!(run.messages.len(), messages.len());
            for (one, other) in run.messages.iter().zip(messages) {
                assert_eq!(one.topic(), other.topic());
                assert_eq!(one.payload(), other.payload());
                assert_eq!(one.properties(), other.properties());
                assert_eq!(one.origin(), other.origin());
                assert_eq!((one.qos(), one.retain()), (other.qos(), other.retain()));
                assert_eq!(one.expires_at_ms(), other.expires_at_ms());
            }
        }
    }

    /// Messages of a turn, and the same as a run of a shard.
    fn turn(shard: u16, numbers: &[usize]) -> (Encoded, EncodedRun) {
        let (mut turn, mut run) = (Encoded::default(), EncodedRun::new(shard));
        for number in numbers {
            let message = message(*number);
            let mut recipients = Recipients {
                acknowledged: NodeSet::EMPTY,
                at_most_once: NodeSet::EMPTY,
            };
            recipients.at_most_once.insert(3);
            turn.push(&message, recipients, 1, false);
            run.push(&message, false);
        }
        (turn, run)
    }

    #[test]
    fn a_turn_becomes_the_same_batch_without_a_copy() {
        for version in READS.lowest..=READS.highest {
            for shard in [0, 127, 128, 300, u16::MAX] {
                for numbers in [&[1][..], &[0, 1, 2], &[170, 3], &[5_000, 20_000]] {
                    let (turn, run) = turn(shard, numbers);
                    assert!(bytes_of_turn(&turn) > batch(version, [&run]).len());
                    let (_, records) = turn.parts().next().expect("it is one");
                    let records = records.as_ptr_range();
                    let payload = batch_of_turn(version, shard, turn);
                    assert_eq!(payload, batch(version, [&run]), "{version} {shard}");
                    assert_eq!(payload.as_ptr_range().end, records.end, "a copy");
                    let sections = sections(&payload).expect("it is one");
                    assert_eq!(sections.len(), 1);
                    assert_eq!(sections[0].count, numbers.len());
                }
            }
        }
    }

    #[test]
    fn a_run_takes_records_as_a_whole_or_not_at_all() {
        let (_, run) = turn(4, &[1, 2]);
        let mut other = EncodedRun::new(4);
        let whole = run.bytes();
        let records = run.as_records();
        let bytes = records.bytes.len();
        assert!(!other.push_all(records, whole - 1));
        assert_eq!((other.messages(), other.as_records().bytes), (0, &[][..]));
        assert!(other.push_all(records, whole));
        assert_eq!(
            (other.messages(), other.as_records().bytes),
            (2, records.bytes)
        );
        assert!(!other.push_all(records, whole + bytes - 1));
        assert!(other.push_all(records, whole + bytes));
        assert_eq!(other.messages(), 4);
    }

    #[test]
    fn sections_have_records_as_they_are() {
        let (runs, batch) = sample();
        let sections = sections(&batch).expect("it is one");
        assert_eq!(sections.len(), runs.len());
        for (section, (shard, messages)) in sections.into_iter().zip(&runs) {
            assert_eq!((section.shard, section.count), (*shard, messages.len()));
            let part = &batch[section.records];
            assert_eq!(records(part).count(), messages.len());
            let found: Vec<_> = messages_of(part).collect::<Result<_, _>>().expect("valid");
            let topics = found.iter().map(Message::topic);
            assert!(topics.eq(messages.iter().map(|message| message.topic())));
        }
    }

    #[test]
    fn records_are_not_looked_into_before_they_are_read() {
        let mut run = EncodedRun::new(4);
        run.push_record(b"no message");
        let batch = batch(1, [&run]);
        assert_eq!(sections(&batch).map(|all| all.len()), Ok(1));
        assert_eq!(read(&batch).unwrap_err(), WireError::Malformed(3));
    }

    #[test]
    fn leading_records_end_where_no_more_is_taken() {
        let mut run = EncodedRun::new(4);
        for record in [&[1_u8][..], &[2, 2], &[3, 3, 3]] {
            run.push_record(record);
        }
        let all = run.as_records().bytes;
        assert_eq!(leading(all, false, |_, count| count <= 2), (5, 2));
        assert_eq!(leading(all, false, |end, _| end <= 4), (2, 1));
        assert_eq!(leading(all, false, |_, _| true), (9, 3));
        assert_eq!(leading(all, false, |_, _| false), (0, 0));
        assert_eq!(leading(&[], false, |_, _| true), (0, 0));
        assert_eq!(leading(&[1, 1, 9], false, |_, _| true), (3, 2), "no record");
        assert_eq!(records(&[1, 1, 9]).count(), 1);
    }

    /// Messages of one publisher to one topic, and then to another.
    fn alike(count: usize) -> Vec<Message> {
        let one = |number: usize| {
            let header = MessageHeader {
                published_ms: 1_790_000_000_000 + number as u64,
                ..MessageHeader::default()
            };
            let topic = if number < count {
                "plant/a/temperature"
            } else {
                "b"
            };
            let message = Message::copy(topic, &[], &[number as u8; 20], header);
            message.expect("it fits").with_origin(Origin(7))
        };
        (0..2 * count).map(one).collect()
    }

    #[test]
    fn brief_records_stay_behind_their_whole_one_and_need_their_version() {
        let messages = alike(100);
        let (mut whole, mut brief) = (EncodedRun::new(1), EncodedRun::new(1));
        for message in &messages {
            whole.push(message, false);
            brief.push(message, true);
        }
        let saved = whole.bytes() - brief.bytes();
        assert!(saved > 200 * 20, "{saved} bytes less");
        assert_eq!(batch(QUEUES, [&whole])[0], QUEUES);
        assert_eq!(batch(QUEUES, [&brief])[0], BRIEF);
        // A node that does not read it has joined since.
        for (version, expected) in [(QUEUES, &whole), (BRIEF, &brief)] {
            let run = brief.for_version(version, &messages);
            assert_eq!(batch(version, [&*run]), batch(version, [expected]));
            assert_eq!(batch(version, [&*run])[0], version);
        }
        let same = |one: &Message, other: &Message| {
            (one.topic(), one.payload(), one.published_ms())
                == (other.topic(), other.payload(), other.published_ms())
        };
        let is_all = |found: &[Message]| {
            found.len() == messages.len() && found.iter().zip(&messages).all(|(a, b)| same(a, b))
        };
        // However they are cut, each piece is read by itself.
        for most in [1, 700, 1_000, 100_000] {
            let (mut rest, mut pieces) = (brief.as_records(), Vec::new());
            while !rest.bytes.is_empty() {
                let mut piece = EncodedRun::new(1);
                rest = piece.push_fitting(rest, most);
                pieces.push(piece);
            }
            assert_eq!(pieces.iter().map(EncodedRun::messages).sum::<usize>(), 200);
            let found: Vec<Message> = (pieces.iter())
                .flat_map(|piece| read(&batch(1, [piece])).expect("it is one"))
                .flat_map(|run| run.messages)
                .collect();
            assert!(is_all(&found), "{most}");
        }
        // A run goes on behind records that it took.
        let mut joined = EncodedRun::new(1);
        assert!(joined.push_all(whole.as_records(), usize::MAX));
        for message in &messages {
            joined.push(message, true);
        }
        let found: Vec<_> = messages_of(joined.as_records().bytes)
            .collect::<Result<_, _>>()
            .expect("valid");
        assert!(is_all(&found[..200]) && is_all(&found[200..]));
    }

    #[test]
    fn a_brief_record_without_a_whole_one_is_refused() {
        let messages = alike(2);
        let mut run = EncodedRun::new(1);
        run.push(&messages[0], true);
        let first = run.as_records().bytes.len();
        run.push(&messages[1], true);
        let mut alone = EncodedRun::new(1);
        let brief = Records {
            bytes: &run.as_records().bytes[first..],
            count: 1,
            has_brief: true,
        };
        assert!(alone.push_all(brief, usize::MAX));
        assert!(read(&batch(BRIEF, [&run])).is_ok());
        assert_eq!(
            read(&batch(BRIEF, [&alone])).unwrap_err(),
            WireError::Malformed(4)
        );
        // Neither is it the first of a run behind another.
        assert!(read(&batch(BRIEF, [&run, &alone])).is_err());
    }

    #[test]
    fn letters_about_queues_are_not_of_an_earlier_version() {
        let mut letters = EncodedRun::of(4, Kind::QueueLetters);
        letters.push_record(b"one");
        let runs = read(&batch(QUEUES, [&letters])).expect("it is one");
        assert_eq!(runs[0].letters, [b"one".to_vec()]);
        let refused = read(&batch(GROUPS, [&letters])).unwrap_err();
        assert_eq!(refused, WireError::Malformed(1));
    }

    #[test]
    fn letters_come_back_and_the_first_version_has_none() {
        let mut letters = EncodedRun::of(4, Kind::Letters);
        letters.push_record(b"one");
        letters.push_record(b"");
        let runs = read(&batch(GROUPS, [&letters])).expect("it is one");
        assert_eq!((runs[0].shard, runs[0].messages.len()), (4, 0));
        assert_eq!(runs[0].letters, [b"one".to_vec(), Vec::new()]);
        let mut other = batch(GROUPS, [&letters]).to_vec();
        other[2] = 2;
        assert_eq!(read(&other).unwrap_err(), WireError::Malformed(1));
        let mut run = EncodedRun::new(4);
        run.push(&message(3), false);
        for version in [1, GROUPS] {
            let runs = read(&batch(version, [&run])).expect("it is one");
            assert_eq!((runs[0].shard, runs[0].messages.len()), (4, 1), "{version}");
        }
    }

    #[test]
    fn a_message_costs_what_is_foreseen() {
        for number in [0, 1, 40, 5_000] {
            let message = message(number);
            let mut run = EncodedRun::new(u16::MAX);
            run.push(&message, false);
            let foreseen = message.body_bytes() + RECORD_OVERHEAD_BYTES + BATCH_OVERHEAD_BYTES;
            assert!(batch(READS.highest, [&run]).len() <= foreseen);
        }
    }

    #[test]
    fn what_is_cut_off_or_of_another_version_is_refused() {
        let (_, batch) = sample();
        // Where a run ends a batch may end.
        let mut ends = 0;
        for end in 1..batch.len() {
            match read(&batch[..end]) {
                Ok(runs) => {
                    assert!(runs.len() < 3);
                    ends += 1;
                }
                Err(WireError::Malformed(at)) => assert!(at <= end),
                Err(version) => panic!("{version}"),
            }
        }
        assert_eq!(ends, 3, "before and between the runs");
        assert_eq!(read(&[]).unwrap_err(), WireError::Malformed(0));
        let mut newer = batch.to_vec();
        newer[0] = 9;
        assert_eq!(read(&newer).unwrap_err(), WireError::Version(9));
    }

    #[test]
    fn no_bytes_make_it_panic_or_take_much_memory() {
        let (_, batch) = sample();
        for at in 1..batch.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = batch.to_vec();
                bytes[at] = value;
                let _ = read(&bytes);
            }
        }
        let mut endless = vec![READS.highest];
        endless.extend([0xff; 30]);
        assert!(read(&endless).is_err());
    }
}
