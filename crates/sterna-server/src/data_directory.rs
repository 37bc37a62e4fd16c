//! The directory of the state that the broker keeps: its own, and nobody else's.
//!
//! Its files are believed: a key that somebody else has put there would let him be the broker. So nobody but this user
//! and root may be able to change anything in it. One broker at a time uses it.

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Mode bits by which others may change a file: its group, and everybody.
const CHANGED_BY_OTHERS: u32 = 0o022;
/// Mode bit of a directory in which a writer cannot replace the files of others.
const STICKY: u32 = 0o1000;
/// Bytes of a secret.
const SECRET_BYTES: usize = 32;
/// The name of the lock, where the file system locks no directories.
const LOCK: &str = "lock";

/// A data directory that nobody else can change. A claimed one is this process's alone, until this is
/// dropped.
#[derive(Debug)]
pub struct DataDirectory {
    path: PathBuf,
    /// That of one that is claimed.
    lock: Option<Lock>,
}

#[derive(Debug)]
struct Lock {
    directory: File,
    /// A file in it, which is locked where the directory itself cannot be. Somebody may remove it.
    file: Option<Mutex<File>>,
}

impl DataDirectory {
    /// Makes the directory if it is missing, checks that no other user can change its files, and
    /// locks it.
    ///
    /// # Errors
    /// A sentence that names the directory, its fault and the remedy.
    pub fn claim(path: &Path) -> Result<Self, String> {
        Self::claim_by(path, File::try_lock)
    }

    fn claim_by(
        path: &Path,
        lock: impl FnOnce(&File) -> Result<(), TryLockError>,
    ) -> Result<Self, String> {
        let refused = |why: String| refused(path, &why);
        let failed = |error: io::Error| refused(error.to_string());
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(failed)?;
        let place = check_place(path, false).map_err(refused)?;
        let directory = File::open(&place).map_err(failed)?;
        let used = || Err(refused("another broker that is running uses it".to_owned()));
        let file = match lock(&directory) {
            Ok(()) => None,
            Err(TryLockError::WouldBlock) => return used(),
            // Some file systems lock files alone, as NFS does.
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, "the data directory itself cannot be locked");
                match lock_file(&place).map_err(refused)? {
                    Some(file) => Some(Mutex::new(file)),
                    None => return used(),
                }
            }
        };
        Ok(Self {
            path: place,
            lock: Some(Lock { directory, file }),
        })
    }

    /// Looks at the directory as [`DataDirectory::claim`] does, and neither makes nor locks anything. `None`
    /// where it is missing and may be made.
    ///
    /// # Errors
    /// The same, apart from those of making and locking.
    pub fn inspect(path: &Path) -> Result<Option<Self>, String> {
        let refused = |why: String| refused(path, &why);
        if fs::symlink_metadata(path).is_ok() {
            let path = check_place(path, false).map_err(refused)?;
            return Ok(Some(Self { path, lock: None }));
        }
        let absolute = std::path::absolute(path).map_err(|error| refused(error.to_string()))?;
        let mut above = absolute.ancestors().skip(1);
        if let Some(above) = above.find(|above| above.exists()) {
            check_place(above, true).map_err(refused)?;
        }
        Ok(None)
    }

    /// Looks whether a claimed directory is still this process's. A file with the lock that was removed is made again.
    ///
    /// # Errors
    /// A sentence that names the directory: another is in its place, or another broker has it. All that this
    /// process writes from then on harms whoever has it.
    pub fn look(&self) -> Result<(), String> {
        let Some(lock) = &self.lock else {
            return Ok(());
        };
        let refused = |why: &str| Err(refused(&self.path, why));
        let is_same = |held: &File, found: &Metadata| {
            let held = held.metadata();
            // One that cannot be judged may be the same.
            held.map_or(true, |held| {
                (held.dev(), held.ino()) == (found.dev(), found.ino())
            })
        };
        match fs::metadata(&self.path) {
            Ok(found) if is_same(&lock.directory, &found) => {}
            Ok(_) => return refused("another directory was put in its place"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return refused("it was removed, or has another name");
            }
            Err(_) => return Ok(()),
        }
        let Some(file) = &lock.file else {
            return Ok(());
        };
        let path = self.path.join(LOCK);
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        if fs::symlink_metadata(&path).is_ok_and(|found| is_same(&file, &found)) {
            return Ok(());
        }
        match lock_file(&self.path) {
            Ok(Some(again)) => {
                tracing::warn!(file = %path.display(), "the lock was removed, and is made again");
                *file = again;
                Ok(())
            }
            Ok(None) => refused("another broker uses it, too"),
            // Where none can be made, as on a full disk, the next look tries again.
            Err(_) => Ok(()),
        }
    }

    /// Path of the directory, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a file that lies in the directory, `None` where there is none.
    ///
    /// # Errors
    /// When the file is not this user's, or others can change it. Also errors of the system.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let path = self.path.join(name);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", path.display())),
            Ok(_) => {}
        }
        let mut file = open_own(&path, false)?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut file, &mut bytes)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Some(bytes))
    }

    /// A secret that lies in the directory. It is made where it is missing, or is no secret.
    ///
    /// # Errors
    /// As those of [`DataDirectory::read`].
    pub fn secret(&self, name: &str) -> Result<[u8; SECRET_BYTES], String> {
        let found = self.read(name)?;
        if let Some(Ok(secret)) = found.map(TryInto::try_into) {
            return Ok(secret);
        }
        let path = self.path.join(name);
        let failed = |why: String| format!("{}: {why}", path.display());
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(|error| failed(format!("no randomness: {error}")))?;
        // A file that others could change was refused above.
        let mut file = create_private(&path).map_err(|error| failed(error.to_string()))?;
        io::Write::write_all(&mut file, &secret).map_err(|error| failed(error.to_string()))?;
        Ok(secret)
    }
}

fn refused(path: &Path, why: &str) -> String {
    format!(
        "data directory {}: {why}; set data_directory (or --data-dir) to use another one",
        path.display()
    )
}

/// Checks that nobody else can change the contents of a directory, or exchange it. It may be one that only lies
/// `above`. Gives its place without symbolic links, since that counts: service managers link to the place of a
/// service's state.
fn check_place(path: &Path, above: bool) -> Result<PathBuf, String> {
    let place = path.canonicalize().map_err(|error| error.to_string())?;
    for (distance, directory) in place.ancestors().enumerate() {
        fs::metadata(directory)
            .map_err(|error| format!("cannot be read: {error}"))
            .and_then(|data| {
                check_owner(&data)?;
                check_directory(&data, above || distance > 0)
            })
            .map_err(|why| format!("{} {why}", directory.display()))?;
    }
    Ok(place)
}

/// Locks a file of the directory, which is made where it is missing; `None` where another process has locked it.
fn lock_file(place: &Path) -> Result<Option<File>, String> {
    let path = place.join(LOCK);
    let file = open_own(&path, true)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(format!("{}: {error}", path.display())),
    }
}

/// Opens a file of the directory, which nobody else can exchange in between.
fn open_own(path: &Path, make: bool) -> Result<File, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    match fs::symlink_metadata(path) {
        Ok(data) if !data.is_file() => {
            return Err(format!("{} is no plain file: remove it", path.display()));
        }
        Ok(data) => {
            check_owner(&data)
                .and_then(|()| match data.mode() & CHANGED_BY_OTHERS {
                    0 => Ok(()),
                    _ => {
                        Err("can be changed by other users: chmod 600 it, or remove it".to_owned())
                    }
                })
                .map_err(|why| format!("{} {why}", path.display()))?;
        }
        Err(error) if make && error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    fs::OpenOptions::new()
        .read(true)
        .write(make)
        .create(make)
        .mode(0o600)
        .open(path)
        .map_err(failed)
}

fn check_owner(data: &Metadata) -> Result<(), String> {
    let own = own_user().map_err(|error| format!("cannot be judged: {error}"))?;
    // In a namespace of users root may have another number: it is whose the whole system is.
    let root = fs::metadata("/").map_or(0, |data| data.uid());
    if [own, root, 0].contains(&data.uid()) {
        Ok(())
    } else {
        Err(format!(
            "belongs to user {}, and this is user {own}",
            data.uid()
        ))
    }
}

/// Checks that others cannot exchange the contents of a directory. One that lies `above` may be for everybody where
/// each user can only exchange his own files.
fn check_directory(data: &Metadata, above: bool) -> Result<(), String> {
    if !data.is_dir() {
        return Err("is no directory".to_owned());
    }
    let mode = data.mode();
    if mode & CHANGED_BY_OTHERS == 0 || (above && mode & STICKY != 0) {
        return Ok(());
    }
    // A group that has its user's number is, by the custom of most systems, his alone.
    if above && mode & 0o002 == 0 && data.gid() == data.uid() {
        return Ok(());
    }
    Err("can be changed by other users: chmod go-w it".to_owned())
}

/// The user that this process acts as.
fn own_user() -> io::Result<u32> {
    Ok(fs::metadata("/proc/self")?.uid())
}

/// Makes a file that only this user can read, and the folders above it.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
    }
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    /// A user that is neither this one nor root.
    const NOBODY: u32 = 65_534;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn one_broker_at_a_time_uses_a_directory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/state");
        let first = DataDirectory::claim(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let why = DataDirectory::claim(&path).unwrap_err();
        assert!(why.contains("another broker that is running"), "{why}");
        assert!(why.contains("data_directory (or --data-dir)"), "{why}");
        drop(first);
        DataDirectory::claim(&path).unwrap();
    }

    /// As a file system that locks files alone.
    fn no_lock(_: &File) -> Result<(), TryLockError> {
        Err(TryLockError::Error(io::ErrorKind::Unsupported.into()))
    }

    #[test]
    fn the_directory_itself_is_locked_and_needs_no_file_for_that() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataDirectory::claim(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let why = DataDirectory::claim(folder.path()).unwrap_err();
        assert!(why.contains("another broker that is running"), "{why}");
        drop(first);
        DataDirectory::claim(folder.path()).unwrap();
    }

    #[test]
    fn where_directories_are_not_locked_a_file_is() {
        let folder = tempfile::tempdir().unwrap();
        let claim = || DataDirectory::claim_by(folder.path(), no_lock);
        let first = claim().unwrap();
        assert!(folder.path().join(LOCK).exists());
        let why = claim().unwrap_err();
        assert!(why.contains("another broker that is running"), "{why}");
        drop(first);
        drop(claim().unwrap());
    }

    #[test]
    fn a_broker_notices_that_its_directory_is_not_its_own_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let directory = DataDirectory::claim(&path).unwrap();
        assert_eq!(directory.look(), Ok(()));
        fs::rename(&path, folder.path().join("aside")).unwrap();
        let why = directory.look().unwrap_err();
        assert!(why.contains("it was removed"), "{why}");
        drop(DataDirectory::claim(&path).unwrap());
        let why = directory.look().unwrap_err();
        assert!(why.contains("put in its place"), "{why}");
    }

    /// Two brokers wrote one store, and messages that one of them had acknowledged were gone.
    #[test]
    fn a_broker_makes_its_lock_again_or_notices_that_another_one_has() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join(LOCK);
        let directory = DataDirectory::claim_by(folder.path(), no_lock).unwrap();
        assert_eq!(directory.look(), Ok(()));
        fs::remove_file(&lock).unwrap();
        assert_eq!(directory.look(), Ok(()));
        let again = open_own(&lock, false).unwrap();
        assert!(again.try_lock().is_err(), "the new file is locked, too");
        fs::remove_file(&lock).unwrap();
        let other = open_own(&lock, true).unwrap();
        other.try_lock().unwrap();
        let why = directory.look().unwrap_err();
        assert!(why.contains("another broker uses it, too"), "{why}");
        drop(other);
        assert_eq!(directory.look(), Ok(()));
    }

    /// Attack row 39: a directory that others can write holds whatever they like.
    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        fs::create_dir(&path).unwrap();
        for mode in [0o777, 0o1777, 0o775, 0o770] {
            set_mode(&path, mode);
            let why = DataDirectory::claim(&path).unwrap_err();
            assert!(why.contains("chmod go-w"), "{mode:o} {why}");
        }
        set_mode(&path, 0o755);
        DataDirectory::claim(&path).unwrap();
        // One above it that others can write: they could put another in its place.
        set_mode(folder.path(), 0o777);
        assert!(DataDirectory::claim(&path).is_err());
        set_mode(folder.path(), 0o1777);
        DataDirectory::claim(&path).unwrap();
        // A link is followed, and its target counts.
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        DataDirectory::claim(&link).unwrap();
        set_mode(&path, 0o777);
        assert!(DataDirectory::claim(&link).is_err());
        set_mode(&path, 0o700);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(DataDirectory::claim(&file).is_err());
    }

    #[test]
    fn to_look_at_a_directory_makes_and_locks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/state");
        assert!(DataDirectory::inspect(&path).unwrap().is_none());
        assert!(!folder.path().join("new").exists());
        let claimed = DataDirectory::claim(&path).unwrap();
        let seen = DataDirectory::inspect(&path).unwrap().unwrap();
        assert_eq!(seen.path(), claimed.path());
        drop(claimed);
        DataDirectory::inspect(&path).unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        set_mode(&path, 0o777);
        let why = DataDirectory::inspect(&path).unwrap_err();
        assert!(why.contains("chmod go-w"), "{why}");
        set_mode(folder.path(), 0o777);
        assert!(DataDirectory::inspect(&folder.path().join("other")).is_err());
        set_mode(folder.path(), 0o700);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(DataDirectory::inspect(&file).is_err());
        assert!(DataDirectory::inspect(&file.join("state")).is_err());
    }

    #[test]
    fn files_that_somebody_else_may_have_made_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let directory = DataDirectory::claim(folder.path()).unwrap();
        let key = folder.path().join("key");
        assert_eq!(directory.read("key"), Ok(None));
        fs::write(&key, "secret").unwrap();
        set_mode(&key, 0o666);
        let why = directory.read("key").unwrap_err();
        assert!(why.contains("can be changed by other users"), "{why}");
        set_mode(&key, 0o600);
        assert_eq!(directory.read("key"), Ok(Some(b"secret".to_vec())));
        fs::remove_file(&key).unwrap();
        symlink("/etc/hostname", &key).unwrap();
        let why = directory.read("key").unwrap_err();
        assert!(why.contains("is no plain file"), "{why}");
    }

    #[test]
    fn a_secret_is_made_once_and_is_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let directory = DataDirectory::claim(folder.path()).unwrap();
        let secret = directory.secret("key").unwrap();
        assert_ne!(secret, [0; SECRET_BYTES]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(directory.secret("key"), Ok(secret));
        // A broker that was killed while it wrote.
        fs::write(&path, &secret[..7]).unwrap();
        let next = directory.secret("key").unwrap();
        assert_ne!(next, secret);
        assert_eq!(directory.secret("key"), Ok(next));
        set_mode(&path, 0o622);
        let why = directory.secret("key").unwrap_err();
        assert!(why.contains("can be changed by other users"), "{why}");
    }

    /// Only root can give a file away, so anybody else looks at root's the other way round: they are fine.
    #[test]
    fn what_another_user_owns_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        drop(DataDirectory::claim(&path).unwrap());
        if own_user().unwrap() != 0 {
            assert!(check_owner(&fs::metadata("/").unwrap()).is_ok());
            return;
        }
        chown(&path, Some(NOBODY), None).unwrap();
        let why = DataDirectory::claim(&path).unwrap_err();
        assert!(why.contains("belongs to user 65534"), "{why}");
        chown(&path, Some(0), None).unwrap();
        let directory = DataDirectory::claim(&path).unwrap();
        fs::write(path.join("key"), "planted").unwrap();
        chown(path.join("key"), Some(NOBODY), None).unwrap();
        let why = directory.read("key").unwrap_err();
        assert!(why.contains("belongs to user 65534"), "{why}");
    }
}
