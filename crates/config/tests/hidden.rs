//! No error shows a secret: in place of every key that is or holds one, and of everything around it, is what is
//! none of what is allowed there.

use det_config::DocumentKind;
use det_config::document::{CheckOptions, check};
use serde_json::{Value, json};

const KINDS: [DocumentKind; 5] = [
    DocumentKind::Experiment,
    DocumentKind::Task,
    DocumentKind::Template,
    DocumentKind::Master,
    DocumentKind::Agent,
];

/// A document with a value at a path as [`det_config::Key`] has it, cut off after so many of its steps.
fn document(path: &str, goes_with: &str, steps: usize, value: &Value) -> Value {
    let all: Vec<&str> = path.split('.').collect();
    let mut document = value.clone();
    for (at, step) in all[..steps].iter().enumerate().rev() {
        let key = step.trim_end_matches("[]");
        for _ in 0..step.matches("[]").count() * usize::from(at + 1 < steps) {
            document = json!([document]);
        }
        document = json!({ key: document });
        // The key that selects the variant is in the section of the key.
        if let (true, Some((tag, name))) = (at + 1 == all.len(), goes_with.split_once(' ')) {
            document[tag] = name.into();
        }
    }
    document
}

fn errors(kind: DocumentKind, text: &str) -> String {
    check(kind, "a.yaml", text, CheckOptions::default())
        .map_or_else(|errors| errors.to_string(), |_| String::new())
}

#[test]
fn no_error_shows_what_is_in_place_of_a_secret() {
    let wrong = [
        json!("u:hush1"),
        json!("hush2"),
        json!(["u:hush3"]),
        json!(["API_TOKEN: hush4"]),
        json!(["API_TOKEN =hush5"]),
        json!("API_TOKEN=hush6"),
        json!({"api_token": "hush7"}),
        json!([["hush8"]]),
        json!("hush9\nhush10"),
    ];
    let mut refused = 0;
    for kind in KINDS {
        for key in kind.keys() {
            let variables = key.path.ends_with("environment_variables");
            if !(key.secret || variables || key.path == "data") {
                continue;
            }
            for steps in 1..=key.path.split('.').count() {
                for wrong in &wrong {
                    let document = document(&key.path, &key.goes_with, steps, wrong);
                    let message = errors(kind, &document.to_string());
                    refused += usize::from(!message.is_empty());
                    assert!(!message.contains("hush"), "{document}: {message}");
                }
            }
        }
    }
    assert!(refused > 500, "only {refused} documents were refused");
}

#[test]
fn errors_show_no_variables_in_the_wrong_place() {
    for text in [
        "bind_mounts: [\"TOKEN=hush\"]",
        "bind_mounts: TOKEN=hush",
        "labels: {a: [\"TOKEN=hush\"]}",
        "max_restarts: TOKEN=hush",
        "resources: {slots_per_trial: \"TOKEN: hush\", shm_size: TOKEN=hush}",
        "environment: {image: [TOKEN=hush], environment_variables: {\"TOKEN=hush\": 1}}",
        "environment: [TOKEN=hush]",
        "environment: TOKEN=hush",
        "environment: {environment_variables: {cpu: TOKEN=hush}}",
        "data: hush",
        "registry_auth: u:hush",
        "registry_auth: {auth: hush}",
        "environment:\nregistry_auth: u:hush",
        "environment:\nenvironment_variables: [API_TOKEN=hush]",
        "environment_variables: API_TOKEN=hush",
        "environment_variables: {API_TOKEN: hush}",
        "image: x\ndata: {secrets: {a: hush}}",
        "environment: {pod_spec: {spec: {containers: [{env: hush}]}}}",
        "searcher: {name: TOKEN=hush}",
        "preemption_timeout: TOKEN=hush",
    ] {
        let message = errors(DocumentKind::Experiment, text);
        assert!(!message.is_empty(), "{text} is no error");
        assert!(!message.contains("hush"), "{text}: {message}");
    }
}

#[test]
fn errors_of_overrides_and_whole_texts_show_no_secrets() {
    for (text, given) in [
        ("{}", "environment.environment_variables=API_TOKEN=hush"),
        ("{}", "environment.registry_auth=u:hush"),
        ("{}", "data=hush"),
        ("{}", "bind_mounts=TOKEN=hush"),
        ("u:hush", "max_restarts=1"),
    ] {
        let options = CheckOptions {
            overrides: &[given.to_owned()],
            partial: true,
            ..CheckOptions::default()
        };
        let message = check(DocumentKind::Experiment, "a.yaml", text, options)
            .map_or_else(|errors| errors.to_string(), |_| String::new());
        assert!(!message.is_empty(), "{text} with {given} is no error");
        assert!(!message.contains("hush"), "{text} with {given}: {message}");
    }
}
