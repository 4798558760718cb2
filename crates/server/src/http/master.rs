//! The master itself: who it is, how it is, what it is configured with, what it logs.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use det_api_types::logs::{LogEntry, LogLevel, MasterLogsQuery, MasterLogsResponse};
use det_api_types::master::{
    BackgroundHealth, ClusterMessage, ConfigChange, ConfigOrigin, GetMasterConfigOriginsResponse,
    GetMasterConfigResponse, GetMasterResponse, GetTelemetryResponse, HealthCheck, HealthStatus,
    Info, InfoTelemetry, PatchMasterConfigRequest, ReloadMasterConfigRequest,
    ReloadMasterConfigResponse, ResourceManagerHealth,
};
use det_api_types::page::Empty;
use det_api_types::wire::{self, Object, Timestamp};
use det_config::ConfigWarning;
use det_config::explain::ExplainedKey;
use det_config::master::Change;
use serde::Serialize;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use crate::app::reads::master_log::Entries;
use crate::app::reload::{LogPatch, Mode, ReloadCaller};
use crate::app::{API_VERSION, Master, reads};
use crate::error::{AppError, AppResult};
use crate::http::extract::{Caller, StreamStart, WireBody, WireQuery};
use crate::http::respond::{Answer, StreamAnswer, empty, line, message, stream};
use crate::http::routes::{Routes, routes};
use crate::http::views;
use crate::master_log::Entry;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(info))
        .routes(routes!(health))
        .routes(routes!(get_master))
        .routes(routes!(get_master_config, patch_master_config))
        .routes(routes!(get_master_config_origins))
        .routes(routes!(reload_master_config))
        .routes(routes!(master_logs))
        .routes(routes!(get_telemetry))
        .routes(routes!(get_cluster_message))
}

/// Who the master is. The first call of every client command: answered from memory, without a token.
#[utoipa::path(get, path = "/info", operation_id = "Info", tag = "master", security(()),
    responses((status = 200, body = Info)))]
async fn info(State(master): State<Master>) -> Answer {
    let identity = reads::master::identity(&master.sources.master);
    message(&Info {
        version: API_VERSION.into(),
        master_id: identity.master_id.into(),
        cluster_id: identity.cluster_id,
        cluster_name: identity.cluster_name,
        telemetry: InfoTelemetry { enabled: false },
        sso_providers: None,
    })
}

/// Whether the parts of the master answer; 503 when one does not.
#[utoipa::path(get, path = "/health", operation_id = "health", tag = "master", security(()),
    responses((status = 200, body = HealthCheck), (status = 503, body = HealthCheck)))]
async fn health(State(master): State<Master>) -> Response {
    let health = reads::master::health(&master.sources.master).await;
    let status = |up: bool| {
        if up {
            HealthStatus::Up
        } else {
            HealthStatus::Down
        }
    };
    let whole = health.is_whole();
    let (managers, background) = (health.managers.into_iter(), health.background.into_iter());
    let check = HealthCheck {
        status: status(whole),
        database: status(health.database),
        resource_managers: managers
            .map(|(name, health)| ResourceManagerHealth {
                cluster_name: name.clone(),
                name,
                status: status(health.is_up()),
                reason: health.reason().map(str::to_owned),
            })
            .collect(),
        background: background
            .map(|(name, work)| BackgroundHealth {
                name: name.to_owned(),
                status: status(work.runs),
                restarts: work.restarts,
                last_panic: work.last_panic,
            })
            .collect(),
    };
    let code = if whole {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = wire::encode(&check).unwrap_or_default();
    (
        code,
        [(header::CONTENT_TYPE, "application/json")],
        Body::from(body),
    )
        .into_response()
}

/// What clients need to know of the master before they log in.
#[utoipa::path(get, path = "/api/v1/master", operation_id = "GetMaster", tag = "master", security(()),
    responses((status = 200, body = GetMasterResponse)))]
async fn get_master(State(master): State<Master>) -> Answer {
    let identity = reads::master::identity(&master.sources.master);
    message(&GetMasterResponse {
        version: API_VERSION.into(),
        master_id: identity.master_id.into(),
        cluster_id: identity.cluster_id,
        cluster_name: identity.cluster_name,
        branding: "determined".into(),
        user_management_enabled: true,
        feature_switches: identity.feature_switches,
        ..GetMasterResponse::default()
    })
}

/// The effective configuration with its secrets hidden. For administrators.
#[utoipa::path(get, path = "/api/v1/master/config", operation_id = "GetMasterConfig", tag = "master",
    responses((status = 200, body = GetMasterConfigResponse)))]
async fn get_master_config(Caller(master, actor): Caller) -> Answer {
    message(&GetMasterConfigResponse {
        config: Object(reads::master::config(&master.sources.master, &actor)?),
    })
}

/// Where every value of the effective configuration comes from, secrets hidden. For administrators; an addition of ours.
#[utoipa::path(get, path = "/api/v1/master/config/origins", operation_id = "GetMasterConfigOrigins", tag = "master",
    responses((status = 200, body = GetMasterConfigOriginsResponse)))]
async fn get_master_config_origins(Caller(master, actor): Caller) -> Answer {
    let origins = reads::master::origins(&master.sources.master, &actor)?;
    message(&GetMasterConfigOriginsResponse {
        origins: origins.iter().map(origin).collect(),
    })
}

/// Changes the level of the master's log until it starts again or reads its configuration again. For administrators.
#[utoipa::path(patch, path = "/api/v1/master/config", operation_id = "PatchMasterConfig", tag = "master",
    request_body = PatchMasterConfigRequest, responses((status = 200, body = Empty)))]
async fn patch_master_config(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<PatchMasterConfigRequest>,
) -> Answer {
    let log = body.config.log;
    let patch = LogPatch {
        paths: body.field_mask.paths,
        level: log.level.map(level_word),
        color: log.color,
    };
    master.reload.patch_log(&actor, patch).await?;
    empty()
}

/// A level as the configuration writes it.
fn level_word(level: LogLevel) -> AppResult<&'static str> {
    match level {
        LogLevel::Trace => Ok("trace"),
        LogLevel::Debug => Ok("debug"),
        LogLevel::Info => Ok("info"),
        LogLevel::Warning => Ok("warn"),
        LogLevel::Error => Ok("error"),
        LogLevel::Critical => Ok("fatal"),
        LogLevel::Unspecified => Err(AppError::invalid("log.level is not specified")),
    }
}

fn origin(key: &ExplainedKey) -> ConfigOrigin {
    ConfigOrigin {
        path: key.path.clone(),
        value: key.value.clone(),
        layer: key.origin.layer().kind().to_owned(),
        place: key.origin.to_string(),
    }
}

/// Reads files, environment and flags again as at the start, and takes on all that differs, or nothing: when something
/// of it needs a restart, or is an error, the answer is a refusal with every reason. For administrators; an addition of
/// ours.
#[utoipa::path(post, path = "/api/v1/master/reload", operation_id = "ReloadMasterConfig", tag = "master",
    request_body = ReloadMasterConfigRequest, responses((status = 200, body = ReloadMasterConfigResponse)))]
async fn reload_master_config(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<ReloadMasterConfigRequest>,
) -> Answer {
    let mode = if body.validate_only {
        Mode::Check
    } else {
        Mode::Apply
    };
    let reloaded = master
        .reload
        .take_on(ReloadCaller::User(&actor), mode)
        .await?;
    message(&ReloadMasterConfigResponse {
        changes: reloaded.changes.into_iter().map(change).collect(),
        warnings: reloaded
            .warnings
            .iter()
            .map(ConfigWarning::for_log)
            .collect(),
    })
}

fn change(change: Change) -> ConfigChange {
    ConfigChange {
        path: change.path,
        from: change.from,
        to: change.to,
        acts: change.acts,
    }
}

/// Whether usage is reported to a third party. It is not.
#[utoipa::path(get, path = "/api/v1/master/telemetry", operation_id = "GetTelemetry", tag = "master", security(()),
    responses((status = 200, body = GetTelemetryResponse)))]
async fn get_telemetry() -> Answer {
    message(&GetTelemetryResponse::default())
}

/// Answer of `GetClusterMessage`.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct GetClusterMessageResponse {
    /// The message; `None` = there is none.
    cluster_message: Option<ClusterMessage>,
}

/// The administrators' message to all users. Setting one is not built, so there is none.
#[utoipa::path(get, path = "/api/v1/master/cluster_message", operation_id = "GetClusterMessage", tag = "master",
    responses((status = 200, body = GetClusterMessageResponse)))]
async fn get_cluster_message(Caller(_master, actor): Caller) -> Answer {
    reads::master::cluster_message(&actor)?;
    message(&GetClusterMessageResponse::default())
}

/// The master's own recent log. The whole, with names of users and addresses of machines in it, is for administrators; other
/// users get the lines that concern experiments, trials and their tasks: clients put them into a trial's support bundle.
#[utoipa::path(get, path = "/api/v1/master/logs", operation_id = "MasterLogs", tag = "master",
    params(MasterLogsQuery), responses((status = 200, body = MasterLogsResponse, content_type = "application/json")))]
async fn master_logs(
    Caller(master, actor): Caller,
    streaming: StreamStart,
    WireQuery(query): WireQuery<MasterLogsQuery>,
) -> StreamAnswer {
    let entries = Entries::open(&master.sources.master, &actor, &query).await?;
    let (out, messages) = mpsc::channel(16);
    // Ends when the log has been sent, or when the stream is dropped.
    tokio::spawn(send_log(entries, out));
    Ok(stream(messages, streaming).await)
}

async fn send_log(mut entries: Entries, out: mpsc::Sender<AppResult<Bytes>>) {
    loop {
        let next = tokio::select! {
            next = entries.next() => next,
            () = out.closed() => return,
        };
        if next.is_empty() {
            return;
        }
        for entry in next {
            let encoded = line(&MasterLogsResponse {
                log_entry: log_entry(entry),
            });
            if out.send(encoded).await.is_err() {
                return;
            }
        }
    }
}

fn log_entry(entry: Entry) -> LogEntry {
    LogEntry {
        id: entry.id.0,
        message: entry.message,
        timestamp: Timestamp(entry.at),
        level: views::logs::level(Some(entry.level)),
    }
}
