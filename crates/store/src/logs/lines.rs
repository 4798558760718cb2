//! How the lines of a chunk are laid out in memory before they are packed.
//!
//! Most lines of a chunk come from the same place, so their origin is stored once for all of them. Then come, for
//! each line, its origin, its time since the line before, and its length; then all texts, one behind the other: a search
//! can run over them as over a file. Numbers are variable in length, seven bits a byte, lowest first.

use std::borrow::Cow;
use std::collections::HashMap;

use det_ids::{AgentId, AllocationId, ContainerId, LogLevel, LogSource, LogStream, LogWord, Word};
use memchr::memmem::Finder;
use serde::{Deserialize, Deserializer, Serialize};

use super::{Chunk, LogLine, PackedLines};
use crate::{StoreError, chunk};

/// Where a line comes from. Its ids are borrowed from the request, and therefore bare texts: tasks may print millions of
/// lines, and none of them is to be copied for it. [`LogLine`], which is read back, has them as ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Origin<'a> {
    /// How much the line matters; `None` = not known.
    #[serde(rename = "v", skip_serializing_if = "Option::is_none")]
    pub level: Option<LogLevel>,
    /// Name of the stream that it was written to; `None` = not known.
    #[serde(rename = "o", skip_serializing_if = "Option::is_none")]
    pub stdtype: Option<&'a str>,
    /// Which program wrote it; `None` = not known.
    #[serde(rename = "s", skip_serializing_if = "Option::is_none")]
    pub source: Option<&'a str>,
    /// Rank of the worker process that wrote it; `None` = not known.
    #[serde(rename = "r", skip_serializing_if = "Option::is_none")]
    pub rank_id: Option<i64>,
    /// Allocation that printed it; `None` = not known.
    #[serde(rename = "a", skip_serializing_if = "Option::is_none")]
    pub allocation_id: Option<&'a str>,
    /// Container that printed it; `None` = not known.
    #[serde(rename = "c", skip_serializing_if = "Option::is_none")]
    pub container_id: Option<&'a str>,
    /// Agent that the container ran on; `None` = not known.
    #[serde(rename = "g", skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<&'a str>,
}

/// [`Origin`] as it is read back.
#[derive(Debug, Clone, Default, Deserialize)]
struct StoredOrigin {
    #[serde(rename = "v", default, deserialize_with = "level")]
    level: Option<LogLevel>,
    #[serde(rename = "o", default, deserialize_with = "word")]
    stdtype: Option<Word<LogStream>>,
    #[serde(rename = "s", default, deserialize_with = "word")]
    source: Option<Word<LogSource>>,
    #[serde(rename = "r", default)]
    rank_id: Option<i64>,
    #[serde(rename = "a", default)]
    allocation_id: Option<AllocationId>,
    #[serde(rename = "c", default)]
    container_id: Option<ContainerId>,
    #[serde(rename = "g", default)]
    agent_id: Option<AgentId>,
}

/// A level by its name. Agents of earlier versions could send any text: a line with one of no meaning has no level, as it
/// was shown before.
fn level<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LogLevel>, D::Error> {
    let name = Option::<Cow<'de, str>>::deserialize(deserializer)?;
    Ok(name.and_then(|name| LogLevel::of_name(&name)))
}

fn word<'de, D, T>(deserializer: D) -> Result<Option<Word<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: LogWord,
{
    Ok(Option::<String>::deserialize(deserializer)?.map(Word::read))
}

/// Bytes of text after which a chunk is full. A reader unpacks a chunk at once, and there may be many readers. A single
/// line may be longer.
const CHUNK_TEXT: usize = 256 << 10;

/// Packs lines one by one.
#[derive(Debug, Default)]
pub struct Packer<'a> {
    full: Vec<Body<'a>>,
    body: Body<'a>,
}

/// The lines of a chunk that is being filled.
#[derive(Debug, Default)]
struct Body<'a> {
    count: usize,
    /// Lowest and highest time of the lines, microseconds; `None` = there is none yet.
    times: Option<(i64, i64)>,
    previous_at: i64,
    origins: Vec<Origin<'a>>,
    places: HashMap<Origin<'a>, usize>,
    columns: Vec<u8>,
    texts: Vec<u8>,
}

impl<'a> Packer<'a> {
    /// Adds a line; `log` has its line end already.
    pub fn push(&mut self, at: i64, log: &str, from: &Origin<'a>) {
        self.push_parts(at, [log], from);
    }

    /// Adds a line whose text comes in parts.
    pub fn push_parts<'t>(
        &mut self,
        at: i64,
        parts: impl IntoIterator<Item = &'t str>,
        from: &Origin<'a>,
    ) {
        if self.body.texts.len() >= CHUNK_TEXT {
            self.full.push(std::mem::take(&mut self.body));
        }
        self.body.push(at, parts, from);
    }

    /// Packs the lines that were added. `Err` = they cannot be compressed.
    pub fn finish(self) -> Result<PackedLines, StoreError> {
        let bodies = self.full.into_iter().chain([self.body]);
        let chunks = bodies.filter_map(Body::packed).collect::<Result<_, _>>()?;
        Ok(PackedLines { chunks })
    }
}

impl<'a> Body<'a> {
    fn push<'t>(&mut self, at: i64, parts: impl IntoIterator<Item = &'t str>, from: &Origin<'a>) {
        // Nearly always the origin is that of the line before, or the first one.
        let place = if self.origins.first() == Some(from) {
            0
        } else {
            *self.places.entry(*from).or_insert_with(|| {
                self.origins.push(*from);
                self.origins.len() - 1
            })
        };
        let before = self.texts.len();
        for part in parts {
            self.texts.extend_from_slice(part.as_bytes());
        }
        put_size(&mut self.columns, place);
        put_signed(&mut self.columns, at.wrapping_sub(self.previous_at));
        put_size(&mut self.columns, self.texts.len() - before);
        self.previous_at = at;
        self.times = Some(match self.times {
            None => (at, at),
            Some((first, last)) => (first.min(at), last.max(at)),
        });
        self.count += 1;
    }

    /// `None` = it has no lines.
    fn packed(self) -> Option<Result<Chunk, StoreError>> {
        let (first_at, last_at) = self.times?;
        Some(self.bytes().and_then(|bytes| {
            Ok(Chunk {
                count: i64::try_from(self.count).unwrap_or(i64::MAX),
                first_at,
                last_at,
                data: chunk::pack_bytes(&bytes)?,
            })
        }))
    }

    fn bytes(&self) -> Result<Vec<u8>, StoreError> {
        let origins = serde_json::to_vec(&self.origins).map_err(damaged)?;
        let mut bytes =
            Vec::with_capacity(32 + origins.len() + self.columns.len() + self.texts.len());
        put_size(&mut bytes, self.count);
        put_size(&mut bytes, origins.len());
        bytes.extend_from_slice(&origins);
        put_size(&mut bytes, self.columns.len());
        bytes.extend_from_slice(&self.columns);
        bytes.extend_from_slice(&self.texts);
        Ok(bytes)
    }
}

fn damaged(error: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt {
        what: "a chunk of log lines".into(),
        message: error.to_string(),
    }
}

/// Returns what `look` returns for all texts of a chunk, one behind the other.
pub(super) fn with_texts<T>(data: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<T, StoreError> {
    let bytes = chunk::unpack_bytes(data)?;
    let mut rest = Reader(&bytes);
    rest.size()?;
    for _ in ["origins", "columns"] {
        let length = rest.size()?;
        rest.take(length)?;
    }
    Ok(look(rest.0))
}

/// The lines of a chunk.
pub(super) fn unpack(data: &[u8]) -> Result<Vec<LogLine>, StoreError> {
    let lines = unpack_where(data, |_| None)?;
    Ok(lines.into_iter().map(|(_, line)| line).collect())
}

/// Some lines of a chunk with their places in it, from 0: those in whose texts something is found. `search` is shown all
/// texts one behind the other, and gives what to look for in which form of them, as long as they are; `None` = every line
/// is wanted.
pub(super) fn unpack_where<'f>(
    data: &[u8],
    search: impl FnOnce(&[u8]) -> Option<(&'f Finder<'static>, Vec<u8>)>,
) -> Result<Vec<(i64, LogLine)>, StoreError> {
    let bytes = chunk::unpack_bytes(data)?;
    let mut rest = Reader(&bytes);
    let count = rest.size()?;
    let length = rest.size()?;
    let origins: Vec<StoredOrigin> = serde_json::from_slice(rest.take(length)?).map_err(damaged)?;
    let length = rest.size()?;
    let mut columns = Reader(rest.take(length)?);
    let mut texts = rest;
    let search = search(texts.0);
    let find = |from: usize| {
        let (finder, texts) = search.as_ref()?;
        let at = texts.get(from..).and_then(|texts| finder.find(texts));
        Some(at.map_or(usize::MAX, |at| from + at))
    };
    let mut next = find(0);
    // Each line has at least three bytes of columns: a damaged count allocates no more than that.
    let most = if next.is_none() { length / 3 } else { 0 };
    let mut lines = Vec::with_capacity(count.min(most));
    let (mut at, mut end): (i64, usize) = (0, 0);
    for number in 0..count {
        let place = columns.size()?;
        at = at.wrapping_add(columns.signed()?);
        let length = columns.size()?;
        let text = texts.take(length)?;
        end += length;
        if let Some(found) = next {
            if found >= end {
                continue;
            }
            next = find(end);
        }
        let origin = origins
            .get(place)
            .ok_or_else(|| damaged(format!("there is no origin {place}")))?
            .clone();
        let line = LogLine {
            at,
            log: std::str::from_utf8(text).map_err(damaged)?.to_owned(),
            level: origin.level,
            stdtype: origin.stdtype,
            source: origin.source,
            rank_id: origin.rank_id,
            allocation_id: origin.allocation_id,
            container_id: origin.container_id,
            agent_id: origin.agent_id,
        };
        lines.push((i64::try_from(number).unwrap_or(i64::MAX), line));
    }
    Ok(lines)
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

fn put_size(bytes: &mut Vec<u8>, size: usize) {
    put(bytes, size as u64);
}

/// The sign goes to the lowest bit, so that small numbers of either sign are short.
fn put_signed(bytes: &mut Vec<u8>, number: i64) {
    put(bytes, ((number << 1) ^ (number >> 63)).cast_unsigned());
}

/// Reads from front to back; reading past the end is an error.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], StoreError> {
        let (head, rest) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| damaged("it ends too early"))?;
        self.0 = rest;
        Ok(head)
    }

    fn number(&mut self) -> Result<u64, StoreError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(damaged("a number in it is too long"))
    }

    fn size(&mut self) -> Result<usize, StoreError> {
        usize::try_from(self.number()?).map_err(damaged)
    }

    fn signed(&mut self) -> Result<i64, StoreError> {
        let number = self.number()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use det_ids::LogLineId;

    use super::*;
    use crate::logs::pack;

    fn lines(count: i64) -> Vec<LogLine> {
        (0..count)
            .map(|n| LogLine {
                at: [i64::MAX, 0, 1_700_000_000_000_000, -5, i64::MIN]
                    [usize::try_from(n % 5).unwrap()],
                log: format!("line {n} é\u{1F600}\nwith a break\n"),
                level: (n % 3 == 0).then_some(LogLevel::Info),
                stdtype: (n % 2 == 0).then(|| Word::read("pipe".into())),
                source: Some(LogSource::Task.into()),
                rank_id: (n % 4 > 0).then_some(n % 4 - 2),
                container_id: Some(format!("c{}", n % 2).into()),
                ..LogLine::default()
            })
            .collect()
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        for count in [0, 1, 5, 1000] {
            let lines = lines(count);
            assert_eq!(pack(&lines).unwrap().unpack().unwrap(), lines);
        }
    }

    #[test]
    fn many_bytes_are_many_chunks_and_long_lines_stay_whole() {
        let line = |length: usize| LogLine {
            log: format!("{}\n", "x".repeat(length)),
            ..LogLine::default()
        };
        let lines: Vec<LogLine> = [100_000; 9]
            .map(line)
            .into_iter()
            .chain([line(1 << 20)])
            .collect();
        let packed = pack(&lines).unwrap();
        let sizes: Vec<usize> = packed.chunks().map(chunk::unpacked_size).collect();
        assert_eq!(sizes.len(), 4, "{sizes:?}");
        assert!(
            sizes[..3].iter().all(|size| *size < 2 * CHUNK_TEXT),
            "{sizes:?}"
        );
        assert_eq!(packed.unpack().unwrap(), lines);
        assert_eq!(packed.count(), 10);
        let placed: Vec<(i64, i64)> = packed
            .placed(&"t".into(), LogLineId(110))
            .map(|new| (new.first_line.0, new.chunk.count))
            .collect();
        assert_eq!(placed, [(101, 3), (104, 3), (107, 3), (110, 1)]);
        assert_eq!(packed.after(4).unwrap().unpack().unwrap(), lines[4..]);
    }

    #[test]
    fn what_is_left_of_a_repeated_batch_is_its_end() {
        let lines = lines(20);
        let packed = pack(&lines).unwrap();
        for known in [0, 7, 20, 30] {
            let rest = packed.after(known).unwrap();
            let from = usize::try_from(known.min(20)).unwrap();
            assert_eq!(rest.unpack().unwrap(), lines[from..]);
            assert_eq!(rest.count(), 20 - known.min(20));
        }
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let whole = {
            let packed = pack(&lines(12)).unwrap();
            let data = packed.chunks().next().unwrap();
            chunk::unpack_bytes(data).unwrap().into_owned()
        };
        for length in 0..whole.len() {
            let cut = chunk::pack_bytes(&whole[..length]).unwrap();
            assert!(unpack(&cut).is_err(), "cut to {length}");
        }
        for place in 0..whole.len() {
            for byte in [0, 0x7f, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[place] = byte;
                // Whatever comes out, it comes out.
                let _ = unpack(&chunk::pack_bytes(&changed).unwrap());
            }
        }
    }
}
