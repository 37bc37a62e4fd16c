//! Objects that clients leave behind until somebody removes them, counted by the users who made them.
//!
//! Queues and created topics outlive their makers' connections, and a restart. A limit of all of them alone would let
//! one user take all. The record of each names its owner, so that the counts hold over a restart as well.

use std::sync::Arc;

use rustc_hash::FxHashMap;

/// An owner: the value of the record of what it owns. Clients without a name are one user among themselves.
pub(crate) type Owner = Arc<str>;

/// Before the name of a user; nobody's name is empty.
const NAMED: char = 'u';
/// The owner of what clients without a name have made.
const NAMELESS: &str = "-";

/// The owner that a user is.
pub(crate) fn owner(user: Option<&str>) -> Owner {
    match user {
        Some(name) => format!("{NAMED}{name}").into(),
        None => NAMELESS.into(),
    }
}

/// The owner that a record names; `None` for what is no record.
pub(crate) fn read_owner(value: &[u8]) -> Option<Owner> {
    let text = std::str::from_utf8(value).ok()?;
    (!text.is_empty()).then(|| text.into())
}

/// Objects and their bytes: those of one owner, or the most that it may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Quota {
    pub(crate) objects: usize,
    pub(crate) bytes: usize,
}

/// The objects of each owner.
#[derive(Debug, Default)]
pub(crate) struct Shares(FxHashMap<Owner, Quota>);

impl Shares {
    /// Whether an owner may have one more of so many bytes.
    pub(crate) fn have_room(&self, owner: &Owner, bytes: usize, most: Quota) -> bool {
        let has = self.0.get(owner).copied().unwrap_or_default();
        has.objects < most.objects && has.bytes.saturating_add(bytes) <= most.bytes
    }

    /// Counts one more. Returns the owner, which all of its objects share.
    pub(crate) fn add(&mut self, owner: Owner, bytes: usize) -> Owner {
        let shared = self.0.get_key_value(&owner).map(|(known, _)| known);
        let owner = shared.map_or(owner, Arc::clone);
        let share = self.0.entry(Arc::clone(&owner)).or_default();
        share.objects += 1;
        share.bytes += bytes;
        owner
    }

    /// One of so many bytes is gone.
    pub(crate) fn remove(&mut self, owner: &Owner, bytes: usize) {
        let Some(share) = self.0.get_mut(owner) else {
            debug_assert!(false, "what is gone was counted");
            return;
        };
        let was_counted = share.objects > 0 && share.bytes >= bytes;
        debug_assert!(was_counted, "what is gone was counted");
        share.objects = share.objects.saturating_sub(1);
        share.bytes = share.bytes.saturating_sub(bytes);
        if share.objects == 0 {
            self.0.remove(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_owner_takes_what_others_may_have() {
        let most = Quota {
            objects: 2,
            bytes: 10,
        };
        let mut shares = Shares::default();
        let (ann, nobody) = (owner(Some("ann")), owner(None));
        assert_ne!(owner(Some("-")), nobody);
        for bytes in [4, 6] {
            assert!(shares.have_room(&ann, bytes, most));
            shares.add(Arc::clone(&ann), bytes);
        }
        assert!(!shares.have_room(&ann, 0, most), "too many");
        assert!(shares.have_room(&nobody, 10, most), "another owner");
        assert!(!shares.have_room(&nobody, 11, most), "too long");
        shares.remove(&ann, 4);
        assert!(shares.have_room(&ann, 4, most) && !shares.have_room(&ann, 5, most));
        shares.remove(&ann, 6);
        assert!(shares.0.is_empty());
    }

    #[test]
    fn a_record_names_its_owner_or_nobody() {
        for user in [Some("ann"), Some("-"), None] {
            assert_eq!(read_owner(owner(user).as_bytes()), Some(owner(user)));
        }
        assert_eq!(read_owner(b""), None);
        assert_eq!(read_owner(b"\xff"), None);
    }
}
