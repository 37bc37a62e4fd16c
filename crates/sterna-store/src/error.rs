//! Why a store cannot be opened.

use std::fmt;
use std::io;

/// Why a store cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// A setting is wrong, in a sentence.
    Setting(String),
    /// A file was written by a newer version.
    Newer {
        /// The file.
        file: String,
        /// Version of its format.
        version: u32,
        /// The highest version that this program knows.
        known: u32,
    },
    /// A file without which nothing can be recovered is damaged or missing, in a sentence.
    Damaged {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// There is no store.
    Missing,
    /// The disk has failed.
    Disk {
        /// The file.
        file: String,
        /// The system's error.
        error: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(reason) => f.write_str(reason),
            Self::Newer {
                file,
                version,
                known,
            } => write!(
                f,
                "{file} has version {version} of the store's format, and this program knows {known} at most: \
                 use the newer program that wrote it"
            ),
            Self::Damaged { file, reason } => write!(f, "{file}: {reason}"),
            Self::Missing => f.write_str("there is no store"),
            Self::Disk { file, error } => write!(f, "{file}: {error}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Disk { error, .. } => Some(error),
            _ => None,
        }
    }
}
