//! What the policies of administrators replace of a document is reported.

use det_config::policies::{Policies, Workload};
use det_config::submitted::{Experiment, SubmittedDocument};

#[test]
fn what_a_policy_replaces_is_reported_with_both_values() {
    let submitted = det_config::submitted::SubmittedDocument::read_file(Experiment,
        "x.yaml",
        "name: x\nresources: {resource_pool: fast, priority: 5}\nenvironment: {registry_auth: {username: u, password: hidden1}}\n",
        &[] as &[String],
    )
    .unwrap_or_else(|errors| panic!("{errors}"));
    let policies = [Policies::parse(
        Workload::Experiment,
        "the cluster",
        None,
        "invariant_config: {resources: {resource_pool: slow, priority: 5, weight: 2}, environment: {registry_auth: {password: hidden2}}}",
    )
    .unwrap_or_else(|errors| panic!("{errors}"))];
    let reported: Vec<String> = submitted
        .under(&policies)
        .replaced()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        reported,
        [
            "environment.registry_auth.password: \"********\" was replaced by \"********\" by the policy of the cluster",
            "resources.resource_pool: \"fast\" was replaced by \"slow\" by the policy of the cluster",
        ]
    );
    assert_eq!(
        det_config::policies::fixed_pool(&policies).as_deref(),
        Some("slow")
    );
}

#[test]
fn lists_and_pools_that_a_policy_replaces_are_reported() {
    let reported = |document: &str, invariants: &str| -> Vec<String> {
        let submitted = SubmittedDocument::parse(Experiment, document).unwrap();
        let text = format!("invariant_config: {{{invariants}}}");
        let policies = [Policies::parse(Workload::Experiment, "the cluster", None, &text).unwrap()];
        let warnings = submitted.under(&policies).replaced();
        warnings
            .iter()
            .map(|w| format!("{}: {}", w.path, w.message))
            .collect()
    };
    for (document, invariants, expected) in [
        (
            "entrypoint: sleep 1",
            "entrypoint: [echo, forced]",
            "entrypoint: \"sleep 1\" was replaced by [\"echo\",\"forced\"] by the policy of the cluster",
        ),
        (
            "resources: {resource_pools: [train]}",
            "resources: {resource_pools: [shared, rr]}",
            "resources.resource_pools: [\"train\"] was replaced by [\"shared\",\"rr\"] by the policy of the cluster",
        ),
        (
            "resources: {resource_pools: [train, rr]}",
            "resources: {resource_pool: shared}",
            "resources.resource_pools: [\"train\",\"rr\"] was replaced by \"resources.resource_pool\" \"shared\" by the policy of the cluster",
        ),
        (
            "resources: {resource_pool: train}",
            "resources: {resource_pools: [shared]}",
            "resources.resource_pool: \"train\" was replaced by \"resources.resource_pools\" [\"shared\"] by the policy of the cluster",
        ),
    ] {
        assert_eq!(reported(document, invariants), [expected], "{document}");
    }
    // Of one name the later variable counts; what is only added replaces nothing.
    let variables = "environment: {environment_variables: [X=user, Y=user]}";
    let replaced = reported(
        variables,
        "environment: {environment_variables: [X=policy]}",
    );
    assert!(
        !replaced.is_empty() && replaced[0].contains("X=user"),
        "{replaced:?}"
    );
    let nothing: [String; 0] = [];
    assert_eq!(
        reported(
            variables,
            "environment: {environment_variables: [Z=policy]}"
        ),
        nothing
    );
    assert_eq!(
        reported("max_restarts: 1", "resources: {resource_pools: [shared]}"),
        nothing
    );
}
