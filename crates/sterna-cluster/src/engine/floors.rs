//! The floors of nodes in the stream of sessions' records: telling them, and reading them.
//!
//! The floor of a node is a record that only rises, has no end, and lies in the stream whose records it is about. Where
//! NATS loses that stream, it loses both.

use bytes::Bytes;

use super::Core;
use super::streams::SESSIONS;
use crate::owners::{Floor, incarnation_in, number_in};
use crate::subjects;

/// The form of a floor, as a line of text.
const FORM: &str = "1";

impl Core {
    /// Says that nobody has anything any more of a node's processes below a floor. Waits until NATS has it, or a higher one.
    pub(super) async fn tell_floor(&self, node: &str, floor: Floor) {
        let (subject, line) = (subjects::floor(node), line_of(floor));
        let is_as_high = |told: &Bytes| read_floor(told).is_some_and(|told| told >= floor);
        self.write_unless(SESSIONS, &subject, line.as_bytes(), is_as_high)
            .await;
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
