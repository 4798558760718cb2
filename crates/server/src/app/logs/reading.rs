//! Reading task logs: forwards, backwards, following, and looking for a text in them.
//!
//! Chunks are read by the page and given on as small messages. A reader that takes its time costs next to no memory:
//! while it makes others wait nothing is held for it but its position, and what comes next is read again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use det_ids::{
    AgentId, AllocationId, ContainerId, LogLevel, LogLineId, LogSource, LogStream, TaskId, UserId,
    Word,
};
use det_store::logs::{self, ChunkRow, LogLine, Needle};
use det_store::{Store, StoreError, allocations};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::app::logs::Logs;
use crate::error::{AppError, AppResult};
use crate::hub::Topic;

/// What to leave out when reading. Values of one filter are alternatives; filters add up.
#[derive(Debug, Clone, Default)]
pub struct LogFilter {
    /// Only lines of these allocations; empty = of all.
    pub allocation_ids: Vec<AllocationId>,
    /// Only lines from these agents; empty = from all.
    pub agent_ids: Vec<AgentId>,
    /// Only lines of these containers; empty = of all.
    pub container_ids: Vec<ContainerId>,
    /// Only these ranks; -1 = lines without a rank.
    pub rank_ids: Vec<i64>,
    /// Only these levels; `None` = lines without one.
    pub levels: Vec<Option<LogLevel>>,
    /// Only lines of these streams; empty = of all.
    pub stdtypes: Vec<Word<LogStream>>,
    /// Only lines that these programs wrote; empty = of all.
    pub sources: Vec<Word<LogSource>>,
    /// Only lines printed at this time or before, microseconds; `None` = any time.
    pub before: Option<i64>,
    /// Only lines printed after this time, microseconds; `None` = any time.
    pub after: Option<i64>,
    /// Only lines with this text.
    pub search: Option<Search>,
}

/// Bytes of a line that a regular expression is looked for in: it can take long.
pub const MOST_SEARCHED: usize = 16 << 10;

/// How a text is looked for.
#[derive(Debug, Clone)]
pub enum Search {
    /// Anywhere in the line, any case.
    Substring {
        /// The text that is looked for, in lower case.
        text: String,
        /// The same, to be looked for in whole chunks.
        needle: Box<Needle>,
    },
    /// A regular expression, in the first [`MOST_SEARCHED`] bytes of a line.
    Regex(regex::Regex),
}

impl Search {
    /// For a text in any case.
    pub fn substring(text: &str) -> Self {
        let text = text.to_lowercase();
        Self::Substring {
            needle: Box::new(Needle::new(&text)),
            text,
        }
    }
}

/// Whether a value is among those wanted; without any, all are.
fn any<W: PartialEq<V>, V: ?Sized>(wanted: &[W], value: Option<&V>) -> bool {
    wanted.is_empty() || value.is_some_and(|value| wanted.iter().any(|wanted| wanted == value))
}

impl LogFilter {
    /// Whether the line is wanted.
    pub fn wants(&self, line: &LogLine) -> bool {
        any(&self.allocation_ids, line.allocation_id.as_ref())
            && any(&self.agent_ids, line.agent_id.as_ref())
            && any(&self.container_ids, line.container_id.as_ref())
            && any(&self.stdtypes, line.stdtype.as_ref())
            && any(&self.sources, line.source.as_ref())
            && any(&self.levels, Some(&line.level))
            && (self.rank_ids.is_empty() || self.rank_ids.contains(&line.rank_id.unwrap_or(-1)))
            && self.before.is_none_or(|t| line.at <= t)
            && self.after.is_none_or(|t| line.at > t)
            && match &self.search {
                None => true,
                Some(Search::Substring { text, .. }) => line.log.to_lowercase().contains(text),
                Some(Search::Regex(regex)) => {
                    let looked_at = line.log.floor_char_boundary(MOST_SEARCHED);
                    regex.is_match(&line.log[..looked_at])
                }
            }
    }

    /// Whether whole chunks may go by without a line that is wanted.
    fn is_selective(&self) -> bool {
        let unfiltered = [
            self.allocation_ids.is_empty(),
            self.agent_ids.is_empty(),
            self.container_ids.is_empty(),
            self.rank_ids.is_empty(),
            self.levels.is_empty(),
            self.stdtypes.is_empty(),
            self.sources.is_empty(),
        ];
        self.search.is_some()
            || self.before.is_some()
            || self.after.is_some()
            || unfiltered.contains(&false)
    }

    /// The wanted lines of a chunk.
    fn of(&self, chunk: &ChunkRow) -> Result<Vec<(LogLineId, LogLine)>, StoreError> {
        let mut lines = match &self.search {
            Some(Search::Substring { needle, .. }) => chunk.candidates(needle)?,
            _ => chunk.unpack()?,
        };
        lines.retain(|(_, line)| self.wants(line));
        Ok(lines)
    }
}

/// In which order and how much to read.
#[derive(Debug, Clone, Copy)]
pub enum Reading {
    /// Oldest first, at most `limit` lines.
    Forward {
        /// Most wanted lines that are given; `None` = all.
        limit: Option<usize>,
    },
    /// Newest first, at most `limit` lines.
    Backward {
        /// Most wanted lines that are given; `None` = all.
        limit: Option<usize>,
    },
    /// Oldest first, then new lines as they come, until the task has ended.
    Follow,
}

/// Most chunks of a page when whole chunks may go by.
const SEARCH_PAGE: i64 = 64;
/// Unpacked bytes of a page that is to be sent: pages grow while they are smaller.
const PAGE_BYTES: usize = 64 * 1024;
/// Most unpacked bytes of such a page, but for a single chunk.
const LARGEST_PAGE_BYTES: usize = 4 * PAGE_BYTES;
/// Most unpacked bytes of a page that is looked through, but for a single chunk.
const SEARCH_PAGE_BYTES: usize = 4 << 20;
/// Most chunks of such a page: a log that was printed line by line has a chunk for each.
const LARGEST_PAGE: i64 = 256;
/// Bytes after which a message of the stream is sent.
const MESSAGE: usize = 8 * 1024;
/// Lines are kept ready so long for a reader that has no capacity for them.
const HOLD: Duration = Duration::from_millis(50);

/// Takes lines, one after another, in the order of reading.
pub trait Sink: Send + Sync {
    /// Puts a line into the next message; whether the message is large enough to be sent.
    fn put(&mut self, task: &TaskId, id: LogLineId, line: LogLine) -> AppResult<bool>;
    /// The message so far, if there is something in it.
    fn take(&mut self) -> AppResult<Option<Bytes>>;
    /// The last message, when everything has been read.
    fn end(&mut self) -> AppResult<Option<Bytes>> {
        Ok(None)
    }
}

/// Makes messages of lines that are encoded one by one.
pub struct LineEncoder<E> {
    encode: E,
    message: BytesMut,
}

impl<E: Fn(&TaskId, LogLineId, LogLine) -> AppResult<Bytes> + Send + Sync> LineEncoder<E> {
    /// `encode` makes the bytes of a line: task, id, line.
    pub fn new(encode: E) -> Self {
        Self {
            encode,
            message: BytesMut::new(),
        }
    }
}

impl<E: Fn(&TaskId, LogLineId, LogLine) -> AppResult<Bytes> + Send + Sync> Sink for LineEncoder<E> {
    fn put(&mut self, task: &TaskId, id: LogLineId, line: LogLine) -> AppResult<bool> {
        self.message
            .extend_from_slice(&(self.encode)(task, id, line)?);
        Ok(self.message.len() >= MESSAGE)
    }

    fn take(&mut self) -> AppResult<Option<Bytes>> {
        Ok((!self.message.is_empty()).then(|| std::mem::take(&mut self.message).freeze()))
    }
}

impl Logs {
    /// Reads the log of `tasks` (in this order) through `sink` into `out`. Ends when all is sent, or when following, once
    /// the last task has ended and its last line is out; or when the receiver is gone.
    pub async fn read(
        &self,
        user: UserId,
        tasks: Vec<TaskId>,
        filter: LogFilter,
        reading: Reading,
        sink: impl Sink,
        out: mpsc::Sender<AppResult<Bytes>>,
    ) {
        let mut reader = Reader {
            logs: self,
            user,
            filter: Arc::new(filter),
            left: usize::MAX,
            sink,
            out: &out,
        };
        let outcome = match reading {
            Reading::Backward { limit } => {
                reader.left = limit.unwrap_or(usize::MAX);
                reader.backward(&tasks).await
            }
            Reading::Forward { limit } => {
                reader.left = limit.unwrap_or(usize::MAX);
                reader.all_forward(&tasks).await
            }
            Reading::Follow => reader.follow(&tasks).await,
        };
        let outcome = match outcome {
            Ok(()) => reader.end().await,
            stopped => stopped,
        };
        if let Err(Stop::Failed(error)) = outcome {
            // A receiver that has gone needs no error.
            let _ = out.send(Err(error)).await;
        }
    }

    /// Whether nothing can be added to the task's log any more: it has ended. An allocation ends only when its agent
    /// has handed over the logs, so a task's end comes after its last line.
    async fn is_complete(&self, task_id: &TaskId) -> Result<bool, Stop> {
        let mut conn = self.context.store.read().await?;
        let task = allocations::find_task(&mut conn.conn(), task_id).await?;
        Ok(task.is_none_or(|t| t.ended_at.is_some()))
    }
}

struct Reader<'a, S> {
    logs: &'a Logs,
    /// The user who reads the log.
    user: UserId,
    filter: Arc<LogFilter>,
    /// Lines still to be given.
    left: usize,
    sink: S,
    out: &'a mpsc::Sender<AppResult<Bytes>>,
}

/// How giving on a page ended.
enum PageEnd {
    /// All of it is out, or on its way.
    All,
    /// The reader has no capacity: what comes after this line is to be read again.
    Until(LogLineId),
}

impl<S: Sink> Reader<'_, S> {
    async fn follow(&mut self, tasks: &[TaskId]) -> Result<(), Stop> {
        let Some((last, earlier)) = tasks.split_last() else {
            return Ok(());
        };
        self.all_forward(earlier).await?;
        let mut subscription = self
            .logs
            .context
            .hub
            .subscribe(Topic::TaskLog(last.clone()));
        let mut seen = LogLineId::default();
        loop {
            let ended = self.logs.is_complete(last).await?;
            self.forward(last, &mut seen).await?;
            if ended {
                return Ok(());
            }
            tokio::select! {
                () = subscription.changed() => {}
                () = self.out.closed() => return Err(Stop::Gone),
            }
        }
    }

    async fn all_forward(&mut self, tasks: &[TaskId]) -> Result<(), Stop> {
        for task in tasks {
            self.forward(task, &mut LogLineId::default()).await?;
        }
        Ok(())
    }

    /// Reads what comes after line `seen`.
    async fn forward(&mut self, task: &TaskId, seen: &mut LogLineId) -> Result<(), Stop> {
        let mut size = PageSize::new(&self.filter);
        let store = &self.logs.context.store;
        let mut ahead: Option<Vec<ChunkRow>> = None;
        while self.left > 0 {
            let mut chunks = match ahead.take() {
                Some(chunks) => chunks,
                None => after(store, task, *seen, size.limit).await?,
            };
            size.adapt(&mut chunks);
            let Some(newest) = chunks.last() else { break };
            let end = newest.last_line();
            // While a page is looked through, the next one is read.
            let lines = if self.filter.is_selective() {
                let (lines, next) =
                    tokio::join!(self.wanted(chunks), after(store, task, end, size.limit));
                ahead = Some(next?);
                lines?
            } else {
                self.wanted(chunks).await?
            };
            let known = *seen;
            let lines = lines.into_iter().filter(|(id, _)| *id > known);
            match self.give(task, lines).await? {
                PageEnd::All => *seen = end,
                PageEnd::Until(id) => {
                    *seen = id.max(known);
                    ahead = None;
                    self.wait_for_capacity().await?;
                }
            }
        }
        Ok(())
    }

    async fn backward(&mut self, tasks: &[TaskId]) -> Result<(), Stop> {
        for task in tasks.iter().rev() {
            let mut size = PageSize::new(&self.filter);
            let store = &self.logs.context.store;
            let mut before = LogLineId::END;
            while self.left > 0 {
                let mut chunks = earlier(store, task, before, size.limit).await?;
                size.adapt(&mut chunks);
                let Some(oldest) = chunks.last() else { break };
                let end = oldest.first_line;
                let mut lines = self.wanted(chunks).await?;
                // Chunks came newest first, and lines inside them oldest first.
                lines.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
                let known = before;
                let lines = lines.into_iter().filter(|(id, _)| *id < known);
                match self.give(task, lines).await? {
                    PageEnd::All => before = end,
                    PageEnd::Until(id) => {
                        before = id.min(known);
                        self.wait_for_capacity().await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The wanted lines of chunks, in their order; chunks that may go by are looked through on all cores.
    async fn wanted(&self, chunks: Vec<ChunkRow>) -> Result<Vec<(LogLineId, LogLine)>, Stop> {
        if matches!(self.filter.search, Some(Search::Regex(_))) {
            let mut lines = Vec::new();
            for chunk in chunks {
                let filter = self.filter.clone();
                let search = move || filter.of(&chunk);
                lines.extend(self.logs.pattern_work.run(self.user, search).await??);
            }
            return Ok(lines);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if !self.filter.is_selective() || chunks.len() < cores * 2 {
            let mut lines = Vec::new();
            for chunk in &chunks {
                lines.extend(self.filter.of(chunk)?);
            }
            return Ok(lines);
        }
        let part = chunks.len().div_ceil(cores);
        let mut chunks = chunks.into_iter();
        let mut looking = Vec::with_capacity(cores);
        loop {
            let some: Vec<ChunkRow> = chunks.by_ref().take(part).collect();
            if some.is_empty() {
                break;
            }
            let filter = self.filter.clone();
            looking.push(tokio::task::spawn_blocking(move || {
                let mut lines = Vec::new();
                for chunk in &some {
                    lines.extend(filter.of(chunk)?);
                }
                Ok::<_, StoreError>(lines)
            }));
        }
        let mut lines = Vec::new();
        for one in looking {
            lines.extend(one.await.map_err(AppError::internal)??);
        }
        Ok(lines)
    }

    /// Gives lines on as messages, as long as the reader has capacity for them.
    async fn give(
        &mut self,
        task: &TaskId,
        lines: impl Iterator<Item = (LogLineId, LogLine)>,
    ) -> Result<PageEnd, Stop> {
        for (id, line) in lines {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            if self.sink.put(task, id, line)? {
                self.send().await?;
                if !self.has_capacity().await? {
                    return Ok(PageEnd::Until(id));
                }
            }
        }
        self.send().await?;
        Ok(PageEnd::All)
    }

    async fn send(&mut self) -> Result<(), Stop> {
        match self.sink.take()? {
            Some(message) => self.give_on(message).await,
            None => Ok(()),
        }
    }

    async fn end(&mut self) -> Result<(), Stop> {
        match self.sink.end()? {
            Some(message) => self.give_on(message).await,
            None => Ok(()),
        }
    }

    async fn give_on(&self, message: Bytes) -> Result<(), Stop> {
        self.out.send(Ok(message)).await.map_err(|_| Stop::Gone)
    }

    /// Whether the next message can be sent within a moment.
    async fn has_capacity(&self) -> Result<bool, Stop> {
        match self.out.try_reserve() {
            Ok(_) => return Ok(true),
            Err(TrySendError::Closed(())) => return Err(Stop::Gone),
            Err(TrySendError::Full(())) => {}
        }
        match tokio::time::timeout(HOLD, self.out.reserve()).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(_)) => Err(Stop::Gone),
            Err(_) => Ok(false),
        }
    }

    /// Waits until the reader has capacity again.
    async fn wait_for_capacity(&self) -> Result<(), Stop> {
        self.out.reserve().await.map(|_| ()).map_err(|_| Stop::Gone)
    }
}

/// How many chunks to read at once.
struct PageSize {
    limit: i64,
    /// Whether most lines may go by: pages become large, whatever is in them.
    selective: bool,
}

impl PageSize {
    fn new(filter: &LogFilter) -> Self {
        Self {
            limit: 1,
            selective: filter.is_selective(),
        }
    }

    /// Leaves out what would take too much memory unpacked, and adjusts the size of the next page. Many lines may pack to
    /// next to nothing, and there may be many readers.
    fn adapt(&mut self, chunks: &mut Vec<ChunkRow>) {
        let most = if self.selective {
            SEARCH_PAGE_BYTES
        } else {
            LARGEST_PAGE_BYTES
        };
        let mut bytes = 0;
        let fits = chunks
            .iter()
            .take_while(|chunk| {
                bytes += chunk.unpacked_size();
                bytes <= most
            })
            .count();
        chunks.truncate(fits.max(1));
        if self.selective {
            // What is wanted may be in the first chunk: then the others need not be read.
            self.limit = (self.limit * 4).min(SEARCH_PAGE);
        } else if bytes > PAGE_BYTES {
            self.limit = (self.limit / 2).max(1);
        } else if bytes < PAGE_BYTES / 4 {
            self.limit = (self.limit * 4).min(LARGEST_PAGE);
        }
    }
}

async fn after(
    store: &Store,
    task: &TaskId,
    seen: LogLineId,
    limit: i64,
) -> Result<Vec<ChunkRow>, StoreError> {
    let mut conn = store.read().await?;
    logs::chunks_after(&mut conn.conn(), task, seen, limit).await
}

async fn earlier(
    store: &Store,
    task: &TaskId,
    before: LogLineId,
    limit: i64,
) -> Result<Vec<ChunkRow>, StoreError> {
    let mut conn = store.read().await?;
    logs::chunks_before(&mut conn.conn(), task, before, limit).await
}

/// Why reading stopped before its end.
enum Stop {
    Gone,
    Failed(AppError),
}

impl<E: Into<AppError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Distinct values of a log.
#[derive(Debug, Clone, Default)]
pub struct LogFields {
    /// Ids of the allocations that its lines name.
    pub allocation_ids: BTreeSet<AllocationId>,
    /// Ids of the agents that its lines name.
    pub agent_ids: BTreeSet<AgentId>,
    /// Ids of the containers that its lines name.
    pub container_ids: BTreeSet<ContainerId>,
    /// Ranks that its lines name; lines without a rank add none.
    pub rank_ids: BTreeSet<i64>,
    /// Output streams that its lines name.
    pub stdtypes: BTreeSet<Word<LogStream>>,
    /// Sources that its lines name.
    pub sources: BTreeSet<Word<LogSource>>,
}

impl LogFields {
    /// Adds what can be filtered by in a line; whether any of it is new.
    pub fn add(&mut self, line: LogLine) -> bool {
        let new = [
            insert(&mut self.allocation_ids, line.allocation_id),
            insert(&mut self.agent_ids, line.agent_id),
            insert(&mut self.container_ids, line.container_id),
            insert(&mut self.rank_ids, line.rank_id),
            insert(&mut self.stdtypes, line.stdtype),
            insert(&mut self.sources, line.source),
        ];
        new.contains(&true)
    }
}

/// Adds a value that a line has; whether it is new.
fn insert<T: Ord>(known: &mut BTreeSet<T>, value: Option<T>) -> bool {
    value.is_some_and(|value| known.insert(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_of_anything_lets_chunks_go_by() {
        assert!(!LogFilter::default().is_selective());
        let ranks = LogFilter {
            rank_ids: vec![0],
            ..LogFilter::default()
        };
        assert!(ranks.is_selective());
        let text = LogFilter {
            search: Some(Search::substring("LOSS")),
            ..LogFilter::default()
        };
        assert!(text.is_selective());
        let line = LogLine {
            log: "the Loss\n".into(),
            ..LogLine::default()
        };
        assert!(text.wants(&line) && !ranks.wants(&line));
    }

    #[test]
    fn pages_of_small_chunks_grow_and_pages_of_large_ones_shrink() {
        let chunk = |bytes| ChunkRow {
            task_id: "t".into(),
            first_line: LogLineId(1),
            lines: 1,
            data: vec![0; bytes],
        };
        let mut size = PageSize::new(&LogFilter::default());
        for _ in 0..9 {
            size.adapt(&mut vec![chunk(100)]);
        }
        assert_eq!(size.limit, LARGEST_PAGE);
        size.adapt(&mut vec![chunk(PAGE_BYTES * 2)]);
        assert_eq!(size.limit, LARGEST_PAGE / 2);
    }

    #[test]
    fn a_search_begins_with_one_chunk_and_goes_on_with_many() {
        let chunk = || ChunkRow {
            task_id: "t".into(),
            first_line: LogLineId(1),
            lines: 1,
            data: vec![0; 100],
        };
        let mut size = PageSize::new(&LogFilter {
            rank_ids: vec![0],
            ..LogFilter::default()
        });
        let mut pages = Vec::new();
        for _ in 0..5 {
            pages.push(size.limit);
            size.adapt(&mut vec![chunk()]);
        }
        assert_eq!(pages, [1, 4, 16, SEARCH_PAGE, SEARCH_PAGE]);
    }

    #[test]
    fn a_page_that_would_unpack_to_too_much_is_cut() {
        // As long lines of one letter pack.
        let text = "x".repeat(LARGEST_PAGE_BYTES / 2);
        let line = LogLine {
            log: format!("{text}\n"),
            ..LogLine::default()
        };
        let packed = det_store::logs::pack(&[line]).unwrap();
        let chunk = |first_line| ChunkRow {
            task_id: "t".into(),
            first_line: LogLineId(first_line),
            lines: 1,
            data: packed.chunks().next().unwrap().to_vec(),
        };
        assert!(chunk(1).data.len() < 8 << 10, "it packs to little");
        let mut page: Vec<ChunkRow> = (1..=10).map(chunk).collect();
        let mut size = PageSize::new(&LogFilter::default());
        size.adapt(&mut page);
        assert_eq!(page.len(), 1);
        let mut large: Vec<ChunkRow> = (1..=200).map(chunk).collect();
        let mut search = PageSize::new(&LogFilter {
            search: Some(Search::substring("y")),
            ..LogFilter::default()
        });
        search.adapt(&mut large);
        assert!((2..200).contains(&large.len()), "{}", large.len());
    }
}
