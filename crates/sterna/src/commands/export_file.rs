//! The file of an export: everybody's messages, and so its user's alone.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::output;

/// A file that is made beside its place, with mode 0600, and gets its name when it is whole and on the disk. One that is
/// there is never replaced.
#[derive(Debug)]
pub(super) struct ExportFile {
    draft: BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl ExportFile {
    /// Begins a file.
    ///
    /// # Errors
    /// Where one of that name is there, or none can be made.
    pub(super) fn begin(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        if path.symlink_metadata().is_ok() {
            let error = io::Error::from(io::ErrorKind::AlreadyExists);
            output::made(Err(error)).map_err(failed)?;
        }
        let draft = tempfile::Builder::new()
            .prefix(".sterna-export-")
            .tempfile_in(folder_of(path))
            .map_err(failed)?;
        Ok(Self {
            draft: BufWriter::new(draft),
            path: path.to_owned(),
        })
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// Where it does not get to the disk, or another has the name by now.
    pub(super) fn finish(self) -> Result<(), String> {
        let Self { draft, path } = self;
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let draft = draft
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        draft.as_file().sync_all().map_err(failed)?;
        output::made(draft.persist_noclobber(&path).map_err(|error| error.error))
            .map_err(failed)?;
        let folder = File::open(folder_of(&path)).map_err(failed)?;
        folder.sync_all().map_err(failed)
    }
}

impl Write for ExportFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.draft.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.draft.flush()
    }
}

fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or_else(|| Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_file_is_there_when_it_is_whole_and_replaces_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("export");
        let names = || fs::read_dir(folder.path()).expect("a folder").count();

        let mut dropped = ExportFile::begin(&path).expect("begun");
        dropped.write_all(b"half").expect("written");
        assert!(!path.exists());
        drop(dropped);
        assert_eq!(names(), 0, "nothing is left of it");

        let mut file = ExportFile::begin(&path).expect("begun");
        let late = ExportFile::begin(&path).expect("begun");
        file.write_all(b"whole").expect("written");
        file.finish().expect("on the disk");
        assert_eq!(fs::read(&path).expect("a file"), b"whole");
        let mode = fs::metadata(&path).expect("a file").mode();
        assert_eq!(mode & 0o777, 0o600);

        for why in [
            ExportFile::begin(&path).expect_err("it is there"),
            late.finish().expect_err("it is there by now"),
        ] {
            assert!(why.contains("the file exists: remove it"), "{why}");
        }
        assert_eq!(fs::read(&path).expect("a file"), b"whole");
        assert_eq!(names(), 1);
    }
}
