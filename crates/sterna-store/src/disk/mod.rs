//! The disk, as the engine uses it.
//!
//! The store reaches the disk through [`Disk`] and [`DiskFile`] only. So it also runs on a [`SimulatedDisk`], which
//! loses power when a test says so.

mod real;
mod simulated;

use std::fmt;
use std::io;
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

/// Puts a file with these bytes in the place of one with this name, on the disk when it returns.
pub(crate) fn replace(disk: &dyn Disk, folder: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = format!("{name}{UNFINISHED}");
    match disk.remove(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.create(&draft)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    disk.rename(&draft, name)?;
    disk.sync_folder(folder)
}

/// End of a file's name until the file is complete. These files are removed at the start.
pub(crate) const UNFINISHED: &str = ".new";
