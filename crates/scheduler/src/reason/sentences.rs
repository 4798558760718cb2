//! The sentences of reasons, for users.

use std::fmt;

use det_ids::{AllocationId, PriorityOrder, WorkspaceId};

use super::{BlockingCause, Holders, PlaceGroup, WaitReason, moment};
use crate::model::MisfitGroup;

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
                "needs {} on one place, and the largest has {largest}; ask for at most {largest}, or choose \
                 another pool",
                count(*needed, "slot")
            ),
            Self::ContainerTooLarge { needed, most } => write!(
                f,
                "needs {} in one container, and one of this pool has at most {most}; ask for at most {most}, or choose \
                 another pool",
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
                foreign_slots,
                places_with_foreign,
            } => {
                write!(f, "needs {}, and places in service have {usable}", needs(*needed))?;
                if *foreign_slots > 0 {
                    let slots = count(*foreign_slots, "slot");
                    let places = count(*places_with_foreign, "place");
                    write!(f, "; others, such as pods that this master did not make, hold {slots} on {places}")?;
                    if [draining, disabled, disconnected, slots_out_of_service].iter().all(|it| **it == 0) {
                        return f.write_str(": it starts when enough of them end");
                    }
                }
                write!(
                    f,
                    "; {draining} draining, {disabled} disabled and {disconnected} disconnected in this pool"
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
                        let concerns_places = lacking.iter().any(|group| group.places > 0);
                        let others = if concerns_places {
                            "; as to the others: "
                        } else {
                            "; apart from that: "
                        };
                        f.write_str(others)?;
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
            Self::PausedAfterFailures { until } => write!(
                f,
                "starts no earlier than {}, because its attempts ended one after another for reasons of their places: the \
                 task's log has them",
                moment(*until)
            ),
        }
    }
}

fn misfit_sentence(f: &mut fmt::Formatter<'_>, lacking: &[MisfitGroup]) -> fmt::Result {
    for (number, group) in lacking.iter().enumerate() {
        let between = if number == 0 { "" } else { "; " };
        if group.places == 0 {
            write!(f, "{between}no place would take it: {}", group.reason)?;
            continue;
        }
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
        f.write_str(
            " (a task larger than one place takes whole, entirely unused places, unless its pool allows parts of them)",
        )?;
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
}
