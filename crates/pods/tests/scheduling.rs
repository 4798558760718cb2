//! What decides when and before whom pods are scheduled: `PriorityClasses`, and schedulers other than that of the cluster.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(dead_code, reason = "the support is for all tests of the crate")]

mod support;

use det_pods::{GroupApi, ObjectsError, PLACEMENT_GATE, Scheduler, objects};
use det_taskspec::{EMPTY_IMAGE, TaskKind};
use serde_json::{Value, json};
use support::{TASK, command, customised, facts, gang, member, objects_of, pod_spec};

#[test]
fn pods_get_a_class_by_the_priority_of_their_job() {
    let with = |priority: u8| {
        let mut member = command();
        member.start.origin.priority = priority;
        member
    };
    let of_users = member(TaskKind::CheckpointGc, TASK, 1, 0, 0);
    let mut gc = of_users.clone();
    gc.start.spec.image = EMPTY_IMAGE.into();
    let mut customised_gc = gc.clone();
    customised_gc.start.origin.pod_spec = Some(json!({"spec": {"containers": [{"name": "side"}]}}));
    for (scenario, member, preempts, existing, shared) in [
        (
            "usual",
            with(50),
            false,
            vec!["determined-medium-priority"],
            "determined-p50",
        ),
        ("another", with(61), false, vec![], "determined-p61"),
        (
            "that preempts",
            with(61),
            true,
            vec![],
            "determined-p61-preempting",
        ),
        (
            "the system's own work",
            gc,
            false,
            vec!["determined-system-priority", "determined-medium-priority"],
            "determined-p50",
        ),
        (
            "a deletion in an object store, by the user's image",
            of_users,
            false,
            vec!["determined-medium-priority"],
            "determined-p50",
        ),
        (
            "a deletion beside containers of the user's",
            customised_gc,
            false,
            vec!["determined-medium-priority"],
            "determined-p50",
        ),
    ] {
        let priority = member.start.origin.priority;
        let mut facts = facts();
        facts.preempts = preempts;
        let mut objects = objects(&facts, "work", &[member]).unwrap();
        let class = objects.priority.clone().unwrap();
        assert_eq!(class.existing, existing, "{scenario}");
        assert_eq!(class.shared["metadata"]["name"], shared, "{scenario}");
        assert_eq!(class.shared["value"], priority, "{scenario}");
        let policy = if preempts {
            "PreemptLowerPriority"
        } else {
            "Never"
        };
        assert_eq!(class.shared["preemptionPolicy"], policy, "{scenario}");
        assert_eq!(pod_spec(&objects.jobs[0]).get("priorityClassName"), None);
        objects.set_priority_class("chosen");
        assert_eq!(pod_spec(&objects.jobs[0])["priorityClassName"], "chosen");
    }
}

#[test]
fn a_class_that_the_user_names_is_kept_unless_it_is_that_of_a_priority() {
    let named = objects_of(&[customised(json!({"spec": {"priorityClassName": "mine"}}))]);
    assert_eq!(named.priority, None);
    assert_eq!(pod_spec(&named.jobs[0])["priorityClassName"], "mine");
    for (name, is_refused) in [
        ("determined-p99", true),
        ("determined-p99-preempting", true),
        ("determined-preferred", false),
        ("determined-medium-priority", false),
    ] {
        let member = customised(json!({"spec": {"priorityClassName": name}}));
        let made = objects(&facts(), "work", &[member]);
        let refused = matches!(made, Err(ObjectsError::PriorityClass(_)));
        assert_eq!(refused, is_refused, "{name}");
    }
    let empty = objects_of(&[customised(json!({"spec": {"priorityClassName": ""}}))]);
    assert!(empty.priority.is_some());
}

#[test]
fn the_coscheduler_receives_the_size_of_the_gang() {
    let mut facts = facts();
    facts.scheduler = Scheduler::Coscheduler;
    let name = "pod-group.scheduling.sigs.k8s.io/name";
    let size = "pod-group.scheduling.sigs.k8s.io/min-available";
    for (scenario, own, scheduler, labels) in [
        (
            "by default",
            json!({}),
            "coscheduler",
            [json!("det-12345678-exp-3-trial-9-attempt-1"), json!("2")],
        ),
        (
            "labels of the user's",
            json!({"metadata": {"labels": {(size): "9"}}}),
            "coscheduler",
            [json!("det-12345678-exp-3-trial-9-attempt-1"), json!("9")],
        ),
        (
            "a scheduler of the user's",
            json!({"spec": {"schedulerName": "mine"}}),
            "mine",
            [Value::Null, Value::Null],
        ),
    ] {
        let mut members = gang(&[1, 1]);
        for member in &mut members {
            member.start.origin.pod_spec = Some(own.clone());
        }
        let objects = objects(&facts, "work", &members).unwrap();
        let template = &objects.jobs[0]["spec"]["template"];
        assert_eq!(template["spec"]["schedulerName"], scheduler, "{scenario}");
        let found = [name, size].map(|key| template["metadata"]["labels"][key].clone());
        assert_eq!(found, labels, "{scenario}");
    }
}

/// A gang of two pods in a cluster with this scheduler; `own` is its pod spec.
fn gang_under(scheduler: Scheduler, own: &Value) -> det_pods::Objects {
    let mut facts = facts();
    facts.scheduler = scheduler;
    let mut members = gang(&[4, 4]);
    for member in &mut members {
        member.start.origin.pod_spec = Some(own.clone());
    }
    objects(&facts, "work", &members).unwrap()
}

/// A single pod in a cluster with this scheduler.
fn single_under(scheduler: Scheduler) -> det_pods::Objects {
    let mut facts = facts();
    facts.scheduler = scheduler;
    objects(&facts, "work", &[command()]).unwrap()
}

const GANG: &str = "det-12345678-exp-3-trial-9-attempt-1";

#[test]
fn a_gang_is_a_pod_group_of_kubernetes() {
    for (api, version) in [
        (GroupApi::V1Beta1, "scheduling.k8s.io/v1beta1"),
        (GroupApi::V1Alpha2, "scheduling.k8s.io/v1alpha2"),
    ] {
        let mut objects = gang_under(Scheduler::PodGroup(api), &json!({}));
        let pod = pod_spec(&objects.jobs[0]);
        assert_eq!(pod["schedulingGroup"], json!({"podGroupName": GANG}));
        assert_eq!(pod.get("schedulerName"), None);
        objects.set_priority_class("determined-p61");
        let (found, group) = objects.group.unwrap();
        assert_eq!(found, api);
        assert_eq!(group["apiVersion"], version);
        assert_eq!(group["metadata"]["name"], GANG);
        assert_eq!(group["metadata"]["namespace"], "work");
        assert_eq!(
            group["metadata"]["labels"],
            objects.secret["metadata"]["labels"]
        );
        let spec = json!({"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": "determined-p61"});
        assert_eq!(group["spec"], spec);
    }
    let single = single_under(Scheduler::PodGroup(GroupApi::V1Beta1));
    assert_eq!(single.group, None);
    assert_eq!(pod_spec(&single.jobs[0]).get("schedulingGroup"), None);
    // A group of the user's is the user's.
    let own = json!({"spec": {"schedulingGroup": {"podGroupName": "mine"}}});
    assert_eq!(
        gang_under(Scheduler::PodGroup(GroupApi::V1Beta1), &own).group,
        None
    );
}

#[test]
fn volcano_gets_a_group_of_a_gang_and_the_queue_of_a_single_pod() {
    let volcano = |queue: &str| Scheduler::Volcano {
        queue: queue.into(),
    };
    let annotations = |job: &Value| job["spec"]["template"]["metadata"]["annotations"].clone();
    let objects = gang_under(
        volcano("research"),
        &json!({"spec": {"priorityClassName": "mine"}}),
    );
    assert_eq!(pod_spec(&objects.jobs[0])["schedulerName"], "volcano");
    assert_eq!(
        annotations(&objects.jobs[0])["scheduling.k8s.io/group-name"],
        GANG
    );
    let (_, group) = objects.group.unwrap();
    assert_eq!(group["apiVersion"], "scheduling.volcano.sh/v1beta1");
    let spec = json!({"minMember": 2, "queue": "research", "priorityClassName": "mine"});
    assert_eq!(group["spec"], spec);
    let (_, group) = gang_under(volcano(""), &json!({})).group.unwrap();
    assert_eq!(
        group["spec"],
        json!({"minMember": 2}),
        "the queue of the namespace"
    );
    let single = single_under(volcano("research"));
    assert_eq!(single.group, None);
    assert_eq!(
        annotations(&single.jobs[0])["scheduling.volcano.sh/queue-name"],
        "research"
    );
    // The administrator's choice is not the user's to change.
    let mut own = command();
    own.start.origin.pod_spec =
        Some(json!({"metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "theirs"}}}));
    let mut facts_of = facts();
    facts_of.scheduler = volcano("research");
    let own = det_pods::objects(&facts_of, "work", &[own]).unwrap();
    assert_eq!(
        annotations(&own.jobs[0])["scheduling.volcano.sh/queue-name"],
        "research"
    );
    // Pods of another scheduler are none of its business.
    let other = gang_under(
        volcano("research"),
        &json!({"spec": {"schedulerName": "mine"}}),
    );
    assert_eq!(other.group, None);
    assert_eq!(
        annotations(&other.jobs[0]).get("scheduling.k8s.io/group-name"),
        None
    );
}

#[test]
fn kueue_gets_suspended_jobs_in_the_queue_of_their_pool() {
    let kueue = |queue: &str| Scheduler::Kueue {
        queue: queue.into(),
    };
    for (queue, expected) in [("", "gpu-pool"), ("team", "team")] {
        for objects in [
            single_under(kueue(queue)),
            gang_under(kueue(queue), &json!({})),
        ] {
            let job = &objects.jobs[0];
            assert_eq!(job["spec"]["suspend"], true);
            assert_eq!(
                job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"],
                expected
            );
            assert_eq!(objects.group, None);
        }
    }
    let mut facts = facts();
    facts.scheduler = kueue("");
    let uneven = objects(&facts, "work", &gang(&[4, 2]));
    assert_eq!(uneven.unwrap_err(), ObjectsError::SeveralJobs(2));
}

#[test]
fn without_a_gang_scheduler_pods_go_where_kubernetes_puts_them() {
    let affinity = |objects: &det_pods::Objects| pod_spec(&objects.jobs[0])["affinity"].to_string();
    let (single, gang) = (
        single_under(Scheduler::None),
        gang_under(
            Scheduler::None,
            &json!({"spec": {"schedulingGates": [{"name": PLACEMENT_GATE}, {"name": "mine"}]}}),
        ),
    );
    assert!(!affinity(&single).contains("metadata.name"));
    assert!(affinity(&single_under(Scheduler::Native)).contains("metadata.name"));
    assert!(
        affinity(&gang).contains("cluster-id-"),
        "drained nodes are avoided"
    );
    let pod = pod_spec(&gang.jobs[0]);
    assert_eq!(pod["schedulingGates"], json!([{"name": "mine"}]));
    assert_eq!(pod["subdomain"], GANG);
}
