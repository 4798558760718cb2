//! What holds of the objects of any allocation.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "other tests use the rest")]
mod support;

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{ExperimentId, RunId, TrialId};
use det_pods::{
    Member, PodFacts, admits, holds, label_value, node_facts, objects, observed, pod_facts,
    recorded, release_patch,
};
use det_taskspec::TaskKind;
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{facts, member};

fn kinds() -> impl Strategy<Value = TaskKind> {
    prop::sample::select(vec![
        TaskKind::Trial,
        TaskKind::Notebook,
        TaskKind::Shell,
        TaskKind::Command,
        TaskKind::Tensorboard,
        TaskKind::CheckpointGc,
        TaskKind::Generic,
    ])
}

fn task_ids() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        // Alike on purpose: names must not depend on what they lose.
        "[aA_. 1-]{1,3}",
        ".{1,80}",
    ]
}

/// JSON of any shape, with keys that pods have.
fn values() -> impl Strategy<Value = Value> {
    let keys = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "labels",
        "annotations",
        "containers",
        "initContainers",
        "name",
        "determined-container",
        "env",
        "volumes",
        "volumeMounts",
        "mountPath",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
        "matchExpressions",
        "matchFields",
        "tolerations",
        "securityContext",
        "capabilities",
        "add",
        "resources",
        "requests",
        "cpu",
        "schedulingGates",
        "containerStatuses",
        "state",
        "terminated",
        "running",
        "waiting",
        "phase",
        "conditions",
        "type",
        "reason",
        "allocatable",
        "terminationGracePeriodSeconds",
        "$patch",
        "security_context",
        "run_as_user",
    ]);
    let texts = prop::sample::select(vec![
        "",
        "determined-container",
        "DisruptionTarget",
        "True",
        "Failed",
        "Pending",
        "-1",
        "1Gi",
        "In",
        "OOMKilled",
        "{\"kind\":\"exited\",\"code\":1,\"ended_at\":1}",
        "{\"kind\"",
        "999999999999999999999999999999e30",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        texts.prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(keys.clone(), inner, 0..6).prop_map(|map| {
                let map = map.into_iter();
                map.map(|(key, value)| (key.to_owned(), value))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            }),
        ]
    })
}

fn is_dns_label(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len())
        && name.chars().all(is_allowed)
        && !name.starts_with('-')
        && !name.ends_with('-')
        // Names of Services begin with a letter.
        && name.starts_with(|c: char| c.is_ascii_lowercase())
}

fn is_label_value(value: &str) -> bool {
    let is_end = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= 63
        && value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && is_end(value.chars().next())
        && is_end(value.chars().last())
}

fn allocation(kind: TaskKind, task: &str, attempt: u32, sizes: &[u32]) -> Vec<Member> {
    let sizes = (0..).zip(sizes);
    sizes
        .map(|(rank, slots)| member(kind, task, attempt, rank, *slots))
        .collect()
}

proptest! {
    #[test]
    fn names_and_labels_are_valid_whatever_the_task_is(
        kind in kinds(),
        task in task_ids(),
        attempt in prop_oneof![1_u32..4, any::<u32>()],
        (experiment, trial, run) in any::<(Option<i64>, Option<i64>, i64)>(),
        sizes in prop::collection::vec(0_u32..4, 1..7),
        cluster in prop_oneof![Just(String::new()), ".{0,70}"],
        (workspace, owner, pool) in (".{0,80}", ".{0,80}", ".{0,80}"),
    ) {
        let mut members = allocation(kind, &task, attempt, &sizes);
        for member in &mut members {
            let origin = &mut member.start.origin;
            origin.experiment_id = experiment.map(ExperimentId);
            origin.trial_id = trial.map(TrialId);
            origin.run_id = RunId(run);
            origin.workspace_name.clone_from(&workspace);
            origin.owner_name.clone_from(&owner);
            origin.resource_pool.clone_from(&pool);
        }
        let mut facts = facts();
        facts.cluster_id = cluster.into();
        let objects = objects(&facts, "work", &members).unwrap();
        let all = objects.jobs.iter().chain([&objects.secret]).chain(&objects.service);
        for object in all {
            for (_, value) in object["metadata"]["labels"].as_object().unwrap() {
                prop_assert!(is_label_value(value.as_str().unwrap()), "{value}");
            }
            let name = object["metadata"]["name"].as_str().unwrap();
            prop_assert!(is_dns_label(name), "{name}");
        }
        let mut names = BTreeSet::new();
        let mut ranks: BTreeSet<u32> = BTreeSet::new();
        for (job, of_job) in objects.jobs.iter().zip(&objects.ranks) {
            let name = job["metadata"]["name"].as_str().unwrap();
            prop_assert!(names.insert(name), "{name} twice");
            let last = if members.len() > 1 { 99_999 } else { 0 };
            prop_assert!(is_dns_label(&format!("{name}-{last}")), "{name}");
            prop_assert_eq!(&job["spec"]["completions"], of_job.len());
            ranks.extend(of_job);
            let annotations: BTreeMap<String, String> =
                serde_json::from_value(job["metadata"]["annotations"].clone()).unwrap();
            let recorded = recorded(&annotations).unwrap();
            prop_assert_eq!(&recorded.allocation_id, &members[0].start.spec.allocation_id);
            for (found, expected) in recorded.members.iter().zip(of_job) {
                let member = &members[usize::try_from(*expected).unwrap()];
                prop_assert_eq!(&found.container_id, &member.start.spec.container_id);
                prop_assert_eq!((&found.place, &found.node), (&member.place, &member.node));
                prop_assert_eq!(found.rank, *expected);
            }
        }
        prop_assert_eq!(ranks.len(), members.len());
    }

    #[test]
    fn allocations_have_names_of_their_own(
        one in (kinds(), task_ids(), 1_u32..15),
        other in (kinds(), task_ids(), 1_u32..15),
        (own_size, other_size) in (1_usize..3, 1_usize..3),
    ) {
        // A trial's numbers follow from its allocation, as a task's kind from its id.
        prop_assume!((&one.1, one.2) != (&other.1, other.2));
        prop_assume!(one.0 != TaskKind::Trial || other.0 != TaskKind::Trial);
        let name = |(kind, task, attempt): &(TaskKind, String, u32), size: usize| {
            let members = allocation(*kind, task, *attempt, &vec![1; size]);
            objects(&facts(), "work", &members).unwrap().job_name
        };
        prop_assert_ne!(name(&one, own_size), name(&other, other_size));
    }

    #[test]
    fn a_text_becomes_the_value_of_a_label(text in ".{0,200}") {
        prop_assert!(is_label_value(&label_value(&text)));
    }

    #[test]
    fn no_pod_spec_is_too_odd(pod_spec in values(), spec in values(), sizes in prop::collection::vec(0_u32..3, 1..4)) {
        for pod_spec in [pod_spec, json!({"spec": spec})] {
            let mut members = allocation(TaskKind::Command, "t", 1, &sizes);
            for member in &mut members {
                member.start.origin.pod_spec = Some(pod_spec.clone());
            }
            let objects = objects(&facts(), "work", &members).unwrap();
            for job in &objects.jobs {
                let pod = &job["spec"]["template"];
                let containers = pod["spec"]["containers"].as_array().unwrap();
                prop_assert_eq!(&containers.last().unwrap()["name"], "determined-container");
                let released = release_patch("n", pod);
                prop_assert_eq!(release_patch("n", &released), released);
            }
            admits(&pod_spec, &node_facts(&pod_spec));
        }
    }

    #[test]
    fn no_object_is_too_odd_to_be_read(object in values(), part in values(), ordered in any::<bool>()) {
        for object in [object, json!({"status": part.clone(), "spec": part})] {
            let pod: PodFacts = pod_facts(&object);
            observed(&pod, ordered);
            pod.image_error();
            pod.start_error();
            node_facts(&object);
            holds(&object, "cpu");
            release_patch("n", &object);
        }
    }
}
