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

/// The token of a user's session: header, else cookie.
pub fn session_token(headers: &HeaderMap) -> Option<String> {
    if let Some(token) = header_token(headers) {
        return Some(token);
    }
    cookie(headers, SESSION_COOKIE).map(str::to_owned)
}

/// The cookie of a session.
pub(crate) const SESSION_COOKIE: &str = "auth";
/// The cookie with which a browser uses one service on the host of services.
pub(crate) const SERVICES_COOKIE: &str = "det-services";
/// The cookie that marks a browser which is on its way there.
pub(crate) const MARK_COOKIE: &str = "det-services-mark";

/// Whether a cookie of this name is the master's, and for no service. Browsers compare with case; services need not.
pub(crate) fn is_masters_cookie(name: &str) -> bool {
    let own = [SESSION_COOKIE, SERVICES_COOKIE, MARK_COOKIE];
    own.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// The values of the cookies of this name.
pub(crate) fn cookies<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(';'))
        .filter_map(move |pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// The value of the first cookie of this name.
pub(crate) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    cookies(headers, name).next()
}

/// The token of a task.
pub fn allocation_token(headers: &HeaderMap) -> Option<String> {
    headers
        .get("Grpc-Metadata-x-allocation-token")
        .and_then(|v| v.to_str().ok())
        .and_then(bearer)
}
