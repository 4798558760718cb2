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
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use crate::app::reads::model_definition::Archive;
use crate::app::reads::model_definition::files::{self, Node};
use crate::error::AppResult;
use crate::http::answers;
use crate::http::extract::{Caller, PathId, WireBody, WireQuery};
use crate::http::respond::{Answer, message};
use crate::http::routes::{Routes, routes};

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
    let files = files::tree(&master.sources.archives, &actor, id).await?;
    message(&GetModelDefTreeResponse {
        files: files.into_iter().map(node).collect(),
    })
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
    let content = files::content(&master.sources.archives, &actor, id, &body.path).await?;
    message(&GetModelDefFileResponse {
        file: wire::Bytes(content),
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
    let content = files::content(&master.sources.archives, &actor, id, &query.path).await?;
    // Never as what it claims to be: a file of a user's must not run as a page of ours.
    Ok(attachment(
        &name,
        "application/octet-stream",
        content.into(),
    ))
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

/// A file or directory as clients see it.
fn node(node: Node) -> FileNode {
    let is_dir = node.size.is_none();
    FileNode {
        path: node.path,
        modified_time: node
            .modified
            .map(|seconds| Timestamp(seconds.saturating_mul(1_000_000))),
        content_length: node.size.unwrap_or(0),
        is_dir,
        content_type: if is_dir {
            String::new()
        } else {
            content_type(&node.name).to_owned()
        },
        name: node.name,
        files: node.files.into_iter().map(self::node).collect(),
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

    #[test]
    fn files_are_shown_with_their_media_type_and_directories_without() {
        let json = Node {
            path: "sub/a.json".into(),
            name: "a.json".into(),
            modified: Some(7),
            size: Some(2),
            files: Vec::new(),
        };
        let directory = Node {
            path: "sub".into(),
            name: "sub".into(),
            modified: None,
            size: None,
            files: vec![json],
        };
        let shown = node(directory);
        assert_eq!((shown.is_dir, shown.content_type.as_str()), (true, ""));
        let json = &shown.files[0];
        assert_eq!(json.content_type, "application/json");
        assert_eq!(json.modified_time, Some(Timestamp(7_000_000)));
        assert_eq!((json.is_dir, json.content_length), (false, 2));
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
