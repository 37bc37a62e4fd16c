//! `sterna cluster export` and `import`: the lines of a store's export, of a cluster.
//!
//! An export of a cluster is that of a store with the same sessions, queues, retained messages and messages. So a cluster
//! reads what a store has written, and the other way round. Positions stay as they are.

use std::collections::BTreeMap;
use std::io::{BufRead, Seek, SeekFrom, Write};
use std::time::SystemTime;

use bytes::Bytes;
use sterna_broker::{
    CarriedSession, Message, RecordOf, Records, SessionName, anchor_records, group_named,
    key_of_door, key_of_retained, key_of_shared, record_of, retained_message, retained_record,
    shared_of,
};
use sterna_cluster::{Content, Plan, Transfer, owners::Key, requests::key_of as key_of_request};
use sterna_store::inspect::{Item, LineReader, LineWriter};

use crate::cluster;
use crate::config::{Config, QUEUE_LEVEL};
use crate::session::http::IDS_KEY;
use crate::session::{HTTP_PREFIX, QUEUE_PREFIX, anchor_of};

/// The position whose id is 1, of a subscription of HTTP that came from a store. Ids count something else there, so
/// messages get ids of their node. No position comes near it.
const NO_PLACE: u64 = i64::MAX as u64;

/// The last id that a subscription of HTTP may have been given by positions.
const LAST_PLACE_ID: u64 = (1 << 52) - 1;

/// First bytes of the keys of a node's records, and what they are of.
const OF_NODE: [(u8, &str); 5] = [
    (b'b', "bans"),
    (b'c', "topics that were created over HTTP"),
    (b'd', "dynamic nodes of AMQP"),
    (b'q', "users who have made a queue"),
    (
        b'u',
        "deliveries of AMQP senders that settle second, which may come again",
    ),
];

/// The first byte of the key of a request that was done once.
const REQUEST: u8 = b'k';

/// The work that was done, in numbers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Transferred {
    /// Number of sessions, but for roots of shared subscriptions, and anchors of queues.
    pub sessions: u64,
    /// Number of shared subscriptions and queues.
    pub groups: u64,
    /// Number of retained messages.
    pub retained: u64,
    /// Number of messages of the log.
    pub messages: u64,
    /// The kinds of things that were not carried, with the numbers.
    pub left: Vec<(String, u64)>,
}

impl Transferred {
    fn leave(&mut self, what: &str, count: u64) {
        if count == 0 {
            return;
        }
        match self.left.iter_mut().find(|(known, _)| known == what) {
            Some((_, known)) => *known += count,
            None => self.left.push((what.to_owned(), count)),
        }
    }
}

/// A connection with the NATS of a node's configuration.
fn connect(config: &Config) -> Result<Transfer, String> {
    if !config.cluster.is_on() {
        return Err("the configuration has no cluster: cluster.nats is empty".to_owned());
    }
    // A node with them does not start.
    if let Some(problem) = config.cluster.problems(config).into_iter().next() {
        return Err(problem);
    }
    Transfer::connect(cluster::settings(&config.cluster, 1)?)
}

/// Writes all of the cluster that a node's configuration names, and changes nothing. Nodes may run.
///
/// # Errors
/// A sentence for the operator. The bytes that were written by then are no export.
pub fn export(config: &Config, out: &mut dyn Write) -> Result<Transferred, String> {
    let transfer = connect(config)?;
    let mut content = transfer.read(&exporter(config)?)?;
    let mut done = Transferred::default();
    let records = records_of(&mut content, &mut done);
    let failed = |error: std::io::Error| format!("the export: {error}");
    let mut lines = LineWriter::begin(out, content.next_position).map_err(failed)?;
    for (key, value) in records {
        lines.record(&key, &value).map_err(failed)?;
    }
    let mut bytes = Vec::new();
    transfer.messages(&mut content, &mut |position, message| {
        bytes.clear();
        message.encode(&mut bytes);
        (lines.message(position, message.topic(), &bytes)).map_err(failed)
    })?;
    done.messages = lines.finish().map_err(failed)?.messages;
    let left = content.left;
    done.leave(
        "sessions whose records are not valid",
        left.unreadable_sessions,
    );
    done.leave(
        "retained messages that are not valid",
        left.unreadable_retained,
    );
    done.leave(
        "entries of the log that are not valid",
        left.unreadable_entries,
    );
    done.leave("messages that wait for other regions", left.for_regions);
    Ok(done)
}

/// The exporter, for the audit logs of nodes: a user of the system, and the node whose configuration that has.
fn exporter(config: &Config) -> Result<String, String> {
    let user = rustix::process::getuid().as_raw();
    let node = config.cluster.node_name()?;
    Ok(format!("user id {user}, with the configuration of {node}"))
}

/// All records of a cluster as a store has them.
fn records_of(content: &mut Content, done: &mut Transferred) -> Records {
    let mut all = Records::new();
    for (name, mut session) in std::mem::take(&mut content.sessions) {
        set_ids(&name, &mut session.records, |first| {
            let given = content.next_position.saturating_sub(first) + 1;
            given.min(LAST_PLACE_ID)
        });
        let group = group_named(&name);
        let queue = session.topics_of_queue(&name);
        let queue = queue.and_then(|topics| topics.strip_prefix(QUEUE_LEVEL));
        let anchor = queue.map(anchor_of);
        let Some(records) = session.into_records(&name) else {
            done.leave("sessions whose records are not valid", 1);
            continue;
        };
        all.extend(records);
        if let Some(group) = group {
            done.groups += 1;
            all.extend((anchor.iter()).flat_map(|anchor| anchor_records(anchor, group)));
        } else {
            done.sessions += 1;
        }
    }
    for (key, value) in std::mem::take(&mut content.requests) {
        all.insert(key_of_shared(&key), value);
    }
    for message in &content.retained {
        let value = retained_record(message);
        all.insert(key_of_retained(message.topic()), value.into());
        done.retained += 1;
    }
    all
}

/// Changes what a subscription of HTTP keeps of its ids, if a session is one.
fn set_ids(name: &SessionName, records: &mut Records, change: impl FnOnce(u64) -> u64) {
    if !name.id().starts_with(HTTP_PREFIX) {
        return;
    }
    if let Some(value) = records.get_mut(&key_of_door(name, IDS_KEY))
        && let Ok(known) = <[u8; 8]>::try_from(&**value)
    {
        *value = change(u64::from_be_bytes(known)).to_be_bytes().into();
    }
}

/// An export, as a cluster is to have it.
#[derive(Debug, Default)]
struct Import {
    sessions: Vec<(SessionName, CarriedSession)>,
    retained: Vec<Message>,
    requests: Vec<(Key, Box<[u8]>, u64)>,
    done: Transferred,
    message_bytes: u64,
    next_position: u64,
}

/// Writes an export into the cluster that a node's configuration names.
///
/// All its nodes are to be stopped. An import that `replaces` the cluster's contents removes them first; otherwise the
/// cluster must be empty. The export is read twice: nothing is written before all of it was read, and was found to be
/// whole.
///
/// # Errors
/// A sentence for the operator. It says so where the import has to be begun anew.
pub fn import(
    config: &Config,
    input: &mut (impl BufRead + Seek),
    replaces: bool,
) -> Result<Transferred, String> {
    let mut transfer = connect(config)?;
    let mut import = read(input, transfer.most_message_bytes(), now_s())?;
    for (name, session) in &import.sessions {
        transfer.fits(session).map_err(|(bytes, most)| {
            let name = group_named(name).unwrap_or_else(|| name.id());
            format!(
                "what {name} has takes {bytes} bytes, and NATS takes {most}: its max_payload is to be higher"
            )
        })?;
    }
    input
        .seek(SeekFrom::Start(0))
        .map_err(|error| error.to_string())?;
    transfer.begin(Plan {
        replaces,
        next_position: import.next_position,
        message_bytes: import.message_bytes,
        messages: import.done.messages,
    })?;
    let again = |why: String| format!("{why}. The import is to be begun anew, with --replace");
    let mut lines = LineReader::begin(input).map_err(|error| again(error.to_string()))?;
    while let Some(item) = (lines.next_item()).map_err(|error| again(error.to_string()))? {
        if let Item::Message {
            position, content, ..
        } = item
        {
            let message = Message::decode(Bytes::from(content));
            let message = message.map_err(|error| again(error.to_string()))?;
            transfer.message(position, &message)?;
        }
    }
    transfer.retained(&import.retained)?;
    transfer.requests(&import.requests)?;
    transfer.finish(&import.sessions)?;
    import.done.left.sort();
    Ok(import.done)
}

fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

/// Reads all of an export but its messages, which are looked at.
fn read(input: &mut impl BufRead, most_message_bytes: usize, now_s: u64) -> Result<Import, String> {
    let mut import = Import::default();
    let mut lines = LineReader::begin(input).map_err(|error| error.to_string())?;
    import.next_position = lines.next_position();
    let mut sessions = BTreeMap::<SessionName, Records>::new();
    while let Some(item) = lines.next_item().map_err(|error| error.to_string())? {
        let number = lines.line_number();
        let wrong = |why: &str| format!("line {number}: {why}");
        match item {
            Item::Record { key, value } => {
                let known = record_of(&key).ok_or_else(|| wrong("no record of a broker"))?;
                match known {
                    RecordOf::Session(name) => {
                        let records = sessions.entry(name).or_default();
                        records.insert(key.into(), value.into());
                    }
                    RecordOf::Group(filter) => {
                        let group = CarriedSession::of_group(filter, &value);
                        let (name, root) =
                            group.ok_or_else(|| wrong("no record of a shared subscription"))?;
                        import.done.groups += 1;
                        import.sessions.push((name, root));
                    }
                    RecordOf::Retained(_) => {
                        let message = retained_message(&value);
                        let message = message.ok_or_else(|| wrong("no retained message"))?;
                        import
                            .retain(message, most_message_bytes, now_s)
                            .map_err(|why| wrong(&why))?;
                    }
                    RecordOf::Node([REQUEST, id @ ..]) => {
                        let mut request = vec![REQUEST];
                        request.extend_from_slice(id);
                        import.request(key_of_request(&request), value, now_s);
                    }
                    RecordOf::Node(own) => {
                        let kind = own.first().copied().unwrap_or_default();
                        let named = OF_NODE.iter().find(|(known, _)| *known == kind);
                        if let Some((_, what)) = named {
                            import.done.leave(what, 1);
                        }
                    }
                    RecordOf::Shared => {
                        let digest = shared_of(&key).and_then(|digest| digest.try_into().ok());
                        let digest = digest.ok_or_else(|| wrong("no key of a request"))?;
                        import.request(digest, value, now_s);
                    }
                    // Nodes judge sessions by the rules that they have.
                    RecordOf::Judged => {}
                }
            }
            Item::Message { topic, content, .. } => {
                import.done.messages += 1;
                import.message_bytes += (content.len() + topic.len()) as u64;
                let message = Message::decode(Bytes::from(content));
                let message = message.map_err(|_| wrong("no message"))?;
                if message.topic() != topic {
                    return Err(wrong("the message has another topic"));
                }
                if message.body_bytes() > most_message_bytes {
                    return Err(wrong(&too_large(&message, most_message_bytes)));
                }
            }
        }
    }
    for (name, records) in sessions {
        import.session(name, records);
    }
    Ok(import)
}

fn too_large(message: &Message, most: usize) -> String {
    format!(
        "a message on {} has {} bytes, and NATS takes {most}: its max_payload is to be higher",
        message.topic(),
        message.body_bytes()
    )
}

impl Import {
    fn session(&mut self, name: SessionName, mut records: Records) {
        // In a cluster the root keeps a queue.
        if name.id().starts_with(QUEUE_PREFIX) {
            return;
        }
        set_ids(&name, &mut records, |_| NO_PLACE);
        match CarriedSession::of_records(&name, records) {
            Some(session) => {
                self.done.sessions += 1;
                self.sessions.push((name, session));
            }
            None => self.done.leave("sessions whose records are not valid", 1),
        }
    }

    fn retain(&mut self, message: Message, most_bytes: usize, now_s: u64) -> Result<(), String> {
        if message.topic().starts_with('$') {
            self.done
                .leave("retained messages of topics that begin with $", 1);
            return Ok(());
        }
        if message.body_bytes() > most_bytes {
            return Err(too_large(&message, most_bytes));
        }
        let is_over = (message.expires_at_ms()).is_some_and(|at_ms| at_ms <= now_s * 1_000);
        if !is_over {
            self.done.retained += 1;
            self.retained.push(message);
        }
        Ok(())
    }

    /// Takes in a request that was done. Its record is a digest of 16 bytes, until when it is known in milliseconds, and
    /// a status.
    fn request(&mut self, key: Key, value: Vec<u8>, now_s: u64) {
        let until_ms = value.get(16..24).and_then(|until| until.try_into().ok());
        match until_ms.map(u64::from_be_bytes) {
            Some(until_ms) if until_ms / 1_000 > now_s => {
                self.requests.push((key, value.into(), until_ms / 1_000));
            }
            Some(_) => {}
            None => self.done.leave("keys of requests that are not valid", 1),
        }
    }
}

#[cfg(test)]
mod tests;
