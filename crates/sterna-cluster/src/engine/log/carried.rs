//! Entries that an import has brought: their messages have the positions that they had before.
//!
//! So cursors, packet identifiers and ids of HTTP mean what they meant. A header of such an entry has the position of its
//! first message. These positions rise with the numbers of entries, and are below those of all other entries. An import
//! sees to both.

use std::collections::BTreeMap;

use async_nats::HeaderMap;

use super::{position, sequence};
use crate::engine::Core;
use crate::owners::number_in;

/// The header with the position of the first message of an entry, as a decimal number.
pub(in crate::engine) const POSITION: &str = "Sterna-Position";

/// Places that are remembered at most. One of them spares a reader the entries before it.
const MOST_PLACES: usize = 10_000;

/// Where reading may go on: positions, and the numbers of entries before which all messages have lower ones.
#[derive(Debug, Default)]
pub(super) struct Carried(BTreeMap<u64, u64>);

impl Carried {
    fn note(&mut self, position: u64, entry: u64) {
        if self.0.len() >= MOST_PLACES {
            self.0.clear();
        }
        self.0.insert(position, entry);
    }

    fn before(&self, position: u64) -> Option<u64> {
        let known = self.0.range(..=position).next_back();
        known.map(|(_, &entry)| entry)
    }
}

/// The position of the first message of an entry.
pub(in crate::engine) fn first_in(entry: u64, headers: Option<&HeaderMap>) -> u64 {
    let first = position(entry, 0);
    let carried = headers.and_then(|headers| headers.get(POSITION));
    let carried = carried.and_then(|position| number_in(position.as_str()));
    // A higher one would come before others of the log.
    carried.map_or(first, |carried| carried.min(first))
}

impl Core {
    /// The number of an entry before which no message has this position or a higher one.
    pub(super) fn entry_at(&self, position: u64) -> u64 {
        let known = self.log.carried.borrow().before(position);
        sequence(position).max(known.unwrap_or(1)).max(1)
    }

    /// A reader of carried messages goes on from a position, which is in this entry or behind it.
    pub(super) fn note_carried(&self, position: u64, entry: u64) {
        if sequence(position) < entry {
            self.log.carried.borrow_mut().note(position, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_an_import_say_their_positions_and_others_have_their_own() {
        let mut headers = HeaderMap::new();
        assert_eq!(first_in(7, None), position(7, 0));
        assert_eq!(first_in(7, Some(&headers)), position(7, 0));
        headers.insert(POSITION, "12");
        assert_eq!(first_in(7, Some(&headers)), 12);
        for other in ["x", "-1", "18446744073709551615", "9000000000000000"] {
            headers.insert(POSITION, other);
            assert_eq!(first_in(7, Some(&headers)), position(7, 0), "{other}");
        }
    }

    #[test]
    fn reading_goes_on_where_it_was() {
        let mut carried = Carried::default();
        assert_eq!(carried.before(100), None);
        carried.note(50, 1_050);
        carried.note(80, 1_070);
        assert_eq!(carried.before(49), None);
        assert_eq!(carried.before(79), Some(1_050));
        assert_eq!(carried.before(u64::MAX), Some(1_070));
        for place in 0..MOST_PLACES as u64 + 5 {
            carried.note(place, place);
            assert!(carried.0.len() <= MOST_PLACES);
        }
    }
}
