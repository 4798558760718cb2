//! The keys of the master.

use crate::container::{TASK_CONTAINER_DEFAULTS, not_empty};
use crate::schema::{
    Checker, Field, Kind, NATURAL, NATURAL_32, PORT, Section, Stage, Union, field, section, variant,
};
use crate::storage::STORAGE;
use crate::yaml::{Node, Tree};

const LEVELS: Kind = Kind::Choice(&["trace", "debug", "info", "warn", "error", "fatal"]);
const IGNORED: &str = "is ignored";

pub(crate) static LOG: Section = section(&[
    field("level", LEVELS).or("\"info\""),
    field("color", Kind::Bool).or("true"),
]);

pub(super) static MASTER: Section = section(&[
    field("config_file", Kind::Text).or("\"\""),
    field("log", Kind::Section(&LOG)).or("{}"),
    field("db", Kind::Section(&DB)).or("{}"),
    field("tensorboard_timeout", NATURAL_32).or("300"),
    field("notebook_timeout", NATURAL_32),
    field("security", Kind::Section(&SECURITY)).or("{}"),
    field("checkpoint_storage", Kind::Union(&STORAGE)),
    field(
        "task_container_defaults",
        Kind::Section(&TASK_CONTAINER_DEFAULTS),
    )
    .or("{}"),
    field("host", Kind::TextBy(not_empty)).or("\"0.0.0.0\""),
    field("port", PORT).or("0"),
    field("data_dir", Kind::TextBy(not_empty)),
    field("root", Kind::Text)
        .warn("is ignored; the web pages and migrations are part of the executable"),
    field("cache", Kind::Section(&CACHE)).kept(),
    field("launch_error", Kind::Bool).or("true"),
    field("cluster_name", Kind::Text).or("\"\""),
    field("ui_customization", Kind::AnyMap).kept(),
    field("enable_cors", Kind::Bool).or("false"),
    field("feature_switches", Kind::List(&Kind::Text)).or("[]"),
    field("reserved_ports", Kind::List(&Kind::Int(1, 65_535))).or("[]"),
    field("logging", Kind::Custom(logging)),
    field("retention_policy", Kind::Section(&RETENTION)).or("{}"),
    field("telemetry", Kind::Section(&TELEMETRY)).or("{}"),
    field("observability", Kind::Section(&OBSERVABILITY)).or("{}"),
    field("webhooks", Kind::Section(&WEBHOOKS)).or("{}"),
    field("integrations", Kind::AnyMap).kept(),
    field("resource_manager", Kind::Union(&RESOURCE_MANAGER)).or("{}"),
    field("resource_pools", Kind::List(&Kind::Section(&POOL))).or("[{\"pool_name\": \"default\"}]"),
    field("additional_resource_managers", Kind::List(&Kind::AnyMap)).kept(),
    field("scim", Kind::AnyMap).kept(),
    field("saml", Kind::AnyMap).kept(),
    field("oidc", Kind::AnyMap).kept(),
    field("det_cloud", Kind::AnyMap).kept(),
    field("__internal", Kind::AnyMap).kept(),
    field("hasura", Kind::Any).warn(IGNORED),
])
.check(document);

static DB: Section = section(&[
    field("url", Kind::TextBy(postgres_url)).secret(),
    field("user", Kind::Text),
    field("password", Kind::Text).secret(),
    field("host", Kind::Text),
    field("port", Kind::TextBy(text_port)).or("5432"),
    field("name", Kind::Text),
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
    )
    .or("\"disable\""),
    field("ssl_root_cert", Kind::Text),
    field("migrations", Kind::Text).warn(IGNORED),
    field("views_and_triggers", Kind::Text).warn(IGNORED),
])
.check(database);

static SECURITY: Section = section(&[
    field("default_task", Kind::Section(&DEFAULT_TASK)).or("{}"),
    field("tls", Kind::Section(&TLS)).or("{}"),
    field("ssh", Kind::Section(&SSH)).kept(),
    field("authz", Kind::Section(&AUTHZ)).or("{}"),
    field("initial_user_password", Kind::TextBy(strong_password))
        .or("\"\"")
        .secret(),
    field("token", Kind::Section(&TOKEN)).or("{}"),
    field("agent_token", Kind::Text).secret(),
]);

static DEFAULT_TASK: Section = section(&[
    field("user", Kind::TextBy(not_empty)).or("\"root\""),
    field("uid", NATURAL_32).or("0"),
    field("group", Kind::TextBy(not_empty)).or("\"root\""),
    field("gid", NATURAL_32).or("0"),
]);

static TLS: Section = section(&[
    field("cert", Kind::Text).or("\"\""),
    field("key", Kind::Text).or("\"\""),
])
.check(tls_pair);

static SSH: Section = section(&[
    field("key_type", Kind::Choice(&["RSA", "ECDSA", "ED25519"])).or("\"ED25519\""),
    field("rsa_key_size", Kind::Int(0, 16_384)).or("0"),
]);

const MODEL: Kind = Kind::Choice(&["basic", "rbac"]);

static AUTHZ: Section = section(&[
    field("type", MODEL).or("\"basic\""),
    field("fallback", MODEL).or("\"basic\""),
    field("rbac_ui_enabled", Kind::Bool).kept(),
    field("workspace_creator_assign_role", Kind::AnyMap).kept(),
    field("strict_job_queue_control", Kind::Bool)
        .or("false")
        .kept(),
    field("_strict_ntsc_enabled", Kind::Any).warn(IGNORED),
])
.check(authz);

static TOKEN: Section = section(&[
    field("default_lifespan_days", Kind::Int(-1, 106_751)).or("30"),
    field("max_lifespan_days", Kind::Int(-1, 106_751)).or("-1"),
])
.check(lifespans);

static CACHE: Section = section(&[field("cache_dir", Kind::Text)]);

static RETENTION: Section = section(&[
    field("log_retention_days", Kind::Int(-1, 32_767)),
    field("schedule", Kind::Text),
])
.check(crate::container::not_acted_on);

static TELEMETRY: Section = section(&[
    field("enabled", Kind::Bool).or("false"),
    field("segment_master_key", Kind::Text).or("\"\"").secret(),
    field("segment_webui_key", Kind::Text).or("\"\"").secret(),
    field("otel_enabled", Kind::Bool).or("false").kept(),
    field("otel_endpoint", Kind::Text).or("\"localhost:4317\""),
    field("cluster_id", Kind::Text),
]);

static OBSERVABILITY: Section = section(&[field("enable_prometheus", Kind::Bool).or("true")]);

static WEBHOOKS: Section = section(&[
    field("signing_key", Kind::Text).secret(),
    field("base_url", Kind::Text).or("\"\""),
]);

pub(super) static SCHEDULER: Section = section(&[
    field(
        "type",
        Kind::Choice(&["fair_share", "priority", "round_robin"]),
    ),
    field("fitting_policy", Kind::Choice(&["best", "worst"])),
    field("allow_heterogeneous_fits", Kind::Bool),
    field("preemption", Kind::Bool),
    field("default_priority", Kind::Int(1, 99)),
])
.check(scheduler);

const RM_ALIASES: &[(&str, &str, bool)] = &[
    (
        "default_cpu_resource_pool",
        "default_aux_resource_pool",
        true,
    ),
    (
        "default_gpu_resource_pool",
        "default_compute_resource_pool",
        true,
    ),
    ("name", "cluster_name", true),
    ("namespace", "default_namespace", true),
    ("determined_master_ip", "determined_master_host", true),
];

static RESOURCE_MANAGER: Union = Union {
    tag: "type",
    default_tag: Some("agent"),
    common: &[
        field("cluster_name", Kind::Text).or("\"default\""),
        field("metadata", Kind::Map(&Kind::Text)).or("{}"),
        field("default_aux_resource_pool", Kind::Text),
        field("default_compute_resource_pool", Kind::Text),
        field("no_default_resource_pools", Kind::Bool).or("false"),
    ],
    variants: &[
        variant(
            "agent",
            &[
                field("scheduler", Kind::Section(&SCHEDULER)),
                field("require_authentication", Kind::Bool)
                    .or("false")
                    .kept(),
                field("client_ca", Kind::Text).or("\"\"").kept(),
            ],
        ),
        variant("kubernetes", KUBERNETES).kept(),
        variant("slurm", HPC).kept(),
        variant("pbs", HPC).kept(),
    ],
    check: None,
    aliases: RM_ALIASES,
};

/// Kept as they are until the manager exists.
const KUBERNETES: &[Field] = &[
    field("default_namespace", Kind::Any),
    field("max_slots_per_pod", Kind::Any),
    field("master_service_name", Kind::Any),
    field("slot_type", Kind::Any),
    field("slot_resource_requests", Kind::Any),
    field("default_scheduler", Kind::Any),
    field("kubeconfig_path", Kind::Any),
    field("determined_master_scheme", Kind::Any),
    field("determined_master_host", Kind::Any),
    field("determined_master_port", Kind::Any),
    field("leave_kubernetes_resources", Kind::Any),
    field("internal_task_gateway", Kind::Any),
    field("fluent", Kind::Any).warn(IGNORED),
];

/// Kept as they are until the manager exists.
const HPC: &[Field] = &[
    field("master_host", Kind::Any),
    field("master_port", Kind::Any),
    field("host", Kind::Any),
    field("port", Kind::Any),
    field("protocol", Kind::Any),
    field("security", Kind::Any),
    field("container_run_type", Kind::Any),
    field("auth_file", Kind::Any),
    field("slot_type", Kind::Any),
    field("rendezvous_network_interface", Kind::Any),
    field("proxy_network_interface", Kind::Any),
    field("user_name", Kind::Any),
    field("group_name", Kind::Any),
    field("sudo_authorized", Kind::Any),
    field("apptainer_image_root", Kind::Any),
    field("singularity_image_root", Kind::Any),
    field("job_storage_root", Kind::Any),
    field("path", Kind::Any),
    field("ld_library_path", Kind::Any),
    field("launcher_jvm_args", Kind::Any),
    field("tres_supported", Kind::Any),
    field("gres_supported", Kind::Any),
    field("job_project_source", Kind::Any),
    field("partition_overrides", Kind::Any),
];

static POOL: Section = section(&[
    field("pool_name", Kind::TextBy(not_empty)).always(),
    field("description", Kind::Text).or("\"\""),
    field("provider", Kind::AnyMap).kept(),
    field("scheduler", Kind::Section(&SCHEDULER)),
    field("max_aux_containers_per_agent", NATURAL_32).or("100"),
    field(
        "task_container_defaults",
        Kind::Section(&TASK_CONTAINER_DEFAULTS),
    ),
    field("agent_reconnect_wait", Kind::Duration).or("\"10m\""),
    field("agent_reattach_enabled", Kind::Any)
        .warn("is ignored; agents always find their tasks again"),
    field("kubernetes_namespace", Kind::Text).kept(),
])
.aliases(&[(
    "max_cpu_containers_per_agent",
    "max_aux_containers_per_agent",
    true,
)]);

/// Older forms: `master-config` reference §11.
pub(super) fn translate(checker: &mut Checker, root: &mut Node) {
    single_pool(checker, root);
    oldest(checker, root);
    blank_types(root);
}

/// One pool given as a map instead of a list.
fn single_pool(checker: &mut Checker, root: &mut Node) {
    let Some(pools) = root.get_mut("resource_pools") else {
        return;
    };
    if pools.members().is_some() {
        let pool = pools.clone();
        pools.tree = Tree::List(vec![pool]);
        checker.within("resource_pools", |checker| {
            checker.warn("is a list; the one map is read as its only element");
        });
    }
}

/// `scheduler` and `provisioner` at top level, from before resource managers.
fn oldest(checker: &mut Checker, root: &mut Node) {
    let has_new = root.get("resource_manager").is_some() || root.get("resource_pools").is_some();
    let Some(members) = root.members_mut() else {
        return;
    };
    let (scheduler, provisioner) = (members.remove("scheduler"), members.remove("provisioner"));
    let old = [("scheduler", &scheduler), ("provisioner", &provisioner)];
    if has_new {
        for (key, node) in old {
            if let Some(node) = node {
                checker.within(key, |checker| {
                    checker.error_hint(
                        node.at.as_ref(),
                        "is an old form that cannot stand beside \"resource_manager\" or \"resource_pools\"",
                        "move it to \"resource_manager.scheduler\" or the pool's \"provider\"",
                    );
                });
            }
        }
        return;
    }
    for (key, node) in old {
        if node.is_some() {
            checker.within(key, |checker| {
                checker.warn(
                    "is an old form; it is read as \"resource_manager\" and one pool \"default\"",
                );
            });
        }
    }
    let map = |members| Node::new(Tree::Map(members));
    if let Some(mut scheduler) = scheduler {
        let mut manager = std::collections::BTreeMap::new();
        if let Some(inner) = scheduler.members_mut() {
            if let Some(fit) = inner.remove("fit") {
                inner.insert("fitting_policy".into(), fit);
            }
            if let Some(Node {
                tree: Tree::Map(provider),
                ..
            }) = inner.remove("resource_provider")
            {
                manager.extend(provider);
            }
        }
        if let Some(kind) = manager
            .get_mut("type")
            .filter(|kind| kind.text() == Some("default"))
        {
            kind.tree = Tree::Text("agent".into());
        }
        let has_keys = scheduler
            .members()
            .is_none_or(|members| !members.is_empty());
        if has_keys {
            manager.insert("scheduler".into(), scheduler);
        }
        members.insert("resource_manager".into(), map(manager));
    }
    if let Some(mut provisioner) = provisioner {
        if let Some(inner) = provisioner.members_mut()
            && let Some(kind) = inner.remove("provider")
        {
            inner.insert("type".into(), kind);
        }
        let pool = map([
            (
                "pool_name".to_owned(),
                Node::new(Tree::Text("default".into())),
            ),
            ("provider".to_owned(), provisioner),
        ]
        .into());
        members.insert("resource_pools".into(), Node::new(Tree::List(vec![pool])));
    }
}

/// A blank scheduler type is the same as none.
fn blank_types(root: &mut Node) {
    let blank = |block: &mut Node| {
        if let Some(members) = block.get_mut("scheduler").and_then(Node::members_mut)
            && members
                .get("type")
                .is_some_and(|kind| kind.text() == Some("") || matches!(kind.tree, Tree::Null))
        {
            // Kept as a key: a present block with a blank type is not an absent block.
            members.insert("type".into(), Node::new(Tree::Null));
            members
                .entry("allow_heterogeneous_fits".into())
                .or_insert_with(|| Node::new(Tree::Bool(false)));
        }
    };
    if let Some(manager) = root.get_mut("resource_manager") {
        blank(manager);
    }
    if let Some(Tree::List(pools)) = root.get_mut("resource_pools").map(|pools| &mut pools.tree) {
        pools.iter_mut().for_each(blank);
    }
}

fn scheduler(checker: &mut Checker, node: &Node) {
    if let Some(kind @ ("fair_share" | "round_robin")) = node.get("type").and_then(Node::text) {
        for key in ["preemption", "default_priority"] {
            if node.get(key).is_some() {
                let text =
                    format!("means something only for scheduler \"priority\", not \"{kind}\"");
                checker.within(key, |checker| checker.warn(&text));
            }
        }
    }
}

fn document(checker: &mut Checker, root: &Node) {
    if checker.stage != Stage::Complete {
        return;
    }
    let pools: Vec<&Node> = match root.get("resource_pools").map(|node| &node.tree) {
        Some(Tree::List(items)) => items
            .iter()
            .filter_map(|pool| pool.get("pool_name"))
            .collect(),
        _ => Vec::new(),
    };
    for (index, pool) in pools.iter().enumerate() {
        if pools[..index].iter().any(|other| other.tree == pool.tree) {
            let message = format!(
                "\"{}\" names two resource pools",
                pool.text().unwrap_or_default()
            );
            checker.within("resource_pools", |checker| {
                checker.within_index(index, |checker| {
                    checker.error_in("pool_name", pool.at.as_ref(), message);
                });
            });
        }
    }
    let manager = root.get("resource_manager");
    if manager
        .and_then(|manager| manager.get("type"))
        .and_then(Node::text)
        .is_some_and(|kind| kind != "agent")
    {
        return;
    }
    let mut names: Vec<&str> = pools.iter().filter_map(|pool| pool.text()).collect();
    if root.get("resource_pools").is_none() {
        names.push("default");
    }
    let none = manager.and_then(|manager| manager.get("no_default_resource_pools"));
    let none = matches!(none.map(|node| &node.tree), Some(Tree::Bool(true)));
    for key in ["default_aux_resource_pool", "default_compute_resource_pool"] {
        let given = manager
            .and_then(|manager| manager.get(key))
            .filter(|node| node.text() != Some(""));
        let (name, at) = match given {
            Some(node) => (node.text().unwrap_or_default(), node.at.as_ref()),
            None if none => continue,
            // One pool leaves no choice.
            None if names.len() == 1 => continue,
            None => ("default", manager.and_then(|manager| manager.at.as_ref())),
        };
        checker.within("resource_manager", |checker| {
            if none {
                checker.error_in(
                    key,
                    at,
                    "must be left out beside \"no_default_resource_pools\"",
                );
            } else if !names.contains(&name) {
                let known: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
                let message = format!(
                    "names no resource pool: \"{name}\"; there are {}",
                    known.join(", ")
                );
                checker.error_in(key, at, message);
            }
        });
    }
}

fn tls_pair(checker: &mut Checker, node: &Node) {
    if checker.stage != Stage::Complete {
        return;
    }
    let given = |key| node.get(key).filter(|node| node.text() != Some(""));
    match (given("cert"), given("key")) {
        (Some(cert), None) => {
            checker.error_in("key", cert.at.as_ref(), "is required beside \"cert\"");
        }
        (None, Some(key)) => {
            checker.error_in("cert", key.at.as_ref(), "is required beside \"key\"");
        }
        _ => {}
    }
}

fn authz(checker: &mut Checker, node: &Node) {
    if node.get("type").and_then(Node::text) == Some("rbac") {
        checker.within("type", |checker| {
            checker.warn("\"rbac\" is accepted and kept but not acted on yet");
        });
    }
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
            format!("must be at most the {max} of \"max_lifespan_days\""),
        );
    }
}

fn database(checker: &mut Checker, node: &Node) {
    if checker.stage != Stage::Complete {
        return;
    }
    let parts = ["user", "password", "host", "name"];
    let given = parts.iter().find_map(|key| node.get(key));
    match (node.get("url"), given) {
        (Some(url), Some(_)) => checker.error_in(
            "url",
            url.at.as_ref(),
            "cannot be combined with \"user\", \"password\", \"host\" or \"name\"",
        ),
        (None, Some(part)) => {
            for key in ["host", "name", "user"] {
                if node.get(key).is_none() {
                    checker.error_in(key, part.at.as_ref(), "is required for PostgreSQL");
                }
            }
        }
        _ => {}
    }
}

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
fn text_port(checker: &mut Checker, node: &mut Node) {
    if let Some(number) = node.text().and_then(|text| text.parse::<u16>().ok()) {
        node.tree = Tree::Number(number.into());
    }
    checker.value(node, Kind::Int(1, 65_535));
}

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
            "must have at least 8 characters, among them an upper case letter, a lower case letter and a digit",
        );
    }
}

/// Where task logs go. Only the built-in place exists.
fn logging(checker: &mut Checker, node: &mut Node) {
    checker.value(node, Kind::AnyMap);
    if node
        .get("type")
        .and_then(Node::text)
        .is_some_and(|kind| kind != "default")
    {
        checker.warn("is accepted and kept but not acted on yet; logs are kept by the master");
    }
    if let Some(host) = node.get("port") {
        let mut port = host.clone();
        checker.within("port", |checker| checker.value(&mut port, NATURAL));
    }
}
