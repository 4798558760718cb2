//! A manager over a double of the Kubernetes API.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

pub mod settings;
pub mod steps;

use det_ids::ContainerId;
use det_kube_double::{ApiDouble, Objects};
use det_rm_contract::{TestCore, within};
use det_rm_kube::{ClusterNamespaces, PodReach, Settings, serve};
use det_taskspec::ContainerExit;
use det_taskspec::sandbox::ExitReport;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The `PriorityClass` of tasks that name no priority.
pub const USUAL_CLASS: &str = "determined-p42";

/// Name and namespace of an object.
pub fn named(object: &Value) -> (String, String) {
    let text = |key: &str| {
        object["metadata"][key]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (text("namespace"), text("name"))
}

/// The container that a Job of one container was made for.
pub fn container_of(job: &Value) -> ContainerId {
    containers_of(job).remove(0)
}

/// The containers that a Job was made for, by completion index.
pub fn containers_of(job: &Value) -> Vec<ContainerId> {
    let record = job["metadata"]["annotations"]["determined.ai/containers"].as_str();
    let record: Value = serde_json::from_str(record.unwrap()).unwrap_or_default();
    let containers = record["containers"].as_array().into_iter().flatten();
    containers
        .map(|it| ContainerId::from(it["id"].as_str().unwrap()))
        .collect()
}

/// The status of a pod that runs.
pub fn running() -> Value {
    json!({
        "phase": "Running",
        "podIP": "10.0.0.1",
        "initContainerStatuses": [{
            "name": "determined-init-container",
            "state": {"terminated": {"exitCode": 0, "reason": "Completed"}},
        }],
        "containerStatuses": [{"name": "determined-container", "state": {"running": {}}}],
    })
}

/// The status of a pod whose supervisor has reported this end.
pub fn terminated(exit: &ContainerExit) -> Value {
    let code = match exit {
        ContainerExit::Exited { code } => *code,
        _ => 1,
    };
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let reported = match exit {
        // A supervisor reports what has ended its task, and not why.
        ContainerExit::Killed => ContainerExit::Signaled {
            signal: 9,
            out_of_memory: false,
        },
        other => other.clone(),
    };
    let report = ExitReport {
        exit: reported,
        ended_at: 1,
        cause: None,
    };
    let message = serde_json::to_string(&report).unwrap();
    let terminated = json!({"exitCode": code, "reason": "Error", "message": message});
    json!({
        "phase": phase,
        "containerStatuses": [
            {"name": "determined-container", "state": {"running": null, "waiting": null, "terminated": terminated}},
        ],
    })
}

/// A pod, as the API has it.
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub object: Value,
}

impl Pod {
    /// GPUs that its task's container asks for.
    pub fn gpus(&self) -> u32 {
        let containers = self.object["spec"]["containers"].as_array().unwrap();
        let task = containers
            .iter()
            .find(|it| it["name"] == "determined-container");
        let limit = task.unwrap()["resources"]["limits"]["nvidia.com/gpu"].clone();
        match limit {
            Value::String(text) => text.parse().unwrap(),
            Value::Number(number) => u32::try_from(number.as_u64().unwrap()).unwrap(),
            _ => 0,
        }
    }

    /// Its node, if it has one.
    pub fn node(&self) -> Option<&str> {
        self.object["spec"]["nodeName"].as_str()
    }
}

/// A manager that runs, with the API.
pub struct Scene {
    pub core: TestCore,
    pub api: ApiDouble,
    pub settings: Settings,
    pub desks: ClusterNamespaces,
    pub reach: PodReach,
    configured: watch::Sender<Settings>,
    directory: TempDir,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl Scene {
    pub async fn start(core: TestCore) -> Self {
        Self::start_with(core, |_| {}).await
    }

    pub async fn start_with(core: TestCore, change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_over(ApiDouble::start().await, core, change)
    }

    /// A manager begins over an API that is as the test has made it.
    pub fn start_over(api: ApiDouble, core: TestCore, change: impl FnOnce(&mut Settings)) -> Self {
        // The class of tasks that name no priority, as an earlier task has left it.
        let class =
            json!({"metadata": {"name": USUAL_CLASS}, "value": 42, "preemptionPolicy": "Never"});
        api.create("scheduling.k8s.io/v1/priorityclasses", "", class);
        let directory = TempDir::new().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, api.kubeconfig()).unwrap();
        let mut settings = settings::settings(kubeconfig);
        change(&mut settings);
        let desks = ClusterNamespaces::default();
        let reach = PodReach::default();
        let shutdown = CancellationToken::new();
        let (configured, followed) = watch::channel(settings.clone());
        let serving = tokio::spawn(serve(
            core.clone(),
            followed,
            desks.clone(),
            reach.clone(),
            shutdown.clone(),
        ));
        Self {
            core,
            api,
            settings,
            desks,
            reach,
            configured,
            directory,
            shutdown,
            serving,
        }
    }

    /// The manager ends, and another one begins.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.begin();
    }

    /// The manager is configured otherwise while it runs.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
        self.configured.send_replace(self.settings.clone());
    }

    /// The manager ends.
    pub async fn stop(&mut self) {
        self.shutdown.cancel();
        let ended = std::mem::replace(&mut self.serving, tokio::spawn(async {}));
        within("the end of the manager", ended).await.unwrap();
    }

    /// A manager begins.
    pub fn begin(&mut self) {
        self.shutdown = CancellationToken::new();
        let served = serve(
            self.core.clone(),
            self.configured.subscribe(),
            self.desks.clone(),
            self.reach.clone(),
            self.shutdown.clone(),
        );
        self.serving = tokio::spawn(served);
    }

    /// A Job for a container of this node that is not known yet.
    pub async fn new_job(&self, node: &str, known: &[ContainerId]) -> Value {
        let mut found = None;
        let find = |objects: &Objects<'_>| {
            let jobs = objects.list("batch/v1/jobs", "");
            found = jobs.into_iter().find(|job| {
                let record = job["metadata"]["annotations"]["determined.ai/containers"].as_str();
                record.is_some_and(|record| record.contains(&format!("\"{node}\"")))
                    && !known.contains(&container_of(job))
            });
            found.is_some()
        };
        self.api
            .until(&format!("a Job for node {node}"), find)
            .await;
        found.unwrap()
    }

    /// The pod of a container.
    pub fn pod_of(&self, container: &ContainerId) -> Option<Pod> {
        pod_of(self.api.objects(), container)
    }

    /// The container has a pod.
    pub async fn has_pod(&self, container: &ContainerId) {
        let has_pod = |objects: &Objects<'_>| pod_of(*objects, container).is_some();
        self.api
            .until(&format!("a pod of {container}"), has_pod)
            .await;
    }

    pub fn set_status(&self, pod: &Pod, status: &Value) {
        self.api.set_pod_status(&pod.namespace, &pod.name, status);
    }

    /// The kubelet has ended the pod of a container, if it is being deleted.
    pub fn finish_deletion(&self, container: &ContainerId) {
        if let Some(pod) = self.pod_of(container)
            && !pod.object["metadata"]["deletionTimestamp"].is_null()
        {
            self.api.finish_deletion(&pod.namespace, &pod.name);
        }
    }

    /// The pod of a container is deleted with less grace than this; gives the grace.
    pub async fn deleted_with_less(&self, container: &ContainerId, than: i64) -> i64 {
        let mut found = 0;
        let is_deleted = |objects: &Objects<'_>| {
            let Some(pod) = pod_of(*objects, container) else {
                return false;
            };
            let grace = pod.object["metadata"]["deletionGracePeriodSeconds"].as_i64();
            found = grace.unwrap_or(i64::MAX);
            found < than
        };
        let what = format!("the pod of {container} is deleted with a grace below {than} s");
        self.api.until(&what, is_deleted).await;
        found
    }

    /// The script of a pod, from its Secret.
    pub fn script(&self, pod: &Pod) -> Value {
        let volumes = pod.object["spec"]["volumes"].as_array().unwrap().iter();
        let mut secrets = volumes.filter_map(|volume| volume["secret"]["secretName"].as_str());
        let secret = secrets.next_back().unwrap();
        let secret = self.api.get("v1/secrets", &pod.namespace, secret).unwrap();
        let key = "task-0.json";
        let text = secret["stringData"][key].as_str().map(str::to_owned);
        let text = text.unwrap_or_else(|| decoded(secret["data"][key].as_str().unwrap()));
        serde_json::from_str(&text).unwrap()
    }
}

fn decoded(text: &str) -> String {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text);
    String::from_utf8(bytes.unwrap()).unwrap()
}

fn pod_of(objects: Objects<'_>, container: &ContainerId) -> Option<Pod> {
    let jobs = objects.list("batch/v1/jobs", "");
    for pod in objects.list("v1/pods", "") {
        let labels = &pod["metadata"]["labels"];
        let job = jobs
            .iter()
            .find(|job| job["metadata"]["name"] == labels["batch.kubernetes.io/job-name"]);
        let containers = match job {
            Some(job) => containers_of(job),
            // That of a Job which was deleted.
            None => match record_of(objects, &pod) {
                Some(containers) => containers,
                None => continue,
            },
        };
        let index = labels["batch.kubernetes.io/job-completion-index"].as_str();
        let index: usize = index.unwrap_or("0").parse().unwrap();
        if containers.get(index) == Some(container) {
            let (namespace, name) = named(&pod);
            return Some(Pod {
                namespace,
                name,
                object: pod,
            });
        }
    }
    None
}

/// The containers of the Job that made a pod, which may be gone by now.
fn record_of(objects: Objects<'_>, pod: &Value) -> Option<Vec<ContainerId>> {
    let name = &pod["metadata"]["labels"]["batch.kubernetes.io/job-name"];
    let made = objects.past("batch/v1/jobs", |job| {
        let of = (&job["metadata"]["name"], &job["metadata"]["namespace"]);
        let is_it = of == (name, &pod["metadata"]["namespace"]);
        let record = job["metadata"]["annotations"]["determined.ai/containers"].is_string();
        (is_it && record).then(|| containers_of(job))
    });
    made.into_iter().next_back()
}
