//! Task logs: taking lines in. Reading them back is in [`crate::app::log_reading`].

use std::collections::BTreeSet;

use det_store::logs::{self, LogLine, Packed};
use det_store::{Store, StoreError, WriteTx};

use crate::app::Master;
use crate::error::{AppError, AppResult};
use crate::hub::Topic;

/// Identity of a batch from a spool: which spool, and the sequence number of the batch's first line (from 1).
#[derive(Debug, Clone)]
pub struct SpoolBatch {
    /// The spool, named by its container.
    pub id: String,
    /// Sequence number of the first line.
    pub first: i64,
}

impl Master {
    /// Stores lines of one task. Lines that a spool has delivered before are dropped.
    pub async fn append_logs(
        &self,
        task_id: String,
        packed: Packed,
        spool: Option<SpoolBatch>,
    ) -> AppResult<()> {
        let hub = self.hub.clone();
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    let mut packed = packed;
                    if let Some(spool) = spool {
                        let count = packed.count();
                        let known = logs::advance_spool(
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
                    tx.after_commit(move || hub.notify(&Topic::TaskLog(task_id)));
                    Ok(())
                })
            })
            .await
    }

    /// Writes a line of the master's own into a task's log, in the transaction of what it tells.
    pub fn log_line(
        &self,
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
        let hub = self.hub.clone();
        let task_id = task_id.to_owned();
        tx.after_commit(move || hub.notify(&Topic::TaskLog(task_id)));
        Ok(())
    }
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
