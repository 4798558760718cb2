//! What tests do with a scene, and wait for.

use std::sync::atomic::{AtomicU32, Ordering};

use det_ids::ContainerId;
use det_kube_double::Objects;
use det_lifecycle::container::{DesiredState, ObservedState};
use det_rm::Health;
use det_rm_contract::TestCore;
use det_taskspec::ContainerExit;
use serde_json::{Value, json};

use super::{Pod, Scene, running, terminated};

/// The text of an exit that has one.
pub fn text(exit: &ContainerExit) -> &str {
    match exit {
        ContainerExit::Lost { message }
        | ContainerExit::StartFailed { message }
        | ContainerExit::SetupFailed { message, .. } => message,
        ContainerExit::Exited { .. } | ContainerExit::Signaled { .. } | ContainerExit::Killed => "",
    }
}

impl Scene {
    /// A manager of a cluster with these nodes, which have joined.
    pub async fn with_nodes(nodes: &[(&str, u32)]) -> Self {
        let scene = Self::start(TestCore::default()).await;
        for (node, gpus) in nodes {
            scene.api.add_node(node, *gpus);
        }
        for (node, gpus) in nodes {
            scene.has_slots(node, *gpus).await;
        }
        scene
    }

    /// A place is served with so many slots.
    pub async fn has_slots(&self, place: &str, slots: u32) {
        let has = |core: &TestCore| {
            let joined = core.served(place);
            joined.is_some_and(|joined| {
                let all = joined.capacity.slots().len();
                let others = joined.capacity.used_by_others(|_| false).len();
                all - others == slots as usize
            })
        };
        let what = format!("place {place} has {slots} slots");
        self.core.until(&what, has).await;
    }

    /// A place is not served.
    pub async fn has_left(&self, place: &str) {
        let has_left = |core: &TestCore| core.served(place).is_none();
        self.core
            .until(&format!("place {place} leaves"), has_left)
            .await;
    }

    /// A container's pod runs, and the core knows it.
    pub async fn runs(&self, id: &ContainerId) -> Pod {
        self.has_node(id).await;
        let pod = self.pod_of(id).unwrap();
        self.set_status(&pod, &running());
        let runs =
            |core: &TestCore| matches!(core.row(id).observed, Some(ObservedState::Running { .. }));
        self.core.until(&format!("{id} runs"), runs).await;
        pod
    }

    /// The core knows that a container is assigned to its node.
    pub async fn is_assigned(&self, id: &ContainerId) {
        let is_known = |core: &TestCore| core.row(id).observed.is_some();
        self.core
            .until(&format!("{id} is assigned"), is_known)
            .await;
    }

    /// The core knows that the image of a container is pulled.
    pub async fn is_pulling(&self, id: &ContainerId) {
        let is_known = |core: &TestCore| core.row(id).observed == Some(ObservedState::Pulling);
        self.core.until(&format!("{id} is pulled"), is_known).await;
    }

    /// A container's pod has a node.
    pub async fn has_node(&self, id: &ContainerId) {
        let has_node = |objects: &Objects<'_>| {
            let pod = super::pod_of(*objects, id);
            pod.is_some_and(|pod| pod.node().is_some())
        };
        self.api
            .until(&format!("the pod of {id} has a node"), has_node)
            .await;
    }

    /// The code of a container ends.
    pub async fn exits(&self, id: &ContainerId, code: i32) {
        let pod = self.pod_of(id).unwrap();
        let exit = ContainerExit::Exited { code };
        self.set_status(&pod, &terminated(&exit));
        assert_eq!(self.has_ended(id).await, exit);
    }

    /// A container has ended; gives how.
    pub async fn has_ended(&self, id: &ContainerId) -> ContainerExit {
        let has_ended = |core: &TestCore| core.row(id).exit().is_some();
        self.core.until(&format!("{id} ends"), has_ended).await;
        let row = self.core.row(id);
        assert!(row.ended);
        row.exit().unwrap().clone()
    }

    /// A container is lost; gives the reason.
    pub async fn is_lost(&self, id: &ContainerId) -> String {
        let exit = self.has_ended(id).await;
        assert!(matches!(exit, ContainerExit::Lost { .. }), "{exit:?}");
        text(&exit).to_owned()
    }

    /// A container is killed: its pod is deleted with a short grace, and its node ends it.
    pub async fn is_killed(&self, id: &ContainerId) {
        self.core.want(id, DesiredState::Kill);
        self.deleted_with_less(id, 11).await;
        self.finish_deletion(id);
        assert_eq!(self.has_ended(id).await, ContainerExit::Killed);
    }

    /// Nothing of any task is left.
    pub async fn is_empty(&self) {
        let is_empty = |objects: &Objects<'_>| {
            ["batch/v1/jobs", "v1/secrets", "v1/services", "v1/pods"]
                .iter()
                .all(|kind| objects.list(kind, "").is_empty())
        };
        self.api
            .until("nothing of any task is left", is_empty)
            .await;
    }

    /// A health like this is reported.
    pub async fn has_health(&self, what: &str, is_it: impl Fn(&Health) -> bool) {
        let is_it = |core: &TestCore| is_it(&core.health("k"));
        self.core.until(what, is_it).await;
    }

    /// The manager has done everything that it had to do: another container lives from its start to its end on this place,
    /// which has a free slot.
    pub async fn is_quiet(&self, place: &str) {
        static PROBES: AtomicU32 = AtomicU32::new(0);
        let number = PROBES.fetch_add(1, Ordering::Relaxed);
        let id = self.core.place(place, &format!("probe-{number}"), 1);
        self.runs(&id).await;
        self.exits(&id, 0).await;
        let has_no_job = |objects: &Objects<'_>| {
            let jobs = objects.list("batch/v1/jobs", "");
            jobs.iter()
                .all(|job| !super::containers_of(job).contains(&id))
        };
        self.api
            .until("the Job of the probe is deleted", has_no_job)
            .await;
        self.core.remove(&id);
    }

    /// The requests that change something, or read one object, as `METHOD plural`, in their order.
    pub fn calls(&self) -> Vec<String> {
        let requests = self.api.requests().into_iter();
        let calls = requests.filter_map(|request| {
            let mut parts = request
                .path
                .split('/')
                .skip_while(|part| *part != "namespaces");
            let plural = parts.nth(2)?;
            Some(format!("{} {plural}", request.method))
        });
        calls.collect()
    }

    /// A request with this method for this plural has arrived so often.
    pub async fn was_asked(&self, call: &str, times: usize) {
        let asked = |_: &Objects<'_>| self.calls().iter().filter(|it| *it == call).count() >= times;
        self.api
            .until(&format!("{times} times {call}"), asked)
            .await;
    }

    /// A foreign pod that holds GPUs of a node.
    pub fn foreign_pod(&self, name: &str, node: &str, gpus: u32) {
        let resources = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "image": "i", "resources": resources}],
            },
        });
        self.api.create("v1/pods", "default", pod);
    }

    /// The only Job.
    pub fn job(&self) -> Value {
        let mut jobs = self.api.list("batch/v1/jobs", "");
        assert_eq!(jobs.len(), 1);
        jobs.remove(0)
    }
}
