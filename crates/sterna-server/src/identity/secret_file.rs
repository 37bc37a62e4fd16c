//! Files of credentials: read whole, and replaced whole.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// A file of credentials as it was read, to be replaced; or a file that does not exist yet.
#[derive(Debug)]
pub struct SecretFile {
    /// Without symbolic links, where it exists.
    path: PathBuf,
    read: Option<(Metadata, String)>,
}

impl SecretFile {
    /// Reads the file at `path`, or where a symbolic link there leads.
    ///
    /// # Errors
    /// When it exists and cannot be read, is too large, or is no text.
    pub fn read(path: &Path) -> io::Result<Self> {
        let place = match path.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let path = path.to_owned();
                return Ok(Self { path, read: None });
            }
            place => place?,
        };
        let mut file = File::open(&place)?;
        let metadata = file.metadata()?;
        if metadata.len() > MAX_FILE_BYTES {
            return Err(io::Error::other("is too large"));
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok(Self {
            path: place,
            read: Some((metadata, text)),
        })
    }

    /// The text; `None` where the file does not exist.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.read.as_ref().map(|(_, text)| text.as_str())
    }

    /// Puts a file with another text in its place, with the same owner and mode. So a broker reads the old or the
    /// new one as a whole, and may still read it. A new file is for its owner only.
    ///
    /// # Errors
    /// When the file has changed since it was read, its owner cannot be kept, or it cannot be written. It stays as
    /// it is then.
    pub fn replace(&self, text: &str) -> io::Result<()> {
        let mut beside = self.path.as_os_str().to_owned();
        beside.push(format!(".{}.new", std::process::id()));
        let beside = PathBuf::from(beside);
        self.write(&beside, text).inspect_err(|_| {
            let _ = fs::remove_file(&beside);
        })
    }

    fn write(&self, beside: &Path, text: &str) -> io::Result<()> {
        let mut new = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(beside)?;
        let old = self.read.as_ref().map(|(metadata, _)| metadata);
        if let Some(old) = old {
            let own = new.metadata()?;
            if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
                fchown(&new, Some(old.uid()), Some(old.gid())).map_err(|error| {
                    io::Error::new(error.kind(), format!("its owner cannot be kept: {error}"))
                })?;
            }
            let mode = fs::Permissions::from_mode(old.permissions().mode());
            new.set_permissions(mode)?;
        }
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        let mark = |one: &Metadata| (one.ino(), one.mtime(), one.mtime_nsec(), one.len());
        let now = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            now => Some(now?),
        };
        if now.as_ref().map(mark) != old.map(mark) {
            return Err(io::Error::other("has changed since it was read"));
        }
        fs::rename(beside, &self.path)?;
        let folder = self.path.parent();
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn a_file_keeps_its_owner_its_mode_and_the_link_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let [target, link] = ["target", "link"].map(|name| folder.path().join(name));
        fs::write(&target, "old").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
        // Only root may; others keep their own.
        let _ = chown(&target, Some(12_345), Some(54_321));
        symlink("target", &link).unwrap();
        let before = fs::metadata(&target).unwrap();

        let file = SecretFile::read(&link).unwrap();
        assert_eq!(file.text(), Some("old"));
        file.replace("new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        let after = fs::metadata(&target).unwrap();
        let owner = |one: &Metadata| (one.uid(), one.gid(), one.permissions().mode());
        assert_eq!(owner(&after), owner(&before));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_change_of_another_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for before in [None, Some("old")] {
            if let Some(before) = before {
                fs::write(&path, before).unwrap();
            }
            let file = SecretFile::read(&path).unwrap();
            assert_eq!(file.text(), before);
            fs::write(&path, "of another").unwrap();
            file.replace("new").unwrap_err();
            assert_eq!(fs::read_to_string(&path).unwrap(), "of another");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_new_file_is_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        SecretFile::read(&path).unwrap().replace("new").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
