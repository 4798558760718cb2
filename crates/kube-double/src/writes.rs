//! Creating, replacing and patching objects.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission;
use crate::cluster::{Cluster, is_deleting};
use crate::failure::Failure;
use crate::patches;
use crate::services;
use crate::target::{Key, Resource, Target};
use crate::values::{moment, object, set, text, unset};

/// Whether a write is stored, or only checked (`dryRun=All`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Store,
    Check,
}

/// The kinds of patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchKind {
    Merge,
    Strategic,
    Json,
    /// Server-side apply: here a strategic merge that creates what is absent, without owners of fields.
    Apply,
}

/// Metadata that the API sets, whatever a request contains.
const OWN: &[&str] = &[
    "uid",
    "name",
    "namespace",
    "generation",
    "generateName",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "resourceVersion",
];

/// Creates an object.
pub(crate) fn create(
    cluster: &mut Cluster,
    target: &Target,
    mut body: Value,
    mode: Mode,
) -> Result<Arc<Value>, Failure> {
    check_body(target, &body)?;
    check_namespace(cluster, target)?;
    let name = match (
        text(&body, "/metadata/name"),
        text(&body, "/metadata/generateName"),
    ) {
        ("", "") => {
            let why = "Required value: name or generateName is required";
            let kind = "FieldValueRequired";
            return Err(Failure::invalid(target, "", kind, "metadata.name", why));
        }
        ("", prefix) => {
            let prefix: String = prefix.chars().take(58).collect();
            prefix + &cluster.next_suffix()
        }
        (name, _) => name.to_owned(),
    };
    let key = target.key(&name);
    if cluster.get(&key).is_some() {
        return Err(Failure::already_exists(&target.resource, &name));
    }
    let metadata = object(object(&mut body).entry("metadata").or_insert(Value::Null));
    for field in OWN.iter().filter(|field| **field != "generateName") {
        metadata.remove(*field);
    }
    metadata.insert("name".to_owned(), name.into());
    if let Some(namespace) = &target.namespace {
        metadata.insert("namespace".to_owned(), namespace.as_str().into());
    }
    metadata.insert("uid".to_owned(), cluster.next_uid().into());
    metadata.insert("creationTimestamp".to_owned(), moment(0).into());
    if body.get("spec").is_some() {
        set(&mut body, &["metadata", "generation"], 1);
    }
    identify(target, &mut body);
    admission::admit_new(cluster, target, &mut body)?;
    services::complete(cluster, target, &mut body);
    Ok(match mode {
        Mode::Store => cluster.put(&key, body),
        Mode::Check => Arc::new(body),
    })
}

/// Replaces an object, or its status, by one that was read before.
pub(crate) fn replace(
    cluster: &mut Cluster,
    target: &Target,
    body: Value,
    mode: Mode,
) -> Result<Arc<Value>, Failure> {
    check_body(target, &body)?;
    let (key, old) = existing(cluster, target)?;
    let name = text(&body, "/metadata/name");
    if name != key.name {
        let message = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            key.name
        );
        return Err(Failure::bad_request(message));
    }
    change(cluster, target, &key, &old, body, mode)
}

/// Patches an object, or its status.
pub(crate) fn patch(
    cluster: &mut Cluster,
    target: &Target,
    kind: PatchKind,
    patch: Value,
    mode: Mode,
) -> Result<Arc<Value>, Failure> {
    if kind != PatchKind::Json && !patch.is_object() {
        return Err(Failure::bad_request("a patch is an object"));
    }
    let (key, old) = match existing(cluster, target) {
        Err(failure)
            if failure.code == 404 && kind == PatchKind::Apply && target.subresource.is_none() =>
        {
            let mut body = patch;
            set(
                &mut body,
                &["metadata", "name"],
                target.name.clone().unwrap_or_default(),
            );
            return create(cluster, target, body, mode);
        }
        existing => existing?,
    };
    let mut new = Value::clone(&old);
    match kind {
        PatchKind::Merge => patches::merge(&mut new, &patch),
        PatchKind::Strategic | PatchKind::Apply => patches::strategic(&mut new, &patch),
        PatchKind::Json => patches::json_patch(&mut new, &patch)?,
    }
    check_body(target, &new)?;
    change(cluster, target, &key, &old, new, mode)
}

/// The object that a request names.
fn existing(cluster: &Cluster, target: &Target) -> Result<(Key, Arc<Value>), Failure> {
    let key = target.key(target.name.as_deref().unwrap_or_default());
    match cluster.get(&key) {
        Some(object) => Ok((key, Arc::clone(object))),
        None => Err(Failure::not_found(&target.resource, &key.name)),
    }
}

fn change(
    cluster: &mut Cluster,
    target: &Target,
    key: &Key,
    old: &Arc<Value>,
    mut new: Value,
    mode: Mode,
) -> Result<Arc<Value>, Failure> {
    for field in ["uid", "resourceVersion"] {
        let pointer = format!("/metadata/{field}");
        let (had, has) = (text(old, &pointer), text(&new, &pointer));
        if !has.is_empty() && had != has {
            let why = match field {
                "uid" => format!("Precondition failed: UID in precondition: {has}, UID in object meta: {had}"),
                _ => "the object has been modified; please apply your changes to the latest version and try again".to_owned(),
            };
            return Err(Failure::conflict(&key.resource, &key.name, &why));
        }
    }
    for field in OWN {
        match old.pointer(&format!("/metadata/{field}")) {
            Some(value) => set(&mut new, &["metadata", field], value.clone()),
            None => unset(&mut new, &["metadata", field]),
        }
    }
    identify(target, &mut new);
    let keep = |new: &mut Value, from: &Value, field: &str| match from.get(field) {
        Some(value) => set(new, &[field], value.clone()),
        None => unset(new, &[field]),
    };
    if target.subresource.as_deref() == Some("status") {
        let status = new;
        new = Value::clone(old);
        keep(&mut new, &status, "status");
    } else {
        keep(&mut new, old, "status");
        if target.resource == Resource::namespaces() {
            keep(&mut new, old, "spec");
        }
        admission::admit_changed(target, old, &mut new)?;
        services::complete(cluster, target, &mut new);
        if is_deleting(old) {
            check_finalizers(target, key, old, &new)?;
        }
        let of_user = |object: &Value| {
            let mut object = object.clone();
            unset(&mut object, &["metadata"]);
            object
        };
        if new.get("spec").is_some() && of_user(old) != of_user(&new) {
            let generation = crate::values::number(old, "/metadata/generation").unwrap_or(0);
            set(&mut new, &["metadata", "generation"], generation + 1);
        }
    }
    if new == **old {
        return Ok(Arc::clone(old));
    }
    Ok(match mode {
        Mode::Store => cluster.put(key, new),
        Mode::Check => Arc::new(new),
    })
}

/// No finalizer is added to what is being deleted.
fn check_finalizers(target: &Target, key: &Key, old: &Value, new: &Value) -> Result<(), Failure> {
    let had = crate::values::list(old, "/metadata/finalizers");
    let has = crate::values::list(new, "/metadata/finalizers");
    if has.iter().all(|finalizer| had.contains(finalizer)) {
        return Ok(());
    }
    let why = "Forbidden: no new finalizers can be added if the object is being deleted";
    let kind = "FieldValueForbidden";
    Err(Failure::invalid(
        target,
        &key.name,
        kind,
        "metadata.finalizers",
        why,
    ))
}

/// What a body must be to be read as an object of the target's kind.
fn check_body(target: &Target, body: &Value) -> Result<(), Failure> {
    let is_object = |pointer: &str| {
        body.pointer(pointer)
            .is_none_or(|value| value.is_object() || (value.is_null() && !pointer.is_empty()))
    };
    for (pointer, what) in [
        ("", "the object"),
        ("/metadata", "metadata"),
        ("/metadata/labels", "metadata.labels"),
        ("/metadata/annotations", "metadata.annotations"),
        ("/spec", "spec"),
        ("/status", "status"),
    ] {
        if !is_object(pointer) {
            let message = format!("json: cannot unmarshal: {what} is no object");
            return Err(Failure::bad_request(message));
        }
    }
    let kind = text(body, "/kind");
    let api_version = text(body, "/apiVersion");
    let is_known = target.resource.known().is_some();
    if (is_known && !kind.is_empty() && kind != target.kind())
        || (!api_version.is_empty() && api_version != target.api_version())
    {
        let message = format!(
            "{} in version \"{}\" cannot be handled as a {}: the object provided is unrecognized (kind {kind}, apiVersion \
             {api_version})",
            target.kind(),
            target.version,
            target.kind()
        );
        return Err(Failure::bad_request(message));
    }
    let namespace = text(body, "/metadata/namespace");
    if !namespace.is_empty() && target.namespace.as_deref() != Some(namespace) {
        let message =
            "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Failure::bad_request(message));
    }
    Ok(())
}

/// Objects are created in namespaces that exist and stay, and those without a namespace in none.
fn check_namespace(cluster: &Cluster, target: &Target) -> Result<(), Failure> {
    if let Some(known) = target.resource.known()
        && known.namespaced != target.namespace.is_some()
    {
        return Err(Failure::method_not_allowed());
    }
    let Some(namespace) = &target.namespace else {
        return Ok(());
    };
    let resource = Resource::namespaces();
    match cluster.get(&Key::new(resource.clone(), "", namespace)) {
        None => Err(Failure::not_found(&resource, namespace)),
        Some(found) if is_deleting(found) => {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            Err(Failure::forbidden(&target.resource, "", &why))
        }
        Some(_) => Ok(()),
    }
}

/// Sets kind and version of an object. Custom resources keep the kind that they were written with.
fn identify(target: &Target, object: &mut Value) {
    let kind = match target.resource.known() {
        None if !text(object, "/kind").is_empty() => text(object, "/kind").to_owned(),
        _ => target.kind(),
    };
    for (field, value) in [("kind", kind), ("apiVersion", target.api_version())] {
        set(object, &[field], json!(value));
    }
}
