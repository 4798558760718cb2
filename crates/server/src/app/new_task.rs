//! Storing a task of its own: a job, the task, what it runs as and the files that it starts with.

use det_config::task::TaskConfig;
use det_ids::{TaskId, UserId, WorkspaceId};
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::task::{Demand, TaskEvent, TaskState};
use det_orchestrator::{Event, LogLevel};
use det_store::WriteTx;
use det_store::allocations::TaskRow;
use det_store::archives::{self, NewArchive};
use det_store::events::NewEvent;
use det_store::experiments::{self, JobKind, JobRow};
use det_store::task_documents::{self, TaskDocument};

use det_taskspec::TaskDetails;

use crate::app::context::Context;
use crate::app::orchestration::{Cause, Orchestration};
use crate::app::pools::Pools;
use crate::error::AppResult;

/// What a task is made of.
pub(crate) struct TaskParts {
    /// The user who owns it.
    pub(crate) owner_id: UserId,
    /// The workspace that it is in.
    pub(crate) workspace_id: WorkspaceId,
    /// Its configuration, complete and in a pool.
    pub(crate) config: TaskConfig,
    /// What only a task of its kind has.
    pub(crate) details: TaskDetails,
    /// The task that it belongs to.
    pub(crate) parent: Option<TaskId>,
    /// The files that it starts with, packed.
    pub(crate) context: Option<NewArchive<TaskId>>,
    /// What its owner should know of its configuration, for its log.
    pub(crate) warnings: Vec<String>,
}

/// Everything that is stored of a new task.
pub(crate) struct NewTask {
    /// Row of the job by which the task is queued.
    pub(crate) job: JobRow,
    /// Row of the task itself.
    pub(crate) task: TaskRow,
    /// Name, configuration and details that it runs with.
    pub(crate) document: TaskDocument,
    /// The files that it starts with, packed.
    pub(crate) context: Option<NewArchive<TaskId>>,
    /// What its owner should know of its configuration, for its log.
    pub(crate) warnings: Vec<String>,
    /// Whether it is paused from its beginning, in place of requesting its first attempt.
    pub(crate) is_paused: bool,
}

impl NewTask {
    /// A task with ids of its own, which is not stored yet.
    pub(crate) fn new(parts: TaskParts, pools: &Pools) -> Self {
        let config = &parts.config;
        let now = det_store::now();
        let id = TaskId(uuid::Uuid::new_v4().to_string());
        let resources = &config.resources;
        let pool = &resources.resource_pool;
        let priority = resources.priority;
        let job = JobRow {
            id: uuid::Uuid::new_v4().to_string().into(),
            kind: JobKind::Task,
            owner_id: parts.owner_id,
            resource_pool: pool.clone(),
            priority: priority.unwrap_or_else(|| pools.default_priority(pool)),
            weight: resources.weight,
            max_slots: None,
            position: None,
            moved: false,
            fallback: None,
            demands: pools.demands.of(&config.environment),
            submitted_at: now,
            workspace_id: parts.workspace_id,
        };
        let task = TaskRow {
            id: id.clone(),
            kind: parts.details.kind(),
            job_id: job.id.clone(),
            owner_id: job.owner_id,
            experiment_id: None,
            trial_id: None,
            state: TaskState::Suspended,
            demand: Some(demand(config)),
            attempts: 0,
            losses: 0,
            log_lines: 0,
            created_at: now,
            ended_at: None,
            logs_deleted_at: None,
            log_findings: None,
            log_retention_days: None,
        };
        let document = TaskDocument {
            task_id: id,
            parent_id: parts.parent,
            description: config.description.clone(),
            config: config.to_json().to_string(),
            details: parts.details,
        };
        Self {
            job,
            task,
            document,
            context: parts.context,
            warnings: parts.warnings,
            is_paused: false,
        }
    }

    /// Stores it and requests its first attempt, unless it is paused.
    pub(crate) async fn store(
        self,
        tx: &mut WriteTx,
        context: &Context,
        orchestration: &Orchestration,
        actor: &ActorName,
    ) -> AppResult<()> {
        let (id, from) = (self.task.id.clone(), self.task.state);
        experiments::insert_job(&mut tx.conn(), &self.job).await?;
        tx.live_rows().add_task(self.task);
        task_documents::insert(&mut tx.conn(), &self.document).await?;
        if let Some(archive) = &self.context {
            archives::insert_of_task(&mut tx.conn(), &id, archive).await?;
        }
        let subject = Subject::Task(id.clone());
        let created = NewEvent::new(actor, subject, EventKind::Created)
            .states(None, Some(from.state_name().into()));
        context.record(tx, created).await?;
        let cause = Cause::actor(actor);
        let event = TaskEvent::Resume;
        let resumed = (!self.is_paused).then(|| Event::Task {
            id: id.clone(),
            event,
            cause,
        });
        orchestration.advance(tx, resumed).await?;
        if self.is_paused {
            let text = format!("Paused: `det task unpause {id}` lets it go on");
            context.write_line(tx, &id, None, (LogLevel::Info, &text))?;
        }
        for warning in &self.warnings {
            let text = format!("Note on the configuration: {warning}");
            context.write_line(tx, &id, None, (LogLevel::Warning, &text))?;
        }
        Ok(())
    }
}

/// What each attempt of a task asks for.
fn demand(config: &TaskConfig) -> Demand {
    Demand {
        slots: config.resources.slots,
        // Only generic tasks may be spread over places.
        single_place: config.resources.is_single_node.unwrap_or(true),
        preemption_timeout: config.preemption_timeout,
        preemptible: config.preemptible,
    }
}
