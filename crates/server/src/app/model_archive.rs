//! Model definitions and context directories: a list of files made into a gzip tar archive, checked so that unpacking it is
//! safe everywhere.

use std::collections::BTreeSet;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::error::{AppError, AppResult, ErrorKind};

/// Largest context directory: the same as the client's own limit.
pub const LIMIT_BYTES: usize = 95 * 1024 * 1024;
/// Most files and directories.
pub const LIMIT_ENTRIES: usize = 100_000;

/// A file or directory of a context directory.
#[derive(Debug, Clone)]
pub struct ContextFile {
    /// Relative path with `/`.
    pub path: String,
    /// File or directory.
    pub kind: FileKind,
    /// Content of a file.
    pub content: Vec<u8>,
    /// Permission bits of Unix; only the lowest 12 bits count.
    pub mode: u32,
    /// Last change, seconds since 1970.
    pub mtime: i64,
}

/// What an entry is. Links and devices are never part of a context directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file, with content.
    File,
    /// A directory; `content` is not read.
    Directory,
}

/// Checks the list and packs it; the order of entries is that of their paths. `field` is the name of the list in the request.
pub fn pack(field: &str, files: &[ContextFile]) -> AppResult<Vec<u8>> {
    check(field, files)?;
    let mut sorted: Vec<&ContextFile> = files.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let failed = |e: std::io::Error| {
        AppError::internal(anyhow::Error::new(e).context("packing the context directory"))
    };
    for file in sorted {
        let mut header = tar::Header::new_gnu();
        header.set_mode(file.mode & 0o7777);
        header.set_mtime(u64::try_from(file.mtime).unwrap_or(0));
        header.set_uid(0);
        header.set_gid(0);
        match file.kind {
            FileKind::File => {
                header.set_entry_type(tar::EntryType::Regular);
                header.set_size(file.content.len() as u64);
                archive
                    .append_data(&mut header, clean(&file.path), file.content.as_slice())
                    .map_err(failed)?;
            }
            FileKind::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_size(0);
                archive
                    .append_data(
                        &mut header,
                        format!("{}/", clean(&file.path)),
                        std::io::empty(),
                    )
                    .map_err(failed)?;
            }
        }
    }
    archive
        .into_inner()
        .and_then(GzEncoder::finish)
        .map_err(failed)
}

fn clean(path: &str) -> String {
    path.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect::<Vec<_>>()
        .join("/")
}

fn check(field: &str, files: &[ContextFile]) -> AppResult<()> {
    if files.len() > LIMIT_ENTRIES {
        return Err(AppError::new(
            ErrorKind::TooLarge,
            format!(
                "the context directory has {} entries; at most {LIMIT_ENTRIES} are allowed",
                files.len()
            ),
        ));
    }
    let size: usize = files.iter().map(|f| f.content.len()).sum();
    if size > LIMIT_BYTES {
        return Err(AppError::new(
            ErrorKind::TooLarge,
            format!("the context directory has {size} bytes; at most {LIMIT_BYTES} are allowed"),
        )
        .hint("leave data out with a .detignore file and mount it with bind_mounts"));
    }
    let mut seen = BTreeSet::new();
    for (index, file) in files.iter().enumerate() {
        let refuse = |why: &str| {
            Err(AppError::invalid(format!(
                "field \"{field}[{index}].path\": \"{}\" {why}",
                file.path.escape_debug()
            )))
        };
        if file.path.starts_with('/') {
            return refuse("is absolute; it must be relative to the context directory");
        }
        if file.path.contains('\0') || file.path.contains('\\') && file.path.contains("..\\") {
            return refuse("has a character that is not allowed");
        }
        if file.path.split('/').any(|part| part == "..") {
            return refuse("leads out of the context directory");
        }
        let path = clean(&file.path);
        if path.is_empty() {
            return refuse("names nothing");
        }
        if !seen.insert(path) {
            return refuse("is given twice");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> ContextFile {
        ContextFile {
            path: path.into(),
            kind: FileKind::File,
            content: b"x".to_vec(),
            mode: 0o100_644,
            mtime: 1,
        }
    }

    #[test]
    fn paths_that_lead_out_are_refused_by_name() {
        for (path, why) in [
            ("/etc/passwd", "is absolute"),
            ("a/../../b", "leads out"),
            ("..", "leads out"),
            ("a\0b", "not allowed"),
            (".", "names nothing"),
        ] {
            let error = pack("files", &[file(path)]).unwrap_err();
            assert!(error.message.contains(why), "{path:?}: {}", error.message);
            assert!(error.message.starts_with("field \"files[0].path\""));
        }
        let error = pack("files", &[file("a/b"), file("a//./b")]).unwrap_err();
        assert!(error.message.contains("is given twice"));
    }

    #[test]
    fn the_archive_holds_what_was_given() {
        let data = pack("files", &[file("sub/train.py"), file("a.txt")]).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(data.as_slice()));
        let names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|e| e.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(names, ["a.txt", "sub/train.py"]);
    }

    #[test]
    fn an_empty_definition_is_an_archive() {
        let data = pack("files", &[]).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(data.as_slice()));
        assert_eq!(archive.entries().unwrap().count(), 0);
    }
}
