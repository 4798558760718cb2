//! The file with the highest sequence number that the master has acknowledged.

use std::fs;
use std::io;
use std::path::Path;

use crate::SpoolError;
use crate::plain::read_plain;

const ACK_FILE: &str = "ack";
/// The most bytes of the file; a number has fewer digits.
const MOST_BYTES: u64 = 64;

/// The highest sequence number that the master has, 0 for none.
///
/// An unreadable file counts as 0: sending again is harmless, losing lines is not.
pub fn acknowledged(dir: &Path) -> Result<u64, SpoolError> {
    let path = dir.join(ACK_FILE);
    let bytes = match read_plain(&path, MOST_BYTES) {
        Ok(bytes) => bytes,
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            return Err(SpoolError::Read { path, source });
        }
        // The task may have written anything there.
        Err(_) => return Ok(0),
    };
    let number = std::str::from_utf8(&bytes).ok().map(str::trim_ascii);
    Ok(number.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Records that the master has all records up to `sequence`.
///
/// Not synced to disk: after a power failure an older number makes the next reader send again, which is harmless.
pub fn acknowledge(dir: &Path, sequence: u64) -> Result<(), SpoolError> {
    let path = dir.join(ACK_FILE);
    let temporary = dir.join("ack.tmp");
    let written = match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        // Always created, never opened: a link that the task left there must not be followed.
        _ => fs::File::create_new(&temporary)
            .and_then(|mut file| io::Write::write_all(&mut file, sequence.to_string().as_bytes())),
    };
    written
        .and_then(|()| fs::rename(&temporary, &path))
        .map_err(|source| SpoolError::Write { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_a_task_has_replaced_counts_as_none() {
        let dir = tempfile::tempdir().unwrap();
        acknowledge(dir.path(), 7).unwrap();
        assert_eq!(acknowledged(dir.path()).unwrap(), 7);
        let note = dir.path().join(ACK_FILE);
        fs::File::create(&note).unwrap().set_len(3 << 40).unwrap();
        assert_eq!(acknowledged(dir.path()).unwrap(), 0);
        fs::remove_file(&note).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &note).unwrap();
        assert_eq!(acknowledged(dir.path()).unwrap(), 0);
    }
}
