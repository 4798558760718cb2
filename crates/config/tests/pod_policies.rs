//! Which fields of pods policies let users set.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use det_config::TaskContainerDefaults;
use det_config::experiment::ExperimentConfig;
use det_config::policies::{Policies, Workload};
use det_config::submitted::{
    CompletionDefaults, Experiment, SubmittedDocument, SubmittedTask, TaskDefaults,
    check_changed_pod, check_stored_pod,
};
use det_config::task::LaunchKind;
use serde_json::{Value, json};

const WORKSPACE: &str = "workspace \"vision\"";

fn policies(scope: &str, constraints: &str) -> Policies {
    let text = format!("constraints: {{pod_spec: {constraints}}}");
    Policies::parse(Workload::Experiment, scope, None, &text).unwrap()
}

/// A pool with a volume of its nodes and a sidecar.
fn pool() -> TaskContainerDefaults {
    serde_json::from_value(json!({"gpu_pod_spec": {
        "metadata": {"labels": {"pool": "a"}},
        "spec": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "volumes": [{"name": "cache", "hostPath": {"path": "/cache"}}],
            "containers": [
                {"name": "side", "image": "logs", "securityContext": {"privileged": true}},
                {"name": "determined-container", "env": [{"name": "A", "value": "1"}],
                 "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]},
            ],
        },
    }}))
    .unwrap()
}

/// What an experiment with this pod is refused for; nothing if it is admitted.
fn refusals(policies: &[Policies], pod_spec: &str) -> Vec<String> {
    let text = format!(
        "entrypoint: \"true\"\nsearcher: {{name: single, metric: m}}\nenvironment:\n  pod_spec: {pod_spec}\n"
    );
    let tcd = pool();
    let submitted = SubmittedDocument::parse(Experiment, &text).unwrap();
    let completed = submitted.under(policies).complete(&CompletionDefaults {
        name: "made".into(),
        experiment_seed: 7,
        checkpoint_storage: Some(json!({"type": "shared_fs", "host_path": "/x"})),
        task_container_defaults: &tcd,
        default_priority: None,
        managed: true,
    });
    let errors = completed.err().map(|errors| errors.0).unwrap_or_default();
    errors.iter().map(ToString::to_string).collect()
}

/// The paths of refusals.
fn paths(refusals: &[String]) -> Vec<String> {
    let path = |text: &String| {
        let path = text.strip_prefix("<config>.environment.pod_spec.");
        path.and_then(|path| path.split(": cannot be set under the policy of").next())
            .unwrap_or(text)
            .to_owned()
    };
    refusals.iter().map(path).collect()
}

#[test]
fn a_refusal_names_the_field_its_place_the_rule_and_who_to_ask() {
    let policies = [policies(WORKSPACE, "{deny: [spec.volumes.hostPath]}")];
    let refused = refusals(
        &policies,
        "{spec: {volumes: [{name: data, hostPath: {path: /data, type: Directory}}]}}",
    );
    assert_eq!(
        refused,
        [
            "<config>.environment.pod_spec.spec.volumes[data].hostPath: cannot be set under the policy of workspace \
             \"vision\" (line 4, column 55); hint: leave it out, or ask an administrator of workspace \"vision\" (it denies \
             \"spec.volumes.hostPath\")"
        ]
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn fields_are_denied_and_allowed() {
    let none: &[&str] = &[];
    for (case, constraints, pod_spec, expected) in [
        (
            "the pool's own is not judged",
            "{deny: [spec.volumes.hostPath, spec.containers.securityContext, spec.tolerations]}",
            "{spec: {nodeSelector: {a: b}}}",
            none,
        ),
        (
            "what repeats the pool's neither",
            "{deny: [spec.volumes.hostPath, spec.tolerations]}",
            "{spec: {volumes: [{name: cache, hostPath: {path: /cache}}], tolerations: [{key: gpu, operator: Exists}]}}",
            none,
        ),
        (
            "what changes the pool's is",
            "{deny: [spec.volumes.hostPath]}",
            "{spec: {volumes: [{name: cache, hostPath: {path: /etc}}]}}",
            &["spec.volumes[cache].hostPath"],
        ),
        (
            "to take the pool's away is to change it",
            "{deny: [spec.tolerations, 'spec.containers[side]']}",
            "{spec: {tolerations: null, containers: [{name: side, $patch: delete}]}}",
            &["spec.containers[side]", "spec.tolerations"],
        ),
        (
            "snake case does not get past",
            "{deny: [spec.service_account_name, spec.containers.securityContext.privileged]}",
            "{spec: {service_account_name: admin, containers: [{name: determined-container, security_context: {privileged: true}}]}}",
            &[
                "spec.containers[determined-container].securityContext.privileged",
                "spec.serviceAccountName",
            ],
        ),
        (
            "the older name of a service account is the same field",
            "{deny: [spec.serviceAccountName]}",
            "{spec: {serviceAccount: admin}}",
            &["spec.serviceAccount"],
        ),
        (
            "an element that hides behind another of its name is seen",
            "{deny: [spec.containers.env.valueFrom]}",
            "{spec: {containers: [{name: side, image: i, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}, {name: A, value: ''}]}]}}",
            &["spec.containers[side].env[A].valueFrom"],
        ),
        (
            "one key of a map that users choose",
            "{deny: ['spec.nodeSelector[example.com/zone]']}",
            "{spec: {nodeSelector: {example.com/zone: a, other: b}}}",
            &["spec.nodeSelector[example.com/zone]"],
        ),
        (
            "only what is allowed",
            "{allow: [metadata.labels, 'spec.containers[determined-container].resources']}",
            "{metadata: {labels: {a: b}}, spec: {hostIPC: true, containers: [{name: determined-container, \
             resources: {requests: {memory: 1Gi}}, env: [{name: B}]}, {name: mine, image: x}]}}",
            &[
                "spec.containers[determined-container].env[B]",
                "spec.containers[mine]",
                "spec.hostIPC",
            ],
        ),
        (
            "what is denied although it is allowed",
            "{allow: [spec.volumes], deny: [spec.volumes.hostPath]}",
            "{spec: {volumes: [{name: a, emptyDir: {}}, {name: b, hostPath: {path: /}}]}}",
            &["spec.volumes[b].hostPath"],
        ),
        (
            "nothing is allowed",
            "{allow: []}",
            "{metadata: {annotations: {a: b}}, spec: {hostname: x}}",
            &["metadata", "spec"],
        ),
        (
            "a key that is not known here",
            "{deny: [spec]}",
            "{spec: {newInKubernetes: 1}}",
            &["spec"],
        ),
        (
            "elements of a list that is replaced as a whole",
            "{deny: [spec.affinity.podAffinity, spec.containers.envFrom.secretRef]}",
            "{spec: {containers: [{name: determined-container, envFrom: [{configMapRef: {name: c}}, {secretRef: {name: s}}]}]}}",
            &["spec.containers[determined-container].envFrom.secretRef"],
        ),
    ] {
        let refused = refusals(&[policies(WORKSPACE, constraints)], pod_spec);
        let mut found = paths(&refused);
        found.sort_unstable();
        assert_eq!(found, expected, "{case}");
    }
}

#[test]
fn the_policies_of_all_scopes_count() {
    let both = [
        policies(WORKSPACE, "{deny: [spec.hostPID]}"),
        policies(
            "the cluster",
            "{allow: [spec.hostPID, spec.priorityClassName]}",
        ),
    ];
    let refused = refusals(
        &both,
        "{spec: {hostPID: true, hostIPC: true, priorityClassName: high}}",
    );
    assert_eq!(paths(&refused), ["spec.hostPID", "spec.hostIPC"]);
    assert!(refused[1].contains(
        "an administrator of the cluster (it allows \"spec.hostPID\", \"spec.priorityClassName\")"
    ));
}

#[test]
fn launched_tasks_are_judged_alike_and_work_of_the_system_is_not() {
    let text = "constraints: {pod_spec: {deny: [spec.volumes.hostPath]}}";
    let policies = Policies::parse(Workload::Tasks, "the cluster", None, text).unwrap();
    let tcd = TaskContainerDefaults::default();
    let document = "environment: {pod_spec: {spec: {volumes: [{name: a, hostPath: {path: /}}]}}}";
    let complete = |policies: Policies| {
        let submitted = SubmittedTask::parse(LaunchKind::Notebook, document).unwrap();
        let policies = [policies];
        let completed = submitted.under(&policies).complete(&TaskDefaults {
            description: "a notebook".into(),
            task_container_defaults: &tcd,
            default_priority: None,
            has_context: false,
        });
        completed.map(|_| ()).map_err(|errors| errors.to_string())
    };
    let refused = complete(policies.clone()).unwrap_err();
    assert!(
        refused.contains("spec.volumes[a].hostPath: cannot be set under the policy of the cluster"),
        "{refused}"
    );
    assert_eq!(complete(policies.without_pod_constraints()), Ok(()));
}

/// An experiment with this pod, as it was completed under the defaults of the pool.
fn stored(pod_spec: &str) -> ExperimentConfig {
    let text = format!(
        "entrypoint: \"true\"\nsearcher: {{name: single, metric: m}}\nenvironment: {{pod_spec: {pod_spec}}}"
    );
    let submitted = SubmittedDocument::parse(Experiment, &text).unwrap();
    submitted
        .under(&[])
        .complete(&CompletionDefaults {
            name: "made".into(),
            experiment_seed: 7,
            checkpoint_storage: Some(json!({"type": "shared_fs", "host_path": "/x"})),
            task_container_defaults: &pool(),
            default_priority: None,
            managed: true,
        })
        .unwrap()
}

#[test]
fn a_stored_pod_is_judged_without_what_the_pool_and_invariants_gave_it() {
    let judged = |pod_spec: &str, constraints: &str| {
        let policies = [policies(WORKSPACE, constraints)];
        let judged = check_stored_pod(&stored(pod_spec), &pool(), &policies);
        judged.map_err(|errors| errors.to_string())
    };
    assert_eq!(judged("null", "{allow: []}"), Ok(()));
    let mounts = "{spec: {volumes: [{name: data, hostPath: {path: /data}}]}}";
    assert_eq!(judged(mounts, "{allow: [spec.volumes]}"), Ok(()));
    let refused = judged(mounts, "{deny: [spec.volumes.hostPath]}").unwrap_err();
    assert!(
        refused
            .contains("spec.volumes[data].hostPath: cannot be set under the policy of workspace")
            && !refused.contains("cache"),
        "{refused}"
    );
    let text = "invariant_config: {environment: {pod_spec: {spec: {hostPID: true}}}}\nconstraints: {pod_spec: {allow: []}}";
    let fixed = [Policies::parse(Workload::Experiment, WORKSPACE, None, text).unwrap()];
    let with_invariant = stored("{spec: {hostPID: true}}");
    assert_eq!(check_stored_pod(&with_invariant, &pool(), &fixed), Ok(()));
}

#[test]
fn a_change_of_what_goes_on_takes_nothing_away_that_policies_guard() {
    let before = stored(
        "{spec: {runtimeClassName: guarded, volumes: [{name: cache, hostPath: {path: /cache}}]}}",
    );
    let judged = |changed: &str, constraints: &str| {
        let policies = [policies(WORKSPACE, constraints)];
        let judged = check_changed_pod(&before, &stored(changed), &policies);
        judged.map_err(|errors| errors.to_string())
    };
    let same =
        "{spec: {runtimeClassName: guarded, volumes: [{name: cache, hostPath: {path: /cache}}]}}";
    assert_eq!(judged(same, "{allow: []}"), Ok(()));
    let without = "{spec: {volumes: [{name: cache, hostPath: {path: /cache}}]}}";
    let refused = judged(without, "{deny: [spec.runtimeClassName]}").unwrap_err();
    assert!(refused.contains("spec.runtimeClassName"), "{refused}");
    let refused = judged(without, "{allow: []}").unwrap_err();
    assert!(refused.contains("it allows nothing"), "{refused}");
    assert_eq!(judged(without, "{allow: [spec.runtimeClassName]}"), Ok(()));
}

#[test]
fn invariants_of_administrators_may_set_what_users_may_not() {
    let text = "invariant_config: {environment: {pod_spec: {spec: {hostPID: true}}}}\nconstraints: {pod_spec: {allow: []}}";
    let policies = Policies::parse(Workload::Experiment, WORKSPACE, None, text).unwrap();
    assert_eq!(refusals(&[policies], "null"), Vec::<String>::new());
}

#[test]
fn rules_name_fields_that_pods_have() {
    for (constraints, expected) in [
        (
            "{deny: [spec.volume.hostPath]}",
            "constraints.pod_spec.deny[0]: is no field of a Kubernetes pod: \"volume\" is not known",
        ),
        (
            "{allow: [kind]}",
            "must begin with \"metadata\" or \"spec\"",
        ),
        (
            "{allow: ['spec.tolerations[a]']}",
            "\"tolerations[a]\" is not known",
        ),
        ("{allow: ['spec.containers[a']}", "is not known"),
        ("{allow: ['']}", "is no field of a Kubernetes pod"),
        (
            "{deny: [5]}",
            "must be a field of a Kubernetes pod, not the number 5",
        ),
        ("{deny: spec}", "must be a list"),
        ("{denied: []}", "denied"),
    ] {
        let text = format!("constraints: {{pod_spec: {constraints}}}");
        let errors = Policies::parse(Workload::Tasks, WORKSPACE, None, &text).unwrap_err();
        assert!(
            errors.to_string().contains(expected),
            "{constraints}: {errors}"
        );
    }
    // What is stored reads back.
    let value: Value =
        json!({"constraints": {"pod_spec": {"allow": ["spec.containers[a.b].env"]}}});
    let policies = Policies::from_value(Workload::Experiment, WORKSPACE, &value).unwrap();
    assert_eq!(
        refusals(
            &[policies],
            "{spec: {containers: [{name: a.b, env: [{name: A}]}]}}"
        ),
        Vec::<String>::new()
    );
}
