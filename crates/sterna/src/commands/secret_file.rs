//! Files of credentials: read whole, and replaced whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// The text of a file; `None` where it does not exist.
pub(super) fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_FILE_BYTES => Err(io::Error::other("is too large")),
        Ok(_) => fs::read_to_string(path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the file beside the old one and renames it. So a broker reads the old or the new one as a
/// whole. A new file is for its owner only.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = PathBuf::from(beside);
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)?;
        if let Ok(old) = fs::metadata(path) {
            file.set_permissions(fs::Permissions::from_mode(old.permissions().mode()))?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}
