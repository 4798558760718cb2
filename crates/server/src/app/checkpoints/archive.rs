//! A checkpoint as one stream: tar, gzip tar or zip. Written while it is sent; nothing is held whole.
//!
//! Directories come first and paths are relative without a leading `./`, because the old product's client unpacks the
//! raw stream in one pass (`docs/contract/http-api.md`, "Archives").

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use nix::fcntl::readlinkat;
use tokio::sync::mpsc;

use crate::app::checkpoints::zip::ZipWriter;
use det_checkpoint_files::tree::{Entry, EntryKind, open_directory, open_file};

/// Bytes handed over at once.
const PIECE: usize = 64 * 1024;

/// The form of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A tar archive as it is: `application/x-tar`.
    Tar,
    /// A tar archive, compressed: `application/gzip`.
    TarGzip,
    /// `application/zip`; without symbolic links, which it cannot carry everywhere.
    Zip,
}

impl Format {
    /// The form that an `Accept` header asks for; `None` when it allows none of them.
    pub fn negotiate(accept: Option<&str>) -> Option<Self> {
        let Some(accept) = accept.filter(|a| !a.trim().is_empty()) else {
            return Some(Self::Tar);
        };
        accept.split(',').find_map(|choice| {
            let mut parts = choice.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            if parts.any(|p| p.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0))) {
                return None;
            }
            match kind.as_str() {
                "application/gzip" | "application/x-gzip" => Some(Self::TarGzip),
                "application/x-tar" | "application/tar" | "*/*" | "application/*" => {
                    Some(Self::Tar)
                }
                "application/zip" => Some(Self::Zip),
                _ => None,
            }
        })
    }

    /// Media type of such archives, for the answer's header.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Tar => "application/x-tar",
            Self::TarGzip => "application/gzip",
            Self::Zip => "application/zip",
        }
    }

    /// What its files' names end in.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Tar => "tar",
            Self::TarGzip => "tar.gz",
            Self::Zip => "zip",
        }
    }
}

/// Writes the entries of an open directory.
pub fn write(
    root: BorrowedFd<'_>,
    entries: &[Entry],
    format: Format,
    out: impl Write,
) -> io::Result<()> {
    match format {
        Format::Tar => write_tar(root, entries, out)?.flush(),
        Format::TarGzip => write_tar(root, entries, GzEncoder::new(out, Compression::fast()))?
            .finish()?
            .flush(),
        Format::Zip => write_zip(root, entries, out)?.flush(),
    }
}

/// Directories, each before what it holds, then the rest.
fn in_order(entries: &[Entry]) -> impl Iterator<Item = &Entry> {
    let directories = entries.iter().filter(|e| e.kind == EntryKind::Directory);
    directories.chain(entries.iter().filter(|e| e.kind != EntryKind::Directory))
}

fn write_tar<W: Write>(root: BorrowedFd<'_>, entries: &[Entry], out: W) -> io::Result<W> {
    let mut archive = tar::Builder::new(out);
    for entry in in_order(entries) {
        let mut header = tar::Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_mtime(u64::try_from(entry.mtime).unwrap_or(0));
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        match entry.kind {
            EntryKind::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                archive.append_data(&mut header, entry.path.join(""), io::empty())?;
            }
            EntryKind::File { .. } => {
                let (file, size) = open_listed(root, entry)?;
                header.set_entry_type(tar::EntryType::Regular);
                header.set_size(size);
                archive.append_data(&mut header, &entry.path, exactly(file, size))?;
            }
            EntryKind::Link => {
                let target = link_target(root, &entry.path)?;
                header.set_entry_type(tar::EntryType::Symlink);
                archive.append_link(&mut header, &entry.path, target)?;
            }
        }
    }
    archive.into_inner()
}

/// A listed file and its size. An error when another user's file has taken its place.
fn open_listed(root: BorrowedFd<'_>, entry: &Entry) -> io::Result<(File, u64)> {
    let file = open_file(root, &entry.path)?;
    let meta = file.metadata()?;
    if meta.uid() != entry.uid {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "\"{}\" belongs to user id {} now, and to {} when it was listed",
                entry.path.display(),
                meta.uid(),
                entry.uid
            ),
        ));
    }
    Ok((file, meta.len()))
}

/// Where a link below an open directory points to; links on the way are not followed.
fn link_target(root: BorrowedFd<'_>, path: &Path) -> io::Result<PathBuf> {
    let parent = open_directory(root, path.parent().unwrap_or(Path::new("")))?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(PathBuf::from(readlinkat(parent.as_fd(), name)?))
}

fn write_zip<W: Write>(root: BorrowedFd<'_>, entries: &[Entry], out: W) -> io::Result<W> {
    let mut archive = ZipWriter::new(out);
    for entry in in_order(entries) {
        let name = entry.path.to_string_lossy();
        match entry.kind {
            EntryKind::Directory => archive.directory(&name, entry.mode, entry.mtime)?,
            EntryKind::File { .. } => {
                let (file, size) = open_listed(root, entry)?;
                archive.file(&name, entry.mode, entry.mtime, exactly(file, size))?;
            }
            EntryKind::Link => {}
        }
    }
    archive.finish()
}

/// Reads exactly `size` bytes: a file that grows is cut, one that shrinks meanwhile is an error, not a damaged archive.
fn exactly(file: impl Read, size: u64) -> impl Read {
    struct ExactReader<R> {
        inner: io::Take<R>,
    }
    impl<R: Read> Read for ExactReader<R> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let n = self.inner.read(buffer)?;
            if n == 0 && !buffer.is_empty() && self.inner.limit() > 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "a file of the checkpoint shrank while it was read",
                ));
            }
            Ok(n)
        }
    }
    ExactReader {
        inner: file.take(size),
    }
}

/// Sends what is written to a response's body, piece by piece; fails when the receiver has gone.
pub struct ChannelWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl ChannelWriter {
    /// A writer for the blocking side of a body.
    pub fn new(sender: mpsc::Sender<io::Result<Bytes>>) -> Self {
        Self {
            sender,
            piece: Vec::with_capacity(PIECE),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.sender
            .blocking_send(Ok(Bytes::from(piece)))
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the receiver has gone"))
    }
}

impl Write for ChannelWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let free = PIECE - self.piece.len();
        let taken = data.len().min(free);
        self.piece.extend_from_slice(&data[..taken]);
        if self.piece.len() == PIECE {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::fd::OwnedFd;

    use super::*;
    use det_checkpoint_files::tree::list;

    #[test]
    fn the_form_follows_what_the_client_accepts() {
        for (accept, expected) in [
            (None, Some(Format::Tar)),
            (Some(""), Some(Format::Tar)),
            (Some("*/*"), Some(Format::Tar)),
            (Some("application/gzip"), Some(Format::TarGzip)),
            (Some("text/html, application/zip;q=0.9"), Some(Format::Zip)),
            (
                Some("application/gzip;q=0, application/x-tar"),
                Some(Format::Tar),
            ),
            (Some("text/html"), None),
        ] {
            assert_eq!(Format::negotiate(accept), expected, "{accept:?}");
        }
    }

    fn world() -> (tempfile::TempDir, OwnedFd) {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("z/deep")).unwrap();
        std::fs::write(root.path().join("a.txt"), b"alpha").unwrap();
        std::fs::write(root.path().join("z/deep/b.bin"), vec![7; 200_000]).unwrap();
        std::os::unix::fs::symlink("a.txt", root.path().join("link")).unwrap();
        let handle = OwnedFd::from(std::fs::File::open(root.path()).unwrap());
        (root, handle)
    }

    #[test]
    fn a_gzip_tar_has_directories_first_and_relative_paths() {
        let (_root, handle) = world();
        let mut out = Vec::new();
        write(
            handle.as_fd(),
            &list(handle.as_fd()).unwrap(),
            Format::TarGzip,
            &mut out,
        )
        .unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(out.as_slice()));
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            seen.push((path, content.len()));
        }
        let expected = [
            ("z/", 0),
            ("z/deep/", 0),
            ("a.txt", 5),
            ("link", 0),
            ("z/deep/b.bin", 200_000),
        ];
        assert_eq!(seen, expected.map(|(path, size)| (path.to_owned(), size)));
    }

    #[test]
    fn pieces_put_together_are_the_archive() {
        let (_root, handle) = world();
        let entries = list(handle.as_fd()).unwrap();
        let mut whole = Vec::new();
        write(handle.as_fd(), &entries, Format::Tar, &mut whole).unwrap();
        let (sender, mut receiver) = mpsc::channel(1024);
        write(
            handle.as_fd(),
            &entries,
            Format::Tar,
            ChannelWriter::new(sender),
        )
        .unwrap();
        let mut pieces = Vec::new();
        while let Some(piece) = receiver.blocking_recv() {
            pieces.extend_from_slice(&piece.unwrap());
        }
        assert_eq!(pieces, whole);
    }

    #[test]
    fn a_file_of_another_user_that_took_a_listed_one_s_place_is_not_sent() {
        let (_root, handle) = world();
        let mut entries = list(handle.as_fd()).unwrap();
        for entry in &mut entries {
            // As if it had been another user's when it was listed.
            entry.uid += 1;
        }
        for format in [Format::Tar, Format::TarGzip, Format::Zip] {
            let error = write(handle.as_fd(), &entries, format, io::sink()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        }
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let mut content = Vec::new();
        assert!(exactly(&b"abc"[..], 5).read_to_end(&mut content).is_err());
        let mut content = Vec::new();
        exactly(&b"abcdef"[..], 5)
            .read_to_end(&mut content)
            .unwrap();
        assert_eq!(content, b"abcde");
    }

    #[test]
    fn a_zip_holds_what_a_reader_finds() {
        let (_root, handle) = world();
        let mut out = Vec::new();
        write(
            handle.as_fd(),
            &list(handle.as_fd()).unwrap(),
            Format::Zip,
            &mut out,
        )
        .unwrap();
        let entries: BTreeMap<String, Vec<u8>> = crate::app::checkpoints::zip::tests::read(&out);
        assert_eq!(entries["a.txt"], b"alpha");
        assert_eq!(entries["z/deep/b.bin"], vec![7; 200_000]);
        assert!(entries.contains_key("z/deep/"));
        assert!(!entries.contains_key("link"));
    }
}
