//! Namespaces of workspaces, over the manager of Kubernetes and a double of its API.

use det_kube_double::{ApiDouble, Objects};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, Cluster, within};
use crate::workspaces::workspace;

const WORKSPACES: &str = "/api/v1/workspaces";
const LAB: &str = "lab";

/// A master with one Kubernetes cluster.
struct World {
    cluster: Cluster,
    api: ApiDouble,
    admin: Client,
    user: Client,
    _directory: TempDir,
}

impl World {
    async fn start() -> Self {
        let pools = "[{pool_name: default}, {pool_name: own, kubernetes_namespace: of-pool}]";
        Self::start_with(&[("resource_pools", pools)]).await
    }

    async fn start_with(more: &[(&str, &str)]) -> Self {
        let api = ApiDouble::start().await;
        api.add_node("node", 8);
        let directory = TempDir::new().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, api.kubeconfig()).unwrap();
        let manager = json!({
            "type": "kubernetes", "cluster_name": LAB, "max_slots_per_pod": 8,
            "kubeconfig_path": kubeconfig, "determined_master_host": "master.example", "helper_image": "helper.example/det",
        });
        let manager = manager.to_string();
        let mut flags = vec![("resource_manager", manager.as_str())];
        flags.extend(more);
        let cluster = Cluster::start_with(&flags).await;
        let (admin, user) = (cluster.admin().await, cluster.determined().await);
        let world = Self {
            cluster,
            api,
            admin,
            user,
            _directory: directory,
        };
        world.namespace("research");
        world.namespace("of-pool");
        world
    }

    fn namespace(&self, name: &str) {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.api.create("v1/namespaces", "", object);
    }

    async fn workspace(&self, name: &str) -> i64 {
        let made = workspace(&self.user, json!({"name": name})).await;
        made["id"].as_i64().unwrap()
    }

    async fn bind(&self, id: i64, meta: Value) -> Value {
        let path = format!("{WORKSPACES}/{id}/namespace-bindings");
        let body = json!({"workspaceId": id, "clusterNamespaceMeta": {"": meta}});
        let bound = self.admin.post(&path, body).await.ok();
        bound["namespaceBindings"][LAB].clone()
    }

    async fn refused(&self, id: i64, meta: Value) -> String {
        let path = format!("{WORKSPACES}/{id}/namespace-bindings");
        let body = json!({"workspaceId": id, "clusterNamespaceMeta": {"": meta}});
        self.admin.post(&path, body).await.refused(400)
    }

    async fn bindings(&self, id: i64) -> Value {
        let path = format!("{WORKSPACES}/{id}/list-namespace-bindings");
        self.user.get(&path).await.ok()["namespaceBindings"].take()
    }

    /// Launches a command in a workspace; gives the task's id.
    async fn launch(&self, workspace: i64, pool: &str, slots: u32) -> String {
        let config =
            json!({"entrypoint": ["true"], "resources": {"slots": slots, "resource_pool": pool}});
        let body = json!({"config": config, "workspaceId": workspace});
        let launched = self.user.post("/api/v1/commands", body).await.ok();
        launched["command"]["id"].as_str().unwrap().to_owned()
    }

    /// The namespace of a task's Job.
    async fn namespace_of(&self, task: &str) -> String {
        let mut found = None;
        let has_job = |objects: &Objects<'_>| {
            let jobs = objects.list("batch/v1/jobs", "");
            let job = jobs
                .iter()
                .find(|job| job["metadata"]["labels"]["determined.ai/task_id"] == task);
            found = job.map(|job| job["metadata"]["namespace"].as_str().unwrap().to_owned());
            found.is_some()
        };
        self.api.until(&format!("a Job of {task}"), has_job).await;
        found.unwrap()
    }

    async fn exists(&self, namespace: &str, wanted: bool) {
        let what = format!("namespace {namespace} exists: {wanted}");
        let is_so = |objects: &Objects<'_>| {
            let found = objects.get("v1/namespaces", "", namespace);
            found.is_some_and(|it| it["metadata"]["deletionTimestamp"].is_null()) == wanted
        };
        self.api.until(&what, is_so).await;
    }
}

#[tokio::test]
async fn a_reload_changes_the_pools_of_a_cluster_in_which_tasks_run() {
    const RELOAD: &str = "/api/v1/master/reload";
    let world = World::start_with(&[]).await;
    let id = world.workspace("vision").await;
    let before = world.launch(id, "default", 1).await;
    assert_eq!(world.namespace_of(&before).await, "default");
    let both = "{pool_name: default}, {pool_name: own, kubernetes_namespace: of-pool}";
    let written = &world.cluster.written;
    written.write(&format!("resource_pools: [{both}, {{pool_name: spare}}]"));
    world.admin.post(RELOAD, json!({})).await.ok();
    let shows = |place: &'static str| move |agents: &Value| agents.to_string().contains(place);
    for place in ["\"node@own\"", "\"node@spare\""] {
        let agents = "/api/v1/agents";
        world.cluster.until(&world.user, agents, shows(place)).await;
    }
    let own = world.launch(id, "own", 1).await;
    assert_eq!(world.namespace_of(&own).await, "of-pool");
    // Nodes keep no pool, and tasks do.
    written.write("resource_pools: [{pool_name: default}]");
    let refused = world.admin.post(RELOAD, json!({})).await.refused(400);
    assert!(
        refused.contains("resource_pools[own]") && !refused.contains("resource_pools[spare]"),
        "{refused}"
    );
    written.write(&format!("resource_pools: [{both}]"));
    world.admin.post(RELOAD, json!({})).await.ok();
    let path = format!("/api/v1/tasks/{before}");
    let task = world.user.get(&path).await.ok();
    assert!(task["task"]["endTime"].is_null(), "{task}");
    world.cluster.stop().await;
}

#[tokio::test]
async fn work_runs_where_its_workspace_is_bound_when_it_is_placed() {
    let world = World::start().await;
    let id = world.workspace("vision").await;
    let before = world.launch(id, "default", 1).await;
    assert_eq!(world.namespace_of(&before).await, "default");
    let bound = world.bind(id, json!({"namespace": "research"})).await;
    assert_eq!(
        bound,
        json!({"workspaceId": id, "clusterName": LAB, "namespace": "research", "autoCreateNamespace": false})
    );
    let after = world.launch(id, "default", 1).await;
    assert_eq!(world.namespace_of(&after).await, "research");
    // A binding goes before the namespace of a pool, which goes before the default one.
    let in_pool = world.launch(id, "own", 1).await;
    assert_eq!(world.namespace_of(&in_pool).await, "research");
    let path = format!("{WORKSPACES}/{id}/namespace-bindings?clusterNames={LAB}");
    world.admin.delete(&path).await.ok();
    let of_pool = world.launch(id, "own", 1).await;
    assert_eq!(world.namespace_of(&of_pool).await, "of-pool");
    assert_eq!(world.bindings(id).await[LAB]["namespace"], "default");
    let refused = world.admin.delete(&path).await.refused(400);
    assert!(refused.contains("is not bound to a namespace"), "{refused}");
    // What ran goes on where it was.
    assert_eq!(world.namespace_of(&after).await, "research");
    world.cluster.stop().await;
}

#[tokio::test]
async fn a_namespace_is_made_for_a_workspace_and_goes_with_it() {
    let world = World::start().await;
    let id = world.workspace("Vision Team").await;
    let bound = world
        .bind(id, json!({"autoCreateNamespace": true, "resourceQuota": 3}))
        .await;
    let name = bound["namespace"].as_str().unwrap().to_owned();
    assert!(name.starts_with("visionteam-default-"), "{name}");
    assert!(name.ends_with(&format!("-{id}")), "{name}");
    world.exists(&name, true).await;
    let quota = world
        .api
        .get("v1/resourcequotas", &name, &format!("{name}-quota"));
    let hard = quota.unwrap()["spec"]["hard"].take();
    assert_eq!(hard, json!({"requests.nvidia.com/gpu": "3"}));
    let shown = world.user.get(&format!("{WORKSPACES}/{id}")).await.ok();
    assert_eq!(shown["workspace"]["autoCreatedNamespace"], name.as_str());
    let quotas = format!("{WORKSPACES}/{id}/get-k8s-resource-quotas");
    let shown = world.user.get(&quotas).await.ok()["resourceQuotas"].take();
    assert_eq!(shown, json!({LAB: 3.0}));
    // The name stays with the workspace, whatever that is called and bound to later.
    let rename = json!({"name": "oceans"});
    let path = format!("{WORKSPACES}/{id}");
    world.user.patch(&path, rename).await.ok();
    world.bind(id, json!({"namespace": "research"})).await;
    let again = world
        .bind(id, json!({"autoCreateNamespaceAllClusters": true}))
        .await;
    assert_eq!(again["namespace"], name.as_str());
    world.user.delete(&path).await.ok();
    world.exists(&name, false).await;
    world.exists("research", true).await;
    let made = || world.cluster.master().homes.get().made.clone();
    within("the namespace to be forgotten", async {
        while !made().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    world.cluster.stop().await;
}

#[tokio::test]
async fn work_keeps_to_the_lowest_quota() {
    let world = World::start().await;
    let id = world.workspace("vision").await;
    world
        .bind(id, json!({"autoCreateNamespace": true, "resourceQuota": 4}))
        .await;
    let first = world.launch(id, "default", 3).await;
    world.namespace_of(&first).await;
    let second = world.launch(id, "default", 2).await;
    let listed = world.user.get(&format!("/api/v1/commands/{second}")).await;
    let job = listed.ok()["command"]["jobId"].as_str().unwrap().to_owned();
    let waits = |answer: &Value| answer.to_string().contains("over_workspace_limit");
    let why = format!("/api/v1/job-queues/{job}/why");
    world.cluster.until(&world.user, &why, waits).await;
    let config = json!({"entrypoint": ["true"], "resources": {"slots": 5}});
    let body = json!({"config": config, "workspaceId": id});
    let refused = world.user.post("/api/v1/commands", body).await.refused(400);
    assert!(refused.contains("may use 4 slots at a time"), "{refused}");
    let quota = format!("{WORKSPACES}/{id}/set-resource-quota");
    let pairs = |slots: i64| json!({"id": id, "clusterQuotaPairs": {"": slots}});
    world.admin.post(&quota, pairs(5)).await.ok();
    world.namespace_of(&second).await;
    let refused = world.user.post(&quota, pairs(9)).await.refused(403);
    assert!(refused.contains("limit the slots"), "{refused}");
    // Others have set a lower one.
    let namespace = world.bindings(id).await[LAB]["namespace"]
        .as_str()
        .unwrap()
        .to_owned();
    let object = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "of-the-institute"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "2"}},
    });
    world.api.create("v1/resourcequotas", &namespace, object);
    let quotas = format!("{WORKSPACES}/{id}/get-k8s-resource-quotas");
    within("the lower quota to be shown", async {
        while world.user.get(&quotas).await.ok()["resourceQuotas"][LAB] != json!(2.0) {}
    })
    .await;
    let refused = world.admin.post(&quota, pairs(3)).await.refused(400);
    assert!(refused.contains("another owner for 2 slots"), "{refused}");
    // Elsewhere there is no namespace whose quota could be set.
    let refused = world
        .admin
        .post(
            &format!("{WORKSPACES}/1/set-resource-quota"),
            json!({"clusterQuotaPairs": {"": 3}}),
        )
        .await
        .refused(400);
    assert!(refused.contains("no namespace of its own"), "{refused}");
    world.cluster.stop().await;
}

#[tokio::test]
async fn what_cannot_be_bound_is_refused_with_what_to_do() {
    let world = World::start().await;
    let id = world.workspace("vision").await;
    for (meta, expected) in [
        (json!({"namespace": "reserch"}), "does not exist"),
        (
            json!({"namespace": "kube-system"}),
            "belongs to Kubernetes itself",
        ),
        (json!({"namespace": "No Such"}), "lower-case letters"),
        (json!({}), "must have one of"),
        (
            json!({"namespace": "research", "autoCreateNamespace": true}),
            "must have one of",
        ),
        (
            json!({"namespace": "research", "resourceQuota": 3}),
            "only those that the master makes",
        ),
        (
            json!({"namespace": "research", "clusterName": "attic"}),
            "the Kubernetes clusters are: lab",
        ),
        (
            json!({"autoCreateNamespaceAllClusters": true, "clusterName": LAB}),
            "must name no cluster",
        ),
    ] {
        let refused = world.refused(id, meta.clone()).await;
        assert!(refused.contains(expected), "{meta}: {refused}");
    }
    assert_eq!(world.bindings(id).await[LAB]["namespace"], "default");
    let path = format!("{WORKSPACES}/{id}/namespace-bindings");
    let body = json!({"clusterNamespaceMeta": {"": {"namespace": "research"}}});
    let refused = world.user.post(&path, body.clone()).await.refused(403);
    assert!(
        refused.contains("bind workspaces to namespaces"),
        "{refused}"
    );
    // Not by creating or changing a workspace either.
    let meta = json!({"": {"namespace": "research"}});
    let created = json!({"name": "secluded", "clusterNamespaceMeta": meta});
    world
        .user
        .post(WORKSPACES, created.clone())
        .await
        .refused(403);
    let patch = json!({"clusterNamespaceMeta": meta});
    world
        .user
        .patch(&format!("{WORKSPACES}/{id}"), patch)
        .await
        .refused(403);
    let names = world.user.get(WORKSPACES).await.ok().to_string();
    assert!(!names.contains("secluded"), "{names}");
    let made = world.admin.post(WORKSPACES, created).await.ok();
    assert_eq!(made["namespaceBindings"][LAB]["namespace"], "research");
    let quota = json!({"name": "limited", "clusterQuotaPairs": {"": 3}});
    let refused = world.admin.post(WORKSPACES, quota).await.refused(400);
    assert!(
        refused.contains("only in a namespace that is made for it"),
        "{refused}"
    );
    world.cluster.stop().await;
}

#[tokio::test]
async fn workspaces_without_namespaces_are_given_some_together() {
    let world = World::start().await;
    let (first, second) = (world.workspace("a").await, world.workspace("b").await);
    world.bind(first, json!({"namespace": "research"})).await;
    let path = "/api/v1/namespace-bindings/workspace-ids-with-default-bindings";
    let unbound = world.user.get(path).await.ok()["workspaceIds"].take();
    assert_eq!(unbound, json!([1, second]));
    let bulk = "/api/v1/namespace-bindings/bulk-auto-create";
    let body = json!({"workspaceIds": [1, first, second]});
    world.user.post(bulk, body.clone()).await.refused(403);
    world.admin.post(bulk, body).await.ok();
    let unbound = world.user.get(path).await.ok()["workspaceIds"].take();
    assert_eq!(unbound, json!([]));
    // One that was bound stays where it was.
    assert_eq!(world.bindings(first).await[LAB]["namespace"], "research");
    let made = world.bindings(second).await[LAB]["namespace"]
        .as_str()
        .unwrap()
        .to_owned();
    world.exists(&made, true).await;
    world.cluster.stop().await;
}

#[tokio::test]
async fn a_master_without_kubernetes_has_no_namespaces() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let path = format!("{WORKSPACES}/1/namespace-bindings");
    let body = json!({"clusterNamespaceMeta": {"": {"namespace": "research"}}});
    let refused = admin.post(&path, body).await.refused(400);
    assert!(
        refused.contains("no resource manager of this master is a Kubernetes cluster"),
        "{refused}"
    );
    let list = format!("{WORKSPACES}/1/list-namespace-bindings");
    assert_eq!(admin.get(&list).await.ok()["namespaceBindings"], json!({}));
    cluster.stop().await;
}

#[tokio::test]
async fn a_class_of_priorities_that_a_pod_spec_names_gives_the_job_its_place() {
    const CLASSES: &str = "scheduling.k8s.io/v1/priorityclasses";
    let world = World::start().await;
    let id = world.workspace("vision").await;
    let first = world.launch(id, "default", 8).await;
    // The cluster can be asked by now.
    world.namespace_of(&first).await;
    for (name, value) in [("urgent", 80), ("beyond", 5000)] {
        let class = json!({"metadata": {"name": name}, "value": value});
        world.api.create(CLASSES, "", class);
    }
    let launched = async |class: &str, priority: Value| {
        let resources = json!({"slots": 8, "resource_pool": "default", "priority": priority});
        let environment = json!({"pod_spec": {"spec": {"priorityClassName": class}}});
        let config =
            json!({"entrypoint": ["true"], "resources": resources, "environment": environment});
        let body = json!({"config": config, "workspaceId": id});
        let launched = world.user.post("/api/v1/commands", body).await.ok();
        let job = launched["command"]["jobId"].clone();
        let queue = "/api/v1/job-queues-v2?resourcePool=default";
        let queue = world.user.get(queue).await.ok();
        let jobs = queue["jobs"].as_array().unwrap();
        let job = jobs
            .iter()
            .map(|job| job.get("full").unwrap_or(job))
            .find(|it| it["jobId"] == job);
        let texts = launched["messages"].to_string();
        (job.unwrap()["priority"].clone(), texts)
    };
    for (class, given, priority, warning) in [
        ("urgent", json!(null), 80, ""),
        ("urgent", json!(20), 20, ""),
        (
            "beyond",
            json!(null),
            99,
            "has the value 5000; the job has priority 99",
        ),
        (
            "nowhere",
            json!(null),
            50,
            "which cluster \"lab\" does not have",
        ),
    ] {
        let (found, warnings) = launched(class, given.clone()).await;
        assert_eq!(found, priority, "{class} {given}");
        let warnings = warnings.replace('\\', "");
        assert!(warnings.contains(warning), "{class}: {warnings}");
    }
    world.cluster.stop().await;
}
