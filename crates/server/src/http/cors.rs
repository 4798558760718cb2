//! Requests of browsers from pages of other origins (Fetch standard, "CORS protocol"), where `enable_cors` lets them in.

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN,
    VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::Master;

/// Seconds for which a browser need not ask again whether it may.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE, HEAD");
const ANY: HeaderValue = HeaderValue::from_static("*");

/// Answers preflights, and lets pages of any origin read the answers of other requests. Credentials are not allowed along:
/// a page must bring a token of its own, and can do nothing with the cookies of the user who looks at it.
pub(crate) async fn let_in(State(master): State<Master>, request: Request, next: Next) -> Response {
    if !master.context.config().enable_cors || !request.headers().contains_key(ORIGIN) {
        return next.run(request).await;
    }
    let mut response = if is_preflight(request.method(), request.headers()) {
        preflight(request.headers())
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, ANY);
    headers.append(VARY, HeaderValue::from_name(ORIGIN));
    response
}

fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    // A wildcard would leave "Authorization" out, so what was asked for is named.
    let wanted: Option<&HeaderValue> = asked.get(ACCESS_CONTROL_REQUEST_HEADERS);
    if let Some(wanted) = wanted {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    headers.append(VARY, HeaderValue::from_name(ACCESS_CONTROL_REQUEST_HEADERS));
    response
}
