//! What `det config check` tells: every line names the file.

use det_config::document::{CheckOptions, DocumentKind, check};

/// All lines about a document, mistakes or warnings.
fn told(kind: &str, text: &str) -> Vec<String> {
    let kind = DocumentKind::from_name(kind).expect("a kind of document");
    match check(kind, "some.yaml", text, CheckOptions::default()) {
        Ok(checked) => checked
            .warnings
            .iter()
            .map(det_config::ConfigWarning::located)
            .collect(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn every_mistake_and_every_warning_names_the_file() {
    for (kind, text, expected) in [
        (
            "master",
            "resource_manager: {scheduler: {type: priority}}\nresource_pools:\n  - pool_name: default\n    scheduler: {type: fair_share}\n",
            "some.yaml:4:5: resource_pools[0].scheduler: warning: resource pool \"default\" has a scheduler of its own",
        ),
        (
            "master",
            "scheduler: {fit: best}\n",
            "some.yaml:1:1: scheduler: warning:",
        ),
        (
            "master",
            "resource_manager: {default_aux_resource_pool: nowhere}\n",
            "some.yaml:1:20: resource_manager.default_aux_resource_pool: ",
        ),
        (
            "experiment",
            "name: x\nentrypoint: a\nsearcher: {name: single, metric: m, max_length: {batches: 1}}\n",
            "some.yaml:3:",
        ),
        ("experiment", "name: x\n", "some.yaml"),
        ("experiment", "[", "some.yaml"),
        ("experiment", "", "some.yaml"),
        (
            "template",
            "resources: {slot: 1}\n",
            "some.yaml:1:13: resources.slot",
        ),
        (
            "notebook",
            "resources: {slots: -1}\n",
            "some.yaml:1:13: resources.slots",
        ),
        ("agent", "slot_type: cpu\n", "some.yaml"),
        (
            "agent",
            "fluent: {image: x}\nmaster_host: h\n",
            "some.yaml:1:1: fluent",
        ),
    ] {
        let lines = told(kind, text);
        assert!(!lines.is_empty(), "{kind}: {text}");
        assert!(
            lines.iter().any(|line| line.starts_with(expected)),
            "{kind}: {text}: {lines:#?} lacks {expected}"
        );
        for line in lines {
            assert!(line.starts_with("some.yaml"), "{kind}: {text}: {line}");
        }
    }
}
