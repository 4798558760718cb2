//! Streams of stored reports, ordered by trial, run and step, in bounded memory.
//!
//! Reports arrive nearly in order of their steps, and parts of one step may be in several chunks. A first pass over the
//! chunks notes at which step each begins; the second holds a step back only while a later chunk of the same run may
//! still bring a part of it, or an earlier step.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use det_ids::{MetricChunkId, RunId, StoredReportId, TrialId};
use det_store::metrics::{self, ChunkMark, ChunkRow, StoredReport};
use det_store::{Store, StoreError};
use tokio::sync::mpsc::{self, Sender};

use crate::app::metrics::journal::Journal;
use crate::app::metrics::reports::{Pages, ReportCutoffs, merge};
use crate::budget::{Account, Budget, Reservation};
use crate::error::AppResult;

/// Most reports in one message.
const MESSAGE: usize = 1000;
/// A message is full with so many bytes of reports; one with a single report may have more.
const MESSAGE_BYTES: usize = 512 << 10;
/// Bytes of reports that one stream holds back because a part of them, or an earlier step, may follow. Beyond that the
/// lowest steps are sent as they are: an order that cannot be kept in bounded memory is not kept.
const HELD_BYTES: usize = 8 << 20;
/// What a stream is counted for in the budget of its user: what it holds back, a chunk that is unpacked, a message.
const STREAM_BYTES: usize = HELD_BYTES + (4 << 20);
/// More than a chunk can hold: numbers of reports are made of the chunk's number and the place in it.
const PLACES: i64 = 4096;

/// Chunks that are unpacked while others are being sent.
const UNPACKED: usize = 1;
/// Marks of chunks read at once.
const MARKS: i64 = 10_000;

/// Where a report comes from.
#[derive(Debug)]
pub(crate) struct Source {
    /// Number of the trial that reported it.
    pub(crate) trial_id: TrialId,
    /// Number of the trial's run that reported it.
    pub(crate) run_id: RunId,
    /// Metric group of the report.
    pub(crate) group: String,
    /// Number of the report, unique over the cluster.
    pub(crate) id: StoredReportId,
    /// Step of the report; 0 where it has none.
    pub(crate) step: i64,
}

/// A report with its source.
pub(crate) type Report = (Source, StoredReport);

/// The reports of some trials.
pub(crate) struct Reports {
    store: Store,
    journal: Journal,
    budget: Budget,
    account: Account,
    /// What is counted for the actor, from the first message on.
    held: Option<Reservation>,
    trial_ids: std::vec::IntoIter<TrialId>,
    group: Option<String>,
    /// The trial that is being read.
    current: Option<OfTrial>,
    ready: Ready,
}

impl Reports {
    /// Of these trials in order, of one group or of all; counted for an account of this budget.
    pub(crate) fn new(
        (store, journal): (&Store, &Journal),
        (budget, account): (&Budget, Account),
        trial_ids: Vec<TrialId>,
        group: Option<String>,
    ) -> Self {
        Self {
            store: store.clone(),
            journal: journal.clone(),
            budget: budget.clone(),
            account,
            held: None,
            trial_ids: trial_ids.into_iter(),
            group,
            current: None,
            ready: Ready::default(),
        }
    }

    /// The next message; empty at the end.
    pub(crate) async fn next(&mut self) -> AppResult<Vec<Report>> {
        if self.held.is_none() {
            self.held = Some(self.budget.reserve(self.account, STREAM_BYTES).await?);
        }
        loop {
            let between_trials = self.current.is_none();
            if self.ready.is_full() || (between_trials && !self.ready.reports.is_empty()) {
                return Ok(self.ready.message());
            }
            if let Some(trial) = &mut self.current {
                match trial.unpacked.recv().await {
                    Some(next) => {
                        let (chunk, reports) = next?;
                        trial
                            .orderer
                            .add(&chunk, reports, &trial.outdating, &mut self.ready);
                    }
                    None => {
                        trial.orderer.finish(&mut self.ready);
                        self.current = None;
                    }
                }
            } else if let Some(trial_id) = self.trial_ids.next() {
                let group = self.group.as_deref();
                self.current = OfTrial::begin(&self.store, &self.journal, trial_id, group).await?;
            } else {
                return Ok(Vec::new());
            }
        }
    }
}

/// The reports of one trial.
struct OfTrial {
    outdating: ReportCutoffs,
    orderer: Orderer,
    unpacked: mpsc::Receiver<UnpackedChunk>,
}

impl OfTrial {
    /// `None` where the trial has reported nothing.
    async fn begin(
        store: &Store,
        journal: &Journal,
        trial_id: TrialId,
        group: Option<&str>,
    ) -> AppResult<Option<Self>> {
        journal.flush().await?;
        let outdating = ReportCutoffs::load(store, trial_id).await?;
        let groups: Vec<String> = outdating
            .groups()
            .filter(|name| group.is_none_or(|group| group == *name))
            .map(str::to_owned)
            .collect();
        let starts = Starts::load(store, trial_id, &groups).await?;
        let Some(last) = starts.last_chunk else {
            return Ok(None);
        };
        let (sender, unpacked) = mpsc::channel(UNPACKED);
        // Ends when all is unpacked, or when the other end is dropped.
        tokio::spawn(unpack_all(store.clone(), trial_id, groups, last, sender));
        Ok(Some(Self {
            outdating,
            orderer: Orderer::new(starts.into_bounds()),
            unpacked,
        }))
    }
}

/// A chunk and what is in it; its packed form is given up.
type UnpackedChunk = Result<(ChunkRow, Vec<StoredReport>), StoreError>;

/// Unpacks the chunks of a trial's groups through chunk `last`, in order of arrival.
async fn unpack_all(
    store: Store,
    trial_id: TrialId,
    groups: Vec<String>,
    last: MetricChunkId,
    out: Sender<UnpackedChunk>,
) {
    let mut readers: Vec<ChunkReader<'_>> = groups
        .iter()
        .map(|group| ChunkReader {
            pages: Pages::new(&store, trial_id, group).through(last),
            page: Vec::new().into_iter(),
            ended: false,
        })
        .collect();
    loop {
        let next = match next_chunk(&mut readers).await {
            Ok(Some(mut chunk)) => chunk.unpack().map(|reports| {
                chunk.data = Vec::new();
                (chunk, reports)
            }),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let failed = next.is_err();
        if out.send(next).await.is_err() || failed {
            return;
        }
    }
}

/// A group's chunks, read ahead by a page.
struct ChunkReader<'a> {
    pages: Pages<'a>,
    page: std::vec::IntoIter<ChunkRow>,
    ended: bool,
}

/// The chunk that arrived first of those that the groups have next.
async fn next_chunk(readers: &mut [ChunkReader<'_>]) -> Result<Option<ChunkRow>, StoreError> {
    for reader in readers.iter_mut() {
        if reader.page.as_slice().is_empty() && !reader.ended {
            reader.page = reader.pages.next().await?.into_iter();
            reader.ended = reader.page.as_slice().is_empty();
        }
    }
    let first = readers
        .iter_mut()
        .filter_map(|reader| Some((reader.page.as_slice().first()?.id, reader)))
        .min_by_key(|(id, _)| *id);
    Ok(first.and_then(|(_, reader)| reader.page.next()))
}

/// Reports that are to be sent, in order.
#[derive(Default)]
struct Ready {
    reports: VecDeque<Report>,
    bytes: usize,
}

impl Ready {
    fn push(&mut self, report: Report) {
        self.bytes += report.1.bytes();
        self.reports.push_back(report);
    }

    /// Whether there is enough for a message.
    fn is_full(&self) -> bool {
        self.reports.len() >= MESSAGE || self.bytes >= MESSAGE_BYTES
    }

    /// The reports of the next message.
    fn message(&mut self) -> Vec<Report> {
        let (mut message, mut bytes) = (Vec::new(), 0);
        while message.len() < MESSAGE && bytes < MESSAGE_BYTES {
            let Some(report) = self.reports.pop_front() else {
                break;
            };
            bytes += report.1.bytes();
            message.push(report);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        message
    }
}

/// Where chunks begin, in order of arrival: run and first step.
#[derive(Debug, Default)]
struct Starts {
    starts: Vec<(RunId, i64)>,
    last_chunk: Option<MetricChunkId>,
}

impl Starts {
    /// Of all chunks of a trial's groups that exist now.
    async fn load(store: &Store, trial_id: TrialId, groups: &[String]) -> Result<Self, StoreError> {
        let mut marks: Vec<ChunkMark> = Vec::new();
        for group in groups {
            let mut after = MetricChunkId::default();
            loop {
                let mut conn = store.read().await?;
                let page = metrics::marks(&mut conn.conn(), trial_id, group, after, MARKS).await?;
                let Some(last) = page.last() else { break };
                after = last.id;
                marks.extend(page);
            }
        }
        marks.sort_unstable_by_key(|mark| mark.id);
        let mut starts = Self::default();
        for mark in &marks {
            starts.note(mark.id, mark.run_id, mark.first_step);
        }
        Ok(starts)
    }

    fn note(&mut self, id: MetricChunkId, run_id: RunId, first_step: i64) {
        self.starts.push((run_id, first_step));
        self.last_chunk = Some(id);
    }

    /// For each chunk the lowest step that a later chunk of the same run begins with.
    fn into_bounds(self) -> std::vec::IntoIter<i64> {
        let mut bounds = vec![i64::MAX; self.starts.len()];
        let (mut run, mut lowest) = (None, i64::MAX);
        for (bound, (run_id, first_step)) in bounds.iter_mut().zip(self.starts).rev() {
            if run != Some(run_id) {
                (run, lowest) = (Some(run_id), i64::MAX);
            }
            *bound = lowest;
            // Reports without a step are sent as they come and hold nothing back.
            if first_step >= 0 {
                lowest = lowest.min(first_step);
            }
        }
        bounds.into_iter()
    }
}

/// Puts reports into order and their parts together.
struct Orderer {
    bounds: std::vec::IntoIter<i64>,
    run_id: Option<RunId>,
    /// By step and group: what may not be complete yet.
    held: BTreeMap<(i64, String), Report>,
    held_bytes: usize,
}

impl Orderer {
    fn new(bounds: std::vec::IntoIter<i64>) -> Self {
        Self {
            bounds,
            run_id: None,
            held: BTreeMap::new(),
            held_bytes: 0,
        }
    }

    /// Adds the next chunk and moves what is complete to `ready`.
    fn add(
        &mut self,
        chunk: &ChunkRow,
        reports: Vec<StoredReport>,
        outdating: &ReportCutoffs,
        ready: &mut Ready,
    ) {
        if self.run_id != Some(chunk.run_id) {
            // Runs follow one another: nothing more comes of the one before.
            self.finish(ready);
            self.run_id = Some(chunk.run_id);
        }
        for (place, report) in (0..).zip(reports) {
            if !outdating.counts(&chunk.group_name, chunk.run_id, report.step) {
                continue;
            }
            let source = Source {
                trial_id: chunk.trial_id,
                run_id: chunk.run_id,
                group: chunk.group_name.clone(),
                id: StoredReportId(chunk.id.0.saturating_mul(PLACES).saturating_add(place)),
                step: report.step.unwrap_or(0),
            };
            match report.step {
                None => ready.push((source, report)),
                Some(step) => self.hold(step, source, report),
            }
        }
        let bound = self.bounds.next().unwrap_or(i64::MAX);
        while let Some((key, _)) = self.held.first_key_value()
            && (key.0 < bound || self.held_bytes > HELD_BYTES)
        {
            self.release(ready);
        }
    }

    /// Keeps a report until it is known to be complete.
    fn hold(&mut self, step: i64, source: Source, report: StoredReport) {
        match self.held.entry((step, source.group.clone())) {
            Entry::Vacant(entry) => {
                self.held_bytes += report.bytes();
                entry.insert((source, report));
            }
            Entry::Occupied(mut entry) => {
                let known = &mut entry.get_mut().1;
                let before = known.bytes();
                merge(known, report);
                self.held_bytes += known.bytes().saturating_sub(before);
            }
        }
    }

    /// Moves the lowest step to `ready`.
    fn release(&mut self, ready: &mut Ready) {
        if let Some((_, first)) = self.held.pop_first() {
            self.held_bytes = self.held_bytes.saturating_sub(first.1.bytes());
            ready.push(first);
        }
    }

    /// Moves everything that is left to `ready`.
    fn finish(&mut self, ready: &mut Ready) {
        while !self.held.is_empty() {
            self.release(ready);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// A chunk with its reports: id, run, and for each report its step and a metric.
    type Chunk<'a> = (i64, i64, &'a [(i64, &'a str)]);

    fn order(chunks: &[Chunk<'_>]) -> Vec<(i64, i64, Vec<String>)> {
        let rows: Vec<(ChunkRow, Vec<StoredReport>)> = chunks
            .iter()
            .map(|(id, run_id, reports)| {
                let reports: Vec<StoredReport> = reports
                    .iter()
                    .map(|(step, name)| StoredReport {
                        step: (*step >= 0).then_some(*step),
                        at: *id,
                        metrics: Map::from_iter([((*name).to_owned(), json!(1))]),
                        batches: None,
                        report_id: None,
                    })
                    .collect();
                let steps = || reports.iter().map(|r| r.step.unwrap_or(-1));
                let row = ChunkRow {
                    id: MetricChunkId(*id),
                    trial_id: TrialId(1),
                    group_name: "training".into(),
                    run_id: RunId(*run_id),
                    first_step: steps().min().unwrap(),
                    last_step: steps().max().unwrap(),
                    reports: 0,
                    data: Vec::new(),
                };
                (row, reports)
            })
            .collect();
        let mut starts = Starts::default();
        for (row, _) in &rows {
            starts.note(row.id, row.run_id, row.first_step);
        }
        let mut orderer = Orderer::new(starts.into_bounds());
        let mut ready = Ready::default();
        for (row, reports) in rows {
            orderer.add(&row, reports, &ReportCutoffs::default(), &mut ready);
        }
        orderer.finish(&mut ready);
        assert_eq!(orderer.held_bytes, 0);
        ready
            .reports
            .into_iter()
            .map(|(source, report)| {
                let names = report.metrics.keys().cloned().collect();
                (source.run_id.0, source.step, names)
            })
            .collect()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn steps_come_in_order_though_they_arrived_otherwise() {
        let found = order(&[
            (1, 1, &[(1, "a"), (3, "a")]),
            (2, 1, &[(2, "a")]),
            (3, 1, &[(4, "a")]),
        ]);
        let steps: Vec<i64> = found.iter().map(|(_, step, _)| *step).collect();
        assert_eq!(steps, [1, 2, 3, 4]);
    }

    #[test]
    fn parts_of_a_step_come_as_one_report() {
        let found = order(&[
            (1, 1, &[(1, "a"), (2, "a")]),
            (2, 1, &[(3, "a")]),
            (3, 1, &[(2, "b")]),
        ]);
        assert_eq!(
            found,
            [
                (1, 1, names(&["a"])),
                (1, 2, names(&["a", "b"])),
                (1, 3, names(&["a"]))
            ]
        );
    }

    #[test]
    fn runs_follow_one_another_and_are_not_mixed() {
        let found = order(&[
            (1, 1, &[(1, "a"), (5, "a")]),
            (2, 2, &[(2, "a")]),
            (3, 2, &[(5, "b")]),
        ]);
        assert_eq!(
            found,
            [
                (1, 1, names(&["a"])),
                (1, 5, names(&["a"])),
                (2, 2, names(&["a"])),
                (2, 5, names(&["b"]))
            ]
        );
    }

    #[test]
    fn what_is_complete_is_not_held_back() {
        let starts = [(1, 1), (1, -1), (1, 4), (2, 0), (2, 9)];
        let starts = Starts {
            starts: starts.map(|(run, step)| (RunId(run), step)).to_vec(),
            last_chunk: None,
        };
        assert_eq!(
            starts.into_bounds().collect::<Vec<_>>(),
            [4, 4, i64::MAX, 9, i64::MAX]
        );
    }

    #[test]
    fn reports_without_a_step_come_as_they_arrived() {
        let found = order(&[(1, 1, &[(-1, "gpu"), (-1, "gpu")]), (2, 1, &[(-1, "cpu")])]);
        assert_eq!(found.len(), 3);
        assert_eq!(found[2].2, names(&["cpu"]));
    }

    /// A report of a step with so many bytes of batch metrics, in a chunk of its own.
    fn wide(id: i64, step: i64, bytes: usize) -> (ChunkRow, Vec<StoredReport>) {
        let text = format!("[{{\"x\":\"{}\"}}]", "x".repeat(bytes));
        let report = StoredReport {
            step: Some(step),
            at: id,
            metrics: Map::new(),
            batches: Some(serde_json::value::RawValue::from_string(text).unwrap()),
            report_id: None,
        };
        let row = ChunkRow {
            id: MetricChunkId(id),
            trial_id: TrialId(1),
            group_name: "training".into(),
            run_id: RunId::FIRST,
            first_step: step,
            last_step: step,
            reports: 1,
            data: Vec::new(),
        };
        (row, vec![report])
    }

    #[test]
    fn what_is_held_back_is_bounded_in_bytes() {
        // The last chunk begins with the first step: until then every step might still get a part.
        let rows: Vec<_> = (1..=40)
            .map(|n| wide(n, n, 1 << 20))
            .chain([wide(41, 0, 10)])
            .collect();
        let mut starts = Starts::default();
        for (row, _) in &rows {
            starts.note(row.id, row.run_id, row.first_step);
        }
        let mut orderer = Orderer::new(starts.into_bounds());
        let mut ready = Ready::default();
        let mut sent = 0;
        for (row, reports) in rows {
            orderer.add(&row, reports, &ReportCutoffs::default(), &mut ready);
            while ready.is_full() {
                sent += ready.message().len();
            }
            let held = orderer.held_bytes + ready.bytes;
            assert!(held <= HELD_BYTES + (2 << 20), "{held} bytes are held");
        }
        orderer.finish(&mut ready);
        assert_eq!(sent + ready.reports.len(), 41);
    }

    #[test]
    fn messages_are_bounded_in_bytes_and_reports() {
        let mut orderer = Orderer::new(vec![i64::MAX; 9].into_iter());
        let mut ready = Ready::default();
        for n in 0..9 {
            let (row, reports) = wide(n + 1, n, 200 << 10);
            orderer.add(&row, reports, &ReportCutoffs::default(), &mut ready);
        }
        assert_eq!(ready.message().len(), 3);
        assert_eq!(ready.reports.len(), 6);
    }
}
