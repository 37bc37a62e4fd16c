//! Size of a program.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// The header of an ELF file of 64 bits, and an entry of its program header table.
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 56;
/// The type of a segment that is loaded.
const PT_LOAD: u64 = 1;

/// Bytes of a program's file that are loaded when it runs. They exclude the tables for debuggers,
/// which this project's `dist` builds keep and others strip.
///
/// # Errors
///
/// If the file cannot be read, or is not an ELF file of 64 bits in the machine's order of bytes.
pub(super) fn loaded_bytes(path: &Path) -> io::Result<u64> {
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
        let file = std::fs::metadata(&path).unwrap().len();
        // Tests have tables for debuggers.
        assert!((100_000..file).contains(&loaded), "{loaded} of {file}");
    }

    #[test]
    fn what_is_no_program_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script");
        std::fs::write(&path, "#!/bin/sh\n".repeat(20)).unwrap();
        let error = loaded_bytes(&path).unwrap_err();
        assert!(error.to_string().contains("not an ELF file"), "{error}");
        std::fs::write(&path, "short").unwrap();
        assert!(loaded_bytes(&path).is_err());
    }
}
