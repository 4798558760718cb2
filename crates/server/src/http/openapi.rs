//! The description of the API, made from its routes.

use std::sync::LazyLock;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Info, OpenApi, SecurityRequirement};

use crate::app::{API_VERSION, Master};

/// Where the description is served.
pub const PATH: &str = "/api/v1/api.swagger.json";

/// Routes of this file.
pub fn routes() -> Router<Master> {
    Router::new().route(PATH, get(serve))
}

async fn serve() -> impl IntoResponse {
    // Made once: it says nothing of this master's state.
    static TEXT: LazyLock<String> = LazyLock::new(text);
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str())
}

/// The description of all routes.
pub fn document() -> OpenApi {
    let (_, mut document) = super::api().split_for_parts();
    let mut info = Info::new("Determined", API_VERSION);
    info.description = Some(
        "The HTTP API of the master. Times are RFC 3339 in UTC; absent and null mean the same."
            .into(),
    );
    document.info = info;
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(
        "session",
        SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build()),
    );
    components.add_security_scheme(
        "task",
        SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new(
            "Grpc-Metadata-x-allocation-token",
        ))),
    );
    let scopes: [&str; 0] = [];
    document.security = Some(vec![
        SecurityRequirement::new("session", scopes),
        SecurityRequirement::new("task", scopes),
    ]);
    document
}

/// The description as it is committed and served: JSON with a line feed at the end.
pub fn text() -> String {
    let mut text = document().to_pretty_json().unwrap_or_else(|error| {
        // Descriptions are strings and numbers only; a failure would show in the test that compares them.
        tracing::error!(%error, "the description of the API cannot be written");
        "{}".to_owned()
    });
    text.push('\n');
    text
}
