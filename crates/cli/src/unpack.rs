//! Unpacks archives from the master without trusting their content.

use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use det_client::{ClientError, Download};
use tar::EntryType;
use tokio::sync::mpsc;

use crate::error::CliError;
use crate::output;

/// The file that marks a checkpoint as complete. It is renamed into place last, so that an interrupted download is not
/// mistaken for a checkpoint.
pub(crate) const MARKER: &str = "metadata.json";

/// Most pieces of a download that wait to be written to the disk.
const PIECES: usize = 16;

/// Unpacks a download (a tar archive) into `directory`, which is created if it does not exist. Nothing is written outside of
/// it: an archive with an absolute path, with `..`, or with anything but files, directories and links is refused. Links
/// that point out of it are skipped, with a warning.
pub(crate) async fn unpack_download(
    mut download: Download,
    directory: &Path,
) -> Result<(), CliError> {
    let (sender, receiver) = mpsc::channel(PIECES);
    let target = directory.to_owned();
    let writing = tokio::task::spawn_blocking(move || unpack(PieceReader::new(receiver), &target));
    let mut lost: Option<ClientError> = None;
    loop {
        match download.next().await {
            // The writer ends early when it refuses the archive; its error is returned below.
            Ok(Some(piece)) => {
                if sender.send(Piece::Bytes(piece.to_vec())).await.is_err() {
                    break;
                }
            }
            Ok(None) => {
                // As above.
                let _ = sender.send(Piece::End).await;
                break;
            }
            Err(error) => {
                lost = Some(error);
                break;
            }
        }
    }
    drop(sender);
    let written = writing
        .await
        .map_err(|error| CliError::request(format!("unpacking stopped: {error}")))?;
    if let Some(error) = lost {
        return Err(error.into());
    }
    let left_out = written.map_err(|error| {
        CliError::request(format!(
            "could not unpack the archive into \"{}\": {error}",
            directory.display()
        ))
    })?;
    for link in left_out {
        output::note(format_args!(
            "warning: the link \"{}\" to \"{}\" leads out of the directory and is left out",
            link.name.display(),
            link.target.display()
        ));
    }
    Ok(())
}

/// A symbolic link of an archive.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    /// The path of the link, relative to the directory.
    name: PathBuf,
    target: PathBuf,
}

impl Link {
    /// Whether it points below the directory, provided that every other link does and that no directory above it is a
    /// link: its target goes up first, never above the directory, and then only down.
    fn stays_inside(&self) -> bool {
        let depth = self.name.components().count() - 1;
        let up = |component: &Component<'_>| matches!(component, Component::ParentDir);
        let ups = self.target.components().take_while(up).count();
        ups <= depth
            && self
                .target
                .components()
                .skip(ups)
                .all(|component| matches!(component, Component::Normal(_) | Component::CurDir))
            && !self.target.as_os_str().is_empty()
    }

    /// Creates the link; returns whether it did. A link that could point out of the directory is not created.
    fn make(&self, directory: &Path) -> io::Result<bool> {
        if !self.stays_inside() {
            return Ok(false);
        }
        let place = directory.join(&self.name);
        for above in self.name.ancestors().skip(1) {
            if directory.join(above).is_symlink() && !above.as_os_str().is_empty() {
                return Ok(false);
            }
        }
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        if place.is_symlink() {
            // A link of an earlier download.
            fs::remove_file(&place)?;
        }
        symlink(&self.target, &place).map(|()| true)
    }
}

/// Unpacks a tar archive into `directory`; returns the links that were skipped.
fn unpack(source: impl Read, directory: &Path) -> io::Result<Vec<Link>> {
    fs::create_dir_all(directory)?;
    let mut archive = tar::Archive::new(source);
    let mut marker = None;
    let mut links = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        let below = safe_path(&name)?;
        if below.as_os_str().is_empty() {
            // The directory itself.
            continue;
        }
        let target = directory.join(&below);
        match entry.header().entry_type() {
            EntryType::Directory => fs::create_dir_all(&target)?,
            EntryType::Regular | EntryType::Continuous => {
                if let Some(parent) = target.parent() {
                    fs::create_dir_all(parent)?;
                }
                let aside =
                    (below == Path::new(MARKER)).then(|| directory.join(".metadata.partial"));
                let mut file = File::create(aside.as_ref().unwrap_or(&target))?;
                io::copy(&mut entry, &mut file)?;
                let mode = entry.header().mode().unwrap_or(0o644);
                // The owner can always read and write, whatever mode the archive has.
                file.set_permissions(Permissions::from_mode((mode & 0o777) | 0o600))?;
                marker = aside.map(|aside| (aside, target)).or(marker);
            }
            // Created after all files: nothing is written through a link.
            EntryType::Symlink => links.push(Link {
                name: below,
                target: entry.link_name()?.unwrap_or_default().into_owned(),
            }),
            EntryType::XGlobalHeader => {}
            other => {
                return Err(refused(&name, &format!("is of kind {other:?}")));
            }
        }
    }
    // Only the end of the compressed stream proves that nothing is missing.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    let mut left_out = Vec::new();
    for link in links {
        if !link.make(directory)? {
            left_out.push(link);
        }
    }
    if let Some((aside, target)) = marker {
        fs::rename(aside, target)?;
    }
    Ok(left_out)
}

/// The path of an entry relative to the directory. Errs when it points out of the directory.
fn safe_path(name: &Path) -> io::Result<PathBuf> {
    let mut below = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => below.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(refused(name, "leads out of the directory"));
            }
        }
    }
    Ok(below)
}

fn refused(name: &Path, why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!(
            "its entry \"{}\" {why}, which is not allowed",
            name.display()
        ),
    )
}

/// A part of a download.
enum Piece {
    Bytes(Vec<u8>),
    /// It has arrived whole. An archive that is cut between two files looks like a shorter one.
    End,
}

/// Reads the pieces of a download; one that ends before its [`Piece::End`] is an error.
struct PieceReader {
    receiver: mpsc::Receiver<Piece>,
    piece: Vec<u8>,
    position: usize,
    is_whole: bool,
}

impl PieceReader {
    fn new(receiver: mpsc::Receiver<Piece>) -> Self {
        Self {
            receiver,
            piece: Vec::new(),
            position: 0,
            is_whole: false,
        }
    }
}

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.position == self.piece.len() {
            if self.is_whole {
                return Ok(0);
            }
            match self.receiver.blocking_recv() {
                Some(Piece::Bytes(piece)) => {
                    self.piece = piece;
                    self.position = 0;
                }
                Some(Piece::End) => self.is_whole = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let read = (&self.piece[self.position..]).read(buffer)?;
        self.position += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tar::{Builder, Header};

    /// An archive of entries: name, kind, content; of a link its target.
    fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = Header::new_gnu();
            // Written byte by byte: the crate itself refuses to make bad names.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o444);
            let mut content = *content;
            if *kind == EntryType::Symlink {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
                content = "";
            }
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn files_and_directories_are_unpacked() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("checkpoints/u");
        let bytes = archive(&[
            ("metadata.json", EntryType::Regular, "{}"),
            ("sub/", EntryType::Directory, ""),
            ("sub/weights", EntryType::Regular, "123"),
            ("./deep/er/x", EntryType::Regular, "y"),
        ]);
        unpack(bytes.as_slice(), &target).unwrap();
        assert_eq!(
            fs::read_to_string(target.join("sub/weights")).unwrap(),
            "123"
        );
        assert_eq!(fs::read_to_string(target.join("deep/er/x")).unwrap(), "y");
        assert_eq!(fs::read_to_string(target.join(MARKER)).unwrap(), "{}");
        let mode = fs::metadata(target.join("sub/weights"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o644);
    }

    #[test]
    fn what_leads_out_is_refused() {
        for (name, kind) in [
            ("/tmp/absolute", EntryType::Regular),
            ("../up", EntryType::Regular),
            ("a/../../up", EntryType::Directory),
            ("../link", EntryType::Symlink),
            ("hard", EntryType::Link),
            ("device", EntryType::Char),
        ] {
            let root = tempfile::tempdir().unwrap();
            let target = root.path().join("into");
            let error = unpack(archive(&[(name, kind, "")]).as_slice(), &target).unwrap_err();
            assert!(error.to_string().contains("not allowed"), "{name}: {error}");
            assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "{name}");
            assert!(!root.path().join("up").exists());
        }
    }

    #[test]
    fn links_are_made_where_they_stay_inside_and_left_out_where_not() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("into");
        let link = |name, to| (name, EntryType::Symlink, to);
        let bytes = archive(&[
            ("a/file", EntryType::Regular, "content"),
            link("latest", "a/file"),
            link("a/b/up", "../file"),
            link("directory", "a"),
            link("through", "directory/file"),
            link("absolute", "/etc/passwd"),
            link("out", "../outside"),
            link("a/out", "../../outside"),
            link("round", "directory/../../outside"),
            link("directory/below", "file"),
            link("empty", ""),
        ]);
        for _ in 0..2 {
            // A second download finds the links of the first.
            let left_out = unpack(bytes.as_slice(), &target).unwrap();
            let names: Vec<_> = left_out
                .iter()
                .map(|link| link.name.to_str().unwrap())
                .collect();
            assert_eq!(
                names,
                [
                    "absolute",
                    "out",
                    "a/out",
                    "round",
                    "directory/below",
                    "empty"
                ]
            );
            for name in ["latest", "a/b/up", "through"] {
                assert!(target.join(name).is_symlink(), "{name}");
                assert_eq!(fs::read_to_string(target.join(name)).unwrap(), "content");
            }
        }
    }

    /// A download of these bytes, which ends whole or breaks off.
    fn download(bytes: &[u8], is_whole: bool) -> PieceReader {
        let (sender, receiver) = mpsc::channel(bytes.len() + 1);
        for piece in bytes.chunks(700) {
            sender.try_send(Piece::Bytes(piece.to_vec())).unwrap();
        }
        if is_whole {
            sender.try_send(Piece::End).unwrap();
        }
        PieceReader::new(receiver)
    }

    #[test]
    fn a_cut_archive_is_not_a_whole_checkpoint() {
        let root = tempfile::tempdir().unwrap();
        let bytes = archive(&[
            ("metadata.json", EntryType::Regular, "{}"),
            ("weights", EntryType::Regular, &"0123456789".repeat(500)),
        ]);
        // In a file, before one, and before the end of the archive.
        for cut in [2000, 1024, bytes.len() - 1024, 0] {
            unpack(download(&bytes[..cut], false), root.path()).unwrap_err();
            assert!(!root.path().join(MARKER).exists(), "cut at {cut}");
        }
        unpack(download(&bytes, true), root.path()).unwrap();
        assert!(root.path().join(MARKER).exists());
    }
}
