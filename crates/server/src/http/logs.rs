//! Logs of tasks and trials: shipping them in, reading and following them.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::Path;
use det_api_types::logs::{
    Id, IncomingLogs, LogFieldsQuery, LogsQuery, PlainLogs, PostTaskLogsRequest, SpoolOutage,
    SpoolPosition, TaskLog, TaskLogsFieldsResponse, TaskLogsResponse, TrialLogsFieldsResponse,
    TrialLogsResponse, UnmanagedLog, read_task_logs,
};
use det_api_types::page::{Empty, OrderBy};
use det_api_types::wire::{SalvagedElement, Timestamp};
use det_ids::{LogLevel, LogLineId, LogSource, SpoolId, TaskId, TrialId, Word};
use det_store::logs::{LogLine, Origin, PackedLines, Packer, pack};
use serde::Serialize;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use crate::app::logs::intake::{Outage, SpoolBatch};
use crate::app::logs::reading::{LineEncoder, LogFields, LogFilter, Reading, Search, Sink};
use crate::app::reads::logs::Log;
use crate::error::{AppError, AppResult};
use crate::http::extract::{Caller, PathId, RawBody, Reporter, StreamStart, WireBody, WireQuery};
use crate::http::respond::{Answer, StreamAnswer, empty, line, message, stream};
use crate::http::routes::{Routes, routes};
use crate::http::views;
use crate::http::views::logs::stored_level;

/// Characters kept of the error of a disk.
const LONGEST_CAUSE: usize = 200;
/// Messages that wait to be sent.
const MESSAGES: usize = 2;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(post_task_logs))
        .routes(routes!(post_unmanaged_logs))
        .routes(routes!(task_logs))
        .routes(routes!(trial_logs))
        .routes(routes!(task_logs_fields))
        .routes(routes!(trial_logs_fields))
}

/// What is stored of a text, in parts: as it is, with exactly one line end.
fn stored_parts(text: &str) -> [&str; 2] {
    let text = text.strip_suffix('\n').unwrap_or(text);
    [text.strip_suffix('\r').unwrap_or(text), "\n"]
}

fn stored_text(text: &str) -> String {
    stored_parts(text).concat()
}

/// An identity of where a line comes from; blank is the same as none.
fn plain_id<'a>(id: Option<&'a Id<'_>>) -> Option<&'a str> {
    id.map(|id| &*id.0).filter(|id| !id.is_empty())
}

/// An identity of where a line comes from; blank is the same as none.
fn stored_id<T: Into<String> + From<String>>(id: Option<T>) -> Option<T> {
    let text: String = id?.into();
    let text = text.replace('\0', "");
    (!text.is_empty()).then(|| text.into())
}

fn stored_line(record: TaskLog, now: i64) -> LogLine {
    LogLine {
        at: record.timestamp.map_or(now, Timestamp::micros),
        log: stored_text(&record.log),
        level: record.level.and_then(stored_level),
        stdtype: stored_id(record.stdtype).map(Word::read),
        source: stored_id(record.source).map(Word::read),
        rank_id: record.rank_id,
        allocation_id: stored_id(record.allocation_id),
        container_id: stored_id(record.container_id),
        agent_id: stored_id(record.agent_id),
    }
}

/// Ingests log records of one task. Records that cannot be read are dropped, the rest is kept.
#[utoipa::path(post, path = "/api/v1/task/logs", operation_id = "PostTaskLogs", tag = "logs",
    request_body = PostTaskLogsRequest, responses((status = 200, body = Empty)))]
async fn post_task_logs(Reporter(master, actor): Reporter, body: RawBody) -> Answer {
    let read = body.decode(|body| {
        Ok(match read_task_logs(body)? {
            IncomingLogs::Plain(logs) => Some(plain_batch(logs)?),
            IncomingLogs::Other(request) => batch(request)?,
        })
    });
    let Some(batch) = read.await? else {
        return empty();
    };
    master
        .logs
        .report(&actor, batch.task_id, batch.lines, batch.spool)
        .await?;
    empty()
}

struct Batch {
    task_id: TaskId,
    lines: PackedLines,
    spool: Option<SpoolBatch>,
}

/// What a request in the plain form comes to: packed without a copy of its lines.
fn plain_batch(logs: PlainLogs<'_>) -> AppResult<Batch> {
    let now = det_store::now();
    let mut packer = Packer::default();
    let mut task: Option<&str> = None;
    for (index, record) in logs.logs.iter().enumerate() {
        same_task(&mut task, &record.task_id.0, index)?;
        packer.push_parts(
            record.timestamp.map_or(now, |time| time.0.micros()),
            stored_parts(&record.log.0),
            &Origin {
                level: record.level.and_then(|level| stored_level(level.0)),
                stdtype: plain_id(record.stdtype.as_ref()),
                source: plain_id(record.source.as_ref()),
                rank_id: record.rank_id,
                allocation_id: plain_id(record.allocation_id.as_ref()),
                container_id: plain_id(record.container_id.as_ref()),
                agent_id: plain_id(record.agent_id.as_ref()),
            },
        );
    }
    let Some(task_id) = task.map(TaskId::from) else {
        return Err(no_records());
    };
    Ok(Batch {
        spool: spool_batch(logs.spool, &task_id)?,
        lines: packer.finish()?,
        task_id,
    })
}

/// The records of a batch are all of the task that the first one names.
fn same_task<'a>(task: &mut Option<&'a str>, named: &'a str, index: usize) -> AppResult<()> {
    match task {
        None if named.is_empty() => Err(AppError::invalid(format!(
            "field \"logs[{index}].taskId\" must name a task"
        ))),
        None => {
            *task = Some(named);
            Ok(())
        }
        Some(task) if *task != named => Err(AppError::invalid(format!(
            "field \"logs[{index}].taskId\" is \"{}\", and an earlier record is of task \"{task}\": send the \
             records of each task by themselves",
            named.escape_debug()
        ))),
        Some(_) => Ok(()),
    }
}

fn no_records() -> AppError {
    AppError::invalid("field \"logs\" must have at least one record")
}

fn spool_batch(spool: Option<SpoolPosition>, task_id: &TaskId) -> AppResult<Option<SpoolBatch>> {
    let outage = |outage: SpoolOutage| {
        Some(Outage {
            sequence: i64::try_from(outage.sequence).ok()?,
            since: outage.since.micros(),
            until: outage.until.micros(),
            lost: outage.lost,
            cause: outage.cause.chars().take(LONGEST_CAUSE).collect(),
        })
    };
    spool
        .map(|spool| match i64::try_from(spool.first) {
            Ok(first @ 1..) if !spool.id.is_empty() => {
                // Under the task's own name, so that no task can touch the spool of another.
                Ok(SpoolBatch {
                    id: SpoolId(format!("{task_id}/{}", spool.id)),
                    first,
                    outages: spool.outages.into_iter().filter_map(outage).collect(),
                })
            }
            _ => Err(AppError::invalid(
                "field \"spool\" must have an id and a first sequence number of at least 1",
            )),
        })
        .transpose()
}

/// What a request comes to; `None` when none of its records can be read.
fn batch(body: PostTaskLogsRequest) -> AppResult<Option<Batch>> {
    if body.logs.is_empty() {
        return Err(no_records());
    }
    let now = det_store::now();
    let mut task: Option<TaskId> = None;
    let mut lines = Vec::with_capacity(body.logs.len());
    for (index, record) in body.logs.into_iter().enumerate() {
        let record = match record {
            SalvagedElement::Read(record) => record,
            SalvagedElement::Unreadable(error) => {
                tracing::debug!(index, %error, "a log record could not be read");
                // The lines of a spool are counted: a dropped one must not shift those behind it.
                if body.spool.is_some() {
                    lines.push(LogLine {
                        at: now,
                        log: format!("a log record could not be read: {error}\n"),
                        level: Some(LogLevel::Warning),
                        source: Some(LogSource::Master.into()),
                        ..LogLine::default()
                    });
                }
                continue;
            }
        };
        if record.id.is_some() {
            return Err(AppError::invalid(format!(
                "field \"logs[{index}].id\" must not be set: the master numbers records"
            )));
        }
        match &task {
            None => same_task(&mut None, record.task_id.as_str(), index)?,
            Some(task) => same_task(&mut Some(task.as_str()), record.task_id.as_str(), index)?,
        }
        task.get_or_insert_with(|| record.task_id.clone());
        lines.push(stored_line(record, now));
    }
    let Some(task_id) = task else {
        return Ok(None);
    };
    Ok(Some(Batch {
        spool: spool_batch(body.spool, &task_id)?,
        lines: pack(&lines)?,
        task_id,
    }))
}

/// What became of the records of `POST /task-logs`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
struct UnmanagedLogsTaken {
    /// Records that were stored.
    stored: usize,
    /// Records that could not be read or stored.
    dropped: usize,
}

/// Ingests log records of trials that run outside the cluster. The sender gives up for good on any other status than
/// 200, so records that cannot be stored are counted, not refused.
#[utoipa::path(post, path = "/task-logs", operation_id = "PostUnmanagedLogs", tag = "logs",
    request_body = Vec<UnmanagedLog>, responses((status = 200, body = UnmanagedLogsTaken)))]
async fn post_unmanaged_logs(
    Reporter(master, actor): Reporter,
    WireBody(records): WireBody<Vec<SalvagedElement<UnmanagedLog>>>,
) -> Answer {
    let all = records.len();
    let lines = unmanaged_lines(records, det_store::now());
    let stored = master.logs.report_what_can(&actor, lines).await?;
    message(&UnmanagedLogsTaken {
        stored,
        dropped: all - stored,
    })
}

/// Lines by task. The client stamps all records of a run with the time of its start: a time that every record of a task
/// repeats is not theirs, and the time of arrival is nearer.
fn unmanaged_lines(
    records: Vec<SalvagedElement<UnmanagedLog>>,
    now: i64,
) -> BTreeMap<TaskId, Vec<LogLine>> {
    let mut of_task: BTreeMap<TaskId, Vec<LogLine>> = BTreeMap::new();
    for record in records
        .into_iter()
        .filter_map(SalvagedElement::read)
        .filter(|record| !record.task_id.as_str().is_empty())
    {
        let line = TaskLog {
            id: None,
            task_id: TaskId::default(),
            allocation_id: record.allocation_id,
            agent_id: record.agent_id,
            container_id: record.container_id,
            rank_id: record.rank_id.or(record.rank),
            timestamp: record.timestamp,
            level: record.level,
            log: record.log,
            source: record.source,
            stdtype: record.stdtype,
        };
        of_task
            .entry(record.task_id)
            .or_default()
            .push(stored_line(line, now));
    }
    for lines in of_task.values_mut() {
        let first = lines.first().map_or(now, |line| line.at);
        if lines.iter().all(|line| line.at == first) {
            for line in lines {
                line.at = now;
            }
        }
    }
    of_task
}

/// Bytes of a compiled regular expression at most, and of what a search remembers of it: each follower has one.
const MAX_SEARCH_BYTES: usize = 256 << 10;

fn unusable_search(error: &regex::Error) -> AppError {
    AppError::invalid(match error {
        regex::Error::CompiledTooBig(most) => format!(
            "field \"searchText\" is too large a regular expression: more than {most} bytes once it is compiled, at most \
             that are allowed; write fewer or shorter repetitions"
        ),
        error => format!("field \"searchText\" is not a regular expression: {error}"),
    })
}

/// How a log is to be read, as it was asked for.
fn reading(query: LogsQuery) -> AppResult<(LogFilter, Reading)> {
    let limit = match usize::try_from(query.limit) {
        Ok(0) => None,
        Ok(limit) => Some(limit),
        Err(_) => {
            return Err(AppError::invalid(format!(
                "field \"limit\" must be at least 0, found {}",
                query.limit
            )));
        }
    };
    let reading = match (query.follow, query.order_by, limit) {
        (true, _, Some(_)) => {
            return Err(AppError::invalid(
                "a followed log has no limit: leave out \"limit\" or \"follow\"",
            ));
        }
        (true, OrderBy::Desc, None) => {
            return Err(AppError::invalid(
                "a followed log comes oldest first: leave out \"orderBy\" or \"follow\"",
            ));
        }
        (true, OrderBy::Unspecified | OrderBy::Asc, None) => Reading::Follow,
        (false, OrderBy::Desc, limit) => Reading::Backward { limit },
        (false, OrderBy::Unspecified | OrderBy::Asc, limit) => Reading::Forward { limit },
    };
    let search = match (query.search_text.is_empty(), query.enable_regex) {
        (true, _) => None,
        (false, false) => Some(Search::substring(&query.search_text)),
        (false, true) => Some(Search::Regex(
            regex::RegexBuilder::new(&query.search_text)
                // Texts end with a line feed, and several may be one line of a task.
                .multi_line(true)
                .size_limit(MAX_SEARCH_BYTES)
                .dfa_size_limit(MAX_SEARCH_BYTES)
                .build()
                .map_err(|error| unusable_search(&error))?,
        )),
    };
    let filter = LogFilter {
        allocation_ids: query.allocation_ids,
        agent_ids: query.agent_ids,
        container_ids: query.container_ids,
        rank_ids: query.rank_ids,
        levels: query.levels.into_iter().map(stored_level).collect(),
        stdtypes: query.stdtypes.into_iter().map(Word::read).collect(),
        sources: query.sources.into_iter().map(Word::read).collect(),
        before: query.timestamp_before.map(Timestamp::micros),
        after: query.timestamp_after.map(Timestamp::micros),
        search,
    };
    Ok((filter, reading))
}

/// Streams a log; `encode` makes a line of the stream of a line of the log.
async fn stream_log(
    log: Log,
    query: LogsQuery,
    streaming: StreamStart,
    encode: impl Fn(&TaskId, LogLineId, LogLine) -> AppResult<Bytes> + Send + Sync + 'static,
) -> StreamAnswer {
    let (filter, reading) = reading(query)?;
    let (out, messages) = mpsc::channel(MESSAGES);
    // Ends when the log has been sent, or when the stream is dropped.
    tokio::spawn(log.read(filter, reading, LineEncoder::new(encode), out));
    Ok(stream(messages, streaming).await)
}

/// The log of a task.
#[utoipa::path(get, path = "/api/v1/tasks/{taskId}/logs", operation_id = "TaskLogs", tag = "logs",
    params(("taskId" = String, Path, description = "the task"), LogsQuery),
    responses((status = 200, body = TaskLogsResponse)))]
async fn task_logs(
    Caller(master, actor): Caller,
    streaming: StreamStart,
    Path(task_id): Path<TaskId>,
    WireQuery(query): WireQuery<LogsQuery>,
) -> StreamAnswer {
    let log = Log::of_task(&master.sources.logs, &actor, task_id).await?;
    stream_log(log, query, streaming, |task_id, id, log| {
        line(&views::logs::of_task(task_id, id, log))
    })
    .await
}

/// The log of a trial: of all its tasks, one after the other.
#[utoipa::path(get, path = "/api/v1/trials/{trialId}/logs", operation_id = "TrialLogs", tag = "logs",
    params(("trialId" = i64, Path, description = "the trial"), LogsQuery),
    responses((status = 200, body = TrialLogsResponse)))]
async fn trial_logs(
    Caller(master, actor): Caller,
    streaming: StreamStart,
    PathId(trial_id): PathId<TrialId>,
    WireQuery(query): WireQuery<LogsQuery>,
) -> StreamAnswer {
    let log = Log::of_trial(&master.sources.logs, &actor, trial_id).await?;
    stream_log(log, query, streaming, move |_, id, log| {
        line(&views::logs::of_trial(trial_id, id, log))
    })
    .await
}

/// Gathers what can be filtered by in a log: once, or with `follow` again whenever there is more of it.
struct Fields<E> {
    found: LogFields,
    follow: bool,
    /// Whether there is something that was not sent yet.
    news: bool,
    encode: E,
}

impl<E: Fn(&LogFields) -> AppResult<Bytes> + Send + Sync> Sink for Fields<E> {
    fn put(&mut self, _task: &TaskId, _id: LogLineId, line: LogLine) -> AppResult<bool> {
        self.news |= self.found.add(line);
        Ok(false)
    }

    fn take(&mut self) -> AppResult<Option<Bytes>> {
        if !(self.follow && std::mem::take(&mut self.news)) {
            return Ok(None);
        }
        (self.encode)(&self.found).map(Some)
    }

    fn end(&mut self) -> AppResult<Option<Bytes>> {
        if self.follow {
            return Ok(None);
        }
        (self.encode)(&self.found).map(Some)
    }
}

/// Streams what can be filtered by in a log.
async fn stream_fields(
    log: Log,
    follow: bool,
    streaming: StreamStart,
    encode: impl Fn(&LogFields) -> AppResult<Bytes> + Send + Sync + 'static,
) -> StreamAnswer {
    let (out, messages) = mpsc::channel(MESSAGES);
    let reading = if follow {
        Reading::Follow
    } else {
        Reading::Forward { limit: None }
    };
    let sink = Fields {
        found: LogFields::default(),
        follow,
        news: false,
        encode,
    };
    // Ends as in `stream_log`.
    tokio::spawn(log.read(LogFilter::default(), reading, sink, out));
    Ok(stream(messages, streaming).await)
}

fn list<T: Clone, U: From<T>>(values: &std::collections::BTreeSet<T>) -> Vec<U> {
    values.iter().cloned().map(U::from).collect()
}

/// What the log of a task can be filtered by.
#[utoipa::path(get, path = "/api/v1/tasks/{taskId}/logs/fields", operation_id = "TaskLogsFields", tag = "logs",
    params(("taskId" = String, Path, description = "the task"), LogFieldsQuery),
    responses((status = 200, body = TaskLogsFieldsResponse)))]
async fn task_logs_fields(
    Caller(master, actor): Caller,
    streaming: StreamStart,
    Path(task_id): Path<TaskId>,
    WireQuery(query): WireQuery<LogFieldsQuery>,
) -> StreamAnswer {
    let log = Log::of_task(&master.sources.logs, &actor, task_id).await?;
    stream_fields(log, query.follow, streaming, |fields| {
        line(&TaskLogsFieldsResponse {
            allocation_ids: list(&fields.allocation_ids),
            agent_ids: list(&fields.agent_ids),
            container_ids: list(&fields.container_ids),
            rank_ids: list(&fields.rank_ids),
            stdtypes: list(&fields.stdtypes),
            sources: list(&fields.sources),
        })
    })
    .await
}

/// What the log of a trial can be filtered by.
#[utoipa::path(get, path = "/api/v1/trials/{trialId}/logs/fields", operation_id = "TrialLogsFields", tag = "logs",
    params(("trialId" = i64, Path, description = "the trial"), LogFieldsQuery),
    responses((status = 200, body = TrialLogsFieldsResponse)))]
async fn trial_logs_fields(
    Caller(master, actor): Caller,
    streaming: StreamStart,
    PathId(trial_id): PathId<TrialId>,
    WireQuery(query): WireQuery<LogFieldsQuery>,
) -> StreamAnswer {
    let log = Log::of_trial(&master.sources.logs, &actor, trial_id).await?;
    stream_fields(log, query.follow, streaming, |fields| {
        line(&TrialLogsFieldsResponse {
            agent_ids: list(&fields.agent_ids),
            container_ids: list(&fields.container_ids),
            rank_ids: list(&fields.rank_ids),
            stdtypes: list(&fields.stdtypes),
            sources: list(&fields.sources),
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use det_api_types::logs::SpoolPosition;
    use det_api_types::wire;

    use super::*;

    fn decode(text: &str) -> PostTaskLogsRequest {
        wire::decode(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_broken_record_is_dropped_and_the_rest_kept() {
        let body = decode(
            r#"{"logs":[{"task_id":"t","log":"a\u0000b","level":"ERROR"},{"task_id":"t","log":{}},{"taskId":"t","log":"c\n"}]}"#,
        );
        let batch = batch(body).unwrap().unwrap();
        assert_eq!(batch.task_id.as_str(), "t");
        let lines = batch.lines.unpack().unwrap();
        let texts: Vec<&str> = lines.iter().map(|l| l.log.as_str()).collect();
        assert_eq!(texts, ["a\0b\n", "c\n"]);
        assert_eq!(lines[0].level, Some(LogLevel::Error));
    }

    #[test]
    fn a_batch_in_the_plain_form_comes_to_the_same() {
        let text = r#"{"logs":[
            {"taskId":"t","log":"a\u0000b\r\n","level":"LOG_LEVEL_ERROR","timestamp":"1970-01-01T00:00:01Z",
                "rankId":-1,"source":"","stdtype":"stderr","agentId":null},
            {"taskId":"t","log":"\n\n","level":"LOG_LEVEL_UNSPECIFIED","timestamp":"1970-01-01T00:00:00.5Z",
                "allocationId":"t.1","containerId":"c","agentId":"a"}],
            "spool":{"id":"s","first":4}}"#;
        let Ok(IncomingLogs::Plain(plain)) = read_task_logs(text.as_bytes()) else {
            panic!("it is plain");
        };
        let plain = plain_batch(plain).unwrap();
        let general = batch(decode(text)).unwrap().unwrap();
        assert_eq!(
            plain.lines.unpack().unwrap(),
            general.lines.unpack().unwrap()
        );
        assert_eq!(plain.task_id, general.task_id);
        assert_eq!(plain.spool.unwrap().id, general.spool.unwrap().id);
    }

    #[test]
    fn a_broken_record_of_a_spool_keeps_its_place() {
        let mut body =
            decode(r#"{"logs":[{"task_id":"t","log":"a"},{"log":{}},{"task_id":"t","log":"c"}]}"#);
        body.spool = Some(SpoolPosition {
            id: "s".into(),
            first: 4,
            outages: Vec::new(),
        });
        let batch = batch(body).unwrap().unwrap();
        let lines = batch.lines.unpack().unwrap();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].log.contains("could not be read"));
        let spool = batch.spool.unwrap();
        assert_eq!((spool.id.as_str(), spool.first), ("t/s", 4));
    }

    #[test]
    fn a_batch_is_of_one_task_and_not_numbered() {
        let refused = |text: &str| {
            let general = batch(decode(text)).err().unwrap().message;
            if let Ok(IncomingLogs::Plain(plain)) = read_task_logs(text.as_bytes()) {
                assert_eq!(plain_batch(plain).err().unwrap().message, general);
            }
            general
        };
        assert!(refused(r#"{"logs":[]}"#).contains("at least one"));
        assert!(
            refused(r#"{"logs":[{"taskId":"t","log":""},{"taskId":"u","log":""}]}"#)
                .contains("logs[1].taskId")
        );
        assert!(refused("{}").contains("at least one"));
        assert!(refused(r#"{"logs":[{"log":"a"}]}"#).contains("logs[0].taskId"));
        assert!(refused(r#"{"logs":[{"taskId":"t"},{"taskId":"u"}]}"#).contains("logs[1].taskId"));
        assert!(refused(r#"{"logs":[{"taskId":"t","id":5}]}"#).contains("logs[0].id"));
        assert!(
            refused(r#"{"logs":[{"taskId":"t"}],"spool":{"id":"s","first":0}}"#)
                .contains("\"spool\"")
        );
    }

    #[test]
    fn a_frozen_time_gives_way_to_that_of_arrival() {
        let read = |text: &str| {
            wire::decode::<Vec<SalvagedElement<UnmanagedLog>>>(text.as_bytes()).unwrap()
        };
        let frozen = read(
            r#"[{"task_id":"t","timestamp":"2020-01-01T00:00:00Z","log":"a","rank":"3"},
                {"task_id":"t","timestamp":"2020-01-01T00:00:00Z","log":"b","rank":0},
                {"task_id":7}]"#,
        );
        let lines = unmanaged_lines(frozen, 99);
        assert_eq!(
            lines[&"t".into()]
                .iter()
                .map(|l| (l.at, l.rank_id))
                .collect::<Vec<_>>(),
            [(99, Some(3)), (99, Some(0))]
        );
        let stated = read(
            r#"[{"task_id":"t","timestamp":"1970-01-01T00:00:01Z","log":"a"},
                {"task_id":"t","timestamp":"1970-01-01T00:00:02Z","log":"b"}]"#,
        );
        let times: Vec<i64> = unmanaged_lines(stated, 99)[&"t".into()]
            .iter()
            .map(|l| l.at)
            .collect();
        assert_eq!(times, [1_000_000, 2_000_000]);
    }

    #[test]
    fn what_cannot_be_read_together_is_refused() {
        let follow = LogsQuery {
            follow: true,
            ..LogsQuery::default()
        };
        assert!(matches!(
            reading(follow.clone()).unwrap().1,
            Reading::Follow
        ));
        assert!(
            reading(LogsQuery {
                limit: 5,
                ..follow.clone()
            })
            .is_err()
        );
        assert!(
            reading(LogsQuery {
                order_by: OrderBy::Desc,
                ..follow
            })
            .is_err()
        );
        assert!(
            reading(LogsQuery {
                limit: -1,
                ..LogsQuery::default()
            })
            .is_err()
        );
        let regex = LogsQuery {
            search_text: "(".into(),
            enable_regex: true,
            ..LogsQuery::default()
        };
        assert!(reading(regex).unwrap_err().message.contains("searchText"));
    }

    #[test]
    fn fields_report_whether_there_is_something_new() {
        let mut fields = LogFields::default();
        let line = LogLine {
            rank_id: Some(1),
            source: Some(LogSource::Task.into()),
            ..LogLine::default()
        };
        assert!(fields.add(line.clone()));
        assert!(!fields.add(line.clone()));
        assert!(fields.add(LogLine {
            rank_id: Some(2),
            ..line
        }));
        assert_eq!(list::<_, i64>(&fields.rank_ids), [1, 2]);
    }
}
