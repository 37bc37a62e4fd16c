//! The notice of an import: one record of the stream of nodes, which says that an import is under way, or is done.
//!
//! It is written over and never removed: what NATS has removed may come again. An import writes it by compare-and-set, so
//! that two of them do not write at once.

use super::super::streams::NODES;
use super::super::{Core, streams};
use crate::owners::WriteError;
use crate::subjects;

/// The form, as a line of text.
const FORM: &str = "1";

/// The state of imports into a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Nodes may join.
    Idle,
    /// One is under way, or has failed.
    UnderWay,
}

impl State {
    fn line(self) -> String {
        let word = match self {
            Self::Idle => "done",
            Self::UnderWay => "begun",
        };
        format!("{FORM} {word}")
    }

    fn read(line: &[u8]) -> Option<Self> {
        [Self::Idle, Self::UnderWay]
            .into_iter()
            .find(|state| state.line().as_bytes() == line)
    }
}

impl Core {
    /// The state of imports, and the sequence number of the notice; 0 where there is none.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub(super) async fn notice(&self) -> Result<(State, u64), String> {
        match self.jetstream.get_stream(self.settings.stream(NODES)).await {
            Ok(_) => {}
            Err(error) if streams::is_no_stream(&error) => return Ok((State::Idle, 0)),
            Err(error) => return Err(error.to_string()),
        }
        let Some(found) = self.last_at_leader(NODES, subjects::IMPORT).await? else {
            return Ok((State::Idle, 0));
        };
        let state = State::read(&found.payload);
        let state = state.ok_or("the notice of an import has a form that is not known")?;
        Ok((state, found.sequence))
    }

    /// Writes the notice where the one before has that sequence number. Returns the number of the new one.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub(super) async fn note_import(&self, state: State, before: u64) -> Result<u64, String> {
        let line = state.line().into_bytes();
        let written = self.compare_and_set(subjects::IMPORT.to_owned(), before, line, None);
        written.await.map_err(|error| match error {
            WriteError::Conflict => ANOTHER.to_owned(),
            WriteError::Unknown => self.explained("NATS does not take the notice of the import"),
        })
    }

    /// Whether no import has begun since this node joined. Otherwise the node begins anew: what it knows is of another
    /// cluster, in effect, and would be written over what was imported.
    ///
    /// # Errors
    /// A sentence for the log.
    pub(in crate::engine) async fn is_no_import_since(&self) -> Result<(), String> {
        // The transfer itself makes streams anew, and never joins.
        if !self.status.has_joined() {
            return Ok(());
        }
        // The notice is in the stream whose numbers are the incarnations.
        let (_, notice) = self.notice().await?;
        if notice < self.incarnation.get() {
            return Ok(());
        }
        let why = "an import has replaced what this node knew of its cluster";
        self.begin_anew(why);
        Err(why.to_owned())
    }

    /// Whether nodes may join.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub(in crate::engine) async fn is_no_import_under_way(&self) -> Result<(), String> {
        match self.notice().await? {
            (State::Idle, _) => Ok(()),
            (State::UnderWay, _) => Err(UNDER_WAY.to_owned()),
        }
    }
}

/// Why an import ends that another has taken the place of.
pub(super) const ANOTHER: &str = "another import has begun meanwhile";

/// Why no node joins.
pub(super) const UNDER_WAY: &str = "an import into this cluster is under way, or has failed: it is finished by \
                                    `sterna cluster import --replace`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_come_back_and_nothing_else_is_one() {
        for state in [State::Idle, State::UnderWay] {
            assert_eq!(State::read(state.line().as_bytes()), Some(state));
        }
        for line in ["", "1", "2 begun", "1 begun ", "1 over"] {
            assert_eq!(State::read(line.as_bytes()), None, "{line}");
        }
    }
}
