//! Operations that clients know and this version has not built: they answer 501, never 400 or 404.

use std::sync::LazyLock;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use det_api_types::operation::{OPERATIONS, Operation};

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
const HIDDEN: &[&str] = &["AssignMultipleGroups", "GetUserSetting"];

/// Answers 501 to the operations that a parameter of another route would catch.
pub(super) async fn refuse_hidden(request: Request, next: Next) -> Response {
    static OPERATIONS_HIDDEN: LazyLock<Vec<&'static Operation>> = LazyLock::new(|| {
        let is_hidden = |operation: &&Operation| HIDDEN.contains(&operation.name);
        OPERATIONS.iter().filter(is_hidden).collect()
    });
    let (method, path) = (request.method().as_str(), request.uri().path());
    let meant = OPERATIONS_HIDDEN
        .iter()
        .find(|operation| operation.method.as_str() == method && operation.matches_path(path));
    match meant {
        Some(operation) => ApiError(self::operation(operation, path)).into_response(),
        None => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_operation_that_a_parameter_of_a_route_would_catch_is_listed() {
        let document = crate::http::api().document();
        let names: HashSet<&str> = document
            .paths
            .paths
            .values()
            .flat_map(|path| [&path.delete, &path.get, &path.patch, &path.post, &path.put])
            .filter_map(|found| found.as_ref()?.operation_id.as_deref())
            .collect();
        let (built, unbuilt): (Vec<&Operation>, Vec<&Operation>) = OPERATIONS
            .iter()
            .partition(|operation| names.contains(operation.name));
        let is_caught = |hidden: &&Operation| {
            let path = hidden.path.replace(['{', '}'], "x");
            built
                .iter()
                .any(|other| other.method == hidden.method && other.matches_path(&path))
        };
        let caught = unbuilt.into_iter().filter(is_caught);
        let caught: Vec<&str> = caught.map(|operation| operation.name).collect();
        assert_eq!(HIDDEN, caught);
    }
}
