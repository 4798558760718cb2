//! How far the master has the records.

use std::fs;
use std::io;
use std::path::Path;

use crate::SpoolError;

const ACK_FILE: &str = "ack";

/// The highest sequence number that the master has, 0 for none.
///
/// An unreadable note counts as none: sending again is harmless, losing lines is not.
pub fn acknowledged(dir: &Path) -> Result<u64, SpoolError> {
    let path = dir.join(ACK_FILE);
    match fs::symlink_metadata(&path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Ok(0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(source) => return Err(SpoolError::Read { path, source }),
    }
    let bytes = fs::read(&path).map_err(|source| SpoolError::Read { path, source })?;
    let number = std::str::from_utf8(&bytes).ok().map(str::trim_ascii);
    Ok(number.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Notes that the master has all records up to `sequence`.
///
/// Not synced to disk: after a power cut an older note makes the next reader send again, which is harmless.
pub fn acknowledge(dir: &Path, sequence: u64) -> Result<(), SpoolError> {
    let path = dir.join(ACK_FILE);
    let temporary = dir.join("ack.tmp");
    let written = match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        // Created anew, never opened: a link left there by the task must not be followed.
        _ => fs::File::create_new(&temporary)
            .and_then(|mut file| io::Write::write_all(&mut file, sequence.to_string().as_bytes())),
    };
    written
        .and_then(|()| fs::rename(&temporary, &path))
        .map_err(|source| SpoolError::Write { path, source })
}
