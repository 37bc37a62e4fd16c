//! A session as bytes, for storage that outlives the process.

use std::error::Error;
use std::fmt;

use super::incoming::Incoming;
use super::outgoing::Outbox;
use super::{MqttSession, Stage};
use crate::wire::Reader;

/// First byte of a snapshot: the form of what follows.
const FORM: u8 = 1;

/// Bytes that are not the snapshot of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotError;

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not the snapshot of an MQTT session")
    }
}

impl Error for SnapshotError {}

impl MqttSession {
    /// Appends what has to survive a restart; 5 bytes for an empty session, then about 9 per
    /// outgoing and 2 per incoming identifier.
    pub fn snapshot(&self, out: &mut Vec<u8>) {
        out.push(FORM);
        let (first, slots) = self.outgoing.parts();
        out.extend_from_slice(&first.to_be_bytes());
        out.extend_from_slice(&(slots.len() as u16).to_be_bytes());
        for (tag, stage) in slots {
            out.push(match stage {
                None | Some(Stage::Subscribe | Stage::Unsubscribe) => 0,
                Some(Stage::PublishQoS1) => 1,
                Some(Stage::PublishQoS2) => 2,
                Some(Stage::Release) => 3,
            });
            out.extend_from_slice(&tag.to_be_bytes());
        }
        for id in self.incoming.ids() {
            out.extend_from_slice(&id.to_be_bytes());
        }
    }

    /// The session of a snapshot, as after [`MqttSession::begin_connection`].
    ///
    /// # Errors
    ///
    /// [`SnapshotError`] for bytes that [`MqttSession::snapshot`] did not write.
    pub fn restore(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut reader = Reader::new(bytes);
        Self::read(&mut reader).ok_or(SnapshotError)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        if reader.u8().ok()? != FORM {
            return None;
        }
        let first = reader.u16().ok()?;
        let len = usize::from(reader.u16().ok()?);
        let mut slots = Vec::new();
        for _ in 0..len {
            let stage = match reader.u8().ok()? {
                0 => None,
                1 => Some(Stage::PublishQoS1),
                2 => Some(Stage::PublishQoS2),
                3 => Some(Stage::Release),
                _ => return None,
            };
            let high = reader.u32().ok()?;
            let low = reader.u32().ok()?;
            slots.push((u64::from(high) << 32 | u64::from(low), stage));
        }
        let ids = reader.rest();
        if !ids.len().is_multiple_of(2) {
            return None;
        }
        let ids = ids
            .chunks_exact(2)
            .map(|id| u16::from_be_bytes([id[0], id[1]]));
        if ids.clone().any(|id| id == 0) {
            return None;
        }
        Some(Self {
            outgoing: Outbox::from_parts(first, slots)?,
            incoming: Incoming::from_ids(ids),
        })
    }
}
