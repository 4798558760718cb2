//! Memory of documents that are made to take as much as possible. One test, since it reads the peak of the whole process.

use det_config::container::TaskContainerDefaults;
use det_config::document::{CheckOptions, DocumentKind, check};
use det_config::submitted::{CompletionDefaults, Experiment, SubmittedDocument};
use det_config::yaml::MAX_TEXT_BYTES;

/// Most that one document may add to the memory of the process, in bytes.
const MOST: usize = 50 << 20;

/// The peak of the process's memory in bytes; `None` where the system does not report it.
fn peak() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// The text `begin`, as many times `piece` as fit into `bytes`, and `end`.
fn filled(begin: &str, piece: &str, end: &str, bytes: usize) -> String {
    let count = (bytes - begin.len() - end.len()) / piece.len();
    format!("{begin}{}{end}", piece.repeat(count))
}

#[test]
fn no_document_takes_more_than_fifty_mebibytes() {
    if peak().is_none() {
        println!("SKIPPED: this system does not report the memory of a process");
        return;
    }
    let head = "entrypoint: x\nsearcher: {name: random, metric: m, max_trials: 1}\n";
    let keys = |count: usize, name: &str| -> String {
        (0..count).map(|n| format!("{name}{n}: 0\n")).collect()
    };
    let values = format!("{head}hyperparameters: {{a: {{type: categorical, vals: [");
    let (whole, quarter) = (MAX_TEXT_BYTES, MAX_TEXT_BYTES / 4);
    let documents = [
        filled(&values, "0,", "0]}}", whole),
        filled(&values, "0,", "0]}}", quarter),
        filled(&values, "{a},", "0]}}", whole),
        filled(
            &format!("{head}bind_mounts: ["),
            "{},",
            "{}]",
            MAX_TEXT_BYTES / 64,
        ),
        filled("[", "[],", "[]]", whole),
        filled("{\"a\":\t[", "{\"a\":\t1},", "0]}", whole),
        filled(&format!("{head}description: "), "é", "", whole),
        format!("{head}{}", keys(40_000, "k")),
        format!("{head}hyperparameters:\n{}", keys(40_000, " k")),
        format!("{head}{}", "a: &a [*a]\n".repeat(20_000)),
        filled(
            &format!("{head}data: {{b: &b [0], a: ["),
            "*b,",
            "0]}",
            whole,
        ),
    ];
    let defaults = TaskContainerDefaults::default();
    for text in &documents {
        let begin: String = text.chars().take(120).collect();
        let before = peak().unwrap_or_default();
        if let Ok(submitted) = SubmittedDocument::read(Experiment, text) {
            let _ = submitted.under(&[]).placement();
            let _ = submitted.complete(&CompletionDefaults {
                name: "n".into(),
                experiment_seed: 0,
                checkpoint_storage: None,
                task_container_defaults: &defaults,
                default_priority: None,
                managed: true,
            });
        }
        for kind in [DocumentKind::Template, DocumentKind::Master] {
            let _ = check(kind, "a.yaml", text, CheckOptions::default());
        }
        let added = peak().unwrap_or_default() - before;
        assert!(
            added < MOST,
            "{added} bytes for {} bytes of {begin:?}",
            text.len()
        );
    }
}
