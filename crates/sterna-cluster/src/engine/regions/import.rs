//! From other regions: what comes by in the log, and where it is from.

use async_nats::HeaderMap;
use sterna_broker::Message;

use super::super::Core;
use super::super::retained::QUIET;
use crate::settings::Settings;

/// The header in which NATS says where it has copied a message from. Its fields are the stream, the number there,
/// two filters, the subject, and an identity. The identity tells a stream from an earlier one of its name.
const SOURCE: &str = "Nats-Stream-Source";

/// The last entry of a region that has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Last {
    /// Which of the streams that the region has had.
    identity: String,
    pub(super) sequence: u64,
    /// Whether this start of the node has seen it. NATS may have copied more before that.
    is_seen: bool,
}

impl Last {
    pub(super) fn write(&self) -> String {
        format!("{} {}", self.sequence, self.identity)
    }

    pub(super) fn read(line: &[u8]) -> Option<Self> {
        let (sequence, identity) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        Some(Self {
            identity: identity.to_owned(),
            sequence: sequence.parse().ok()?,
            is_seen: false,
        })
    }
}

/// The kind of an entry of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Arrival {
    /// One of this region.
    Own,
    /// One of another region.
    Foreign,
    /// It is delivered to nobody.
    Nothing,
}

/// Where an entry stands among those of its region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Next,
    Repeated,
    /// N entries are missing before it.
    AfterMissing(u64),
}

/// The region of an entry, and which of its entries it is; `None` for one of this region.
fn origin(settings: &Settings, headers: Option<&HeaderMap>) -> Option<(String, Last)> {
    let mut fields = headers?.get(SOURCE)?.as_str().split(' ');
    // NATS puts a digest behind the name of a stream of another domain.
    let stream = fields.next()?.split(':').next()?;
    let sequence = fields.next()?;
    let remotes = settings.region.iter().flat_map(|region| &region.remotes);
    let known = remotes
        .map(|remote| &remote.name)
        .find(|name| stream == settings.stream_of(name, super::OUT));
    // One that is not named any more may still have entries here.
    let region = known.map_or_else(|| stream.to_owned(), String::clone);
    let last = Last {
        identity: fields.nth(3).unwrap_or_default().to_owned(),
        sequence: sequence.parse().ok()?,
        is_seen: true,
    };
    Some((region, last))
}

fn place(known: Option<&Last>, here: &Last) -> Place {
    match known {
        Some(known) if known.identity == here.identity => {
            match here.sequence.saturating_sub(known.sequence) {
                0 => Place::Repeated,
                1 => Place::Next,
                _ if !known.is_seen => Place::Next,
                more => Place::AfterMissing(more - 1),
            }
        }
        _ => Place::Next,
    }
}

impl Core {
    /// Notes an entry of the log that comes by.
    pub(in super::super) fn note_arrival(&self, headers: Option<&HeaderMap>) -> Arrival {
        let Some((region, here)) = origin(&self.settings, headers) else {
            return Arrival::Own;
        };
        let mut came = self.regions.came.borrow_mut();
        match place(came.get(&region), &here) {
            Place::Next => {}
            Place::Repeated => {
                self.status.repeated_batches.add(1);
                return Arrival::Nothing;
            }
            Place::AfterMissing(entries) => {
                self.status.region_missed.add(entries);
                tracing::warn!(
                    region,
                    entries,
                    "entries of another region are missing: more waited there than may, or their time was over"
                );
            }
        }
        came.insert(region, here);
        drop(came);
        self.arrival(headers)
    }

    /// The kind of an entry of the log.
    pub(in super::super) fn arrival(&self, headers: Option<&HeaderMap>) -> Arrival {
        if origin(&self.settings, headers).is_none() {
            Arrival::Own
        } else if headers.is_some_and(|headers| headers.get(QUIET).is_some()) {
            Arrival::Nothing
        } else {
            Arrival::Foreign
        }
    }

    /// Removes from an entry's messages all that this region does not take. It also removes messages of QoS 0,
    /// which are not for readers that outlive their connections, and returns them.
    pub(in super::super) fn sort_arrived(
        &self,
        arrival: Arrival,
        messages: &mut Vec<(u64, Message)>,
    ) -> Vec<Message> {
        match arrival {
            Arrival::Own => return Vec::new(),
            Arrival::Nothing => messages.clear(),
            Arrival::Foreign => {}
        }
        messages.retain(|(_, message)| self.settings.crosses(message.topic()));
        let flashes = messages.extract_if(.., |(_, message)| !message.qos().is_acknowledged());
        flashes.map(|(_, message)| message).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Region, Remote};

    #[test]
    fn what_nats_says_of_a_source_is_understood() {
        let region = Region {
            name: "north".to_owned(),
            topics: Vec::new(),
            remotes: vec![Remote {
                name: "south".to_owned(),
                domain: "south".to_owned(),
            }],
            waiting_bytes: 1,
            refuses_when_full: false,
        };
        let settings = Settings::sample(Some(region));
        let from = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(SOURCE, value);
            origin(&settings, Some(&headers))
        };
        let south = |identity: &str| Some(("south".to_owned(), last(identity, 12)));
        let stream = "STERNA_c@south_OUT:Mu9XYoX7 12 a.>\u{c}b.> c.>\u{c}c.> a.t";
        assert_eq!(from(stream), south(""));
        assert_eq!(from(&format!("{stream} id")), south("id"));
        let other = Some(("STERNA_c@east_OUT".to_owned(), last("", 3)));
        assert_eq!(from("STERNA_c@east_OUT 3 > >"), other, "it was named once");
        assert_eq!(from("nonsense"), None);
        assert_eq!(origin(&settings, None), None);
    }

    fn last(identity: &str, sequence: u64) -> Last {
        Last {
            identity: identity.to_owned(),
            sequence,
            is_seen: true,
        }
    }

    #[test]
    fn an_entry_that_came_before_is_known_again_and_so_is_a_gap() {
        let known = last("x", 7);
        for (here, expected) in [
            (last("x", 8), Place::Next),
            (last("x", 7), Place::Repeated),
            (last("x", 2), Place::Repeated),
            (last("x", 12), Place::AfterMissing(4)),
            (last("y", 1), Place::Next),
        ] {
            assert_eq!(place(Some(&known), &here), expected, "{here:?}");
        }
        assert_eq!(
            place(None, &last("x", 9)),
            Place::Next,
            "the first that is seen"
        );
    }

    #[test]
    fn what_is_noted_comes_back() {
        for one in [last("", 0), last("an identity", u64::MAX)] {
            let read = Last::read(one.write().as_bytes()).expect("it was written");
            assert_eq!(
                (&read.identity, read.sequence),
                (&one.identity, one.sequence)
            );
        }
        for other in ["", "7", "x y"] {
            assert_eq!(Last::read(other.as_bytes()), None, "{other}");
        }
    }
}
