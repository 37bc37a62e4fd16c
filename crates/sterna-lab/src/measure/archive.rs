//! A campaign's samples as they are shipped: compressed, beside the description of the runs.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::Path;

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;

use super::store::{MANIFEST, SAMPLES};

/// The name of the file with the compressed samples (gzip, RFC 1952).
pub const PACKED: &str = "samples.jsonl.gz";

/// Copies a campaign's results to another folder, with compressed samples. Returns the bytes there.
///
/// The same samples give the same bytes. Their lines stay in the same order, so every value of a report
/// can be made of them again.
///
/// # Errors
///
/// If there are no samples, or the folder cannot be written.
pub fn pack(folder: &Path, out: &Path) -> io::Result<u64> {
    let samples = fs::read(folder.join(SAMPLES))?;
    fs::create_dir_all(out)?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&samples)?;
    let packed = packed.finish()?;
    let manifest = fs::read(folder.join(MANIFEST))?;
    fs::write(out.join(PACKED), &packed)?;
    fs::write(out.join(MANIFEST), &manifest)?;
    Ok((packed.len() + manifest.len()) as u64)
}

/// The lines of a folder's samples, packed or not; `None` if there are none yet.
pub(super) fn open(folder: &Path) -> io::Result<Option<Box<dyn BufRead>>> {
    let found = |name: &str| match File::open(folder.join(name)) {
        Ok(file) => Ok(Some(BufReader::new(file))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    if let Some(plain) = found(SAMPLES)? {
        return Ok(Some(Box::new(plain)));
    }
    let packed = found(PACKED)?;
    Ok(packed
        .map(|packed| -> Box<dyn BufRead> { Box::new(BufReader::new(GzDecoder::new(packed))) }))
}
