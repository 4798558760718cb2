//! What starts the pods of a gang together: the master itself, or something that the cluster has for it.
//!
//! | scheduler | pods | objects |
//! | --- | --- | --- |
//! | native | go to the nodes that the master chose | none |
//! | coscheduler | the same, by the scheduler of that name, with labels of their gang | none |
//! | pod group | the same, in a scheduling group of Kubernetes | `PodGroup` of `scheduling.k8s.io` |
//! | Volcano | the same, by its scheduler | its `PodGroup` |
//! | Kueue | the same, when it has resumed their Job | none; the Job is made suspended, with its queue |
//! | none | go where the scheduler of the cluster puts them | none |

use serde_json::{Value, json};

use crate::json::{self, Object};
use crate::names::dns;

/// Name of the scheduler of the coscheduling plugin, as clusters that have it call it.
const COSCHEDULER: &str = "coscheduler";
const COSCHEDULED_GROUP: &str = "pod-group.scheduling.sigs.k8s.io/name";
const COSCHEDULED_SIZE: &str = "pod-group.scheduling.sigs.k8s.io/min-available";
/// Name of Volcano's scheduler.
const VOLCANO: &str = "volcano";
/// Annotations of a pod that Volcano schedules: its group, and its queue where it has no group.
const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
const VOLCANO_QUEUE: &str = "scheduling.volcano.sh/queue-name";
/// Label of a Job with the `LocalQueue` that it waits in.
const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// What starts the pods of a gang together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheduler {
    /// The master, which makes pods only for free slots, and chooses their nodes.
    Native,
    /// The coscheduling plugin of a scheduler with the name `coscheduler`.
    Coscheduler,
    /// The gang scheduling of Kubernetes itself.
    PodGroup(GroupApi),
    /// The scheduler of Volcano.
    Volcano {
        /// Its queue; empty = that of the namespace.
        queue: String,
    },
    /// Kueue, which resumes Jobs when there is quota for them.
    Kueue {
        /// The `LocalQueue` of each namespace that Jobs wait in; empty = the one with the name of their pool.
        queue: String,
    },
    /// Nothing: each pod is scheduled by itself, on whatever node.
    None,
}

/// A version of the API in which a gang is an object of its own, a `PodGroup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupApi {
    /// `scheduling.k8s.io/v1beta1`, since Kubernetes 1.37.
    V1Beta1,
    /// `scheduling.k8s.io/v1alpha2`, of Kubernetes 1.36.
    V1Alpha2,
    /// `scheduling.volcano.sh/v1beta1`, of the scheduler Volcano.
    Volcano,
}

impl GroupApi {
    /// Those of Kubernetes itself, the newest first. `v1alpha1` of 1.35 is another object, which is not used.
    pub const NATIVE: [Self; 2] = [Self::V1Beta1, Self::V1Alpha2];

    /// Its API group and version.
    pub fn group_version(self) -> (&'static str, &'static str) {
        match self {
            Self::V1Beta1 => ("scheduling.k8s.io", "v1beta1"),
            Self::V1Alpha2 => ("scheduling.k8s.io", "v1alpha2"),
            Self::Volcano => ("scheduling.volcano.sh", "v1beta1"),
        }
    }
}

impl Scheduler {
    /// Whether pods go to the nodes that the master chose for them.
    pub fn uses_chosen_nodes(&self) -> bool {
        *self != Self::None
    }

    /// The name of the scheduler of pods that name none; `None` = that of the cluster.
    pub(crate) fn name(&self) -> Option<&'static str> {
        match self {
            Self::Coscheduler => Some(COSCHEDULER),
            Self::Volcano { .. } => Some(VOLCANO),
            Self::Native | Self::PodGroup(_) | Self::Kueue { .. } | Self::None => None,
        }
    }
}

/// An allocation, as far as it matters to what starts its pods together.
pub(crate) struct Gang<'a> {
    /// Name of its first Job, and of its group.
    pub(crate) name: &'a str,
    /// Containers of all its Jobs.
    pub(crate) members: usize,
    /// Name of its resource pool.
    pub(crate) pool: &'a str,
}

impl Gang<'_> {
    /// Adds to a Job what the scheduler needs. Labels and annotations that the user has set stay as they are, and so do pods
    /// that name another scheduler.
    pub(crate) fn lay_over(&self, scheduler: &Scheduler, job: &mut Value) {
        let own = job.pointer("/spec/template/spec/schedulerName");
        let own = own.and_then(Value::as_str).map(str::to_owned);
        if own.as_deref() != scheduler.name() && scheduler.name().is_some() {
            return;
        }
        match scheduler {
            Scheduler::Native | Scheduler::None => {}
            Scheduler::Coscheduler => {
                let size = self.members.to_string();
                let labels = [(COSCHEDULED_GROUP, self.name), (COSCHEDULED_SIZE, &size)];
                add(job, &["spec", "template", "metadata", "labels"], &labels);
            }
            Scheduler::PodGroup(_) => {
                let spec = member(job, &["spec", "template", "spec"]);
                if let Some(spec) = spec.filter(|_| self.members > 1) {
                    let group = json!({"podGroupName": self.name});
                    spec.entry("schedulingGroup").or_insert(group);
                }
            }
            Scheduler::Volcano { queue } => {
                let of_pods = ["spec", "template", "metadata", "annotations"];
                if self.members > 1 {
                    add(job, &of_pods, &[(VOLCANO_GROUP, self.name)]);
                }
                // Which queue, and so whose quota, is the administrator's to choose where one is configured.
                let pods = member(job, &of_pods).filter(|_| !queue.is_empty());
                if let Some(annotations) = pods {
                    annotations.insert(VOLCANO_QUEUE.to_owned(), queue.as_str().into());
                }
            }
            Scheduler::Kueue { queue } => {
                let of_pool = dns(self.pool);
                let queue = if queue.is_empty() { &of_pool } else { queue };
                add(job, &["metadata", "labels"], &[(KUEUE_QUEUE, queue)]);
                if let Some(spec) = member(job, &["spec"]) {
                    spec.insert("suspend".to_owned(), true.into());
                }
            }
        }
    }

    /// The `PodGroup` of a gang whose first Job is this; `None` = it has none, or one of the user's own.
    pub(crate) fn group(
        &self,
        scheduler: &Scheduler,
        job: &Value,
        metadata: &Value,
    ) -> Option<(GroupApi, Value)> {
        let template = json::at(job, &["spec", "template"])?;
        let (api, named, mut spec) = match scheduler {
            Scheduler::PodGroup(api) => (
                *api,
                json::text(template, &["spec", "schedulingGroup", "podGroupName"]),
                json!({"schedulingPolicy": {"gang": {"minCount": self.members}}}),
            ),
            Scheduler::Volcano { queue } => {
                let mut spec = json!({"minMember": self.members});
                if !queue.is_empty() {
                    spec["queue"] = queue.as_str().into();
                }
                let named = json::text(template, &["metadata", "annotations", VOLCANO_GROUP]);
                (GroupApi::Volcano, named, spec)
            }
            Scheduler::Native
            | Scheduler::Coscheduler
            | Scheduler::Kueue { .. }
            | Scheduler::None => return None,
        };
        if self.members < 2 || named != Some(self.name) {
            return None;
        }
        if let Some(class) = json::text(template, &["spec", "priorityClassName"]) {
            spec["priorityClassName"] = class.into();
        }
        let (group, version) = api.group_version();
        let object = json!({
            "apiVersion": format!("{group}/{version}"),
            "kind": "PodGroup",
            "metadata": metadata,
            "spec": spec,
        });
        Some((api, object))
    }
}

/// The object at a path of keys.
fn member<'v>(value: &'v mut Value, path: &[&str]) -> Option<&'v mut Object> {
    let found = path
        .iter()
        .try_fold(value, |value, key| value.get_mut(*key));
    found.and_then(Value::as_object_mut)
}

/// Adds texts to the map at a path, where it has none of this key.
fn add(job: &mut Value, path: &[&str], texts: &[(&str, &str)]) {
    if let Some(map) = member(job, path) {
        for (key, text) in texts {
            map.entry(*key).or_insert((*text).into());
        }
    }
}
