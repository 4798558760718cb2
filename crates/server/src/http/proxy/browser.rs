//! Which requests are those of a user at a browser.

use axum::http::header::ACCEPT;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};

/// Whether a user at a browser waits for a page.
pub(super) fn is_page(parts: &Parts) -> bool {
    is_page_request(&parts.method, &parts.headers)
}

/// The same, by method and headers.
pub(super) fn is_page_request(method: &Method, headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT).and_then(|v| v.to_str().ok());
    method == Method::GET && accepted.is_some_and(|accepted| accepted.contains("text/html"))
}
