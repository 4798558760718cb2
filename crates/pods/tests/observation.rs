//! What the status of a pod means for its container.

#![expect(clippy::panic, reason = "a test that cannot go on fails")]

use det_lifecycle::container::ObservedState;
use det_pods::{ImageErrorKind, PodPhase, observed, observed_gone, pod_facts};
use det_taskspec::{ContainerExit, ExitCause};
use serde_json::{Value, json};

/// A pod with this status, on a node.
fn pod(status: &Value) -> Value {
    json!({
        "metadata": {"namespace": "work", "name": "p", "uid": "u1", "annotations": {"determined.ai/ports": "8000,9000"}},
        "spec": {"nodeName": "n1"},
        "status": status,
    })
}

/// The same, being deleted.
fn deleted(status: &Value) -> Value {
    let mut pod = pod(status);
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    pod
}

fn task(state: &Value) -> Value {
    json!([{"name": "side", "state": {"running": {}}}, {"name": "determined-container", "state": state}])
}

/// A pod whose task's container has ended, with what is over it.
fn ended(code: i32, reason: &str, message: &str) -> Value {
    let state = json!({"terminated": {"exitCode": code, "reason": reason, "message": message}});
    json!({"phase": "Failed", "containerStatuses": task(&state)})
}

fn with(mut status: Value, key: &str, value: Value) -> Value {
    status[key] = value;
    status
}

fn disrupted(status: Value) -> Value {
    let condition = json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drain"}]);
    with(status, "conditions", condition)
}

fn init(name: &str, state: &Value) -> Value {
    json!([{"name": name, "state": state}])
}

fn report(exit: &Value) -> String {
    let mut report = exit.clone();
    report["ended_at"] = 1.into();
    report.to_string()
}

#[test]
fn a_container_that_has_not_ended() {
    let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
    let running = Some(ObservedState::Running {
        host_address: "10.1.2.3".into(),
        ports: vec![(8000, 8000), (9000, 9000)],
        runtime_id: "u1".into(),
    });
    let mut unscheduled = pod(&json!({"phase": "Pending"}));
    unscheduled["spec"] = json!({});
    let placed = json!({"terminated": {"exitCode": 0}});
    for (scenario, pod, expected) in [
        ("without a node", unscheduled, Some(ObservedState::Assigned)),
        (
            "just scheduled",
            pod(&json!({"phase": "Pending"})),
            Some(ObservedState::Pulling),
        ),
        (
            "its init container is being created",
            pod(
                &json!({"phase": "Pending", "initContainerStatuses": init("determined-init-container", &waiting("PodInitializing"))}),
            ),
            Some(ObservedState::Pulling),
        ),
        (
            "its init container runs",
            pod(
                &json!({"phase": "Pending", "initContainerStatuses": init("determined-init-container", &json!({"running": {}}))}),
            ),
            Some(ObservedState::Starting),
        ),
        (
            "its init container has ended",
            pod(
                &json!({"phase": "Pending", "initContainerStatuses": init("determined-init-container", &placed),
                        "containerStatuses": task(&waiting("PodInitializing"))}),
            ),
            Some(ObservedState::Starting),
        ),
        (
            "it runs and has no address yet",
            pod(&json!({"phase": "Running", "containerStatuses": task(&json!({"running": {}}))})),
            Some(ObservedState::Starting),
        ),
        (
            "it runs",
            pod(
                &json!({"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": task(&json!({"running": {}}))}),
            ),
            running.clone(),
        ),
        (
            "it runs and was asked to end",
            deleted(
                &json!({"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": task(&json!({"running": {}}))}),
            ),
            running,
        ),
        (
            "a sidecar has failed and is started again",
            pod(
                &json!({"phase": "Pending", "initContainerStatuses": init("side", &json!({"terminated": {"exitCode": 1}}))}),
            ),
            Some(ObservedState::Starting),
        ),
        (
            "its node does not answer",
            pod(&json!({"phase": "Unknown"})),
            None,
        ),
    ] {
        assert_eq!(observed(&pod_facts(&pod), false), expected, "{scenario}");
    }
}

/// The exit of a pod; a loss is its message alone.
fn exit(pod: &Value, ordered: bool) -> ContainerExit {
    match observed(&pod_facts(pod), ordered) {
        Some(ObservedState::Terminated { exit, .. }) => exit,
        other => panic!("{other:?} of {pod}"),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn a_container_that_has_ended() {
    let exited = |code| ContainerExit::Exited { code };
    let signaled = |signal, out_of_memory| ContainerExit::Signaled {
        signal,
        out_of_memory,
    };
    let failed = report(&json!({"kind": "exited", "code": 3}));
    let well = report(&json!({"kind": "exited", "code": 0}));
    let killed = report(&json!({"kind": "signaled", "signal": 9, "out_of_memory": false}));
    let asked = report(&json!({"kind": "lost", "message": "asked to end"}));
    let hook = report(&json!({"kind": "setup_failed", "code": 1, "message": "hook"}));
    for (scenario, pod, ordered, expected) in [
        (
            "its code failed",
            pod(&ended(3, "Error", &failed)),
            false,
            exited(3),
        ),
        (
            "it ended well",
            pod(&ended(0, "Completed", &well)),
            false,
            exited(0),
        ),
        (
            "asked, it ended well",
            deleted(&ended(0, "Completed", &well)),
            true,
            exited(0),
        ),
        (
            "its hook failed",
            pod(&ended(1, "Error", &hook)),
            false,
            ContainerExit::SetupFailed {
                code: 1,
                message: "hook".into(),
            },
        ),
        (
            "asked, it was killed",
            deleted(&ended(137, "Error", &killed)),
            true,
            ContainerExit::Killed,
        ),
        (
            "asked, its supervisor ended first",
            deleted(&ended(1, "Error", &asked)),
            true,
            ContainerExit::Killed,
        ),
        (
            "asked, without a report",
            deleted(&ended(137, "Error", "")),
            true,
            ContainerExit::Killed,
        ),
        (
            "its code was killed for memory",
            pod(&ended(137, "OOMKilled", &killed)),
            false,
            signaled(9, true),
        ),
        (
            "its supervisor was killed for memory",
            pod(&ended(137, "OOMKilled", "")),
            false,
            signaled(9, true),
        ),
        (
            "a part of it was killed for memory",
            pod(&ended(0, "OOMKilled", &well)),
            false,
            exited(0),
        ),
        (
            "evicted, killed for memory",
            pod(&disrupted(ended(137, "OOMKilled", &killed))),
            false,
            signaled(9, true),
        ),
        (
            "evicted, it ended well",
            pod(&disrupted(ended(0, "Completed", &well))),
            false,
            exited(0),
        ),
        (
            "evicted when it was to end",
            pod(&disrupted(ended(137, "Error", ""))),
            true,
            ContainerExit::Killed,
        ),
        (
            "its report is cut",
            pod(&ended(7, "Error", &failed[..20])),
            false,
            exited(7),
        ),
        (
            "its program does not exist",
            pod(&ended(128, "StartError", "exec: no such file")),
            false,
            ContainerExit::StartFailed {
                message: "its container could not be started: exec: no such file".into(),
            },
        ),
        (
            "longer than its deadline",
            deleted(&with(
                ended(143, "Error", &asked),
                "reason",
                json!("DeadlineExceeded"),
            )),
            false,
            signaled(15, false),
        ),
        (
            "deleted before it ran, as ordered",
            deleted(&json!({"phase": "Pending"})),
            true,
            ContainerExit::Killed,
        ),
        (
            "all containers ended well",
            pod(&json!({"phase": "Succeeded"})),
            false,
            exited(0),
        ),
        (
            "its node refused it when it was to end",
            pod(&json!({"phase": "Failed"})),
            true,
            ContainerExit::Killed,
        ),
    ] {
        assert_eq!(exit(&pod, ordered), expected, "{scenario}");
    }
}

#[test]
fn a_container_that_was_lost_names_reason_and_node() {
    let failed = report(&json!({"kind": "exited", "code": 3}));
    let asked = report(&json!({"kind": "lost", "message": "asked to end"}));
    for (scenario, pod, words) in [
        (
            "evicted",
            pod(&disrupted(ended(137, "Error", ""))),
            "evicted, as when a node is drained (EvictionByEvictionAPI): drain",
        ),
        (
            "evicted, with a failure of its code",
            pod(&disrupted(ended(3, "Error", &failed))),
            "EvictionByEvictionAPI",
        ),
        (
            "evicted before it started",
            pod(&disrupted(json!({"phase": "Failed"}))),
            "EvictionByEvictionAPI",
        ),
        (
            "a node under pressure",
            pod(&json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"})),
            "reason Evicted: low on memory",
        ),
        (
            "a node that was shut down",
            pod(&with(
                ended(1, "Error", &asked),
                "reason",
                json!("Terminated"),
            )),
            "reason Terminated",
        ),
        (
            "deleted by hand",
            deleted(&ended(143, "Error", &asked)),
            "deleted, and not by the master",
        ),
        (
            "deleted by hand before it ran",
            deleted(&json!({"phase": "Pending"})),
            "deleted, and not by the master",
        ),
        (
            "nothing is known",
            pod(&ended(137, "ContainerStatusUnknown", "")),
            "code 137 (ContainerStatusUnknown) and without",
        ),
        (
            "refused",
            pod(&json!({"phase": "Failed"})),
            "its pod failed",
        ),
    ] {
        let ContainerExit::Lost { message } = exit(&pod, false) else {
            panic!("{scenario}: {:?}", exit(&pod, false));
        };
        assert!(
            message.starts_with("pod \"p\" on node \"n1\": "),
            "{scenario}: {message}"
        );
        assert!(message.contains(words), "{scenario}: {message}");
    }
}

#[test]
fn an_init_container_that_failed() {
    let failed = |name: &str, code: i32, reason: &str| {
        let state =
            json!({"terminated": {"exitCode": code, "reason": reason, "message": "broken\n"}});
        json!({"phase": "Failed", "initContainerStatuses": init(name, &state)})
    };
    for (scenario, status, expected_code, words) in [
        (
            "the system's",
            failed("determined-init-container", 1, "Error"),
            1,
            "(Error): broken",
        ),
        (
            "without its program",
            failed("determined-init-container", 127, "Error"),
            127,
            "helper image",
        ),
        (
            "not started",
            failed("determined-init-container", 128, "StartError"),
            128,
            "helper image",
        ),
        (
            "the user's",
            failed("first", 126, "Error"),
            126,
            "its image lacks",
        ),
        (
            "for memory",
            failed("first", 137, "OOMKilled"),
            137,
            "memory ran out",
        ),
    ] {
        let ContainerExit::SetupFailed { code, message } = exit(&pod(&status), false) else {
            panic!("{scenario}");
        };
        assert_eq!(code, expected_code, "{scenario}");
        assert!(message.contains(words), "{scenario}: {message}");
        assert_eq!(
            exit(&pod(&status), true),
            ContainerExit::Killed,
            "{scenario}"
        );
        let lost = exit(&pod(&disrupted(status)), false);
        assert!(
            matches!(lost, ContainerExit::Lost { .. }),
            "{scenario}: {lost:?}"
        );
    }
}

#[test]
fn the_cause_of_a_failure_comes_along() {
    let cause = json!({"at": 5, "rank": 1, "exit_code": 3, "last_lines": ["a", "b"]});
    let message = report(&json!({"kind": "exited", "code": 3, "cause": cause}));
    let Some(ObservedState::Terminated { cause, .. }) =
        observed(&pod_facts(&pod(&ended(3, "Error", &message))), false)
    else {
        panic!("it has ended");
    };
    let expected = ExitCause {
        at: 5,
        rank: Some(1),
        exit_code: Some(3),
        last_lines: vec!["a".into(), "b".into()],
    };
    assert_eq!(cause, Some(expected));
}

#[test]
fn a_pod_that_is_gone() {
    let running = json!({"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": task(&json!({"running": {}}))});
    let gone = |pod: &Value, ordered| match observed_gone(&pod_facts(pod), ordered) {
        ObservedState::Terminated { exit, .. } => exit,
        other => panic!("{other:?}"),
    };
    assert_eq!(gone(&pod(&running), true), ContainerExit::Killed);
    assert!(
        matches!(gone(&pod(&running), false), ContainerExit::Lost { message } if message.contains("\"n1\""))
    );
    let failed = report(&json!({"kind": "exited", "code": 3}));
    assert_eq!(
        gone(&pod(&ended(3, "Error", &failed)), false),
        ContainerExit::Exited { code: 3 }
    );
}

#[test]
fn errors_of_images_by_kind() {
    for (reason, message, kind) in [
        (
            "ErrImagePull",
            "failed to resolve reference \"x/y:1\": x/y:1: not found",
            Some(ImageErrorKind::NotFound),
        ),
        (
            "ErrImagePull",
            "manifest unknown: manifest unknown",
            Some(ImageErrorKind::NotFound),
        ),
        (
            "ImagePullBackOff",
            "Back-off pulling image \"x\": ErrImagePull: pull access denied, repository does not exist or may require authorization",
            Some(ImageErrorKind::Auth),
        ),
        (
            "ErrImagePull",
            "unexpected status: 401 Unauthorized",
            Some(ImageErrorKind::Auth),
        ),
        (
            "ErrImagePull",
            "toomanyrequests: You have reached your pull rate limit",
            Some(ImageErrorKind::RateLimit),
        ),
        (
            "ErrImagePull",
            "dial tcp: lookup registry.x: no such host",
            Some(ImageErrorKind::Network),
        ),
        (
            "ErrImagePull",
            "Get \"https://r/v2/\": net/http: TLS handshake timeout",
            Some(ImageErrorKind::Network),
        ),
        (
            "ImagePullBackOff",
            "Back-off pulling image \"x\"",
            Some(ImageErrorKind::Other),
        ),
        (
            "InvalidImageName",
            "couldn't parse image name",
            Some(ImageErrorKind::Invalid),
        ),
        (
            "ErrImageNeverPull",
            "Container image \"x\" is not present",
            Some(ImageErrorKind::NotFound),
        ),
        ("ContainerCreating", "", None),
        ("PodInitializing", "", None),
    ] {
        let state = json!({"waiting": {"reason": reason, "message": message}});
        let pod = pod_facts(&pod(
            &json!({"phase": "Pending", "containerStatuses": task(&state)}),
        ));
        let error = pod.image_error();
        assert_eq!(
            error.as_ref().map(|error| error.kind),
            kind,
            "{reason}: {message}"
        );
        if let Some(error) = error {
            assert!(
                error
                    .message
                    .starts_with("container \"determined-container\": "),
                "{error:?}"
            );
        }
        // The kubelet tries again: it is for the manager to give up.
        assert_eq!(observed(&pod, false), Some(ObservedState::Pulling));
    }
}

#[test]
fn a_container_that_cannot_be_created_is_shown() {
    let state = json!({"waiting": {"reason": "CreateContainerConfigError", "message": "container has runAsNonRoot and image will run as root"}});
    let pod = pod_facts(&pod(
        &json!({"phase": "Pending", "containerStatuses": task(&state)}),
    ));
    let error = pod.start_error().unwrap();
    assert!(error.contains("runAsNonRoot"), "{error}");
    assert_eq!(pod.image_error(), None);
}

#[test]
fn what_the_scheduler_reports() {
    let pod = pod_facts(&json!({
        "metadata": {"name": "p"},
        "spec": {"schedulingGates": [{"name": "determined.ai/placement"}]},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"},
            {"type": "DisruptionTarget", "status": "False"},
        ]},
    }));
    let scheduled = pod.scheduled.unwrap();
    assert!(!scheduled.done);
    assert_eq!(scheduled.reason.as_deref(), Some("Unschedulable"));
    assert_eq!(pod.gates, ["determined.ai/placement"]);
    assert_eq!((pod.disruption, pod.phase), (None, PodPhase::Pending));
}
