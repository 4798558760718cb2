//! The master itself: identity, configuration, health.

use det_ids::ClusterId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::logs::LogLevel;
use crate::wire::{Object, Timestamp, wire_enum};

wire_enum! {
    /// Cloud offerings of the old product; there is none now.
    pub enum Product("PRODUCT_") {
        /// Not a cloud offering.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// The old community cloud.
        Community = 1 => "COMMUNITY",
    }
}

wire_enum! {
    /// Whether a part of the master works.
    pub enum HealthStatus("") {
        /// The part answers and does its work.
        #[default]
        Up = 0 => "up",
        /// The part does not answer, or does not do its work.
        Down = 1 => "down",
    }
}

/// Answer of `GetMaster`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "the form is the clients'")]
pub struct GetMasterResponse {
    /// Version of the API for clients; they compare it with their own.
    pub version: String,
    /// Identity of this master process.
    pub master_id: String,
    /// Identity of the cluster, as old as its store.
    #[schema(value_type = String)]
    pub cluster_id: ClusterId,
    /// Name of the cluster.
    pub cluster_name: String,
    /// Whether usage is reported to anyone.
    pub telemetry_enabled: bool,
    /// Where to log in instead of here; empty = here.
    pub external_login_uri: String,
    /// Where to log out; empty = here.
    pub external_logout_uri: String,
    /// Brand shown by user interfaces.
    pub branding: String,
    /// Whether role-based access control is on.
    pub rbac_enabled: bool,
    /// Cloud offering of the old product that this is; always `PRODUCT_UNSPECIFIED`.
    pub product: Product,
    /// Switches of user interfaces that the master's configuration names; a leading `-` turns one off.
    pub feature_switches: Vec<String>,
    /// Whether users are managed here.
    pub user_management_enabled: bool,
    /// Whether only administrators may change the job queue.
    pub strict_job_queue_control: bool,
    /// Message from the administrators, if one is up.
    pub cluster_message: Option<ClusterMessage>,
    /// Whether a custom logo is configured.
    pub has_custom_logo: bool,
    /// External identity providers that users can log in with.
    pub sso_providers: Vec<SsoProvider>,
}

/// Message from the administrators to all users.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterMessage {
    /// Text of the message, for all users.
    pub message: String,
    /// From when on the message is shown.
    pub start_time: Timestamp,
    /// Shown until then; `None` = until removed.
    pub end_time: Option<Timestamp>,
    /// When the message was written; `None` = not known.
    pub created_time: Option<Timestamp>,
}

/// An external identity provider.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SsoProvider {
    /// Name of the provider, as users read it.
    pub name: String,
    /// Address at which a login with this provider begins.
    pub sso_url: String,
    /// Protocol of the provider: `OIDC` or `SAML`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether user interfaces go there without asking.
    pub always_redirect: bool,
}

/// Answer of `GetTelemetry`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTelemetryResponse {
    /// Whether usage is reported to anyone.
    pub enabled: bool,
    /// Key of the receiving service; empty = none.
    pub segment_key: String,
}

/// Answer of `GetMasterConfig`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetMasterConfigResponse {
    /// The effective configuration, secrets masked.
    pub config: Object,
}

/// Request of `PatchMasterConfig`: changes that last until the master starts again or reads its configuration again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchMasterConfigRequest {
    /// The new values of the fields that `field_mask` names.
    pub config: PatchedConfig,
    /// Which of them count; without any path all do.
    pub field_mask: FieldMask,
}

/// Which fields a patch is about. The dialect also takes the paths as one text with commas.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FieldMask {
    /// Paths of the fields, names separated by dots: `log.level`; empty = all.
    pub paths: Vec<String>,
}

/// What of the configuration can be patched.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchedConfig {
    /// Settings of the master's own log.
    pub log: PatchedLog,
}

/// What of the master's log can be patched.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchedLog {
    /// Least important lines that are logged.
    pub level: Option<LogLevel>,
    /// Whether the log is coloured on a terminal.
    pub color: Option<bool>,
}

/// Answer of `GetMasterConfigOrigins`, an addition of ours.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetMasterConfigOriginsResponse {
    /// Every key with its value and its origin.
    pub origins: Vec<ConfigOrigin>,
}

/// A value of the master's configuration and where it comes from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigOrigin {
    /// The key, `resource_pools[0].pool_name`.
    pub path: String,
    /// The value that is in force, secrets masked.
    pub value: Value,
    /// `document` (a file), `variable`, `flag` or `default`.
    pub layer: String,
    /// The file with its line, the variable, the flag, or `default`.
    pub place: String,
}

/// Answer of `GetMasterMemory`, an addition of ours.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetMasterMemoryResponse {
    /// Bytes of the process that are in memory now; 0 = unknown.
    pub resident_bytes: i64,
    /// Most bytes of the process that were in memory since it started; 0 = unknown.
    pub peak_resident_bytes: i64,
    /// Number of threads of the master's process; 0 = unknown.
    pub threads: i64,
    /// Memory limits and use of requests, responses and streams.
    pub budgets: Vec<MemoryBudget>,
}

/// A budget of the master's memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryBudget {
    /// Its name, as in `docs/memory.md`.
    pub name: String,
    /// Bytes of the budget that are reserved now, by requests, answers or streams.
    pub used_bytes: i64,
    /// Most bytes that were in use at once since the master started.
    pub peak_bytes: i64,
    /// Bytes that all users together may have.
    pub limit_bytes: i64,
    /// Bytes that one user may have.
    pub share_bytes: i64,
    /// Requests that wait for others to release some.
    pub waiting: i64,
    /// Requests that were refused since the master started.
    pub refused: i64,
}

/// Request of `ReloadMasterConfig`, an addition of ours.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReloadMasterConfigRequest {
    /// Whether only to report what would change.
    pub validate_only: bool,
}

/// Answer of `ReloadMasterConfig`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReloadMasterConfigResponse {
    /// Every key whose value differs, in the order of the paths.
    pub changes: Vec<ConfigChange>,
    /// Warnings about the new configuration, which are not errors.
    pub warnings: Vec<String>,
}

/// A key of the master's configuration whose value differs; secrets are masked.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigChange {
    /// The key; pools are identified by name: `resource_pools[gpu].description`.
    pub path: String,
    /// What was in force; null = nothing.
    pub from: Value,
    /// What was read; null = nothing.
    pub to: Value,
    /// Whether the master goes by it; otherwise it is only kept.
    pub acts: bool,
}

/// Answer of `GET /info`, the first call of every client command. Snake case names, unlike the rest.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Info {
    /// Version of the API for clients; must be a version number they can parse.
    pub version: String,
    /// Identity of this master process.
    pub master_id: String,
    /// Identity of the cluster, as old as its store.
    #[schema(value_type = String)]
    pub cluster_id: ClusterId,
    /// Name of the cluster, as the master's configuration gives it; empty = none.
    pub cluster_name: String,
    /// Whether usage is reported to anyone, in the form that older clients read.
    pub telemetry: InfoTelemetry,
    /// External identity providers; `None` without any.
    pub sso_providers: Option<Vec<InfoSsoProvider>>,
}

/// Telemetry in [`Info`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct InfoTelemetry {
    /// Whether usage is reported to anyone.
    pub enabled: bool,
}

/// An external identity provider in [`Info`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct InfoSsoProvider {
    /// Name of the provider, as users read it.
    pub name: String,
    /// Address at which a login with this provider begins.
    pub sso_url: String,
    /// Protocol of the provider: `OIDC` or `SAML`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether user interfaces go there without asking.
    pub always_redirect: bool,
}

/// Answer of `GET /health`; status 503 when `status` is `down`. Snake case names.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct HealthCheck {
    /// `up` where the database and all background work are up; resource managers do not count.
    pub status: HealthStatus,
    /// The connection to the database.
    pub database: HealthStatus,
    /// Health of each resource manager.
    pub resource_managers: Vec<ResourceManagerHealth>,
    /// Each work that goes on by itself, such as scheduling.
    pub background: Vec<BackgroundHealth>,
}

/// Health of a work that goes on by itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BackgroundHealth {
    /// Name of the background task.
    pub name: String,
    /// Whether it runs; it is down while it waits to be started again after a panic.
    pub status: HealthStatus,
    /// How often it was started again since the master started.
    pub restarts: u64,
    /// The message of its last panic; `None` = there was none.
    pub last_panic: Option<String>,
}

/// Health of one resource manager.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ResourceManagerHealth {
    /// Name of the resource manager, as in the master's configuration.
    pub name: String,
    /// Its name again, under the key that generated clients read.
    pub cluster_name: String,
    /// Whether it can start containers.
    pub status: HealthStatus,
    /// What is wrong with it, a sentence; left out where nothing is. An addition of ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
