//! Cases that are data: `testdata/config`. Each is run through the reader of its kind, and what is accepted must be
//! accepted by the committed JSON schema as well, through a validator of its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "json_schema/validator.rs"]
mod validator;

use std::collections::BTreeMap;
use std::path::PathBuf;

use det_config::document::{self, CheckOptions};
use det_config::errors::{ConfigErrors, ConfigWarning};
use det_config::submitted::{
    CompletionDefaults, Experiment, SubmittedDocument, SubmittedTask, TaskDefaults,
};
use det_config::task::LaunchKind;
use det_config::{
    DocumentKind, LoadedAgent, LoadedConfig, LoadedMaster, Sources, TaskContainerDefaults, Template,
};
use serde::Serialize;
use serde_json::{Value, json};

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = repository().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

struct Case {
    name: String,
    kind: Option<String>,
    text: String,
    under: Vec<String>,
    becomes: BTreeMap<String, Value>,
    warns: Vec<String>,
    errors: Vec<String>,
    repaired: Option<String>,
    editor_refuses: bool,
}

fn strings(value: &Value) -> Vec<String> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| {
            item.as_str()
                .map_or_else(|| item.to_string(), str::to_owned)
        })
        .collect()
}

fn cases(name: &str) -> Vec<Case> {
    let text = read(&format!("testdata/config/{name}.yaml"));
    let whole = det_config::yaml::parse(&text)
        .unwrap_or_else(|errors| panic!("{name}: {errors}"))
        .to_value();
    let known = [
        "case", "kind", "text", "adds", "under", "becomes", "warns", "errors", "repaired", "editor",
    ];
    whole
        .as_array()
        .unwrap()
        .iter()
        .map(|case| {
            for key in case.as_object().unwrap().keys() {
                assert!(known.contains(&key.as_str()), "{case}: no such key as {key}");
            }
            let text = match (case["text"].as_str(), case["adds"].as_str()) {
                (Some(text), _) => text.to_owned(),
                (None, Some(more)) => {
                    format!("entrypoint: python3 train.py\nsearcher: {{name: single, metric: loss}}\n{more}\n")
                }
                (None, None) => panic!("{case} has no document"),
            };
            let becomes = case["becomes"].as_object().cloned().unwrap_or_default();
            let case = Case {
                name: case["case"].as_str().unwrap().to_owned(),
                kind: case["kind"].as_str().map(str::to_owned),
                text,
                under: strings(&case["under"]),
                becomes: becomes.into_iter().collect(),
                warns: strings(&case["warns"]),
                errors: strings(&case["errors"]),
                repaired: case["repaired"].as_str().map(str::to_owned),
                editor_refuses: case["editor"] == "refuses",
            };
            assert!(
                case.errors.is_empty() || (case.becomes.is_empty() && case.warns.is_empty()),
                "{}: a document with errors becomes nothing",
                case.name
            );
            case
        })
        .collect()
}

/// What became of a document: its effective form and warnings, or errors.
type Outcome = Result<(Value, Vec<ConfigWarning>), ConfigErrors>;

fn experiment(case: &Case) -> Outcome {
    let none: [&str; 0] = [];
    let mut whole = SubmittedDocument::read_file(Experiment, "case.yaml", &case.text, &none)?;
    for under in &case.under {
        whole = whole.over(SubmittedDocument::read(Experiment, under)?);
    }
    let warnings = whole.warnings.clone();
    let config = whole.complete(&CompletionDefaults {
        name: "n".into(),
        experiment_seed: 1,
        checkpoint_storage: Some(json!({"type": "shared_fs", "host_path": "/cluster"})),
        task_container_defaults: &TaskContainerDefaults::default(),
        default_priority: None,
        managed: true,
    })?;
    Ok((config.to_json(), warnings))
}

fn task(case: &Case) -> Outcome {
    let name = case.kind.as_deref().unwrap();
    let kind = LaunchKind::ALL
        .into_iter()
        .find(|kind| kind.name() == name)
        .unwrap();
    let none: [&str; 0] = [];
    let mut whole = SubmittedTask::read_file(kind, "case.yaml", &case.text, &none)?;
    for under in &case.under {
        whole = whole.over(SubmittedTask::read(kind, under)?);
    }
    let warnings = whole.warnings.clone();
    let config = whole.complete(&TaskDefaults {
        description: "d".into(),
        task_container_defaults: &TaskContainerDefaults::default(),
        default_priority: None,
        has_context: false,
    })?;
    Ok((config.to_json(), warnings))
}

fn process<C: Serialize>(
    case: &Case,
    load: impl Fn(Sources<'_>) -> Result<LoadedConfig<C>, ConfigErrors>,
) -> Outcome {
    let files = [("file.yaml".to_owned(), case.text.clone())];
    let loaded = load(Sources {
        files: &files,
        ..Sources::default()
    })?;
    Ok((
        serde_json::to_value(&loaded.config).unwrap(),
        loaded.warnings,
    ))
}

/// The value at a path, `a.b[0].c`; null when there is none.
fn at<'v>(value: &'v Value, path: &str) -> &'v Value {
    path.replace('[', ".[")
        .split('.')
        .filter(|step| !step.is_empty())
        .fold(value, |value, step| match step.strip_prefix('[') {
            Some(index) => &value[index.trim_end_matches(']').parse::<usize>().unwrap()],
            None => &value[step],
        })
}

fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|n| Some(n) == b.as_f64())
}

fn run(name: &str, outcome: impl Fn(&Case) -> Outcome) {
    let schema: Value = serde_json::from_str(&read(&format!("schemas/{name}.json"))).unwrap();
    let mut wrong = Vec::new();
    for case in cases(name) {
        let mut say = |text: String| wrong.push(format!("{}: {text}", case.name));
        match outcome(&case) {
            Ok((effective, warnings)) => {
                if !case.errors.is_empty() {
                    say("is accepted".into());
                }
                for (path, expected) in &case.becomes {
                    let found = at(&effective, path);
                    if !same(found, expected) {
                        say(format!("{path} becomes {found}, not {expected}"));
                    }
                }
                let reported: Vec<String> = warnings.iter().map(ToString::to_string).collect();
                for expected in &case.warns {
                    if !reported.iter().any(|warning| warning.contains(expected)) {
                        say(format!("no warning of {reported:?} has {expected:?}"));
                    }
                }
                for warning in &reported {
                    if !case.warns.iter().any(|expected| warning.contains(expected)) {
                        say(format!("warns unexpectedly: {warning}"));
                    }
                }
            }
            Err(errors) => {
                let reported = errors.to_string();
                if case.errors.is_empty() {
                    say(format!("is refused: {reported}"));
                }
                for expected in &case.errors {
                    if !reported.contains(expected.as_str()) {
                        say(format!("{reported:?} lacks {expected:?}"));
                    }
                }
                if case.repaired.as_deref() != errors.repaired() {
                    say(format!("is repaired to {:?}", errors.repaired()));
                }
            }
        }
        let Ok(document) = det_config::yaml::parse(&case.text) else {
            continue;
        };
        let document = match document.to_value() {
            // An empty file is an empty document.
            Value::Null => json!({}),
            document => document,
        };
        let errors = validator::errors(&schema, &document);
        if case.errors.is_empty() && !errors.is_empty() {
            say(format!("is refused by the JSON schema: {errors:?}"));
        }
        if case.editor_refuses && errors.is_empty() {
            say("is accepted by the JSON schema".into());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn experiments() {
    run("experiment", experiment);
}

#[test]
fn tasks() {
    run("task", task);
}

#[test]
fn templates() {
    run("template", |case| {
        let template = Template::parse(None, &case.text)?;
        Ok((Value::Null, template.warnings))
    });
}

#[test]
fn masters() {
    run("master", |case| process(case, LoadedMaster::load));
}

#[test]
fn agents() {
    run("agent", |case| process(case, LoadedAgent::load));
}

#[test]
fn the_examples_of_the_repository_are_experiments() {
    let schema: Value = serde_json::from_str(&read("schemas/experiment.json")).unwrap();
    let mut count = 0;
    for directory in std::fs::read_dir(repository().join("examples")).unwrap() {
        let directory = directory.unwrap().path();
        if !directory.is_dir() {
            continue;
        }
        for file in std::fs::read_dir(directory).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|ending| ending != "yaml") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let name = path.display().to_string();
            let guess = document::guess(&name, &text).unwrap();
            assert_eq!(guess.kind, DocumentKind::Experiment, "{name}");
            document::check(guess.kind, &name, &text, CheckOptions::default())
                .unwrap_or_else(|errors| panic!("{errors}"));
            let value = det_config::yaml::parse(&text).unwrap().to_value();
            assert_eq!(
                validator::errors(&schema, &value),
                Vec::<String>::new(),
                "{name}"
            );
            count += 1;
        }
    }
    assert!(count >= 5, "{count} examples");
}

#[test]
fn the_json_schemas_are_as_committed() {
    for kind in DocumentKind::SCHEMAS {
        let path = repository().join(format!("schemas/{kind}.json"));
        let made = serde_json::to_string_pretty(&kind.json_schema()).unwrap() + "\n";
        if std::env::var_os("DET_UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &made).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == made,
            "{} is stale: DET_UPDATE=1 cargo test -p det-config --test vectors",
            path.display()
        );
    }
}
