//! The master itself: who it is, how it is, what it is configured with, what it logs.

use axum::body::Body;
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
use det_authz::{Kind, Permission};
use det_config::ConfigWarning;
use det_config::explain::ExplainedKey;
use det_config::master::Change;
use det_ids::TrialId;
use det_rm::Health;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::reads::master_log::Selection;
use crate::app::reload::{Asking, Mode};
use crate::app::{API_VERSION, Master, reads};
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::error::before_stream;
use crate::http::extract::{Caller, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, line, message, stream};
use crate::hub::Topic;
use crate::master_log::{CAPACITY, Entry};

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new()
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
    message(&Info {
        version: API_VERSION.into(),
        master_id: master.identity.master_id.clone(),
        cluster_id: master.identity.cluster_id.clone(),
        cluster_name: master.context.config().cluster_name.clone(),
        telemetry: InfoTelemetry { enabled: false },
        sso_providers: None,
    })
}

/// Whether the parts of the master answer; 503 when one does not.
#[utoipa::path(get, path = "/health", operation_id = "health", tag = "master", security(()),
    responses((status = 200, body = HealthCheck), (status = 503, body = HealthCheck)))]
async fn health(State(master): State<Master>) -> Response {
    let (status, database) = match reads::health::database(&master.context.store).await {
        Ok(()) => (StatusCode::OK, HealthStatus::Up),
        Err(error) => {
            tracing::warn!(%error, cause = ?std::error::Error::source(&error), "the database does not answer");
            (StatusCode::SERVICE_UNAVAILABLE, HealthStatus::Down)
        }
    };
    let background: Vec<BackgroundHealth> = master
        .background
        .list()
        .into_iter()
        .map(|(name, work)| BackgroundHealth {
            name: name.to_owned(),
            status: if work.runs {
                HealthStatus::Up
            } else {
                HealthStatus::Down
            },
            restarts: work.restarts,
            last_panic: work.last_panic,
        })
        .collect();
    let works = background
        .iter()
        .all(|work| work.status == HealthStatus::Up);
    let (status, whole) = if works {
        (status, database)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, HealthStatus::Down)
    };
    // A manager that serves is a part of this process and needs nothing but the database. One that is not built is no
    // failure of the master: only its own line says that it is down.
    let managers = master.pools.managers();
    let resource_managers = managers
        .iter()
        .map(|manager| {
            let name = match manager.name.as_str() {
                "" => "agents",
                name => name,
            };
            ResourceManagerHealth {
                cluster_name: name.to_owned(),
                name: name.to_owned(),
                status: match manager.health {
                    Health::Serving => database,
                    Health::NotBuilt => HealthStatus::Down,
                },
            }
        })
        .collect();
    let check = HealthCheck {
        status: whole,
        database,
        resource_managers,
        background,
    };
    let body = wire::encode(&check).unwrap_or_default();
    (
        status,
        [(header::CONTENT_TYPE, "application/json")],
        Body::from(body),
    )
        .into_response()
}

/// What clients need to know of the master before they log in.
#[utoipa::path(get, path = "/api/v1/master", operation_id = "GetMaster", tag = "master", security(()),
    responses((status = 200, body = GetMasterResponse)))]
async fn get_master(State(master): State<Master>) -> Answer {
    message(&GetMasterResponse {
        version: API_VERSION.into(),
        master_id: master.identity.master_id.clone(),
        cluster_id: master.identity.cluster_id.clone(),
        cluster_name: master.context.config().cluster_name.clone(),
        branding: "determined".into(),
        user_management_enabled: true,
        feature_switches: master.context.config().feature_switches.clone(),
        ..GetMasterResponse::default()
    })
}

/// The effective configuration with its secrets hidden. For administrators.
#[utoipa::path(get, path = "/api/v1/master/config", operation_id = "GetMasterConfig", tag = "master",
    responses((status = 200, body = GetMasterConfigResponse)))]
async fn get_master_config(Caller(master, actor): Caller) -> Answer {
    actor.require(
        Permission::Read,
        Kind::MasterConfig,
        "read the master's configuration",
    )?;
    let Value::Object(config) = master.context.config().to_shown_json() else {
        return Err(AppError::internal(anyhow::anyhow!(
            "the master's configuration is not an object"
        ))
        .into());
    };
    message(&GetMasterConfigResponse {
        config: Object(config),
    })
}

/// Where every value of the effective configuration comes from, secrets hidden. For administrators; an addition of ours.
#[utoipa::path(get, path = "/api/v1/master/config/origins", operation_id = "GetMasterConfigOrigins", tag = "master",
    responses((status = 200, body = GetMasterConfigOriginsResponse)))]
async fn get_master_config_origins(Caller(master, actor): Caller) -> Answer {
    actor.require(
        Permission::Read,
        Kind::MasterConfig,
        "read the master's configuration",
    )?;
    message(&GetMasterConfigOriginsResponse {
        origins: master
            .context
            .in_force
            .origins()
            .iter()
            .map(origin)
            .collect(),
    })
}

/// Changes the level of the master's log until it starts again or reads its configuration again. For administrators.
#[utoipa::path(patch, path = "/api/v1/master/config", operation_id = "PatchMasterConfig", tag = "master",
    request_body = PatchMasterConfigRequest, responses((status = 200, body = Empty)))]
async fn patch_master_config(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<PatchMasterConfigRequest>,
) -> Answer {
    actor.require(
        Permission::Administer,
        Kind::MasterConfig,
        "change the master's configuration",
    )?;
    let paths = body.field_mask.paths;
    check_mask(&paths)?;
    let counts = |key: &str| paths.is_empty() || paths.iter().any(|p| p == "log" || p == key);
    let log = body.config.log;
    if let Some(color) = log.color.filter(|_| counts("log.color"))
        && color != master.context.config().log.color
    {
        return Err(AppError::precondition(
            "log.color cannot change while the master runs: the form of the log is chosen at start",
        )
        .hint("set it in the configuration and start the master again")
        .into());
    }
    match log.level.filter(|_| counts("log.level")) {
        Some(level) => {
            master
                .reload
                .set_log_level(&actor, level_word(level)?)
                .await?;
        }
        None if log.color.is_none() => {
            return Err(AppError::invalid("there is nothing to change: give log.level").into());
        }
        None => {}
    }
    empty()
}

/// Refuses paths that cannot be patched.
fn check_mask(paths: &[String]) -> AppResult<()> {
    let known = ["log", "log.level", "log.color"];
    match paths.iter().find(|path| !known.contains(&path.as_str())) {
        Some(other) => Err(AppError::invalid(format!(
            "\"{}\" cannot be patched; what can is log.level",
            other.escape_debug()
        ))
        .hint("change the configuration's files and use: det master reload")),
        None => Ok(()),
    }
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
    let reloaded = master.reload.take_on(Asking::Person(&actor), mode).await?;
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

/// Whether usage is reported to anybody. It is not.
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
    actor.require(
        Permission::Read,
        Kind::Cluster,
        "read the cluster's message",
    )?;
    message(&GetClusterMessageResponse::default())
}

/// The master's own recent log. The whole, with names of users and addresses of machines in it, is for administrators; other
/// people get the lines that concern experiments, trials and their tasks: clients put them into a trial's support bundle.
#[utoipa::path(get, path = "/api/v1/master/logs", operation_id = "MasterLogs", tag = "master",
    params(MasterLogsQuery), responses((status = 200, body = MasterLogsResponse, content_type = "application/json")))]
async fn master_logs(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<MasterLogsQuery>,
) -> Response {
    let trial = Some(query.trial_id).filter(|id| *id != 0).map(TrialId);
    let selection = match Selection::of(&master.context.store, &actor, trial).await {
        Ok(selection) => selection,
        Err(refused) => return before_stream(refused),
    };
    if query.follow && query.limit > 0 {
        return before_stream(AppError::new(
            ErrorKind::Invalid,
            "a followed log has no limit: leave out \"limit\" or \"follow\"",
        ));
    }
    let (out, messages) = mpsc::channel(16);
    let shutdown = master.context.shutdown.clone();
    // Ends when the log has been sent, or when the stream is dropped.
    tokio::spawn(send_log(master, query, selection, out));
    stream(messages, shutdown).await
}

async fn send_log(
    master: Master,
    query: MasterLogsQuery,
    selection: Selection,
    out: mpsc::Sender<AppResult<axum::body::Bytes>>,
) {
    let mut changes = master.context.hub.subscribe(Topic::MasterLog);
    let mut next = if query.offset < 0 {
        let tail = usize::try_from(query.offset.unsigned_abs()).unwrap_or(CAPACITY);
        master
            .log
            .tail(tail)
            .first()
            .map_or(master.log.next_id(), |entry| entry.id)
    } else {
        query.offset
    };
    let mut left = usize::try_from(query.limit)
        .ok()
        .filter(|n| *n > 0)
        .unwrap_or(usize::MAX);
    loop {
        for entry in master.log.from(next) {
            if left == 0 {
                return;
            }
            next = entry.id + 1;
            if !selection.contains(&entry.about) {
                continue;
            }
            left -= 1;
            let encoded = line(&MasterLogsResponse {
                log_entry: log_entry(entry),
            });
            if out.send(encoded).await.is_err() {
                return;
            }
        }
        if !query.follow {
            return;
        }
        tokio::select! {
            () = changes.changed() => {}
            () = out.closed() => return,
        }
    }
}

fn log_entry(entry: Entry) -> LogEntry {
    LogEntry {
        id: entry.id,
        message: entry.message,
        timestamp: Timestamp(entry.at),
        level: LogLevel::from_name(entry.level).unwrap_or_default(),
    }
}
