//! The contract of a resource manager, for the one of Kubernetes: over a double of the Kubernetes API, whose kubelet is the
//! test.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeMap;

use det_ids::ContainerId;
use det_lifecycle::container::ObservedState;
use det_rm_contract::{StartOrder, Subject, TestCore};
use det_taskspec::SlotGrant;
use serde_json::{Value, json};

use support::{Pod, Scene, container_of, running, terminated};

det_rm_contract::contract!(Kubernetes);

/// The manager of a cluster without kubelets.
struct Kubernetes {
    scene: Scene,
    /// The Job of each container that was started.
    jobs: BTreeMap<ContainerId, Value>,
    /// The grace with which each pod was last deleted.
    ended: BTreeMap<ContainerId, i64>,
}

impl Kubernetes {
    fn pod(&self, container: &ContainerId) -> Option<Pod> {
        self.scene.pod_of(container)
    }

    /// A Job that was deleted appears again: a late report about what has been forgotten.
    async fn bring_back(&mut self, container: &ContainerId) {
        let mut job = self.jobs[container].clone();
        let metadata = job["metadata"].as_object_mut().unwrap();
        for key in ["uid", "resourceVersion", "creationTimestamp", "generation"] {
            metadata.remove(key);
        }
        job.as_object_mut().unwrap().remove("status");
        let namespace = job["metadata"]["namespace"].as_str().unwrap().to_owned();
        self.scene.api.create("batch/v1/jobs", &namespace, job);
        self.scene.has_pod(container).await;
    }
}

impl Subject for Kubernetes {
    const NAMED: bool = false;

    async fn start(core: TestCore) -> Self {
        Self {
            scene: Scene::start(core).await,
            jobs: BTreeMap::new(),
            ended: BTreeMap::new(),
        }
    }

    async fn restart(&mut self) {
        self.scene.restart().await;
    }

    async fn appears(&mut self, place: &str, slots: u32) {
        self.scene.api.add_node(place, slots);
    }

    async fn leaves(&mut self, place: &str) {
        self.scene.api.set_node_ready(place, false);
    }

    async fn returns(&mut self, place: &str) {
        self.scene.api.set_node_ready(place, true);
        // If it had not left, the watches begin anew.
        self.scene.api.faults().drop_watches();
    }

    async fn next_start(&mut self, place: &str) -> StartOrder {
        let known: Vec<ContainerId> = self.jobs.keys().cloned().collect();
        let found = self.scene.new_job(place, &known).await;
        let id = container_of(&found);
        self.jobs.insert(id.clone(), found.clone());
        self.scene.has_pod(&id).await;
        let pod = self.pod(&id).unwrap();
        let script = self.scene.script(&pod);
        let env = script["env"].as_array().unwrap();
        let slot_ids = env.iter().find(|pair| pair[0] == "DET_SLOT_IDS").unwrap();
        StartOrder {
            container_id: id,
            slots: SlotGrant::Count(pod.gpus()),
            slot_ids: slot_ids[1].as_str().unwrap().to_owned(),
        }
    }

    async fn next_end(&mut self, _place: &str, container: &ContainerId) -> bool {
        let before = self.ended.get(container).copied().unwrap_or(i64::MAX);
        let grace = self.scene.deleted_with_less(container, before).await;
        self.ended.insert(container.clone(), grace);
        grace > 10
    }

    async fn next_forget(&mut self, _place: &str, container: &ContainerId) {
        let (namespace, name) = support::named(&self.jobs[container]);
        let gone = |api: &det_kube_double::Objects<'_>| {
            api.get("batch/v1/jobs", &namespace, &name).is_none()
        };
        self.scene.api.until("the Job is deleted", gone).await;
        // The kubelet ends the pod.
        self.scene.finish_deletion(container);
    }

    async fn observes(&mut self, _place: &str, container: &ContainerId, observed: ObservedState) {
        if self.pod(container).is_none() {
            self.bring_back(container).await;
        }
        let pod = self.pod(container).unwrap();
        match observed {
            ObservedState::Assigned | ObservedState::Pulling | ObservedState::Starting => {
                self.scene
                    .set_status(&pod, &json!({"message": "seen again"}));
            }
            ObservedState::Running { .. } => self.scene.set_status(&pod, &running()),
            ObservedState::Terminated { exit, .. } => {
                self.scene.set_status(&pod, &terminated(&exit));
                self.scene.finish_deletion(container);
            }
        }
    }

    async fn loses(&mut self, _place: &str, container: &ContainerId) {
        let (namespace, name) = support::named(&self.jobs[container]);
        self.scene.api.delete("batch/v1/jobs", &namespace, &name);
        self.scene.finish_deletion(container);
    }
}
