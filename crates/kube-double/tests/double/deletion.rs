//! Deletion: grace, preconditions, finalizers, owners and namespaces.

use det_kube_double::{ApiDouble, Controllers};
use serde_json::{Value, json};

use crate::client::{CONFIG_MAPS, Client, JOBS, PODS, config_map, job, pod, pod_names, text};

fn owned(name: &str, owner: &Value) -> Value {
    let mut object = config_map(name, &json!({}));
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": true,
    }]);
    object
}

#[tokio::test]
async fn a_pod_on_a_node_has_time_to_end() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.create("v1/pods", "default", pod("waiting", 0));
    let (code, gone) = client.delete(&format!("{PODS}/waiting"), &json!({})).await;
    assert_eq!((code, text(&gone, "/kind")), (200, "Pod".to_owned()));
    assert_eq!(double.get("v1/pods", "default", "waiting"), None);

    double.add_node("node", 0);
    for name in ["one", "two", "three"] {
        double.create("v1/pods", "default", pod(name, 0));
    }
    let one = format!("{PODS}/one");
    let (_, pending) = client
        .delete(&one, &json!({"gracePeriodSeconds": 15}))
        .await;
    assert!(!text(&pending, "/metadata/deletionTimestamp").is_empty());
    assert_eq!(pending["metadata"]["deletionGracePeriodSeconds"], 15);
    // A second request can shorten the time, not lengthen it.
    client
        .delete(&one, &json!({"gracePeriodSeconds": 60}))
        .await;
    let (_, still) = client.get(&one).await;
    assert_eq!(still, pending);
    double.finish_deletion("default", "one");
    assert_eq!(client.get(&one).await.0, 404);

    let two = format!("{PODS}/two?gracePeriodSeconds=0");
    client.delete(&two, &Value::Null).await;
    double.pod_phase("default", "three", "Succeeded");
    double.delete("v1/pods", "default", "three");
    assert_eq!(pod_names(&double), Vec::<String>::new());
}

#[tokio::test]
async fn a_deletion_can_name_what_it_means() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let (_, created) = client
        .post(CONFIG_MAPS, &config_map("one", &json!({})))
        .await;
    let one = format!("{CONFIG_MAPS}/one");
    for (precondition, code) in [
        (json!({"uid": "other"}), 409),
        (json!({"resourceVersion": "1"}), 409),
        (json!({"uid": created["metadata"]["uid"]}), 200),
    ] {
        let options = json!({"preconditions": precondition});
        assert_eq!(client.delete(&one, &options).await.0, code, "{options}");
    }
}

#[tokio::test]
async fn finalizers_keep_an_object() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let mut body = config_map("one", &json!({}));
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    client.post(CONFIG_MAPS, &body).await;
    let one = format!("{CONFIG_MAPS}/one");
    let (_, pending) = client.delete(&one, &json!({})).await;
    assert!(!text(&pending, "/metadata/deletionTimestamp").is_empty());
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    assert_eq!(client.patch(&one, "merge-patch+json", &more).await.0, 422);
    let none = json!({"metadata": {"finalizers": null}});
    assert_eq!(client.patch(&one, "merge-patch+json", &none).await.0, 200);
    assert_eq!(client.get(&one).await.0, 404);
}

#[tokio::test]
async fn what_an_owner_leaves_follows_the_policy() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.add_node("node", 0);
    for (policy, is_left) in [
        (json!("Background"), false),
        (json!("Orphan"), true),
        (Value::Null, true),
    ] {
        let (_, owner) = client.post(JOBS, &job("owner", &json!({}))).await;
        client.post(CONFIG_MAPS, &owned("part", &owner)).await;
        let options = json!({"propagationPolicy": policy});
        let path = format!("{JOBS}/owner");
        let sent = client
            .send("DELETE", &path, "application/json", Some(&options))
            .await;
        // Jobs leave their pods unless a request names a policy, and the API warns of that.
        assert_eq!(
            sent.unwrap().headers().contains_key("warning"),
            policy.is_null()
        );
        assert_eq!(client.get(&path).await.0, 404);
        let part = double.get("v1/configmaps", "default", "part");
        assert_eq!(part.is_some(), is_left, "{policy}");
        for pod in double.list("v1/pods", "default") {
            let name = text(&pod, "/metadata/name");
            let is_deleting = pod["metadata"].get("deletionTimestamp").is_some();
            assert_eq!(is_deleting, !is_left, "{policy}");
            if is_left {
                assert_eq!(pod["metadata"]["ownerReferences"], json!([]));
                double.delete("v1/pods", "default", &name);
            }
            double.finish_deletion("default", &name);
        }
        if is_left {
            double.delete("v1/configmaps", "default", "part");
        }
    }
    // An owner that has never existed leaves nothing either.
    let stranger =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "uid": "x"}});
    client.post(CONFIG_MAPS, &owned("part", &stranger)).await;
    assert_eq!(double.get("v1/configmaps", "default", "part"), None);
}

#[tokio::test]
async fn in_the_foreground_the_owner_goes_last() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.add_node("node", 0);
    client.post(JOBS, &job("owner", &json!({}))).await;
    let path = format!("{JOBS}/owner");
    let options = json!({"propagationPolicy": "Foreground"});
    let (_, pending) = client.delete(&path, &options).await;
    assert_eq!(
        pending["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
    assert_eq!(client.get(&path).await.0, 200);
    let names = pod_names(&double);
    assert_eq!(names.len(), 1);
    double.finish_deletion("default", &names[0]);
    assert_eq!(client.get(&path).await.0, 404);
    assert_eq!(pod_names(&double), Vec::<String>::new());
}

#[tokio::test]
async fn a_namespace_goes_with_what_is_in_it() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.add_node("node", 0);
    let (_, created) = client
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "work"}}))
        .await;
    assert_eq!(text(&created, "/status/phase"), "Active");
    double.create("v1/pods", "work", pod("one", 0));
    double.create("v1/configmaps", "work", config_map("one", &json!({})));
    client.delete("/api/v1/namespaces/work", &json!({})).await;
    let (_, ending) = client.get("/api/v1/namespaces/work").await;
    assert_eq!(text(&ending, "/status/phase"), "Terminating");
    let (code, refused) = client
        .post("/api/v1/namespaces/work/pods", &pod("two", 0))
        .await;
    assert_eq!(code, 403);
    assert!(text(&refused, "/message").contains("because it is being terminated"));
    assert_eq!(double.get("v1/configmaps", "work", "one"), None);
    double.finish_deletion("work", "one");
    assert_eq!(client.get("/api/v1/namespaces/work").await.0, 404);
}

#[tokio::test]
async fn pods_of_a_removed_node_fail() {
    let double = ApiDouble::start().await;
    double.add_node("node", 0);
    let client = Client::new(&double);
    client.post(PODS, &pod("one", 0)).await;
    let mut watch = client.watch(PODS, "").await;
    assert_eq!(watch.named().await.0, "ADDED");
    double.remove_node("node");
    let failed = watch.next().await.unwrap().unwrap();
    assert_eq!(text(&failed, "/object/status/phase"), "Failed");
    assert!(failed.to_string().contains("DeletionByPodGC"));
    assert_eq!(watch.named().await.0, "DELETED");
}

#[tokio::test]
async fn controllers_can_be_off() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.add_node("node", 0);
    double.set_controllers(Controllers {
        jobs: false,
        scheduler: false,
        garbage: false,
        ..Controllers::default()
    });
    client.post(JOBS, &job("one", &json!({}))).await;
    double.create("v1/pods", "default", pod("pod", 0));
    assert_eq!(pod_names(&double), ["pod"]);
    let waiting = double.get("v1/pods", "default", "pod").unwrap();
    assert_eq!(text(&waiting, "/spec/nodeName"), "");
    double.set_controllers(Controllers::default());
    assert_eq!(pod_names(&double).len(), 2);
}
