//! The single files of a model definition, unpacked from its archive.

use std::collections::BTreeMap;
use std::io::Read;

use det_ids::ExperimentId;
use det_lifecycle::object::ObjectKind;
use flate2::read::GzDecoder;

use crate::app::reads::model_definition::{Archive, ArchiveSources};
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};

/// Directories below one another in a tree; what is deeper is shown there under the rest of its path. Bounds the
/// depth of an answer whatever paths were submitted.
const LEVELS: usize = 64;
/// Bytes of a single file that is unpacked from an archive to be shown.
const MOST_FILE_BYTES: u64 = 16 << 20;

/// A file or directory.
#[derive(Debug)]
pub(crate) struct Node {
    /// Path from the top.
    pub(crate) path: String,
    /// Last part of the path.
    pub(crate) name: String,
    /// Time of modification, in seconds; `None` where the archive has no entry of a directory.
    pub(crate) modified: Option<i64>,
    /// Bytes of a file; `None` = a directory.
    pub(crate) size: Option<i64>,
    /// What a directory holds: directories first, each by name.
    pub(crate) files: Vec<Node>,
}

/// All files and directories, without content.
pub(crate) async fn tree(
    sources: &ArchiveSources,
    actor: &Actor,
    id: ExperimentId,
) -> AppResult<Vec<Node>> {
    let archive = Archive::open(sources, actor, id).await?.blocking();
    tokio::task::spawn_blocking(move || nodes(archive))
        .await
        .map_err(AppError::internal)?
}

/// The content of a file.
pub(crate) async fn content(
    sources: &ArchiveSources,
    actor: &Actor,
    id: ExperimentId,
    path: &str,
) -> AppResult<Vec<u8>> {
    let archive = Archive::open(sources, actor, id).await?.blocking();
    let wanted = clean(path);
    if wanted.is_empty() {
        return Err(AppError::invalid(
            "field \"path\" must name a file of the model definition",
        ));
    }
    let found = tokio::task::spawn_blocking(move || find_file(archive, &wanted))
        .await
        .map_err(AppError::internal)??;
    match found {
        PathEntry::File(content) => Ok(content),
        PathEntry::Directory => Err(AppError::invalid(format!(
            "field \"path\": \"{}\" is a directory, not a file",
            path.escape_debug()
        ))),
        PathEntry::Nothing => Err(
            AppError::not_found(ObjectKind::File, path.escape_debug()).hint(format!(
                "it is not in the model definition of experiment {id}"
            )),
        ),
    }
}

fn clean(path: &str) -> String {
    path.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect::<Vec<_>>()
        .join("/")
}

fn damaged(error: std::io::Error) -> AppError {
    AppError::internal(anyhow::Error::new(error).context("reading a stored model definition"))
}

/// What is at a path.
#[derive(Debug, PartialEq, Eq)]
enum PathEntry {
    File(Vec<u8>),
    Directory,
    Nothing,
}

fn find_file(archive: impl Read, wanted: &str) -> AppResult<PathEntry> {
    let mut found = PathEntry::Nothing;
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    for entry in archive.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        let path = clean(&String::from_utf8_lossy(&entry.path_bytes()));
        if path == wanted && entry.header().entry_type().is_file() {
            if entry.size() > MOST_FILE_BYTES {
                return Err(AppError::new(
                    ErrorKind::TooLarge,
                    format!(
                        "file \"{}\" has {} bytes; a single file is shown up to {MOST_FILE_BYTES}",
                        path.escape_debug(),
                        entry.size()
                    ),
                )
                .hint("download the whole model definition: det experiment download-model-def"));
            }
            let mut content = Vec::new();
            entry.read_to_end(&mut content).map_err(damaged)?;
            return Ok(PathEntry::File(content));
        }
        // A directory need not have an entry of its own.
        if path == wanted
            || path
                .strip_prefix(wanted)
                .is_some_and(|rest| rest.starts_with('/'))
        {
            found = PathEntry::Directory;
        }
    }
    Ok(found)
}

/// A directory while the tree is built.
#[derive(Default)]
struct Directory {
    directories: BTreeMap<String, Directory>,
    files: BTreeMap<String, Node>,
    modified: Option<i64>,
}

impl Directory {
    fn at(&mut self, path: &str) -> &mut Self {
        path.splitn(LEVELS, '/')
            .filter(|part| !part.is_empty())
            .fold(self, |directory, part| {
                directory.directories.entry(part.to_owned()).or_default()
            })
    }

    /// What it holds: directories first, each by name.
    fn nodes(self, prefix: &str) -> Vec<Node> {
        let directories = self.directories.into_iter().map(|(name, directory)| {
            let path = format!("{prefix}{name}");
            Node {
                modified: directory.modified,
                size: None,
                files: directory.nodes(&format!("{path}/")),
                path,
                name,
            }
        });
        directories.chain(self.files.into_values()).collect()
    }
}

fn nodes(archive: impl Read) -> AppResult<Vec<Node>> {
    let mut root = Directory::default();
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    for entry in archive.entries().map_err(damaged)? {
        let entry = entry.map_err(damaged)?;
        let path = clean(&String::from_utf8_lossy(&entry.path_bytes()));
        let modified = entry
            .header()
            .mtime()
            .map(|seconds| i64::try_from(seconds).unwrap_or(0))
            .map_err(damaged)?;
        if entry.header().entry_type().is_dir() {
            root.at(&path).modified = Some(modified);
            continue;
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let node = Node {
            path: path.clone(),
            name: name.to_owned(),
            modified: Some(modified),
            size: Some(i64::try_from(entry.size()).unwrap_or(i64::MAX)),
            files: Vec::new(),
        };
        root.at(parent).files.insert(name.to_owned(), node);
    }
    Ok(root.nodes(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::model_archive::{ContextFile, FileKind, pack};

    fn world() -> Vec<u8> {
        let file = |path: &str, content: &[u8]| ContextFile {
            path: path.into(),
            kind: FileKind::File,
            content: content.to_vec(),
            mode: 0o644,
            mtime: 7,
        };
        let directory = ContextFile {
            kind: FileKind::Directory,
            ..file("empty", b"")
        };
        pack(
            "files",
            &[
                file("train.py", b"print()"),
                file("sub/deep/a.json", b"{}"),
                directory,
            ],
        )
        .unwrap()
    }

    #[test]
    fn the_tree_has_directories_that_no_entry_names() {
        let files = nodes(&world()[..]).unwrap();
        let names: Vec<(&str, bool)> = files
            .iter()
            .map(|node| (node.path.as_str(), node.size.is_none()))
            .collect();
        assert_eq!(names, [("empty", true), ("sub", true), ("train.py", false)]);
        let deep = &files[1].files[0];
        assert_eq!(
            (deep.path.as_str(), deep.name.as_str()),
            ("sub/deep", "deep")
        );
        let file = &deep.files[0];
        assert_eq!(
            (file.path.as_str(), file.size, file.modified),
            ("sub/deep/a.json", Some(2), Some(7))
        );
    }

    #[test]
    fn a_tree_is_never_deeper_than_its_bound() {
        let path = format!("{}x", "d/".repeat(10_000));
        let file = ContextFile {
            path,
            kind: FileKind::File,
            content: Vec::new(),
            mode: 0o644,
            mtime: 0,
        };
        let mut files = nodes(&pack("files", &[file]).unwrap()[..]).unwrap();
        let mut levels = 0;
        while let Some(node) = files.pop() {
            levels += 1;
            files = node.files;
        }
        assert_eq!(levels, LEVELS + 1);
    }

    #[test]
    fn a_file_is_found_by_its_path() {
        let world = world();
        let archive = &world[..];
        assert_eq!(
            find_file(archive, "train.py").unwrap(),
            PathEntry::File(b"print()".to_vec())
        );
        assert_eq!(
            find_file(archive, "sub/deep").unwrap(),
            PathEntry::Directory
        );
        assert_eq!(find_file(archive, "su").unwrap(), PathEntry::Nothing);
        assert_eq!(
            find_file(archive, "../etc/passwd").unwrap(),
            PathEntry::Nothing
        );
        assert_eq!(clean("./sub//deep/a.json"), "sub/deep/a.json");
    }
}
