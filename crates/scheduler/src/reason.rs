//! Why a request waits, with the numbers behind it; `reason/sentences.rs` has the sentence with what would help.

mod sentences;

use std::sync::Arc;

use det_ids::{AllocationId, Micros, PriorityOrder, WorkspaceId};
use serde::{Deserialize, Serialize, Serializer};
use strum::{EnumDiscriminants, EnumString, IntoStaticStr, VariantArray, VariantNames};

use crate::model::MisfitGroup;

/// Why a request waits. True for the pool as it is after the plan that carries it has been applied.
/// The serialised names speak of agents, as users see them, whatever kind of place the pool has.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, EnumDiscriminants)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[strum_discriminants(
    name(WaitKind),
    doc = "What kind of [`WaitReason`] it is; the names are those of its field `kind`.",
    derive(
        Hash,
        Serialize,
        Deserialize,
        EnumString,
        IntoStaticStr,
        VariantArray,
        VariantNames
    ),
    serde(rename_all = "snake_case"),
    strum(serialize_all = "snake_case")
)]
pub enum WaitReason {
    /// The pool has no places.
    #[serde(rename = "no_agents")]
    #[strum_discriminants(serde(rename = "no_agents"))]
    #[strum_discriminants(strum(serialize = "no_agents"))]
    NoPlaces,
    /// Every place is on the request's exclusion list.
    #[serde(rename = "all_agents_excluded")]
    #[strum_discriminants(serde(rename = "all_agents_excluded"))]
    #[strum_discriminants(strum(serialize = "all_agents_excluded"))]
    AllPlacesExcluded {
        /// Places of the pool that are excluded.
        excluded: u32,
    },
    /// All slots must be on one place, and none is that large, even when empty.
    #[serde(rename = "no_agent_large_enough")]
    #[strum_discriminants(serde(rename = "no_agent_large_enough"))]
    #[strum_discriminants(strum(serialize = "no_agent_large_enough"))]
    NoPlaceLargeEnough {
        /// Slots that the request asks for.
        needed: u32,
        /// Slots of the largest place that is not excluded.
        largest: u32,
    },
    /// All slots must be in one container, and a container of the pool may not have that many.
    ContainerTooLarge {
        /// Slots that the request asks for.
        needed: u32,
        /// Most slots of one container.
        most: u32,
    },
    /// All places together have fewer slots.
    PoolTooSmall {
        /// Slots that the request asks for.
        needed: u32,
        /// Slots of all places that are not excluded.
        capacity: u32,
    },
    /// A request larger than one place takes whole places of equal size, and no such places add up to it.
    GangDoesNotDivide {
        /// Slots that the request asks for.
        needed: u32,
        /// Sizes of the pool's places with the number of each, largest first.
        #[serde(rename = "agents")]
        places: Vec<PlaceGroup>,
        /// The next smaller and the next larger size that would fit, where there is one.
        nearest: Vec<u32>,
    },
    /// It would fit the pool's places, but too many of them (or of their slots) are out of service.
    #[serde(rename = "agents_unavailable")]
    #[strum_discriminants(serde(rename = "agents_unavailable"))]
    #[strum_discriminants(strum(serialize = "agents_unavailable"))]
    PlacesUnavailable {
        /// Slots that the request asks for.
        needed: u32,
        /// Slots of enabled places that are not excluded, in use or not.
        usable: u32,
        /// Number of places that are draining.
        draining: u32,
        /// Number of places that are disabled.
        disabled: u32,
        /// Places whose connection is lost.
        disconnected: u32,
        /// Slots of enabled places that are draining or disabled themselves.
        slots_out_of_service: u32,
        /// Slots of enabled places that others hold, such as pods that the master did not make.
        #[serde(skip_serializing_if = "is_zero")]
        foreign_slots: u32,
        /// Enabled places with such slots.
        #[serde(rename = "agents_with_foreign_slots", skip_serializing_if = "is_zero")]
        places_with_foreign: u32,
    },
    /// It fits only instances that a provisioner has yet to add.
    WaitingForInstances {
        /// Slots that the request asks for.
        needed: u32,
        /// Slots of one instance.
        slots_per_instance: u32,
        /// Most instances the pool may have.
        max_instances: u32,
    },
    /// The job is at its `max_slots`.
    OverJobCap {
        /// Slots that the request asks for.
        needed: u32,
        /// Most slots that the job may use at a time.
        max_slots: u32,
        /// Slots the job has, those of stopping allocations included.
        in_use: u32,
    },
    /// The jobs of its workspace together are at the workspace's limit, or what is left of it is kept for another
    /// request.
    OverWorkspaceLimit {
        /// Number of the workspace whose limit it is.
        workspace: WorkspaceId,
        /// Slots that the request asks for.
        needed: u32,
        /// Most slots that the workspace may use at a time, in all pools that the limit is for: of the cluster, or of one manager.
        max_slots: u32,
        /// Slots the workspace has in these pools, those of stopping allocations included.
        in_use: u32,
        /// The request for which the rest is kept; `None` = there is not enough left.
        #[serde(skip_serializing_if = "Option::is_none")]
        kept_for: Option<AllocationId>,
    },
    /// Starting it would take its job above its fair share, and nothing is left over to be handed out.
    OverFairShare {
        /// Slots that the request asks for.
        needed: u32,
        /// Slots that the job is entitled to.
        share: u32,
        /// Slots of the job's work that is not stopping.
        in_use: u32,
        /// Slots that are being freed, or reserved, for other requests of the job.
        reserved: u32,
        /// Slots that the job could use at a time: what its work has and asks for, at most its cap.
        demand: u64,
        /// Slots of the pool that are shared out.
        capacity: u32,
    },
    /// An earlier request of the same job waits for free slots, and the pool starts the tasks of a job in order.
    BehindOwnJob {
        /// Allocation of the earlier request.
        allocation: AllocationId,
    },
    /// A more important request waits.
    BehindHigherPriority {
        /// Allocation of the more important request.
        allocation: AllocationId,
        /// Priority of the more important request.
        priority: u8,
        /// Which of two priorities is more important, for the sentence.
        #[serde(skip)]
        order: PriorityOrder,
        /// Why this one cannot pass it.
        because: BlockingCause,
    },
    /// It would fit, but those slots are kept for another request that goes first (of the same priority, where
    /// priorities decide): one that has waited too long, or one for which running work is being stopped.
    ReservedFor {
        /// Allocation of the request that the slots are kept for.
        allocation: AllocationId,
    },
    /// The slots for it are being freed.
    WaitingForPreemption {
        /// Allocations that have been asked to stop and still hold them.
        victims: Vec<AllocationId>,
    },
    /// Too many slots are in use.
    NotEnoughFreeSlots {
        /// Slots that the request asks for.
        needed: u32,
        /// Whether they must be on one place.
        #[serde(rename = "single_agent")]
        single_place: bool,
        /// Free slots of enabled places that are not excluded.
        free_total: u32,
        /// Most free slots on one such place.
        #[serde(rename = "largest_free_on_one_agent")]
        largest_free_on_one_place: u32,
        /// The allocations that hold most slots, largest first, at most three.
        held_by: Holders,
    },
    /// Places of the pool do not fit it for other reasons than slots, and it cannot start on the others.
    #[serde(rename = "agents_do_not_fit")]
    #[strum_discriminants(serde(rename = "agents_do_not_fit"))]
    #[strum_discriminants(strum(serialize = "agents_do_not_fit"))]
    PlacesDoNotFit {
        /// What places lack, the most frequent first, at most five.
        lacking: Vec<MisfitGroup>,
        /// Why it cannot start on the others.
        otherwise: Box<WaitReason>,
    },
    /// No auxiliary unit is free for a zero-slot task.
    AuxFull {
        /// Auxiliary units in use on enabled places that are not excluded.
        in_use: u32,
        /// Auxiliary units of these places.
        limit: u32,
    },
    /// Attempts before it failed one after another for a reason of their places.
    PausedAfterFailures {
        /// The time before which it does not start, RFC 3339.
        #[serde(serialize_with = "rfc3339")]
        until: Micros,
    },
}

/// A time as users read it; one that no calendar has, as its number.
pub(crate) fn moment(at: Micros) -> String {
    jiff::Timestamp::from_microsecond(at.0)
        .map_or_else(|_| at.0.to_string(), |at| format!("{at:.0}"))
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands out references"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands out references"
)]
fn rfc3339<S: Serializer>(at: &Micros, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&moment(*at))
}

/// Places of a pool that have equally many slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct PlaceGroup {
    /// Slots of each of these places.
    pub slots: u32,
    /// Number of these places.
    #[serde(rename = "agents")]
    pub places: u32,
}

/// Why a request cannot pass a more important one that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockingCause {
    /// The pool does not preempt, so nothing may take what the more important one waits for.
    PreemptionOff,
    /// Only preemptible work may run in the meantime, because it must be able to free its slots again.
    NotPreemptible,
    /// Running work is being stopped for the more important one; nothing else starts until that is done.
    SlotsBeingFreed,
}

/// An allocation and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Holder {
    /// The allocation that holds slots.
    pub allocation: AllocationId,
    /// Slots it holds in the pool.
    pub slots: u32,
    /// Priority of its job; `None` where priorities do not decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
}

/// The largest holders of slots; shared, because many requests wait for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holders {
    named: Arc<[Holder]>,
    more: u32,
}

impl Holders {
    /// A list of holders, largest first, and how many there are that it does not name.
    pub fn new(named: Vec<Holder>, more: u32) -> Self {
        Self {
            named: named.into(),
            more,
        }
    }

    /// The named holders, largest first.
    pub fn as_slice(&self) -> &[Holder] {
        &self.named
    }
}

impl Serialize for Holders {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.named.iter())
    }
}

impl WaitKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: &'static [Self] = <Self as VariantArray>::VARIANTS;
    /// Their names, in the same order.
    pub const NAMES: &'static [&'static str] = <Self as VariantNames>::VARIANTS;

    /// The name of the kind for programs, which does not change: `not_enough_free_slots`.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl WaitReason {
    /// The kind of the reason; its name is the field `kind` of the serialised form.
    pub fn kind(&self) -> WaitKind {
        self.into()
    }

    /// Whether nothing that ends by itself can help: the pool's places or the request must change.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::NoPlaces
            | Self::AllPlacesExcluded { .. }
            | Self::NoPlaceLargeEnough { .. }
            | Self::ContainerTooLarge { .. }
            | Self::PoolTooSmall { .. }
            | Self::GangDoesNotDivide { .. } => true,
            Self::AuxFull { limit, .. } => *limit == 0,
            Self::OverJobCap {
                needed, max_slots, ..
            }
            | Self::OverWorkspaceLimit {
                needed, max_slots, ..
            } => needed > max_slots,
            // Places may be changed, or new ones come.
            Self::PlacesDoNotFit { .. }
            | Self::PlacesUnavailable { .. }
            | Self::WaitingForInstances { .. }
            | Self::OverFairShare { .. }
            | Self::BehindOwnJob { .. }
            | Self::BehindHigherPriority { .. }
            | Self::ReservedFor { .. }
            | Self::WaitingForPreemption { .. }
            | Self::PausedAfterFailures { .. }
            | Self::NotEnoughFreeSlots { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_serialised_names_speak_of_agents() {
        let group = |slots, places| PlaceGroup { slots, places };
        let cases = [
            (WaitReason::NoPlaces, json!({"kind": "no_agents"})),
            (
                WaitReason::AllPlacesExcluded { excluded: 2 },
                json!({"kind": "all_agents_excluded", "excluded": 2}),
            ),
            (
                WaitReason::NoPlaceLargeEnough {
                    needed: 4,
                    largest: 2,
                },
                json!({"kind": "no_agent_large_enough", "needed": 4, "largest": 2}),
            ),
            (
                WaitReason::PlacesUnavailable {
                    needed: 1,
                    usable: 0,
                    draining: 1,
                    disabled: 2,
                    disconnected: 3,
                    slots_out_of_service: 4,
                    foreign_slots: 0,
                    places_with_foreign: 0,
                },
                json!({
                    "kind": "agents_unavailable", "needed": 1, "usable": 0, "draining": 1, "disabled": 2,
                    "disconnected": 3, "slots_out_of_service": 4,
                }),
            ),
            (
                WaitReason::GangDoesNotDivide {
                    needed: 3,
                    places: vec![group(2, 5)],
                    nearest: vec![2, 4],
                },
                json!({
                    "kind": "gang_does_not_divide", "needed": 3, "agents": [{"slots": 2, "agents": 5}],
                    "nearest": [2, 4],
                }),
            ),
            (
                WaitReason::NotEnoughFreeSlots {
                    needed: 2,
                    single_place: true,
                    free_total: 1,
                    largest_free_on_one_place: 1,
                    held_by: Holders::new(Vec::new(), 0),
                },
                json!({
                    "kind": "not_enough_free_slots", "needed": 2, "single_agent": true, "free_total": 1,
                    "largest_free_on_one_agent": 1, "held_by": [],
                }),
            ),
            (
                WaitReason::PausedAfterFailures {
                    until: Micros(1_790_000_000_400_000),
                },
                json!({"kind": "paused_after_failures", "until": "2026-09-21T14:13:20Z"}),
            ),
        ];
        for (reason, written) in cases {
            assert_eq!(serde_json::to_value(&reason).unwrap(), written);
            let kind: WaitKind = serde_json::from_value(written["kind"].clone()).unwrap();
            assert_eq!(kind, reason.kind());
            assert_eq!(kind.name(), written["kind"]);
            assert_eq!(kind.name().parse(), Ok(kind));
        }
    }
}
