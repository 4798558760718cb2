//! Batches of records, as they are sent to the master.

use det_ids::{AgentId, AllocationId, ContainerId, LogSource, TaskId};
use serde::Serialize;

use crate::record::rfc3339;
use crate::{LogLevel, Record};

/// Path of the route that receives batches, below the master's address.
pub const LOGS_PATH: &str = "/api/v1/task/logs";
/// The most records per request.
pub const MAX_BATCH_RECORDS: usize = 4000;
/// The most bytes of stored records per request, approximately.
pub const MAX_BATCH_BYTES: usize = 4 << 20;

/// Records with consecutive sequence numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Sequence number of the first record.
    pub first: u64,
    /// The records; at least one.
    pub records: Vec<Record>,
}

impl Batch {
    /// Sequence number of the last record: the number to acknowledge once the master accepted the batch.
    pub fn last(&self) -> u64 {
        (self.first + self.records.len() as u64).saturating_sub(1)
    }
}

/// Ids of the task, allocation, agent and container that wrote the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchIds {
    /// The task that the container works for.
    pub task_id: TaskId,
    /// The attempt of the task that the container belongs to.
    pub allocation_id: AllocationId,
    /// The agent that runs the container.
    pub agent_id: AgentId,
    /// The container; also names the spool.
    pub container_id: ContainerId,
}

/// The request body for `POST` [`LOGS_PATH`], as JSON.
///
/// In addition to the log records (`docs/contract/http-api.md`, "Log lines"), `spool` identifies the spool and the
/// sequence numbers, so that the master can drop records that it already has, and the records that report an
/// [`Outage`](crate::Outage).
///
/// # Errors
/// None in practice: strings and numbers can always be serialised.
pub fn batch_body(batch: &Batch, ids: &BatchIds) -> serde_json::Result<Vec<u8>> {
    let outages = (batch.first..)
        .zip(&batch.records)
        .filter_map(|(sequence, record)| {
            let outage = record.outage.as_ref()?;
            Some(OutageEntry {
                sequence,
                since: rfc3339(outage.since_micros),
                until: rfc3339(outage.until_micros),
                lost: outage.lost,
                cause: &outage.cause,
            })
        });
    serde_json::to_vec(&Body {
        logs: batch.records.iter().map(|r| log_entry(r, ids)).collect(),
        spool: SpoolEntry {
            id: ids.container_id.as_str(),
            first: batch.first,
            outages: outages.collect(),
        },
    })
}

// Written without a tree of values: tasks may print millions of lines.

#[derive(Serialize)]
struct Body<'a> {
    logs: Vec<LogEntry<'a>>,
    spool: SpoolEntry<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LogEntry<'a> {
    task_id: &'a TaskId,
    allocation_id: &'a AllocationId,
    agent_id: &'a AgentId,
    container_id: &'a ContainerId,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank_id: Option<u32>,
    timestamp: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<&'static str>,
    log: Line<'a>,
    source: &'static str,
    stdtype: &'static str,
}

#[derive(Serialize)]
struct SpoolEntry<'a> {
    id: &'a str,
    first: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outages: Vec<OutageEntry<'a>>,
}

#[derive(Serialize)]
struct OutageEntry<'a> {
    sequence: u64,
    since: String,
    until: String,
    lost: u64,
    cause: &'a str,
}

/// A line, serialised with its line end.
struct Line<'a>(&'a str);

impl Serialize for Line<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}\n", self.0))
    }
}

fn log_entry<'a>(record: &'a Record, ids: &'a BatchIds) -> LogEntry<'a> {
    LogEntry {
        task_id: &ids.task_id,
        allocation_id: &ids.allocation_id,
        agent_id: &ids.agent_id,
        container_id: &ids.container_id,
        rank_id: record.rank_id,
        timestamp: rfc3339(record.timestamp_micros),
        level: record.level.map(LogLevel::as_str),
        log: Line(&record.log),
        source: LogSource::Task.as_str(),
        stdtype: record.stdtype.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{LogStream, Outage};

    #[test]
    fn a_batch_reads_as_the_wire_contract_has_it() {
        let plain = Record {
            timestamp_micros: 1_646_187_318_299_569,
            stdtype: LogStream::Stdout,
            rank_id: None,
            level: None,
            log: "hello".into(),
            outage: None,
        };
        let marked = Record {
            stdtype: LogStream::Stderr,
            rank_id: Some(3),
            level: Some(LogLevel::Error),
            outage: Some(Outage {
                since_micros: 1_646_187_310_000_000,
                until_micros: 1_646_187_318_000_000,
                lost: 2,
                cause: "No space left on device (os error 28)".into(),
            }),
            ..plain.clone()
        };
        let batch = Batch {
            first: 41,
            records: vec![plain, marked],
        };
        let ids = BatchIds {
            task_id: "7.0b6c".into(),
            allocation_id: "7.0b6c.1".into(),
            agent_id: "a1".into(),
            container_id: "c1".into(),
        };
        assert_eq!(batch.last(), 42);
        let body = batch_body(&batch, &ids).unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&body).unwrap(),
            json!({
                "logs": [
                    {"taskId": "7.0b6c", "allocationId": "7.0b6c.1", "agentId": "a1", "containerId": "c1",
                     "timestamp": "2022-03-02T02:15:18.299569Z", "log": "hello\n", "source": "task", "stdtype": "stdout"},
                    {"taskId": "7.0b6c", "allocationId": "7.0b6c.1", "agentId": "a1", "containerId": "c1", "rankId": 3,
                     "timestamp": "2022-03-02T02:15:18.299569Z", "level": "LOG_LEVEL_ERROR", "log": "hello\n",
                     "source": "task", "stdtype": "stderr"},
                ],
                "spool": {"id": "c1", "first": 41, "outages": [
                    {"sequence": 42, "since": "2022-03-02T02:15:10.000000Z", "until": "2022-03-02T02:15:18.000000Z",
                     "lost": 2, "cause": "No space left on device (os error 28)"},
                ]},
            })
        );
    }
}
