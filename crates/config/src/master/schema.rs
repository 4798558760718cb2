//! The keys of the master; `docs/reference/master-configuration.md` is made from them.

mod kubernetes;
mod manager;
mod pools;
mod provider;
mod slot_type;
mod sso;
mod translate;

use std::time::Duration;

use crate::container::TaskContainerDefaults;
use crate::log::Log;
use crate::storage::CheckpointStorage;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::{Map, Value};

use super::Schedule;
use crate::container::schema::{NOT_EMPTY, SILENCE_TIMEOUT, TASK_CONTAINER_DEFAULTS};
use crate::errors::ErrorCode;
use crate::log::LOG;
use crate::quote::cut;
use crate::schema::{
    Document, Findings, Kind, NATURAL_32, PORT, REAL_PORT, Section, Special, Union, Walk, field,
    keys, section, special, text_by, union, variant,
};
use crate::storage::{ABSOLUTE_PATH, STORAGE};
use crate::yaml::{Node, Tree};

pub use kubernetes::{KubernetesManager, PodScheduler, SlotRequests, TaskExposure, TaskGateway};
pub use manager::{AdditionalManager, AgentManager, ManagerSettings, ResourceManager, Scheduler};
pub use pools::{Autoscaling, ResourcePool};
pub use provider::aws_slots;
pub use slot_type::SlotType;

const IGNORED: &str = "is ignored";
const NOT_REPORTED: &str = "is ignored; no usage is reported";

/// What a master's configuration is made of.
pub(crate) static DOCUMENT: Document = Document {
    root: &MASTER,
    places: PLACES,
    slots_key: "resources.slots_per_trial",
    translate: translate::translate,
};

/// Keys that users put in the wrong place.
const PLACES: &[(&str, &str)] = &[
    (".user", "db.user"),
    (".password", "db.password"),
    (".name", "cluster_name"),
    (".image", "task_container_defaults.image"),
    (
        ".environment_variables",
        "task_container_defaults.environment_variables",
    ),
    (".bind_mounts", "task_container_defaults.bind_mounts"),
    (".registry_auth", "task_container_defaults.registry_auth"),
    (".startup_hook", "task_container_defaults.startup_hook"),
    (".tls", "security.tls"),
    (".level", "log.level"),
    ("resource_manager.resource_pools", "resource_pools"),
];

keys! {
    /// Everything the master is configured with; every default is filled in.
    #[derive(Clone, PartialEq, Serialize, Deserialize)]
    pub struct MasterConfig, MASTER {
        /// Log of the master itself.
        log: Log = Kind::Section(&LOG), or("{}");
        /// Database; without one the embedded store in `data_dir`.
        db: Database = Kind::Section(&DB), or("{}");
        /// Seconds until an idle TensorBoard ends; 0 = never.
        tensorboard_timeout: u32 = NATURAL_32, or("300");
        /// Seconds until an idle notebook ends; without it never.
        notebook_timeout: Option<u32> = NATURAL_32;
        /// Who may log in and join, which identity tasks have, and TLS of the master.
        security: Security = Kind::Section(&SECURITY), or("{}");
        /// Checkpoint storage of experiments that name none.
        checkpoint_storage: Option<CheckpointStorage> = Kind::Union(&STORAGE);
        /// What tasks get unless they or their pool give their own.
        task_container_defaults: TaskContainerDefaults = Kind::Section(&TASK_CONTAINER_DEFAULTS), or("{}");
        /// Address that the master listens on; `0.0.0.0` = all of the machine's.
        host: String = Kind::Special(&NOT_EMPTY), or("\"0.0.0.0\"");
        /// Port to listen on; 0 = 8443 with TLS, 8080 without.
        port: u16 = PORT, or("0");
        /// Directory of the embedded store and of files.
        data_dir: Option<String> = Kind::Special(&NOT_EMPTY);
        /// Whether work larger than the cluster is refused at submit; otherwise it waits, with a reason.
        launch_error: bool = Kind::Bool, or("true");
        /// How long the code of an unmanaged trial may be silent before the trial counts as lost.
        #[serde(with = "crate::units::duration_text")]
        unmanaged_heartbeat_timeout: Duration = Kind::Duration, or("\"5m\"");
        /// How long a task that deletes checkpoints may run: then it is ended, and what it has not deleted stays.
        #[serde(with = "crate::units::duration_text")]
        checkpoint_removal_timeout: Duration = Kind::Duration, or("\"6h\"");
        /// Trials that one unmanaged experiment may have.
        max_unmanaged_trials_per_experiment: i64 = Kind::Int(1, i64::MAX), or("20000");
        /// Trials that the unmanaged experiments of one user may have together.
        max_unmanaged_trials_per_user: i64 = Kind::Int(1, i64::MAX), or("200000");
        /// How long a running trial may report nothing and write nothing into its log before its processes are looked at, and
        /// its log names the rank that hangs; `0s` = for ever.
        #[serde(with = "crate::units::duration_text")]
        silence_timeout: Duration = Kind::Special(&SILENCE_TIMEOUT), or("\"30m\"");
        /// Name of the cluster that users are shown.
        cluster_name: String = Kind::Text, or("\"\"");
        /// Whether other origins may call the API from a browser.
        enable_cors: bool = Kind::Bool, or("false");
        /// Switches; a leading `-` turns one off.
        feature_switches: Vec<String> = Kind::List(&Kind::Text), or("[]");
        /// Ports never given to traffic between containers.
        reserved_ports: Vec<u16> = Kind::List(&REAL_PORT), or("[]");
        /// How long logs of tasks are kept.
        retention_policy: Retention = Kind::Section(&RETENTION), or("{}");
        /// What is reported to whom.
        telemetry: Telemetry = Kind::Section(&TELEMETRY), or("{}");
        /// Whether the master gives metrics to a monitoring system.
        observability: Observability = Kind::Section(&OBSERVABILITY), or("{}");
        /// How webhooks are signed, and which address their links have.
        webhooks: Webhooks = Kind::Section(&WEBHOOKS), or("{}"), kept;
        /// The resource manager, which has containers run.
        resource_manager: ResourceManager = Kind::Union(&manager::RESOURCE_MANAGER), or("{}");
        /// Resource pools of `resource_manager`.
        resource_pools: Vec<ResourcePool> = pools::POOLS,
            or("[{\"pool_name\": \"default\"}]"), also("{\"type\": \"object\"}");
        /// Further managers with their pools.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        additional_resource_managers: Vec<AdditionalManager> = Kind::List(&Kind::Section(&pools::ADDITIONAL));
    }
    without field {
        /// The file that this was read from.
        config_file = Kind::Text, or("\"\"");
        /// Directory of static files and migrations, in old versions.
        root = Kind::Text, warn("is ignored; the web pages and migrations are part of the executable");
        /// Cache of model definitions on disk, in old versions.
        cache = Kind::Section(&CACHE), warn("is ignored; the master keeps no cache on disk");
        /// Looks of the web pages.
        ui_customization = Kind::Section(&UI_CUSTOMIZATION), kept;
        /// Where logs of tasks go.
        logging = Kind::Union(&LOGGING);
        /// Other systems whose addresses tasks receive.
        integrations = Kind::Section(&INTEGRATIONS);
        /// Users that an identity provider creates and changes, by SCIM.
        scim = Kind::Section(&sso::SCIM), kept;
        /// Single sign-on by SAML.
        saml = Kind::Section(&sso::SAML), kept;
        /// Single sign-on by OpenID Connect.
        oidc = Kind::Section(&sso::OIDC), kept;
        /// Keys of the hosted service: whether this is it, and where users log in.
        det_cloud = Kind::Section(&sso::DET_CLOUD), kept;
        /// Keys of the hosted service: its audit log, sessions and servers.
        __internal = Kind::Section(&sso::INTERNAL), kept;
        /// Key of old versions, without effect.
        hasura = Kind::Any, warn(IGNORED);
    }
    without key {
        /// Keys of what is not built yet, as given.
        #[serde(flatten)]
        kept: Map<String, Value>;
    }
    with old(&translate::OLD_KEYS).check(pools::document)
}

keys! {
    /// A PostgreSQL database: its address, or the parts of it.
    #[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Database, DB {
        /// Address of a PostgreSQL database, `postgres://…`, in place of its parts.
        url: Option<String> = Kind::Special(&POSTGRES_URL), secret;
        /// Account of the database server.
        user: Option<String> = Kind::Text;
        /// Password of that account.
        password: Option<String> = Kind::Text, secret;
        /// Host of the database server.
        host: Option<String> = Kind::Text;
        /// Port of the database server.
        port: u16 = Kind::Special(&TEXT_PORT), or("5432");
        /// Name of the database on that server.
        name: Option<String> = Kind::Text;
        /// How the connection is encrypted and verified, as libpq's `sslmode`.
        ssl_mode: String = Kind::Choice(&[ "disable", "allow", "prefer", "require", "verify-ca", "verify-full", ]),
            or("\"disable\"");
        /// File with the certificate authority; without one libpq's default.
        ssl_root_cert: Option<String> = Kind::Text;
    }
    without field {
        /// Migrations below `root`, in old versions.
        migrations = Kind::Text, warn(IGNORED);
        /// Views and triggers below `root`, in old versions.
        views_and_triggers = Kind::Text, warn(IGNORED);
    }
    with check(database)
}

keys! {
    /// Who may log in and join, which identity tasks have, and TLS of the master.
    #[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Security, SECURITY {
        /// Identity of tasks of users without a linked one.
        default_task: DefaultTask = Kind::Section(&DEFAULT_TASK), or("{}");
        /// TLS is on when both files are given.
        tls: TlsFiles = Kind::Section(&TLS), or("{}");
        /// Kind and size of the keys that are made for shells.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ssh: Option<Value> = Kind::Section(&SSH), kept;
        /// The model by which it is decided who may do what.
        authz: Authz = Kind::Section(&AUTHZ), or("{}");
        /// Password of `admin` and `determined` on the first start; without one both are blank.
        initial_user_password: String = Kind::Special(&STRONG_PASSWORD), or("\"\""), secret;
        /// How long access tokens live.
        token: TokenLifespan = Kind::Section(&TOKEN), or("{}"), kept;
        /// What an agent must present to join; without it one is made and kept in `data_dir`.
        agent_token: Option<String> = Kind::Text, secret;
        /// Names by which clients reach a master that listens on loopback, as behind a proxy on its machine, beside
        /// `localhost`, loopback addresses and the machine's own name; requests to other names are refused.
        #[serde(default)]
        host_names: Vec<String> = Kind::List(&Kind::Special(&NOT_EMPTY)), or("[]");
        /// Host, or host and port, under which browsers get the services of tasks, apart from the API: a name of this
        /// master that is used for nothing else. Without a port it is that of the request. Without this key services are
        /// shown to browsers under the name of the API.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        services_host: Option<String> = Kind::Special(&HOST);
        /// Directories of this host below which users' configurations may name checkpoint storage, beside the
        /// configured one.
        #[serde(default)]
        allowed_host_paths: Vec<String> = Kind::List(&Kind::Special(&ABSOLUTE_PATH)), or("[]");
    }
    with check(own_services_host)
}

keys! {
    /// Unix user and group of the tasks of users who have no linked ones.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct DefaultTask, DEFAULT_TASK {
        /// Unix name of the user that tasks run as.
        user: String = Kind::Special(&NOT_EMPTY), or("\"root\"");
        /// Numeric id of that user.
        uid: u32 = NATURAL_32, or("0");
        /// Unix name of the group that tasks run as.
        group: String = Kind::Special(&NOT_EMPTY), or("\"root\"");
        /// Numeric id of that group.
        gid: u32 = NATURAL_32, or("0");
    }
}

keys! {
    /// Files of a TLS server; both or neither.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct TlsFiles, TLS {
        /// File with the certificate chain.
        cert: String = Kind::Text, or("\"\"");
        /// File with the private key.
        key: String = Kind::Text, or("\"\"");
    }
    with check(tls_pair)
}

static SSH: Section = section(&[
    field(
        "key_type",
        Kind::Choice(&["RSA", "ECDSA", "ED25519"]),
        "Kind of key",
    )
    .or("\"ED25519\""),
    field(
        "rsa_key_size",
        Kind::Int(0, 16_384),
        "Bits of an RSA key, at least 2048; 0 = 3072",
    )
    .or("0"),
])
.check(ssh_keys);

const MODEL: Kind = Kind::Choice(&["basic", "rbac"]);

keys! {
    /// The model by which it is decided who may do what.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Authz, AUTHZ {
        /// Model of authorisation, `basic` or `rbac`.
        #[serde(rename = "type")]
        kind as "type": String = MODEL, or("\"basic\""), kept;
        /// Model when `type` is not known.
        fallback: String = MODEL, or("\"basic\""), kept;
    }
    without field {
        /// Whether the web pages show roles.
        rbac_ui_enabled = Kind::Bool, kept;
        /// Role that the creator of a workspace gets.
        workspace_creator_assign_role = Kind::Section(&CREATOR_ROLE), kept;
        /// Whether moving jobs needs a permission of its own.
        strict_job_queue_control = Kind::Bool, or("false"), kept;
        /// Key of old versions, without effect.
        _strict_ntsc_enabled = Kind::Any, warn(IGNORED);
    }
    without key {
        /// The other keys, as given.
        #[serde(flatten)]
        kept: Map<String, Value>;
    }
}

static CREATOR_ROLE: Section = section(&[
    field("enabled", Kind::Bool, "Whether the creator gets one").or("true"),
    field("role_id", Kind::Int(1, i64::MAX), "Number of the role").or("2"),
]);

keys! {
    /// How long access tokens live, in days; -1 = as long as can be.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub struct TokenLifespan, TOKEN {
        /// Days unless asked otherwise; -1 = as long as can be.
        default_lifespan_days: i32 = Kind::Int(-1, 106_751), or("30");
        /// Days at most; -1 = as long as can be.
        max_lifespan_days: i32 = Kind::Int(-1, 106_751), or("-1");
    }
    with check(lifespans)
}

static CACHE: Section = section(&[field(
    "cache_dir",
    Kind::Text,
    "Directory of that cache, in old versions",
)
.built_in("\"/var/cache/determined\"")]);

static UI_CUSTOMIZATION: Section = section(&[field(
    "logo_paths",
    Kind::Section(&LOGO_PATHS),
    "Files with the logo; all four or none",
)]);

static LOGO_PATHS: Section = section(&[
    field("dark_horizontal", Kind::Text, "For dark pages, wide"),
    field("dark_vertical", Kind::Text, "For dark pages, tall"),
    field("light_horizontal", Kind::Text, "For light pages, wide"),
    field("light_vertical", Kind::Text, "For light pages, tall"),
])
.check(logos);

static LOGGING: Union = union(
    "type",
    "Where logs of tasks go",
    &[field(
        "additional_fluent_outputs",
        Kind::Any,
        "Further places that Fluent Bit shipped logs to, in old versions",
    )
    .warn(IGNORED)],
    &[
        variant("default", &[]),
        variant(
            "elastic",
            &[
                field("host", Kind::Text, "Host of Elasticsearch").finally(),
                field("port", REAL_PORT, "Port of Elasticsearch").finally(),
                field(
                    "security",
                    Kind::Section(&ELASTIC_SECURITY),
                    "Account and TLS",
                ),
            ],
        )
        .kept(),
    ],
)
.default_tag("default");

static ELASTIC_SECURITY: Section = section(&[
    field("username", Kind::Text, "Account; both or neither"),
    field("password", Kind::Text, "Secret of the account").secret(),
    field(
        "tls",
        Kind::Section(&CLIENT_TLS),
        "TLS towards Elasticsearch",
    ),
])
.check(elastic_account);

/// How the master speaks TLS with another service.
pub(super) static CLIENT_TLS: Section = section(&[
    field("enabled", Kind::Bool, "Whether TLS is spoken").or("false"),
    field(
        "skip_verify",
        Kind::Bool,
        "Whether any certificate is accepted",
    )
    .or("false"),
    field(
        "certificate",
        Kind::Text,
        "File with the certificate authority",
    )
    .or("\"\""),
    field(
        "certificate_name",
        Kind::Text,
        "Name expected in the certificate",
    )
    .or("\"\""),
])
.check(client_tls);

keys! {
    /// How long task logs are kept.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Retention, RETENTION {
        /// Days after the end of a task; -1, and without it, for ever.
        log_retention_days: Option<i16> = Kind::Int(-1, 32_767);
        /// When logs are swept; without it only by `det task cleanup-logs`.
        schedule: Option<Schedule> = Kind::Special(&SCHEDULE);
    }
}

keys! {
    /// What is reported to whom. Off: there is no receiver.
    #[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Telemetry, TELEMETRY {
        /// Whether usage of the cluster is reported.
        enabled: bool = Kind::Bool, or("false"), warn(NOT_REPORTED);
        /// Key of Segment for usage reports of the master.
        segment_master_key: String = Kind::Text, or("\"\""), secret, warn(NOT_REPORTED);
        /// Key of Segment for usage reports of the web pages.
        segment_webui_key: String = Kind::Text, or("\"\""), secret, warn(NOT_REPORTED);
        /// Whether traces of requests are sent to an OpenTelemetry collector.
        otel_enabled: bool = Kind::Bool, or("false"), kept;
        /// Host and port of that collector.
        otel_endpoint: String = Kind::Text, or("\"localhost:4317\""), kept;
        /// Identity of the cluster on its first start; made then unless given.
        cluster_id: Option<String> = Kind::Text;
    }
    with aliases(&[("otel-enabled", "otel_enabled", true), ("otel-endpoint", "otel_endpoint", true)])
}

keys! {
    /// Whether the master gives metrics to a monitoring system.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Observability, OBSERVABILITY {
        /// Whether `GET /debug/prom/metrics` answers, to administrators.
        enable_prometheus: bool = Kind::Bool, or("true");
    }
}

keys! {
    /// How webhooks are signed, and which address their links have.
    #[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Webhooks, WEBHOOKS {
        /// Key that signs them; made on the first start unless given.
        signing_key: Option<String> = Kind::Text, secret;
        /// Address of the master in links.
        base_url: String = Kind::Text, or("\"\"");
    }
}

static INTEGRATIONS: Section = section(&[field(
    "pachyderm",
    Kind::Section(&PACHYDERM),
    "Pachyderm server",
)]);

static PACHYDERM: Section =
    section(&[field("address", Kind::Text, "Given to tasks as PACHD_ADDRESS").or("\"\"")]);

/// The member, unless it is an empty text.
fn filled<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    node.get(key).filter(|member| member.text() != Some(""))
}

fn is_true(node: &Node, key: &str) -> bool {
    matches!(
        node.get(key).map(|member| &member.tree),
        Some(Tree::Bool(true))
    )
}

/// Keys that are given together or not at all.
fn together(findings: &mut Findings, node: &Node, keys: &[&str]) {
    if !findings.stage.is_complete() {
        return;
    }
    let Some(given) = keys
        .iter()
        .find_map(|key| filled(node, key).map(|n| (key, n)))
    else {
        return;
    };
    for key in keys {
        if filled(node, key).is_none() {
            let message = ErrorCode::Missing.message(format!("is required beside \"{}\"", given.0));
            findings.error_in(key, given.1.at.as_ref(), message);
        }
    }
}

fn logos(findings: &mut Findings, node: &Node) {
    let keys = [
        "dark_horizontal",
        "dark_vertical",
        "light_horizontal",
        "light_vertical",
    ];
    together(findings, node, &keys);
}

fn elastic_account(findings: &mut Findings, node: &Node) {
    together(findings, node, &["username", "password"]);
}

fn client_tls(findings: &mut Findings, node: &Node) {
    if let (Some(file), true) = (filled(node, "certificate"), is_true(node, "skip_verify")) {
        findings.error_in(
            "certificate",
            file.at.as_ref(),
            ErrorCode::Conflict.message("cannot be combined with \"skip_verify\""),
        );
    }
}

fn ssh_keys(findings: &mut Findings, node: &Node) {
    let size = node.get("rsa_key_size");
    let Some(bits) = size.and_then(Node::integer).filter(|bits| *bits != 0) else {
        return;
    };
    let at = size.and_then(|size| size.at.as_ref());
    if node.get("key_type").and_then(Node::text) != Some("RSA") {
        findings.warn_in(
            "rsa_key_size",
            at,
            "means something only for key type \"RSA\"",
        );
    } else if bits < 2048 {
        let message = ErrorCode::OutOfRange.message(format!("must be at least 2048, not {bits}"));
        findings.error_in("rsa_key_size", at, message);
    }
}

/// A duration, or five fields of cron.
static SCHEDULE: Special = text_by(
    "duration of 1s or more, or five cron fields in UTC",
    || json!({"type": "string", "minLength": 1}),
    schedule,
);

fn schedule(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    if let Err(message) = Schedule::parse(text) {
        walk.findings.error(node.at.as_ref(), message);
    }
}

/// The name of a host, perhaps with a port.
static HOST: Special = text_by(
    "host, or host:port",
    || json!({"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$"}),
    host,
);

fn host(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|c| c.is_ascii_alphanumeric() || c == b'-')
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    if !name.split('.').all(is_label) || !port.is_none_or(is_port) {
        let message = format!(
            "must be the name of a host, perhaps with a port, as \"services.example.com\" or \"services.example.com:8443\", \
             not \"{}\"",
            cut(text)
        );
        walk.findings.error(node.at.as_ref(), message);
    }
}

/// A host of services that is also one of the API would keep nothing apart. Cookies know no ports.
fn own_services_host(findings: &mut Findings, node: &Node) {
    let Some(host) = node
        .get("services_host")
        .filter(|host| host.text().is_some())
    else {
        return;
    };
    let text = host.text().unwrap_or_default();
    let name = text.split(':').next().unwrap_or_default();
    let of_api = match node.get("host_names").map(|names| &names.tree) {
        Some(Tree::List(names)) => names.as_slice(),
        _ => &[],
    };
    let same = |other: &&Node| {
        other
            .text()
            .is_some_and(|other| other.eq_ignore_ascii_case(name))
    };
    if name.eq_ignore_ascii_case("localhost") || of_api.iter().any(|other| same(&other)) {
        let message = format!(
            "must be a name that is used for nothing else: \"{}\" is one of the API, whatever the port",
            cut(name)
        );
        findings.error_in("services_host", host.at.as_ref(), message);
    }
}

fn tls_pair(findings: &mut Findings, node: &Node) {
    together(findings, node, &["cert", "key"]);
}

fn lifespans(findings: &mut Findings, node: &Node) {
    let days = |key| {
        node.get(key)
            .and_then(Node::integer)
            .map(|days| if days < 0 { 106_751 } else { days })
    };
    if let (Some(default), Some(max)) = (days("default_lifespan_days"), days("max_lifespan_days"))
        && default > max
    {
        let at = node
            .get("default_lifespan_days")
            .and_then(|node| node.at.clone());
        findings.error_in(
            "default_lifespan_days",
            at.as_ref(),
            ErrorCode::OutOfRange.message(format!(
                "must be at most the {max} of \"max_lifespan_days\""
            )),
        );
    }
}

fn database(findings: &mut Findings, node: &Node) {
    if !findings.stage.is_complete() {
        return;
    }
    let parts = ["user", "password", "host", "name"];
    let given = parts.iter().find_map(|key| node.get(key));
    match (node.get("url"), given) {
        (Some(url), Some(_)) => findings.error_in(
            "url",
            url.at.as_ref(),
            ErrorCode::Conflict
                .message("cannot be combined with \"user\", \"password\", \"host\" or \"name\""),
        ),
        (None, Some(part)) => {
            for key in ["host", "name", "user"] {
                if node.get(key).is_none() {
                    findings.error_in(
                        key,
                        part.at.as_ref(),
                        ErrorCode::Missing.message("is required for PostgreSQL"),
                    );
                }
            }
        }
        _ => {}
    }
}

static POSTGRES_URL: Special = text_by(
    "address of PostgreSQL",
    || json!({"type": "string", "pattern": "^postgres(ql)?://"}),
    postgres_url,
);

fn postgres_url(walk: &mut Walk, node: &mut Node) {
    match node.text() {
        Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {}
        // The value may hold a password, so it is not repeated.
        Some(_) => walk.findings.error(
            node.at.as_ref(),
            "must start with \"postgres://\"; leave it out for the embedded store",
        ),
        None => walk.value(node, Kind::Text),
    }
}

/// A port, also as text.
pub(super) static TEXT_PORT: Special = special(
    "integer, 1 to 65535, also as string",
    || {
        json!({"anyOf": [
            {"type": "integer", "minimum": 1, "maximum": 65535},
            {"type": "string", "pattern": "^[0-9]+$"},
        ]})
    },
    text_port,
);

fn text_port(walk: &mut Walk, node: &mut Node) {
    if let Some(number) = node.text().and_then(|text| text.parse::<u16>().ok()) {
        node.tree = Tree::Number(number.into());
    }
    walk.value(node, Kind::Int(1, 65_535));
}

static STRONG_PASSWORD: Special = text_by(
    "string of at least 8 characters with an upper case letter, a lower case letter and a digit, or empty",
    || json!({"type": "string", "pattern": "^$|.{8,}"}),
    strong_password,
);

fn strong_password(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    let has = |test: fn(char) -> bool| text.chars().any(test);
    let strong = text.chars().count() >= 8
        && has(char::is_uppercase)
        && has(char::is_lowercase)
        && has(|c| c.is_ascii_digit());
    if !text.is_empty() && !strong {
        walk.findings.error(
            node.at.as_ref(),
            ErrorCode::OutOfRange.message("must have at least 8 characters, among them an upper case letter, a lower case letter and a digit"),
        );
    }
}
