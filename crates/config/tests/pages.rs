//! The reference pages in `docs/reference` are made from the schema: `DET_UPDATE=1 cargo test -p det-config --test pages`.

use std::fmt::Write as _;
use std::path::PathBuf;

use det_config::{DocumentKind, Key, Requirement, Status};
use serde_json::Value;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Text of a cell: a bar would end it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn default_of(key: &Key) -> String {
    match &key.default {
        None => match key.required {
            Requirement::No => String::new(),
            Requirement::InSection => "required".into(),
            Requirement::ByAnyLayer => "required by some layer".into(),
        },
        Some(Value::Object(members)) if !members.is_empty() && members.len() > 1 => {
            "see below".into()
        }
        Some(value) => format!("`{value}`"),
    }
}

fn meaning_of(key: &Key) -> String {
    let mut text = format!("{}.", key.about);
    if key.secret {
        text.push_str(" Secret: hidden wherever it is shown.");
    }
    match key.status {
        Status::Acted => {}
        Status::NotYet => text.push_str(" *Accepted and kept, not acted on yet.*"),
        Status::Old(why) => {
            // Writing to a string cannot fail.
            let _ = write!(text, " *Older form: {why}.*");
        }
    }
    text
}

/// Whether another table describes the key: the same section is in several places.
fn is_in_another_table(kind: DocumentKind, path: &str) -> bool {
    let inside = |section: &str| path.starts_with(&format!("{section}."));
    match kind {
        DocumentKind::Master => {
            inside("resource_pools[].task_container_defaults")
                || inside("resource_pools[].scheduler")
                || inside("resource_manager.partition_overrides.*.task_container_defaults")
                || (inside("additional_resource_managers[].resource_manager"))
                || path.starts_with("additional_resource_managers[].resource_pools[].")
        }
        _ => false,
    }
}

fn page(kind: DocumentKind) -> String {
    let mut out = String::new();
    let settable = matches!(kind, DocumentKind::Master | DocumentKind::Agent);
    let (title, about) = match kind {
        DocumentKind::Experiment => (
            "Configuration of experiments",
            "Every key of an experiment's configuration.\nHow layers come together is explained in [the guide](../configuration.md).",
        ),
        DocumentKind::Task => (
            "Configuration of tasks",
            "Every key of the configuration of notebooks, shells, commands, TensorBoards and generic tasks. See [commands.md](../commands.md) and [notebooks.md](../notebooks.md); `det config check --kind notebook` and so on checks a file.",
        ),
        DocumentKind::Master => (
            "Configuration of the master",
            "Every key of `master.yaml`.\nEach can be given in a file, as a variable and as a flag; a flag beats the environment, the environment beats the files.\nA variable that ends in `_FILE` names a file with the value, for every key that is a single value.\nThe keys of pools' `scheduler` and `task_container_defaults` are those of the cluster, and those of `additional_resource_managers` those of `resource_manager` and `resource_pools`.",
        ),
        _ => (
            "Configuration of an agent",
            "Every key of `agent.yaml`.\nEach can be given in a file, as a variable and as a flag; a flag beats the environment, the environment beats the files.\nA variable that ends in `_FILE` names a file with the value, for every key that is a single value.",
        ),
    };
    let _ = writeln!(
        out,
        "# {title}\n\n{about}\nThis page is made from the schema; `det config keys {kind}` prints the same.\n"
    );
    let header = if settable {
        "| key | what | default | variable | meaning |\n| --- | --- | --- | --- | --- |"
    } else {
        "| key | what | default | meaning | over a weaker layer |\n| --- | --- | --- | --- | --- |"
    };
    let _ = writeln!(out, "{header}");
    let mut waiting = Vec::new();
    for key in kind.keys() {
        if is_in_another_table(kind, &key.path) {
            continue;
        }
        let with = if key.goes_with.is_empty() {
            String::new()
        } else {
            format!(" ({})", key.goes_with)
        };
        let last = if settable {
            let variable = key.variable.as_ref().map(|name| format!("`{name}`"));
            format!("{} | {}", variable.unwrap_or_default(), meaning_of(&key))
        } else {
            format!("{} | {}", cell(&meaning_of(&key)), key.merge)
        };
        let last = if settable {
            cell(&last).replacen("\\|", "|", 1)
        } else {
            last
        };
        let _ = writeln!(
            out,
            "| `{}`{with} | {} | {} | {last} |",
            key.path,
            cell(&key.kind),
            cell(&default_of(&key)),
        );
        if key.status == Status::NotYet {
            waiting.push(format!("`{}`{with}", key.path));
        }
    }
    let _ = writeln!(
        out,
        "\n## Accepted and not acted on yet\n\nA key of this list that is given is checked and kept, with a warning.\n"
    );
    for key in waiting {
        let _ = writeln!(out, "- {key}");
    }
    out
}

#[test]
fn the_reference_pages_are_as_committed() {
    for kind in [
        DocumentKind::Experiment,
        DocumentKind::Task,
        DocumentKind::Master,
        DocumentKind::Agent,
    ] {
        let path = repository().join(format!("docs/reference/{kind}-configuration.md"));
        let made = page(kind);
        if std::env::var_os("DET_UPDATE").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == made,
            "{} is stale: DET_UPDATE=1 cargo test -p det-config --test pages",
            path.display()
        );
    }
}

/// What is not built yet and leaves keys waiting: the document, the begin of the path, what is missing.
const MISSING: &[(&str, &str, &str)] = &[
    ("experiment", "checkpoint_storage", "object stores"),
    ("experiment", "integrations", "webhooks and data lineage"),
    ("experiment", "slurm", "Slurm"),
    ("experiment", "pbs", "PBS"),
    ("task", "slurm", "Slurm"),
    ("task", "pbs", "PBS"),
    ("master", "security.ssh", "shells"),
    ("master", "security.authz", "roles"),
    ("master", "security.token", "access tokens"),
    ("master", "checkpoint_storage", "object stores"),
    ("master", "task_container_defaults.slurm", "Slurm"),
    ("master", "task_container_defaults.pbs", "PBS"),
    ("master", "ui_customization", "the web pages"),
    ("master", "logging", "Elasticsearch"),
    ("master", "telemetry.otel", "traces"),
    ("master", "webhooks", "webhooks"),
    (
        "master",
        "resource_manager",
        "Kubernetes, Slurm, PBS, certificates of agents",
    ),
    ("master", "resource_pools[].provider", "clouds"),
    ("master", "additional_resource_managers", "several managers"),
    ("master", "scim", "single sign-on"),
    ("master", "saml", "single sign-on"),
    ("master", "oidc", "single sign-on"),
    ("master", "det_cloud", "the hosted service"),
    ("master", "__internal", "the hosted service"),
    ("agent", "image_root", "images without an engine"),
];

/// What is not acted on yet belongs to what is not built; anything else would be an oversight.
#[test]
fn only_what_is_not_built_waits_to_be_acted_on() {
    for kind in [
        DocumentKind::Experiment,
        DocumentKind::Task,
        DocumentKind::Master,
        DocumentKind::Agent,
    ] {
        for key in kind.keys() {
            let excused = MISSING.iter().any(|(document, begin, _)| {
                *document == kind.name() && key.path.starts_with(begin)
            });
            let is_described = is_in_another_table(kind, &key.path);
            if key.status == Status::NotYet {
                assert!(
                    excused || is_described,
                    "{kind}: {} waits without a reason",
                    key.path
                );
            }
        }
        for (document, begin, what) in MISSING {
            let waits = kind
                .keys()
                .iter()
                .any(|key| key.path.starts_with(begin) && key.status == Status::NotYet);
            assert!(
                *document != kind.name() || waits,
                "{document}: {begin} ({what}) does not wait any more"
            );
        }
    }
}
