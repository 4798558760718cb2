//! Reading a batch of log records without copying their texts.
//!
//! Batches are long. Written as our own shippers and the client from `PyPI` write them they are read straight into what
//! borrows from the request. Anything else (another spelling, a broken record, an error) is parsed by the general
//! decoder, [`wire::decode`], which drops broken records or returns what is wrong.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};

use super::{LogLevel, PostTaskLogsRequest, SpoolPosition};
use crate::wire::{self, Timestamp, WireError};

/// The body of `PostTaskLogs`.
#[derive(Debug)]
pub enum IncomingLogs<'a> {
    /// In the plain form: every record can be read.
    Plain(PlainLogs<'a>),
    /// In any other form: broken records are marked as such.
    Other(PostTaskLogsRequest),
}

/// Records that all can be read, and have no number of their own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlainLogs<'a> {
    /// The records of one request.
    #[serde(borrow)]
    pub logs: Vec<PlainLog<'a>>,
    /// Which lines of a container's spool these are; `None` = the sender keeps no spool.
    #[serde(default)]
    pub spool: Option<SpoolPosition>,
}

/// One record; the fields as in [`super::TaskLog`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlainLog<'a> {
    #[serde(default, rename = "id")]
    _id: Option<Nothing>,
    /// Id of the task.
    #[serde(borrow, alias = "task_id")]
    pub task_id: Id<'a>,
    /// Id of the allocation: the task and the number of the attempt, `TASK.N`; `None` = not given.
    #[serde(default, borrow, alias = "allocation_id")]
    pub allocation_id: Option<Id<'a>>,
    /// The agent that the container ran on.
    #[serde(default, borrow, alias = "agent_id")]
    pub agent_id: Option<Id<'a>>,
    /// Id of the container that wrote it; `None` = not given.
    #[serde(default, borrow, alias = "container_id")]
    pub container_id: Option<Id<'a>>,
    /// Rank of the process that wrote it in a distributed task, from 0; `None` = not given.
    #[serde(default, alias = "rank_id")]
    pub rank_id: Option<i64>,
    /// When it was printed; `None` = when it arrives.
    #[serde(default)]
    pub timestamp: Option<PlainTime>,
    /// Severity of the line; `None` = it has none.
    #[serde(default)]
    pub level: Option<PlainLevel>,
    /// Text of the line.
    #[serde(borrow)]
    pub log: Text<'a>,
    /// Program that wrote it: `task`, `master`, `agent`; `None` = not given.
    #[serde(default, borrow)]
    pub source: Option<Id<'a>>,
    /// Stream that it was written to: `stdout` or `stderr`; `None` = not known.
    #[serde(default, borrow)]
    pub stdtype: Option<Id<'a>>,
}

/// Reads the body of `PostTaskLogs`.
///
/// # Errors
/// As [`wire::decode`] of [`PostTaskLogsRequest`].
pub fn read_task_logs(body: &[u8]) -> Result<IncomingLogs<'_>, WireError> {
    match serde_json::from_slice(body) {
        Ok(plain) => Ok(IncomingLogs::Plain(plain)),
        Err(_) => wire::decode(body).map(IncomingLogs::Other),
    }
}

/// Text, borrowed from the request if it contains no escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Text that names something: without the character NUL, which the general way has to deal with. Of the ids of the other
/// bodies each record would have a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Id<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Id<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        if text.contains('\0') {
            return Err(D::Error::custom("it holds the character NUL"));
        }
        Ok(Self(text))
    }
}

/// A time in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainTime(pub Timestamp);

impl<'de> Deserialize<'de> for PlainTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(deserializer)?;
        text.0.parse().map(Self).map_err(D::Error::custom)
    }
}

/// A severity by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainLevel(pub LogLevel);

impl<'de> Deserialize<'de> for PlainLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(deserializer)?;
        LogLevel::ALL
            .iter()
            .find(|level| level.as_str() == text.0)
            .map(|level| Self(*level))
            .ok_or_else(|| D::Error::custom("another name"))
    }
}

/// A value that is not there.
#[derive(Debug)]
enum Nothing {}

impl<'de> Deserialize<'de> for Nothing {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("there should be none"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::TaskLog;
    use super::*;
    use crate::wire::SalvagedElement;

    /// The plain form as the general way would have read it.
    fn as_request(plain: PlainLogs<'_>) -> PostTaskLogsRequest {
        let text = |id: Id<'_>| id.0.into_owned();
        let logs = plain.logs.into_iter().map(|record| {
            SalvagedElement::Read(TaskLog {
                id: None,
                task_id: text(record.task_id).into(),
                allocation_id: record.allocation_id.map(|id| text(id).into()),
                agent_id: record.agent_id.map(|id| text(id).into()),
                container_id: record.container_id.map(|id| text(id).into()),
                rank_id: record.rank_id,
                timestamp: record.timestamp.map(|t| t.0),
                level: record.level.map(|l| l.0),
                log: record.log.0.into_owned(),
                source: record.source.map(text),
                stdtype: record.stdtype.map(text),
            })
        });
        PostTaskLogsRequest {
            logs: logs.collect(),
            spool: plain.spool,
        }
    }

    fn same(body: &[u8]) -> bool {
        let general = wire::decode::<PostTaskLogsRequest>(body);
        match read_task_logs(body) {
            Ok(IncomingLogs::Plain(plain)) => general == Ok(as_request(plain)),
            Ok(IncomingLogs::Other(other)) => general == Ok(other),
            Err(error) => general == Err(error),
        }
    }

    #[test]
    fn what_shippers_send_is_plain() {
        let body = br#"{"logs":[{"taskId":"t","allocationId":"t.1","agentId":"a","containerId":"c","rankId":0,
            "timestamp":"2025-01-31T12:00:00.123456Z","level":"LOG_LEVEL_INFO","log":"\u001b[1mx\n","source":"task",
            "stdtype":"stdout","id":null}],"spool":{"id":"c","first":1}}"#;
        assert!(matches!(
            read_task_logs(body),
            Ok(IncomingLogs::Plain(plain)) if plain.logs.len() == 1
        ));
        assert!(same(body));
    }

    fn any_record() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[a-z\n\u{0}é]{0,6}".prop_map(Value::from),
            Just(json!("2025-01-31T12:00:00Z")),
            Just(json!("LOG_LEVEL_ERROR")),
        ];
        let name = prop::sample::select(vec![
            "id",
            "taskId",
            "task_id",
            "rankId",
            "rank_id",
            "timestamp",
            "level",
            "source",
            "more",
        ]);
        prop::collection::btree_map(name, scalar, 0..5).prop_map(|entries| {
            let mut record = json!({"taskId": "t", "log": "x\n"});
            for (name, value) in entries {
                record[name] = value;
            }
            record
        })
    }

    proptest! {
        #[test]
        fn both_ways_give_the_same(
            records in prop::collection::vec(any_record(), 0..4),
            spool in prop::sample::select(vec![json!(null), json!({"id": "c", "first": 3}), json!({"id": "c", "first": "3"}), json!(5)]),
        ) {
            let body = json!({"logs": records, "spool": spool}).to_string();
            prop_assert!(same(body.as_bytes()), "{}", body);
        }
    }
}
