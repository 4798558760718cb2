//! The tokens that a request brings.

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, header};

fn bearer(value: &str) -> Option<String> {
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim().to_owned())
}

/// The token in the `Authorization` header.
pub(crate) fn header_token(headers: &HeaderMap) -> Option<String> {
    headers
        .get(AUTHORIZATION)
        .and_then(|v| v.to_str().ok())
        .and_then(bearer)
}

/// The token of a person's session: header, else cookie.
pub fn session_token(headers: &HeaderMap) -> Option<String> {
    if let Some(token) = header_token(headers) {
        return Some(token);
    }
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(';'))
        .find_map(|pair| pair.trim().strip_prefix("auth=").map(str::to_owned))
}

/// The token of a task.
pub fn allocation_token(headers: &HeaderMap) -> Option<String> {
    headers
        .get("Grpc-Metadata-x-allocation-token")
        .and_then(|v| v.to_str().ok())
        .and_then(bearer)
}
