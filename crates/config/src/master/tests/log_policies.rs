//! Log policies that earlier versions accepted.

use super::*;

/// A version without limits of patterns has started with them.
#[test]
fn log_policies_that_are_too_large_are_left_out_and_reported() {
    let long = "x".repeat(5_000);
    let text = format!(
        "task_container_defaults: {{log_policies: [{{name: long, pattern: {long}}}, {{name: large, pattern: '\\w{{11}}'}}, {{name: kept, pattern: good}}]}}"
    );
    let (config, warnings) = load(&text).unwrap();
    let kept = |config: &MasterConfig| -> Vec<String> {
        let policies = &config.task_container_defaults.log_policies;
        policies
            .iter()
            .filter_map(|policy| policy.name.clone())
            .collect()
    };
    assert_eq!(kept(&config), ["kept"]);
    let reported: Vec<(&str, &str)> = warnings
        .iter()
        .map(|warning| (warning.path.as_str(), warning.message.as_str()))
        .collect();
    let path = |index: usize| format!("task_container_defaults.log_policies[{index}].pattern");
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert_eq!(reported[0].0, path(0));
    assert!(
        reported[0]
            .1
            .contains("\"long\" is left out: it has 5000 bytes")
    );
    assert_eq!(reported[1].0, path(1));
    assert!(
        reported[1]
            .1
            .contains("\"large\" is left out: it has more than 512 KiB")
    );

    let of_pool = |policies: &[String]| {
        format!(
            "resource_pools: [{{pool_name: default, task_container_defaults: {{log_policies: [{}]}}}}]",
            policies.join(", ")
        )
    };
    let many: Vec<String> = (0..70)
        .map(|n| format!("{{name: p{n}, pattern: x{n}}}"))
        .collect();
    let together: Vec<String> = (0..6)
        .map(|n| format!("{{name: p{n}, pattern: '\\w{{10}}'}}"))
        .collect();
    for (policies, fit) in [(many, 64), (together, 4)] {
        let count = policies.len();
        let (config, warnings) = load(&of_pool(&policies)).unwrap();
        let pool = config.effective_task_container_defaults("default");
        assert_eq!(pool.log_policies.len(), fit);
        assert_eq!(warnings.len(), count - fit, "{warnings:?}");
        assert!(
            warnings[0]
                .message
                .contains(&format!("\"p{fit}\" is left out"))
        );
    }
    let error = load("task_container_defaults: {log_policies: [{name: bad, pattern: '('}]}");
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("is not a regular expression")
    );
}
