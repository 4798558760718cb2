//! Paths of segments.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::SpoolError;

/// Path of the segment that begins with record `first`.
pub(crate) fn path(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}.seg"))
}

/// First sequence number and length in bytes of each segment, ascending. A missing directory has none.
///
/// Only regular files count: the directory belongs to the task's user, and its reader may be root.
pub(crate) fn list(dir: &Path) -> Result<Vec<(u64, u64)>, SpoolError> {
    let failed = |source| SpoolError::List {
        path: dir.to_owned(),
        source,
    };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut segments = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let first = name
            .to_str()
            .and_then(|name| name.strip_suffix(".seg"))
            .and_then(|digits| digits.parse().ok());
        let Some(first) = first else { continue };
        // It is not an error if a segment was acknowledged and removed since the listing.
        match entry.metadata() {
            Ok(metadata) if metadata.is_file() => segments.push((first, metadata.len())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    segments.sort_unstable();
    Ok(segments)
}
