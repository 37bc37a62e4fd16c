//! Numbers that look random and follow from a seed.

#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Numbers that begin with this state.
    pub(crate) const fn from_state(state: u64) -> Self {
        Self(state)
    }

    /// Numbers that follow from a seed.
    pub(crate) const fn from_seed(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = (self.0)
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }
}
