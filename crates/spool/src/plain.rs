//! Safely reads files in a directory that other users can write to.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::libc;

/// Opens a plain file for reading. A link at its end is not followed, and other kinds of files are refused: a pipe
/// would block the reader for ever, a device has no end.
///
/// # Errors
/// When there is no such file, when it cannot be read, and when it is not a plain one.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "it is not a plain file",
    ))
}

/// The content of a plain file of at most `most` bytes; never reads more than that.
///
/// # Errors
/// As [`open_plain`], and when the file is longer.
pub fn read_plain(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open_plain(path)?
        .take(most.saturating_add(1))
        .read_to_end(&mut content)?;
    if content.len() as u64 > most {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("it is longer than {most} bytes"),
        ));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_files_of_the_right_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("plain"), "12345").unwrap();
        std::os::unix::fs::symlink(path("plain"), path("link")).unwrap();
        File::create(path("sparse"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_plain(&path("plain"), 5).unwrap(), b"12345");
        for (name, most) in [
            ("plain", 4),
            ("link", 100),
            ("sparse", 1 << 10),
            ("pipe", 100),
            (".", 100),
        ] {
            read_plain(&path(name), most).unwrap_err();
        }
    }
}
