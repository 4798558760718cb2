//! Model definitions and context directories: a list of files made into a gzip tar archive, checked so that unpacking it is
//! safe everywhere.

use std::collections::BTreeSet;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::error::{AppError, AppResult, ErrorKind};

/// Largest context directory: the same as the client's own limit.
pub const LIMIT_BYTES: usize = 95 * 1024 * 1024;
/// Most files and directories in a context directory.
pub const LIMIT_ENTRIES: usize = 100_000;
/// Most directories, those among them that only the paths of others name: one path can make as many as it has bytes.
pub const LIMIT_DIRECTORIES: usize = 100_000;
/// Longest path, in bytes: what the systems that clients run on allow themselves.
pub const LIMIT_PATH_BYTES: usize = 1024;
/// Most parts of a path.
pub const LIMIT_LEVELS: usize = 64;
/// Bytes of all paths together.
pub const LIMIT_PATHS_BYTES: usize = 16 << 20;
/// Characters of a path in a message about it.
const SHOWN_CHARS: usize = 100;

/// A file or directory of a context directory.
#[derive(Debug, Clone)]
pub struct ContextFile {
    /// Path relative to the context directory, parts separated by `/`.
    pub path: String,
    /// File or directory.
    pub kind: FileKind,
    /// Content of a file; empty for a directory.
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

/// A path without empty parts and those that lead nowhere.
pub(crate) fn clean(path: &str) -> String {
    path.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect::<Vec<_>>()
        .join("/")
}

fn check(field: &str, files: &[ContextFile]) -> AppResult<()> {
    if files.len() > LIMIT_ENTRIES {
        return Err(too_large(&format!(
            "has {} entries; at most {LIMIT_ENTRIES} are allowed",
            files.len()
        )));
    }
    let size: usize = files.iter().map(|f| f.content.len()).sum();
    if size > LIMIT_BYTES {
        return Err(too_large(&format!(
            "has {size} bytes; at most {LIMIT_BYTES} are allowed"
        ))
        .hint("leave data out with a .detignore file and mount it with bind_mounts"));
    }
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    for (index, file) in files.iter().enumerate() {
        let refuse = |why: &str| {
            let shown: String = file.path.chars().take(SHOWN_CHARS).collect();
            let more = if shown.len() < file.path.len() {
                "…"
            } else {
                ""
            };
            Err(AppError::invalid(format!(
                "field \"{field}[{index}].path\": \"{}{more}\" {why}",
                shown.escape_debug()
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
        if path.len() > LIMIT_PATH_BYTES {
            return refuse(&format!(
                "has {} bytes; at most {LIMIT_PATH_BYTES} are allowed",
                path.len()
            ));
        }
        let levels = path.split('/').count();
        if levels > LIMIT_LEVELS {
            return refuse(&format!(
                "has {levels} parts; at most {LIMIT_LEVELS} are allowed"
            ));
        }
        bytes += path.len();
        if !seen.insert(path) {
            return refuse("is given twice");
        }
    }
    if bytes > LIMIT_PATHS_BYTES {
        return Err(too_large(&format!(
            "has paths of {bytes} bytes together; at most {LIMIT_PATHS_BYTES} are allowed"
        )));
    }
    let directories = directories(files);
    if directories > LIMIT_DIRECTORIES {
        return Err(too_large(&format!(
            "has {directories} directories; at most {LIMIT_DIRECTORIES} are allowed"
        )));
    }
    Ok(())
}

fn too_large(why: &str) -> AppError {
    AppError::new(ErrorKind::TooLarge, format!("the context directory {why}"))
}

/// How many directories there are, those among them that have no entry of their own.
fn directories(files: &[ContextFile]) -> usize {
    let slashed = |file: &ContextFile| match file.kind {
        FileKind::File => clean(&file.path),
        FileKind::Directory => clean(&file.path) + "/",
    };
    let mut paths: Vec<String> = files.iter().map(slashed).collect();
    // What begins with the same directory is then side by side.
    paths.sort_unstable();
    let slashes = |text: &[u8]| text.split(|byte| *byte == b'/').count() - 1;
    let mut count = 0;
    let mut last: &[u8] = b"";
    for path in &paths {
        let path = path.as_bytes();
        let common = path.iter().zip(last).take_while(|(a, b)| a == b).count();
        count += slashes(&path[common..]);
        last = path;
    }
    count
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
    fn paths_have_a_length_and_a_depth() {
        let deepest = format!("{}f", "d/".repeat(LIMIT_LEVELS - 1));
        let longest = "x".repeat(LIMIT_PATH_BYTES);
        assert!(pack("files", &[file(&deepest), file(&longest)]).is_ok());
        for (path, why) in [
            (
                format!("d/{deepest}"),
                "has 65 parts; at most 64 are allowed",
            ),
            (
                format!("{longest}x"),
                "has 1025 bytes; at most 1024 are allowed",
            ),
        ] {
            let error = pack("files", &[file(&path)]).unwrap_err();
            assert!(error.message.contains(why), "{}", error.message);
            assert!(error.message.len() < 300, "{}", error.message);
        }
        let many: Vec<ContextFile> = (0..=LIMIT_PATHS_BYTES / LIMIT_PATH_BYTES)
            .map(|n| file(&format!("{n:0LIMIT_PATH_BYTES$}")))
            .collect();
        let error = pack("files", &many).unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooLarge);
        assert!(
            error.message.contains("has paths of 16778240 bytes"),
            "{}",
            error.message
        );
    }

    #[test]
    fn directories_count_whether_they_have_an_entry_or_not() {
        let directory = |path: &str| ContextFile {
            kind: FileKind::Directory,
            content: Vec::new(),
            ..file(path)
        };
        for (files, count) in [
            (vec![], 0),
            (vec![file("a"), file("b")], 0),
            (vec![file("a/x"), file("./a//y"), directory("a")], 1),
            // Between a directory and what is in it, by the bytes of the paths.
            (
                vec![directory("a"), file("a-b"), file("a/c"), file("a0/c")],
                2,
            ),
            (vec![file("a/b/c/d"), file("a/b/x/y"), file("ab/c")], 5),
        ] {
            assert_eq!(directories(&files), count, "{files:?}");
        }
        let each = LIMIT_LEVELS - 1;
        let deep = |n: usize| file(&format!("{n}/{}f", "d/".repeat(each - 1)));
        let deepest: Vec<ContextFile> = (0..=LIMIT_DIRECTORIES / each).map(deep).collect();
        assert!(pack("files", &deepest[1..]).is_ok());
        let error = pack("files", &deepest).unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooLarge);
        assert!(
            error
                .message
                .contains("has 100044 directories; at most 100000 are allowed"),
            "{}",
            error.message
        );
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
