//! Task logs: taking lines in, reading them back, following them.

use std::collections::BTreeSet;

use det_store::logs::{self, LogLine};
use det_store::{Store, StoreError, WriteTx, allocations};
use tokio::sync::mpsc;

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

/// What to leave out when reading. Values of one filter are alternatives; filters add up.
#[derive(Debug, Clone, Default)]
pub struct LogFilter {
    /// Only these allocations.
    pub allocation_ids: Vec<String>,
    /// Only these agents.
    pub agent_ids: Vec<String>,
    /// Only these containers.
    pub container_ids: Vec<String>,
    /// Only these ranks; -1 = lines without a rank.
    pub rank_ids: Vec<i64>,
    /// Only these levels (`LOG_LEVEL_…`; unspecified matches lines without one).
    pub levels: Vec<String>,
    /// Only these streams.
    pub stdtypes: Vec<String>,
    /// Only these sources.
    pub sources: Vec<String>,
    /// At or before, microseconds.
    pub before: Option<i64>,
    /// After, microseconds.
    pub after: Option<i64>,
    /// Only lines with this text.
    pub search: Option<Search>,
}

/// How a text is looked for.
#[derive(Debug, Clone)]
pub enum Search {
    /// Anywhere in the line, any case; already lower case.
    Substring(String),
    /// A regular expression.
    Regex(regex::Regex),
}

impl LogFilter {
    /// Whether the line is wanted.
    pub fn wants(&self, line: &LogLine) -> bool {
        let any = |wanted: &[String], value: Option<&String>| {
            wanted.is_empty() || value.is_some_and(|v| wanted.contains(v))
        };
        let unspecified = "LOG_LEVEL_UNSPECIFIED".to_owned();
        any(&self.allocation_ids, line.allocation_id.as_ref())
            && any(&self.agent_ids, line.agent_id.as_ref())
            && any(&self.container_ids, line.container_id.as_ref())
            && any(&self.stdtypes, line.stdtype.as_ref())
            && any(&self.sources, line.source.as_ref())
            && any(
                &self.levels,
                Some(line.level.as_ref().unwrap_or(&unspecified)),
            )
            && (self.rank_ids.is_empty() || self.rank_ids.contains(&line.rank_id.unwrap_or(-1)))
            && self.before.is_none_or(|t| line.at <= t)
            && self.after.is_none_or(|t| line.at > t)
            && match &self.search {
                None => true,
                Some(Search::Substring(text)) => line.log.to_lowercase().contains(text),
                Some(Search::Regex(regex)) => regex.is_match(&line.log),
            }
    }
}

/// In which order and how much to read.
#[derive(Debug, Clone, Copy)]
pub enum Reading {
    /// Oldest first, at most `limit` lines.
    Forward {
        /// `None` = all.
        limit: Option<usize>,
    },
    /// Newest first, at most `limit` lines.
    Backward {
        /// `None` = all.
        limit: Option<usize>,
    },
    /// Oldest first, then new lines as they come, until the task has ended.
    Follow,
}

/// Chunks read at once.
const PAGE: i64 = 64;
/// Lines sent at once.
const BATCH: usize = 1000;

impl Master {
    /// Stores lines of one task. Lines that a spool has delivered before are dropped.
    pub async fn append_logs(
        &self,
        task_id: String,
        lines: Vec<LogLine>,
        spool: Option<SpoolBatch>,
    ) -> AppResult<()> {
        let packed = logs::pack(&lines)?;
        let hub = self.hub.clone();
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    let mut packed = packed;
                    if let Some(spool) = spool {
                        let count = i64::try_from(lines.len()).unwrap_or(i64::MAX);
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
                            packed = logs::pack(&lines[usize::try_from(known).unwrap_or(0)..])?;
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
    pub async fn log_line(
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
        logs::append(
            &mut tx.conn(),
            task_id,
            &logs::pack(std::slice::from_ref(&line))?,
        )
        .await?;
        let hub = self.hub.clone();
        let task_id = task_id.to_owned();
        tx.after_commit(move || hub.notify(&Topic::TaskLog(task_id)));
        Ok(())
    }

    /// Reads the log of `tasks` (in this order) into `out`: `(task, line id, line)` in batches. Ends when all is sent,
    /// or when following, once the last task has ended and its last line is out; or when the receiver is gone.
    pub async fn read_logs(
        &self,
        tasks: Vec<String>,
        filter: LogFilter,
        reading: Reading,
        out: mpsc::Sender<AppResult<Vec<(String, i64, LogLine)>>>,
    ) {
        let outcome = match reading {
            Reading::Backward { limit } => self.read_backward(&tasks, &filter, limit, &out).await,
            Reading::Forward { limit } => {
                let mut left = limit.unwrap_or(usize::MAX);
                let mut outcome = Ok(());
                for task in &tasks {
                    outcome = self
                        .read_forward(task, &filter, &mut 0, &mut left, &out)
                        .await;
                    if outcome.is_err() || left == 0 {
                        break;
                    }
                }
                outcome
            }
            Reading::Follow => self.follow(&tasks, &filter, &out).await,
        };
        if let Err(Stop::Failed(error)) = outcome {
            let _ = out.send(Err(error)).await;
        }
    }

    async fn follow(&self, tasks: &[String], filter: &LogFilter, out: &Sender) -> Result<(), Stop> {
        let Some((last, earlier)) = tasks.split_last() else {
            return Ok(());
        };
        for task in earlier {
            self.read_forward(task, filter, &mut 0, &mut usize::MAX.clone(), out)
                .await?;
        }
        let mut subscription = self.hub.subscribe(Topic::TaskLog(last.clone()));
        let mut seen = 0;
        loop {
            let ended = self.task_log_is_complete(last).await?;
            self.read_forward(last, filter, &mut seen, &mut usize::MAX.clone(), out)
                .await?;
            if ended {
                return Ok(());
            }
            tokio::select! {
                () = subscription.changed() => {}
                () = out.closed() => return Err(Stop::Gone),
            }
        }
    }

    /// Whether nothing can be added to the task's log any more: it has ended. An allocation ends only when its agent
    /// has handed over the logs, so a task's end comes after its last line.
    async fn task_log_is_complete(&self, task_id: &str) -> Result<bool, Stop> {
        let mut conn = self.store.read().await?;
        let task = allocations::find_task(&mut conn.conn(), task_id).await?;
        Ok(task.is_none_or(|t| t.ended_at.is_some()))
    }

    async fn read_forward(
        &self,
        task: &str,
        filter: &LogFilter,
        seen: &mut i64,
        left: &mut usize,
        out: &Sender,
    ) -> Result<(), Stop> {
        while *left > 0 {
            let chunks = {
                let mut conn = self.store.read().await?;
                logs::chunks_after(&mut conn.conn(), task, *seen, PAGE).await?
            };
            if chunks.is_empty() {
                break;
            }
            let mut batch = Vec::new();
            for chunk in &chunks {
                for (id, line) in chunk.unpack()? {
                    if id > *seen {
                        *seen = id;
                        if *left > 0 && filter.wants(&line) {
                            *left -= 1;
                            batch.push((task.to_owned(), id, line));
                        }
                    }
                }
                if batch.len() >= BATCH {
                    send(out, std::mem::take(&mut batch)).await?;
                }
            }
            send(out, batch).await?;
        }
        Ok(())
    }

    async fn read_backward(
        &self,
        tasks: &[String],
        filter: &LogFilter,
        limit: Option<usize>,
        out: &Sender,
    ) -> Result<(), Stop> {
        let mut left = limit.unwrap_or(usize::MAX);
        for task in tasks.iter().rev() {
            let mut before = i64::MAX;
            while left > 0 {
                let chunks = {
                    let mut conn = self.store.read().await?;
                    logs::chunks_before(&mut conn.conn(), task, before, PAGE).await?
                };
                let Some(oldest) = chunks.last() else { break };
                before = oldest.first_line;
                let mut batch = Vec::new();
                for chunk in &chunks {
                    for (id, line) in chunk.unpack()?.into_iter().rev() {
                        if left > 0 && filter.wants(&line) {
                            left -= 1;
                            batch.push((task.clone(), id, line));
                        }
                    }
                }
                send(out, batch).await?;
            }
        }
        Ok(())
    }

    /// The distinct values seen in a task's log: what a reader can filter by.
    pub async fn log_fields(&self, tasks: &[String]) -> AppResult<LogFields> {
        let mut fields = LogFields::default();
        for task in tasks {
            let mut seen = 0;
            loop {
                let chunks = {
                    let mut conn = self.store.read().await?;
                    logs::chunks_after(&mut conn.conn(), task, seen, PAGE).await?
                };
                if chunks.is_empty() {
                    break;
                }
                for chunk in &chunks {
                    for (id, line) in chunk.unpack()? {
                        seen = id;
                        fields.add(line);
                    }
                }
            }
        }
        Ok(fields)
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
    fn add(&mut self, line: LogLine) {
        self.allocation_ids.extend(line.allocation_id);
        self.agent_ids.extend(line.agent_id);
        self.container_ids.extend(line.container_id);
        self.rank_ids.extend(line.rank_id);
        self.stdtypes.extend(line.stdtype);
        self.sources.extend(line.source);
    }
}

type Sender = mpsc::Sender<AppResult<Vec<(String, i64, LogLine)>>>;

/// Why reading stopped before its end.
enum Stop {
    Gone,
    Failed(AppError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

async fn send(out: &Sender, batch: Vec<(String, i64, LogLine)>) -> Result<(), Stop> {
    if batch.is_empty() {
        return Ok(());
    }
    out.send(Ok(batch)).await.map_err(|_| Stop::Gone)
}

/// Used by tests and tools that want a whole log.
pub async fn whole_log(store: &Store, task_id: &str) -> Result<Vec<(i64, LogLine)>, StoreError> {
    let mut all: Vec<(i64, LogLine)> = Vec::new();
    loop {
        let after = all.last().map_or(0, |(id, _)| *id);
        let mut conn = store.read().await?;
        let chunks = logs::chunks_after(&mut conn.conn(), task_id, after, PAGE).await?;
        if chunks.is_empty() {
            return Ok(all);
        }
        for chunk in chunks {
            all.extend(chunk.unpack()?.into_iter().filter(|(id, _)| *id > after));
        }
    }
}
