//! Configuration text of experiments, masters and agents: any text is a value or a list of errors.
//!
//! What is accepted also survives the way that a submitted document takes: completed, shown masked, stored, read again.
#![no_main]

use det_config::container::TaskContainerDefaults;
use det_config::experiment::{ExperimentConfig, mask_document};
use det_config::submitted::{CompletionDefaults, Experiment, SubmittedDocument};
use det_config::{LoadedAgent, LoadedMaster, Sources, yaml};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(node) = yaml::parse_bytes(data) else {
        return;
    };
    let text = std::str::from_utf8(data).expect("parsed, so it is text");
    // What is written is read as the same.
    let value = node.to_value();
    let again = yaml::parse(&yaml::to_yaml(&value)).map(|node| node.to_value());
    assert_eq!(again.as_ref(), Ok(&value));

    let files = [("file".into(), text.into())];
    let sources = Sources {
        files: &files,
        ..Sources::default()
    };
    let _ = LoadedMaster::load(sources);
    let _ = LoadedAgent::load(sources);

    let Ok(submitted) = SubmittedDocument::parse(Experiment, text) else {
        return;
    };
    let _ = submitted.under(&[]).placement();
    let _ = mask_document(&submitted.to_value());
    let container_defaults = TaskContainerDefaults::default();
    let defaults = CompletionDefaults {
        name: "fuzzed".into(),
        experiment_seed: 1,
        checkpoint_storage: None,
        task_container_defaults: &container_defaults,
        default_priority: Some(42),
        managed: true,
    };
    if let Ok(config) = submitted.complete(&defaults) {
        let stored = config.to_json();
        assert_eq!(ExperimentConfig::from_json(&stored).as_ref(), Ok(&config));
        let _ = config.masked_json();
    }
});
