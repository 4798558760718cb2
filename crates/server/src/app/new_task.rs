//! Storing a task of its own: a job, the task, what it runs as and the files that it starts with.

use det_lifecycle::record::{EventKind, Subject};
use det_lifecycle::task::TaskEvent;
use det_orchestrator::Event;
use det_store::WriteTx;
use det_store::allocations::TaskRow;
use det_store::archives::{self, ArchiveOf};
use det_store::events::NewEvent;
use det_store::experiments::{self, JobRow};
use det_store::task_documents::{self, TaskDocument};

use crate::app::context::Context;
use crate::app::orchestration::{Cause, Orchestration};
use crate::error::AppResult;

/// Everything that is stored of a new task.
pub(crate) struct NewTask {
    /// Its job.
    pub(crate) job: JobRow,
    /// Its row.
    pub(crate) task: TaskRow,
    /// What it runs as.
    pub(crate) document: TaskDocument,
    /// The files that it starts with, packed.
    pub(crate) context: Option<Vec<u8>>,
    /// What its owner should know of its configuration, for its log.
    pub(crate) warnings: Vec<String>,
}

impl NewTask {
    /// Stores it and requests its first attempt.
    pub(crate) async fn store(
        self,
        tx: &mut WriteTx,
        context: &Context,
        orchestration: &Orchestration,
        actor: &str,
    ) -> AppResult<()> {
        let (id, from) = (self.task.id.clone(), self.task.state);
        experiments::insert_job(&mut tx.conn(), &self.job).await?;
        tx.live_rows().add_task(self.task);
        task_documents::insert(&mut tx.conn(), &self.document).await?;
        if let Some(archive) = &self.context {
            archives::insert(&mut tx.conn(), &ArchiveOf::Task(id.clone()), archive).await?;
        }
        let subject = Subject::Task(id.clone());
        let created = NewEvent::new(actor, subject, EventKind::Created).states(None, from.name());
        context.record(tx, created).await?;
        let cause = Cause::actor(actor);
        let event = TaskEvent::Resume;
        let resumed = Event::Task {
            id: id.clone(),
            event,
            cause,
        };
        orchestration.advance(tx, [resumed]).await?;
        for warning in &self.warnings {
            let text = format!("Note on the configuration: {warning}");
            context.write_line(tx, &id, None, &text)?;
        }
        Ok(())
    }
}
