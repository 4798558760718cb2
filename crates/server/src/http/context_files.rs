//! The files of a context directory, as clients send them.

use det_api_types::experiments::File;

use crate::app::model_archive::{ContextFile, FileKind};
use crate::error::{AppError, AppResult};

/// Type flags of tar archives.
const TAR_FILE: i64 = 48;
const TAR_DIRECTORY: i64 = 53;

/// The files of a request; `field` is the name of the list there.
pub(crate) fn context_files(field: &str, files: Vec<File>) -> AppResult<Vec<ContextFile>> {
    let entries = files.into_iter().enumerate();
    entries
        .map(|(index, file)| context_file(field, index, file))
        .collect()
}

fn context_file(field: &str, index: usize, file: File) -> AppResult<ContextFile> {
    let kind = match file.kind {
        TAR_FILE => FileKind::File,
        TAR_DIRECTORY => FileKind::Directory,
        other => {
            return Err(AppError::invalid(format!(
                "field \"{field}[{index}].type\" must be {TAR_FILE} (a file) or {TAR_DIRECTORY} (a directory), found {other}"
            ))
            .hint("links are sent as the files that they point to"));
        }
    };
    let mode = u32::try_from(file.mode & 0o777).unwrap_or(0);
    Ok(ContextFile {
        path: file.path,
        kind,
        content: file.content.0,
        mode,
        mtime: file.mtime.0,
    })
}

#[cfg(test)]
mod tests {
    use det_api_types::wire::{Bytes, Int64};

    use super::*;

    #[test]
    fn files_come_with_their_permission_bits_only() {
        let file = File {
            path: "a.py".into(),
            kind: 48,
            content: Bytes(b"x".to_vec()),
            mtime: Int64(7),
            mode: 0o100_644,
            ..File::default()
        };
        let made = context_file("files", 0, file.clone()).unwrap();
        assert_eq!(
            (made.kind, made.mode, made.mtime),
            (FileKind::File, 0o644, 7)
        );
        let directory = context_file(
            "files",
            0,
            File {
                kind: 53,
                mode: 0o040_755,
                ..file.clone()
            },
        )
        .unwrap();
        assert_eq!(
            (directory.kind, directory.mode),
            (FileKind::Directory, 0o755)
        );
        let error = context_file("files", 3, File { kind: 50, ..file }).unwrap_err();
        assert!(
            error.message.starts_with("field \"files[3].type\""),
            "{}",
            error.message
        );
    }
}
