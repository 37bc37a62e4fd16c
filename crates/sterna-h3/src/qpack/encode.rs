//! Field sections to bytes (RFC 9204, section 4.5), each field in its shortest form.

use super::static_table::{Found, find};
use super::{huffman, integer};
use crate::Field;

/// Appends a field section.
pub fn encode<'a>(fields: impl IntoIterator<Item = Field<'a>>, out: &mut Vec<u8>) {
    encode_prefix(out);
    for field in fields {
        encode_field(field, out);
    }
}

/// Appends the prefix of a field section: nothing is required of the dynamic table.
pub fn encode_prefix(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends one field.
pub fn encode_field(field: Field<'_>, out: &mut Vec<u8>) {
    let never_indexed = u8::from(field.never_indexed);
    match find(field.name, field.value) {
        // An index says that a field has been in the static table all along: no secret.
        Found::Field(index) => integer::write(usize::from(index), 6, 0xc0, out),
        Found::Name(index) => {
            integer::write(usize::from(index), 4, 0x50 | never_indexed << 5, out);
            string(field.value, 7, 0, out);
        }
        Found::Nothing => {
            string(field.name, 3, 0x20 | never_indexed << 4, out);
            string(field.value, 7, 0, out);
        }
    }
}

/// Appends a string, in Huffman code where that is shorter.
fn string(text: &[u8], prefix_bits: u32, first_byte: u8, out: &mut Vec<u8>) {
    let huffman_bytes = huffman::encoded_bytes(text);
    if huffman_bytes < text.len() {
        let first_byte = first_byte | 1 << prefix_bits;
        integer::write(huffman_bytes, prefix_bits, first_byte, out);
        huffman::encode(text, out);
    } else {
        integer::write(text.len(), prefix_bits, first_byte, out);
        out.extend_from_slice(text);
    }
}
