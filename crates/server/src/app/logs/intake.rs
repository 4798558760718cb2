//! Task logs: taking lines in. Reading them back is in [`crate::app::logs::reading`].

use std::collections::BTreeSet;

use det_store::events::NewEvent;
use det_store::logs::{self, LogLine, Packed};
use det_store::{Store, StoreError, WriteTx, allocations};
use serde_json::json;

use crate::app::Master;
use crate::app::ownership::Reported;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::hub::{Hub, Topic};

/// Identity of a batch from a spool: which spool, and the sequence number of the batch's first line (from 1).
#[derive(Debug, Clone)]
pub struct SpoolBatch {
    /// The spool, named by its container.
    pub id: String,
    /// Sequence number of the first line.
    pub first: i64,
    /// What some of these lines tell.
    pub outages: Vec<Outage>,
}

/// A time in which a spool's disk took no lines; times in microseconds since 1970.
#[derive(Debug, Clone)]
pub struct Outage {
    /// Sequence number of the line that tells of it.
    pub sequence: i64,
    /// When the first line was refused.
    pub since: i64,
    /// When that was over, or was not waited for any longer.
    pub until: i64,
    /// Lines that are missing.
    pub lost: u64,
    /// What the disk said.
    pub cause: String,
}

impl Master {
    /// Stores lines that an actor reports of one task. Lines that a spool has delivered before are dropped. A line that
    /// reports a full disk leaves an event of the task, once like the line itself.
    pub async fn report_logs(
        &self,
        actor: &Actor,
        task_id: String,
        packed: Packed,
        spool: Option<SpoolBatch>,
    ) -> AppResult<()> {
        self.ownership
            .require_reporter(actor, Reported::Task(&task_id))
            .await?;
        let experiment_id = match actor {
            // Nearly all lines: what their token says costs no query.
            Actor::Task(task) if task.task_id == task_id => task.experiment_id,
            Actor::Task(_) | Actor::User(_) => {
                let mut conn = self.context.store.read().await?;
                let task = allocations::find_task(&mut conn.conn(), &task_id).await?;
                task.and_then(|task| task.experiment_id)
            }
        };
        self.append_logs(experiment_id, task_id, packed, spool)
            .await
    }

    /// Stores lines of one task, which works for this experiment if for any.
    pub(crate) async fn append_logs(
        &self,
        experiment_id: Option<i64>,
        task_id: String,
        packed: Packed,
        spool: Option<SpoolBatch>,
    ) -> AppResult<()> {
        let found = match experiment_id {
            Some(id) => self.match_log(id, &packed).await?,
            // Only configurations of experiments have log policies.
            None => Vec::new(),
        };
        let master = self.clone();
        self.context
            .store
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
                        return Err(AppError::not_found("task", &task_id));
                    }
                    if !found.is_empty() {
                        master.note_found(tx, &task_id, found).await?;
                    }
                    if let Some(spool) = spool {
                        let new = (spool.first + known)..spool.first.saturating_add(count);
                        for outage in spool.outages {
                            if new.contains(&outage.sequence) {
                                master.record_outage(tx, &task_id, &outage).await?;
                            }
                        }
                    }
                    tx.after_commit(move || master.context.hub.notify(&Topic::TaskLog(task_id)));
                    Ok(())
                })
            })
            .await
    }

    /// The event of an outage.
    async fn record_outage(
        &self,
        tx: &mut WriteTx,
        task_id: &str,
        outage: &Outage,
    ) -> AppResult<()> {
        #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
        let seconds = outage.until.saturating_sub(outage.since) as f64 / 1e6;
        let missing = match outage.lost {
            0 => "its output waited meanwhile, and nothing of it is missing".to_owned(),
            lines => format!("{lines} lines of it are missing"),
        };
        let reason = format!(
            "its log could not be written to its agent's disk for {seconds:.1} s ({}): {missing}",
            outage.cause
        );
        let detail = json!({"since": outage.since, "until": outage.until, "lost": outage.lost});
        let event = NewEvent {
            actor: &format!("task:{task_id}"),
            subject_kind: "task",
            subject_id: task_id.to_owned(),
            kind: "log_held",
            reason: Some(&reason),
            detail: Some(detail.to_string()),
            ..NewEvent::default()
        };
        Ok(self.context.record(tx, event).await?)
    }
}

/// Writes a line of the master's own into a task's log, in the transaction of what it tells.
pub(crate) fn write_line(
    hub: &Hub,
    tx: &mut WriteTx,
    task_id: &str,
    allocation_id: Option<&str>,
    text: &str,
) -> Result<(), StoreError> {
    let line = LogLine {
        at: det_store::now(),
        log: format!("{}\n", text.trim_end()),
        level: Some("LOG_LEVEL_INFO".into()),
        stdtype: Some("stdout".into()),
        source: Some("master".into()),
        allocation_id: allocation_id.map(str::to_owned),
        ..LogLine::default()
    };
    logs::append_line(&mut tx.conn(), task_id, line)?;
    let hub = hub.clone();
    let task_id = task_id.to_owned();
    tx.after_commit(move || hub.notify(&Topic::TaskLog(task_id)));
    Ok(())
}

/// Distinct values of a log.
#[derive(Debug, Clone, Default)]
pub struct LogFields {
    /// Allocations.
    pub allocation_ids: BTreeSet<String>,
    /// Agents.
    pub agent_ids: BTreeSet<String>,
    /// Containers.
    pub container_ids: BTreeSet<String>,
    /// Ranks.
    pub rank_ids: BTreeSet<i64>,
    /// Streams.
    pub stdtypes: BTreeSet<String>,
    /// Sources.
    pub sources: BTreeSet<String>,
}

impl LogFields {
    /// Adds what can be filtered by in a line; whether any of it is new.
    pub fn add(&mut self, line: LogLine) -> bool {
        let mut new = false;
        let texts = [
            (&mut self.allocation_ids, line.allocation_id),
            (&mut self.agent_ids, line.agent_id),
            (&mut self.container_ids, line.container_id),
            (&mut self.stdtypes, line.stdtype),
            (&mut self.sources, line.source),
        ];
        for (known, value) in texts {
            new |= value.is_some_and(|value| known.insert(value));
        }
        new | line.rank_id.is_some_and(|rank| self.rank_ids.insert(rank))
    }
}

/// Used by tests and tools that want a whole log.
pub async fn whole_log(store: &Store, task_id: &str) -> Result<Vec<(i64, LogLine)>, StoreError> {
    let mut all: Vec<(i64, LogLine)> = Vec::new();
    loop {
        let after = all.last().map_or(0, |(id, _)| *id);
        let mut conn = store.read().await?;
        let chunks = logs::chunks_after(&mut conn.conn(), task_id, after, 64).await?;
        if chunks.is_empty() {
            return Ok(all);
        }
        for chunk in chunks {
            all.extend(chunk.unpack()?.into_iter().filter(|(id, _)| *id > after));
        }
    }
}
