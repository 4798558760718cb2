//! What follows for an allocation.

use std::collections::BTreeSet;

use det_ids::{AllocationId, Micros};
use det_lifecycle::allocation::{
    AllocationEffect, AllocationEvent, AllocationExit, AllocationState, Member, MemberProgress,
};
use det_lifecycle::container::{DesiredState, gang_failure};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{EventKind, RecordedState, Subject};
use det_lifecycle::task::{Meeting, Release, TaskEvent};
use det_scheduler::WaitExplanation;
use det_taskspec::TaskKind;
use serde_json::json;

use crate::{
    ActorName, Allocation, Cause, Container, Effect, LogLevel, Mutant, Record, Refusal, Rows,
    Scene, Topic, tasks,
};

/// Why an allocation ended whose code came to its end; scripts look for it in logs.
const EXITED_WELL: &str = "resources exited successfully with a zero exit code";
/// How long code that has reported an early exit is given to exit, in microseconds.
const EARLY_EXIT: i64 = 10 * 1_000_000;

fn known<R: Rows>(scene: &Scene<'_, R>, id: &AllocationId) -> Result<Allocation, Refusal> {
    scene
        .rows
        .allocation(id)
        .ok_or_else(|| Refusal::not_found(ObjectKind::Allocation, id))
}

/// The members of an allocation, from the rows of its containers.
pub(crate) fn members(containers: &[Container]) -> Vec<Member> {
    containers
        .iter()
        .map(|row| Member {
            container: row.id.clone(),
            daemon: row.daemon,
            progress: MemberProgress::of(row.observed.as_ref()),
            failure: (containers.len() > 1)
                .then(|| gang_failure(row.observed.as_ref(), (row.member, row.place.as_str())))
                .flatten(),
        })
        .collect()
}

/// The line of a log that names the places that an attempt runs on. For a trial's run scripts look for its first words.
fn runner_text(row: &Allocation, containers: &[Container]) -> String {
    let places: BTreeSet<&str> = containers.iter().map(|c| c.place.as_str()).collect();
    let places: Vec<&str> = places.into_iter().collect();
    let what = match row.kind {
        TaskKind::Trial => format!(
            "New trial runner: allocation {} (run {})",
            row.id, row.run_id
        ),
        TaskKind::Notebook
        | TaskKind::Shell
        | TaskKind::Command
        | TaskKind::Tensorboard
        | TaskKind::CheckpointGc
        | TaskKind::Generic => format!("Allocation {}", row.id),
    };
    format!(
        "{what} runs on {} {}",
        if places.len() == 1 { "place" } else { "places" },
        places.join(", ")
    )
}

/// Something happens to an allocation.
pub(crate) fn on<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &AllocationId,
    event: AllocationEvent,
    cause: &Cause,
) -> Result<(), Refusal> {
    let mut row = known(scene, id)?;
    let containers = scene.rows.containers(id);
    let before = row.state.clone();
    let is_kill = event == AllocationEvent::Kill;
    let step = before.clone().on(event, &members(&containers));
    if step.state != before {
        row.state = step.state;
        // The reason that users see for its end is decided here: how its members then exit does not change it.
        if is_kill && let Some(reason) = &cause.reason {
            row.exit_reason = Some(reason.to_string());
        }
        enter(scene, &mut row, &before, &containers, cause);
    }
    for effect in step.effects {
        match effect {
            AllocationEffect::RaisePreemption => raise_preemption(scene, &mut row, cause)?,
            AllocationEffect::KillMembers => {
                let text = format!("Asked to end at once: {}", why_killed(&row.state, cause));
                scene.log(&row.task_id, Some(id), text);
                end_members(scene, &containers, DesiredState::Kill);
            }
            AllocationEffect::StopMembers => {
                let text = format!("Asked to end, to be started again later: {}", cause.why());
                scene.log(&row.task_id, Some(id), text);
                end_members(scene, &containers, DesiredState::Stop);
            }
            AllocationEffect::End => end(scene, &mut row, &before, cause)?,
        }
    }
    Ok(())
}

/// Why the members of an allocation are killed, for users. Observations are reported by places, which ask for nothing.
fn why_killed(state: &AllocationState, cause: &Cause) -> String {
    let (AllocationState::Killing { exit }, ActorName::Place(place)) = (state, &cause.actor) else {
        return cause.why();
    };
    match exit {
        AllocationExit::Failed { .. } => format!("its container on place {place} failed"),
        AllocationExit::Infrastructure { reason, .. } => reason.clone(),
        AllocationExit::Completed | AllocationExit::Released => {
            "its other containers have ended".to_owned()
        }
    }
}

/// Has what lives of an allocation ended.
fn end_members<R: Rows>(scene: &mut Scene<'_, R>, containers: &[Container], desired: DesiredState) {
    for mut container in containers.iter().filter(|c| c.ended_at.is_none()).cloned() {
        container.desired = desired;
        scene.rows.update_container(&container);
        scene.wake(Topic::Place(container.place));
    }
}

/// What happens to an attempt of a task of this kind that is to give its slots back.
pub(crate) fn release(kind: TaskKind) -> AllocationEvent {
    match Release::of(kind) {
        Release::BySaving(_) => AllocationEvent::Preempt,
        Release::ByEnding => AllocationEvent::Stop,
    }
}

/// Its code asks whether it is to save and exit: where nothing else shows that it can be asked to, this does.
pub(crate) fn listens<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &AllocationId,
    cause: &Cause,
) -> Result<(), Refusal> {
    let row = known(scene, id)?;
    let counts = Release::of(row.kind) == Release::BySaving(Meeting::Poll);
    if counts && row.preemptible {
        on(scene, id, AllocationEvent::Meet, cause)?;
    }
    Ok(())
}

/// Stores another state, with its line in the record.
fn enter<R: Rows>(
    scene: &mut Scene<'_, R>,
    row: &mut Allocation,
    before: &AllocationState,
    containers: &[Container],
    cause: &Cause,
) {
    if *before == AllocationState::Pending {
        row.wait_reason = None;
        row.wait_since = None;
    }
    let starts = row.started_at.is_none() && row.state.runs();
    if starts {
        row.started_at = Some(scene.clock.wall);
    }
    scene.rows.update_allocation(row);
    if starts {
        let text = runner_text(row, containers);
        scene.log(&row.task_id, Some(&row.id), text);
    }
    // A placement and an end have records of their own, which contain more.
    if *before != AllocationState::Pending && !row.state.is_terminal() {
        scene.record(Record {
            cause: cause.clone(),
            subject: Subject::Allocation(row.id.clone()),
            kind: EventKind::State,
            from: Some(before.state_name().into()),
            to: Some(row.state.state_name().into()),
            detail: None,
        });
    }
    scene.wake(Topic::Allocation(row.id.clone()));
    scene.wake(Topic::Schedule);
}

fn raise_preemption<R: Rows>(
    scene: &mut Scene<'_, R>,
    row: &mut Allocation,
    cause: &Cause,
) -> Result<(), Refusal> {
    let task = scene.rows.task(&row.task_id);
    let task = task.ok_or_else(|| Refusal::not_found(ObjectKind::Task, &row.task_id))?;
    let timeout = tasks::demand(scene, &task)?.preemption_timeout;
    let deadline = scene.clock.steady.0 + i64::from(timeout) * 1_000_000;
    row.preempt_deadline = Some(Micros(deadline));
    scene.rows.update_allocation(row);
    let why = cause.why();
    let text = format!("Asked to save and exit within {timeout} s: {why}");
    scene.log(&row.task_id, Some(&row.id), text);
    scene.effect(Effect::Preempted(row.id.clone()));
    scene.wake(Topic::Deadlines);
    Ok(())
}

fn end<R: Rows>(
    scene: &mut Scene<'_, R>,
    row: &mut Allocation,
    before: &AllocationState,
    cause: &Cause,
) -> Result<(), Refusal> {
    let AllocationState::Terminated { exit } = row.state.clone() else {
        return Ok(());
    };
    row.ended_at = Some(scene.clock.wall);
    row.preempt_deadline = None;
    // Texts of places: what a database cannot hold must not keep an end from being stored.
    let clean = |text: &str| text.replace('\0', "\\0");
    let (level, text) = match &exit {
        AllocationExit::Completed => (LogLevel::Info, EXITED_WELL.to_owned()),
        AllocationExit::Released => (
            LogLevel::Info,
            match (row.exit_reason.take(), &cause.reason) {
                (Some(reason), _) => reason,
                (None, Some(reason)) => format!("its slots were given back: {reason}"),
                (None, None) => "its slots were given back".to_owned(),
            },
        ),
        AllocationExit::Failed { reason } => (LogLevel::Error, clean(reason)),
        AllocationExit::Infrastructure { reason, .. } if row.kind.works_for_trial() => {
            let text = format!("{} (not charged to the trial)", clean(reason));
            (LogLevel::Warning, text)
        }
        AllocationExit::Infrastructure { reason, .. } => {
            match tasks::after_loss(scene, &row.task_id, &exit) {
                Some((level, then)) => (level, format!("{} ({then})", clean(reason))),
                None => (LogLevel::Error, clean(reason)),
            }
        }
    };
    row.exit_reason = Some(text.clone());
    scene.rows.update_allocation(row);
    scene.effect(Effect::AllocationEnded(row.id.clone()));
    let line = format!("Allocation {} ended: {text}", row.id);
    scene.log_at(level, &row.task_id, Some(&row.id), line);
    let cause = Cause {
        actor: cause.actor.clone(),
        reason: Some(text.into()),
    };
    scene.record(Record {
        cause: cause.clone(),
        subject: Subject::Allocation(row.id.clone()),
        kind: EventKind::Ended,
        from: Some(before.state_name().into()),
        to: Some(row.state.state_name().into()),
        detail: None,
    });
    scene.wake(Topic::Schedule);
    tasks::on(scene, &row.task_id, TaskEvent::AttemptEnded(exit), &cause)
}

/// The scheduler asks a running allocation to save and exit.
pub(crate) fn preempt_for<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &AllocationId,
    for_allocation: Option<AllocationId>,
    reason: &str,
) -> Result<(), Refusal> {
    let Some(mut row) = scene.rows.allocation(id).filter(|a| a.ended_at.is_none()) else {
        return Ok(());
    };
    row.preempted_for = for_allocation;
    scene.rows.update_allocation(&row);
    on(scene, id, release(row.kind), &Cause::master(reason))
}

/// The slots of a stopping allocation are for another request from now on.
pub(crate) fn hand_over<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &AllocationId,
    for_allocation: AllocationId,
) {
    if let Some(mut row) = scene.rows.allocation(id).filter(|a| a.ended_at.is_none()) {
        row.preempted_for = Some(for_allocation);
        scene.rows.update_allocation(&row);
    }
}

/// Stores why an allocation waits; a reason of another kind than before is also a line in the task's log, and so is that the
/// cluster is asked to grow for it, or did not.
pub(crate) fn note_waiting<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &AllocationId,
    waiting: &WaitExplanation,
) {
    let found = scene.rows.allocation(id);
    let Some(mut row) = found.filter(|a| a.placed_at.is_none() && a.ended_at.is_none()) else {
        return;
    };
    let before = row.wait_reason.replace(waiting.clone());
    let growth = |of: &WaitExplanation| of.details.get("growth")?.get("state").cloned();
    let known = before.as_ref();
    let same_kind = known.is_some_and(|before| before.kind == waiting.kind);
    let now = growth(waiting);
    let same_growth = now.is_none() || now == known.and_then(growth);
    if !same_kind {
        row.wait_since = Some(scene.clock.wall);
    }
    if !same_kind || !same_growth {
        let text = format!("Waiting: {}", waiting.message);
        scene.log(&row.task_id, Some(id), text);
    }
    scene.rows.update_allocation(&row);
}

/// A request that waits goes on to another resource pool.
pub(crate) fn change_pool<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &AllocationId,
    resource_pool: String,
) {
    let found = scene.rows.allocation(id);
    let waits = |row: &Allocation| row.placed_at.is_none() && row.ended_at.is_none();
    let Some(mut row) = found.filter(|row| waits(row) && row.resource_pool != resource_pool) else {
        return;
    };
    let from = std::mem::replace(&mut row.resource_pool, resource_pool);
    let seconds = (scene.clock.wall.0 - row.requested_at.0) / 1_000_000;
    row.wait_since = None;
    let reason = row.wait_reason.take();
    scene.rows.update_allocation(&row);
    let because = reason.as_ref().map_or_else(String::new, |reason| {
        format!("; what it waited for there: {}", reason.message)
    });
    let text = format!(
        "Goes on to resource pool {} after {seconds} s in resource pool {from}{because}",
        row.resource_pool
    );
    scene.log(&row.task_id, Some(id), text);
    scene.record(Record {
        cause: Cause::master("it would have waited on in its pool, and starts in this one"),
        subject: Subject::Allocation(id.clone()),
        kind: EventKind::ResourcePool,
        from: Some(RecordedState::ResourcePool(from)),
        to: Some(RecordedState::ResourcePool(row.resource_pool)),
        detail: Some(json!({"reason": reason, "waitedSeconds": seconds}).to_string()),
    });
    scene.wake(Topic::Schedule);
}

/// Ends an allocation whose code has reported an early exit and has not exited within a few seconds.
pub(crate) fn end_soon<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &AllocationId,
) -> Result<(), Refusal> {
    let mut row = known(scene, id)?;
    row.preempt_deadline = Some(Micros(scene.clock.steady.0 + EARLY_EXIT));
    scene.rows.update_allocation(&row);
    scene.wake(Topic::Deadlines);
    // Its slots will be free soon: what waits for them may have another reason now.
    if !scene.is(Mutant::UnreportedEnd) {
        scene.wake(Topic::Schedule);
    }
    Ok(())
}

/// Ends an allocation whose deadline has passed.
pub(crate) fn overdue<R: Rows>(scene: &mut Scene<'_, R>, id: &AllocationId) -> Result<(), Refusal> {
    let now = scene.clock.steady;
    let found = scene.rows.allocation(id);
    let is_due = |row: &Allocation| row.preempt_deadline.is_some_and(|at| at <= now);
    let Some(mut row) = found.filter(|row| row.ended_at.is_none() && is_due(row)) else {
        return Ok(());
    };
    row.preempt_deadline = None;
    scene.rows.update_allocation(&row);
    let (event, reason) = match row.state {
        AllocationState::Preempting | AllocationState::Saving => (
            AllocationEvent::PreemptTimedOut,
            "it did not exit in time after it was asked to",
        ),
        AllocationState::Pending
        | AllocationState::Starting(_)
        | AllocationState::Ready
        | AllocationState::Killing { .. }
        | AllocationState::Terminated { .. } => (
            AllocationEvent::Kill,
            "it did not exit in time after it reported an early exit",
        ),
    };
    on(scene, id, event, &Cause::master(reason))
}

/// Ends an allocation because the platform cannot go on with it; its trial starts again elsewhere, uncharged.
pub(crate) fn platform_failed<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &AllocationId,
    reason: &str,
) -> Result<(), Refusal> {
    match scene.rows.allocation(id) {
        Some(row) if !row.state.is_terminal() => {
            let event = AllocationEvent::Infrastructure(reason.to_owned());
            on(scene, id, event, &Cause::master(reason))
        }
        _ => Ok(()),
    }
}
