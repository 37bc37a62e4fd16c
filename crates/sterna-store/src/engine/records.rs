//! The records' file: an embedded key-value library, redb, on the engine's disk.
//!
//! `records.redb` has two tables. `records` has the records. Each value begins with the CRC-32C of key and value (4
//! bytes, little-endian, begun as in a frame). In `meta`, numbers have 8 bytes, little-endian. `version` is the
//! version of the format, and `identity` that of the store. `applied` is the sequence of the last frame whose
//! changes are in the file, and `next_position` the position behind that frame's messages. `first` is the sequence
//! of the frame with which the log begins, or one before it.
//!
//! A checkpoint is one transaction: changes and `applied` come together. So after a crash the frames behind
//! `applied` are all that has to be applied again.

use std::cell::Cell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::{
    Arc, Mutex, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase as _, ReadableTable as _, StorageBackend,
    TableDefinition, TableError,
};

use super::changes::Changes;
use super::shared::{Damage, lock};
use crate::disk::{Disk, DiskFile, UNFINISHED, remove_if_it_can_be, remove_if_there};
use crate::error::OpenError;
use crate::log::frame::{Seal, u64_at};

/// The version of the format.
const VERSION: u32 = 1;

pub(crate) const FILE: &str = "records.redb";

/// An empty file: a sync of the records has failed since they were opened.
const UNSYNCED: &str = "records.unsynced";

/// Bytes of the page in which the library's file says where all else is.
const HEADER_BYTES: u64 = 4096;

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

/// In `meta`.
const FIRST: &str = "first";

const CHECKSUM_BYTES: usize = 4;

/// How far the file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Applied {
    /// The frame whose changes are the last in it.
    pub(crate) sequence: u64,
    /// Position behind that frame's messages.
    pub(crate) next_position: u64,
}

/// The records' file.
#[derive(Debug)]
pub(crate) struct Records {
    disk: Arc<dyn Disk>,
    cache_bytes: usize,
    seal: Seal,
    /// `None` after it has failed, until it is opened again.
    database: Mutex<Option<Arc<Guarded<Database>>>>,
    /// Snapshots share it, and a change has it alone: after a failed change, the library reads nothing either.
    turns: RwLock<()>,
}

/// A file of the engine's disk, as the library wants it.
#[derive(Debug)]
struct Backend {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
}

impl Backend {
    fn sync(&self) -> io::Result<()> {
        self.file.sync().inspect_err(|_| {
            // It need not be on the disk: a power cut leaves what was synced. Without it, as on a disk that takes no file
            // either, nothing more can be done.
            let _ = self.disk.create(UNSYNCED);
        })
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.file.read_at(offset, out)? == out.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// On the disk when it returns: the library writes the length into the file, too, and syncs both together. After
    /// a power cut the two might differ, and then it cannot open the file.
    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_length(length)?;
        self.sync()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)
    }
}

/// The operator's remedy where the records are lost.
pub(crate) const REMEDY: &str =
    "Put the store back from a backup, or move its folder away to begin with an empty one";

/// Opens the file with this much memory for its pages at most.
fn open_database(
    disk: &Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    cache_bytes: usize,
) -> Result<Database, redb::Error> {
    let disk = Arc::clone(disk);
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes);
    Ok(builder.create_with_backend(Backend { disk, file })?)
}

/// Opens the file, so that all that it has is on the disk.
///
/// After a failed sync the operating system takes what was written for synced, and shows it as long as there is power.
/// The library would build on it. So all of the file is written again: first what its header is about to say.
fn open_synced(disk: &dyn Disk) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.open(FILE)?;
    match disk.open(UNSYNCED) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(file),
        opened => opened.map(|_| ())?,
    }
    let length = file.length()?;
    let header = length.min(HEADER_BYTES);
    for (from, end) in [(header, length), (0, header)] {
        super::write_again(&*file, from, end)?;
        file.sync()?;
    }
    // Where it stays, all is written again at the next start, too.
    remove_if_it_can_be(disk, UNSYNCED);
    Ok(file)
}

thread_local! {
    /// Whether this thread is in code whose panics are told as errors.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of the library, which may panic where its file is damaged. That is an error, and prints nothing else.
fn guarded<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_GUARDED.get() {
                loud(info);
            }
        }));
    });
    let was_guarded = IS_GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(was_guarded);
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("its pages do not fit together, or its end is missing".to_owned()),
    }
}

/// A thing of the library. It works when it is dropped, too, and may panic then where its file is damaged.
#[derive(Debug)]
struct Guarded<T>(Option<T>);

impl<T> Guarded<T> {
    const fn new(it: T) -> Self {
        Self(Some(it))
    }
}

impl<T> Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(it) => it,
            None => unreachable!("it is there until it is dropped"),
        }
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            Some(it) => it,
            None => unreachable!("it is there until it is dropped"),
        }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        let it = self.0.take();
        // The file is read anew by those who need to know.
        let _ = guarded(|| {
            drop(it);
            Ok(())
        });
    }
}

/// Makes the file of a new store.
pub(crate) fn create(
    disk: &Arc<dyn Disk>,
    identity: [u8; 16],
    cache_bytes: usize,
) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::Disk {
        file: disk.display_name(FILE),
        error,
    };
    let draft = format!("{FILE}{UNFINISHED}");
    let make = || -> Result<(), redb::Error> {
        remove_if_there(&**disk, &draft)?;
        let database = open_database(disk, disk.create(&draft)?, cache_bytes)?;
        let transaction = database.begin_write()?;
        transaction.open_table(RECORDS)?;
        {
            let mut meta = transaction.open_table(META)?;
            meta.insert("version", &u64::from(VERSION).to_le_bytes()[..])?;
            meta.insert("identity", &identity[..])?;
            meta.insert("applied", &0_u64.to_le_bytes()[..])?;
            meta.insert("next_position", &1_u64.to_le_bytes()[..])?;
            meta.insert(FIRST, &1_u64.to_le_bytes()[..])?;
        }
        transaction.commit()?;
        Ok(())
    };
    make().map_err(|error| match error {
        redb::Error::Io(error) => failed(error),
        error => failed(io::Error::other(error.to_string())),
    })?;
    disk.rename(&draft, FILE).map_err(failed)?;
    disk.sync_folder("").map_err(failed)
}

/// The open file, and its content in numbers.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) records: Records,
    pub(crate) identity: [u8; 16],
    pub(crate) applied: Applied,
    /// Number of the frame with which the log has to begin, or one behind it.
    pub(crate) first_sequence: u64,
    /// Records that do not fit their checksums.
    pub(crate) damage: Vec<Damage>,
    /// Number of sound records, and of their bytes.
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

/// Opens the file and looks at all of it; `None` where there is none.
///
/// # Errors
/// When it is of a newer version, or so damaged that the library cannot read it.
pub(crate) fn open(disk: &Arc<dyn Disk>, cache_bytes: usize) -> Result<Option<Found>, OpenError> {
    let file = match open_synced(&**disk) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let file = disk.display_name(FILE);
            return Err(OpenError::Disk { file, error });
        }
        Ok(file) => file,
    };
    open_file(disk, &file, cache_bytes).map(Some)
}

/// As [`open`], from a file that may stand for that of the disk.
pub(crate) fn open_file(
    disk: &Arc<dyn Disk>,
    file: &Arc<dyn DiskFile>,
    cache_bytes: usize,
) -> Result<Found, OpenError> {
    let name = || disk.display_name(FILE);
    let damaged = |reason: String| OpenError::Damaged {
        file: name(),
        reason: format!("the records cannot be read: {reason}. {REMEDY}"),
    };
    let open = || {
        let opened = guarded(|| open_database(disk, Arc::clone(file), cache_bytes));
        opened.map(Guarded::new).map_err(damaged)
    };
    let mut database = open()?;
    // The library reads a page that does not fit its checksum as any other, and tells it here as an error. Where it says
    // that it has mended something, that was its table of free pages alone: each change is synced before it counts.
    let integrity = guarded(|| Ok(database.check_integrity()?)).map(|_| ());
    if integrity.is_err() {
        // It does nothing more now.
        drop(database);
        database = open()?;
    }
    let meta = guarded(|| read_meta(&database)).map_err(damaged)?;
    let meta = meta.ok_or_else(|| damaged("it does not say of which store it is".to_owned()))?;
    if meta.version == 0 {
        return Err(damaged("it has no version of the format".to_owned()));
    }
    if meta.version > u64::from(VERSION) {
        return Err(OpenError::Newer {
            file: name(),
            version: u32::try_from(meta.version).unwrap_or(u32::MAX),
            known: VERSION,
        });
    }
    let seal = Seal::of(meta.identity);
    let mut damage = Vec::new();
    let mut count = 0;
    let mut bytes = 0;
    guarded(|| {
        let table = database.begin_read()?.open_table(RECORDS)?;
        for record in table.iter()? {
            let (key, value) = record?;
            let (key, value) = (key.value(), value.value());
            if unseal(seal, key, value).is_some() {
                count += 1;
                bytes += (key.len() + value.len() - CHECKSUM_BYTES) as u64;
            } else {
                damage.push(damaged_record(name(), key, value));
            }
        }
        Ok(())
    })
    .map_err(damaged)?;
    // Else a record that is left out is what is damaged.
    if let Err(why) = integrity
        && damage.is_empty()
    {
        return Err(damaged(why));
    }
    Ok(Found {
        records: Records {
            disk: Arc::clone(disk),
            cache_bytes,
            seal,
            database: Mutex::new(Some(Arc::new(database))),
            turns: RwLock::default(),
        },
        identity: meta.identity,
        applied: meta.applied,
        first_sequence: meta.first_sequence,
        damage,
        count,
        bytes,
    })
}

fn damaged_record(file: String, key: &[u8], value: &[u8]) -> Damage {
    Damage {
        file,
        offset: 0,
        bytes: value.len() as u64,
        reason: format!("record {} does not fit its checksum", key.escape_ascii()),
    }
}

struct Meta {
    version: u64,
    identity: [u8; 16],
    applied: Applied,
    first_sequence: u64,
}

fn read_meta(database: &Database) -> Result<Option<Meta>, redb::Error> {
    let table = match database.begin_read()?.open_table(META) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        table => table?,
    };
    let number = |name: &str| -> Result<Option<u64>, redb::Error> {
        Ok(table.get(name)?.and_then(|value| u64_at(value.value(), 0)))
    };
    let identity = table.get("identity")?;
    let identity = identity.and_then(|value| value.value().try_into().ok());
    let meta = (
        number("version")?,
        identity,
        number("applied")?,
        number("next_position")?,
        number(FIRST)?,
    );
    let (Some(version), Some(identity), Some(sequence), Some(next_position), Some(first_sequence)) =
        meta
    else {
        return Ok(None);
    };
    Ok(Some(Meta {
        version,
        identity,
        applied: Applied {
            sequence,
            next_position,
        },
        first_sequence,
    }))
}

fn seal_value(seal: Seal, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&checksum(seal, key, value).to_le_bytes());
    out.extend_from_slice(value);
}

fn checksum(seal: Seal, key: &[u8], value: &[u8]) -> u32 {
    crc32c::crc32c_append(seal.checksum(key), value)
}

/// A value without its checksum, if that fits.
fn unseal<'a>(seal: Seal, key: &[u8], sealed: &'a [u8]) -> Option<&'a [u8]> {
    let (sum, value) = sealed.split_first_chunk::<CHECKSUM_BYTES>()?;
    (u32::from_le_bytes(*sum) == checksum(seal, key, value)).then_some(value)
}

impl Records {
    /// Applies changes, on the disk when it returns. `is_stopped` is asked in between; `false` where it
    /// said so, and then nothing is applied.
    ///
    /// # Errors
    /// The failure, in a sentence. Then nothing is applied.
    pub(crate) fn apply(
        &self,
        changes: &Changes,
        applied: Applied,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<bool, String> {
        let result = self
            .database()
            .and_then(|database| guarded(|| self.commit(&database, changes, applied, is_stopped)));
        if result.is_err() {
            // After an error, the library does nothing until its file is opened again.
            *lock(&self.database) = None;
        }
        result
    }

    /// The open file, opened again where it has failed. Reading and writing go on at the same time.
    fn database(&self) -> Result<Arc<Guarded<Database>>, String> {
        let mut database = lock(&self.database);
        if let Some(open) = &*database {
            return Ok(Arc::clone(open));
        }
        let file = open_synced(&*self.disk).map_err(|error| error.to_string())?;
        let opened = guarded(|| open_database(&self.disk, file, self.cache_bytes))?;
        let opened = Arc::new(Guarded::new(opened));
        *database = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Notes that segments before this frame may go: a log that begins later has lost some. On the disk when it
    /// returns.
    ///
    /// # Errors
    /// The failure, in a sentence. Then nothing is noted.
    pub(crate) fn begin_at(&self, first_sequence: u64) -> Result<(), String> {
        let note = |database: Arc<Guarded<Database>>| {
            guarded(|| {
                let mut transaction = database.begin_write()?;
                transaction.set_quick_repair(true);
                (transaction.open_table(META)?).insert(FIRST, &first_sequence.to_le_bytes()[..])?;
                Ok(transaction.commit()?)
            })
        };
        let result = self.database().and_then(note);
        if result.is_err() {
            *lock(&self.database) = None;
        }
        result
    }

    fn commit(
        &self,
        database: &Database,
        changes: &Changes,
        applied: Applied,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<bool, redb::Error> {
        /// How many changes are made before it is asked again.
        const PIECE: usize = 1_000;
        let mut transaction = database.begin_write()?;
        // The change is on the disk before the header names it, and the library's table of free pages with it: a start after
        // a crash need not walk all pages.
        transaction.set_quick_repair(true);
        {
            let mut table = transaction.open_table(RECORDS)?;
            let mut sealed = Vec::new();
            for (index, (key, value)) in changes.in_order().enumerate() {
                if index % PIECE == PIECE - 1 && is_stopped() {
                    // The transaction is dropped without a commit.
                    return Ok(false);
                }
                if let Some(value) = value {
                    seal_value(self.seal, key, value, &mut sealed);
                    table.insert(key, &*sealed)?;
                } else {
                    table.remove(key)?;
                }
            }
            let mut meta = transaction.open_table(META)?;
            meta.insert("applied", &applied.sequence.to_le_bytes()[..])?;
            meta.insert("next_position", &applied.next_position.to_le_bytes()[..])?;
        }
        transaction.commit()?;
        Ok(true)
    }

    /// Keeps snapshots away while the file changes; `None` while there is one. A full disk may fail the change.
    pub(crate) fn turn_to_change(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        match self.turns.try_write() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until no change is under way. None begins before this is given to a snapshot and dropped.
    pub(crate) fn turn_to_read(&self) -> RwLockReadGuard<'_, ()> {
        self.turns.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records as they are in the file now.
    ///
    /// # Errors
    /// The failure, in a sentence.
    pub(crate) fn snapshot<'a>(
        &self,
        turn: RwLockReadGuard<'a, ()>,
    ) -> Result<Snapshot<'a>, String> {
        let database = self.database()?;
        let transaction = Guarded::new(guarded(|| Ok(database.begin_read()?))?);
        Ok(Snapshot {
            seal: self.seal,
            transaction,
            _database: database,
            _turn: turn,
        })
    }

    /// About the memory that pages of the file take, in bytes. The library does not tell, but it caches neither
    /// more than it may nor more than there is.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.file_bytes().unwrap_or(0).min(self.cache_bytes as u64)
    }

    /// Length of the file in bytes; `None` where the disk does not tell.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        self.disk.open(FILE).ok()?.length().ok()
    }

    /// Gives back pages that are free.
    ///
    /// # Errors
    /// The failure, in a sentence.
    pub(crate) fn compact(&self) -> Result<(), String> {
        let _ = self.database()?;
        match lock(&self.database).as_mut().and_then(Arc::get_mut) {
            Some(database) => guarded(|| Ok(database.compact().map(|_| ())?)),
            None => Err("it is being read".to_owned()),
        }
    }
}

/// The records as they were at one time.
#[derive(Debug)]
pub(crate) struct Snapshot<'a> {
    seal: Seal,
    transaction: Guarded<ReadTransaction>,
    _database: Arc<Guarded<Database>>,
    _turn: RwLockReadGuard<'a, ()>,
}

impl Snapshot<'_> {
    /// The value of a record; `None` where there is none, or it is damaged.
    ///
    /// # Errors
    /// The failure, in a sentence.
    pub(crate) fn value(&self, key: &[u8]) -> Result<Option<Box<[u8]>>, String> {
        guarded(|| {
            let table = self.transaction.open_table(RECORDS)?;
            let sealed = table.get(key)?;
            let value =
                sealed.and_then(|sealed| Some(unseal(self.seal, key, sealed.value())?.into()));
            Ok(value)
        })
    }

    /// Visits the records in the order of their keys, with newer changes. Damaged ones are left out; [`open`]
    /// has reported them.
    ///
    /// # Errors
    /// The failure, in a sentence.
    pub(crate) fn visit(
        &self,
        newer: &Changes,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), String> {
        guarded(|| {
            let table = self.transaction.open_table(RECORDS)?;
            let mut newer = newer.in_order().peekable();
            for record in table.iter()? {
                let (key, sealed) = record?;
                let key = key.value();
                while let Some((before, value)) = newer.next_if(|(newer, _)| *newer < key) {
                    visit_changed(before, value, visit);
                }
                if let Some((_, value)) = newer.next_if(|(newer, _)| *newer == key) {
                    visit_changed(key, value, visit);
                } else if let Some(value) = unseal(self.seal, key, sealed.value()) {
                    visit(key, value);
                }
            }
            for (key, value) in newer {
                visit_changed(key, value, visit);
            }
            Ok(())
        })
    }
}

fn visit_changed(key: &[u8], value: Option<&[u8]>, visit: &mut dyn FnMut(&[u8], &[u8])) {
    if let Some(value) = value {
        visit(key, value);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // it is all test

    use super::*;
    use crate::disk::SimulatedDisk;

    const CACHE_BYTES: usize = 1 << 20;

    /// The library makes its file shorter where it closes it. One without a free page it makes longer where it opens it.
    #[test]
    fn a_file_without_a_free_page_is_no_damage() {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
        create(&disk, [7; 16], CACHE_BYTES).unwrap();
        for round in 1..=40_u64 {
            let found = open(&disk, CACHE_BYTES).unwrap().unwrap();
            assert_eq!(found.damage, [], "round {round}");
            assert_eq!(found.count, round - 1);
            let mut changes = Changes::default();
            changes.change(&round.to_le_bytes(), Some(&[1; 1_500]));
            let applied = Applied {
                sequence: round,
                next_position: 1,
            };
            let is_applied = found.records.apply(&changes, applied, &|| false);
            assert_eq!(is_applied, Ok(true));
        }
    }

    /// The library writes the length of its file into it, and then syncs both at once.
    #[test]
    fn a_power_cut_while_the_file_grows_leaves_one_that_opens() {
        for seed in 0..24 {
            let simulated = SimulatedDisk::new(seed);
            let disk: Arc<dyn Disk> = Arc::new(simulated.clone());
            create(&disk, [7; 16], CACHE_BYTES).unwrap();
            let mut kept = 0;
            for round in 1..=4_u64 {
                let found = open(&disk, CACHE_BYTES).unwrap().unwrap();
                assert!(found.applied.sequence >= kept, "seed {seed}");
                let mut changes = Changes::default();
                for key in 0..40_u64 {
                    let key = (round * 1_000 + key).to_le_bytes();
                    changes.change(&key, Some(&[round as u8; 12_000]));
                }
                let applied = Applied {
                    sequence: round,
                    next_position: 1,
                };
                simulated.fail_power_after(1 + (seed as u32 * 7 + round as u32 * 13) % 400);
                if found.records.apply(&changes, applied, &|| false).is_ok() {
                    kept = round;
                }
                drop(found);
                simulated.cut_power();
            }
        }
    }
}
