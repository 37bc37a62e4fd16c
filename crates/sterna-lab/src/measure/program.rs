//! A program's file: its size, and which build it is.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead as _, Read, Seek, SeekFrom};
use std::path::Path;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// The header of an ELF file of 64 bits, and an entry of its program header table.
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 56;
/// The type of a segment that is loaded.
const PT_LOAD: u64 = 1;

/// Text that rustc leaves in the section `.comment` of a program, before its version.
const COMPILER_MARK: &[u8] = b"rustc version ";

/// Which build of a program was measured.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Build {
    /// The file's name, without its place.
    pub program: String,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
    /// The version of rustc, if it was that and the file still tells.
    pub compiler: Option<String>,
}

impl Build {
    /// Reads a program's file.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn of(path: &Path) -> io::Result<Self> {
        let file = fs::read(path)?;
        let mut sha256 = String::new();
        for byte in digest(&SHA256, &file).as_ref() {
            // Writing to a String does not fail.
            let _ = write!(sha256, "{byte:02x}");
        }
        Ok(Self {
            program: path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            bytes: file.len() as u64,
            sha256,
            compiler: compiler(&file),
        })
    }
}

/// The text after a mark, if there is some.
fn compiler(mut file: &[u8]) -> Option<String> {
    let (first, others) = COMPILER_MARK.split_first()?;
    // Reading from memory does not fail.
    while file.skip_until(*first).is_ok_and(|skipped| skipped > 0) {
        let Some(text) = file.strip_prefix(others) else {
            continue;
        };
        // A program that looks for the mark has one itself, and no version behind it.
        let end = text.iter().position(|byte| !(b' '..=b'~').contains(byte));
        let text = String::from_utf8_lossy(&text[..end.unwrap_or(0)]);
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return Some(text.into_owned());
        }
    }
    None
}

/// Bytes of a program's file that are loaded when it runs. They exclude the tables for debuggers,
/// which this project's `dist` builds keep and others strip.
///
/// # Errors
///
/// If the file cannot be read, or is not an ELF file of 64 bits in the machine's order of bytes.
pub(crate) fn loaded_bytes(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header)?;
    if !header.starts_with(&[0x7f, b'E', b'L', b'F', 2]) {
        let what = format!("{}: not an ELF file of 64 bits", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let entries = number(&header[56..58]);
    file.seek(SeekFrom::Start(number(&header[32..40])))?;
    let mut bytes = 0_u64;
    for _ in 0..entries {
        let mut entry = [0; ENTRY_BYTES];
        file.read_exact(&mut entry)?;
        if number(&entry[..4]) == PT_LOAD {
            bytes = bytes.saturating_add(number(&entry[32..40]));
        }
    }
    Ok(bytes)
}

/// A number in the machine's order of bytes.
fn number(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    if cfg!(target_endian = "little") {
        whole[..bytes.len()].copy_from_slice(bytes);
    } else {
        whole[8 - bytes.len()..].copy_from_slice(bytes);
    }
    u64::from_ne_bytes(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_loads_less_than_its_file_has() {
        let path = std::env::current_exe().unwrap();
        let loaded = loaded_bytes(&path).unwrap();
        let file = fs::metadata(&path).unwrap().len();
        // Tests have tables for debuggers.
        assert!((100_000..file).contains(&loaded), "{loaded} of {file}");
    }

    #[test]
    fn a_build_is_known_by_its_bytes_and_its_compiler() {
        let build = Build::of(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(build.sha256.len(), 64);
        assert!(build.program.starts_with("sterna_lab"), "{build:?}");
        let version = build.compiler.unwrap();
        assert!(version.starts_with("1."), "{version}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other");
        fs::write(&path, b"rustc version \0abc").unwrap();
        let other = Build::of(&path).unwrap();
        assert_eq!((other.bytes, other.compiler), (18, None));
        let marked = b"rustc version \0rustc version 1.2 (x)\0";
        assert_eq!(compiler(marked), Some("1.2 (x)".into()));
    }

    #[test]
    fn what_is_no_program_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script");
        fs::write(&path, "#!/bin/sh\n".repeat(20)).unwrap();
        let error = loaded_bytes(&path).unwrap_err();
        assert!(error.to_string().contains("not an ELF file"), "{error}");
        fs::write(&path, "short").unwrap();
        assert!(loaded_bytes(&path).is_err());
    }
}
