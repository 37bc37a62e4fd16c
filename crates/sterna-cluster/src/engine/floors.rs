//! The floors of nodes in the stream of sessions' records: telling them, and reading them.
//!
//! The floor of a node is a record that only rises, has no end, and lies in the stream whose records it is about. Where
//! NATS loses that stream, it loses both.

use super::streams::SESSIONS;
use super::{Core, Retry};
use crate::owners::{Floor, incarnation_in, number_in};
use crate::subjects;

/// The form of a floor, as a line of text.
const FORM: &str = "1";

impl Core {
    /// Says that nobody has anything any more of a node's processes below a floor. Waits until NATS has it, or a higher one.
    pub(super) async fn tell_floor(&self, node: &str, floor: Floor) {
        let subject = subjects::floor(node);
        let mut retry = Retry::new();
        loop {
            if let Ok(found) = self.last_of_subject(SESSIONS, &subject).await {
                let told = found.as_ref().and_then(|found| read_floor(&found.payload));
                if told.is_some_and(|told| told >= floor) {
                    return;
                }
                let expected = found.map_or(0, |found| found.sequence);
                let line = line_of(floor).into_bytes();
                let written = self.compare_and_set(subject.clone(), expected, line, None);
                if written.await.is_ok() {
                    return;
                }
            }
            retry.wait().await;
        }
    }

    /// A floor comes by, or was there before this start.
    pub(super) fn floor_passed(&self, node: &str, payload: &[u8]) {
        match read_floor(payload) {
            Some(floor) => self.owners.borrow_mut().raise_floor(node, floor),
            None => self.cannot_read("floor of a node", node, "its form is not known"),
        }
    }
}

fn line_of(floor: Floor) -> String {
    format!("{FORM} {} {}", floor.incarnation, floor.position)
}

fn read_floor(payload: &[u8]) -> Option<Floor> {
    let mut words = std::str::from_utf8(payload).ok()?.split(' ');
    if words.next()? != FORM {
        return None;
    }
    let floor = Floor {
        incarnation: incarnation_in(words.next()?)?,
        position: number_in(words.next()?)?,
    };
    words.next().is_none().then_some(floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_come_back_and_what_is_none_does_not() {
        let floor = Floor {
            incarnation: 7,
            position: 90,
        };
        assert_eq!(read_floor(line_of(floor).as_bytes()), Some(floor));
        for other in [
            "", "2 7 90", "1 7", "1 0 90", "1 7 x", "1 7 90 1", "1 -7 90",
        ] {
            assert_eq!(read_floor(other.as_bytes()), None, "{other}");
        }
    }
}
