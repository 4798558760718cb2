//! What a Job records of the containers that it was made for.

use std::collections::BTreeMap;

use det_ids::{AllocationId, ContainerId, PlaceId};
use serde::{Deserialize, Serialize};

use crate::facts::Member;

/// Annotation of Jobs with the containers that they were made for, in the order of their completion indices. Pods have none:
/// they are found by their Job, and in a gang of thousands each would carry a line for each. Pods of earlier versions have it.
pub const RECORD_ANNOTATION: &str = "determined.ai/containers";
/// Annotation of pods with the ports of the task, separated by commas. Pods in the network of their host do not declare
/// them, because a node would then take only one pod with each.
pub(crate) const PORTS_ANNOTATION: &str = "determined.ai/ports";

/// What a Job records of the containers it was made for, read back after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// Id of the allocation that the containers belong to.
    pub allocation_id: AllocationId,
    /// The containers, by completion index.
    pub members: Vec<RecordedMember>,
}

/// A container that a Job was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedMember {
    /// Id of the container, a UUID.
    #[serde(rename = "id")]
    pub container_id: ContainerId,
    /// The place that it was started for.
    pub place: PlaceId,
    /// Name of the node of that place.
    pub node: String,
    /// Its rank in the allocation.
    pub rank: u32,
    /// Number of slots that it holds.
    pub slots: u32,
}

/// The record as it is written.
#[derive(Serialize, Deserialize)]
struct WrittenRecord {
    allocation: AllocationId,
    containers: Vec<RecordedMember>,
}

/// The value of [`RECORD_ANNOTATION`] for the Job of these members.
pub(crate) fn record(members: &[&Member]) -> String {
    let allocation = members.first().map(|first| &first.start.spec.allocation_id);
    let written = WrittenRecord {
        allocation: allocation.cloned().unwrap_or_else(|| "".into()),
        containers: members
            .iter()
            .map(|member| RecordedMember {
                container_id: member.start.spec.container_id.clone(),
                place: member.place.clone(),
                node: member.node.clone(),
                rank: member.rank(),
                slots: member.slots(),
            })
            .collect(),
    };
    // Texts and numbers always become JSON.
    serde_json::to_string(&written).unwrap_or_default()
}

/// What the annotations of a Job record; `None` = nothing that can be read.
pub fn recorded(annotations: &BTreeMap<String, String>) -> Option<JobRecord> {
    let written: WrittenRecord = serde_json::from_str(annotations.get(RECORD_ANNOTATION)?).ok()?;
    Some(JobRecord {
        allocation_id: written.allocation,
        members: written.containers,
    })
}
