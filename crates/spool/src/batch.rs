//! Records on their way to the master.

use serde_json::{Map, Value, json};

use crate::Record;
use crate::record::rfc3339;

/// Path of the route that takes batches, below the master's address.
pub const LOGS_PATH: &str = "/api/v1/task/logs";
/// Records per request.
pub const MAX_BATCH_RECORDS: usize = 1000;
/// Stored bytes per request, roughly.
pub const MAX_BATCH_BYTES: usize = 4 << 20;

/// Records with unbroken sequence numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Sequence number of the first.
    pub first: u64,
    /// At least one.
    pub records: Vec<Record>,
}

impl Batch {
    /// Sequence number of the last record: what to acknowledge once the master took the batch.
    pub fn last(&self) -> u64 {
        (self.first + self.records.len() as u64).saturating_sub(1)
    }
}

/// Whose records they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchIds {
    /// The task.
    pub task_id: String,
    /// The allocation.
    pub allocation_id: String,
    /// The agent that runs the container.
    pub agent_id: String,
    /// The container; also names the spool.
    pub container_id: String,
}

/// The request body for `POST` [`LOGS_PATH`].
///
/// Beside the log records of the wire contract §10.3 it says with `spool` which records of which spool they are, so
/// that the master can drop what it has, and which of them tell of an [`Outage`](crate::Outage).
pub fn batch_body(batch: &Batch, ids: &BatchIds) -> Value {
    let logs: Vec<Value> = batch.records.iter().map(|r| log_entry(r, ids)).collect();
    let mut spool = json!({"id": ids.container_id, "first": batch.first});
    let outages: Vec<Value> = (batch.first..)
        .zip(&batch.records)
        .filter_map(|(sequence, record)| {
            let outage = record.outage.as_ref()?;
            Some(json!({
                "sequence": sequence,
                "since": rfc3339(outage.since_micros),
                "until": rfc3339(outage.until_micros),
                "lost": outage.lost,
                "cause": outage.cause,
            }))
        })
        .collect();
    if !outages.is_empty() {
        spool["outages"] = outages.into();
    }
    json!({"logs": logs, "spool": spool})
}

fn log_entry(record: &Record, ids: &BatchIds) -> Value {
    let mut entry = Map::new();
    let mut set = |name: &str, value: Value| entry.insert(name.to_owned(), value);
    set("taskId", ids.task_id.as_str().into());
    set("allocationId", ids.allocation_id.as_str().into());
    set("agentId", ids.agent_id.as_str().into());
    set("containerId", ids.container_id.as_str().into());
    if let Some(rank) = record.rank_id {
        set("rankId", rank.into());
    }
    set("timestamp", rfc3339(record.timestamp_micros).into());
    if let Some(level) = record.level {
        set("level", level.as_str().into());
    }
    set("log", format!("{}\n", record.log).into());
    set("source", "task".into());
    set("stdtype", record.stdtype.as_str().into());
    Value::Object(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Level, Outage, Stdtype};

    #[test]
    fn a_batch_reads_as_the_wire_contract_says() {
        let plain = Record {
            timestamp_micros: 1_646_187_318_299_569,
            stdtype: Stdtype::Stdout,
            rank_id: None,
            level: None,
            log: "hello".into(),
            outage: None,
        };
        let marked = Record {
            stdtype: Stdtype::Stderr,
            rank_id: Some(3),
            level: Some(Level::Error),
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
        assert_eq!(
            batch_body(&batch, &ids),
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
