//! Ingesting lines of task logs: from spools of agents, and from callers that may log for a task.

use std::collections::{BTreeMap, HashSet};

use det_ids::{ExperimentId, SpoolId, TaskId};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_store::events::NewEvent;
use det_store::logs::{self, LogLine, PackedLines, pack};
use det_store::{WriteTx, allocations};
use serde_json::json;

use crate::app::logs::Logs;
use crate::app::logs::patterns::PatternMatches;
use crate::app::ownership::ReportSubject;
use crate::app::silences::Contact;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::hub::Topic;

/// Identity of a batch from a spool: which spool, and the sequence number of the batch's first line (from 1).
#[derive(Debug, Clone)]
pub struct SpoolBatch {
    /// Id of the spool that the lines come from.
    pub id: SpoolId,
    /// Sequence number of the first line.
    pub first: i64,
    /// The outages that some of these lines report.
    pub outages: Vec<Outage>,
}

/// A time in which a spool's disk took no lines; times in microseconds since 1970.
#[derive(Debug, Clone)]
pub struct Outage {
    /// Sequence number of the line that reports it.
    pub sequence: i64,
    /// When the first line was refused.
    pub since: i64,
    /// When that was over, or was not waited for any longer.
    pub until: i64,
    /// How many log lines were lost in that time.
    pub lost: u64,
    /// The error of the disk.
    pub cause: String,
}

impl Logs {
    /// Stores lines that an actor reports of one task. Lines that a spool has delivered before are dropped. A line that
    /// reports a full disk leaves an event of the task, once like the line itself.
    pub async fn report(
        &self,
        actor: &Actor,
        task_id: TaskId,
        packed: PackedLines,
        spool: Option<SpoolBatch>,
    ) -> AppResult<()> {
        self.ownership
            .require_reporter(actor, ReportSubject::Task(&task_id))
            .await?;
        let experiment_id = match actor {
            // Nearly all lines: what their token contains costs no query.
            Actor::Task(task) if task.task_id == task_id => task.experiment_id,
            Actor::Task(_) | Actor::User(_) => {
                let mut conn = self.context.store.read().await?;
                let task = allocations::find_task(&mut conn.conn(), &task_id).await?;
                task.and_then(|task| task.experiment_id)
            }
        };
        // What is refused or a repeat was written, too.
        self.silences.received(actor, Contact::Line);
        self.append(experiment_id, task_id, packed, spool).await
    }

    /// Stores lines that an actor reports of several tasks, and returns how many: those of a task that cannot be stored are
    /// dropped.
    pub(crate) async fn report_what_can(
        &self,
        actor: &Actor,
        lines: BTreeMap<TaskId, Vec<LogLine>>,
    ) -> AppResult<usize> {
        let mut stored = 0;
        for (task_id, lines) in lines {
            let (packed, count) = (pack(&lines)?, lines.len());
            match self.report(actor, task_id.clone(), packed, None).await {
                Ok(()) => stored += count,
                Err(error) => {
                    // Both can be as long as the request.
                    let short = |text: &str| text.chars().take(200).collect::<String>();
                    let (id, error_text) = (short(task_id.as_str()), short(&error.to_string()));
                    tracing::warn!(task.id = id, lines = count, error = error_text, cause = ?error.cause, "log lines were dropped");
                }
            }
        }
        Ok(stored)
    }

    /// Stores lines of one task, which works for this experiment if for any.
    pub(crate) async fn append(
        &self,
        experiment_id: Option<ExperimentId>,
        task_id: TaskId,
        packed: PackedLines,
        spool: Option<SpoolBatch>,
    ) -> AppResult<()> {
        let searched = match experiment_id {
            Some(id) => self.policies.find(id, &packed).await?,
            // Only configurations of experiments have log policies.
            None => PatternMatches::default(),
        };
        let service = self.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let mut packed = packed;
                    let (count, mut known) = (packed.count(), 0);
                    if let Some(spool) = &spool {
                        known = logs::advance_spool(
                            &mut tx.conn(),
                            &spool.id,
                            &task_id,
                            spool.first,
                            count,
                        )
                        .await?;
                        if known == count {
                            return Ok(());
                        }
                        if known > 0 {
                            packed = packed.after(known)?;
                        }
                    }
                    if !logs::append(&mut tx.conn(), &task_id, &packed).await? {
                        return Err(AppError::not_found(ObjectKind::Task, &task_id));
                    }
                    if !searched.is_empty() {
                        service.policies.apply(tx, &task_id, searched).await?;
                    }
                    if let Some(spool) = spool {
                        let new = (spool.first + known)..spool.first.saturating_add(count);
                        // One for each line at most, however often it is repeated.
                        let mut sequences = HashSet::new();
                        for outage in spool.outages {
                            if new.contains(&outage.sequence) && sequences.insert(outage.sequence) {
                                service.record_outage(tx, &task_id, &outage).await?;
                            }
                        }
                    }
                    service.context.wake(tx, Topic::TaskLog(task_id));
                    Ok(())
                })
            })
            .await
    }

    /// The event of an outage.
    async fn record_outage(
        &self,
        tx: &mut WriteTx,
        task_id: &TaskId,
        outage: &Outage,
    ) -> AppResult<()> {
        #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
        let seconds = outage.until.saturating_sub(outage.since) as f64 / 1e6;
        let missing = match outage.lost {
            0 => "its output waited meanwhile, and nothing of it is missing".to_owned(),
            lines => format!("{lines} lines of it are missing"),
        };
        let reason = format!(
            "its log could not be written to disk for {seconds:.1} s ({}): {missing}",
            outage.cause
        );
        let detail = json!({"since": outage.since, "until": outage.until, "lost": outage.lost});
        let event = NewEvent::new(
            ActorName::Task(task_id.clone()),
            Subject::Task(task_id.clone()),
            EventKind::LogHeld,
        )
        .reason(&*reason)
        .detail(detail);
        Ok(self.context.record(tx, event).await?)
    }
}
