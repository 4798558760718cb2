//! Streams of stored reports, ordered by trial, run and step, in bounded memory.
//!
//! Reports arrive nearly in order of their steps, and parts of one step may lie in several chunks. A first pass over the
//! chunks notes at which step each begins; the second holds a step back only while a later chunk of the same run may
//! still bring a part of it, or an earlier step.

use std::collections::BTreeMap;

use bytes::Bytes;
use det_api_types::metrics::{MetricsChunk, MetricsReport};
use det_api_types::wire::Timestamp;
use det_store::metrics::{self, ChunkMark, ChunkRow, StoredReport};
use det_store::{Store, StoreError};
use tokio::sync::mpsc::{self, Sender};

use crate::app::Master;
use crate::app::checkpoints::reports::{Outdating, Pages, merge};
use crate::error::{AppError, AppResult};
use crate::http::respond::line;
use crate::http::views::trials::metrics_document;

/// Reports in one message.
const MESSAGE: usize = 1000;
/// More than a chunk can hold: numbers of reports are made of the chunk's number and the place in it.
const PLACES: i64 = 4096;

/// Sends the reports of all trials; an error ends the stream.
pub(crate) async fn send_all(
    master: &Master,
    trial_ids: &[i64],
    group: Option<&str>,
    out: &Sender<AppResult<Bytes>>,
) {
    for trial_id in trial_ids {
        match send_trial(master, *trial_id, group, out).await {
            Ok(()) => {}
            Err(Stop::Gone) => return,
            Err(Stop::Failed(error)) => {
                // A receiver that has gone needs no error.
                let _ = out.send(Err(error)).await;
                return;
            }
        }
    }
}

/// Why sending stopped before its end.
enum Stop {
    Gone,
    Failed(AppError),
}

impl<E: Into<AppError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Chunks that are unpacked while others are being sent.
const UNPACKED: usize = 2;
/// Marks of chunks read at once.
const MARKS: i64 = 10_000;

async fn send_trial(
    master: &Master,
    trial_id: i64,
    group: Option<&str>,
    out: &Sender<AppResult<Bytes>>,
) -> Result<(), Stop> {
    master.settle_metrics().await?;
    let outdating = Outdating::load(&master.store, trial_id).await?;
    let groups: Vec<String> = outdating
        .groups()
        .filter(|name| group.is_none_or(|group| group == *name))
        .map(str::to_owned)
        .collect();
    let starts = Starts::load(&master.store, trial_id, &groups).await?;
    let Some(last) = starts.last_chunk else {
        return Ok(());
    };
    let mut orderer = Orderer::new(starts.into_bounds());
    let mut ready = Vec::new();
    let (sender, mut unpacked) = mpsc::channel(UNPACKED);
    // Ends when all is unpacked, or when the other end is dropped.
    tokio::spawn(unpack_all(
        master.store.clone(),
        trial_id,
        groups,
        last,
        sender,
    ));
    while let Some(next) = unpacked.recv().await {
        let (chunk, reports) = next?;
        orderer.add(&chunk, reports, &outdating, &mut ready);
        while ready.len() >= MESSAGE {
            let message: Vec<MetricsReport> = ready.drain(..MESSAGE).collect();
            send(out, message).await?;
        }
    }
    orderer.finish(&mut ready);
    while !ready.is_empty() {
        let message: Vec<MetricsReport> = ready.drain(..ready.len().min(MESSAGE)).collect();
        send(out, message).await?;
    }
    Ok(())
}

/// A chunk and what is in it; its packed form is given up.
type Unpacked = Result<(ChunkRow, Vec<StoredReport>), StoreError>;

/// Unpacks the chunks of a trial's groups through chunk `last`, in order of arrival.
async fn unpack_all(
    store: Store,
    trial_id: i64,
    groups: Vec<String>,
    last: i64,
    out: Sender<Unpacked>,
) {
    let mut readers: Vec<Ahead<'_>> = groups
        .iter()
        .map(|group| Ahead {
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
struct Ahead<'a> {
    pages: Pages<'a>,
    page: std::vec::IntoIter<ChunkRow>,
    ended: bool,
}

/// The chunk that arrived first of those that the groups have next.
async fn next_chunk(readers: &mut [Ahead<'_>]) -> Result<Option<ChunkRow>, StoreError> {
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

async fn send(out: &Sender<AppResult<Bytes>>, metrics: Vec<MetricsReport>) -> Result<(), Stop> {
    let line = line(&MetricsChunk { metrics })?;
    out.send(Ok(line)).await.map_err(|_| Stop::Gone)
}

/// Where chunks begin, in order of arrival: run and first step.
#[derive(Debug, Default)]
struct Starts {
    starts: Vec<(i64, i64)>,
    last_chunk: Option<i64>,
}

impl Starts {
    /// Of all chunks of a trial's groups that are there now.
    async fn load(store: &Store, trial_id: i64, groups: &[String]) -> Result<Self, StoreError> {
        let mut marks: Vec<ChunkMark> = Vec::new();
        for group in groups {
            let mut after = 0;
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

    fn note(&mut self, id: i64, run_id: i64, first_step: i64) {
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
    run_id: Option<i64>,
    /// By step and group: what may not be complete yet.
    held: BTreeMap<(i64, String), (MetricsReport, StoredReport)>,
}

impl Orderer {
    fn new(bounds: std::vec::IntoIter<i64>) -> Self {
        Self {
            bounds,
            run_id: None,
            held: BTreeMap::new(),
        }
    }

    /// Takes in the next chunk and moves what is complete to `ready`.
    fn add(
        &mut self,
        chunk: &ChunkRow,
        reports: Vec<StoredReport>,
        outdating: &Outdating,
        ready: &mut Vec<MetricsReport>,
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
            let shown = MetricsReport {
                trial_id: chunk.trial_id,
                end_time: Timestamp(report.at),
                total_batches: report.step.unwrap_or(0),
                archived: false,
                id: chunk.id.saturating_mul(PLACES).saturating_add(place),
                trial_run_id: chunk.run_id,
                group: chunk.group_name.clone(),
                ..MetricsReport::default()
            };
            match report.step {
                None => ready.push(complete((shown, report))),
                Some(step) => match self.held.entry((step, chunk.group_name.clone())) {
                    std::collections::btree_map::Entry::Vacant(entry) => {
                        entry.insert((shown, report));
                    }
                    std::collections::btree_map::Entry::Occupied(mut entry) => {
                        merge(&mut entry.get_mut().1, report);
                    }
                },
            }
        }
        let bound = self.bounds.next().unwrap_or(i64::MAX);
        while let Some(entry) = self
            .held
            .first_entry()
            .filter(|entry| entry.key().0 < bound)
        {
            ready.push(complete(entry.remove()));
        }
    }

    /// Moves everything that is left to `ready`.
    fn finish(&mut self, ready: &mut Vec<MetricsReport>) {
        ready.extend(std::mem::take(&mut self.held).into_values().map(complete));
    }
}

fn complete((mut shown, report): (MetricsReport, StoredReport)) -> MetricsReport {
    shown.end_time = Timestamp(report.at);
    shown.metrics = metrics_document(&shown.group, report);
    shown
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
                    id: *id,
                    trial_id: 1,
                    group_name: "training".into(),
                    run_id: *run_id,
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
        let mut ready = Vec::new();
        for (row, reports) in rows {
            orderer.add(&row, reports, &Outdating::default(), &mut ready);
        }
        orderer.finish(&mut ready);
        ready
            .into_iter()
            .map(|report| {
                let names = report.metrics["avg_metrics"]
                    .as_object()
                    .unwrap()
                    .keys()
                    .cloned()
                    .collect();
                (report.trial_run_id, report.total_batches, names)
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
        let starts = vec![(1, 1), (1, -1), (1, 4), (2, 0), (2, 9)];
        let starts = Starts {
            starts,
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
}
