//! Log lines as clients see them: `docs/contract/http-api.md`, "Log lines".

use det_api_types::logs::{LogLevel, TaskLogsResponse, TrialLogsResponse};
use det_api_types::wire::Timestamp;
use det_ids::{ContainerId, LogLineId, TaskId, TrialId};
use det_store::logs::LogLine;

/// Characters of a container's id that are shown.
const SHORT_ID: usize = 8;

/// A level as the wire has it.
pub(crate) fn level(level: Option<det_ids::LogLevel>) -> LogLevel {
    use det_ids::LogLevel as Level;
    match level {
        None => LogLevel::Unspecified,
        Some(Level::Trace) => LogLevel::Trace,
        Some(Level::Debug) => LogLevel::Debug,
        Some(Level::Info) => LogLevel::Info,
        Some(Level::Warning) => LogLevel::Warning,
        Some(Level::Error) => LogLevel::Error,
        Some(Level::Critical) => LogLevel::Critical,
    }
}

/// A level of the wire as it is stored; `None` = it is not specified.
pub(crate) fn stored_level(level: LogLevel) -> Option<det_ids::LogLevel> {
    use det_ids::LogLevel as Level;
    match level {
        LogLevel::Unspecified => None,
        LogLevel::Trace => Some(Level::Trace),
        LogLevel::Debug => Some(Level::Debug),
        LogLevel::Info => Some(Level::Info),
        LogLevel::Warning => Some(Level::Warning),
        LogLevel::Error => Some(Level::Error),
        LogLevel::Critical => Some(Level::Critical),
    }
}

/// The line as clients print it: `[time] container [rank=N] || LEVEL: text`, with exactly one line end.
pub fn message(line: &LogLine) -> String {
    let container: String = line
        .container_id
        .as_ref()
        .map_or("", ContainerId::as_str)
        .chars()
        .take(SHORT_ID)
        .collect();
    let rank = line
        .rank_id
        .map(|rank| format!(" [rank={rank}]"))
        .unwrap_or_default();
    let level = match level(line.level) {
        LogLevel::Unspecified => String::new(),
        known => format!("{}: ", known.as_str().trim_start_matches("LOG_LEVEL_")),
    };
    let text = line.log.strip_suffix('\n').unwrap_or(&line.log);
    format!(
        "[{}] {container:SHORT_ID$}{rank} || {level}{text}\n",
        time(line.at)
    )
}

/// RFC 3339 with all six digits of the microseconds, so that columns line up.
fn time(at: i64) -> String {
    let text = Timestamp(at).to_string();
    let text = text.trim_end_matches('Z');
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    format!("{seconds}.{fraction:0<6}Z")
}

/// A line of a task's log.
pub fn of_task(task_id: &TaskId, id: LogLineId, line: LogLine) -> TaskLogsResponse {
    TaskLogsResponse {
        id: id.to_string(),
        task_id: task_id.clone(),
        timestamp: Timestamp(line.at),
        message: message(&line),
        level: level(line.level),
        log: line.log,
        allocation_id: line.allocation_id,
        agent_id: line.agent_id,
        container_id: line.container_id,
        rank_id: line.rank_id,
        source: line.source.map(String::from),
        stdtype: line.stdtype.map(String::from),
    }
}

/// A line of a trial's log.
pub fn of_trial(trial_id: TrialId, id: LogLineId, line: LogLine) -> TrialLogsResponse {
    TrialLogsResponse {
        id: id.to_string(),
        trial_id,
        timestamp: Timestamp(line.at),
        message: message(&line),
        level: level(line.level),
        agent_id: line.agent_id,
        container_id: line.container_id,
        rank_id: line.rank_id,
        log: Some(line.log),
        source: line.source.map(String::from),
        stdtype: line.stdtype.map(String::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_line() {
        let line = LogLine {
            at: 1_646_187_318_299_569,
            log: "text\n".into(),
            level: Some(det_ids::LogLevel::Info),
            rank_id: Some(1),
            container_id: Some("f6114bb3-a1b2-c3d4-e5f6-071829304152".into()),
            ..LogLine::default()
        };
        assert_eq!(
            message(&line),
            "[2022-03-02T02:15:18.299569Z] f6114bb3 [rank=1] || INFO: text\n"
        );
    }

    #[test]
    fn what_is_not_known_is_left_out_and_the_line_still_ends_once() {
        let line = LogLine {
            at: 1_646_187_318_000_000,
            log: "text".into(),
            ..LogLine::default()
        };
        assert_eq!(
            message(&line),
            "[2022-03-02T02:15:18.000000Z]          || text\n"
        );
        let line = LogLine {
            at: 1_646_187_318_120_000,
            log: "\n".into(),
            ..LogLine::default()
        };
        assert_eq!(
            message(&line),
            "[2022-03-02T02:15:18.120000Z]          || \n"
        );
    }
}
