//! Views of validated arrays.

use super::Value;
use super::decode::{self, MAX_DEPTH};

/// An array: values that share one constructor (part 1, section 1.6.24).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Array<'a> {
    pub(super) count: u32,
    pub(super) constructor: &'a [u8],
    pub(super) data: &'a [u8],
}

impl<'a> Array<'a> {
    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The constructor of its elements: a format code, behind descriptors if they are described.
    #[must_use]
    pub const fn constructor(&self) -> &'a [u8] {
        self.constructor
    }

    /// The data of its elements.
    #[must_use]
    pub const fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Elements of the array in order.
    #[must_use]
    pub const fn iter(&self) -> ArrayIter<'a> {
        ArrayIter {
            left: self.count,
            constructor: self.constructor,
            rest: self.data,
        }
    }
}

impl<'a> IntoIterator for &Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// The elements of an array.
#[derive(Clone, Debug)]
pub struct ArrayIter<'a> {
    left: u32,
    constructor: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        // Validated when the view was made.
        decode::with_constructor(self.constructor, &mut self.rest, MAX_DEPTH).ok()
    }
}
