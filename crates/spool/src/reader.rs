//! Reads records from a spool.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::frame::{self, FrameStart, HEADER_BYTES, MAX_PAYLOAD_BYTES};
use crate::plain::open_plain;
use crate::{Batch, Record, SpoolError, ack, segment};

/// Bytes read at once; at least the size of the largest frame.
const CHUNK_BYTES: usize = 2 << 20;
const _: () = assert!(CHUNK_BYTES >= HEADER_BYTES + MAX_PAYLOAD_BYTES);
/// Bytes read at first: most batches are a few lines.
const FIRST_CHUNK_BYTES: usize = 64 << 10;

/// Reads a spool from some record on, also while it is written.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    /// The sequence number of the record before the next.
    position: u64,
    current: Option<OpenSegment>,
    chunk: Vec<u8>,
    damaged: u64,
}

#[derive(Debug)]
struct OpenSegment {
    first: u64,
    path: PathBuf,
    file: File,
    offset: u64,
}

/// Why reading of a segment stopped.
enum StopReason {
    /// The batch is full, or the next record does not follow its last.
    BatchDone,
    /// There are no more whole frames.
    End,
    /// The bytes are not a frame.
    Damaged,
}

impl Reader {
    /// Reads the records that are not acknowledged. A missing directory has none.
    pub fn open(dir: &Path) -> Result<Self, SpoolError> {
        Ok(Self::after(dir, ack::acknowledged(dir)?))
    }

    /// Reads the records with sequence numbers above `sequence`.
    pub fn after(dir: &Path, sequence: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            position: sequence,
            current: None,
            chunk: Vec::new(),
            damaged: 0,
        }
    }

    /// How often the reader has skipped records because of damage.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// The next records in order, at most `max_records` and about `max_bytes`; `None` when there are none (yet).
    pub fn next_batch(
        &mut self,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Option<Batch>, SpoolError> {
        let position = self.position;
        let result = self.collect_records(max_records, max_bytes);
        if result.is_err() {
            // The next call collects again what was collected before the error.
            self.position = position;
            self.current = None;
        }
        result
    }

    fn collect_records(
        &mut self,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Option<Batch>, SpoolError> {
        let mut batch = Batch {
            first: 0,
            records: Vec::new(),
        };
        loop {
            let Some(mut open) = self.take_segment()? else {
                break;
            };
            let stop = self.read_segment(&mut open, &mut batch, max_records, max_bytes)?;
            let first = open.first;
            self.current = Some(open);
            match stop {
                StopReason::BatchDone => break,
                StopReason::End | StopReason::Damaged => {
                    // The end of a segment is final only if a later segment exists.
                    let Some(next) = self.segment_after(first)? else {
                        break;
                    };
                    self.damaged += u64::from(matches!(stop, StopReason::Damaged));
                    self.current = self.open_segment(next)?;
                    if self.current.is_none() {
                        break;
                    }
                }
            }
        }
        Ok((!batch.records.is_empty()).then_some(batch))
    }

    /// The segment to read next: the open one, or the last that begins at or before the next record, or the first.
    fn take_segment(&mut self) -> Result<Option<OpenSegment>, SpoolError> {
        if let Some(open) = self.current.take() {
            return Ok(Some(open));
        }
        let segments = segment::list(&self.dir)?;
        let wanted = self.position.saturating_add(1);
        let before = segments.iter().rev().find(|(first, _)| *first <= wanted);
        match before.or(segments.first()) {
            Some((first, _)) => self.open_segment(*first),
            None => Ok(None),
        }
    }

    fn segment_after(&self, first: u64) -> Result<Option<u64>, SpoolError> {
        let segments = segment::list(&self.dir)?;
        Ok(segments.iter().map(|s| s.0).find(|other| *other > first))
    }

    /// `None` when the segment has been removed, that is, acknowledged by another reader.
    fn open_segment(&self, first: u64) -> Result<Option<OpenSegment>, SpoolError> {
        let path = segment::path(&self.dir, first);
        match open_plain(&path) {
            Ok(file) => Ok(Some(OpenSegment {
                first,
                path,
                file,
                offset: 0,
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SpoolError::Read { path, source }),
        }
    }

    fn read_segment(
        &mut self,
        open: &mut OpenSegment,
        batch: &mut Batch,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<StopReason, SpoolError> {
        let mut bytes_taken = 0;
        let mut want = FIRST_CHUNK_BYTES;
        loop {
            self.chunk.resize(want, 0);
            let filled = read_at(&open.file, &mut self.chunk, open.offset).map_err(|source| {
                SpoolError::Read {
                    path: open.path.clone(),
                    source,
                }
            })?;
            let mut used = 0;
            loop {
                let rest = self.chunk.get(used..filled).unwrap_or_default();
                let (sequence, payload, bytes) = match frame::decode(rest) {
                    FrameStart::Frame {
                        sequence,
                        payload,
                        bytes,
                    } => (sequence, payload, bytes),
                    FrameStart::Incomplete => break,
                    FrameStart::Damaged => return Ok(StopReason::Damaged),
                };
                let follows = match batch.records.last() {
                    Some(_) => sequence == batch.last() + 1,
                    None => true,
                };
                let full = batch.records.len() >= max_records || bytes_taken >= max_bytes;
                if sequence > self.position && (full || !follows) {
                    return Ok(StopReason::BatchDone);
                }
                used += bytes;
                open.offset += bytes as u64;
                if sequence <= self.position {
                    continue;
                }
                self.position = sequence;
                // The checksum is right, so it was written like this: by another version, or by an attacker.
                let Ok(record) = serde_json::from_slice::<Record>(payload) else {
                    self.damaged += 1;
                    continue;
                };
                bytes_taken += bytes;
                if batch.records.is_empty() {
                    batch.first = sequence;
                }
                batch.records.push(record);
            }
            if filled < want {
                return Ok(StopReason::End);
            }
            want = CHUNK_BYTES;
        }
    }
}

/// Reads as much of `buffer` as the file has.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..)
        && !rest.is_empty()
    {
        match file.read_at(rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
