//! Lists, whole or in pages.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::http::Parameters;
use crate::selectors::Filter;
use crate::target::{Key, Target};
use crate::values::{object, set, text};

/// Where a list goes on.
struct Position {
    /// The version that the first page showed.
    version: u64,
    /// Namespace and name of the last object that was shown.
    after: (String, String),
}

impl Position {
    fn parse(token: &str) -> Result<Self, Failure> {
        let bytes = URL_SAFE_NO_PAD.decode(token).unwrap_or_default();
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        match value.get("version").and_then(Value::as_u64) {
            Some(version) => Ok(Self {
                version,
                after: (
                    text(&value, "/namespace").to_owned(),
                    text(&value, "/name").to_owned(),
                ),
            }),
            None => Err(Failure::bad_request("continue key is not valid")),
        }
    }

    fn token(&self) -> String {
        let (namespace, name) = &self.after;
        let value = json!({"version": self.version, "namespace": namespace, "name": name});
        URL_SAFE_NO_PAD.encode(value.to_string())
    }
}

/// Answers a request for a list.
pub(crate) fn list(
    cluster: &Cluster,
    target: &Target,
    query: &Parameters,
) -> Result<Value, Failure> {
    let filter = Filter::parse(
        &target.resource,
        target.namespace.as_deref(),
        query.text("labelSelector"),
        query.text("fieldSelector"),
    )?;
    let position = match query.text("continue") {
        "" => None,
        token => Some(Position::parse(token)?),
    };
    let named = query.version("resourceVersion")?;
    let version = match &position {
        Some(position) => position.version,
        None if query.text("resourceVersionMatch") == "Exact" => named.unwrap_or_default(),
        None => match named {
            Some(named) if named > cluster.version() => named,
            _ => cluster.version(),
        },
    };
    if version > cluster.version() {
        return Err(Failure::too_large_version(version, cluster.version()));
    }
    if version < cluster.oldest() {
        return Err(Failure::expired(version, cluster.oldest()));
    }
    let is_after = |key: &Key| {
        position.as_ref().is_none_or(|position| {
            let (namespace, name) = &position.after;
            (&key.namespace, &key.name) > (namespace, name)
        })
    };
    let mut selected: Vec<_> = cluster
        .at_version(&target.resource, version)
        .into_iter()
        .filter(|(key, object)| is_after(key) && filter.matches(object))
        .collect();
    let mut metadata = json!({"resourceVersion": version.to_string()});
    let limit = query.text("limit").parse().unwrap_or(0);
    if limit > 0 && selected.len() > limit {
        let left = selected.len() - limit;
        selected.truncate(limit);
        if let Some((key, _)) = selected.last() {
            let after = (key.namespace.clone(), key.name.clone());
            let token = Position { version, after }.token();
            set(&mut metadata, &["continue"], token);
        }
        set(&mut metadata, &["remainingItemCount"], left);
    }
    let is_known = target.resource.known().is_some();
    let kind = match selected.first() {
        Some((_, first)) if !is_known => text(first, "/kind").to_owned(),
        _ => target.kind(),
    };
    let items: Vec<Value> = selected
        .into_iter()
        .map(|(_, item)| {
            let mut item = Value::clone(&item);
            if is_known {
                // Lists of the kinds of Kubernetes itself do not repeat them.
                for field in ["kind", "apiVersion"] {
                    object(&mut item).remove(field);
                }
            }
            item
        })
        .collect();
    Ok(json!({
        "kind": format!("{kind}List"),
        "apiVersion": target.api_version(),
        "metadata": metadata,
        "items": items,
    }))
}
