//! What users request of tasks of their own.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use det_ids::{JobId, TaskId, UserId};
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::task::{Demand, TaskEvent, TaskState};
use det_orchestrator::{Cause, Event, IdleService, Task, counts_idle};
use det_taskspec::TaskKind;

use super::{RefusalText, Topic, Tx};
use crate::history::{Launch, TaskWish};
use crate::rows::{LaunchedTask, Rows};

impl Tx<'_> {
    /// A user launches a task, as one of its own or as one that belongs to a generic task.
    pub(crate) fn launch(
        &mut self,
        launch: &Rc<Launch>,
        parent: Option<TaskId>,
    ) -> Result<(), RefusalText> {
        if let Err(never) = super::can_ever_fit(self.rows, launch.slots, true) {
            return Err(never.to_string());
        }
        if let Some(parent) = parent.as_ref().and_then(|id| self.rows.tasks.get(id))
            && (parent.kind != TaskKind::Generic || !parent.state.takes_members())
        {
            return Err(format!("nothing can belong to task {}", parent.id));
        }
        self.rows.last_task += 1;
        let id = TaskId::from(format!("task-{}", self.rows.last_task));
        let job_id = JobId::from(format!("job of {id}"));
        let launched = LaunchedTask {
            launch: launch.clone(),
            job_id: job_id.clone(),
            submitted_at: self.now,
            parent,
            started: 0,
        };
        self.rows.launched.insert(id.clone(), launched);
        let row = Task {
            id: id.clone(),
            kind: launch.kind,
            job_id,
            owner_id: UserId(1),
            experiment_id: None,
            trial_id: None,
            state: TaskState::Suspended,
            demand: Some(Demand {
                slots: launch.slots,
                single_place: true,
                preemption_timeout: launch.preemption_timeout,
                preemptible: launch.preemptible,
            }),
            log_findings: None,
            log_retention_days: None,
            attempts: 0,
            losses: 0,
            ended_at: None,
        };
        det_orchestrator::TaskRows::insert_task(self, row);
        self.rows.record(
            Subject::Task(id.clone()),
            EventKind::Created,
            Some(TaskState::Suspended.state_name().into()),
        );
        if launch.idle_timeout.is_some() {
            self.wakes.insert(Topic::Deadlines);
        }
        self.steer_one(id, TaskEvent::Resume)
    }

    /// A user steers a task and what belongs to it: what cannot follow is left alone.
    pub(crate) fn steer_task(&mut self, id: &TaskId, wish: TaskWish) -> Result<(), RefusalText> {
        let event = match wish {
            TaskWish::Pause => TaskEvent::Suspend,
            TaskWish::Activate => TaskEvent::Resume,
            TaskWish::Kill => TaskEvent::Kill,
        };
        for member in tree(self.rows, id) {
            let Some(row) = self.rows.tasks.get(&member) else {
                continue;
            };
            if member == *id || row.state.follows(&event, row.policy()) {
                self.steer_one(member, event.clone())?;
            }
        }
        Ok(())
    }

    fn steer_one(&mut self, id: TaskId, event: TaskEvent) -> Result<(), RefusalText> {
        self.advance([Event::Task {
            id,
            event,
            cause: Cause::actor(ActorName::user("admin")),
        }])
    }
}

/// A task and everything that belongs to it, parents before children.
fn tree(rows: &Rows, id: &TaskId) -> Vec<TaskId> {
    let mut members = vec![id.clone()];
    let mut known = BTreeSet::from([id.clone()]);
    let mut next = 0;
    while let Some(parent) = members.get(next).cloned() {
        for (id, task) in &rows.launched {
            if task.parent.as_ref() == Some(&parent) && known.insert(id.clone()) {
                members.push(id.clone());
            }
        }
        next += 1;
    }
    members
}

/// The live attempts of tasks whose services may not be idle for ever.
pub(crate) fn watched(rows: &Rows) -> Vec<IdleService> {
    let live = rows.live.allocations.iter();
    let live = live.filter_map(|id| rows.allocations.get(id));
    let watched = live.filter_map(|allocation| {
        let row = &allocation.row;
        let timeout = rows.launched.get(&row.task_id)?.launch.idle_timeout?;
        Some(IdleService {
            task: row.task_id.clone(),
            timeout: Duration::from_secs(timeout.into()),
            counts: counts_idle(row.kind, &row.state),
        })
    });
    watched.collect()
}
