//! The work that a selector may do.

/// Bytes of a text that are compared or searched in one step.
pub(super) const BYTES_PER_STEP: usize = 4;

/// Steps that are left, each some nanoseconds of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    left: u64,
    is_over: bool,
}

impl Steps {
    pub(super) const fn new(left: u64) -> Self {
        Self {
            left,
            is_over: false,
        }
    }

    /// Takes steps; false if there are not so many, from then on always.
    pub(super) const fn take(&mut self, steps: u64) -> bool {
        match self.left.checked_sub(steps) {
            Some(left) if !self.is_over => self.left = left,
            _ => (self.left, self.is_over) = (0, true),
        }
        !self.is_over
    }

    /// Takes the steps for so many bytes.
    pub(super) const fn take_for(&mut self, bytes: usize) -> bool {
        self.take(1 + (bytes / BYTES_PER_STEP) as u64)
    }

    pub(super) const fn left(&self) -> u64 {
        self.left
    }

    /// Whether more was asked for than there was.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }
}
