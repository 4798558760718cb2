//! The scheduler.

use det_kube_double::ApiDouble;
use serde_json::{Value, json};

use crate::client::{pod, text};

fn node_of(double: &ApiDouble, name: &str) -> String {
    text(
        &double.get("v1/pods", "default", name).unwrap(),
        "/spec/nodeName",
    )
}

fn scheduled(double: &ApiDouble, name: &str) -> Value {
    let pod = double.get("v1/pods", "default", name).unwrap();
    pod["status"]["conditions"][0].clone()
}

#[tokio::test]
async fn pods_go_where_their_devices_are_free() {
    let double = ApiDouble::start().await;
    double.create("v1/pods", "default", pod("early", 4));
    assert_eq!(
        scheduled(&double, "early")["message"],
        "no nodes available to schedule pods"
    );
    double.add_node("a", 2);
    double.add_node("b", 4);
    assert_eq!(node_of(&double, "early"), "b");
    assert_eq!(scheduled(&double, "early")["status"], "True");
    double.create("v1/pods", "default", pod("small", 2));
    assert_eq!(node_of(&double, "small"), "a");
    double.create("v1/pods", "default", pod("late", 1));
    let waiting = scheduled(&double, "late");
    assert_eq!(
        (&waiting["status"], &waiting["reason"]),
        (&json!("False"), &json!("Unschedulable"))
    );
    assert_eq!(
        waiting["message"],
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    );
    // The end of a pod frees what it had.
    double.pod_phase("default", "small", "Succeeded");
    assert_eq!(node_of(&double, "late"), "a");
}

#[tokio::test]
async fn selectors_affinity_taints_and_gates_are_kept() {
    let double = ApiDouble::start().await;
    for name in ["a", "b", "c"] {
        double.add_node(name, 0);
        let labels =
            json!({"metadata": {"labels": {"zone": name, "fast": (name != "a").then_some("yes")}}});
        double.patch("v1/nodes", "", name, &labels);
    }
    let term = |expressions: Value, fields: Value| {
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": expressions, "matchFields": fields},
        ]}}})
    };
    let expression = |key: &str, operator: &str, values: Value| json!([{"key": key, "operator": operator, "values": values}]);
    for (name, field, value, expected) in [
        ("selected", "nodeSelector", json!({"zone": "c"}), "c"),
        (
            "in",
            "affinity",
            term(expression("zone", "In", json!(["b", "c"])), json!([])),
            "b",
        ),
        (
            "not-in",
            "affinity",
            term(expression("zone", "NotIn", json!(["a", "b"])), json!([])),
            "c",
        ),
        (
            "exists",
            "affinity",
            term(expression("fast", "Exists", json!([])), json!([])),
            "b",
        ),
        (
            "absent",
            "affinity",
            term(expression("fast", "DoesNotExist", json!([])), json!([])),
            "a",
        ),
        (
            "named",
            "affinity",
            term(json!([]), expression("metadata.name", "In", json!(["c"]))),
            "c",
        ),
        ("nowhere", "nodeSelector", json!({"zone": "x"}), ""),
        (
            "gated",
            "schedulingGates",
            json!([{"name": "example.com/wait"}]),
            "",
        ),
        ("foreign", "schedulerName", json!("other"), ""),
    ] {
        let mut body = pod(name, 0);
        body["spec"][field] = value;
        double.create("v1/pods", "default", body);
        assert_eq!(node_of(&double, name), expected, "{name}");
    }
    assert_eq!(scheduled(&double, "gated")["reason"], "SchedulingGated");
    let opened = json!({"spec": {"schedulingGates": []}});
    double.patch("v1/pods", "default", "gated", &opened);
    assert_eq!(node_of(&double, "gated"), "a");

    for name in ["a", "b", "c"] {
        double.set_node_ready(name, false);
    }
    double.create("v1/pods", "default", pod("late", 0));
    assert_eq!(node_of(&double, "late"), "");
    double.set_node_ready("b", true);
    assert_eq!(node_of(&double, "late"), "b");
    double.patch(
        "v1/nodes",
        "",
        "b",
        &json!({"spec": {"unschedulable": true}}),
    );
    double.create("v1/pods", "default", pod("later", 0));
    assert_eq!(node_of(&double, "later"), "");
}

#[tokio::test]
async fn the_more_important_pod_goes_first() {
    let double = ApiDouble::start().await;
    let class = json!({"metadata": {"name": "high"}, "value": 10});
    double.create("scheduling.k8s.io/v1/priorityclasses", "", class);
    double.create("v1/pods", "default", pod("low", 1));
    let mut high = pod("high", 1);
    high["spec"]["priorityClassName"] = json!("high");
    double.create("v1/pods", "default", high);
    double.add_node("node", 1);
    assert_eq!(node_of(&double, "high"), "node");
    assert_eq!(node_of(&double, "low"), "");
}
