//! Log lines of tasks, stored as chunks.

mod lines;
pub mod retention;

use det_ids::{
    AgentId, AllocationId, ContainerId, LogLevel, LogLineId, LogSource, LogStream, SpoolId, TaskId,
    Word,
};
use memchr::memmem::Finder;

use crate::chunk::unpacked_size;
use crate::unit::{Line, save_rows};
use crate::{Conn, StoreError};

pub use lines::{Origin, Packer};

/// One line as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogLine {
    /// When it was printed, microseconds.
    pub at: i64,
    /// Text with exactly one line end.
    pub log: String,
    /// How much it matters, if known.
    pub level: Option<LogLevel>,
    /// Stream that it was written to; `None` = not known.
    pub stdtype: Option<Word<LogStream>>,
    /// Which program wrote it, if known.
    pub source: Option<Word<LogSource>>,
    /// Rank of a worker process.
    pub rank_id: Option<i64>,
    /// Allocation that printed it; `None` = not known.
    pub allocation_id: Option<AllocationId>,
    /// Container that printed it; `None` = not known.
    pub container_id: Option<ContainerId>,
    /// Agent that the container ran on; `None` = not known.
    pub agent_id: Option<AgentId>,
}

/// A stored chunk of lines.
#[derive(Debug, Clone, crate::Row)]
pub struct ChunkRow {
    /// The task whose lines they are.
    pub task_id: TaskId,
    /// Id of the first line in it.
    pub first_line: LogLineId,
    /// Number of lines in it.
    pub lines: i64,
    /// The [`LogLine`]s in order, as one compressed value.
    pub data: Vec<u8>,
}

impl ChunkRow {
    /// How many bytes the lines take once they are unpacked, about.
    pub fn unpacked_size(&self) -> usize {
        unpacked_size(&self.data)
    }

    /// Id of the last line in it.
    pub fn last_line(&self) -> LogLineId {
        self.first_line.plus(self.lines - 1)
    }

    fn name_in(&self, error: StoreError) -> StoreError {
        error.in_row(|| {
            format!(
                "log lines {} and after of task {}",
                self.first_line, self.task_id
            )
        })
    }

    /// The lines with their ids.
    pub fn unpack(&self) -> Result<Vec<(LogLineId, LogLine)>, StoreError> {
        let lines = lines::unpack(&self.data).map_err(|error| self.name_in(error))?;
        let ids = (0..).map(|place| self.first_line.plus(place));
        Ok(ids.zip(lines).collect())
    }
}

/// A text to look for in chunks, in any case, before their lines are read one by one.
#[derive(Debug, Clone)]
pub struct Needle {
    /// A part of the text as it is spelled inside a chunk, in lower case; `None` = no part of it helps.
    part: Option<Finder<'static>>,
    /// Whether letters outside ASCII become one of the part's letters in lower case.
    foreign: bool,
}

/// What becomes an ASCII letter in lower case: the Kelvin sign, and the dotted capital I.
const FOREIGN: [&str; 2] = ["\u{212a}", "\u{130}"];

impl Needle {
    /// What is looked for in chunks to find a text, which must be in lower case.
    pub fn new(text: &str) -> Self {
        // Letters outside ASCII have other bytes in the other case: the longest part without any is looked for.
        let part = text
            .split(|c: char| !c.is_ascii())
            .max_by_key(|part| part.len())
            .filter(|part| !part.is_empty());
        Self {
            foreign: part.is_some_and(|p| p.contains(['k', 'i'])),
            part: part.map(|part| Finder::new(part.as_bytes()).into_owned()),
        }
    }
}

impl ChunkRow {
    /// The lines that may have the text, with their ids: all that do are among them.
    pub fn candidates(&self, needle: &Needle) -> Result<Vec<(LogLineId, LogLine)>, StoreError> {
        let Some(part) = &needle.part else {
            return self.unpack();
        };
        let found = lines::unpack_where(&self.data, |texts| {
            let hidden = needle.foreign
                && !texts.is_ascii()
                && FOREIGN
                    .iter()
                    .any(|c| memchr::memmem::find(texts, c.as_bytes()).is_some());
            (!hidden).then(|| (part, texts.to_ascii_lowercase()))
        });
        let found = found.map_err(|error| self.name_in(error))?;
        Ok(found
            .into_iter()
            .map(|(place, line)| (self.first_line.plus(place), line))
            .collect())
    }
}

/// Lines packed for storing, so that the writer need not spend its time on it: as many chunks as it takes to keep each
/// small.
#[derive(Debug, Clone)]
pub struct PackedLines {
    chunks: Vec<Chunk>,
}

/// Lines that are stored together.
#[derive(Debug, Clone)]
struct Chunk {
    count: i64,
    first_at: i64,
    last_at: i64,
    data: Vec<u8>,
}

/// A chunk with its place in a task's log.
pub(crate) struct NewChunk<'a> {
    task_id: &'a TaskId,
    first_line: LogLineId,
    chunk: &'a Chunk,
}

impl PackedLines {
    /// What is stored of each chunk.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().map(|chunk| chunk.data.as_slice())
    }

    /// Number of lines in all chunks.
    pub fn count(&self) -> i64 {
        self.chunks.iter().map(|chunk| chunk.count).sum()
    }

    /// The lines of all chunks in order. An error = a chunk is damaged.
    pub fn unpack(&self) -> Result<Vec<LogLine>, StoreError> {
        let mut all = Vec::new();
        for chunk in &self.chunks {
            all.extend(lines::unpack(&chunk.data)?);
        }
        Ok(all)
    }

    /// Bytes that they take once they are unpacked: few stored ones may be many.
    pub fn unpacked_bytes(&self) -> usize {
        let chunks = self.chunks.iter();
        chunks.map(|chunk| unpacked_size(&chunk.data)).sum()
    }

    /// Whether `is_match` returns `true` for the texts of any of the chunks, one line behind the other.
    pub fn any_text(&self, mut is_match: impl FnMut(&[u8]) -> bool) -> Result<bool, StoreError> {
        for chunk in &self.chunks {
            if lines::with_texts(&chunk.data, &mut is_match)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The chunks at their places in a task's log, in which the last of these lines is `last`.
    pub(crate) fn placed<'a>(
        &'a self,
        task_id: &'a TaskId,
        last: LogLineId,
    ) -> impl Iterator<Item = NewChunk<'a>> {
        let mut first_line = last.plus(1 - self.count());
        self.chunks.iter().map(move |chunk| {
            let placed = NewChunk {
                task_id,
                first_line,
                chunk,
            };
            first_line = first_line.plus(chunk.count);
            placed
        })
    }

    /// The same without the first `known` lines.
    pub fn after(&self, known: i64) -> Result<Self, StoreError> {
        let lines = self.unpack()?;
        let known = usize::try_from(known).unwrap_or(0).min(lines.len());
        pack(&lines[known..])
    }
}

/// Packs lines into chunks, in their order.
pub fn pack(lines: &[LogLine]) -> Result<PackedLines, StoreError> {
    let mut packer = Packer::default();
    for line in lines {
        packer.push(
            line.at,
            &line.log,
            &Origin {
                level: line.level,
                stdtype: line.stdtype.as_ref().map(Word::as_str),
                source: line.source.as_ref().map(Word::as_str),
                rank_id: line.rank_id,
                allocation_id: line.allocation_id.as_ref().map(AllocationId::as_str),
                container_id: line.container_id.as_ref().map(ContainerId::as_str),
                agent_id: line.agent_id.as_ref().map(AgentId::as_str),
            },
        );
    }
    packer.finish()
}

/// Appends a line to a task's log, if the task exists. Lines of one transaction are stored together.
pub fn append_line(conn: &mut Conn<'_>, task_id: &TaskId, line: LogLine) -> Result<(), StoreError> {
    let task_id = task_id.clone();
    conn.writing()?.lines.push(Line { task_id, line });
    Ok(())
}

/// Writes new chunks of any tasks.
pub(crate) async fn save_chunks(
    conn: &mut Conn<'_>,
    rows: &[NewChunk<'_>],
) -> Result<(), StoreError> {
    save_rows!(
        conn,
        rows,
        "INSERT INTO log_chunks",
        (
            task_id: "text" = |row| row.task_id,
            first_line: "bigint" = |row| row.first_line,
            lines: "bigint" = |row| row.chunk.count,
            first_at: "bigint" = |row| row.chunk.first_at,
            last_at: "bigint" = |row| row.chunk.last_at,
            data: "bytea" = |row| row.chunk.data.as_slice(),
        ),
        ""
    );
    Ok(())
}

/// Appends lines to a task's log. Lines of an unknown task are refused with `false`.
pub async fn append(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
    lines: &PackedLines,
) -> Result<bool, StoreError> {
    let count = lines.count();
    if count == 0 {
        return Ok(true);
    }
    // Lines that the master has added before come before these.
    if conn
        .unit
        .as_ref()
        .is_some_and(|unit| unit.lines.wait_for(task_id))
    {
        conn.flush().await?;
    }
    let Some(last) = crate::allocations::count_lines(conn, task_id, count).await? else {
        return Ok(false);
    };
    let chunks: Vec<NewChunk<'_>> = lines.placed(task_id, last).collect();
    save_chunks(conn, &chunks).await?;
    Ok(true)
}

/// How many of the lines from sequence number `first` are already stored, and notes that all `count` of them are now.
/// A spool's first number is 1.
pub async fn advance_spool(
    conn: &mut Conn<'_>,
    spool_id: &SpoolId,
    task_id: &TaskId,
    first: i64,
    count: i64,
) -> Result<i64, StoreError> {
    let next = fetch_optional!(
        conn,
        (i64,),
        "SELECT next_sequence FROM log_spools WHERE spool_id = $1",
        spool_id
    )?
    .map_or(1, |(n,)| n);
    let end = first.saturating_add(count);
    if end > next {
        execute!(
            conn,
            "INSERT INTO log_spools (spool_id, task_id, next_sequence) VALUES ($1, $2, $3) \
             ON CONFLICT (spool_id) DO UPDATE SET next_sequence = excluded.next_sequence",
            spool_id,
            task_id,
            end
        )?;
    }
    Ok((next - first).clamp(0, count))
}

/// The statement of [`chunks_after`], also for the test of query plans.
pub(crate) const AFTER: &str = "SELECT task_id, first_line, lines, data FROM log_chunks WHERE task_id = $1 AND first_line >= \
     COALESCE((SELECT MAX(first_line) FROM log_chunks WHERE task_id = $1 AND first_line <= $2), 0) \
     AND first_line + lines > $2 ORDER BY first_line LIMIT $3";
/// The statement of [`chunks_before`], also for the test of query plans.
pub(crate) const BEFORE: &str = "SELECT task_id, first_line, lines, data FROM log_chunks WHERE task_id = $1 \
     AND first_line < $2 ORDER BY first_line DESC LIMIT $3";

/// A page of a task's chunks that hold lines after `after`, oldest first.
pub async fn chunks_after(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
    after: LogLineId,
    limit: i64,
) -> Result<Vec<ChunkRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        ChunkRow,
        AFTER,
        task_id,
        after.plus(1),
        limit
    )?)
}

/// A page of a task's chunks that hold lines before `before`, newest first.
pub async fn chunks_before(
    conn: &mut Conn<'_>,
    task_id: &TaskId,
    before: LogLineId,
    limit: i64,
) -> Result<Vec<ChunkRow>, StoreError> {
    Ok(fetch_all!(conn, ChunkRow, BEFORE, task_id, before, limit)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(texts: &[&str]) -> ChunkRow {
        let lines: Vec<LogLine> = texts
            .iter()
            .map(|text| LogLine {
                log: format!("{text}\n"),
                source: Some(LogSource::Task.into()),
                ..LogLine::default()
            })
            .collect();
        ChunkRow {
            task_id: "t".into(),
            first_line: LogLineId(10),
            lines: i64::try_from(lines.len()).unwrap(),
            data: pack(&lines).unwrap().chunks().next().unwrap().to_vec(),
        }
    }

    fn found(chunk: &ChunkRow, text: &str) -> Vec<i64> {
        let lines = chunk.candidates(&Needle::new(text)).unwrap();
        lines.into_iter().map(|(id, _)| id.0).collect()
    }

    #[test]
    fn an_error_names_the_task_and_the_lines_that_cannot_be_read() {
        let mut damaged = chunk(&["a"]);
        damaged.data.truncate(3);
        let all = damaged.unpack().map(|_| ());
        let some = damaged.candidates(&Needle::new("a")).map(|_| ());
        for error in [all, some].map(Result::unwrap_err) {
            let text = error.to_string();
            assert!(
                text.starts_with(
                    "stored data of log lines 10 and after of task t cannot be read: "
                ),
                "{text}"
            );
        }
    }

    #[test]
    fn lines_with_the_text_are_candidates_whatever_its_case() {
        let chunk = chunk(&[
            "first",
            "A Loss of 0.5",
            "loss loss",
            "print \"hi\\\"",
            "last",
        ]);
        assert_eq!(found(&chunk, "loss"), [11, 12]);
        assert_eq!(found(&chunk, "\"hi\\\""), [13]);
        assert_eq!(found(&chunk, "last"), [14]);
        assert!(found(&chunk, "nothing of that").is_empty());
    }

    #[test]
    fn letters_outside_ascii_hide_nothing() {
        let chunk = chunk(&["GR\u{d6}SSE", "300 \u{212a}", "\u{d6}", "plain"]);
        assert!(found(&chunk, "gr\u{f6}sse").contains(&10));
        assert!(found(&chunk, "300 k").contains(&11));
        assert!(found(&chunk, "\u{f6}").contains(&12));
    }
}
