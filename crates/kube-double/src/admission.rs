//! What is checked and completed when an object is written.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::target::{Key, Resource, Target};
use crate::values::{
    flag, list, number, object, push, set, set_condition, set_default, text, texts, unset,
};

/// Bytes that the values of a `ConfigMap` or a `Secret` may have together.
const DATA_LIMIT: usize = 1024 * 1024;
/// Bytes that the annotations of an object may have together.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;
/// Pods that a Job may have, at once and in all.
const PODS_LIMIT: i64 = 100_000;
/// Why a change of a field that never changes is refused.
const IMMUTABLE: &str = "Invalid value: field is immutable";

/// Completes and checks a new object, whose metadata is complete.
pub(crate) fn admit_new(
    cluster: &Cluster,
    target: &Target,
    new: &mut Value,
) -> Result<(), Failure> {
    match (
        target.resource.group.as_str(),
        target.resource.plural.as_str(),
    ) {
        ("", "pods") => complete_pod(cluster, target, new)?,
        ("batch", "jobs") => complete_job(target, new)?,
        ("", "namespaces") => {
            let name = text(new, "/metadata/name").to_owned();
            set(
                new,
                &["metadata", "labels", "kubernetes.io/metadata.name"],
                name,
            );
            set(new, &["spec", "finalizers"], json!(["kubernetes"]));
            set(new, &["status"], json!({"phase": "Active"}));
        }
        ("", "secrets") => {
            let texts: Vec<(String, String)> = texts(new, "/stringData")
                .map(|(key, value)| (key.to_owned(), STANDARD.encode(value)))
                .collect();
            for (key, value) in texts {
                set(new, &["data", &key], value);
            }
            unset(new, &["stringData"]);
            set_default(new, &["type"], "Opaque");
        }
        _ => {}
    }
    check(target, new)
}

/// Checks a changed object, whose metadata is that of the old one where it cannot change.
pub(crate) fn admit_changed(target: &Target, old: &Value, new: &mut Value) -> Result<(), Failure> {
    let name = text(new, "/metadata/name").to_owned();
    let immutable =
        |field: &str| Failure::invalid(target, &name, "FieldValueInvalid", field, IMMUTABLE);
    if target.resource == Resource::jobs() {
        check_counts(target, new)?;
        if let Some(field) = changed_of_job(old, new) {
            return Err(immutable(field));
        }
    }
    if matches!(target.resource.plural.as_str(), "configmaps" | "secrets")
        && flag(old, "/immutable")
    {
        for field in ["data", "binaryData", "immutable"] {
            if old.get(field) != new.get(field) {
                return Err(Failure::invalid(
                    target,
                    &name,
                    "FieldValueForbidden",
                    field,
                    "Forbidden: field is immutable when `immutable` is set",
                ));
            }
        }
    }
    check(target, new)
}

/// What holds for every object.
fn check(target: &Target, new: &Value) -> Result<(), Failure> {
    let name = text(new, "/metadata/name");
    let invalid =
        |kind: &str, field: &str, why: &str| Err(Failure::invalid(target, name, kind, field, why));
    let is_of_rights = target.resource.group == "rbac.authorization.k8s.io";
    if !is_of_rights && !is_name(name) {
        let why = format!(
            "Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
             characters, '-' or '.', and must start and end with an alphanumeric character"
        );
        return invalid("FieldValueInvalid", "metadata.name", &why);
    }
    for pointer in ["/metadata/labels", "/spec/template/metadata/labels"] {
        let Some(labels) = new.pointer(pointer).and_then(Value::as_object) else {
            continue;
        };
        let field = pointer.trim_start_matches('/').replace('/', ".");
        for (key, value) in labels {
            if !is_label_key(key) {
                let why = format!(
                    "Invalid value: \"{key}\": name part must consist of alphanumeric characters, '-', '_' or '.'"
                );
                return invalid("FieldValueInvalid", &field, &why);
            }
            if !value.as_str().is_some_and(is_label_value) {
                let why = format!(
                    "Invalid value: {value}: a valid label must be an empty string or consist of at most 63 alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
                );
                return invalid("FieldValueInvalid", &field, &why);
            }
        }
    }
    let annotations: usize = texts(new, "/metadata/annotations")
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if annotations > ANNOTATIONS_LIMIT {
        let why = format!("Too long: may not be more than {ANNOTATIONS_LIMIT} bytes");
        return invalid("FieldValueTooLong", "metadata.annotations", &why);
    }
    if matches!(target.resource.plural.as_str(), "configmaps" | "secrets") {
        let plain = if target.resource.plural == "secrets" {
            0
        } else {
            texts(new, "/data").map(|(_, value)| value.len()).sum()
        };
        let encoded = if target.resource.plural == "secrets" {
            "/data"
        } else {
            "/binaryData"
        };
        let mut size: usize = plain;
        for (key, value) in texts(new, encoded) {
            let Ok(bytes) = STANDARD.decode(value) else {
                let message = format!("illegal base64 data in {key:?}");
                return Err(Failure::bad_request(message));
            };
            size += bytes.len();
        }
        if size > DATA_LIMIT {
            let why = format!("Too long: may not be more than {DATA_LIMIT} bytes");
            return invalid("FieldValueTooLong", "data", &why);
        }
    }
    Ok(())
}

fn is_alphanumeric_at_ends(text: &str) -> bool {
    let is_good = |letter: Option<char>| letter.is_some_and(|c| c.is_ascii_alphanumeric());
    is_good(text.chars().next()) && is_good(text.chars().last())
}

/// Whether a text can be an object's name: a DNS subdomain.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|part| {
            is_alphanumeric_at_ends(part)
                && part
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        })
}

fn is_label_value(value: &str) -> bool {
    value.is_empty()
        || (value.len() <= 63
            && is_alphanumeric_at_ends(value)
            && value
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)))
}

fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(is_name)
}

fn complete_pod(cluster: &Cluster, target: &Target, new: &mut Value) -> Result<(), Failure> {
    let name = text(new, "/metadata/name").to_owned();
    if list(new, "/spec/containers").is_empty() {
        return Err(Failure::invalid(
            target,
            &name,
            "FieldValueRequired",
            "spec.containers",
            "Required value",
        ));
    }
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("schedulerName", json!("default-scheduler")),
        ("serviceAccountName", json!("default")),
    ] {
        set_default(new, &["spec", field], value);
    }
    let class = text(new, "/spec/priorityClassName").to_owned();
    let priority = match class.as_str() {
        "" => Some(0),
        "system-cluster-critical" => Some(2_000_000_000),
        "system-node-critical" => Some(2_000_001_000),
        class => {
            let resource = Resource::new("scheduling.k8s.io", "priorityclasses");
            cluster
                .get(&Key::new(resource, "", class))
                .map(|class| number(class, "/value").unwrap_or(0))
        }
    };
    let Some(priority) = priority else {
        let why = format!("no PriorityClass with name {class} was found");
        return Err(Failure::forbidden(&target.resource, &name, &why));
    };
    set(new, &["spec", "priority"], priority);
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        let is_tolerated = list(new, "/spec/tolerations").iter().any(|toleration| {
            let of = text(toleration, "/key");
            let effect = text(toleration, "/effect");
            (of.is_empty() || of == key) && matches!(effect, "" | "NoExecute")
        });
        if !is_tolerated {
            let toleration = json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
            });
            push(new, &["spec", "tolerations"], toleration);
        }
    }
    set(new, &["status"], json!({"phase": "Pending"}));
    if !list(new, "/spec/schedulingGates").is_empty() {
        let message = "Scheduling is blocked due to non-empty scheduling gates";
        set_condition(new, "PodScheduled", "False", "SchedulingGated", message);
    }
    Ok(())
}

/// The numbers of pods of a Job are such as the API takes.
fn check_counts(target: &Target, job: &Value) -> Result<(), Failure> {
    for field in ["parallelism", "completions", "backoffLimit"] {
        let value = job.pointer(&format!("/spec/{field}"));
        let why = match value {
            None | Some(Value::Null) => continue,
            Some(value) => match value.as_i64() {
                Some(count) if count < 0 => {
                    format!("Invalid value: {count}: must be greater than or equal to 0")
                }
                Some(count) if count > PODS_LIMIT && field != "backoffLimit" => {
                    format!("Invalid value: {count}: must be less than or equal to {PODS_LIMIT}")
                }
                Some(_) => continue,
                None => return Err(Failure::bad_request(format!("spec.{field} is no number"))),
            },
        };
        let (name, field) = (text(job, "/metadata/name"), format!("spec.{field}"));
        return Err(Failure::invalid(
            target,
            name,
            "FieldValueInvalid",
            &field,
            &why,
        ));
    }
    Ok(())
}

fn complete_job(target: &Target, new: &mut Value) -> Result<(), Failure> {
    let name = text(new, "/metadata/name").to_owned();
    let uid = text(new, "/metadata/uid").to_owned();
    let refuse =
        |kind: &str, field: &str, why: &str| Err(Failure::invalid(target, &name, kind, field, why));
    check_counts(target, new)?;
    let restart = text(new, "/spec/template/spec/restartPolicy");
    if !matches!(restart, "Never" | "OnFailure") {
        let field = "spec.template.spec.restartPolicy";
        let why = "Required value: valid values: \"OnFailure\", \"Never\"";
        return refuse("FieldValueRequired", field, why);
    }
    if list(new, "/spec/template/spec/containers").is_empty() {
        let field = "spec.template.spec.containers";
        return refuse("FieldValueRequired", field, "Required value");
    }
    let has_policy = new.pointer("/spec/podFailurePolicy").is_some();
    if has_policy && restart != "Never" {
        let field = "spec.template.spec.restartPolicy";
        let why = format!(
            "Invalid value: \"{restart}\": only \"Never\" is supported when podFailurePolicy is specified"
        );
        return refuse("FieldValueInvalid", field, &why);
    }
    let is_alone = new.pointer("/spec/parallelism").is_none_or(Value::is_null)
        && new.pointer("/spec/completions").is_none_or(Value::is_null);
    if is_alone {
        set(new, &["spec", "completions"], 1);
    }
    let replacement = if has_policy {
        "Failed"
    } else {
        "TerminatingOrFailed"
    };
    for (field, value) in [
        ("parallelism", json!(1)),
        ("backoffLimit", json!(6)),
        ("completionMode", json!("NonIndexed")),
        ("suspend", json!(false)),
        ("podReplacementPolicy", json!(replacement)),
    ] {
        set_default(new, &["spec", field], value);
    }
    if has_policy && text(new, "/spec/podReplacementPolicy") != "Failed" {
        let field = "spec.podReplacementPolicy";
        let why = "Unsupported value: supported values: \"Failed\"";
        return refuse("FieldValueNotSupported", field, why);
    }
    if text(new, "/spec/completionMode") == "Indexed" {
        let Some(completions) = number(new, "/spec/completions") else {
            let field = "spec.completions";
            let why = "Required value: when completion mode is Indexed";
            return refuse("FieldValueRequired", field, why);
        };
        let longest = format!("{name}-{}", completions - 1);
        if longest.len() > 63 || longest.contains('.') {
            let why = format!(
                "Invalid value: \"{longest}\": will not be able to create pod with invalid DNS label"
            );
            return refuse("FieldValueInvalid", "metadata.name", &why);
        }
    }
    let selector = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": &uid}});
    set_default(new, &["spec", "selector"], selector);
    for (key, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("job-name", &name),
    ] {
        let path = ["spec", "template", "metadata", "labels", key];
        set(new, &path, value.as_str());
    }
    set(new, &["status"], json!({}));
    Ok(())
}

/// The first field of a Job that was changed and must not be; `None` if there is none. While a Job is suspended and has
/// not started, where its pods may run can change, as their labels and resources.
fn changed_of_job(old: &Value, new: &Value) -> Option<&'static str> {
    let differs = |pointer: &str| old.pointer(pointer) != new.pointer(pointer);
    for (pointer, field) in [
        ("/spec/selector", "spec.selector"),
        ("/spec/completionMode", "spec.completionMode"),
        ("/spec/podFailurePolicy", "spec.podFailurePolicy"),
        ("/spec/backoffLimitPerIndex", "spec.backoffLimitPerIndex"),
    ] {
        if differs(pointer) {
            return Some(field);
        }
    }
    // Indexed Jobs are elastic: both numbers change together.
    let is_elastic = text(new, "/spec/completionMode") == "Indexed"
        && number(new, "/spec/completions") == number(new, "/spec/parallelism");
    if differs("/spec/completions") && !is_elastic {
        return Some("spec.completions");
    }
    if !differs("/spec/template") {
        return None;
    }
    let is_waiting = flag(old, "/spec/suspend") && text(old, "/status/startTime").is_empty();
    let fixed = |job: &Value| {
        let mut template = job.pointer("/spec/template").cloned().unwrap_or_default();
        for path in [
            ["metadata", "labels"],
            ["metadata", "annotations"],
            ["spec", "nodeSelector"],
            ["spec", "affinity"],
            ["spec", "tolerations"],
            ["spec", "schedulingGates"],
        ] {
            unset(&mut template, &path);
        }
        for containers in ["containers", "initContainers"] {
            let containers = template.pointer_mut(&format!("/spec/{containers}"));
            for container in containers
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                object(container).remove("resources");
            }
        }
        template
    };
    (!is_waiting || fixed(old) != fixed(new)).then_some("spec.template")
}
