//! The double as a test has it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tower::ServiceExt as _;

use crate::cluster::Cluster;
use crate::controllers::Controllers;
use crate::faults::Faults;
use crate::shared::{DoubleState, RecordedRequest};
use crate::target::{Key, Resource, Target};
use crate::values::{list, moment, set, set_condition, text};
use crate::writes::{self, Mode};
use crate::{deletion, http, patches};

/// How long anything that a test waits for may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Doubles of the process, which are numbered so that no two of them give the same uid.
static STARTED: AtomicU64 = AtomicU64::new(1);

/// A double of the Kubernetes API that serves while it exists.
///
/// Kinds are named by group, version and plural, `batch/v1/jobs`, those of the core as `v1/pods`; the namespace is empty for
/// cluster-scoped objects, and in lists for all namespaces. All functions but [`Self::until`] act at once, the controllers
/// included. Those that name an object panic if it does not exist, but for [`Self::get`].
#[derive(Debug)]
pub struct ApiDouble {
    shared: Arc<DoubleState>,
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl Drop for ApiDouble {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl ApiDouble {
    /// Serves a cluster without nodes, with the namespaces that every cluster has, on a free port of this host.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn start() -> Self {
        let mut cluster = Cluster::new(STARTED.fetch_add(1, Ordering::Relaxed));
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            create(
                &mut cluster,
                "v1/namespaces",
                "",
                json!({"metadata": {"name": name}}),
            );
        }
        let shared = Arc::new(DoubleState::new(cluster));
        let bound = TcpListener::bind("127.0.0.1:0").await;
        let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = match bound {
            Ok(bound) => bound,
            Err(error) => panic!("no port for a double of the Kubernetes API: {error}"),
        };
        Self {
            server: tokio::spawn(serve(listener, Arc::clone(&shared))),
            shared,
            address,
        }
    }

    /// The address, `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A kubeconfig with the one context `double`, as YAML.
    pub fn kubeconfig(&self) -> String {
        let lines = [
            "apiVersion: v1",
            "kind: Config",
            "current-context: double",
            "clusters:",
            "- name: double",
            "  cluster:",
            &format!("    server: {}", self.url()),
            "contexts:",
            "- name: double",
            "  context:",
            "    cluster: double",
            "    user: double",
            "    namespace: default",
            "users:",
            "- name: double",
            "  user: {}",
            "",
        ];
        lines.join("\n")
    }

    /// All requests so far, in the order in which they came.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.control().requests.clone()
    }

    /// The faults that the double can have.
    pub fn faults(&self) -> Faults {
        Faults {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Has discovery show custom resources. Objects of every kind can be created without that.
    pub fn add_kind(&self, group: &str, version: &str, plural: &str) {
        let kind = [group, version, plural].map(str::to_owned);
        self.shared.control().custom.push(kind);
    }

    /// Chooses the parts of the control plane that run; what they have missed they do at once.
    pub fn set_controllers(&self, controllers: Controllers) {
        self.shared
            .change(|cluster| cluster.controllers = controllers);
    }

    /// The objects as they are, to read them.
    pub fn objects(&self) -> Objects<'_> {
        Objects {
            shared: &self.shared,
        }
    }

    /// An object; `None` if it does not exist.
    pub fn get(&self, kind_path: &str, namespace: &str, name: &str) -> Option<Value> {
        self.objects().get(kind_path, namespace, name)
    }

    /// The objects of a kind, by namespace and name.
    pub fn list(&self, kind_path: &str, namespace: &str) -> Vec<Value> {
        self.objects().list(kind_path, namespace)
    }

    /// Creates an object, and returns it as it was stored.
    ///
    /// # Panics
    /// The API refuses it.
    pub fn create(&self, kind_path: &str, namespace: &str, object: Value) -> Value {
        self.shared
            .change(|cluster| create(cluster, kind_path, namespace, object))
    }

    /// Merges a JSON merge patch into an object, status and metadata included.
    pub fn patch(&self, kind_path: &str, namespace: &str, name: &str, patch: &Value) {
        let target = Target::of_kind_path(kind_path, Some(namespace), Some(name));
        modify(&self.shared, &target.key(name), |object| {
            patches::merge(object, patch);
        });
    }

    /// Deletes an object by hand: its pods or what else it owns too, and pods with their own time of grace.
    pub fn delete(&self, kind_path: &str, namespace: &str, name: &str) {
        let target = Target::of_kind_path(kind_path, Some(namespace), Some(name));
        let key = target.key(name);
        let body = json!({"propagationPolicy": "Background"});
        let deleted = self.shared.change(|cluster| {
            let options = deletion::Options::parse(&body, |_| None)?;
            deletion::delete(cluster, &key, &options)
        });
        assert!(
            deleted.is_ok(),
            "{kind_path} {namespace}/{name} cannot be deleted"
        );
    }

    /// Adds a node that is ready and has so many GPUs (`nvidia.com/gpu`), 64 processors, 512 GiB of memory and capacity for
    /// 110 pods.
    pub fn add_node(&self, name: &str, gpus: u32) {
        self.create("v1/nodes", "", node(name, gpus));
    }

    /// Removes a node; its pods fail with the condition `DisruptionTarget`, and are removed.
    pub fn remove_node(&self, name: &str) {
        self.delete("v1/nodes", "", name);
    }

    /// Has a node be ready, or not: then it has the taint `node.kubernetes.io/not-ready` and takes no pods; those that it
    /// has stay.
    pub fn set_node_ready(&self, name: &str, is_ready: bool) {
        const TAINT: &str = "node.kubernetes.io/not-ready";
        let key = Key::new(Resource::nodes(), "", name);
        modify(&self.shared, &key, |node| {
            let mut taints: Vec<Value> = list(node, "/spec/taints")
                .iter()
                .filter(|taint| text(taint, "/key") != TAINT)
                .cloned()
                .collect();
            if is_ready {
                let message = "kubelet is posting ready status";
                set_condition(node, "Ready", "True", "KubeletReady", message);
            } else {
                let message = "container runtime is down";
                set_condition(node, "Ready", "False", "KubeletNotReady", message);
                for effect in ["NoExecute", "NoSchedule"] {
                    taints.push(json!({"key": TAINT, "effect": effect}));
                }
            }
            set(node, &["spec", "taints"], taints);
        });
    }

    /// Sets a pod's phase with what goes with it: states of its containers (`Succeeded` with exit code 0, `Failed` with 1),
    /// addresses and conditions.
    pub fn pod_phase(&self, namespace: &str, name: &str, phase: &str) {
        let key = Key::new(Resource::pods(), namespace, name);
        modify(&self.shared, &key, |pod| set_phase(pod, phase));
    }

    /// Merges a value into a pod's status, its containers by name and its conditions by type.
    pub fn set_pod_status(&self, namespace: &str, name: &str, status: &Value) {
        let key = Key::new(Resource::pods(), namespace, name);
        let patch = json!({"status": status});
        modify(&self.shared, &key, |pod| patches::strategic(pod, &patch));
    }

    /// Ends a pod that is being deleted, as the kubelet does: one that has not ended by then is `Failed` first.
    ///
    /// # Panics
    /// There is no such pod, or it is not being deleted.
    pub fn finish_deletion(&self, namespace: &str, name: &str) {
        let key = Key::new(Resource::pods(), namespace, name);
        let is_done = self
            .shared
            .change(|cluster| deletion::finish(cluster, &key));
        assert!(is_done, "the pod {namespace}/{name} is not being deleted");
    }

    /// Waits until a condition holds, which is asked after every change and every request.
    ///
    /// # Panics
    /// It does not hold within 30 seconds.
    pub async fn until(&self, what: &str, mut is_so: impl FnMut(&Objects<'_>) -> bool) {
        let objects = self.objects();
        let mut activity = self.shared.activity.subscribe();
        let wait = async {
            loop {
                activity.borrow_and_update();
                if is_so(&objects) {
                    return;
                }
                // The sender is a field of `self`, so it lives.
                let _ = activity.changed().await;
            }
        };
        let is_in_time = tokio::time::timeout(LIMIT, wait).await.is_ok();
        assert!(
            is_in_time,
            "{what}: not within {} s; {}",
            LIMIT.as_secs(),
            objects.summary()
        );
    }
}

/// A node that is ready, as [`ApiDouble::add_node`] describes it.
pub(crate) fn node(name: &str, gpus: u32) -> Value {
    let mut offered = json!({"cpu": "64", "memory": "512Gi", "pods": "110"});
    if gpus > 0 {
        set(&mut offered, &["nvidia.com/gpu"], gpus.to_string());
    }
    let mut node = json!({
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {},
        "status": {
            "capacity": offered,
            "allocatable": offered,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0"},
        },
    });
    let message = "kubelet is posting ready status";
    set_condition(&mut node, "Ready", "True", "KubeletReady", message);
    node
}

/// Changes an object that exists.
fn modify(shared: &DoubleState, key: &Key, change: impl FnOnce(&mut Value)) {
    let exists = shared.change(|cluster| cluster.modify(key, change));
    assert!(
        exists,
        "there is no {} {}/{}",
        key.resource.qualified(),
        key.namespace,
        key.name
    );
}

/// The objects of a double, to read them. Each call sees them as they are at that moment.
#[derive(Debug, Clone, Copy)]
pub struct Objects<'a> {
    shared: &'a DoubleState,
}

impl Objects<'_> {
    /// An object; `None` if it does not exist.
    pub fn get(&self, kind_path: &str, namespace: &str, name: &str) -> Option<Value> {
        let target = Target::of_kind_path(kind_path, Some(namespace), Some(name));
        let cluster = self.shared.cluster();
        cluster
            .get(&target.key(name))
            .map(|object| Value::clone(object))
    }

    /// The objects of a kind, by namespace and name.
    pub fn list(&self, kind_path: &str, namespace: &str) -> Vec<Value> {
        let target = Target::of_kind_path(kind_path, Some(namespace), None);
        let cluster = self.shared.cluster();
        cluster
            .list(&target.resource)
            .filter(|(key, _)| namespace.is_empty() || key.namespace == namespace)
            .map(|(_, object)| Value::clone(object))
            .collect()
    }

    /// What `read` finds in the states that objects of a kind have had, the oldest first, as far as history is kept (20,000
    /// changes of the cluster).
    pub fn past<T>(&self, kind_path: &str, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
        let target = Target::of_kind_path(kind_path, None, None);
        let cluster = self.shared.cluster();
        let states = cluster.past(&target.resource);
        states.filter_map(|object| read(object)).collect()
    }

    /// Waits for the next change of an object, or the next request.
    pub async fn next_activity(&self) {
        let mut activity = self.shared.activity.subscribe();
        // The sender is a field of `self`, so it lives.
        let _ = activity.changed().await;
    }

    /// Jobs and pods in a line, for messages.
    pub fn summary(self) -> String {
        let mut found = Vec::new();
        for job in self.list("batch/v1/jobs", "") {
            let status = job.get("status").cloned().unwrap_or_default();
            found.push(format!("job {}: {status}", text(&job, "/metadata/name")));
        }
        for pod in self.list("v1/pods", "") {
            let deleting = if crate::cluster::is_deleting(&pod) {
                ", being deleted"
            } else {
                ""
            };
            found.push(format!(
                "pod {}: {} on {:?}{deleting}",
                text(&pod, "/metadata/name"),
                text(&pod, "/status/phase"),
                text(&pod, "/spec/nodeName"),
            ));
        }
        found.join("; ")
    }
}

fn create(cluster: &mut Cluster, kind_path: &str, namespace: &str, object: Value) -> Value {
    let target = Target::of_kind_path(kind_path, Some(namespace), None);
    match writes::create(cluster, &target, object, Mode::Store) {
        Ok(created) => Value::clone(&created),
        Err(failure) => panic!("{kind_path} cannot be created: {}", failure.status()),
    }
}

pub(crate) fn set_phase(pod: &mut Value, phase: &str) {
    let state = match phase {
        "Running" => json!({"running": {"startedAt": moment(0)}}),
        "Succeeded" => {
            json!({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": moment(0)}})
        }
        "Failed" => {
            json!({"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": moment(0)}})
        }
        _ => json!({"waiting": {"reason": "ContainerCreating"}}),
    };
    let runs = phase == "Running";
    let statuses = |containers: &str| -> Vec<Value> {
        list(pod, &format!("/spec/{containers}"))
            .iter()
            .map(|container| {
                json!({
                    "name": text(container, "/name"),
                    "image": text(container, "/image"),
                    "imageID": "",
                    "ready": runs,
                    "started": runs,
                    "restartCount": 0,
                    "state": state,
                })
            })
            .collect()
    };
    let statuses = statuses("containers");
    set(pod, &["status", "phase"], phase);
    set(pod, &["status", "containerStatuses"], statuses);
    crate::values::set_default(pod, &["status", "startTime"], moment(0));
    if runs {
        for (field, address) in [("podIP", "127.0.0.1"), ("hostIP", "127.0.0.1")] {
            set(pod, &["status", field], address);
        }
    }
    let ready = if runs { "True" } else { "False" };
    for condition in ["ContainersReady", "Ready"] {
        set_condition(pod, condition, ready, "", "");
    }
}

/// Has a port of a pod be forwarded to a listener of the test. On the other ports of pods nothing listens.
pub fn listen(api: &ApiDouble, (namespace, pod): (&str, &str), port: u16, to: SocketAddr) {
    let of = (namespace.to_owned(), pod.to_owned(), port);
    api.shared.control().listeners.insert(of, to);
}

/// Has Services get these ports of nodes, in this order, where they need some.
pub fn give_node_ports(api: &ApiDouble, ports: &[u16]) {
    api.shared
        .change(|cluster| cluster.node_ports.extend(ports));
}

/// Accepts connections until the double is dropped, and all of them with it.
async fn serve(listener: TcpListener, shared: Arc<DoubleState>) {
    let router = http::router(Arc::clone(&shared));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // In this order: a connection that is not refused sees every cut that comes later.
                let cuts = shared.cuts.subscribe();
                let is_unreachable = *shared.unreachable.borrow();
                if let Ok((stream, _)) = accepted && !is_unreachable {
                    connections.spawn(connection(stream, router.clone(), cuts));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection until one of the sides closes it.
async fn connection(stream: TcpStream, router: Router, mut cuts: watch::Receiver<u64>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let router = router.clone();
        async move {
            Ok::<_, Infallible>(
                router
                    .oneshot(request)
                    .await
                    .unwrap_or_else(|never| match never {}),
            )
        }
    });
    let builder = Builder::new(TokioExecutor::new());
    let serve = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::select! {
        // What goes wrong on a connection is the client's to see.
        _ = serve => {}
        _ = cuts.changed() => {}
    }
}
