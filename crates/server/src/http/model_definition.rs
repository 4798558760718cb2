//! The files that an experiment was created with.

use std::collections::BTreeMap;
use std::io::Read;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use det_api_types::experiments::{
    FileNode, GetModelDefFileRequest, GetModelDefFileResponse, GetModelDefResponse,
    GetModelDefTreeResponse,
};
use det_api_types::wire::{self, Timestamp};
use det_ids::ExperimentId;
use flate2::read::GzDecoder;
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Master;
use crate::app::reads::model_definition::{Archive, BlockingReader};
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::answers;
use crate::http::extract::{Caller, PathId, WireBody, WireQuery};
use crate::http::respond::{Answer, message};

/// Directories below one another in a tree; what lies deeper is shown there under the rest of its path. Bounds the
/// depth of an answer whatever paths were submitted.
const LEVELS: usize = 64;
/// Bytes of a single file that is unpacked from an archive to be shown.
const MOST_FILE_BYTES: u64 = 16 << 20;
/// Longest name in a file name that is offered to a browser.
const NAME_CHARS: usize = 100;

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new()
        .routes(routes!(get_model_def))
        .routes(routes!(get_model_def_tree))
        .routes(routes!(get_model_def_file))
        .routes(routes!(download_model_def))
        .routes(routes!(download_model_def_file))
}

/// `{"b64Tgz":"…"}`, from the store to the client part by part. Of an experiment without an archive the text is empty.
pub(crate) async fn archive_as_text(archive: Archive) -> AppResult<Response> {
    let held = archive.reserve().await?;
    let text = |text: &'static [u8]| futures::stream::iter([Ok(Bytes::from_static(text))]);
    let bytes = archive.bytes;
    let encoded = archive
        .parts()
        .map(|part| Ok(Bytes::from(STANDARD.encode(part?))));
    let whole = text(b"{\"b64Tgz\":\"").chain(encoded).chain(text(b"\"}"));
    // The archive is compressed already: `identity` keeps the compression layer from doing it again.
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CONTENT_ENCODING, "identity".to_owned()),
        (header::CONTENT_LENGTH, text_bytes(bytes).to_string()),
    ];
    Ok((headers, answers::paced(whole, held)).into_response())
}

/// The size of [`archive_as_text`].
fn text_bytes(bytes: usize) -> usize {
    br#"{"b64Tgz":""}"#.len() + bytes.div_ceil(3) * 4
}

/// The files as a gzip tar archive.
#[utoipa::path(get, path = "/api/v1/experiments/{experimentId}/model_def", operation_id = "GetModelDef",
    tag = "experiments", params(("experimentId" = i64, Path)), responses((status = 200, body = GetModelDefResponse)))]
async fn get_model_def(Caller(master, actor): Caller, PathId(id): PathId<ExperimentId>) -> Answer {
    let archive = Archive::open(&master, &actor, id).await?;
    Ok(archive_as_text(archive).await?)
}

/// The files as a tree, without their content.
#[utoipa::path(get, path = "/api/v1/experiments/{experimentId}/file_tree", operation_id = "GetModelDefTree",
    tag = "experiments", params(("experimentId" = i64, Path)),
    responses((status = 200, body = GetModelDefTreeResponse)))]
async fn get_model_def_tree(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    let archive = Archive::open(&master, &actor, id).await?.blocking();
    let files = tokio::task::spawn_blocking(move || tree(archive))
        .await
        .map_err(AppError::internal)??;
    message(&GetModelDefTreeResponse { files })
}

/// The content of one file.
#[utoipa::path(post, path = "/api/v1/experiments/{experimentId}/file", operation_id = "GetModelDefFile",
    tag = "experiments", params(("experimentId" = i64, Path)), request_body = GetModelDefFileRequest,
    responses((status = 200, body = GetModelDefFileResponse)))]
async fn get_model_def_file(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
    WireBody(body): WireBody<GetModelDefFileRequest>,
) -> Answer {
    let archive = Archive::open(&master, &actor, id).await?.blocking();
    message(&GetModelDefFileResponse {
        file: wire::Bytes(one_file(archive, body.path, id).await?),
    })
}

/// The files as a gzip tar archive, for browsers.
#[utoipa::path(get, path = "/experiments/{experimentId}/model_def", operation_id = "DownloadModelDef",
    tag = "experiments", params(("experimentId" = i64, Path)),
    responses((status = 200, description = "the archive", content_type = "application/gzip")))]
async fn download_model_def(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    let archive = Archive::open(&master, &actor, id).await?;
    let bytes = archive.bytes;
    let name = format!("exp{id}_{}_model_def.tar.gz", file_name(&archive.name));
    let held = archive.reserve().await?;
    let archive = archive.parts().map(|part| part.map(Bytes::from));
    let mut response = attachment(&name, "application/gzip", answers::paced(archive, held));
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, bytes.into());
    Ok(response)
}

/// Which file to download.
#[derive(Debug, Clone, Default, Deserialize, Serialize, utoipa::ToSchema, utoipa::IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
struct FileQuery {
    /// Its path in the model definition.
    path: String,
}

/// The content of one file, for browsers.
#[utoipa::path(get, path = "/experiments/{experimentId}/file/download", operation_id = "DownloadModelDefFile",
    tag = "experiments", params(("experimentId" = i64, Path), FileQuery),
    responses((status = 200, description = "the file", content_type = "application/octet-stream")))]
async fn download_model_def_file(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
    WireQuery(query): WireQuery<FileQuery>,
) -> Answer {
    let archive = Archive::open(&master, &actor, id).await?.blocking();
    let name = file_name(query.path.rsplit('/').next().unwrap_or_default());
    let content = Body::from(one_file(archive, query.path, id).await?);
    // Never as what it claims to be: a file of a user's must not run as a page of ours.
    Ok(attachment(&name, "application/octet-stream", content))
}

/// `identity` keeps the compression layer away: what is named a gzip archive is one.
fn attachment(name: &str, media_type: &str, content: Body) -> Response {
    let disposition = format!("attachment; filename=\"{name}\"");
    let headers = [
        (header::CONTENT_TYPE, media_type),
        (header::CONTENT_ENCODING, "identity"),
        (header::CONTENT_DISPOSITION, disposition.as_str()),
    ];
    (headers, content).into_response()
}

/// A name reduced to what every file system and every header takes.
fn file_name(name: &str) -> String {
    let plain: String = name
        .chars()
        .take(NAME_CHARS)
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') {
                c
            } else {
                '_'
            }
        })
        .collect();
    if plain.trim_matches('.').is_empty() {
        "file".to_owned()
    } else {
        plain
    }
}

async fn one_file(archive: BlockingReader, path: String, id: ExperimentId) -> AppResult<Vec<u8>> {
    let wanted = clean(&path);
    if wanted.is_empty() {
        return Err(AppError::invalid(
            "field \"path\" must name a file of the model definition",
        ));
    }
    let found = tokio::task::spawn_blocking(move || find_file(archive, &wanted))
        .await
        .map_err(AppError::internal)??;
    match found {
        Found::File(content) => Ok(content),
        Found::Directory => Err(AppError::invalid(format!(
            "field \"path\": \"{}\" is a directory, not a file",
            path.escape_debug()
        ))),
        Found::Nothing => Err(
            AppError::not_found("file", path.escape_debug()).hint(format!(
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
enum Found {
    File(Vec<u8>),
    Directory,
    Nothing,
}

fn find_file(archive: impl Read, wanted: &str) -> AppResult<Found> {
    let mut found = Found::Nothing;
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
            return Ok(Found::File(content));
        }
        // A directory need not have an entry of its own.
        if path == wanted
            || path
                .strip_prefix(wanted)
                .is_some_and(|rest| rest.starts_with('/'))
        {
            found = Found::Directory;
        }
    }
    Ok(found)
}

/// A directory while the tree is built.
#[derive(Default)]
struct Directory {
    directories: BTreeMap<String, Directory>,
    files: BTreeMap<String, FileNode>,
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
    fn nodes(self, prefix: &str) -> Vec<FileNode> {
        let directories = self.directories.into_iter().map(|(name, directory)| {
            let path = format!("{prefix}{name}");
            FileNode {
                modified_time: directory
                    .modified
                    .map(|seconds| Timestamp(seconds.saturating_mul(1_000_000))),
                is_dir: true,
                files: directory.nodes(&format!("{path}/")),
                path,
                name,
                ..FileNode::default()
            }
        });
        directories.chain(self.files.into_values()).collect()
    }
}

fn tree(archive: impl Read) -> AppResult<Vec<FileNode>> {
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
        let node = FileNode {
            path: path.clone(),
            name: name.to_owned(),
            modified_time: Some(Timestamp(modified.saturating_mul(1_000_000))),
            content_length: i64::try_from(entry.size()).unwrap_or(i64::MAX),
            is_dir: false,
            content_type: content_type(name).to_owned(),
            files: Vec::new(),
        };
        root.at(parent).files.insert(name.to_owned(), node);
    }
    Ok(root.nodes(""))
}

/// The media type that a file's name suggests; code and configuration are shown as text.
fn content_type(name: &str) -> &'static str {
    let extension = name
        .rsplit_once('.')
        .map_or("", |(_, extension)| extension)
        .to_ascii_lowercase();
    match extension.as_str() {
        "py" | "pyi" | "txt" | "md" | "rst" | "sh" | "yaml" | "yml" | "toml" | "cfg" | "ini"
        | "csv" | "r" | "lua" | "c" | "h" | "cc" | "cpp" | "cu" | "rs" | "go" | "js" | "ts" => {
            "text/plain; charset=utf-8"
        }
        "json" | "ipynb" => "application/json",
        "html" | "htm" => "text/html; charset=utf-8",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "pdf" => "application/pdf",
        "gz" | "tgz" => "application/gzip",
        "zip" => "application/zip",
        "" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::model_archive::{ContextFile, FileKind, pack};
    use crate::app::reads::model_definition::PART_BYTES;

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
        pack(&[
            file("train.py", b"print()"),
            file("sub/deep/a.json", b"{}"),
            directory,
        ])
        .unwrap()
    }

    #[test]
    fn the_tree_has_directories_that_no_entry_names() {
        let files = tree(&world()[..]).unwrap();
        let names: Vec<(&str, bool)> = files
            .iter()
            .map(|node| (node.path.as_str(), node.is_dir))
            .collect();
        assert_eq!(names, [("empty", true), ("sub", true), ("train.py", false)]);
        let deep = &files[1].files[0];
        assert_eq!(
            (deep.path.as_str(), deep.name.as_str()),
            ("sub/deep", "deep")
        );
        let file = &deep.files[0];
        assert_eq!(
            (file.path.as_str(), file.content_length),
            ("sub/deep/a.json", 2)
        );
        assert_eq!(file.content_type, "application/json");
        assert_eq!(file.modified_time, Some(Timestamp(7_000_000)));
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
        let mut files = tree(&pack(&[file]).unwrap()[..]).unwrap();
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
            Found::File(b"print()".to_vec())
        );
        assert_eq!(find_file(archive, "sub/deep").unwrap(), Found::Directory);
        assert_eq!(find_file(archive, "su").unwrap(), Found::Nothing);
        assert_eq!(find_file(archive, "../etc/passwd").unwrap(), Found::Nothing);
        assert_eq!(clean("./sub//deep/a.json"), "sub/deep/a.json");
    }

    #[test]
    fn the_size_of_an_archive_as_text_is_known_before() {
        for bytes in [0, 1, 2, 3, 4, PART_BYTES, PART_BYTES + 1] {
            let text = format!("{{\"b64Tgz\":\"{}\"}}", STANDARD.encode(vec![7; bytes]));
            assert_eq!(text_bytes(bytes), text.len(), "{bytes}");
        }
    }

    #[test]
    fn names_are_reduced_to_what_a_header_takes() {
        assert_eq!(file_name("my \"model\"\r\n/x"), "my__model____x");
        assert_eq!(file_name(".."), "file");
        assert_eq!(file_name("train.py"), "train.py");
    }
}
