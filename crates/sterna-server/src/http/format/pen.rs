//! Messages that are written in pieces, as a response takes them. However long a message is, and however much longer its
//! form makes it, a connection has a piece of it copied, and the message itself is shared.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut as _, BytesMut};
use sterna_mqtt::{Properties, Property};

use super::json::escape;

/// Bytes of a source that are written between two looks at the room. Three of them become four in base64.
const STEP_BYTES: usize = 3 << 9;

/// How far a message is written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// Parts that are written.
    parts: u8,
    /// Bytes of the next part's source that are written.
    from: usize,
    /// Bytes of the properties whose User Properties are written, and whether the name of the next one is, too.
    pairs_to: usize,
    is_at_value: bool,
    /// Whether the payload is text, once somebody has looked.
    is_text: Option<bool>,
    leaves_payload: bool,
}

impl Place {
    /// The beginning of a message, whose payload may be left out: then it is sent behind the message.
    pub(crate) fn begin(leaves_payload: bool) -> Self {
        Self {
            leaves_payload,
            ..Self::default()
        }
    }
}

/// The encoding of a part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Base64,
    Raw,
}

/// Writes the parts of a message that are not written yet, until there is no more room. The parts of a message are always
/// the same, in the same order; some are empty.
pub(super) struct Pen<'a> {
    place: &'a mut Place,
    out: &'a mut BytesMut,
    /// Length of `out` from which on nothing is added.
    until_bytes: usize,
    /// Number of the part that comes next.
    next: u8,
}

impl<'a> Pen<'a> {
    pub(super) fn new(place: &'a mut Place, out: &'a mut BytesMut, until_bytes: usize) -> Self {
        Self {
            place,
            out,
            until_bytes,
            next: 0,
        }
    }

    /// Whether all parts so far are written.
    pub(super) const fn is_done(&self) -> bool {
        self.place.parts == self.next
    }

    /// Whether the payload is text.
    pub(super) fn is_text(&mut self, payload: &[u8]) -> bool {
        let is_text = || std::str::from_utf8(payload).is_ok();
        *self.place.is_text.get_or_insert_with(is_text)
    }

    pub(super) const fn leaves_payload(&self) -> bool {
        self.place.leaves_payload
    }

    /// A part that is short.
    pub(super) fn put(&mut self, write: impl FnOnce(&mut BytesMut)) {
        if self.is_due() {
            write(self.out);
            self.place.parts += 1;
        }
    }

    /// A part of any length, with what is before it where there is one.
    pub(super) fn long<'s>(
        &mut self,
        before: &[u8],
        encoding: Encoding,
        source: impl FnOnce() -> Option<&'s [u8]>,
    ) {
        if !self.is_due() {
            return;
        }
        if source().is_none_or(|source| self.write(before, encoding, source)) {
            self.place.parts += 1;
        }
    }

    /// The User Properties of a block, as an array of pairs.
    pub(super) fn pairs(&mut self, block: &[u8]) {
        if !self.is_due() {
            return;
        }
        let mut properties = Properties::known(&block[self.place.pairs_to..]).iter();
        while let Some(property) = properties.next() {
            let Property::UserProperty(name, value) = property else {
                continue;
            };
            if !self.place.is_at_value {
                let before: &[u8] = if self.place.pairs_to == 0 {
                    b",\"user_properties\":[["
                } else {
                    b",["
                };
                if !self.write(before, Encoding::Json, name.as_bytes()) {
                    return;
                }
                self.place.is_at_value = true;
            }
            if !self.write(b",", Encoding::Json, value.as_bytes()) {
                return;
            }
            self.out.put_u8(b']');
            self.place.is_at_value = false;
            self.place.pairs_to = block.len() - properties.rest_bytes();
        }
        if self.place.pairs_to > 0 {
            self.out.put_u8(b']');
        }
        self.place.parts += 1;
    }

    /// Whether the next part is to be written now.
    fn is_due(&mut self) -> bool {
        let part = self.next;
        self.next += 1;
        part == self.place.parts && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.out.len() < self.until_bytes
    }

    /// Writes as much of a source as there is room for; whether it is all of it.
    fn write(&mut self, before: &[u8], encoding: Encoding, source: &[u8]) -> bool {
        if !self.has_room() {
            return false;
        }
        let is_string = encoding != Encoding::Raw;
        if self.place.from == 0 {
            self.out.put_slice(before);
            if is_string {
                self.out.put_u8(b'"');
            }
        }
        while self.place.from < source.len() {
            let rest = &source[self.place.from..];
            let step = &rest[..rest.len().min(STEP_BYTES)];
            match encoding {
                Encoding::Json => escape(step, self.out),
                Encoding::Base64 => encode(step, self.out),
                Encoding::Raw => self.out.put_slice(step),
            }
            self.place.from += step.len();
            // A part that is begun is never begun again: some of it is written.
            if self.place.from < source.len() && !self.has_room() {
                return false;
            }
        }
        if is_string {
            self.out.put_u8(b'"');
        }
        self.place.from = 0;
        true
    }
}

/// Appends bytes in base64, with padding at the end.
fn encode(bytes: &[u8], out: &mut BytesMut) {
    let start = out.len();
    let most = bytes.len().div_ceil(3) * 4;
    out.resize(start + most, 0);
    let written = STANDARD.encode_slice(bytes, &mut out[start..]).unwrap_or(0);
    debug_assert_eq!(written, most, "three bytes become four, with padding");
}
