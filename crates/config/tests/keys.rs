//! Every key of the tables, with its type and default, is in the schema, and the schema has no other.
//!
//! The tables in `keys/` were written from what existing configurations contain, not from the schema. They also hold
//! every variable and flag.

use std::collections::BTreeMap;
use std::path::PathBuf;

use det_config::{DocumentKind, Key, Requirement, Status};
use serde_json::Value;

fn table(name: &str) -> Vec<[String; 3]> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/keys")
        .join(format!("{name}.tsv"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let mut cells = line.split('\t').map(str::to_owned);
            let mut cell = || cells.next().unwrap_or_else(|| panic!("{name}: {line}"));
            [cell(), cell(), cells.next().unwrap_or_default()]
        })
        .collect()
}

/// What a key goes with, and what it may be, by the tables.
#[derive(Debug, Clone, PartialEq)]
struct Expectation {
    kind: String,
    default: String,
}

/// Rows of a table and of all it includes, by path and by what they go with.
fn rows(name: &str, prefix: &str, with: &str, found: &mut BTreeMap<(String, String), Expectation>) {
    for [key, kind, default] in table(name) {
        let (key, own) = key
            .split_once('@')
            .map_or((key.as_str(), ""), |(key, with)| (key, with));
        let with = if own.is_empty() { with } else { own };
        let path = match (prefix, key) {
            (prefix, "+") => prefix.to_owned(),
            ("", key) => key.to_owned(),
            (prefix, key) if key.starts_with('[') => format!("{prefix}{key}"),
            (prefix, key) => format!("{prefix}.{key}"),
        };
        match kind.strip_prefix('=') {
            Some(included) => {
                let (included, own) = included
                    .split_once('@')
                    .map_or((included, ""), |(table, with)| (table, with));
                let with = if own.is_empty() { with } else { own };
                rows(included, &path, with, found);
            }
            None => {
                let expected = Expectation { kind, default };
                let double = found.insert((path.clone(), with.to_owned()), expected);
                assert_eq!(double, None, "{path} {with} twice in the tables");
            }
        }
    }
}

/// Whether what the schema declares of a value agrees with the table's word for it.
fn agrees(key: &Key, kind: &str) -> bool {
    let given = key.kind.as_str();
    let numbers = |word: &str| {
        let bounds = kind.strip_prefix(word)?.trim();
        let (low, high) = bounds.split_once("..")?;
        let plain = match (word, high) {
            ("integer", "") => format!("integer, at least {low}"),
            ("integer", high) => format!("integer, {low} to {high}"),
            (_, _) => format!("number, at least {low}"),
        };
        Some(given == plain || given.starts_with(&format!("{plain},")))
    };
    match kind {
        "string" => {
            given.starts_with("string")
                || [
                    "image",
                    "regular expression",
                    "some of",
                    "path in",
                    "address of",
                ]
                .iter()
                .any(|word| given.starts_with(word))
        }
        "path" => given.contains("path"),
        "string or list" => given.contains("command line") && given.contains("list"),
        "string or map" | "list or map" => given.contains("map of"),
        "integer or map" => given.starts_with("integer, or map"),
        "boolean" => given == "boolean",
        "list" => given.starts_with("list"),
        "map" => given.starts_with("map"),
        "any" => given == "anything",
        "pod" => given == "Kubernetes pod",
        "size" => given.starts_with("size in bytes"),
        "duration" => given.starts_with("duration"),
        "range" => given.starts_with("range of ports"),
        "address" => given.contains("://") || given.starts_with("address"),
        "name" => given == "name as in DNS",
        "type" => given.starts_with("type of"),
        "price" => given.starts_with("price"),
        "older" => given == "older form",
        kind if kind.starts_with("choice ") => kind["choice ".len()..]
            .split(' ')
            .all(|word| given.contains(&format!("`{word}`"))),
        kind if kind.starts_with("number above ") => given == kind,
        _ => numbers("integer")
            .or_else(|| numbers("number"))
            .unwrap_or(false),
    }
}

fn check(kind: DocumentKind, name: &str) {
    let mut expected = BTreeMap::new();
    rows(name, "", "", &mut expected);
    let ours: Vec<String> = table("ours")
        .into_iter()
        .filter(|[document, ..]| document == name)
        .map(|[_, key, _]| key)
        .collect();
    let mut wrong = Vec::new();
    let keys = kind.keys();
    for key in &keys {
        let place = (key.path.clone(), key.goes_with.clone());
        let Some(row) = expected.remove(&place) else {
            // A table that is included for several kinds of manager or pool has no rows for what is around it.
            if !ours.contains(&key.path) {
                wrong.push(format!("{place:?} is in no table"));
            }
            continue;
        };
        if !agrees(key, &row.kind) {
            wrong.push(format!("{place:?} is \"{}\", not {}", key.kind, row.kind));
        }
        let default = match row.default.as_str() {
            "*" => continue,
            "-" => None,
            json => {
                Some(serde_json::from_str::<Value>(json).unwrap_or_else(|e| panic!("{json}: {e}")))
            }
        };
        if key.default != default {
            wrong.push(format!(
                "{place:?} has the default {:?}, not {default:?}",
                key.default
            ));
        }
    }
    wrong.extend(
        expected
            .into_keys()
            .map(|place| format!("{place:?} is not in the schema")),
    );
    for key in &ours {
        if !keys.iter().any(|known| known.path == *key) {
            wrong.push(format!("{key} is listed as ours and does not exist"));
        }
    }
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
}

#[test]
fn every_key_of_an_experiment_is_there() {
    check(DocumentKind::Experiment, "experiment");
}

#[test]
fn every_key_of_a_task_is_there() {
    check(DocumentKind::Task, "task");
}

#[test]
fn every_key_of_a_master_is_there() {
    check(DocumentKind::Master, "master");
}

#[test]
fn every_key_of_an_agent_is_there() {
    check(DocumentKind::Agent, "agent");
}

#[test]
fn a_template_has_the_keys_of_experiments_and_tasks() {
    let paths = |kind: DocumentKind| -> Vec<String> {
        kind.keys().into_iter().map(|key| key.path).collect()
    };
    let template = paths(DocumentKind::Template);
    for kind in [DocumentKind::Experiment, DocumentKind::Task] {
        for path in paths(kind) {
            assert!(template.contains(&path), "{path}");
        }
    }
}

#[test]
fn every_single_key_of_master_and_agent_has_a_variable_and_a_flag() {
    for kind in [DocumentKind::Master, DocumentKind::Agent] {
        for key in kind.keys() {
            // What is inside a list or below a name that users choose is set with the list or map around it.
            let inside = key.path.contains("[]") || key.path.contains('*');
            let older = key.kind == "older form";
            assert_eq!(
                key.variable.is_some() && key.flag.is_some(),
                !inside && !older,
                "{}",
                key.path
            );
        }
    }
}

#[test]
fn required_and_secret_keys_are_known() {
    let master = DocumentKind::Master.keys();
    let secret: Vec<&str> = master
        .iter()
        .filter(|key| key.secret && !key.path.contains("additional"))
        .map(|key| key.path.as_str())
        .collect();
    for expected in [
        "db.url",
        "db.password",
        "security.initial_user_password",
        "security.agent_token",
        "telemetry.segment_master_key",
        "telemetry.segment_webui_key",
        "task_container_defaults.registry_auth.password",
        "resource_pools[].task_container_defaults.registry_auth.password",
        "checkpoint_storage.secret_key",
        "checkpoint_storage.connection_string",
        "checkpoint_storage.credential",
        "resource_pools[].provider.startup_script",
        "resource_pools[].provider.container_startup_script",
        "resource_pools[].provider.agent_config_file_contents",
        "oidc.client_secret",
        "webhooks.signing_key",
        "logging.security.password",
        "scim.auth.username",
        "scim.auth.password",
        "__internal.external_sessions.jwt_key",
    ] {
        assert!(secret.contains(&expected), "{expected} is shown");
    }
    let needed = |keys: &[Key], path: &str, how: Requirement| {
        keys.iter()
            .any(|key| key.path == path && key.required == how)
    };
    assert!(needed(
        &master,
        "resource_pools[].pool_name",
        Requirement::InSection
    ));
    assert!(needed(
        &DocumentKind::Agent.keys(),
        "master_host",
        Requirement::ByAnyLayer
    ));
    assert!(needed(
        &DocumentKind::Experiment.keys(),
        "searcher.metric",
        Requirement::ByAnyLayer
    ));
}

#[test]
fn what_is_not_acted_on_has_that_status() {
    let of = |kind: DocumentKind, path: &str| {
        kind.keys()
            .into_iter()
            .find(|key| key.path == path)
            .map(|key| key.status)
    };
    assert_eq!(
        of(
            DocumentKind::Master,
            "resource_pools[].provider.min_instances"
        ),
        Some(Status::NotYet)
    );
    assert_eq!(of(DocumentKind::Master, "port"), Some(Status::Acted));
    assert_eq!(
        of(DocumentKind::Experiment, "data_layer"),
        Some(Status::Old("is ignored"))
    );
}
