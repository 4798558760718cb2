//! The files that an experiment was created with.

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
use futures::{Stream, StreamExt};
use serde::{Deserialize, Serialize};

use crate::app::reads::model_definition::tree::{self, ShownNode, Step, Walk};
use crate::app::reads::model_definition::{Archive, files};
use crate::error::{AppError, AppResult};
use crate::http::answers;
use crate::http::extract::{Caller, PathId, WireBody, WireQuery};
use crate::http::respond::Answer;
use crate::http::routes::{Routes, routes};

/// Bytes of a file that are made text at once; a multiple of three, as those of an archive.
const TEXT_BYTES: usize = 48 << 10;
/// Bytes of a tree's text that are made at once, and a little more.
const TREE_BYTES: usize = 64 << 10;
/// Longest name in a file name that is offered to a browser.
const NAME_CHARS: usize = 100;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_model_def))
        .routes(routes!(get_model_def_tree))
        .routes(routes!(get_model_def_file))
        .routes(routes!(download_model_def))
        .routes(routes!(download_model_def_file))
}

/// `{"b64Tgz":"…"}`, from the store to the client part by part.
pub(crate) async fn archive_as_text(archive: Archive) -> AppResult<Response> {
    let held = archive.reserve().await?;
    let bytes = archive.bytes;
    let whole = as_text(b"{\"b64Tgz\":\"", archive.parts());
    // The archive is compressed already: `identity` keeps the compression layer from doing it again.
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CONTENT_ENCODING, "identity".to_owned()),
        (header::CONTENT_LENGTH, text_bytes(bytes).to_string()),
    ];
    Ok((headers, answers::paced(whole, held)).into_response())
}

/// A message with one member, whose begin is given; each part has a multiple of three bytes, but for the last.
fn as_text(
    begin: &'static [u8],
    parts: impl Stream<Item = AppResult<Vec<u8>>> + Send + 'static,
) -> impl Stream<Item = AppResult<Bytes>> + Send + 'static {
    let text = |text: &'static [u8]| futures::stream::iter([Ok(Bytes::from_static(text))]);
    let encoded = parts.map(|part| Ok(Bytes::from(STANDARD.encode(part?))));
    text(begin).chain(encoded).chain(text(b"\"}"))
}

/// The size of [`archive_as_text`].
fn text_bytes(bytes: usize) -> usize {
    br#"{"b64Tgz":""}"#.len() + bytes.div_ceil(3) * 4
}

/// The files as a gzip tar archive.
#[utoipa::path(get, path = "/api/v1/experiments/{experimentId}/model_def", operation_id = "GetModelDef",
    tag = "experiments", params(("experimentId" = i64, Path)), responses((status = 200, body = GetModelDefResponse)))]
async fn get_model_def(Caller(master, actor): Caller, PathId(id): PathId<ExperimentId>) -> Answer {
    let archive = Archive::open(&master.sources.archives, &actor, id).await?;
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
    let (tree, held) = tree::of_experiment(&master.sources.archives, &actor, id).await?;
    let text = futures::stream::iter(TreeText::new(tree.walk()));
    Ok((JSON, answers::paced(text, held)).into_response())
}

/// Headers of a message that is made while it is sent.
const JSON: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

/// The content of one file.
#[utoipa::path(post, path = "/api/v1/experiments/{experimentId}/file", operation_id = "GetModelDefFile",
    tag = "experiments", params(("experimentId" = i64, Path)), request_body = GetModelDefFileRequest,
    responses((status = 200, body = GetModelDefFileResponse)))]
async fn get_model_def_file(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
    WireBody(body): WireBody<GetModelDefFileRequest>,
) -> Answer {
    let (content, held) = files::content(&master.sources.archives, &actor, id, &body.path).await?;
    let parts = answers::in_pieces(content, TEXT_BYTES).map(Ok);
    let text = as_text(b"{\"file\":\"", parts);
    Ok((JSON, answers::paced(text, held)).into_response())
}

/// The files as a gzip tar archive, for browsers.
#[utoipa::path(get, path = "/experiments/{experimentId}/model_def", operation_id = "DownloadModelDef",
    tag = "experiments", params(("experimentId" = i64, Path)),
    responses((status = 200, description = "the archive", content_type = "application/gzip")))]
async fn download_model_def(
    Caller(master, actor): Caller,
    PathId(id): PathId<ExperimentId>,
) -> Answer {
    let archive = Archive::open(&master.sources.archives, &actor, id).await?;
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
    let name = file_name(query.path.rsplit('/').next().unwrap_or_default());
    let (content, held) = files::content(&master.sources.archives, &actor, id, &query.path).await?;
    let bytes = content.len();
    let pieces = answers::in_pieces(content, TEXT_BYTES).map(|piece| Ok(Bytes::from(piece)));
    // Never as what it claims to be: a file of a user's must not run as a page of ours.
    let mut response = attachment(
        &name,
        "application/octet-stream",
        answers::paced(pieces, held),
    );
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, bytes.into());
    Ok(response)
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

/// The text of a [`GetModelDefTreeResponse`], made while it is sent.
struct TreeText {
    /// `None` = all of it is made.
    walk: Option<Walk>,
    /// What is made and not sent.
    text: Vec<u8>,
    /// The byte before that.
    last: u8,
}

impl TreeText {
    fn new(walk: Walk) -> Self {
        Self {
            walk: Some(walk),
            text: b"{\"files\":[".to_vec(),
            last: b'[',
        }
    }

    fn add(&mut self, step: Step<'_>) -> AppResult<()> {
        let (shown, is_dir) = match step {
            Step::Close => {
                self.text.extend_from_slice(END);
                return Ok(());
            }
            Step::Open(shown) => (shown, true),
            Step::File(shown) => (shown, false),
        };
        if *self.text.last().unwrap_or(&self.last) != b'[' {
            self.text.push(b',');
        }
        let node = wire::encode(&node(shown, is_dir)).map_err(AppError::internal)?;
        self.text.extend_from_slice(&node);
        if is_dir {
            // What the directory holds comes between.
            self.text.truncate(self.text.len() - END.len());
        }
        Ok(())
    }

    fn piece(&mut self, walk: &mut Walk) -> AppResult<bool> {
        while self.text.len() < TREE_BYTES {
            let mut added = Ok(());
            let more = walk.go_on(|step| {
                if added.is_ok() {
                    added = self.add(step);
                }
            });
            added?;
            if !more {
                self.text.extend_from_slice(END);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// How a directory ends, and the whole: with the list of what it holds.
const END: &[u8] = b"]}";

impl Iterator for TreeText {
    type Item = AppResult<Bytes>;

    fn next(&mut self) -> Option<AppResult<Bytes>> {
        let mut walk = self.walk.take()?;
        match self.piece(&mut walk) {
            Ok(true) => self.walk = Some(walk),
            Ok(false) => {}
            Err(error) => return Some(Err(error)),
        }
        let text = std::mem::take(&mut self.text);
        self.last = text.last().copied().unwrap_or(self.last);
        Some(Ok(text.into()))
    }
}

/// A file, or a directory without what it holds, as clients see it.
fn node(shown: ShownNode<'_>, is_dir: bool) -> FileNode {
    FileNode {
        path: shown.path.to_owned(),
        name: shown.name.to_owned(),
        modified_time: shown
            .modified
            .map(|seconds| Timestamp(seconds.saturating_mul(1_000_000))),
        content_length: shown.size,
        is_dir,
        content_type: if is_dir {
            String::new()
        } else {
            content_type(shown.name).to_owned()
        },
        files: Vec::new(),
    }
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
    use crate::app::reads::model_definition::PART_BYTES;
    use crate::app::reads::model_definition::tree::Tree;

    #[test]
    fn files_are_shown_with_their_media_type_and_directories_without() {
        let shown = ShownNode {
            path: "sub/a.json",
            name: "a.json",
            modified: Some(7),
            size: 2,
        };
        let json = node(shown, false);
        assert_eq!(json.content_type, "application/json");
        assert_eq!(json.modified_time, Some(Timestamp(7_000_000)));
        assert_eq!((json.is_dir, json.content_length), (false, 2));
        let directory = node(shown, true);
        assert_eq!(
            (directory.is_dir, directory.content_type.as_str()),
            (true, "")
        );
    }

    #[test]
    fn the_text_of_a_tree_is_that_of_its_message() {
        let many = (0..2_000).map(|n| format!("a/{n}/\"x\""));
        let walk = || Tree::of(many.clone().chain(["a/".into(), "b/".into(), "c".into()])).walk();
        let mut text = Vec::new();
        let mut pieces = 0;
        for piece in TreeText::new(walk()) {
            text.extend_from_slice(&piece.unwrap());
            pieces += 1;
        }
        assert!(pieces > 3, "{pieces}");
        let message: GetModelDefTreeResponse = serde_json::from_slice(&text).unwrap();
        assert_eq!(wire::encode(&message).unwrap(), text);
        let names: Vec<&str> = message.files.iter().map(|file| &*file.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(message.files[0].files.len(), 2_000);
        assert_eq!(message.files[0].files[9].files[0].name, "\"x\"");
        let mut of_nothing = TreeText::new(Tree::of([]).walk());
        let text = of_nothing.next().unwrap().unwrap();
        assert_eq!(
            &text[..],
            wire::encode(&GetModelDefTreeResponse::default()).unwrap()
        );
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
