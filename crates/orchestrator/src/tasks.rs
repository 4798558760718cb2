//! What follows for a task. All of a task's attempts are requested here, and all end here, whatever the task's kind.

use det_ids::{Micros, RunId, TaskId};
use det_lifecycle::allocation::{AllocationEvent, AllocationExit, AllocationState, Blame};
use det_lifecycle::container::ObservedState;
use det_lifecycle::log_findings::LogFindings;
use det_lifecycle::object::ObjectKind;
use det_lifecycle::pause::EndedAttempt;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::task::{
    Demand, MAX_LOSSES, RestartPolicy, TaskEffect, TaskEnd, TaskEvent, TaskState,
};
use det_lifecycle::trial::TrialEvent;
use det_taskspec::{ContainerExit, TaskKind, TaskLabel};

use crate::{
    Allocation, Cause, Event, LogLevel, Record, Refusal, Rows, Scene, Task, Topic, Unreadable,
    allocations, trials,
};

fn known<R: Rows>(scene: &Scene<'_, R>, id: &TaskId) -> Result<Task, Refusal> {
    scene
        .rows
        .task(id)
        .ok_or_else(|| Refusal::not_found(ObjectKind::Task, id))
}

/// What each attempt of a task asks for: what its row contains, else what the experiment that it works for asks for.
pub(crate) fn demand<R: Rows>(scene: &Scene<'_, R>, task: &Task) -> Result<Demand, Refusal> {
    match (task.demand, task.experiment_id) {
        (Some(demand), _) => Ok(demand),
        (None, Some(experiment)) => Ok(scene.rows.terms(experiment)?.demand),
        (None, None) => Err(Refusal::Unreadable(Unreadable {
            what: format!("demand of task {}", task.id),
            message: "it contains none, and the task works for no experiment".to_owned(),
        })),
    }
}

/// A user asks something of a task. A trial's task can be moved; everything else is asked of its trial.
pub(crate) fn asked<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &TaskId,
    event: TaskEvent,
    cause: &Cause,
) -> Result<(), Refusal> {
    let task = known(scene, id)?;
    if task.policy() == RestartPolicy::ByTrial && event != TaskEvent::Requeue {
        let trial = task
            .trial_id
            .map_or_else(|| "a trial".to_owned(), |id| format!("trial {id}"));
        return Err(Refusal::Precondition(format!(
            "task {id} is that of {trial}, and follows it: pause, activate or kill the trial's experiment instead"
        )));
    }
    on(scene, id, event, cause)
}

/// Something happens to a task.
pub(crate) fn on<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &TaskId,
    event: TaskEvent,
    cause: &Cause,
) -> Result<(), Refusal> {
    let mut row = known(scene, id)?;
    let (before, policy) = (row.state, row.policy());
    let steered = match &event {
        TaskEvent::Suspend => Some("paused"),
        TaskEvent::Resume => Some("resumed"),
        TaskEvent::Kill => Some("killed"),
        _ => None,
    };
    // The record of the trial has what was done to it: its task only follows.
    let steered = steered.filter(|_| policy != RestartPolicy::ByTrial);
    let worded = steered.map_or_else(|| cause.clone(), |done| cause.of_deed(done));
    let exit = match &event {
        TaskEvent::AttemptEnded(exit) => Some(exit.clone()),
        _ => None,
    };
    let counted = row.losses;
    if let Some(exit) = &exit {
        row.losses = match (policy, before) {
            (RestartPolicy::ByTrial, TaskState::Queued | TaskState::Running) => {
                newest_attempt(scene, &row).map_or(counted, |it| it.ended(exit).in_a_row(counted))
            }
            (RestartPolicy::ByTrial, _) => counted,
            _ => before.losses(counted, exit, policy),
        };
    }
    let step = before
        .on(event, policy, row.losses)
        .map_err(|refused| Refusal::Precondition(format!("task {id}: {refused}")))?;
    if step.state != before || row.losses != counted {
        row.state = step.state;
        row.ended_at = step.state.is_terminal().then_some(scene.clock.wall);
        scene.rows.update_task(&row);
    }
    if step.state != before {
        // The records of a trial and of its allocations contain everything about its task.
        if policy != RestartPolicy::ByTrial {
            scene.record(Record {
                cause: cause.clone(),
                subject: Subject::Task(id.clone()),
                kind: EventKind::State,
                from: Some(before.state_name().into()),
                to: Some(step.state.state_name().into()),
                detail: None,
            });
            if steered == Some("resumed") && row.attempts > 0 {
                scene.log(id, None, format!("Goes on: {}", worded.why()));
            }
            if step.state == TaskState::Suspended {
                let text = format!("Paused: `det task unpause {id}` lets it go on");
                scene.log(id, None, text);
            }
        }
    }
    for effect in step.effects {
        match effect {
            TaskEffect::Request => scene.then(Event::AttemptRequested { id: id.clone() }),
            TaskEffect::Preempt => {
                notify_attempt(scene, id, allocations::release(row.kind), &worded);
            }
            TaskEffect::Kill => notify_attempt(scene, id, AllocationEvent::Kill, &worded),
            TaskEffect::NotifyTrial => match (row.trial_id, exit.clone()) {
                (Some(trial), Some(exit)) => scene.then(Event::Trial {
                    id: trial,
                    event: TrialEvent::AllocationEnded(exit),
                    cause: cause.clone(),
                }),
                // Without the trial that would decide, nothing can start it again.
                _ => on(scene, id, TaskEvent::End(TaskEnd::Failed), cause)?,
            },
            TaskEffect::End => {
                scene.wake(Topic::TaskLog(id.clone()));
                if row.kind == TaskKind::CheckpointGc {
                    scene.wake(Topic::CleanUp);
                }
            }
        }
    }
    Ok(())
}

fn notify_attempt<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: &TaskId,
    event: AllocationEvent,
    cause: &Cause,
) {
    if let Some(id) = scene.rows.live_allocation(id) {
        let cause = cause.clone();
        scene.then(Event::Allocation { id, event, cause });
    }
}

/// What the loss of an attempt means for its task, for users, where that is not the task's end for a reason of its own:
/// `it is queued again: loss 2 of at most 5 in a row`, and how much that matters. Called before the task is notified of the end.
pub(crate) fn after_loss<R: Rows>(
    scene: &Scene<'_, R>,
    id: &TaskId,
    exit: &AllocationExit,
) -> Option<(LogLevel, String)> {
    let task = scene.rows.task(id)?;
    if task.policy() == RestartPolicy::ByTrial {
        return None;
    }
    let losses = task.state.losses(task.losses, exit, task.policy());
    if losses == task.losses {
        let goes_on = task.policy() == RestartPolicy::WhenReleased
            && matches!(task.state, TaskState::Queued | TaskState::Running);
        return match exit {
            AllocationExit::Infrastructure {
                blame: Blame::Excluded,
                ..
            } if goes_on => {
                let then = "it is queued again; not counted as a loss";
                Some((LogLevel::Warning, then.to_owned()))
            }
            _ => None,
        };
    }
    Some(if losses > MAX_LOSSES {
        let then = format!("not started again: {losses} attempts in a row were lost");
        (LogLevel::Error, then)
    } else {
        let then = format!("it is queued again: loss {losses} of at most {MAX_LOSSES} in a row");
        (LogLevel::Warning, then)
    })
}

/// What is known of how the newest attempt of a task ended.
struct NewestAttempt {
    row: Allocation,
    /// Whether a container of it could not be started.
    start_failed: bool,
}

impl NewestAttempt {
    fn ended<'a>(&self, exit: &'a AllocationExit) -> EndedAttempt<'a> {
        let started = self.row.started_at;
        let ran = started
            .zip(self.row.ended_at)
            .map(|(from, to)| to.0 - from.0);
        EndedAttempt {
            exit,
            start_failed: self.start_failed,
            ran: ran.unwrap_or_default(),
        }
    }

    /// The time before which the next attempt may not start; `losses` = how many ended for a reason of their places.
    fn pause_until(&self, losses: u32, now: Micros) -> Option<Micros> {
        let AllocationState::Terminated { exit } = &self.row.state else {
            return None;
        };
        let pause = self.ended(exit).pause(losses);
        let began = self.row.placed_at.or(self.row.ended_at)?;
        // A clock that was set back makes no pause longer.
        let until = began
            .0
            .saturating_add(pause)
            .min(now.0.saturating_add(pause));
        let until = Micros(until);
        (pause > 0 && until > now).then_some(until)
    }
}

/// The newest attempt of a task. `None` = it has made none, or that one ended long ago and its rows are not at hand.
fn newest_attempt<R: Rows>(scene: &Scene<'_, R>, task: &Task) -> Option<NewestAttempt> {
    let row = scene.rows.allocation(&task.id.allocation(task.attempts))?;
    let containers = scene.rows.containers(&row.id);
    let start_failed = containers.iter().any(|container| {
        matches!(
            container.observed,
            Some(ObservedState::Terminated {
                exit: ContainerExit::StartFailed { .. },
                ..
            })
        )
    });
    Some(NewestAttempt { row, start_failed })
}

/// Requests a task's next attempt.
pub(crate) fn request<R: Rows>(scene: &mut Scene<'_, R>, id: &TaskId) -> Result<(), Refusal> {
    let mut task = known(scene, id)?;
    let demand = demand(scene, &task)?;
    let resource_pool = scene
        .rows
        .resource_pool(&task)
        .ok_or_else(|| Refusal::not_found(ObjectKind::Job, &task.job_id))?;
    let now = scene.clock.wall;
    let newest = newest_attempt(scene, &task);
    let not_before = newest.and_then(|newest| newest.pause_until(task.losses, now));
    task.attempts += 1;
    scene.rows.update_task(&task);
    let findings = task.log_findings.as_ref();
    let excluded = findings.and_then(LogFindings::exclusions);
    let policy = task.policy();
    let trial = task.trial_id.zip(task.experiment_id);
    let label = TaskLabel::new(task.kind, &task.id, trial).to_string();
    let (run_id, what) = match policy {
        RestartPolicy::ByTrial => {
            let trial = task.trial_id.ok_or_else(|| {
                Refusal::Unreadable(Unreadable {
                    what: format!("trial of task {id}"),
                    message: format!(
                        "it names none, and a task of kind {} follows one",
                        task.kind.name()
                    ),
                })
            })?;
            let run = trials::begin_run(scene, trial)?;
            (run, format!("{label} (run {run})"))
        }
        RestartPolicy::Never | RestartPolicy::WhenReleased => (
            RunId::default(),
            format!("{label} (attempt {})", task.attempts),
        ),
    };
    let row = Allocation {
        id: id.allocation(task.attempts),
        task_id: task.id,
        kind: task.kind,
        job_id: task.job_id,
        experiment_id: task.experiment_id,
        trial_id: task.trial_id,
        run_id,
        state: AllocationState::Pending,
        resource_pool,
        slots: demand.slots,
        single_place: demand.single_place,
        preemptible: policy.is_preemptible(),
        requested_at: scene.clock.wall,
        not_before,
        placed_at: None,
        started_at: None,
        ended_at: None,
        preempt_deadline: None,
        preempted_for: None,
        port_step: None,
        service_port: None,
        namespace: None,
        exit_reason: None,
        status_code: None,
        wait_reason: None,
        wait_since: None,
    };
    let text = format!("Scheduling {what} in resource pool {}", row.resource_pool);
    scene.log(id, Some(&row.id), text);
    scene.record(Record {
        cause: Cause::actor(ActorName::Master),
        subject: Subject::Allocation(row.id.clone()),
        kind: EventKind::Created,
        from: None,
        to: Some(row.state.state_name().into()),
        detail: None,
    });
    scene.rows.insert_allocation(row, excluded);
    scene.wake(Topic::Schedule);
    Ok(())
}
