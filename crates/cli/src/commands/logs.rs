//! Logs of trials and tasks.

mod fields;

use clap::{Args, ValueEnum};
use det_client::{Client, ClientError, LineStream, Query, api_path};
use det_ids::TrialId;
use jiff::Timestamp;
use serde_json::Value;
use std::cell::RefCell;
use std::time::Duration;
use tokio::time::Instant;

use crate::commands::watching::{RETRY_LIMIT, RETRY_PAUSE};
use crate::error::CliError;
use crate::output;
use crate::values::{items, plain, text, time};

/// Lines are in the order in which they arrived, with times of the hosts that printed them: how far their clocks may differ
/// where a stream is opened by a time.
const CLOCKS_DIFFER: Duration = Duration::from_mins(1);

/// The flags of every command that prints logs.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LogArgs {
    /// Go on printing what is logged, until the task ends or Ctrl-C; --tail skips the beginning
    #[arg(short, long, conflicts_with = "head")]
    pub(crate) follow: bool,
    /// Print only the first N lines
    #[arg(long, value_name = "N", conflicts_with = "tail")]
    head: Option<u32>,
    /// Print only the last N lines
    #[arg(long, value_name = "N")]
    tail: Option<u32>,
    /// Only lines from this agent (may be repeated)
    #[arg(long = "agent-id", value_name = "ID")]
    agent_ids: Vec<String>,
    /// Only lines from this container (may be repeated)
    #[arg(long = "container-id", value_name = "ID")]
    container_ids: Vec<String>,
    /// Only lines from this rank (may be repeated)
    #[arg(long = "rank-id", value_name = "RANK", allow_negative_numbers = true)]
    rank_ids: Vec<i32>,
    /// Only lines up to this time (RFC 3339, 2021-10-26T23:17:12Z)
    #[arg(long, value_name = "TIME")]
    timestamp_before: Option<String>,
    /// Only lines after this time (RFC 3339, 2021-10-26T23:17:12Z)
    #[arg(long, value_name = "TIME")]
    timestamp_after: Option<String>,
    /// Only lines of this level or above
    #[arg(long, value_enum, ignore_case = true)]
    level: Option<Level>,
    /// Only lines from this source (may be repeated)
    #[arg(long = "source", value_name = "SOURCE")]
    sources: Vec<String>,
    /// Only lines from this output, stdout or stderr (may be repeated)
    #[arg(long = "stdtype", value_name = "OUTPUT")]
    stdtypes: Vec<String>,
    /// Only lines that contain this text, in whatever letter case
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Take the text of --search for a regular expression (letter case counts then, unless it begins with (?i))
    #[arg(long, requires = "search")]
    regex: bool,
    /// Print each line as a JSON object
    #[arg(long)]
    json: bool,
    /// Only lines from these allocations: an option of commands that print a task's log.
    #[arg(skip)]
    pub(crate) allocation_ids: Vec<String>,
}

impl LogArgs {
    /// The same, of these attempts of a task alone; of all where there are none.
    pub(crate) fn of_allocations(self, allocation_ids: Vec<String>) -> Self {
        Self {
            allocation_ids,
            ..self
        }
    }

    /// All lines so far, and those that follow.
    pub(crate) fn following() -> Self {
        Self {
            follow: true,
            ..Self::default()
        }
    }

    /// The same lines, but none before `since`, and as they come.
    fn from(&self, since: Option<Timestamp>) -> Self {
        let asked = self.timestamp_after.as_deref();
        let asked = asked.and_then(|text| text.parse::<Timestamp>().ok());
        Self {
            follow: true,
            tail: None,
            timestamp_after: match asked.max(since) {
                Some(after) if since.is_some() => Some(after.to_string()),
                _ => self.timestamp_after.clone(),
            },
            ..self.clone()
        }
    }

    fn query(&self) -> Query {
        let levels = Level::value_variants()
            .iter()
            .filter(|level| self.level.is_some_and(|least| **level >= least))
            .map(|level| level.on_the_wire());
        Query::new()
            .with_all("allocationIds", &self.allocation_ids)
            .with("follow", self.follow)
            .with_some("limit", self.head.or(self.tail))
            .with_some("orderBy", self.tail.map(|_| "ORDER_BY_DESC"))
            .with_all("agentIds", &self.agent_ids)
            .with_all("containerIds", &self.container_ids)
            .with_all("rankIds", &self.rank_ids)
            .with_some("timestampBefore", self.timestamp_before.as_deref())
            .with_some("timestampAfter", self.timestamp_after.as_deref())
            .with_all("levels", levels)
            .with_all("sources", &self.sources)
            .with_all("stdtypes", &self.stdtypes)
            .with_some("searchText", self.search.as_deref())
            .with_some("enableRegex", Some(true).filter(|_| self.regex))
    }
}

/// The level of a line, the least severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "UPPER")]
enum Level {
    Unspecified,
    Trace,
    Debug,
    Info,
    Warning,
    Error,
    Critical,
}

impl Level {
    fn on_the_wire(self) -> &'static str {
        match self {
            Self::Unspecified => "LOG_LEVEL_UNSPECIFIED",
            Self::Trace => "LOG_LEVEL_TRACE",
            Self::Debug => "LOG_LEVEL_DEBUG",
            Self::Info => "LOG_LEVEL_INFO",
            Self::Warning => "LOG_LEVEL_WARNING",
            Self::Error => "LOG_LEVEL_ERROR",
            Self::Critical => "LOG_LEVEL_CRITICAL",
        }
    }
}

/// What the logs are of.
#[derive(Debug, Clone)]
pub(crate) enum LogSource {
    /// A trial, over all its tasks.
    Trial(TrialId),
    /// One task, by its id.
    Task(String),
}

impl LogSource {
    fn path(&self) -> String {
        match self {
            Self::Trial(id) => api_path(["trials", &id.to_string(), "logs"]),
            Self::Task(id) => api_path(["tasks", id, "logs"]),
        }
    }

    /// What the logs are of, in messages.
    fn noun(&self) -> String {
        match self {
            Self::Trial(id) => format!("trial {id}"),
            Self::Task(id) => format!("task {id}"),
        }
    }

    /// A refusal of the master to show these logs. Those of streams bring no hint.
    fn refusal(&self, error: ClientError) -> CliError {
        let unknown = matches!(error, ClientError::NotFound { hint: None, .. });
        let error = CliError::from(error);
        match self {
            _ if !unknown => error,
            Self::Trial(_) => error.with_hint(
                "`det experiment list-trials EXPERIMENT` shows the trials of an experiment",
            ),
            Self::Task(_) => error.with_hint(
                "`det task list --all` shows the tasks that run, wait or are paused, and generic ones that ended in the last day",
            ),
        }
    }

    /// The command that prints these logs.
    fn command(&self) -> String {
        match self {
            Self::Trial(id) => format!("det trial logs -f {id}"),
            Self::Task(id) => format!("det task logs -f {id}"),
        }
    }
}

/// Prints logs. A follower survives a restart of the master: no line is lost, none printed twice.
pub(crate) async fn print(
    client: &Client,
    source: &LogSource,
    args: &LogArgs,
) -> Result<(), CliError> {
    print_until_end(client, source, args).await.map(drop)
}

/// The same, for a caller that has more to print: returns the message of the last line that was printed, if any was.
pub(crate) async fn print_until_end(
    client: &Client,
    source: &LogSource,
    args: &LogArgs,
) -> Result<Option<String>, CliError> {
    let mut follower = Follower::new(client, source, args);
    if args.tail.is_some() {
        let tail = LogArgs {
            follow: false,
            ..args.clone()
        };
        // The last lines come newest first.
        let mut records = Vec::new();
        let mut stream = client
            .stream(&source.path(), &tail.query())
            .await
            .map_err(|error| source.refusal(error))?;
        while let Some(record) = stream.next().await? {
            records.push(record);
        }
        records
            .iter()
            .rev()
            .try_for_each(|record| print_record(record, args.json))?;
        if !args.follow {
            note_reasons(client, source, args, !records.is_empty()).await?;
            return Ok(records.first().map(|last| text(last, "message")));
        }
        follower.goes_on_after(records.into_iter().next());
    }
    loop {
        match follower.next(args.follow).await {
            Ok(Some(record)) => print_record(&record, args.json)?,
            Ok(None) => break,
            Err(error) if args.follow && error.is_passing() => {
                return Err(CliError::lost(error).with_hint(format!(
                    "{} goes on; follow it with `{}` when the master is back",
                    source.noun(),
                    source.command()
                )));
            }
            Err(error) => return Err(source.refusal(error)),
        }
    }
    note_reasons(client, source, args, follower.printed > 0).await?;
    if args.follow && lives(client, source).await {
        output::note(format_args!(
            "the log stream has ended; `{}` opens it again",
            source.command()
        ));
    }
    Ok(follower.last.as_ref().map(|last| text(last, "message")))
}

/// Whether there may be more to come of what a log is of. Where that cannot be found out, nothing is reported.
async fn lives(client: &Client, source: &LogSource) -> bool {
    let task = match source {
        LogSource::Task(id) => Ok(Some(id.clone())),
        LogSource::Trial(id) => tasks_of(client, *id).await.map(|mut tasks| tasks.pop()),
    };
    let Ok(Some(task)) = task else {
        return false;
    };
    let answer = client.get(&api_path(["tasks", &task]), &Query::new()).await;
    answer.is_ok_and(|answer| answer["task"]["endTime"].is_null())
}

/// Prints the lines of a log to standard error as they come, until it ends or cannot be read: for what waits, and whose own
/// outcome is noticed elsewhere. A line of the master about the end that only repeats the task's last one, with more before
/// it, is left out; `last` is what the last line that was printed has been logged with.
pub(crate) async fn note_all(client: &Client, source: &LogSource, last: &RefCell<String>) {
    let args = LogArgs::following();
    let mut follower = Follower::new(client, source, &args);
    while let Ok(Some(record)) = follower.next(true).await {
        let logged = text(&record, "log").trim().to_owned();
        let is_masters = text(&record, "source") == "master";
        if !(is_masters && repeats(&logged, &last.borrow())) {
            output::log_note(text(&record, "message").trim_end_matches('\n'));
            last.replace(logged);
        }
    }
}

/// Whether a line ends with what the one before it was.
fn repeats(line: &str, before: &str) -> bool {
    !before.is_empty() && line.len() > before.len() && line.ends_with(before)
}

/// Prints why there are no lines, or no earlier ones: they were deleted, or a filter matches none.
async fn note_reasons(
    client: &Client,
    source: &LogSource,
    args: &LogArgs,
    printed: bool,
) -> Result<(), CliError> {
    note_deletions(client, source, printed).await?;
    if !printed {
        fields::note_missing(client, source, args).await?;
    }
    Ok(())
}

/// Prints when the logs were deleted, if they were: all of them where nothing was printed, else those of earlier tasks of
/// a trial that was continued.
async fn note_deletions(
    client: &Client,
    source: &LogSource,
    printed: bool,
) -> Result<(), CliError> {
    let noted = match (source, printed) {
        (LogSource::Task(_), true) => return Ok(()),
        (LogSource::Task(id), false) => {
            note_tasks(client, &format!("task {id}"), std::slice::from_ref(id)).await
        }
        (LogSource::Trial(id), _) => note_trial(client, *id, printed).await,
    };
    match noted {
        // The logs themselves were printed.
        Err(_) if printed => Ok(()),
        noted => Ok(noted?),
    }
}

async fn note_trial(client: &Client, id: TrialId, printed: bool) -> Result<(), ClientError> {
    let mut tasks = tasks_of(client, id).await?;
    if printed {
        // What was printed is of the last one at least.
        tasks.pop();
        return note_tasks(client, &format!("earlier runs of trial {id}"), &tasks).await;
    }
    note_tasks(client, &format!("trial {id}"), &tasks).await
}

/// The tasks of a trial, the last one at the end.
async fn tasks_of(client: &Client, id: TrialId) -> Result<Vec<String>, ClientError> {
    let path = api_path(["trials", &id.to_string()]);
    let answer = client.get(&path, &Query::new()).await?;
    Ok(items(&answer["trial"]["taskIds"]).map(plain).collect())
}

/// Prints when the last of these tasks' logs that were deleted were.
async fn note_tasks(client: &Client, what: &str, tasks: &[String]) -> Result<(), ClientError> {
    for task in tasks.iter().rev() {
        let answer = client
            .get(&api_path(["tasks", task]), &Query::new())
            .await?;
        let when = time(&answer["task"], "logsDeletedTime");
        if !when.is_empty() {
            output::note(format_args!(
                "the logs of {what} were deleted at {when}: their retention time had passed"
            ));
            break;
        }
    }
    Ok(())
}

fn print_record(record: &Value, json: bool) -> Result<(), CliError> {
    if json {
        output::json_line(record)
    } else {
        // The message carries its own line end.
        output::log(&text(record, "message"))
    }
}

struct Follower<'a> {
    client: &'a Client,
    source: &'a LogSource,
    args: &'a LogArgs,
    /// Whether the first lines were left out: a stream then begins shortly before the last line that was printed.
    from_tail: bool,
    /// How many records were returned. Logs grow at their end, so a stream that is opened again repeats these first.
    printed: u64,
    /// The last of them. It is repeated earlier when the log of an earlier task was deleted meanwhile.
    last: Option<Value>,
    /// A record that was read and is the next one.
    pending: Option<Value>,
    stream: Option<LineStream>,
}

impl<'a> Follower<'a> {
    fn new(client: &'a Client, source: &'a LogSource, args: &'a LogArgs) -> Self {
        Self {
            client,
            source,
            args,
            from_tail: false,
            printed: 0,
            last: None,
            pending: None,
            stream: None,
        }
    }

    /// Leaves out what comes before this record, and the record; `None` = there were none yet.
    fn goes_on_after(&mut self, last: Option<Value>) {
        self.from_tail = last.is_some();
        self.printed = u64::from(self.from_tail);
        self.last = last;
    }

    /// Opens a stream, and passes over what was printed of it.
    async fn open(&mut self) -> Result<Option<LineStream>, ClientError> {
        let path = self.source.path();
        if !self.from_tail {
            let query = self.args.query();
            let mut stream = self.client.stream(&path, &query).await?;
            for _ in 0..self.printed {
                match stream.next().await? {
                    None => return Ok(None),
                    repeated if repeated == self.last => break,
                    Some(_) => {}
                }
            }
            return Ok(Some(stream));
        }
        let at = |record: &Value| record["timestamp"].as_str()?.parse::<Timestamp>().ok();
        let known = self.last.as_ref().and_then(at);
        let since = known.and_then(|known| known.checked_sub(CLOCKS_DIFFER).ok());
        let until = known.and_then(|known| known.checked_add(CLOCKS_DIFFER).ok());
        let query = self.args.from(since).query();
        let mut stream = self.client.stream(&path, &query).await?;
        loop {
            match stream.next().await? {
                None => return Ok(None),
                repeated if repeated == self.last => break,
                // The last one is not there any more.
                Some(record) if at(&record) > until => {
                    self.pending = Some(record);
                    break;
                }
                Some(_) => {}
            }
        }
        Ok(Some(stream))
    }

    async fn next(&mut self, again: bool) -> Result<Option<Value>, ClientError> {
        let mut lost_at: Option<Instant> = None;
        loop {
            let error = match self.try_next().await {
                Ok(record) => {
                    if lost_at.is_some() {
                        output::note("the master is back");
                    }
                    return Ok(record);
                }
                Err(error) => error,
            };
            self.stream = None;
            let passing = error.is_passing();
            let since = *lost_at.get_or_insert_with(|| {
                if again && passing {
                    output::note(format_args!("{error}; trying again"));
                }
                Instant::now()
            });
            if !again || !passing || since.elapsed() > RETRY_LIMIT {
                return Err(error);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    async fn try_next(&mut self) -> Result<Option<Value>, ClientError> {
        if self.stream.is_none() {
            self.stream = self.open().await?;
        }
        let Some(stream) = &mut self.stream else {
            return Ok(None);
        };
        let record = match self.pending.take() {
            Some(record) => Some(record),
            None => stream.next().await?,
        };
        if record.is_some() {
            self.printed += 1;
            self.last.clone_from(&record);
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(args: &LogArgs) -> Vec<String> {
        args.query()
            .pairs()
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    #[test]
    fn a_level_means_it_and_all_above() {
        let args = LogArgs {
            level: Some(Level::Error),
            ..LogArgs::default()
        };
        assert_eq!(
            pairs(&args),
            [
                "follow=false",
                "levels=LOG_LEVEL_ERROR",
                "levels=LOG_LEVEL_CRITICAL"
            ]
        );
    }

    #[test]
    fn a_text_is_searched_as_it_is_unless_it_is_a_pattern() {
        let searching = |regex| LogArgs {
            search: Some("loss: [0-9]".to_owned()),
            regex,
            ..LogArgs::default()
        };
        assert_eq!(
            pairs(&searching(false)),
            ["follow=false", "searchText=loss: [0-9]"]
        );
        assert_eq!(
            pairs(&searching(true)),
            ["follow=false", "searchText=loss: [0-9]", "enableRegex=true"]
        );
    }

    #[test]
    fn the_last_lines_are_asked_for_backwards() {
        let args = LogArgs {
            tail: Some(5),
            rank_ids: vec![0, -1],
            ..LogArgs::default()
        };
        assert_eq!(
            pairs(&args),
            [
                "follow=false",
                "limit=5",
                "orderBy=ORDER_BY_DESC",
                "rankIds=0",
                "rankIds=-1"
            ]
        );
    }
}
