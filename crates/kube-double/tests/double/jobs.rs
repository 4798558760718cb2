//! The Job controller.

use det_kube_double::ApiDouble;
use serde_json::{Value, json};

use crate::client::{Client, JOBS, PODS, job, pod_names, text};

fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array();
    let mut found = conditions.into_iter().flatten();
    let found = found.find(|condition| condition["type"] == kind);
    found.cloned().unwrap_or_default()
}

#[tokio::test]
async fn an_indexed_job_has_a_pod_for_each_index() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.add_node("node", 0);
    let spec = json!({"parallelism": 2, "completions": 2, "completionMode": "Indexed"});
    let (code, created) = client.post(JOBS, &job("train", &spec)).await;
    assert_eq!(code, 201, "{created}");
    let uid = text(&created, "/metadata/uid");
    let pods = double.list("v1/pods", "default");
    assert_eq!(pods.len(), 2);
    for (index, pod) in pods.iter().enumerate() {
        let name = text(pod, "/metadata/name");
        let start = format!("train-{index}-");
        assert!(
            name.starts_with(&start) && name.len() == start.len() + 5,
            "{name}"
        );
        let labels = &pod["metadata"]["labels"];
        assert_eq!(labels["mine"], "yes");
        for (label, value) in [
            ("batch.kubernetes.io/job-name", "train"),
            ("job-name", "train"),
            ("batch.kubernetes.io/controller-uid", &uid),
            (
                "batch.kubernetes.io/job-completion-index",
                &index.to_string(),
            ),
        ] {
            assert_eq!(labels[label], value, "{label}");
        }
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(
            annotations["batch.kubernetes.io/job-completion-index"],
            index.to_string()
        );
        assert_eq!(pod["spec"]["hostname"], format!("train-{index}"));
        assert_eq!(
            text(pod, "/spec/containers/0/env/0/name"),
            "JOB_COMPLETION_INDEX"
        );
        let owner = &pod["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["uid"], &owner["controller"]),
            (&json!(uid), &json!(true))
        );
    }
    let names = pod_names(&double);
    double.pod_phase("default", &names[0], "Running");
    let status = double.get("batch/v1/jobs", "default", "train").unwrap();
    assert_eq!(status["status"]["active"], 2);
    assert_eq!(status["status"]["ready"], 1);
    for name in &names {
        double.pod_phase("default", name, "Succeeded");
    }
    let done = double.get("batch/v1/jobs", "default", "train").unwrap();
    assert_eq!(done["status"]["succeeded"], 2);
    assert_eq!(done["status"]["completedIndexes"], "0,1");
    assert_eq!(condition(&done, "Complete")["status"], "True");
    assert_eq!(pod_names(&double), names);
}

#[tokio::test]
async fn a_job_without_indexes_makes_plain_pods_and_replaces_failed_ones() {
    let double = ApiDouble::start().await;
    double.add_node("node", 0);
    let spec = json!({"parallelism": 1, "completions": 1, "backoffLimit": 1});
    double.create("batch/v1/jobs", "default", job("one", &spec));
    let names = pod_names(&double);
    assert_eq!((names.len(), names[0].len()), (1, "one-".len() + 5));
    double.pod_phase("default", &names[0], "Failed");
    let again: Vec<String> = pod_names(&double)
        .into_iter()
        .filter(|name| *name != names[0])
        .collect();
    assert_eq!(again.len(), 1);
    double.pod_phase("default", &again[0], "Failed");
    let failed = double.get("batch/v1/jobs", "default", "one").unwrap();
    assert_eq!(failed["status"]["failed"], 2);
    assert_eq!(
        condition(&failed, "Failed")["reason"],
        "BackoffLimitExceeded"
    );
}

#[tokio::test]
async fn a_suspended_job_has_no_pods() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.add_node("node", 0);
    let one = format!("{JOBS}/one");
    client
        .post(JOBS, &job("one", &json!({"suspend": true})))
        .await;
    assert_eq!(pod_names(&double), Vec::<String>::new());
    let (_, suspended) = client.get(&one).await;
    assert_eq!(condition(&suspended, "Suspended")["status"], "True");
    let suspend = |is: bool| json!({"spec": {"suspend": is}});
    client
        .patch(&one, "merge-patch+json", &suspend(false))
        .await;
    let names = pod_names(&double);
    assert_eq!(names.len(), 1);
    let (_, running) = client.get(&one).await;
    assert_eq!(condition(&running, "Suspended")["status"], "False");
    assert!(!text(&running, "/status/startTime").is_empty());
    // What suspending ends does not count as failed.
    client.patch(&one, "merge-patch+json", &suspend(true)).await;
    double.finish_deletion("default", &names[0]);
    let (_, suspended) = client.get(&one).await;
    assert_eq!(
        (
            &suspended["status"]["active"],
            &suspended["status"]["failed"]
        ),
        (&json!(0), &json!(0))
    );
    assert_eq!(text(&suspended, "/status/startTime"), "");
    client
        .patch(&one, "merge-patch+json", &suspend(false))
        .await;
    assert_eq!(pod_names(&double).len(), 1);
}

#[tokio::test]
async fn the_first_failure_ends_the_other_pods_and_then_the_job() {
    let double = ApiDouble::start().await;
    double.add_node("node", 0);
    let spec = json!({"parallelism": 2, "completions": 2, "completionMode": "Indexed"});
    double.create("batch/v1/jobs", "default", job("one", &spec));
    let names = pod_names(&double);
    double.pod_phase("default", &names[1], "Running");
    double.pod_phase("default", &names[0], "Failed");
    let ending = double.get("batch/v1/jobs", "default", "one").unwrap();
    assert_eq!(
        condition(&ending, "FailureTarget")["reason"],
        "BackoffLimitExceeded"
    );
    assert_eq!(condition(&ending, "Failed"), Value::Null);
    assert_eq!(ending["status"]["terminating"], 1);
    let other = double.get("v1/pods", "default", &names[1]).unwrap();
    assert!(!text(&other, "/metadata/deletionTimestamp").is_empty());
    double.finish_deletion("default", &names[1]);
    let failed = double.get("batch/v1/jobs", "default", "one").unwrap();
    assert_eq!(condition(&failed, "Failed")["status"], "True");
    assert_eq!(pod_names(&double), [names[0].clone()]);
}

#[tokio::test]
async fn a_policy_distinguishes_disruptions_and_exit_codes() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.add_node("node", 0);
    let policy = json!({"rules": [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [80]}},
        {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "NotIn", "values": [1]}},
    ]});
    let spec = json!({"podFailurePolicy": policy, "backoffLimit": 3});
    let create = |name: &str| {
        double.create("batch/v1/jobs", "default", job(name, &spec));
        let names = pod_names(&double);
        names.into_iter().find(|pod| pod.starts_with(name)).unwrap()
    };
    let status_of = |name: &str| double.get("batch/v1/jobs", "default", name).unwrap();

    let pod = create("evicted");
    let evict = format!("{PODS}/{pod}/eviction");
    assert_eq!(client.post(&evict, &json!({})).await.0, 201);
    // A pod that is ending is not replaced, and has not failed yet.
    assert_eq!(status_of("evicted")["status"]["terminating"], 1);
    double.finish_deletion("default", &pod);
    let failed = condition(&status_of("evicted"), "Failed");
    assert_eq!(failed["reason"], "PodFailurePolicy");
    assert_eq!(
        failed["message"],
        format!(
            "Pod default/{pod} has condition DisruptionTarget matching FailJob rule at index 0"
        )
    );

    let exit = |code: i64| {
        json!({"phase": "Failed", "containerStatuses": [
            {"name": "main", "state": {"terminated": {"exitCode": code}}},
        ]})
    };
    let pod = create("coded");
    double.set_pod_status("default", &pod, &exit(42));
    let message = text(&condition(&status_of("coded"), "Failed"), "/message");
    assert_eq!(
        message,
        format!(
            "Container main for pod default/{pod} failed with exit code 42 matching FailJob rule at index 2"
        )
    );
    let pod = create("ignored");
    double.set_pod_status("default", &pod, &exit(80));
    assert_eq!(status_of("ignored")["status"]["failed"], 0);
    assert_eq!(status_of("ignored")["status"]["active"], 1);
    let pod = create("counted");
    double.set_pod_status("default", &pod, &exit(1));
    assert_eq!(status_of("counted")["status"]["failed"], 1);
}

#[tokio::test]
async fn a_pod_that_is_refused_is_an_event_of_its_job() {
    let double = ApiDouble::start().await;
    let template = json!({"spec": {
        "restartPolicy": "Never",
        "priorityClassName": "none",
        "containers": [{"name": "main"}],
    }});
    let body = job("one", &json!({"template": template}));
    double.create("batch/v1/jobs", "default", body);
    let events = double.list("v1/events", "default");
    assert_eq!(text(&events[0], "/reason"), "FailedCreate");
    assert!(text(&events[0], "/message").contains("no PriorityClass with name none was found"));
}
