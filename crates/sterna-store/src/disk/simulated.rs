//! A disk in memory that loses unsynced writes when its power is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Disk, DiskFile};

/// A disk writes this number of bytes whole, or not at all.
const SECTOR_BYTES: usize = 512;

/// A disk in memory, in virtual time, with a seed. Clones are the same disk.
///
/// It keeps the promises of a file system and no more. A power cut ([`cut_power`](Self::cut_power)) keeps or loses
/// each sector that was written since the file's last sync, independently of the others. The same goes for the
/// file's length. The changes of names are kept up to one of them. A failed sync forgets the writes before it.
/// Nothing waits: [`busy_until_ms`](Self::busy_until_ms) tells how long the last operation took.
#[derive(Clone, Debug)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
}

/// A fault that a test can ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Writes fail.
    Write,
    /// Syncs fail, and the writes before them may be lost.
    Sync,
    /// Files cannot be made.
    Create,
    /// Nothing can be changed, as on a file system that has become read-only.
    Change,
    /// Files cannot be opened, as in a process that has too many of them.
    Open,
}

/// The system's number for an error of the device.
const DEVICE_ERROR: i32 = 5;

/// The system's number for too many open files.
const TOO_MANY_FILES: i32 = 24;

/// The system's number for what may not be done, such as the removal of an immutable file.
const NOT_PERMITTED: i32 = 1;

#[derive(Debug)]
struct State {
    random: Random,
    /// Rises with each power cut; files that were open before are dead.
    epoch: u64,
    files: BTreeMap<u64, Content>,
    next_file: u64,
    /// Names as programs see them.
    names: BTreeMap<String, u64>,
    folders: BTreeSet<String>,
    /// Names as they are on the disk, and the changes that are not yet.
    kept_names: BTreeMap<String, u64>,
    name_changes: Vec<(String, NameChange)>,
    capacity_bytes: u64,
    /// Places of files that cannot be read until they are written anew.
    unreadable: Vec<(u64, Range<usize>)>,
    /// Names that cannot be removed.
    held_names: BTreeSet<String>,
    fault: Option<(Fault, u32)>,
    /// Changes that still come through before the power fails.
    changes_left: Option<u32>,
    now_ms: u64,
    busy_until_ms: u64,
    sync_takes_ms: u64,
    written_bytes: u64,
    read_bytes: u64,
    syncs: u64,
}

#[derive(Debug)]
enum NameChange {
    Set(u64),
    Remove,
    Rename(String),
}

/// A file's bytes: as programs see them, as they are on the disk, and the operations between.
#[derive(Debug, Default)]
struct Content {
    seen: Vec<u8>,
    kept: Vec<u8>,
    unsynced: Vec<Operation>,
}

#[derive(Debug)]
enum Operation {
    /// A sector or a part of one.
    Write(usize, Vec<u8>),
    Length(usize),
}

/// SplitMix64.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below a number above 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

impl Content {
    fn write(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
        let end = offset + new.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset..end].copy_from_slice(new);
    }

    fn note_write(&mut self, offset: usize, new: &[u8]) {
        Self::write(&mut self.seen, offset, new);
        let mut at = offset;
        let mut rest = new;
        while !rest.is_empty() {
            let (sector, more) = rest.split_at(rest.len().min(SECTOR_BYTES - at % SECTOR_BYTES));
            self.unsynced.push(Operation::Write(at, sector.to_vec()));
            at += sector.len();
            rest = more;
        }
    }

    /// Some of the unsynced operations reach the disk.
    fn lose_some(&mut self, random: &mut Random) {
        // Sometimes all, sometimes nothing, mostly this and that.
        let chance = [0, 1, 8, 15, 16][random.below(5)];
        for operation in self.unsynced.drain(..) {
            if random.below(16) >= chance {
                continue;
            }
            match operation {
                Operation::Write(offset, bytes) => Self::write(&mut self.kept, offset, &bytes),
                Operation::Length(length) => self.kept.resize(length, 0),
            }
        }
    }

    fn keep_all(&mut self) {
        for operation in self.unsynced.drain(..) {
            match operation {
                Operation::Write(offset, bytes) => Self::write(&mut self.kept, offset, &bytes),
                Operation::Length(length) => self.kept.resize(length, 0),
            }
        }
    }
}

impl SimulatedDisk {
    /// An empty disk without a limit, whose chances follow from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            random: Random(seed),
            epoch: 0,
            files: BTreeMap::new(),
            next_file: 0,
            names: BTreeMap::new(),
            folders: BTreeSet::from([String::new()]),
            kept_names: BTreeMap::new(),
            name_changes: Vec::new(),
            capacity_bytes: u64::MAX,
            unreadable: Vec::new(),
            held_names: BTreeSet::new(),
            fault: None,
            changes_left: None,
            now_ms: 0,
            busy_until_ms: 0,
            sync_takes_ms: 0,
            written_bytes: 0,
            read_bytes: 0,
            syncs: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power: unsynced writes may be gone, whole or in part, and open files fail
    /// from now on.
    pub fn cut_power(&self) {
        let state = &mut *self.state();
        state.epoch += 1;
        state.busy_until_ms = state.now_ms;
        state.changes_left = None;
        state.fault = None;
        // Names are kept in the order of their changes, as by a file system with a journal.
        let kept = state.random.below(state.name_changes.len() + 1);
        for (name, change) in state.name_changes.drain(..).take(kept) {
            change.apply(&mut state.kept_names, name);
        }
        state.names.clone_from(&state.kept_names);
        for content in state.files.values_mut() {
            content.lose_some(&mut state.random);
            content.seen.clone_from(&content.kept);
        }
        state.forget_nameless();
    }

    /// Ends the process: nothing is lost, but files that are open fail from now on.
    pub fn kill_process(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state.busy_until_ms = state.now_ms;
        state.changes_left = None;
        state.fault = None;
    }

    /// Turns one bit of a file round.
    ///
    /// # Panics
    /// When there is no such file, or it is shorter.
    pub fn flip(&self, name: &str, offset: usize, bit: u8) {
        let state = &mut *self.state();
        let file = state.names.get(name).expect("a file of this name");
        let content = state.files.get_mut(file).expect("files have content");
        content.keep_all();
        content.kept[offset] ^= 1 << (bit % 8);
        content.seen.clone_from(&content.kept);
    }

    /// Makes bytes of a file unreadable, as a bad sector is: until all of them are written anew.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn make_unreadable(&self, name: &str, place: Range<usize>) {
        let mut state = self.state();
        let file = *state.names.get(name).expect("a file of this name");
        state.unreadable.push((file, place));
    }

    /// All files can be read again, as after a fault of a cable.
    pub fn make_readable(&self) {
        self.state().unreadable.clear();
    }

    /// A file of this name cannot be removed, until [`release`](Self::release).
    pub fn hold(&self, name: &str) {
        self.state().held_names.insert(name.to_owned());
    }

    /// All files can be removed again.
    pub fn release(&self) {
        self.state().held_names.clear();
    }

    /// A file's bytes, as they were written.
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let file = state.names.get(name)?;
        Some(state.files.get(file)?.seen.clone())
    }

    /// The power fails after this number of changes, in the midst of an operation. All later operations fail, until
    /// [`cut_power`](Self::cut_power) brings the disk back.
    pub fn fail_power_after(&self, changes: u32) {
        self.state().changes_left = Some(changes);
    }

    /// From now on all files together have room for this number of bytes.
    pub fn set_capacity_bytes(&self, bytes: u64) {
        self.state().capacity_bytes = bytes;
    }

    /// The next operations of a kind fail, this number of them.
    pub fn fail(&self, fault: Fault, times: u32) {
        self.state().fault = Some((fault, times));
    }

    /// Each sync takes this time from now on, in milliseconds.
    pub fn set_sync_takes_ms(&self, takes_ms: u64) {
        self.state().sync_takes_ms = takes_ms;
    }

    /// Sets the disk's clock, in milliseconds.
    pub fn set_now_ms(&self, now_ms: u64) {
        self.state().now_ms = now_ms;
    }

    /// When the operations that were begun are through, in milliseconds of the disk's clock.
    #[must_use]
    pub fn busy_until_ms(&self) -> u64 {
        self.state().busy_until_ms
    }

    /// Bytes that all files have.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }

    /// Bytes that were written so far, to any file.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.state().written_bytes
    }

    /// Bytes that were read so far, from any file.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.state().read_bytes
    }

    /// Syncs of files so far.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<String, u64>, name: String) {
        match self {
            Self::Set(file) => {
                names.insert(name, file);
            }
            Self::Remove => {
                names.remove(&name);
            }
            Self::Rename(to) => {
                if let Some(file) = names.remove(&name) {
                    names.insert(to, file);
                }
            }
        }
    }
}

impl State {
    fn used_bytes(&self) -> u64 {
        let lengths = self.names.values().filter_map(|file| self.files.get(file));
        lengths.map(|content| content.seen.len() as u64).sum()
    }

    fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes())
    }

    /// Whether a file that was opened in an epoch can still be used.
    fn check_open(&self, epoch: u64) -> io::Result<()> {
        if self.epoch == epoch && self.changes_left != Some(0) {
            Ok(())
        } else {
            Err(io::Error::other("the power was cut"))
        }
    }

    /// Counts a change, and fails where the power does.
    fn change(&mut self) -> io::Result<()> {
        if self.fails(Fault::Change) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        match &mut self.changes_left {
            None => return Ok(()),
            Some(0) => {}
            Some(left) => {
                *left -= 1;
                if *left > 0 {
                    return Ok(());
                }
            }
        }
        Err(io::Error::other("the power was cut"))
    }

    fn fails(&mut self, kind: Fault) -> bool {
        match &mut self.fault {
            Some((fault, times)) if *fault == kind && *times > 0 => {
                *times -= 1;
                true
            }
            _ => false,
        }
    }

    fn content(&mut self, file: u64) -> io::Result<&mut Content> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        self.files.get_mut(&file).ok_or_else(gone)
    }

    /// How far a file may grow, and whether that is enough.
    fn grow(&self, file: u64, length: usize) -> Result<(), usize> {
        let free = self.free_bytes();
        let seen = self
            .files
            .get(&file)
            .map_or(0, |content| content.seen.len());
        let more = length.saturating_sub(seen) as u64;
        if more <= free {
            Ok(())
        } else {
            Err(seen + free as usize)
        }
    }

    /// Drops the content of files without a name, seen or kept.
    fn forget_nameless(&mut self) {
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.files.retain(|file, _| named.contains(file));
    }

    fn set_name(&mut self, name: &str, change: NameChange) {
        let kept = match &change {
            NameChange::Set(file) => NameChange::Set(*file),
            NameChange::Remove => NameChange::Remove,
            NameChange::Rename(to) => NameChange::Rename(to.clone()),
        };
        change.apply(&mut self.names, name.to_owned());
        self.name_changes.push((name.to_owned(), kept));
    }
}

fn full() -> io::Error {
    io::Error::from(io::ErrorKind::StorageFull)
}

fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl Disk for SimulatedDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        state.change()?;
        if !state.folders.contains(folder_of(name)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if state.fails(Fault::Create) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = state.next_file;
        state.next_file += 1;
        state.files.insert(file, Content::default());
        state.set_name(name, NameChange::Set(file));
        Ok(Arc::new(SimulatedFile {
            disk: self.clone(),
            file,
            epoch: state.epoch,
        }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        if state.fails(Fault::Open) {
            return Err(io::Error::from_raw_os_error(TOO_MANY_FILES));
        }
        let file = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimulatedFile {
            disk: self.clone(),
            file,
            epoch: state.epoch,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.change()?;
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.set_name(from, NameChange::Rename(to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.held_names.contains(name) {
            return Err(io::Error::from_raw_os_error(NOT_PERMITTED));
        }
        state.change()?;
        if !state.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.set_name(name, NameChange::Remove);
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let state = self.state();
        let inside = state.names.keys().filter(|name| folder_of(name) == folder);
        Ok(inside
            .map(|name| name.rsplit('/').next().unwrap_or(name).to_owned())
            .collect())
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        self.state().folders.insert(folder.to_owned());
        Ok(())
    }

    fn sync_folder(&self, _: &str) -> io::Result<()> {
        let state = &mut *self.state();
        state.change()?;
        if state.fails(Fault::Sync) {
            return Err(io::Error::other("a sync was made to fail"));
        }
        for (name, change) in state.name_changes.drain(..) {
            change.apply(&mut state.kept_names, name);
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.state().free_bytes())
    }

    fn display_name(&self, name: &str) -> String {
        name.to_owned()
    }
}

#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    file: u64,
    epoch: u64,
}

impl SimulatedFile {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.state();
        state.check_open(self.epoch)?;
        Ok(state)
    }
}

impl DiskFile for SimulatedFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.state()?.content(self.file)?.seen.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state()?;
        let (start, end) = (offset as usize, offset as usize + into.len());
        let hits = |(file, place): &(u64, Range<usize>)| {
            *file == self.file && place.start < end && start < place.end
        };
        if state.unreadable.iter().any(hits) {
            return Err(io::Error::from_raw_os_error(DEVICE_ERROR));
        }
        let seen = &state.content(self.file)?.seen;
        let rest = seen.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        state.read_bytes += count as u64;
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state()?;
        let offset = offset as usize;
        if state.fails(Fault::Write) {
            return Err(io::Error::other("a write was made to fail"));
        }
        if state.fails(Fault::Change) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        if let Err(error) = state.change() {
            // The write that the power failed in may be there in part.
            state.content(self.file)?.note_write(offset, bytes);
            return Err(error);
        }
        let room = state.grow(self.file, offset + bytes.len());
        let written = match room {
            Ok(()) => bytes,
            Err(end) => &bytes[..end.saturating_sub(offset).min(bytes.len())],
        };
        state.written_bytes += written.len() as u64;
        let (file, end) = (self.file, offset + written.len());
        (state.unreadable)
            .retain(|(known, place)| *known != file || place.start < offset || end < place.end);
        state.content(self.file)?.note_write(offset, written);
        room.map_err(|_| full())
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.set_length(length.max(self.length()?))
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let mut state = self.state()?;
        state.change()?;
        state.grow(self.file, length as usize).map_err(|_| full())?;
        let content = state.content(self.file)?;
        content.seen.resize(length as usize, 0);
        content.unsynced.push(Operation::Length(length as usize));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state()?;
        let state = &mut *state;
        state.change()?;
        state.syncs += 1;
        state.busy_until_ms = state.busy_until_ms.max(state.now_ms) + state.sync_takes_ms;
        let fails = state.fails(Fault::Sync);
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let content = state.files.get_mut(&self.file).ok_or_else(gone)?;
        if !fails {
            content.keep_all();
            return Ok(());
        }
        // As Linux does it: the pages count as written afterwards, and may be dropped at any time.
        content.lose_some(&mut state.random);
        if state.random.coin() {
            content.seen.clone_from(&content.kept);
        }
        Err(io::Error::other("a sync was made to fail"))
    }
}
