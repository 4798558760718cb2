//! The committed description of the API is that of the routes, and every operation is one that clients know or one that
//! we have added on purpose.

use std::collections::BTreeSet;
use std::path::PathBuf;

use det_server::http::openapi;
use serde_json::Value;

/// Operations of our own, and those that the bindings of clients do not know because they are outside the API.
const OURS: &[&str] = &[
    "DiagnoseTrial",
    "DownloadCheckpoint",
    "DownloadModelDef",
    "DownloadModelDefFile",
    "ExplainJob",
    "GetEvents",
    "GetMasterConfigOrigins",
    "GetMasterMemory",
    "GetPrometheusMetrics",
    "GetTaskSystemMetrics",
    "RevokeAgent",
    "Info",
    "PlainLogin",
    "PlainLogout",
    "PlainMe",
    "PlainTasks",
    "PostAllocationDiagnosis",
    "PostUnmanagedLogs",
    "PreviewCheckpointPolicy",
    "ReloadMasterConfig",
    "ReportSystemMetrics",
    "ReportTaskSystemMetrics",
];

fn committed() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../openapi/det.json")
}

fn operations(document: &Value) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for (path, methods) in document["paths"]
        .as_object()
        .expect("a document with paths")
    {
        for (method, operation) in methods.as_object().expect("methods of a path") {
            let id = operation["operationId"]
                .as_str()
                .unwrap_or_else(|| panic!("{method} {path} has no name"));
            found.push((id.to_owned(), method.to_uppercase(), path.clone()));
        }
    }
    found
}

#[test]
fn the_committed_document_is_up_to_date() {
    let text = openapi::text();
    if std::env::var_os("DET_UPDATE").is_some_and(|v| v == "1") {
        std::fs::write(committed(), &text).unwrap();
    }
    let stored = std::fs::read_to_string(committed()).unwrap_or_default();
    assert!(
        stored == text,
        "openapi/det.json differs from the routes: run DET_UPDATE=1 cargo test -p det-server --test openapi"
    );
}

#[test]
fn every_operation_is_known_and_at_its_place() {
    let document: Value = serde_json::from_str(&openapi::text()).unwrap();
    let operations = operations(&document);
    let mut seen = BTreeSet::new();
    for (id, method, path) in &operations {
        assert!(seen.insert(id), "operation {id} exists twice");
        match det_api_types::operation::by_name(id) {
            Some(known) => {
                assert_eq!(known.method.as_str(), method, "{id}");
                assert_eq!(shape(known.path), shape(path), "{id}");
            }
            None => assert!(
                OURS.contains(&id.as_str()),
                "operation {id} ({method} {path}) is unknown and not listed as ours"
            ),
        }
    }
    for id in OURS {
        assert!(
            seen.contains(&(*id).to_owned()),
            "{id} is listed as ours and not built"
        );
    }
}

/// A path without the names of its parameters.
fn shape(path: &str) -> Vec<&str> {
    path.split('/')
        .map(|part| if part.starts_with('{') { "{}" } else { part })
        .collect()
}

/// Every `$ref` in the document with the place where it is.
fn references(value: &Value, place: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(entries) => {
            if let Some(Value::String(target)) = entries.get("$ref") {
                found.push((place.to_owned(), target.clone()));
            }
            for (key, inner) in entries {
                references(inner, &format!("{place}/{key}"), found);
            }
        }
        Value::Array(items) => {
            for (number, inner) in items.iter().enumerate() {
                references(inner, &format!("{place}/{number}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_reference_of_the_document_resolves() {
    let document: Value = serde_json::from_str(&openapi::text()).unwrap();
    let mut found = Vec::new();
    references(&document, "#", &mut found);
    assert!(found.len() > 100, "{} references", found.len());
    let broken: Vec<_> = found
        .iter()
        .filter(|(_, target)| {
            let pointer = target.strip_prefix('#').unwrap_or("/not/local");
            document.pointer(pointer).is_none()
        })
        .collect();
    assert!(
        broken.is_empty(),
        "references to nothing; a type of a query is added in http/openapi.rs: {broken:#?}"
    );
}

/// Schemas of objects that allow no member at all, with their places.
fn empty_objects(value: &Value, place: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(entries) => {
            let is_object = entries.get("type").is_some_and(|kind| match kind {
                Value::Array(kinds) => kinds.iter().any(|kind| kind == "object"),
                kind => kind == "object",
            });
            let says = [
                "properties",
                "additionalProperties",
                "allOf",
                "oneOf",
                "anyOf",
            ];
            if is_object && !says.iter().any(|key| entries.contains_key(*key)) {
                found.push(place.to_owned());
            }
            for (key, inner) in entries {
                empty_objects(inner, &format!("{place}/{key}"), found);
            }
        }
        Value::Array(items) => {
            for (number, inner) in items.iter().enumerate() {
                empty_objects(inner, &format!("{place}/{number}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn free_json_is_described_as_free() {
    let document: Value = serde_json::from_str(&openapi::text()).unwrap();
    let mut found = Vec::new();
    empty_objects(&document, "#", &mut found);
    // Generators make of these objects that can have no member.
    assert_eq!(found, ["#/components/schemas/Empty"]);
}

#[test]
fn every_answer_is_described() {
    let document: Value = serde_json::from_str(&openapi::text()).unwrap();
    for (id, method, path) in operations(&document) {
        let answers = &document["paths"][&path][method.to_lowercase()]["responses"];
        for (status, answer) in answers.as_object().unwrap() {
            let text = answer["description"].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{id}: {status} without a description");
        }
    }
}
