//! Unpacks the context directory: the user's code.
//!
//! The whole archive is checked before anything of it is written: entries outside the directory, special files and
//! archives that unpack to too much are refused and leave nothing behind. Only the packed archive and a piece of the
//! file that is being written are in memory.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use tar::{Archive, Entry, EntryType};

/// The most bytes that the archive may unpack to, headers included. The master takes at most 95 MiB of files and
/// 100,000 entries.
const MAX_TOTAL_BYTES: u64 = 256 << 20;
/// The most files and directories.
const MAX_ENTRIES: usize = 100_000;
/// The most bytes of a long name, or of an extended header; they are read into memory.
const MAX_NOTE_BYTES: u64 = 64 << 10;
/// Size in bytes of an entry without content.
const HEADER_BYTES: u64 = 512;
/// Size in bytes of one write.
const PIECE_BYTES: usize = 64 << 10;

/// Why a context was not unpacked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContextError {
    /// It is not valid base64.
    #[error("the context directory is not base64: {0}")]
    Base64(base64::DecodeError),
    /// It is not an archive.
    #[error("the context directory is not a readable tar.gz archive: {0}")]
    Archive(io::Error),
    /// An entry would be unpacked outside the directory.
    #[error("the context directory holds {path:?}, which would be unpacked outside of it")]
    Outside {
        /// Path of the entry, as the archive has it.
        path: PathBuf,
    },
    /// An entry is neither a file nor a directory.
    #[error(
        "the context directory holds {path:?}, which is {what}; only files and directories are allowed"
    )]
    Kind {
        /// Path of the entry, as the archive has it.
        path: PathBuf,
        /// The kind of the entry.
        what: &'static str,
    },
    /// Unpacked it has too many bytes or entries.
    #[error(
        "the context directory unpacks to more than {MAX_TOTAL_BYTES} bytes or {MAX_ENTRIES} entries"
    )]
    Size,
    /// A long name or extended header is too large.
    #[error(
        "the context directory holds an entry whose name or notes have {bytes} bytes; at most {MAX_NOTE_BYTES} are allowed"
    )]
    Note {
        /// Its size in bytes, as the archive claims.
        bytes: u64,
    },
    /// A file or directory could not be written.
    #[error("could not unpack {path:?} of the context directory: {source}")]
    Write {
        /// Path of the file or directory, in the archive or on disk.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Unpacks a base64 tar.gz into each of the target directories, which exist. Modes and modification times are kept,
/// owners are not, existing files are replaced.
pub(crate) fn unpack(packed: &str, targets: &[&Path]) -> Result<(), ContextError> {
    let bytes = STANDARD.decode(packed).map_err(ContextError::Base64)?;
    check(&bytes)?;
    let mut archive = open(&bytes);
    // Modes of directories are set last, because one may be read-only.
    let mut directory_modes = BTreeMap::new();
    for entry in archive.entries().map_err(ContextError::Archive)? {
        let mut entry = entry.map_err(ContextError::Archive)?;
        let Some(path) = relative_path(&entry)? else {
            continue;
        };
        let mode = entry.header().mode().map_err(ContextError::Archive)? & 0o777;
        if entry.header().entry_type() == EntryType::Directory {
            for target in targets {
                let full = target.join(&path);
                written(&path, make_directory(&full))?;
                directory_modes.insert(full, mode);
            }
            continue;
        }
        let mtime = entry.header().mtime().map_err(ContextError::Archive)?;
        let mut files = Vec::with_capacity(targets.len());
        for target in targets {
            files.push(written(&path, make_file(&target.join(&path)))?);
        }
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let count = entry.read(&mut piece).map_err(ContextError::Archive)?;
            if count == 0 {
                break;
            }
            for file in &mut files {
                written(&path, file.write_all(&piece[..count]))?;
            }
        }
        for file in files {
            written(&path, finish_file(&file, mode, mtime))?;
        }
    }
    // Deepest first: the mode of a parent may make its children inaccessible.
    for (path, mode) in directory_modes.into_iter().rev() {
        let set = fs::set_permissions(&path, Permissions::from_mode(mode));
        written(&path, set)?;
    }
    Ok(())
}

/// The archive; reading fails where it would unpack to too much.
fn open(bytes: &[u8]) -> Archive<impl Read> {
    Archive::new(GzDecoder::new(bytes).take(MAX_TOTAL_BYTES))
}

/// Checks every entry, and refuses what must not be unpacked.
fn check(bytes: &[u8]) -> Result<(), ContextError> {
    // First the raw entries: there, long names and extended headers are separate entries, and are not read.
    let mut archive = open(bytes);
    let mut total: u64 = 0;
    let entries = archive.entries().map_err(ContextError::Archive)?.raw(true);
    for (index, entry) in entries.enumerate() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(_) if total >= MAX_TOTAL_BYTES => return Err(ContextError::Size),
            Err(error) => return Err(ContextError::Archive(error)),
        };
        total = total.saturating_add(entry.size().max(HEADER_BYTES));
        // With a long name and an extended header, an entry is three raw entries.
        if index >= 3 * MAX_ENTRIES || total > MAX_TOTAL_BYTES {
            return Err(ContextError::Size);
        }
        if is_note(entry.header().entry_type()) && entry.size() > MAX_NOTE_BYTES {
            return Err(ContextError::Note {
                bytes: entry.size(),
            });
        }
        check_kind(&entry)?;
    }
    // Then the entries with their names and sizes applied.
    let mut archive = open(bytes);
    let mut total: u64 = 0;
    for (index, entry) in archive
        .entries()
        .map_err(ContextError::Archive)?
        .enumerate()
    {
        let entry = entry.map_err(ContextError::Archive)?;
        // An extended header may have changed its size.
        total = total.saturating_add(entry.size());
        if index >= MAX_ENTRIES || total > MAX_TOTAL_BYTES {
            return Err(ContextError::Size);
        }
        relative_path(&entry)?;
    }
    Ok(())
}

fn written<T>(path: &Path, result: io::Result<T>) -> Result<T, ContextError> {
    result.map_err(|source| ContextError::Write {
        path: path.to_owned(),
        source,
    })
}

/// Refuses what is neither a file nor a directory nor an extended header.
fn check_kind<R: Read>(entry: &Entry<'_, R>) -> Result<(), ContextError> {
    let what = match entry.header().entry_type() {
        EntryType::Regular | EntryType::Continuous | EntryType::Directory => return Ok(()),
        kind if is_note(kind) => return Ok(()),
        // A sparse file: a few bytes that unpack to gigabytes; the master writes none.
        EntryType::GNUSparse => "a sparse file",
        EntryType::Symlink => "a symbolic link",
        EntryType::Link => "a hard link",
        EntryType::Char | EntryType::Block => "a device",
        EntryType::Fifo => "a named pipe",
        _ => "of an unknown kind",
    };
    let path = entry.path().map_err(ContextError::Archive)?.into_owned();
    Err(ContextError::Kind { path, what })
}

/// Whether an entry is a long name or an extended header of the entry that follows.
fn is_note(kind: EntryType) -> bool {
    matches!(
        kind,
        EntryType::GNULongName
            | EntryType::GNULongLink
            | EntryType::XHeader
            | EntryType::XGlobalHeader
    )
}

/// The entry's path below the target; `None` for the directory itself and for extended headers.
fn relative_path<R: Read>(entry: &Entry<'_, R>) -> Result<Option<PathBuf>, ContextError> {
    if is_note(entry.header().entry_type()) {
        return Ok(None);
    }
    check_kind(entry)?;
    let path = entry.path().map_err(ContextError::Archive)?.into_owned();
    let mut relative = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => relative.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(ContextError::Outside { path });
            }
        }
    }
    Ok((!relative.as_os_str().is_empty()).then_some(relative))
}

fn make_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    // Writable until everything is in it.
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

fn make_file(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // Removed, not opened: an existing file may be read-only, or a link.
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    File::create_new(path)
}

fn finish_file(file: &File, mode: u32, mtime: u64) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))?;
    if let Some(time) = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(mtime)) {
        file.set_modified(time)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tar::{Builder, Header};

    struct Context(Builder<GzEncoder<Vec<u8>>>);

    impl Context {
        fn new() -> Self {
            Self(Builder::new(GzEncoder::new(
                Vec::new(),
                Compression::fast(),
            )))
        }

        fn entry(mut self, name: &str, kind: EntryType, mode: u32, content: &str) -> Self {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_mtime(1_000_000);
            header.set_size(content.len() as u64);
            // Set directly: the library refuses to write such names.
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            if matches!(kind, EntryType::Symlink | EntryType::Link) {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            self.0.append(&header, content.as_bytes()).unwrap();
            self
        }

        fn file(self, name: &str, mode: u32, content: &str) -> Self {
            self.entry(name, EntryType::Regular, mode, content)
        }

        fn pack(self) -> String {
            STANDARD.encode(self.0.into_inner().unwrap().finish().unwrap())
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_context_is_unpacked_into_each_target_with_modes_and_times() {
        let packed = Context::new()
            .entry("./", EntryType::Directory, 0o755, "")
            .entry("closed/", EntryType::Directory, 0o555, "")
            .file("closed/deep/train.py", 0o640, "print(1)")
            .file("./run.sh", 0o4755, "true")
            .pack();
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(b.path().join("run.sh"), "old").unwrap();
        unpack(&packed, &[a.path(), b.path()]).unwrap();
        for dir in [a.path(), b.path()] {
            assert_eq!(
                fs::read_to_string(dir.join("closed/deep/train.py")).unwrap(),
                "print(1)"
            );
            assert_eq!(fs::read_to_string(dir.join("run.sh")).unwrap(), "true");
            assert_eq!(mode(&dir.join("closed/deep/train.py")), 0o640);
            assert_eq!(mode(&dir.join("run.sh")), 0o755, "no set-user-id");
            assert_eq!(mode(&dir.join("closed")), 0o555);
            let modified = fs::metadata(dir.join("run.sh"))
                .unwrap()
                .modified()
                .unwrap();
            assert_eq!(
                modified,
                SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
            );
        }
    }

    #[test]
    fn entries_that_could_do_harm_are_refused() {
        let bad = [
            ("absolute", "/etc/cron", EntryType::Regular, "outside"),
            ("parent", "../evil", EntryType::Regular, "outside"),
            (
                "hidden parent",
                "a/../../evil",
                EntryType::Regular,
                "outside",
            ),
            (
                "symbolic link",
                "link",
                EntryType::Symlink,
                "a symbolic link",
            ),
            ("hard link", "link", EntryType::Link, "a hard link"),
            ("device", "sda", EntryType::Block, "a device"),
            ("pipe", "pipe", EntryType::Fifo, "a named pipe"),
            ("sparse", "big", EntryType::GNUSparse, "a sparse file"),
        ];
        for (name, path, kind, message) in bad {
            let packed = Context::new().entry(path, kind, 0o644, "").pack();
            let dir = tempfile::tempdir().unwrap();
            let error = unpack(&packed, &[dir.path()]).unwrap_err().to_string();
            assert!(error.contains(message), "{name}: {error}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{name}");
        }
    }

    #[test]
    fn a_refused_archive_leaves_nothing_behind() {
        let packed = Context::new()
            .file("first.py", 0o644, "print(1)")
            .file("../evil", 0o644, "")
            .pack();
        let dir = tempfile::tempdir().unwrap();
        unpack(&packed, &[dir.path()]).unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// An archive of one entry that claims to have `size` bytes, followed by as many zeros.
    fn zeros(kind: EntryType, size: u64) -> String {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(header.as_bytes()).unwrap();
        io::copy(&mut io::repeat(0).take(size), &mut gzip).unwrap();
        STANDARD.encode(gzip.finish().unwrap())
    }

    #[test]
    fn a_small_archive_that_unpacks_to_too_much_is_refused() {
        let size = MAX_TOTAL_BYTES + 1;
        let packed = zeros(EntryType::Regular, size);
        assert!(packed.len() < 4 << 20, "{}", packed.len());
        let dir = tempfile::tempdir().unwrap();
        let error = unpack(&packed, &[dir.path()]).unwrap_err().to_string();
        assert!(error.contains("more than 268435456 bytes"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // Its content need not have the claimed size.
        let mut header = Header::new_gnu();
        header.set_size(8 << 30);
        header.set_cksum();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(header.as_bytes()).unwrap();
        let packed = STANDARD.encode(gzip.finish().unwrap());
        let error = unpack(&packed, &[dir.path()]).unwrap_err();
        assert!(matches!(error, ContextError::Size), "{error}");
    }

    #[test]
    fn a_name_that_would_fill_the_memory_is_not_read() {
        for kind in [EntryType::GNULongName, EntryType::XHeader] {
            let dir = tempfile::tempdir().unwrap();
            let packed = zeros(kind, MAX_NOTE_BYTES + 1);
            let error = unpack(&packed, &[dir.path()]).unwrap_err().to_string();
            assert!(error.contains("at most 65536 are allowed"), "{error}");
        }
    }

    #[test]
    fn a_million_entries_are_too_many() {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.as_gnu_mut().unwrap().name[..1].copy_from_slice(b"x");
        header.set_size(0);
        header.set_mode(0o644);
        header.set_cksum();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        for _ in 0..=MAX_ENTRIES {
            gzip.write_all(header.as_bytes()).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let packed = STANDARD.encode(gzip.finish().unwrap());
        let error = unpack(&packed, &[dir.path()]).unwrap_err();
        assert!(matches!(error, ContextError::Size), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_that_is_in_the_way_is_replaced_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        fs::write(&precious, "keep").unwrap();
        let target = dir.path().join("target");
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink(&precious, target.join("train.py")).unwrap();
        unpack(
            &Context::new().file("train.py", 0o644, "new").pack(),
            &[&target],
        )
        .unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "keep");
    }

    #[test]
    fn data_that_is_not_an_archive_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = unpack("%%%", &[dir.path()]).unwrap_err().to_string();
        assert!(error.contains("base64"), "{error}");
        let error = unpack("AAAA", &[dir.path()]).unwrap_err().to_string();
        assert!(error.contains("tar.gz"), "{error}");
    }
}
