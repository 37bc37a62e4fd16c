//! A file that is written in memory only.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::{Arc, Mutex};

use crate::disk::DiskFile;
use crate::engine::shared::lock;

const PAGE_BYTES: u64 = 4096;

/// Shows a file, and keeps writes in memory.
#[derive(Debug)]
pub(super) struct Overlay {
    file: Arc<dyn DiskFile>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Once it has been changed.
    length: Option<u64>,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Overlay {
    pub(super) fn new(file: Arc<dyn DiskFile>) -> Self {
        Self {
            file,
            state: Mutex::default(),
        }
    }

    fn length_of(&self, state: &State) -> io::Result<u64> {
        state.length.map_or_else(|| self.file.length(), Ok)
    }

    /// A page as it is below.
    fn page(&self, page: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; PAGE_BYTES as usize];
        self.file.read_at(page * PAGE_BYTES, &mut bytes)?;
        Ok(bytes)
    }
}

impl DiskFile for Overlay {
    fn length(&self) -> io::Result<u64> {
        self.length_of(&lock(&self.state))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let state = lock(&self.state);
        let rest = self.length_of(&state)?.saturating_sub(offset);
        let count = (into.len() as u64).min(rest) as usize;
        let into = &mut into[..count];
        let below = self.file.read_at(offset, into)?;
        into[below..].fill(0);
        let end = offset + count as u64;
        let first = offset / PAGE_BYTES;
        for (page, bytes) in state.pages.range(first..end.div_ceil(PAGE_BYTES)) {
            let start = (page * PAGE_BYTES).max(offset);
            let stop = ((page + 1) * PAGE_BYTES).min(end);
            let shown = (start - page * PAGE_BYTES) as usize..(stop - page * PAGE_BYTES) as usize;
            into[(start - offset) as usize..(stop - offset) as usize]
                .copy_from_slice(&bytes[shown]);
        }
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = lock(&self.state);
        let end = offset + bytes.len() as u64;
        let length = self.length_of(&state)?.max(end);
        state.length = Some(length);
        let mut at = offset;
        while at < end {
            let page = at / PAGE_BYTES;
            let stop = ((page + 1) * PAGE_BYTES).min(end);
            let shown = match state.pages.entry(page) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.page(page)?),
            };
            let place = (at - page * PAGE_BYTES) as usize..(stop - page * PAGE_BYTES) as usize;
            shown[place].copy_from_slice(&bytes[(at - offset) as usize..(stop - offset) as usize]);
            at = stop;
        }
        Ok(())
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.set_length(length.max(self.length()?))
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        // Bytes behind a cut that is grown again are not asked for: the library writes before it reads.
        lock(&self.state).length = Some(length);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk as _, SimulatedDisk};

    #[test]
    fn what_is_written_is_shown_and_not_kept() {
        let disk = SimulatedDisk::new(1);
        let file = disk.create("file").unwrap();
        let mut expected: Vec<u8> = (0..20_000_u32).map(|i| i as u8).collect();
        file.write_at(0, &expected).unwrap();
        let below = expected.clone();
        let overlay = Overlay::new(file);
        for (offset, length) in [
            (5, 10),
            (4_090, 20),
            (19_990, 5_000),
            (8_192, 4_096),
            (0, 1),
        ] {
            overlay.write_at(offset, &vec![0xee; length]).unwrap();
            let end = offset as usize + length;
            if expected.len() < end {
                expected.resize(end, 0);
            }
            expected[offset as usize..end].fill(0xee);
            let mut shown = vec![0; expected.len() + 10];
            for (from, until) in [(0, shown.len()), (4_000, 9_000), (4_096, 8_192), (7, 8)] {
                let end = until.min(expected.len());
                let read = overlay
                    .read_at(from as u64, &mut shown[from..until])
                    .unwrap();
                assert_eq!(read, end - from);
                assert_eq!(shown[from..end], expected[from..end]);
            }
        }
        assert_eq!(disk.content("file").unwrap(), below);
    }
}
