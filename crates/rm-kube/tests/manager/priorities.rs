//! `PriorityClasses` of pods.

use det_ids::ContainerId;
use det_rm::{ClassValue, NamespaceAccess as _};
use det_rm_contract::TestCore;
use serde_json::{Value, json};

use crate::support::{Scene, USUAL_CLASS};

const CLASSES: &str = "scheduling.k8s.io/v1/priorityclasses";

/// The chart's class for tasks.
fn medium() -> Value {
    json!({"metadata": {"name": "determined-medium-priority"}, "value": 50, "preemptionPolicy": "Never"})
}

/// The class and the priority of a pod that runs.
async fn class_of(scene: &Scene, id: &ContainerId) -> (Value, Value) {
    let spec = scene.runs(id).await.object["spec"].clone();
    (spec["priorityClassName"].clone(), spec["priority"].clone())
}

/// The classes of the cluster with their values, but for the usual one.
fn classes(scene: &Scene) -> Vec<(String, i64)> {
    let found = scene.api.list(CLASSES, "").into_iter();
    let found = found.map(|class| {
        let name = class["metadata"]["name"].as_str().unwrap().to_owned();
        (name, class["value"].as_i64().unwrap())
    });
    found.filter(|(name, _)| name != USUAL_CLASS).collect()
}

/// Requests about classes, in their order.
fn asked(scene: &Scene) -> Vec<String> {
    let requests = scene.api.requests().into_iter();
    let of_classes = requests.filter(|it| it.path.contains("priorityclasses"));
    of_classes.map(|it| it.method).collect()
}

#[tokio::test]
async fn a_priority_is_a_class_that_tasks_share() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    scene.core.customise(&["c", "d"], 61, None);
    let id = scene.core.place("a", "c", 1);
    assert_eq!(
        class_of(&scene, &id).await,
        (json!("determined-p61"), json!(61))
    );
    let id = scene.core.place("a", "d", 1);
    assert_eq!(
        class_of(&scene, &id).await,
        (json!("determined-p61"), json!(61))
    );
    assert_eq!(classes(&scene), [("determined-p61".to_owned(), 61)]);
    // The second one costs no request.
    assert_eq!(asked(&scene), ["GET", "POST"]);
}

#[tokio::test]
async fn a_class_whose_name_none_can_have_is_missing_without_a_request() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    scene.api.create(CLASSES, "", medium());
    let value = async |class: &str| scene.desks.value_of_class("k", class).await.unwrap();
    for class in ["..", "a/b", "../../../../api/v1/nodes/a", "A", "a?x", ""] {
        assert_eq!(value(class).await, ClassValue::Missing, "{class}");
    }
    assert!(asked(&scene).is_empty());
    let known = value("determined-medium-priority").await;
    assert_eq!(known, ClassValue::Value(50));
    assert_eq!(value("another").await, ClassValue::Missing);
    assert_eq!(asked(&scene), ["GET", "GET"]);
}

#[tokio::test]
async fn the_usual_priority_is_the_class_of_the_chart_where_it_is_installed() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    scene.api.create(CLASSES, "", medium());
    scene.core.customise(&["c"], 50, None);
    let id = scene.core.place("a", "c", 1);
    let expected = (json!("determined-medium-priority"), json!(50));
    assert_eq!(class_of(&scene, &id).await, expected);
    assert_eq!(classes(&scene).len(), 1);
    // Without the chart there is another one.
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    scene.core.customise(&["c"], 50, None);
    let id = scene.core.place("a", "c", 1);
    assert_eq!(
        class_of(&scene, &id).await,
        (json!("determined-p50"), json!(50))
    );
}

#[tokio::test]
async fn the_class_of_a_pod_spec_wins_over_the_priority() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let high = json!({"metadata": {"name": "high"}, "value": 9000});
    scene.api.create(CLASSES, "", high);
    let pod_spec = json!({"spec": {"priorityClassName": "high"}});
    scene.core.customise(&["c"], 61, Some(&pod_spec));
    let id = scene.core.place("a", "c", 1);
    assert_eq!(class_of(&scene, &id).await, (json!("high"), json!(9000)));
    assert_eq!(classes(&scene), [("high".to_owned(), 9000)]);
}

#[tokio::test]
async fn a_master_that_may_not_make_a_class_starts_pods_without_one() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    scene.api.create(CLASSES, "", medium());
    let faults = scene.api.faults();
    faults.forbid("create", "scheduling.k8s.io", "priorityclasses", None);
    scene.core.customise(&["c", "e"], 61, None);
    scene.core.customise(&["d"], 50, None);
    let id = scene.core.place("a", "c", 1);
    assert_eq!(class_of(&scene, &id).await, (Value::Null, json!(0)));
    // What exists is used.
    let id = scene.core.place("a", "d", 1);
    assert_eq!(class_of(&scene, &id).await.1, 50);
    faults.forbid("get", "scheduling.k8s.io", "priorityclasses", None);
    let id = scene.core.place("a", "e", 1);
    assert_eq!(class_of(&scene, &id).await, (Value::Null, json!(0)));
}

#[tokio::test]
async fn a_class_that_cannot_be_made_now_is_made_later() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    scene.core.customise(&["c"], 61, None);
    scene
        .api
        .faults()
        .fail_next("POST", "priorityclasses", 503, 2);
    let id = scene.core.place("a", "c", 1);
    assert_eq!(
        class_of(&scene, &id).await,
        (json!("determined-p61"), json!(61))
    );
}

#[tokio::test]
async fn pods_that_preempt_have_classes_of_their_own() {
    let core = TestCore::default();
    let scene = Scene::start_with(core, |settings| settings.preempts = true).await;
    scene.api.add_node("a", 4);
    scene.has_slots("a", 4).await;
    scene.core.customise(&["c"], 61, None);
    let id = scene.core.place("a", "c", 1);
    let expected = (json!("determined-p61-preempting"), json!(61));
    assert_eq!(class_of(&scene, &id).await, expected);
    let class = scene.api.get(CLASSES, "", "determined-p61-preempting");
    assert_eq!(class.unwrap()["preemptionPolicy"], "PreemptLowerPriority");
}
