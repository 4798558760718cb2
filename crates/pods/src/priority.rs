//! The `PriorityClasses` of pods.
//!
//! A class that the user's pod spec names is kept. Other pods get one by the priority of their job. The chart makes a class for
//! the usual priority and one for the system's own work; for every other priority there is a class that all tasks of a cluster
//! share, which is made when it is first needed.

use det_rm::ContainerStart;
use det_taskspec::EMPTY_IMAGE;
use serde_json::{Value, json};

/// The priority that the chart's class for tasks has: that of jobs that name none.
const USUAL: u8 = 50;
/// The chart's class for tasks of the usual priority.
const OF_TASKS: &str = "determined-medium-priority";
/// The chart's class for what the system itself does.
const OF_SYSTEM: &str = "determined-system-priority";

/// The `PriorityClass` that the pods of an allocation are to have.
#[derive(Debug, Clone, PartialEq)]
pub struct PriorityClass {
    /// Names of classes that are used where they exist, the best one first.
    pub existing: Vec<&'static str>,
    /// The class that is used where none of them exists, and made if it does not exist either.
    pub shared: Value,
}

/// The class of an allocation, by any of its containers. `preempts` = pods of a higher priority end those of a lower one,
/// also those that are not the installation's.
pub(crate) fn priority_class(start: &ContainerStart, preempts: bool) -> PriorityClass {
    let priority = start.origin.priority;
    let mut existing = Vec::new();
    // Deletions in object stores run the user's image, and pods may be customised by users: those are no work of the system's.
    let is_systems = start.spec.script.task_type.is_systems()
        && start.spec.image == EMPTY_IMAGE
        && start.origin.pod_spec.is_none();
    if is_systems {
        existing.push(OF_SYSTEM);
    }
    if priority == USUAL {
        existing.push(OF_TASKS);
    }
    // A class cannot be changed after it was made, so that each policy has classes of its own.
    let (suffix, policy) = if preempts {
        ("-preempting", "PreemptLowerPriority")
    } else {
        ("", "Never")
    };
    PriorityClass {
        existing,
        shared: json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {
                "name": format!("determined-p{priority}{suffix}"),
                "labels": {"app.kubernetes.io/managed-by": "determined-master"},
            },
            "value": priority,
            "preemptionPolicy": policy,
            "globalDefault": false,
            "description": format!("Tasks of Determined with priority {priority}"),
        }),
    }
}
