//! Unpacking the context directory: the user's code.

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

/// Bytes of all files together. The wire allows some hundred megabytes, packed.
const MAX_TOTAL_BYTES: u64 = 4 << 30;
const MAX_ENTRIES: usize = 500_000;

/// Why a context was not unpacked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContextError {
    /// It is no base64.
    #[error("the context directory is not base64: {0}")]
    Base64(base64::DecodeError),
    /// It is no archive.
    #[error("the context directory is not a readable tar.gz archive: {0}")]
    Archive(io::Error),
    /// An entry leaves the directory.
    #[error("the context directory holds {path:?}, which would be unpacked outside of it")]
    Outside {
        /// Name of the entry.
        path: PathBuf,
    },
    /// An entry is neither a file nor a directory.
    #[error(
        "the context directory holds {path:?}, which is {what}; only files and directories are allowed"
    )]
    Kind {
        /// Name of the entry.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It is too large.
    #[error(
        "the context directory unpacks to more than {MAX_TOTAL_BYTES} bytes or {MAX_ENTRIES} entries"
    )]
    Size,
    /// A file or directory could not be written.
    #[error("could not unpack {path:?} of the context directory: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Unpacks a base64 tar.gz into each of the target directories, which exist. Modes and modification times are kept,
/// owners are not, existing files are replaced.
pub(crate) fn unpack(packed: &str, targets: &[&Path]) -> Result<(), ContextError> {
    let bytes = STANDARD.decode(packed).map_err(ContextError::Base64)?;
    let mut archive = Archive::new(GzDecoder::new(bytes.as_slice()));
    // Modes of directories are set when everything is in them: one may be read-only.
    let mut directory_modes = BTreeMap::new();
    let mut total = 0;
    let entries = archive.entries().map_err(ContextError::Archive)?;
    for (index, entry) in entries.enumerate() {
        let mut entry = entry.map_err(ContextError::Archive)?;
        total += entry.size();
        if index >= MAX_ENTRIES || total > MAX_TOTAL_BYTES {
            return Err(ContextError::Size);
        }
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
        let mut content = Vec::new();
        entry
            .read_to_end(&mut content)
            .map_err(ContextError::Archive)?;
        for target in targets {
            written(
                &path,
                write_file(&target.join(&path), &content, mode, mtime),
            )?;
        }
    }
    // Deepest first: the mode of a parent may lock its children away.
    for (path, mode) in directory_modes.into_iter().rev() {
        let set = fs::set_permissions(&path, Permissions::from_mode(mode));
        written(&path, set)?;
    }
    Ok(())
}

fn written(path: &Path, result: io::Result<()>) -> Result<(), ContextError> {
    result.map_err(|source| ContextError::Write {
        path: path.to_owned(),
        source,
    })
}

/// The entry's place below the target; `None` for what has no place: the directory itself, and notes of the archiver.
fn relative_path<R: Read>(entry: &Entry<'_, R>) -> Result<Option<PathBuf>, ContextError> {
    let kind = entry.header().entry_type();
    if kind == EntryType::XGlobalHeader {
        return Ok(None);
    }
    let path = entry.path().map_err(ContextError::Archive)?.into_owned();
    let what = match kind {
        EntryType::Regular
        | EntryType::Continuous
        | EntryType::GNUSparse
        | EntryType::Directory => None,
        EntryType::Symlink => Some("a symbolic link"),
        EntryType::Link => Some("a hard link"),
        EntryType::Char | EntryType::Block => Some("a device"),
        EntryType::Fifo => Some("a named pipe"),
        _ => Some("of an unknown kind"),
    };
    if let Some(what) = what {
        return Err(ContextError::Kind { path, what });
    }
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
    // Open until everything is in it.
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

fn write_file(path: &Path, content: &[u8], mode: u32, mtime: u64) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // Removed, not opened: what is there may be read-only, or a link to somewhere else.
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
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
            // Set by hand: the library refuses to write what an attacker would.
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
    fn what_is_no_archive_is_said_to_be_none() {
        let dir = tempfile::tempdir().unwrap();
        let error = unpack("%%%", &[dir.path()]).unwrap_err().to_string();
        assert!(error.contains("base64"), "{error}");
        let error = unpack("AAAA", &[dir.path()]).unwrap_err().to_string();
        assert!(error.contains("tar.gz"), "{error}");
    }
}
