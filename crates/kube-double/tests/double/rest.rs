//! Objects: reading, writing, selecting, and how requests are refused.

use det_kube_double::ApiDouble;
use serde_json::{Value, json};

use crate::client::{CONFIG_MAPS, Client, JOBS, PODS, config_map, job, names, pod, text};

#[tokio::test]
async fn objects_are_created_read_replaced_and_deleted() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let one = format!("{CONFIG_MAPS}/one");
    let (code, created) = client
        .post(CONFIG_MAPS, &config_map("one", &json!({})))
        .await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(text(&created, "/kind"), "ConfigMap");
    assert_eq!(text(&created, "/metadata/namespace"), "default");
    assert!(text(&created, "/metadata/creationTimestamp").ends_with('Z'));
    assert_eq!(text(&created, "/metadata/uid").len(), 36);
    assert_eq!(client.get(&one).await, (200, created.clone()));

    let mut changed = created.clone();
    changed["data"]["a"] = json!("2");
    let (code, replaced) = client.put(&one, &changed).await;
    assert_eq!(code, 200, "{replaced}");
    assert_ne!(
        replaced["metadata"]["resourceVersion"],
        created["metadata"]["resourceVersion"]
    );
    // What was read before the change is too old now.
    let (code, refused) = client.put(&one, &changed).await;
    assert_eq!(
        (code, text(&refused, "/reason")),
        (409, "Conflict".to_owned())
    );
    assert!(text(&refused, "/message").contains("the object has been modified"));
    // A write that changes nothing makes no version.
    let (_, same) = client.put(&one, &replaced).await;
    assert_eq!(same, replaced);

    let (code, deleted) = client.delete(&one, &json!({})).await;
    assert_eq!(
        (code, text(&deleted, "/status")),
        (200, "Success".to_owned())
    );
    assert_eq!(deleted["details"]["uid"], created["metadata"]["uid"]);
    let (code, refused) = client.get(&one).await;
    assert_eq!(code, 404);
    assert_eq!(
        refused,
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "configmaps \"one\" not found",
            "reason": "NotFound",
            "details": {"name": "one", "kind": "configmaps"},
            "code": 404,
        })
    );
}

/// Requests to create something, and the code, reason and part of the message that refuse each.
fn refused() -> Vec<(&'static str, Value, u16, &'static str, &'static str)> {
    let large = json!({"metadata": {"name": "large"}, "data": {"a": "x".repeat(1024 * 1024 + 1)}});
    let labelled = config_map("x", &json!({"a": "not a label"}));
    let foreign = json!({"metadata": {"name": "x", "namespace": "kube-system"}});
    let restarting = json!({"template": {"spec": {"restartPolicy": "Always"}}});
    let of_pod = json!({"kind": "Pod", "metadata": {"name": "x"}});
    let nowhere = "/api/v1/namespaces/none/pods";
    let named = "/api/v1/namespaces/default/pods/x";
    vec![
        (
            JOBS,
            job("one", &json!({})),
            409,
            "AlreadyExists",
            "jobs.batch \"one\" already exists",
        ),
        (
            JOBS,
            job("Upper", &json!({})),
            422,
            "Invalid",
            "Job.batch \"Upper\" is invalid: metadata.name",
        ),
        (
            JOBS,
            job("x", &restarting),
            422,
            "Invalid",
            "restartPolicy: Required value",
        ),
        (
            CONFIG_MAPS,
            json!({"data": {}}),
            422,
            "Invalid",
            "name or generateName is required",
        ),
        (CONFIG_MAPS, large, 422, "Invalid", "Too long"),
        (CONFIG_MAPS, labelled, 422, "Invalid", "metadata.labels"),
        (
            CONFIG_MAPS,
            foreign,
            400,
            "BadRequest",
            "does not match the namespace",
        ),
        (CONFIG_MAPS, of_pod, 400, "BadRequest", "ConfigMap"),
        (CONFIG_MAPS, json!([1]), 400, "BadRequest", "no object"),
        (
            CONFIG_MAPS,
            json!({"metadata": 1}),
            400,
            "BadRequest",
            "no object",
        ),
        (
            nowhere,
            pod("x", 0),
            404,
            "NotFound",
            "namespaces \"none\" not found",
        ),
        ("/nothing", json!({}), 404, "NotFound", "could not find"),
        (named, pod("x", 0), 405, "MethodNotAllowed", "method"),
    ]
}

#[tokio::test]
async fn requests_that_cannot_be_met_are_refused_as_the_api_refuses_them() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    client.post(JOBS, &job("one", &json!({}))).await;
    for (path, body, code, reason, message) in refused() {
        let (found, refused) = client.post(path, &body).await;
        assert_eq!(found, code, "{refused}");
        assert_eq!(text(&refused, "/reason"), reason);
        assert_eq!(refused["code"], code);
        assert!(text(&refused, "/message").contains(message), "{refused}");
    }
}

#[tokio::test]
async fn no_body_of_any_shape_ends_the_double() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.add_node("node", 1);
    let huge = i64::MAX;
    for spec in [
        json!({"parallelism": -1}),
        json!({"completions": i64::MIN, "completionMode": "Indexed"}),
        json!({"parallelism": huge, "completions": huge, "completionMode": "Indexed"}),
        json!({"parallelism": "many"}),
        json!({"template": []}),
        json!({"template": {"spec": {"containers": [1], "restartPolicy": "Never"}}}),
        json!({"podFailurePolicy": 1, "selector": [], "backoffLimit": null}),
    ] {
        let (code, answer) = client.post(JOBS, &job("one", &spec)).await;
        assert!(matches!(code, 201 | 400 | 422), "{answer}");
        client.delete(&format!("{JOBS}/one"), &json!([])).await;
    }
    for body in [
        json!({"metadata": {"name": 1}}),
        json!({"metadata": {"name": "one", "labels": {"a": 1}}}),
        json!({"metadata": {"name": "one", "finalizers": 1, "ownerReferences": "x"}, "spec": {"containers": {}}}),
        json!({"metadata": {"name": "one"}, "spec": {
            "containers": [{"resources": {"requests": {"cpu": [], "memory": "1e999Gi"}}}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
            "tolerations": "x", "nodeSelector": 1, "terminationGracePeriodSeconds": huge,
        }}),
    ] {
        let (code, answer) = client.post(PODS, &body).await;
        assert!(matches!(code, 201 | 400 | 422), "{answer}");
        client
            .delete(&format!("{PODS}/one"), &json!({"gracePeriodSeconds": huge}))
            .await;
    }
    for query in [
        "limit=x",
        "limit=-1",
        "continue=x",
        "resourceVersion=x",
        "labelSelector=(((",
        "watch=true&resourceVersionMatch=x",
    ] {
        let (code, _) = client.get(&format!("{PODS}?{query}")).await;
        assert!(matches!(code, 200 | 400 | 422), "{query}");
    }
    client
        .watch(PODS, &format!("timeoutSeconds={}", u64::MAX))
        .await;
    let sent = client
        .send("POST", PODS, "application/json", None)
        .await
        .unwrap();
    assert_eq!(sent.status().as_u16(), 400);
    assert_eq!(client.get(PODS).await.0, 200);
}

#[tokio::test]
async fn names_are_generated_and_writes_can_be_tried() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let body = json!({"metadata": {"generateName": "part-"}});
    let (_, one) = client.post(CONFIG_MAPS, &body).await;
    let (_, other) = client.post(CONFIG_MAPS, &body).await;
    let (one, other) = (text(&one, "/metadata/name"), text(&other, "/metadata/name"));
    assert!(one.starts_with("part-") && one.len() == 10, "{one}");
    assert_ne!(one, other);
    let tried = format!("{CONFIG_MAPS}?dryRun=All");
    let (code, _) = client.post(&tried, &config_map("tried", &json!({}))).await;
    assert_eq!(code, 201);
    assert_eq!(client.get(&format!("{CONFIG_MAPS}/tried")).await.0, 404);
}

#[tokio::test]
async fn patches_of_each_kind_change_an_object() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let suspended = json!({"suspend": true});
    client.post(JOBS, &job("one", &suspended)).await;
    let one = format!("{JOBS}/one");
    let merge = json!({"metadata": {"labels": {"a": "1"}, "annotations": {"b": "2"}}});
    let (code, patched) = client.patch(&one, "merge-patch+json", &merge).await;
    assert_eq!(
        (code, text(&patched, "/metadata/labels/a")),
        (200, "1".to_owned())
    );
    assert_eq!(patched["metadata"]["generation"], 1);

    let strategic = json!({"spec": {"parallelism": 0, "template": {"spec": {"nodeSelector": {"k": "v"}, "containers": [
        {"name": "main", "resources": {"limits": {"cpu": "1"}}},
    ]}}}});
    let (code, patched) = client
        .patch(&one, "strategic-merge-patch+json", &strategic)
        .await;
    assert_eq!(code, 200, "{patched}");
    let container = &patched["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "none");
    assert_eq!(container["resources"]["limits"]["cpu"], "1");
    assert_eq!(patched["metadata"]["generation"], 2);

    let version = patched["metadata"]["resourceVersion"].clone();
    let json_patch = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "replace", "path": "/spec/parallelism", "value": 1},
    ]);
    let (code, _) = client.patch(&one, "json-patch+json", &json_patch).await;
    assert_eq!(code, 200);
    assert_eq!(
        client.patch(&one, "json-patch+json", &json_patch).await.0,
        422
    );
    let (code, refused) = client.patch(&one, "json", &merge).await;
    assert_eq!(
        (code, text(&refused, "/reason")),
        (415, "UnsupportedMediaType".to_owned())
    );

    let old = json!({"metadata": {"resourceVersion": "1", "labels": {"a": "2"}}});
    assert_eq!(client.patch(&one, "merge-patch+json", &old).await.0, 409);
    let applied = config_map("new", &json!({"a": "b"}));
    let path = format!("{CONFIG_MAPS}/new?fieldManager=x&force=true");
    assert_eq!(
        client.patch(&path, "apply-patch+yaml", &applied).await.0,
        200
    );
    assert_eq!(
        client.patch(&path, "apply-patch+yaml", &applied).await.0,
        200
    );
}

#[tokio::test]
async fn status_and_the_rest_of_an_object_are_written_apart() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let mut body = pod("one", 0);
    body["status"] = json!({"phase": "Running"});
    let (_, created) = client.post(PODS, &body).await;
    assert_eq!(text(&created, "/status/phase"), "Pending");
    let one = format!("{PODS}/one");
    let both = json!({"metadata": {"labels": {"a": "1"}}, "status": {"phase": "Running"}});
    let (_, patched) = client.patch(&one, "merge-patch+json", &both).await;
    assert_eq!(text(&patched, "/metadata/labels/a"), "1");
    assert_eq!(text(&patched, "/status/phase"), "Pending");
    let both = json!({"metadata": {"labels": {"a": "2"}}, "status": {"phase": "Running"}});
    let status = format!("{one}/status");
    let (_, patched) = client.patch(&status, "merge-patch+json", &both).await;
    assert_eq!(text(&patched, "/metadata/labels/a"), "1");
    assert_eq!(text(&patched, "/status/phase"), "Running");
}

#[tokio::test]
async fn the_template_of_a_job_changes_only_while_it_waits() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let one = format!("{JOBS}/one");
    client
        .post(JOBS, &job("one", &json!({"suspend": true})))
        .await;
    let select =
        |value: &str| json!({"spec": {"template": {"spec": {"nodeSelector": {"k": value}}}}});
    let patched = client.patch(&one, "merge-patch+json", &select("1")).await;
    assert_eq!(patched.0, 200);
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "other"}]}}}});
    let patched = client.patch(&one, "merge-patch+json", &image).await;
    assert_eq!(patched.0, 422);
    let resumed = json!({"spec": {"suspend": false}});
    client.patch(&one, "merge-patch+json", &resumed).await;
    let (code, refused) = client.patch(&one, "merge-patch+json", &select("2")).await;
    assert_eq!(code, 422);
    assert!(
        text(&refused, "/message").contains("spec.template: Invalid value: field is immutable")
    );
}

#[tokio::test]
async fn lists_are_selected_by_labels_and_fields() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.add_node("node", 0);
    for (name, labels) in [
        ("a", json!({"app": "x", "tier": "1"})),
        ("b", json!({"app": "y"})),
        ("c", json!({"tier": "2"})),
    ] {
        let mut body = pod(name, 0);
        body["metadata"]["labels"] = labels;
        client.post(PODS, &body).await;
    }
    double.create("v1/pods", "kube-system", pod("d", 0));
    double.pod_phase("default", "b", "Running");
    for (path, query, expected) in [
        (PODS, "", "a b c"),
        ("/api/v1/pods", "", "a b c d"),
        (PODS, "labelSelector=app%3Dx", "a"),
        (PODS, "labelSelector=app!%3Dx", "b c"),
        (PODS, "labelSelector=app,tier", "a"),
        (PODS, "labelSelector=!app", "c"),
        (PODS, "labelSelector=app%20in%20(x,y)", "a b"),
        (PODS, "labelSelector=app%20notin%20(x),tier", "c"),
        (PODS, "fieldSelector=metadata.name%3Db", "b"),
        (
            "/api/v1/pods",
            "fieldSelector=metadata.namespace%3Dkube-system",
            "d",
        ),
        (PODS, "fieldSelector=status.phase!%3DPending", "b"),
        (
            "/api/v1/pods",
            "fieldSelector=spec.nodeName%3Dnode,status.phase%3DRunning",
            "b",
        ),
    ] {
        let (code, list) = client.get(&format!("{path}?{query}")).await;
        assert_eq!(code, 200, "{list}");
        assert_eq!(text(&list, "/kind"), "PodList");
        assert_eq!(names(&list).join(" "), expected, "{query}");
    }
    let (code, refused) = client
        .get(&format!("{PODS}?fieldSelector=spec.x%3D1"))
        .await;
    assert_eq!(
        (code, text(&refused, "/reason")),
        (400, "BadRequest".to_owned())
    );
    client
        .delete(
            &format!("{PODS}?labelSelector=app"),
            &json!({"gracePeriodSeconds": 0}),
        )
        .await;
    assert_eq!(names(&client.get(PODS).await.1), ["c"]);
}

#[tokio::test]
async fn lists_come_in_pages_of_one_version() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    for name in ["a", "b", "c", "d", "e"] {
        client
            .post(CONFIG_MAPS, &config_map(name, &json!({})))
            .await;
    }
    let (_, first) = client.get(&format!("{CONFIG_MAPS}?limit=2")).await;
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    // What happens between the pages is not in them.
    client.delete(&format!("{CONFIG_MAPS}/c"), &json!({})).await;
    client
        .post(CONFIG_MAPS, &config_map("cc", &json!({})))
        .await;
    let next = format!(
        "{CONFIG_MAPS}?limit=2&continue={}",
        text(&first, "/metadata/continue")
    );
    let (_, second) = client.get(&next).await;
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(
        second["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let last = format!(
        "{CONFIG_MAPS}?limit=2&continue={}",
        text(&second, "/metadata/continue")
    );
    let (_, last) = client.get(&last).await;
    assert_eq!(names(&last), ["e"]);
    assert_eq!(text(&last, "/metadata/continue"), "");

    double.faults().compact();
    let (code, refused) = client.get(&next).await;
    assert_eq!(
        (code, text(&refused, "/reason")),
        (410, "Expired".to_owned())
    );
    let (code, refused) = client
        .get(&format!("{CONFIG_MAPS}?resourceVersion=999999"))
        .await;
    assert_eq!(
        (code, text(&refused, "/reason")),
        (504, "Timeout".to_owned())
    );
}

#[tokio::test]
async fn custom_resources_need_no_declaration() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let path = "/apis/kueue.x-k8s.io/v1beta1/namespaces/default/localqueues";
    let body = json!({"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "one"}});
    assert_eq!(client.post(path, &body).await.0, 201);
    let (_, list) = client.get("/apis/kueue.x-k8s.io/v1beta1/localqueues").await;
    assert_eq!(text(&list, "/kind"), "LocalQueueList");
    assert_eq!(text(&list, "/items/0/kind"), "LocalQueue");
}

#[tokio::test]
async fn version_groups_and_kinds_are_found() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let (_, version) = client.get("/version").await;
    assert_eq!(
        (text(&version, "/major"), text(&version, "/minor")),
        ("1".to_owned(), "36".to_owned())
    );
    let (_, groups) = client.get("/apis").await;
    assert!(groups.to_string().contains("batch/v1"));
    let (_, kinds) = client.get("/apis/batch/v1").await;
    assert_eq!(text(&kinds, "/resources/0/kind"), "Job");
    assert_eq!(client.get("/apis/kueue.x-k8s.io/v1beta1").await.0, 404);
    assert!(double.kubeconfig().contains(&double.url()));
}
