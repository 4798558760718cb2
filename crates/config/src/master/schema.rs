//! The keys of the master; `docs/reference/master-configuration.md` is made from them.

mod manager;
mod pools;
mod provider;
mod sso;
mod translate;

use serde_json::json;

use super::Schedule;
use crate::container::schema::{NOT_EMPTY, TASK_CONTAINER_DEFAULTS};
use crate::errors::ErrorCode;
use crate::log::LOG;
use crate::schema::{
    Checker, Document, Kind, NATURAL_32, PORT, REAL_PORT, Section, Special, Union, field, section,
    special, text_by, union, variant,
};
use crate::storage::{ABSOLUTE_PATH, STORAGE};
use crate::yaml::{Node, Tree};

pub use provider::aws_slots;

const IGNORED: &str = "is ignored";
const NOBODY: &str = "is ignored; nothing is reported to anybody";

pub(super) static DOCUMENT: Document = Document {
    root: &MASTER,
    places: PLACES,
    slots_key: "resources.slots_per_trial",
    translate: translate::translate,
};

/// What this document is made of.
pub(crate) fn document() -> &'static Document {
    &DOCUMENT
}

/// Keys that people put in the wrong place.
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

pub(crate) static MASTER: Section = section(&[
    field("config_file", Kind::Text, "The file that this was read from").or("\"\""),
    field("log", Kind::Section(&LOG), "Log of the master itself").or("{}"),
    field(
        "db",
        Kind::Section(&DB),
        "Database; without one the embedded store in `data_dir`",
    )
    .or("{}"),
    field(
        "tensorboard_timeout",
        NATURAL_32,
        "Seconds until an idle TensorBoard ends; 0 = never",
    )
    .or("300")
    .kept(),
    field(
        "notebook_timeout",
        NATURAL_32,
        "Seconds until an idle notebook ends; without it never",
    )
    .kept(),
    field("security", Kind::Section(&SECURITY), "Identities, TLS, passwords").or("{}"),
    field(
        "checkpoint_storage",
        Kind::Union(&STORAGE),
        "Checkpoint storage of experiments that name none",
    ),
    field(
        "task_container_defaults",
        Kind::Section(&TASK_CONTAINER_DEFAULTS),
        "What tasks get unless they or their pool say otherwise",
    )
    .or("{}"),
    field("host", Kind::Special(&NOT_EMPTY), "Address to listen on").or("\"0.0.0.0\""),
    field(
        "port",
        PORT,
        "Port to listen on; 0 = 8443 with TLS, 8080 without",
    )
    .or("0"),
    field(
        "data_dir",
        Kind::Special(&NOT_EMPTY),
        "Directory of the embedded store and of files",
    ),
    field("root", Kind::Text, "Older key")
        .warn("is ignored; the web pages and migrations are part of the executable"),
    field("cache", Kind::Section(&CACHE), "Older key")
        .warn("is ignored; the master keeps no cache on disk"),
    field(
        "launch_error",
        Kind::Bool,
        "Whether work larger than the cluster is refused at submit; otherwise it waits, with a reason",
    )
    .or("true"),
    field("cluster_name", Kind::Text, "Name for people").or("\"\""),
    field(
        "ui_customization",
        Kind::Section(&UI_CUSTOMIZATION),
        "Looks of the web pages",
    )
    .kept(),
    field(
        "enable_cors",
        Kind::Bool,
        "Whether other origins may call the API from a browser",
    )
    .or("false"),
    field(
        "feature_switches",
        Kind::List(&Kind::Text),
        "Switches; a leading `-` turns one off",
    )
    .or("[]"),
    field(
        "reserved_ports",
        Kind::List(&REAL_PORT),
        "Ports never given to traffic between containers",
    )
    .or("[]"),
    field("logging", Kind::Union(&LOGGING), "Where logs of tasks go"),
    field(
        "retention_policy",
        Kind::Section(&RETENTION),
        "How long logs of tasks are kept",
    )
    .or("{}"),
    field("telemetry", Kind::Section(&TELEMETRY), "What is reported to whom").or("{}"),
    field(
        "observability",
        Kind::Section(&OBSERVABILITY),
        "Metrics for operators",
    )
    .or("{}"),
    field("webhooks", Kind::Section(&WEBHOOKS), "Outgoing webhooks")
        .or("{}")
        .kept(),
    field(
        "integrations",
        Kind::Section(&INTEGRATIONS),
        "Other systems that tasks are told of",
    ),
    field(
        "resource_manager",
        Kind::Union(&manager::RESOURCE_MANAGER),
        "Who runs containers",
    )
    .or("{}"),
    field("resource_pools", pools::POOLS, "Pools of agents")
        .or("[{\"pool_name\": \"default\"}]")
        .also("{\"type\": \"object\"}"),
    field(
        "additional_resource_managers",
        Kind::List(&Kind::Section(&pools::ADDITIONAL)),
        "Further managers with their pools",
    )
    .kept(),
    field("scim", Kind::Section(&sso::SCIM), "Provisioning of users").kept(),
    field("saml", Kind::Section(&sso::SAML), "Single sign-on by SAML").kept(),
    field("oidc", Kind::Section(&sso::OIDC), "Single sign-on by OpenID Connect").kept(),
    field("det_cloud", Kind::Section(&sso::DET_CLOUD), "Hosted service").kept(),
    field("__internal", Kind::Section(&sso::INTERNAL), "Hosted service").kept(),
    field("hasura", Kind::Any, "Older key").warn(IGNORED),
])
.old(&translate::OLD_KEYS)
.check(pools::document);

static DB: Section = section(&[
    field(
        "url",
        Kind::Special(&POSTGRES_URL),
        "Address of a PostgreSQL database, `postgres://…`, in place of its parts",
    )
    .secret(),
    field("user", Kind::Text, "Account"),
    field("password", Kind::Text, "Secret of the account").secret(),
    field("host", Kind::Text, "Host"),
    field("port", Kind::Special(&TEXT_PORT), "Port").or("5432"),
    field("name", Kind::Text, "Name of the database"),
    field(
        "ssl_mode",
        Kind::Choice(&[
            "disable",
            "allow",
            "prefer",
            "require",
            "verify-ca",
            "verify-full",
        ]),
        "sslmode of libpq",
    )
    .or("\"disable\""),
    field(
        "ssl_root_cert",
        Kind::Text,
        "File with the certificate authority; without one libpq's default",
    ),
    field("migrations", Kind::Text, "Older key").warn(IGNORED),
    field("views_and_triggers", Kind::Text, "Older key").warn(IGNORED),
])
.check(database);

static SECURITY: Section = section(&[
    field(
        "default_task",
        Kind::Section(&DEFAULT_TASK),
        "Identity of tasks of users without a linked one",
    )
    .or("{}"),
    field(
        "tls",
        Kind::Section(&TLS),
        "TLS is on when both files are given",
    )
    .or("{}"),
    field("ssh", Kind::Section(&SSH), "Keys of shells").kept(),
    field("authz", Kind::Section(&AUTHZ), "Who may do what").or("{}"),
    field(
        "initial_user_password",
        Kind::Special(&STRONG_PASSWORD),
        "Password of `admin` and `determined` on the first start; without one both are blank",
    )
    .or("\"\"")
    .secret(),
    field(
        "token",
        Kind::Section(&TOKEN),
        "How long access tokens live",
    )
    .or("{}")
    .kept(),
    field(
        "agent_token",
        Kind::Text,
        "What an agent must present to join; without it one is made and kept in `data_dir`",
    )
    .secret(),
    field(
        "host_names",
        Kind::List(&Kind::Special(&NOT_EMPTY)),
        "Names by which clients reach a master that listens on loopback, as behind a proxy on its machine, beside \
         `localhost`, loopback addresses and the machine's own name; requests to other names are refused",
    )
    .or("[]"),
    field(
        "allowed_host_paths",
        Kind::List(&Kind::Special(&ABSOLUTE_PATH)),
        "Directories of this host below which users' configurations may name checkpoint storage, beside the configured one",
    )
    .or("[]"),
]);

static DEFAULT_TASK: Section = section(&[
    field("user", Kind::Special(&NOT_EMPTY), "User name").or("\"root\""),
    field("uid", NATURAL_32, "User id").or("0"),
    field("group", Kind::Special(&NOT_EMPTY), "Group name").or("\"root\""),
    field("gid", NATURAL_32, "Group id").or("0"),
]);

static TLS: Section = section(&[
    field("cert", Kind::Text, "File with the certificate chain").or("\"\""),
    field("key", Kind::Text, "File with the private key").or("\"\""),
])
.check(tls_pair);

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

static AUTHZ: Section = section(&[
    field("type", MODEL, "Model of authorisation")
        .or("\"basic\"")
        .kept(),
    field("fallback", MODEL, "Model when `type` is not known")
        .or("\"basic\"")
        .kept(),
    field(
        "rbac_ui_enabled",
        Kind::Bool,
        "Whether the web pages show roles",
    )
    .kept(),
    field(
        "workspace_creator_assign_role",
        Kind::Section(&CREATOR_ROLE),
        "Role that the creator of a workspace gets",
    )
    .kept(),
    field(
        "strict_job_queue_control",
        Kind::Bool,
        "Whether moving jobs needs a permission of its own",
    )
    .or("false")
    .kept(),
    field("_strict_ntsc_enabled", Kind::Any, "Older key").warn(IGNORED),
]);

static CREATOR_ROLE: Section = section(&[
    field("enabled", Kind::Bool, "Whether the creator gets one").or("true"),
    field("role_id", Kind::Int(1, i64::MAX), "Number of the role").or("2"),
]);

static TOKEN: Section = section(&[
    field(
        "default_lifespan_days",
        Kind::Int(-1, 106_751),
        "Days unless asked otherwise; -1 = as long as can be",
    )
    .or("30"),
    field(
        "max_lifespan_days",
        Kind::Int(-1, 106_751),
        "Days at most; -1 = as long as can be",
    )
    .or("-1"),
])
.check(lifespans);

static CACHE: Section =
    section(&[field("cache_dir", Kind::Text, "Older key").built_in("\"/var/cache/determined\"")]);

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
    &[field("additional_fluent_outputs", Kind::Any, "Older key").warn(IGNORED)],
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

/// TLS towards another service.
pub(super) static CLIENT_TLS: Section = section(&[
    field("enabled", Kind::Bool, "Whether TLS is spoken").or("false"),
    field(
        "skip_verify",
        Kind::Bool,
        "Whether any certificate is believed",
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

static RETENTION: Section = section(&[
    field(
        "log_retention_days",
        Kind::Int(-1, 32_767),
        "Days after the end of a task; -1, and without it, for ever",
    ),
    field(
        "schedule",
        Kind::Special(&SCHEDULE),
        "When logs are swept; without it only by `det task cleanup-logs`",
    ),
]);

static TELEMETRY: Section = section(&[
    field("enabled", Kind::Bool, "Whether anything is reported")
        .or("false")
        .warn(NOBODY),
    field("segment_master_key", Kind::Text, "Older key")
        .or("\"\"")
        .secret()
        .warn(NOBODY),
    field("segment_webui_key", Kind::Text, "Older key")
        .or("\"\"")
        .secret()
        .warn(NOBODY),
    field("otel_enabled", Kind::Bool, "Whether traces are sent")
        .or("false")
        .kept(),
    field("otel_endpoint", Kind::Text, "Where traces are sent")
        .or("\"localhost:4317\"")
        .kept(),
    field(
        "cluster_id",
        Kind::Text,
        "Identity of the cluster on its first start; made then unless given",
    ),
])
.aliases(&[
    ("otel-enabled", "otel_enabled", true),
    ("otel-endpoint", "otel_endpoint", true),
]);

static OBSERVABILITY: Section = section(&[field(
    "enable_prometheus",
    Kind::Bool,
    "Whether `GET /debug/prom/metrics` answers, to administrators",
)
.or("true")]);

static WEBHOOKS: Section = section(&[
    field(
        "signing_key",
        Kind::Text,
        "Key that signs them; made on the first start unless given",
    )
    .secret(),
    field("base_url", Kind::Text, "Address of the master in links").or("\"\""),
]);

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
fn together(checker: &mut Checker, node: &Node, keys: &[&str]) {
    if !checker.stage.is_complete() {
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
            checker.error_in(key, given.1.at.as_ref(), message);
        }
    }
}

fn logos(checker: &mut Checker, node: &Node) {
    let keys = [
        "dark_horizontal",
        "dark_vertical",
        "light_horizontal",
        "light_vertical",
    ];
    together(checker, node, &keys);
}

fn elastic_account(checker: &mut Checker, node: &Node) {
    together(checker, node, &["username", "password"]);
}

fn client_tls(checker: &mut Checker, node: &Node) {
    if let (Some(file), true) = (filled(node, "certificate"), is_true(node, "skip_verify")) {
        checker.error_in(
            "certificate",
            file.at.as_ref(),
            ErrorCode::Conflict.message("cannot be combined with \"skip_verify\""),
        );
    }
}

fn ssh_keys(checker: &mut Checker, node: &Node) {
    let size = node.get("rsa_key_size");
    let Some(bits) = size.and_then(Node::integer).filter(|bits| *bits != 0) else {
        return;
    };
    let at = size.and_then(|size| size.at.as_ref());
    if node.get("key_type").and_then(Node::text) != Some("RSA") {
        checker.warn_in(
            "rsa_key_size",
            at,
            "means something only for key type \"RSA\"",
        );
    } else if bits < 2048 {
        let message = ErrorCode::OutOfRange.message(format!("must be at least 2048, not {bits}"));
        checker.error_in("rsa_key_size", at, message);
    }
}

/// A duration, or five fields of cron.
static SCHEDULE: Special = text_by(
    "duration of 1s or more, or five cron fields in UTC",
    || json!({"type": "string", "minLength": 1}),
    schedule,
);

fn schedule(checker: &mut Checker, node: &mut Node) {
    let Some(text) = node.text() else {
        return checker.value(node, Kind::Text);
    };
    if let Err(message) = Schedule::parse(text) {
        checker.error(node.at.as_ref(), message);
    }
}

fn tls_pair(checker: &mut Checker, node: &Node) {
    together(checker, node, &["cert", "key"]);
}

fn lifespans(checker: &mut Checker, node: &Node) {
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
        checker.error_in(
            "default_lifespan_days",
            at.as_ref(),
            ErrorCode::OutOfRange.message(format!(
                "must be at most the {max} of \"max_lifespan_days\""
            )),
        );
    }
}

fn database(checker: &mut Checker, node: &Node) {
    if !checker.stage.is_complete() {
        return;
    }
    let parts = ["user", "password", "host", "name"];
    let given = parts.iter().find_map(|key| node.get(key));
    match (node.get("url"), given) {
        (Some(url), Some(_)) => checker.error_in(
            "url",
            url.at.as_ref(),
            ErrorCode::Conflict
                .message("cannot be combined with \"user\", \"password\", \"host\" or \"name\""),
        ),
        (None, Some(part)) => {
            for key in ["host", "name", "user"] {
                if node.get(key).is_none() {
                    checker.error_in(
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

fn postgres_url(checker: &mut Checker, node: &mut Node) {
    match node.text() {
        Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {}
        // The value may hold a password, so it is not repeated.
        Some(_) => checker.error(
            node.at.as_ref(),
            "must start with \"postgres://\"; leave it out for the embedded store",
        ),
        None => checker.value(node, Kind::Text),
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

fn text_port(checker: &mut Checker, node: &mut Node) {
    if let Some(number) = node.text().and_then(|text| text.parse::<u16>().ok()) {
        node.tree = Tree::Number(number.into());
    }
    checker.value(node, Kind::Int(1, 65_535));
}

static STRONG_PASSWORD: Special = text_by(
    "string of at least 8 characters with an upper case letter, a lower case letter and a digit, or empty",
    || json!({"type": "string", "pattern": "^$|.{8,}"}),
    strong_password,
);

fn strong_password(checker: &mut Checker, node: &mut Node) {
    let Some(text) = node.text() else {
        return checker.value(node, Kind::Text);
    };
    let has = |test: fn(char) -> bool| text.chars().any(test);
    let strong = text.chars().count() >= 8
        && has(char::is_uppercase)
        && has(char::is_lowercase)
        && has(|c| c.is_ascii_digit());
    if !text.is_empty() && !strong {
        checker.error(
            node.at.as_ref(),
            ErrorCode::OutOfRange.message("must have at least 8 characters, among them an upper case letter, a lower case letter and a digit"),
        );
    }
}
