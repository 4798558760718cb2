//! The single files of a model definition, unpacked from its archive.

use std::io::Read;

use det_ids::ExperimentId;
use det_lifecycle::object::ObjectKind;
use flate2::read::GzDecoder;

use crate::app::model_archive::clean;
use crate::app::reads::model_definition::{Archive, ArchiveSources, Search, damaged, has};
use crate::auth::Actor;
use crate::budget::Reservation;
use crate::error::{AppError, AppResult, ErrorKind};

/// Bytes of a single file that is unpacked from an archive to be shown.
const MOST_FILE_BYTES: u64 = 16 << 20;
/// What sending a file is counted for beside its content: the pieces that wait to be read, as text.
const SENDING_BYTES: usize = 256 << 10;

/// The content of a file, and what is reserved for it.
pub(crate) async fn content(
    sources: &ArchiveSources,
    actor: &Actor,
    id: ExperimentId,
    path: &str,
) -> AppResult<(Vec<u8>, Reservation)> {
    let archive = Archive::open(sources, actor, id).await?;
    let wanted = clean(path);
    if wanted.is_empty() {
        return Err(AppError::invalid(
            "field \"path\" must name a file of the model definition",
        ));
    }
    let found = archive
        .search(move |archive, held| find_file(archive, &wanted, held))
        .await?;
    match found {
        PathEntry::File(content, held) => Ok((content, held)),
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

/// What is at a path.
#[derive(Debug)]
enum PathEntry {
    /// A file, and what is reserved for its content.
    File(Vec<u8>, Reservation),
    Directory,
    Nothing,
}

fn find_file(
    archive: impl Read,
    wanted: &str,
    mut held: Reservation,
) -> AppResult<Search<PathEntry>> {
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
            let bytes = usize::try_from(entry.size()).map_err(AppError::internal)?;
            let needed = bytes + SENDING_BYTES;
            if !has(&mut held, needed) {
                return Ok(Search::Needs(needed));
            }
            let mut content = Vec::with_capacity(bytes);
            entry.read_to_end(&mut content).map_err(damaged)?;
            held.shrink_to(needed);
            return Ok(Search::Found(PathEntry::File(content, held)));
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
    Ok(Search::Found(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::model_archive::{ContextFile, FileKind, pack};
    use crate::budget::{ANSWERS, Budget};

    fn world() -> Vec<u8> {
        let file = |path: &str, content: &[u8]| ContextFile {
            path: path.into(),
            kind: FileKind::File,
            content: content.to_vec(),
            mode: 0o644,
            mtime: 7,
        };
        pack(
            "files",
            &[
                file("train.py", b"print()"),
                file("sub/deep/a.json", b"{}"),
                file("zeros", &vec![0; 4 << 20]),
            ],
        )
        .unwrap()
    }

    fn found(wanted: &str) -> PathEntry {
        let held = Budget::new(ANSWERS).try_reserve(None, 1).unwrap();
        match find_file(&world()[..], wanted, held).unwrap() {
            Search::Found(found) => found,
            Search::Needs(bytes) => panic!("{bytes} bytes are missing"),
        }
    }

    #[test]
    fn a_file_is_found_by_its_path() {
        let PathEntry::File(content, held) = found("train.py") else {
            panic!("it is a file");
        };
        assert_eq!(content, b"print()");
        assert_eq!(held.bytes(), content.len() + SENDING_BYTES);
        assert!(matches!(found("sub/deep"), PathEntry::Directory));
        assert!(matches!(found("su"), PathEntry::Nothing));
        assert!(matches!(found("../etc/passwd"), PathEntry::Nothing));
        assert_eq!(clean("./sub//deep/a.json"), "sub/deep/a.json");
    }

    #[test]
    fn a_file_is_not_unpacked_before_its_bytes_are_reserved() {
        let budget = Budget::new(ANSWERS);
        let _others = budget.try_reserve(None, ANSWERS.total - (4 << 20)).unwrap();
        let world = world();
        let held = budget.try_reserve(Some(det_ids::UserId(1)), 1).unwrap();
        let looked = find_file(&world[..], "zeros", held).unwrap();
        assert!(
            matches!(looked, Search::Needs(bytes) if bytes == (4 << 20) + SENDING_BYTES),
            "{looked:?}"
        );
        let held = budget.try_reserve(Some(det_ids::UserId(1)), 1).unwrap();
        let looked = find_file(&world[..], "train.py", held).unwrap();
        assert!(matches!(looked, Search::Found(PathEntry::File(..))));
    }
}
