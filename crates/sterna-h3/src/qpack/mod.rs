//! QPACK (RFC 9204) with the static table alone.
//!
//! A dynamic table saves bytes if many requests repeat long fields. It costs memory on both ends, a
//! round trip or blocked streams before it pays, and state that ties streams together. The
//! announced capacity is 0, which is the default and costs no byte. So a field section depends only
//! on itself. Neither the encoder's nor the decoder's stream has to be opened (sections 4.2 and 5).

mod decode;
mod encode;
mod huffman;
mod instruction;
mod integer;
mod static_table;

use std::fmt;

pub use decode::{DecodeError, decode};
pub use encode::{encode, encode_field, encode_prefix};
pub(crate) use instruction::{decoder_stream, encoder_stream};

/// Bytes that are not QPACK, or QPACK that needs a dynamic table; for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(pub &'static str);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Error {}
