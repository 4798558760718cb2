//! What users customise of the pods of their tasks.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "other tests use the rest")]
mod support;

use serde_json::{Value, json};
use support::{TASK, customised, init_container, objects_of, script, task_container, variable};

#[test]
fn what_the_user_customises_of_a_pod_is_kept_where_it_is_not_the_systems() {
    let objects = objects_of(&[customised(json!({
        "metadata": {"name": "x", "labels": {"team": "a", "determined": "forged"}, "annotations": {"note": "b"}},
        "spec": {
            "restartPolicy": "Always", "hostNetwork": true, "nodeName": "n9", "hostname": "h",
            "priorityClassName": "high", "serviceAccountName": "robot",
            "automountServiceAccountToken": true,
            "terminationGracePeriodSeconds": 900,
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "team", "operator": "Exists"}],
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "determined-run", "hostPath": {"path": "/"}}],
            "initContainers": [{"name": "first", "image": "i"}],
            "containers": [{"name": "side", "image": "s"}],
        },
    }))]);
    let template = &objects.jobs[0]["spec"]["template"];
    let metadata = &template["metadata"];
    assert_eq!(metadata["labels"]["team"], "a");
    assert_eq!(metadata["labels"]["determined"], format!("{TASK}.1"));
    assert_eq!(metadata["annotations"]["note"], "b");
    assert_eq!(metadata.get("name"), None);
    let pod = &template["spec"];
    for (key, expected) in [
        ("restartPolicy", json!("Never")),
        ("hostNetwork", Value::Null),
        ("nodeName", Value::Null),
        ("hostname", Value::Null),
        ("priorityClassName", json!("high")),
        ("serviceAccountName", json!("robot")),
        ("automountServiceAccountToken", json!(true)),
        ("terminationGracePeriodSeconds", json!(900)),
        ("nodeSelector", json!({"zone": "a"})),
        ("imagePullSecrets", json!([{"name": "pull"}])),
    ] {
        assert_eq!(pod[key], expected, "{key}");
    }
    assert_eq!(pod["tolerations"][0]["key"], "team");
    let names = |list: &str| -> Vec<&Value> {
        let list = pod[list].as_array().unwrap().iter();
        list.map(|item| &item["name"]).collect()
    };
    assert_eq!(names("containers"), ["side", "determined-container"]);
    assert_eq!(
        names("initContainers"),
        ["first", "determined-init-container"]
    );
    assert_eq!(
        names("volumes"),
        [
            "scratch",
            "determined-run",
            "det-shm-volume",
            "determined-secret"
        ]
    );
    // Four containers share what a kubelet keeps of messages, and others may come.
    assert_eq!(
        variable(
            task_container(&objects.jobs[0]),
            "DET_TERMINATION_MESSAGE_BYTES"
        ),
        Some(&json!("2457"))
    );
}

#[test]
fn what_the_user_customises_of_the_tasks_container_is_merged_into_it() {
    let objects = objects_of(&[customised(json!({"spec": {
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "containers": [{
            "name": "determined-container", "image": "forged", "command": ["x"], "args": ["y"],
            "workingDir": "/", "livenessProbe": {}, "terminationMessagePath": "/x",
            "env": [{"name": "DET_LOG_WAIT_TIME", "value": "5"}, {"name": "MINE", "value": "2"},
                    {"name": "DET_SESSION_TOKEN", "value": "forged"}],
            "envFrom": [{"secretRef": {"name": "keys"}}],
            "resources": {"requests": {"memory": "1Gi", "nvidia.com/gpu": "8"}, "limits": {"memory": "2Gi"}},
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"},
                             {"name": "scratch", "mountPath": "/run/determined/"}],
        }],
    }}))]);
    let task = task_container(&objects.jobs[0]);
    for owned in ["args", "livenessProbe", "workingDir"] {
        assert_eq!(task.get(owned), None, "{owned}");
    }
    assert_eq!(task["image"], "user/image:2");
    assert_eq!(task["terminationMessagePath"], "/dev/termination-log");
    assert_eq!(
        task["resources"],
        json!({"requests": {"memory": "1Gi", "nvidia.com/gpu": "1"}, "limits": {"memory": "2Gi", "nvidia.com/gpu": "1"}})
    );
    assert_eq!(
        init_container(&objects.jobs[0])["resources"],
        json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}})
    );
    assert_eq!(task["envFrom"], json!([{"secretRef": {"name": "keys"}}]));
    assert_eq!(variable(task, "DET_LOG_WAIT_TIME"), Some(&json!("5")));
    let env = task["env"].as_array().unwrap();
    let names: Vec<&Value> = env.iter().map(|entry| &entry["name"]).collect();
    let (_, last) = names.split_at(names.len() - 3);
    assert_eq!(last, ["DET_LOG_WAIT_TIME", "MINE", "DET_SESSION_TOKEN"]);
    // The pod's value of the user's variable wins, and the platform's identity stays.
    let script = script(&objects, 0);
    let names: Vec<&str> = script.env.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["DET_SESSION_TOKEN"]);
    let mounts = task["volumeMounts"].as_array().unwrap();
    let paths: Vec<&Value> = mounts.iter().map(|mount| &mount["mountPath"]).collect();
    assert_eq!(paths, ["/run/determined", "/dev/shm", "/scratch"]);
}

#[test]
fn a_user_may_bring_shared_memory() {
    let objects = objects_of(&[customised(json!({"spec": {
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "containers": [{"name": "determined-container", "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}],
    }}))]);
    let mounts = task_container(&objects.jobs[0])["volumeMounts"]
        .as_array()
        .unwrap();
    let names: Vec<&Value> = mounts.iter().map(|mount| &mount["name"]).collect();
    assert_eq!(names, ["determined-run", "shm"]);
}
