//! The record of the rules by which the kept sessions of a node were judged.

use super::{Fields, put_number};

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct JudgedRecord {
    /// See [`Rights::digest`](crate::Rights::digest).
    pub(crate) digest: [u8; 32],
    /// Where the log was, and the time, when the rules came, as long as some sessions are still to be judged; `None` when
    /// all are.
    pub(crate) since: Option<(u64, u64)>,
}

impl JudgedRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.digest.to_vec();
        if let Some((position, ms)) = self.since {
            put_number(&mut out, position);
            put_number(&mut out, ms);
        }
        out
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let (digest, rest) = record.split_first_chunk()?;
        let mut fields = Fields::new(rest);
        let since = match rest {
            [] => None,
            _ => Some((fields.place()?, fields.number()?)),
        };
        Some(Self {
            digest: *digest,
            since,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back() {
        for since in [None, Some((0, 0)), Some((1 << 40, 1 << 41))] {
            let record = JudgedRecord {
                digest: [7; 32],
                since,
            };
            assert_eq!(JudgedRecord::decode(&record.encode()), Some(record));
        }
        assert_eq!(JudgedRecord::decode(&[7; 31]), None);
        assert_eq!(JudgedRecord::decode(&[7; 33]), None);
    }
}
