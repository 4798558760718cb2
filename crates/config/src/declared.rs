//! What `keys!` does not declare: structs of other crates, and unions. Their fields must be the keys of the schema.

use std::collections::BTreeSet;

use det_taskspec::{BindMount, DeviceMapping, RegistryAuth};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::experiment::Searcher;
use crate::experiment::schema::EXPERIMENT;
use crate::master::schema::MASTER;
use crate::master::{AgentManager, ManagerSettings, ResourceManager};
use crate::schema::{Field, Kind, Need, Note, Section, Union};
use crate::storage::{CheckpointStorage, StorageLocation};

fn members(value: &impl Serialize) -> BTreeSet<String> {
    match serde_json::to_value(value).unwrap() {
        Value::Object(members) => members.into_iter().map(|(key, _)| key).collect(),
        other => panic!("{other} is no map"),
    }
}

fn names<'f>(fields: impl IntoIterator<Item = &'f Field>) -> BTreeSet<String> {
    let fields = fields.into_iter();
    fields.map(|field| field.name.to_owned()).collect()
}

/// What is at a path: of a list its elements, of a shape with a rule of its own what that is made of.
fn kind_at(section: &'static Section, path: &[&str]) -> Kind {
    let field = section.field(path[0]).unwrap();
    match (&path[1..], inner(field.kind)) {
        ([], kind) => kind,
        (rest, Kind::Section(inner)) => kind_at(inner, rest),
        (_, kind) => panic!("{kind:?} has no keys"),
    }
}

fn inner(kind: Kind) -> Kind {
    match kind {
        Kind::List(item) => inner(*item),
        Kind::Special(special) => special.inner.map_or(kind, inner),
        kind => kind,
    }
}

fn section_at(path: &[&str]) -> &'static Section {
    match kind_at(&EXPERIMENT, path) {
        Kind::Section(section) => section,
        kind => panic!("{kind:?} is no section"),
    }
}

fn union_at(root: &'static Section, key: &str) -> &'static Union {
    match kind_at(root, &[key]) {
        Kind::Union(union) => union,
        kind => panic!("{kind:?} is no union"),
    }
}

/// The keys of one variant, its tag and the common ones included.
fn variant_names(union: &'static Union, name: &str) -> BTreeSet<String> {
    let variant = union.variant(name).unwrap();
    let mut found = names(union.common.iter().chain(variant.fields));
    found.insert(union.tag.to_owned());
    found
}

#[test]
fn structs_of_other_crates_have_the_keys_of_the_schema() {
    let text = || Some("x".to_owned());
    let device = DeviceMapping {
        host_path: "/a".into(),
        container_path: "/b".into(),
        mode: "mrw".into(),
    };
    let devices = section_at(&["resources", "devices"]);
    assert_eq!(members(&device), names(devices.fields));
    let mount = BindMount {
        host_path: "/a".into(),
        container_path: "/b".into(),
        read_only: false,
        propagation: "rprivate".into(),
    };
    let mounts = section_at(&["bind_mounts"]);
    assert_eq!(members(&mount), names(mounts.fields));
    let auth = RegistryAuth {
        username: text(),
        password: text(),
        serveraddress: text(),
        email: text(),
        auth: text(),
        identitytoken: text(),
        registrytoken: text(),
    };
    let registry = section_at(&["environment", "registry_auth"]);
    assert_eq!(members(&auth), names(registry.fields));
}

#[test]
fn every_kind_of_storage_has_the_keys_of_its_variant() {
    let text = || Some("x".to_owned());
    let word = || "x".to_owned();
    let union = union_at(&EXPERIMENT, "checkpoint_storage");
    for location in [
        StorageLocation::SharedFs {
            host_path: word(),
            storage_path: text(),
            propagation: word(),
        },
        StorageLocation::Directory {
            container_path: word(),
        },
        StorageLocation::S3 {
            bucket: word(),
            access_key: text(),
            secret_key: text(),
            endpoint_url: text(),
            prefix: text(),
        },
        StorageLocation::Gcs {
            bucket: word(),
            prefix: text(),
        },
        StorageLocation::Azure {
            container: word(),
            connection_string: text(),
            account_url: text(),
            credential: text(),
        },
    ] {
        let name = location.type_name();
        let storage = CheckpointStorage {
            save_experiment_best: 0,
            save_trial_best: 1,
            save_trial_latest: 1,
            location,
        };
        let known = variant_names(union, name);
        let read: BTreeSet<String> = {
            let variant = union.variant(name).unwrap();
            let fields = union.common.iter().chain(variant.fields);
            names(fields.filter(|field| !matches!(field.note, Note::Warn(_))))
        };
        let held = members(&storage);
        assert!(held.is_subset(&known), "{name}: {held:?} {known:?}");
        assert!(read.is_subset(&held), "{name}: {read:?} {held:?}");
    }
}

/// A value with what the schema fills in below it.
fn filled(kind: Kind, mut value: Value) -> Value {
    if let (Kind::Section(section), Value::Object(members)) = (kind, &mut value) {
        for field in section.fields {
            if let Some(default) = field.default
                && !members.contains_key(field.name)
            {
                let default = filled(field.kind, serde_json::from_str(default).unwrap());
                members.insert(field.name.to_owned(), default);
            }
        }
    }
    value
}

/// Checks that the type reads a variant exactly when all that the schema requires is given, and that what the schema fills in
/// is what the type then has. `required` = a value for each key that the schema requires.
fn agrees<T: Serialize + DeserializeOwned>(union: &'static Union, name: &str, required: &Value) {
    let variant = union.variant(name).unwrap();
    let fields: Vec<&Field> = union.common.iter().chain(variant.fields).collect();
    let is_required = |field: &&&Field| field.need != Need::Optional;
    let declared = names(fields.iter().filter(is_required).copied());
    assert_eq!(members(required), declared, "{name}: what is required");
    let mut whole = required.clone();
    whole[union.tag] = json!(name);
    for field in &fields {
        if let Some(default) = field.default {
            whole[field.name] = filled(field.kind, serde_json::from_str(default).unwrap());
        }
    }
    let read = |document: &Value| serde_json::from_value::<T>(document.clone());
    let value = read(&whole).unwrap_or_else(|error| panic!("{name}: {error}"));
    let written = serde_json::to_value(&value).unwrap();
    for field in &fields {
        let given = whole.get(field.name).unwrap_or(&Value::Null);
        let kept = written.get(field.name).unwrap_or(&Value::Null);
        assert_eq!(kept, given, "{name}: {}", field.name);
    }
    for key in declared {
        let mut less = whole.clone();
        less.as_object_mut().unwrap().remove(&key);
        assert!(read(&less).is_err(), "{name} is read without \"{key}\"");
    }
}

#[test]
fn types_require_and_have_what_the_schema_of_their_union_requires_and_fills_in() {
    let storage = union_at(&EXPERIMENT, "checkpoint_storage");
    for (name, required) in [
        ("shared_fs", json!({"host_path": "/a"})),
        ("directory", json!({"container_path": "/a"})),
        ("s3", json!({"bucket": "b"})),
        ("gcs", json!({"bucket": "b"})),
        ("azure", json!({"container": "c"})),
    ] {
        agrees::<CheckpointStorage>(storage, name, &required);
    }
    let searcher = union_at(&EXPERIMENT, "searcher");
    let compared = json!({"metric": "l", "max_trials": 2, "time_metric": "batches", "max_time": 9});
    let mut halving = compared.clone();
    halving["num_rungs"] = json!(2);
    for (name, required) in [
        ("single", json!({"metric": "l"})),
        ("random", json!({"metric": "l", "max_trials": 2})),
        ("grid", json!({"metric": "l"})),
        ("async_halving", halving),
        ("adaptive_asha", compared),
    ] {
        agrees::<Searcher>(searcher, name, &required);
    }
    let manager = union_at(&MASTER, "resource_manager");
    for name in ["agent", "kubernetes"] {
        agrees::<ResourceManager>(manager, name, &json!({}));
    }
}

#[test]
fn every_search_method_and_manager_is_written_with_known_keys() {
    let union = union_at(&EXPERIMENT, "searcher");
    for searcher in [
        json!({"name": "single", "metric": "l", "max_length": 3}),
        json!({"name": "random", "metric": "l", "max_trials": 2}),
        json!({"name": "grid", "metric": "l"}),
        json!({"name": "async_halving", "metric": "l", "max_trials": 2, "num_rungs": 2, "time_metric": "batches", "max_time": 9}),
        json!({"name": "adaptive_asha", "metric": "l", "max_trials": 2, "time_metric": "batches", "max_time": 9}),
    ] {
        let name = searcher["name"].as_str().unwrap().to_owned();
        let document = json!({"name": "n", "entrypoint": "x", "searcher": searcher,
            "hyperparameters": {}, "reproducibility": {"experiment_seed": 1},
            "checkpoint_storage": {"type": "shared_fs", "host_path": "/a"}});
        let mut root = crate::yaml::Node::from(&document);
        let mut findings = crate::schema::Findings::new(
            &crate::experiment::schema::DOCUMENT,
            crate::schema::Stage::Complete,
        );
        crate::schema::check_document(&mut findings, &mut root);
        findings.finish().unwrap();
        let whole = crate::container::with_defaults(root, &EXPERIMENT);
        let config: crate::ExperimentConfig = whole.typed().unwrap();
        let held = members(&config.to_json()["searcher"]);
        let known = variant_names(union, &name);
        assert!(held.is_subset(&known), "{name}: {held:?} {known:?}");
    }
    let manager = ResourceManager {
        settings: ManagerSettings::Agent(AgentManager {
            require_authentication: false,
            client_ca: String::new(),
        }),
        cluster_name: "c".into(),
        metadata: std::collections::BTreeMap::new(),
        scheduler: None,
        default_aux_resource_pool: None,
        default_compute_resource_pool: None,
        no_default_resource_pools: false,
    };
    let known = variant_names(union_at(&MASTER, "resource_manager"), "agent");
    let held = members(&manager);
    assert!(held.is_subset(&known), "{held:?} {known:?}");
}
