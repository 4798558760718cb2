//! Operations that clients know and this version has not built: they answer 501, never 400 or 404.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use det_api_types::operation::{OPERATIONS, Operation};
use utoipa::openapi::OpenApi;

use crate::error::{AppError, ErrorKind};
use crate::http::error::ApiError;

/// The refusal of an operation that is not built.
pub(super) fn operation(operation: &Operation, path: &str) -> AppError {
    AppError::new(
        ErrorKind::NotBuilt,
        format!(
            "operation {} ({} {path}) is not built in this version",
            operation.name, operation.method
        ),
    )
}

/// What clients expect at an address outside `/api/v1`, if it is one that this version has not built.
pub(super) fn outside_the_api(path: &str) -> Option<&'static str> {
    const PREFIXES: [(&str, &str); 6] = [
        ("/stream", "the feed of changes"),
        ("/resources/allocation", "the report of used resources"),
        ("/prom", "the figures for Prometheus"),
        ("/det", "the web interface"),
        ("/genai", "the interface of the GenAI studio"),
        ("/scim", "the interface of identity providers"),
    ];
    PREFIXES.iter().find_map(|(prefix, what)| {
        let rest = path.strip_prefix(prefix)?;
        (rest.is_empty() || rest.starts_with('/')).then_some(*what)
    })
}

/// The operations that are not built and whose address a built operation would take for its own, with a fixed segment
/// read as a parameter: `users/setting` as the user "setting".
pub(super) fn hidden_by_parameters(document: &OpenApi) -> Arc<[&'static Operation]> {
    let names: HashSet<&str> = document
        .paths
        .paths
        .values()
        .flat_map(|path| [&path.delete, &path.get, &path.patch, &path.post, &path.put])
        .filter_map(|found| found.as_ref()?.operation_id.as_deref())
        .collect();
    let (built, unbuilt): (Vec<&'static Operation>, Vec<&'static Operation>) = OPERATIONS
        .iter()
        .partition(|operation| names.contains(operation.name));
    unbuilt
        .into_iter()
        .filter(|hidden| {
            let path = hidden.path.replace(['{', '}'], "x");
            built
                .iter()
                .any(|other| other.method == hidden.method && other.matches_path(&path))
        })
        .collect()
}

/// Answers 501 to the operations that a parameter of another route would catch.
pub(super) async fn refuse_hidden(
    State(hidden): State<Arc<[&'static Operation]>>,
    request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().as_str(), request.uri().path());
    let meant = hidden
        .iter()
        .find(|operation| operation.method.as_str() == method && operation.matches_path(path));
    match meant {
        Some(operation) => ApiError(self::operation(operation, path)).into_response(),
        None => next.run(request).await,
    }
}
