//! Fields: names and values of a message's head or trailers (RFC 9114, section 4.2).

use std::fmt;

/// Bytes that a field counts beside its own (RFC 9114, section 4.2.2).
pub(crate) const FIELD_OVERHEAD_BYTES: usize = 32;

/// One field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name, in lower case.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Whether no end may ever put it into a table (RFC 9204, section 7.1.3). Costs nothing.
    pub never_indexed: bool,
}

impl<'a> Field<'a> {
    /// A field that may be indexed.
    #[must_use]
    pub const fn new(name: &'a str, value: &'a [u8]) -> Self {
        Self {
            name: name.as_bytes(),
            value,
            never_indexed: false,
        }
    }

    /// A field whose value is a secret, as credentials are. One that the static table has is no
    /// secret, and goes as its index.
    #[must_use]
    pub const fn secret(name: &'a str, value: &'a [u8]) -> Self {
        Self {
            name: name.as_bytes(),
            value,
            never_indexed: true,
        }
    }

    /// Bytes that the field counts in the size of a field section.
    pub(crate) const fn section_bytes(&self) -> usize {
        self.name.len() + self.value.len() + FIELD_OVERHEAD_BYTES
    }
}

impl fmt::Debug for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name.escape_ascii())?;
        if self.never_indexed {
            f.write_str("(secret)")
        } else {
            write!(f, "{}", self.value.escape_ascii())
        }
    }
}

/// Fields in their order: one allocation for all bytes and one for where they end.
#[derive(Clone, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    ends: Vec<Ends>,
}

/// Where a field's name and value end in the bytes of all; it begins where the one before ends.
#[derive(Clone, Copy, Debug)]
struct Ends {
    name: u32,
    value: u32,
    never_indexed: bool,
}

impl Fields {
    /// No fields. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Adds a field at the end.
    pub fn push(&mut self, field: Field<'_>) {
        self.bytes.extend_from_slice(field.name);
        self.finish_name(field.never_indexed);
        self.bytes.extend_from_slice(field.value);
        self.finish_value();
    }

    /// Where a decoder writes the bytes of a name, and then those of its value.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The bytes since the last field are a name.
    pub(crate) fn finish_name(&mut self, never_indexed: bool) {
        let end = self.bytes.len() as u32;
        self.ends.push(Ends {
            name: end,
            value: end,
            never_indexed,
        });
    }

    /// The bytes since the name are its value.
    pub(crate) fn finish_value(&mut self) {
        if let Some(last) = self.ends.last_mut() {
            last.value = self.bytes.len() as u32;
        }
    }

    /// Takes all fields out and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Number of fields.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no field.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The size of the field section, uncompressed (RFC 9114, section 4.2.2).
    #[must_use]
    pub fn section_bytes(&self) -> usize {
        self.bytes.len() + self.ends.len() * FIELD_OVERHEAD_BYTES
    }

    /// The field at `index`.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<Field<'_>> {
        let ends = self.ends.get(index)?;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1].value as usize,
        };
        Some(Field {
            name: &self.bytes[start..ends.name as usize],
            value: &self.bytes[ends.name as usize..ends.value as usize],
            never_indexed: ends.never_indexed,
        })
    }

    /// All fields in their order.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Field<'_>> {
        (0..self.len()).map(|index| self.at(index).unwrap_or(Field::new("", b"")))
    }

    /// The value of the first field of this name, which is in lower case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    /// The values of all fields of this name, which is in lower case, in their order.
    pub fn get_all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.iter()
            .filter(move |field| field.name == name.as_bytes())
            .map(|field| field.value)
    }

    /// Bytes of memory that are kept.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<Ends>()
    }
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Fields {}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> FromIterator<Field<'a>> for Fields {
    fn from_iter<T: IntoIterator<Item = Field<'a>>>(fields: T) -> Self {
        let mut list = Self::new();
        for field in fields {
            list.push(field);
        }
        list
    }
}
