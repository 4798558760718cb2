//! The description of the API, made from its routes.

use std::sync::LazyLock;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use det_api_types::agents::AgentSortBy;
use det_api_types::checkpoints::CheckpointSortBy;
use det_api_types::experiments::{ExperimentSortBy, Int32FieldFilter};
use det_api_types::launches::LaunchSortBy;
use det_api_types::page::{Empty, OrderBy};
use det_api_types::profiler::{ProfilerMetricType, ProfilerSeriesFilter};
use det_api_types::templates::TemplateSortBy;
use det_api_types::trials::{TrialSortBy, WorkloadFilter};
use det_api_types::users::UserSortBy;
use det_api_types::workspaces::{ProjectSortBy, WorkspaceSortBy};
use serde_json::Value;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, Info, OpenApi, SecurityRequirement};
use utoipa::{PartialSchema, ToSchema};

use crate::app::{API_VERSION, Master};

/// Where the description is served.
pub const PATH: &str = "/api/v1/api.swagger.json";

/// Routes of this file.
pub fn routes() -> Router<Master> {
    Router::new().route(PATH, get(serve))
}

async fn serve() -> impl IntoResponse {
    // Made once: it contains nothing of this master's state.
    static TEXT: LazyLock<String> = LazyLock::new(text);
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str())
}

/// The description of all routes.
pub fn document() -> OpenApi {
    let mut document = super::api().document();
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
    add_types_of_queries(components);
    let scopes: [&str; 0] = [];
    document.security = Some(vec![
        SecurityRequirement::new("session", scopes),
        SecurityRequirement::new("task", scopes),
    ]);
    document
}

/// Types that only parameters of queries refer to: routes collect those of bodies by themselves, and not these.
fn add_types_of_queries(components: &mut Components) {
    macro_rules! add {
        ($($type:ty),+ $(,)?) => { $(
            components
                .schemas
                .insert(<$type>::name().into_owned(), <$type>::schema());
        )+ };
    }
    add!(
        AgentSortBy,
        CheckpointSortBy,
        ExperimentSortBy,
        Int32FieldFilter,
        OrderBy,
        ProjectSortBy,
        LaunchSortBy,
        ProfilerMetricType,
        ProfilerSeriesFilter,
        TemplateSortBy,
        TrialSortBy,
        UserSortBy,
        WorkloadFilter,
        WorkspaceSortBy,
    );
}

/// Declares that objects without named members may have any: free JSON is written as a bare `type: object`, of
/// which generators make an object that can have none. [`Empty`] is just that.
fn open_free_objects(value: &mut Value) {
    const NAMES: [&str; 5] = [
        "properties",
        "additionalProperties",
        "allOf",
        "oneOf",
        "anyOf",
    ];
    match value {
        Value::Object(entries) => {
            let is_object = entries.get("type").is_some_and(|kind| match kind {
                Value::Array(kinds) => kinds.iter().any(|kind| kind == "object"),
                kind => kind == "object",
            });
            if is_object && !NAMES.iter().any(|key| entries.contains_key(*key)) {
                entries.insert("additionalProperties".to_owned(), Value::Bool(true));
            }
            entries.values_mut().for_each(open_free_objects);
        }
        Value::Array(items) => items.iter_mut().for_each(open_free_objects),
        _ => {}
    }
}

/// Every answer needs a description, and those of one message have none of their own.
fn describe_answers(document: &mut Value) {
    let paths = document["paths"].as_object_mut();
    let operations = paths
        .into_iter()
        .flat_map(|paths| paths.values_mut())
        .filter_map(Value::as_object_mut)
        .flat_map(|path| path.values_mut());
    for operation in operations {
        let Some(answers) = operation["responses"].as_object_mut() else {
            continue;
        };
        for (status, answer) in answers {
            let text = match status.as_str() {
                "200" => "Done; the answer.",
                "503" => "Not able to serve; the state of each part.",
                _ => "The answer.",
            };
            if let Some(answer) = answer.as_object_mut() {
                let described = answer.entry("description").or_insert_with(|| "".into());
                if described == "" {
                    *described = text.into();
                }
            }
        }
    }
}

fn written() -> serde_json::Result<String> {
    let mut document = serde_json::to_value(document())?;
    let empty = Empty::name();
    let is_empty = document["components"]["schemas"][&*empty].clone();
    open_free_objects(&mut document);
    document["components"]["schemas"][&*empty] = is_empty;
    describe_answers(&mut document);
    serde_json::to_string_pretty(&document)
}

/// The description as it is committed and served: JSON with a line feed at the end.
pub fn text() -> String {
    let mut text = written().unwrap_or_else(|error| {
        // Descriptions are strings and numbers only; a failure would show in the test that compares them.
        tracing::error!(%error, "the description of the API cannot be written");
        "{}".to_owned()
    });
    text.push('\n');
    text
}
