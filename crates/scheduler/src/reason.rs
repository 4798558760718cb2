//! Why a request waits, with the numbers behind it, and a sentence with what would help.

use std::fmt;
use std::sync::Arc;

use det_ids::{AllocationId, PriorityOrder, WorkspaceId};
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
        /// Slots asked for.
        needed: u32,
        /// Slots of the largest place that is not excluded.
        largest: u32,
    },
    /// All slots must be in one container, and a container of the pool may not have that many.
    ContainerTooLarge {
        /// Slots asked for.
        needed: u32,
        /// Most slots of one container.
        most: u32,
    },
    /// All places together have fewer slots.
    PoolTooSmall {
        /// Slots asked for.
        needed: u32,
        /// Slots of all places that are not excluded.
        capacity: u32,
    },
    /// A request larger than one place takes whole places, and no whole places add up to it.
    GangDoesNotDivide {
        /// Slots asked for.
        needed: u32,
        /// Sizes present, largest first.
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
        /// Slots asked for.
        needed: u32,
        /// Slots of enabled places that are not excluded, in use or not.
        usable: u32,
        /// Places that are draining.
        draining: u32,
        /// Places that are disabled.
        disabled: u32,
        /// Places whose connection is lost.
        disconnected: u32,
        /// Slots of enabled places that are draining or disabled themselves.
        slots_out_of_service: u32,
    },
    /// It fits only instances that a provisioner has yet to add.
    WaitingForInstances {
        /// Slots asked for.
        needed: u32,
        /// Slots of one instance.
        slots_per_instance: u32,
        /// Most instances the pool may have.
        max_instances: u32,
    },
    /// The job is at its `max_slots`.
    OverJobCap {
        /// Slots asked for.
        needed: u32,
        /// The job's cap.
        max_slots: u32,
        /// Slots the job has, those of stopping allocations included.
        in_use: u32,
    },
    /// The jobs of its workspace together are at the workspace's limit, or what is left of it is kept for another
    /// request.
    OverWorkspaceLimit {
        /// The workspace.
        workspace: WorkspaceId,
        /// Slots asked for.
        needed: u32,
        /// The workspace's limit.
        max_slots: u32,
        /// Slots the workspace has in all pools, those of stopping allocations included.
        in_use: u32,
        /// The request for which the rest is kept; `None` = there is not enough left.
        #[serde(skip_serializing_if = "Option::is_none")]
        kept_for: Option<AllocationId>,
    },
    /// Starting it would take its job above its fair share, and nothing is left over to be handed out.
    OverFairShare {
        /// Slots asked for.
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
        /// The earlier request.
        allocation: AllocationId,
    },
    /// A more important request waits.
    BehindHigherPriority {
        /// The more important request.
        allocation: AllocationId,
        /// Its priority.
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
        /// The other request.
        allocation: AllocationId,
    },
    /// The slots for it are being freed.
    WaitingForPreemption {
        /// Allocations that have been asked to stop and still hold them.
        victims: Vec<AllocationId>,
    },
    /// Too many slots are in use.
    NotEnoughFreeSlots {
        /// Slots asked for.
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
}

/// Places of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct PlaceGroup {
    /// Slots of each.
    pub slots: u32,
    /// How many there are.
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
    /// The serialised word is in stored rows.
    #[serde(rename = "room_being_freed")]
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
    /// All kinds.
    pub const ALL: &'static [Self] = <Self as VariantArray>::VARIANTS;
    /// Their names, in the same order.
    pub const NAMES: &'static [&'static str] = <Self as VariantNames>::VARIANTS;

    /// The stable name.
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
            | Self::NotEnoughFreeSlots { .. } => false,
        }
    }
}

/// Gives the text that replaces an allocation in a sentence.
type AllocationLabel<'c> = &'c dyn Fn(&AllocationId) -> String;
/// Gives the text that replaces a workspace in a sentence.
type WorkspaceLabel<'c> = &'c dyn Fn(WorkspaceId) -> String;

/// A reason with the caller's names for allocations and workspaces.
struct NamedReason<'r> {
    reason: &'r WaitReason,
    label: AllocationLabel<'r>,
    workspace_label: WorkspaceLabel<'r>,
}

impl fmt::Display for NamedReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.write(f, self.label, self.workspace_label)
    }
}

/// Allocations by their ids, in quotes; workspaces by their numbers.
impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &by_id, &by_number)
    }
}

fn by_id(allocation: &AllocationId) -> String {
    format!("'{allocation}'")
}

fn by_number(workspace: WorkspaceId) -> String {
    format!("workspace {workspace}")
}

impl WaitReason {
    /// The sentence for users: `name` gives the label of an allocation (`trial 7 of experiment 3`), `workspace` the
    /// name of a workspace; without one the sentence contains the id.
    pub fn explain(
        &self,
        name: impl Fn(&AllocationId) -> Option<String>,
        workspace: impl Fn(WorkspaceId) -> Option<String>,
    ) -> String {
        let label = |id: &AllocationId| name(id).unwrap_or_else(|| by_id(id));
        let workspace_label = |id: WorkspaceId| match workspace(id) {
            Some(name) => format!("workspace \"{name}\""),
            None => by_number(id),
        };
        NamedReason {
            reason: self,
            label: &label,
            workspace_label: &workspace_label,
        }
        .to_string()
    }

    #[expect(clippy::too_many_lines, reason = "one match over the reasons")]
    fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        label: AllocationLabel<'_>,
        workspace_label: WorkspaceLabel<'_>,
    ) -> fmt::Result {
        match self {
            Self::NoPlaces => f.write_str(
                "the resource pool has no places that run work; add one, such as a machine with an agent, or choose another pool",
            ),
            Self::AllPlacesExcluded { excluded } => write!(
                f,
                "all {} of the pool that could run it are excluded for this task; add a place or clear the \
                 exclusions by submitting the task again",
                count(*excluded, "place")
            ),
            Self::NoPlaceLargeEnough { needed, largest } => write!(
                f,
                "needs {} on one place, and the largest has {largest}; ask for at most {largest}, allow several \
                 places, or choose another pool",
                count(*needed, "slot")
            ),
            Self::ContainerTooLarge { needed, most } => write!(
                f,
                "needs {} in one container, and one of this pool has at most {most}; ask for at most {most}, allow several \
                 containers, or choose another pool",
                count(*needed, "slot")
            ),
            Self::PoolTooSmall { needed, capacity } => write!(
                f,
                "needs {}, and the pool has {capacity}; ask for fewer, add places, or choose another pool",
                count(*needed, "slot")
            ),
            Self::GangDoesNotDivide {
                needed,
                places,
                nearest,
            } => gang_sentence(f, *needed, places, nearest),
            Self::PlacesUnavailable {
                needed,
                usable,
                draining,
                disabled,
                disconnected,
                slots_out_of_service,
            } => {
                write!(
                    f,
                    "needs {}, and places in service have {usable}; {draining} draining, {disabled} disabled and \
                     {disconnected} disconnected in this pool",
                    needs(*needed)
                )?;
                if *slots_out_of_service > 0 {
                    let slots = count(*slots_out_of_service, "slot");
                    write!(f, ", and {slots} out of service on the others")?;
                }
                write!(f, ": enable places or slots, or wait for them to come back")
            }
            Self::WaitingForInstances {
                needed,
                slots_per_instance,
                max_instances,
            } => write!(
                f,
                "needs {}, which present places cannot hold; waits for new instances of {} each (at most \
                 {max_instances} instances)",
                needs(*needed),
                count(*slots_per_instance, "slot")
            ),
            Self::OverJobCap {
                needed,
                max_slots,
                in_use,
            } if needed > max_slots => write!(
                f,
                "needs {} alone, and the job's max_slots is {max_slots} ({in_use} in use); raise max_slots",
                count(*needed, "slot")
            ),
            Self::OverJobCap {
                needed,
                max_slots,
                in_use,
            } => write!(
                f,
                "needs {}, and the job has {in_use} of its max_slots {max_slots} in use; it starts when the job's \
                 other tasks end, or raise max_slots",
                count(*needed, "slot")
            ),
            Self::OverWorkspaceLimit {
                workspace,
                needed,
                max_slots,
                in_use,
                kept_for,
            } => workspace_sentence(f, &workspace_label(*workspace), *needed, (*max_slots, *in_use), kept_for.as_ref().map(label)),
            Self::OverFairShare {
                needed,
                share,
                in_use,
                reserved,
                demand,
                capacity,
            } => share_sentence(f, *needed, *share, (*in_use, *reserved), (*demand, *capacity)),
            Self::BehindOwnJob { allocation } => write!(
                f,
                "{} of the same job is before it and waits for free slots; the pool starts the tasks of a job in order",
                label(allocation)
            ),
            Self::BehindHigherPriority {
                allocation,
                priority,
                order,
                because,
            } => behind_sentence(f, &label(allocation), (*priority, *order), *because),
            Self::ReservedFor { allocation } => write!(
                f,
                "the slots it fits are kept for {}, which has waited too long or has work stopped for it; it starts after \
                 that one",
                label(allocation)
            ),
            Self::WaitingForPreemption { victims } => {
                f.write_str("its slots are being freed: waits for ")?;
                names(f, victims, label)?;
                f.write_str(" to save and stop")
            }
            Self::NotEnoughFreeSlots {
                needed,
                single_place,
                free_total,
                largest_free_on_one_place,
                held_by,
            } => free_sentence(
                f,
                *needed,
                *single_place,
                (*free_total, *largest_free_on_one_place),
                held_by,
                label,
            ),
            Self::PlacesDoNotFit { lacking, otherwise } => {
                misfit_sentence(f, lacking)?;
                match &**otherwise {
                    // They are excluded because they do not fit.
                    Self::AllPlacesExcluded { .. } => f.write_str(
                        ", and no other place takes it; change what the task demands, or the places",
                    ),
                    otherwise => {
                        f.write_str("; as to the others: ")?;
                        otherwise.write(f, label, workspace_label)
                    }
                }
            }
            Self::AuxFull { limit: 0, .. } => f.write_str(
                "no place of the pool takes zero-slot tasks; set max_aux_containers_per_agent above 0 or choose \
                 another pool",
            ),
            Self::AuxFull { in_use, limit } => write!(
                f,
                "all places for zero-slot tasks are taken ({in_use} of {limit}); it starts when one of them ends, or \
                 raise max_aux_containers_per_agent"
            ),
        }
    }
}

fn misfit_sentence(f: &mut fmt::Formatter<'_>, lacking: &[MisfitGroup]) -> fmt::Result {
    for (number, group) in lacking.iter().enumerate() {
        let between = if number == 0 { "" } else { "; " };
        let verb = if group.places == 1 { "does" } else { "do" };
        let places = count(group.places, "place");
        write!(f, "{between}{places} {verb} not fit: {}", group.reason)?;
    }
    Ok(())
}

fn workspace_sentence(
    f: &mut fmt::Formatter<'_>,
    workspace: &str,
    needed: u32,
    (max_slots, in_use): (u32, u32),
    kept_for: Option<String>,
) -> fmt::Result {
    let needs = count(needed, "slot");
    if max_slots == 0 {
        return write!(
            f,
            "needs {needs}, and {workspace} may use none; an administrator can raise its limit, or move it to another \
             workspace"
        );
    }
    if needed > max_slots {
        return write!(
            f,
            "needs {needs} alone, and {workspace} may use {max_slots} at a time; ask for at most {max_slots}, or an \
             administrator raises its limit"
        );
    }
    write!(
        f,
        "needs {needs}, and {workspace} has {in_use} of at most {max_slots} in use"
    )?;
    match kept_for {
        Some(ahead) => write!(f, "; what is left is kept for {ahead}, which goes first"),
        None => f.write_str(
            "; it starts when other work of the workspace ends, or an administrator raises its limit",
        ),
    }
}

fn gang_sentence(
    f: &mut fmt::Formatter<'_>,
    needed: u32,
    places: &[PlaceGroup],
    nearest: &[u32],
) -> fmt::Result {
    write!(
        f,
        "needs {needed} slots, more than one place has, and whole places do not add up to that; the pool has "
    )?;
    for (i, group) in places.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(
            f,
            "{comma}{} of {}",
            count(group.places, "place"),
            count(group.slots, "slot")
        )?;
    }
    match nearest {
        [] => f.write_str("; choose another pool"),
        [one] => write!(f, "; ask for {one}"),
        [first, .., last] => write!(f, "; ask for {first} or {last}"),
    }
}

fn share_sentence(
    f: &mut fmt::Formatter<'_>,
    needed: u32,
    share: u32,
    (in_use, reserved): (u32, u32),
    (demand, capacity): (u64, u32),
) -> fmt::Result {
    write!(
        f,
        "needs {}, and fair share gives its job {share} of the pool's {} for now: they are divided among the jobs that \
         have work, by weight and by what each asks for (this job asks for {demand}); it uses {in_use}",
        count(needed, "slot"),
        count(capacity, "slot")
    )?;
    if reserved > 0 {
        let are = if reserved == 1 { "is" } else { "are" };
        write!(f, ", and {reserved} more {are} being freed for it")?;
    }
    f.write_str(if in_use > 0 || reserved > 0 {
        "; it starts when other tasks of its job end or when other jobs ask for less, or give its job a higher weight"
    } else {
        "; the other slots go to jobs that have a higher weight, ask for more or came before; it starts when these end or \
         ask for less, or give its job a higher weight"
    })?;
    f.write_str(" (every job keeps at least one slot)")
}

fn behind_sentence(
    f: &mut fmt::Formatter<'_>,
    allocation: &str,
    (priority, order): (u8, PriorityOrder),
    because: BlockingCause,
) -> fmt::Result {
    write!(
        f,
        "{allocation} has priority {priority} ({order}) and waits; "
    )?;
    f.write_str(match because {
        BlockingCause::PreemptionOff => {
            "nothing less important starts before it, because the pool does not preempt; it starts after that one, \
             or give it a more important priority"
        }
        BlockingCause::NotPreemptible => {
            "only work that can be preempted may run in the meantime; it starts after that one, or give it a more \
             important priority"
        }
        BlockingCause::SlotsBeingFreed => {
            "running work is being stopped for it; nothing less important starts until that is done"
        }
    })
}

fn free_sentence(
    f: &mut fmt::Formatter<'_>,
    needed: u32,
    single_place: bool,
    (total, largest): (u32, u32),
    holders: &Holders,
    label: AllocationLabel<'_>,
) -> fmt::Result {
    let on_one = if single_place { " on one place" } else { "" };
    write!(
        f,
        "needs {}{on_one}; {total} free in total, at most {largest} on one place",
        count(needed, "slot")
    )?;
    if !single_place && total >= needed {
        f.write_str(" (a task larger than one place takes whole, entirely unused places)")?;
    }
    for (i, holder) in holders.named.iter().enumerate() {
        let lead = if i == 0 { "; held by " } else { ", " };
        write!(
            f,
            "{lead}{} ({}",
            label(&holder.allocation),
            count(holder.slots, "slot")
        )?;
        match holder.priority {
            Some(priority) => write!(f, ", priority {priority})")?,
            None => f.write_str(")")?,
        }
    }
    if holders.more > 0 {
        write!(f, " and {} more", holders.more)?;
    }
    f.write_str("; it starts when enough running work ends")
}

fn names(
    f: &mut fmt::Formatter<'_>,
    allocations: &[AllocationId],
    label: AllocationLabel<'_>,
) -> fmt::Result {
    const SHOWN: usize = 3;
    for (i, allocation) in allocations.iter().take(SHOWN).enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(f, "{comma}{}", label(allocation))?;
    }
    match allocations.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

fn needs(slots: u32) -> String {
    if slots == 0 {
        "a place for a zero-slot task".to_owned()
    } else {
        count(slots, "slot")
    }
}

fn count(number: u32, noun: &str) -> String {
    det_ids::quantity(number.into(), noun)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sentences_contain_names_and_fields_contain_ids() {
        let reason = WaitReason::WaitingForPreemption {
            victims: vec!["3.a.1".into(), "other.1".into()],
        };
        let name = |id: &AllocationId| {
            (id.as_str() == "3.a.1").then(|| "trial 7 of experiment 3".to_owned())
        };
        assert_eq!(
            reason.explain(name, |_| None),
            "its slots are being freed: waits for trial 7 of experiment 3, 'other.1' to save and stop"
        );
        assert!(reason.to_string().contains("waits for '3.a.1', 'other.1'"));
    }

    #[test]
    fn fair_share_is_explained_in_sentences_with_the_numbers_named() {
        let reason = |in_use, reserved| WaitReason::OverFairShare {
            needed: 4,
            share: 2,
            in_use,
            reserved,
            demand: 10,
            capacity: 8,
        };
        assert_eq!(
            reason(2, 1).to_string(),
            "needs 4 slots, and fair share gives its job 2 of the pool's 8 slots for now: they are divided among the jobs \
             that have work, by weight and by what each asks for (this job asks for 10); it uses 2, and 1 more is being \
             freed for it; it starts when other tasks of its job end or when other jobs ask for less, or give its job a \
             higher weight (every job keeps at least one slot)"
        );
        let unused = reason(0, 0).to_string();
        assert!(
            unused.contains("it uses 0; the other slots go to jobs that"),
            "{unused}"
        );
    }

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
