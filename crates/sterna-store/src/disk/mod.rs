//! The disk, as the engine uses it.
//!
//! The store reaches the disk through [`Disk`] and [`DiskFile`] only. So it also runs on a [`SimulatedDisk`], which
//! loses power when a test says so.

mod real;
mod simulated;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

pub use real::RealDisk;
pub use simulated::{Fault, SimulatedDisk};

/// A folder for the store's files. Names are relative to it, with `/` between folder and file.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Makes a file, to read and to write.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists), or the system's error.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file, to read and to write.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound), or the system's error.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name, in the place of a file that has it.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. It can still be read where it is open.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Names of the files in a folder, in order; none where there is no such folder.
    ///
    /// # Errors
    /// The system's.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Makes a folder, unless it is there. An empty name is the store's own.
    ///
    /// # Errors
    /// The system's.
    fn create_folder(&self, folder: &str) -> io::Result<()>;

    /// Waits until the names in a folder are on the disk: files made, renamed and removed.
    ///
    /// # Errors
    /// The system's.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Bytes that can still be written.
    ///
    /// # Errors
    /// The system's.
    fn free_bytes(&self) -> io::Result<u64>;

    /// A file's name as people know it, for messages.
    fn display_name(&self, name: &str) -> String;
}

/// An open file.
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Its length in bytes.
    ///
    /// # Errors
    /// The system's.
    fn length(&self) -> io::Result<u64>;

    /// Reads from an offset, and returns the number of bytes: less than asked for only at the end.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes at an offset. After an error, some of them may be written.
    ///
    /// # Errors
    /// The system's.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reserves room for a length, and grows to it with zeros.
    ///
    /// # Errors
    /// The system's.
    fn allocate(&self, length: u64) -> io::Result<()>;

    /// Cuts it to a length, or grows it with zeros.
    ///
    /// # Errors
    /// The system's.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Waits until its bytes and its length are on the disk.
    ///
    /// # Errors
    /// The system's. Then nothing that was written since the last sync may be taken for kept. A further sync proves
    /// nothing about it: the system forgets pages that it could not write.
    fn sync(&self) -> io::Result<()>;
}

/// Reads a whole file.
pub(crate) fn read_all(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.length()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Bytes that are read at once around a place that the device cannot read: the system reads whole pages.
const PIECE_BYTES: u64 = 1 << 12;

/// How far around an unreadable place something has to be readable, in bytes.
const NEAR_BYTES: u64 = 1 << 15;

/// The system's number for an error of the device.
const DEVICE_ERROR: i32 = 5;

fn is_of_device(error: &io::Error) -> bool {
    error.raw_os_error() == Some(DEVICE_ERROR)
}

/// Reads as [`DiskFile::read_at`], and around places that the device cannot read. They are zeros, and are returned
/// beside the number of bytes, as offsets in the file.
///
/// # Errors
/// The system's. Also where nothing near can be read: the device is gone, and its bytes may come back with it.
pub(crate) fn read_around(
    file: &dyn DiskFile,
    offset: u64,
    into: &mut [u8],
) -> io::Result<(usize, Vec<Range<u64>>)> {
    let error = match file.read_at(offset, into) {
        Ok(read) => return Ok((read, Vec::new())),
        Err(error) if is_of_device(&error) => error,
        Err(error) => return Err(error),
    };
    let end = file.length()?.min(offset + into.len() as u64);
    let mut unreadable: Vec<Range<u64>> = Vec::new();
    let mut is_gone = true;
    let mut at = offset;
    while at < end {
        let next = end.min((at / PIECE_BYTES + 1) * PIECE_BYTES);
        let piece = &mut into[(at - offset) as usize..(next - offset) as usize];
        match file.read_at(at, piece) {
            Ok(_) => is_gone = false,
            Err(error) if is_of_device(&error) => {
                piece.fill(0);
                match unreadable.last_mut() {
                    Some(last) if last.end == at => last.end = next,
                    _ => unreadable.push(at..next),
                }
            }
            Err(error) => return Err(error),
        }
        at = next;
    }
    if is_gone && !is_readable_near(file, offset, end) {
        return Err(error);
    }
    Ok((end.saturating_sub(offset) as usize, unreadable))
}

fn is_readable_near(file: &dyn DiskFile, from: u64, end: u64) -> bool {
    let mut byte = [0];
    let before =
        (1..=NEAR_BYTES / PIECE_BYTES).map_while(|nth| from.checked_sub(nth * PIECE_BYTES));
    let after = (0..NEAR_BYTES / PIECE_BYTES).map(|nth| end + nth * PIECE_BYTES);
    (before.chain(after)).any(|at| file.read_at(at, &mut byte).is_ok_and(|read| read > 0))
}

/// Puts a file with these bytes in the place of one with this name, on the disk when it returns.
pub(crate) fn replace(disk: &dyn Disk, folder: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = format!("{name}{UNFINISHED}");
    remove_if_there(disk, &draft)?;
    let file = disk.create(&draft)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    disk.rename(&draft, name)?;
    disk.sync_folder(folder)
}

/// Removes a file, unless there is none of that name.
pub(crate) fn remove_if_there(disk: &dyn Disk, name: &str) -> io::Result<()> {
    match disk.remove(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a file that does not count; says so where it cannot be, and returns whether it is gone.
pub(crate) fn remove_if_it_can_be(disk: &dyn Disk, name: &str) -> bool {
    let removed = remove_if_there(disk, name);
    if let Err(error) = &removed {
        let name = disk.display_name(name);
        tracing::warn!("store: {name} does not count, and cannot be removed: {error}");
    }
    removed.is_ok()
}

/// End of a file's name until the file is complete. These files are removed at the start.
pub(crate) const UNFINISHED: &str = ".new";
