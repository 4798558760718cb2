//! HTTP: a file per resource. A handler extracts actor, path, query and body, calls one use case or reader, and turns the
//! result into a response. No decisions, no rights, and nothing of the store but its row types: what is shown comes from
//! `app::reads`, which asks for the actor's rights. `xtask` checks that, and that every handler hands on its actor, once.
//!
//! The wire dialect (lenient requests, full responses) is `det_api_types::wire`; the extractors here apply it.

pub(crate) mod answers;
pub mod bodies;
pub mod error;
pub mod extract;
pub mod respond;
pub mod routes;
pub mod tokens;

pub mod agents;
pub mod allocations;
pub mod auth;
pub mod checkpoints;
pub mod commands;
pub mod config_policies;
pub(crate) mod context_files;
pub(crate) mod cors;
pub mod events;
pub mod experiments;
pub mod generic_tasks;
pub mod jobs;
pub mod logs;
pub mod master;
pub mod memory;
pub mod metrics;
pub mod model_definition;
pub mod namespaces;
pub mod notebooks;
pub mod openapi;
pub(crate) mod origin;
pub mod page;
pub mod preview;
pub mod profiler;
pub mod projects;
pub(crate) mod proxy;
pub mod shells;
pub mod tasks;
pub mod templates;
pub mod tensorboards;
pub mod trials;
pub mod unmanaged;
pub mod users;
pub mod views;
pub mod workspaces;

mod unbuilt;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower::Layer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::normalize_path::{NormalizePath, NormalizePathLayer};

use crate::app::Master;
use crate::error::{AppError, ErrorKind};
use crate::http::error::ApiError;
use crate::http::routes::Routes;

/// All routes with their descriptions: the source of `openapi/det.json`.
pub fn api() -> Routes {
    Routes::new()
        .merge(agents::routes())
        .merge(allocations::routes())
        .merge(auth::routes())
        .merge(checkpoints::routes())
        .merge(commands::routes())
        .merge(notebooks::routes())
        .merge(tensorboards::routes())
        .merge(shells::routes())
        .merge(config_policies::routes())
        .merge(events::routes())
        .merge(experiments::routes())
        .merge(generic_tasks::routes())
        .merge(jobs::routes())
        .merge(logs::routes())
        .merge(master::routes())
        .merge(memory::routes())
        .merge(metrics::routes())
        .merge(profiler::routes())
        .merge(model_definition::routes())
        .merge(preview::routes())
        .merge(projects::routes())
        .merge(tasks::routes())
        .merge(templates::routes())
        .merge(trials::routes())
        .merge(unmanaged::routes())
        .merge(users::routes())
        .merge(workspaces::routes())
        .merge(namespaces::routes())
}

/// The whole service: the API, where a trailing slash of a path makes no difference, the routes of resource managers'
/// drivers, and the services of tasks, whose requests and answers pass as they are.
pub fn service(master: Master, drivers: Router) -> Router {
    let api: NormalizePath<Router> =
        NormalizePathLayer::trim_trailing_slash().layer(router(master.clone(), drivers));
    Router::new()
        .route(proxy::PATH, axum::routing::any(proxy::handle))
        .layer(axum::middleware::from_fn_with_state(
            master.clone(),
            while_held,
        ))
        .layer(axum::middleware::from_fn_with_state(
            origin::OriginCheck::new(master.context.clone(), master.loopback),
            origin::check,
        ))
        .layer(CatchPanicLayer::custom(error::on_panic))
        .with_state(master.clone())
        .fallback_service(api)
        .layer(axum::middleware::from_fn_with_state(
            master,
            proxy::host::apart,
        ))
}

/// All routes with what applies to every request.
fn router(master: Master, drivers: Router) -> Router {
    api()
        .into_router()
        .merge(openapi::routes())
        .route("/", axum::routing::get(page::front))
        .route(
            page::login::PATH,
            axum::routing::get(page::login::show).post(page::login::submit),
        )
        .route(
            page::interactive::PATH,
            axum::routing::get(page::interactive::show),
        )
        .route(
            page::interactive::OLDER_PATH,
            axum::routing::get(page::interactive::show),
        )
        .merge(drivers.with_state(()))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(axum::middleware::from_fn(unbuilt::refuse_hidden))
        .layer(axum::middleware::from_fn_with_state(
            master.clone(),
            bodies::bound,
        ))
        .layer(axum::middleware::from_fn(respond::pretty))
        .layer(axum::middleware::from_fn(extract::readable_address))
        .layer(axum::middleware::from_fn_with_state(
            master.clone(),
            answers::bound,
        ))
        .layer(axum::middleware::from_fn_with_state(
            master.clone(),
            while_held,
        ))
        .layer(CompressionLayer::new().gzip(true))
        .layer(axum::middleware::from_fn_with_state(
            master.clone(),
            cors::let_in,
        ))
        .layer(axum::middleware::from_fn_with_state(
            origin::OriginCheck::new(master.context.clone(), master.loopback),
            origin::check,
        ))
        .layer(CatchPanicLayer::custom(error::on_panic))
        .with_state(master)
}

/// Nothing is answered, from memory neither, while the database is not this master's: another one may have changed it.
async fn while_held(State(master): State<Master>, request: Request, next: Next) -> Response {
    match master.context.store.check() {
        Err(error) if request.uri().path() != "/health" => ApiError::from(error).into_response(),
        _ => next.run(request).await,
    }
}

/// Operations that are not built, and paths that are not ours. Clients read 404 as "no such object", so an operation of
/// the API that is not there answers 501.
async fn unknown(method: Method, uri: Uri) -> Response {
    let path = uri.path();
    let error = match det_api_types::operation::by_request(method.as_str(), path) {
        Some(operation) => unbuilt::operation(operation, path),
        None if path.starts_with("/api/") => AppError::new(
            ErrorKind::NotBuilt,
            format!("{method} {path} is not an operation of this API"),
        ),
        None => match unbuilt::outside_the_api(path) {
            Some(what) => AppError::new(
                ErrorKind::NotBuilt,
                format!("{what} ({method} {path}) is not built in this version"),
            ),
            None => AppError::new(
                ErrorKind::NotFound,
                format!("{method} {path}: there is nothing at this address"),
            )
            .hint("the API is below /api/v1; \"/\" explains how to use this master"),
        },
    };
    ApiError(error).into_response()
}
