//! Errors of the spool.

use std::io;
use std::path::PathBuf;

/// Why an operation on a spool failed.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The directory could not be created.
    #[error("could not create the spool directory {path:?}")]
    Create {
        /// Path of the spool's directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The directory could not be listed.
    #[error("could not list the spool directory {path:?}")]
    List {
        /// Path of the spool's directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A segment or the acknowledgement could not be opened or read.
    #[error("could not read {path:?}")]
    Read {
        /// Path of the segment or of the acknowledgement.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A segment or the acknowledgement could not be written.
    #[error("could not write {path:?}")]
    Write {
        /// Path of the segment or of the acknowledgement.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A record could not be expressed as a frame.
    #[error("could not encode record {sequence}, which has {bytes} bytes")]
    Encode {
        /// Sequence number of the record.
        sequence: u64,
        /// Size of the encoded record in bytes.
        bytes: usize,
    },
}
