//! Long metrics in few points: what a chart of a million values needs is their lowest and highest ones, stretch by
//! stretch.
//!
//! A [`Series`] receives one value after another and keeps at most some two thousand of them. It starts with a stretch
//! for each value; when there are too many stretches, neighbours are merged. All points that it keeps were reported:
//! nothing is averaged. It is stored with the number of the newest of the chunks that it was made of, so that a reader
//! has to read only what came after.

use std::collections::BTreeMap;

use det_ids::{MetricChunkId, RunId, TrialId};

use crate::metrics::{ChunkRow, number};
use crate::query::{Query, Value as Parameter};
use crate::{Conn, StoreError, chunk};

/// Most stretches of a run.
const STRETCHES: usize = 1024;
/// Most metrics of a group that are kept as series; those of further names are read from the chunks.
pub const NAMES: usize = 256;
/// Version of the stored form.
const FORMAT: u8 = 1;

/// A reported value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Steps completed when it was measured; of a report without a step its time, microseconds.
    pub step: i64,
    /// When it was measured, microseconds.
    pub at: i64,
    /// The value of the metric, always finite.
    pub value: f64,
}

/// The lowest and the highest value of some neighbours.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stretch {
    low: Point,
    high: Point,
}

impl Stretch {
    fn of(point: Point) -> Self {
        Self {
            low: point,
            high: point,
        }
    }

    fn add(&mut self, point: Point) {
        if point.value < self.low.value {
            self.low = point;
        }
        if point.value > self.high.value {
            self.high = point;
        }
    }

    fn join(self, later: Self) -> Self {
        let mut joined = self;
        joined.add(later.low);
        joined.add(later.high);
        joined
    }

    /// Its one or two points in order of their steps.
    fn points(self) -> impl Iterator<Item = Point> {
        let (first, second) = if self.low.step <= self.high.step {
            (self.low, self.high)
        } else {
            (self.high, self.low)
        };
        std::iter::once(first).chain((first != second).then_some(second))
    }
}

/// One run of a trial.
#[derive(Debug, Clone, PartialEq)]
struct Run {
    run_id: RunId,
    /// Values in a whole stretch.
    width: u64,
    /// Values in the last stretch.
    last: u64,
    stretches: Vec<Stretch>,
}

/// A metric of one trial and group.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    runs: Vec<Run>,
}

impl Series {
    /// Adds the next value. What is not finite is left out, as it is in summaries.
    pub fn add(&mut self, run_id: RunId, point: Point) {
        if !point.value.is_finite() {
            return;
        }
        let run = match self.runs.last_mut().filter(|run| run.run_id == run_id) {
            Some(run) => run,
            None => self.runs.push_mut(Run {
                run_id,
                width: 1,
                last: 0,
                stretches: Vec::new(),
            }),
        };
        match run.stretches.last_mut().filter(|_| run.last < run.width) {
            Some(last) => {
                last.add(point);
                run.last += 1;
            }
            None => {
                run.stretches.push(Stretch::of(point));
                run.last = 1;
            }
        }
        if run.stretches.len() > STRETCHES {
            run.halve();
        }
    }

    /// At most `most` points in order of their steps, of those that `counts` (by run and step): the lowest and highest of
    /// each of equally many stretches, and the very first and last.
    pub fn points(&self, most: usize, counts: impl Fn(RunId, i64) -> bool) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        for run in &self.runs {
            points.extend(
                run.stretches
                    .iter()
                    .flat_map(|stretch| stretch.points())
                    .filter(|point| counts(run.run_id, point.step)),
            );
        }
        points.sort_by_key(|point| point.step);
        thin(points, most)
    }

    /// The series as it is stored, in the form of version [`FORMAT`].
    fn pack(&self) -> Vec<u8> {
        let mut data = vec![FORMAT];
        let mut put = |n: i64| data.extend_from_slice(&n.to_le_bytes());
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        put(count(self.runs.len()));
        for run in &self.runs {
            put(run.run_id.0);
            put(run.width.cast_signed());
            put(run.last.cast_signed());
            put(count(run.stretches.len()));
            for point in run.stretches.iter().flat_map(|s| [s.low, s.high]) {
                put(point.step);
                put(point.at);
                put(point.value.to_bits().cast_signed());
            }
        }
        data
    }

    fn unpack(data: &[u8]) -> Option<Self> {
        let (format, rest) = data.split_first()?;
        let mut numbers = rest.chunks_exact(8);
        let mut take = || Some(i64::from_le_bytes(numbers.next()?.try_into().ok()?));
        if *format != FORMAT {
            return None;
        }
        let mut runs = Vec::new();
        for _ in 0..take()? {
            let (run_id, width, last) = (
                RunId(take()?),
                take()?.cast_unsigned(),
                take()?.cast_unsigned(),
            );
            let count = usize::try_from(take()?).ok().filter(|n| *n <= STRETCHES)?;
            let mut stretches = Vec::with_capacity(count);
            for _ in 0..count {
                let mut point = || {
                    Some(Point {
                        step: take()?,
                        at: take()?,
                        value: f64::from_bits(take()?.cast_unsigned()),
                    })
                };
                let (low, high) = (point()?, point()?);
                stretches.push(Stretch { low, high });
            }
            runs.push(Run {
                run_id,
                width,
                last,
                stretches,
            });
        }
        Some(Self { runs })
    }
}

impl Run {
    /// Makes one stretch of each two.
    fn halve(&mut self) {
        let pairs = self.stretches.chunks(2);
        // The last stretch may have no neighbour, and either may be short.
        self.last += if self.stretches.len().is_multiple_of(2) {
            self.width
        } else {
            0
        };
        self.stretches = pairs
            .map(|pair| match pair {
                [a, b] => a.join(*b),
                rest => rest[0],
            })
            .collect();
        self.width *= 2;
    }
}

/// At most `most` of points that are in order: the lowest and highest of each of equally many stretches.
pub fn thin(points: Vec<Point>, most: usize) -> Vec<Point> {
    if points.len() <= most {
        return points;
    }
    if most < 2 {
        return points.into_iter().take(most).collect();
    }
    let stretches = most / 2;
    let mut kept = Vec::with_capacity(most);
    for n in 0..stretches {
        let part = &points[n * points.len() / stretches..(n + 1) * points.len() / stretches];
        let joined = part
            .iter()
            .map(|point| Stretch::of(*point))
            .reduce(Stretch::join);
        kept.extend(joined.into_iter().flat_map(Stretch::points));
    }
    kept
}

/// The series of a trial's group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupSeries {
    /// Series of each metric, by its name.
    pub metrics: BTreeMap<String, Series>,
    /// The newest chunk that is in them; the default = none.
    pub through: MetricChunkId,
    /// Reports added since they were loaded.
    pub new_reports: usize,
    /// Bytes of the chunks that they were in, unpacked: what the next reader would have to read again.
    pub new_bytes: usize,
}

impl GroupSeries {
    /// Adds the reports of the next chunk. `Err` = the chunk cannot be read.
    pub fn add(&mut self, chunk: &ChunkRow) -> Result<(), StoreError> {
        self.new_bytes += chunk::unpacked_size(&chunk.data);
        for report in chunk.unpack_averages()? {
            self.new_reports += 1;
            for (name, value) in &report.metrics {
                let Some(value) = number(value) else { continue };
                if !self.metrics.contains_key(name) {
                    if self.metrics.len() >= NAMES {
                        continue;
                    }
                    self.metrics.insert(name.clone(), Series::default());
                }
                if let Some(series) = self.metrics.get_mut(name) {
                    let point = Point {
                        step: report.step.unwrap_or(report.at),
                        at: report.at,
                        value,
                    };
                    series.add(chunk.run_id, point);
                }
            }
        }
        self.through = self.through.max(chunk.id);
        Ok(())
    }
}

pub(crate) fn load_query(trial_id: TrialId, group: &str, names: Option<&[String]>) -> Query {
    let mut query = Query::new("SELECT name, through, data FROM metric_series");
    query.condition("trial_id = ").bind(trial_id);
    query
        .condition("group_name = ")
        .bind(Parameter::Text(group.to_owned()));
    if let Some(names) = names {
        query.any_of("name", names.iter().map(|n| Parameter::Text(n.clone())));
    }
    query
}

/// The newest chunk that is in any stored series of the group.
pub(crate) const THROUGH: &str =
    "SELECT COALESCE(MAX(through), 0) FROM metric_series WHERE trial_id = $1 AND group_name = $2";

/// What is stored of these metrics of a group, or of all of them.
pub async fn load(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
    group: &str,
    names: Option<&[String]>,
) -> Result<GroupSeries, StoreError> {
    let (through,) = fetch_one!(conn, (MetricChunkId,), THROUGH, trial_id, group)?;
    let mut found = GroupSeries {
        through,
        ..GroupSeries::default()
    };
    let rows = load_query(trial_id, group, names)
        .fetch_all::<(String, i64, Vec<u8>)>(conn)
        .await?;
    for (name, _, data) in rows {
        let series = Series::unpack(&data).ok_or_else(|| StoreError::Corrupt {
            what: format!("the series of metric \"{name}\" of trial {trial_id}"),
            message: "not in the form that series are stored in".into(),
        })?;
        found.metrics.insert(name, series);
    }
    Ok(found)
}

/// Stores all series of a group. Those of one that has got farther meanwhile are left as they are.
pub async fn save(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
    group: &str,
    all: &GroupSeries,
) -> Result<(), StoreError> {
    for (name, series) in &all.metrics {
        execute!(
            conn,
            "INSERT INTO metric_series (trial_id, group_name, name, through, data) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (trial_id, group_name, name) DO UPDATE SET through = excluded.through, data = excluded.data \
             WHERE metric_series.through < excluded.through",
            trial_id,
            group,
            name.as_str(),
            all.through,
            series.pack()
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(step: i64, value: f64) -> Point {
        Point {
            step,
            at: step * 10,
            value,
        }
    }

    fn wave(count: i64) -> Series {
        let mut series = Series::default();
        for step in 0..count {
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let value = ((step * 7919) % 1000) as f64;
            series.add(
                RunId(1),
                point(step, if step == 1234 { 5000.0 } else { value }),
            );
        }
        series
    }

    #[test]
    fn a_short_metric_is_kept_whole() {
        let series = wave(500);
        let points = series.points(1000, |_, _| true);
        assert_eq!(points.len(), 500);
        assert!(points.windows(2).all(|p| p[0].step < p[1].step));
    }

    #[test]
    fn a_long_metric_keeps_its_extremes_in_few_points() {
        let series = wave(100_000);
        assert!(series.runs[0].stretches.len() <= STRETCHES);
        let held: u64 = series.runs[0].width
            * u64::try_from(series.runs[0].stretches.len() - 1).unwrap()
            + series.runs[0].last;
        assert_eq!(held, 100_000, "every value is in one stretch");
        let points = series.points(100, |_, _| true);
        assert!(points.len() <= 100 && points.len() > 50);
        assert!(
            points
                .iter()
                .any(|p| p.value.to_bits() == 5000.0_f64.to_bits() && p.step == 1234)
        );
        assert!(points.iter().any(|p| p.value == 0.0));
    }

    #[test]
    fn what_is_stored_is_read_back_and_goes_on_alike() {
        let mut whole = wave(3000);
        let mut restored = Series::unpack(&whole.pack()).unwrap();
        assert_eq!(restored, whole);
        for step in 3000..9000 {
            whole.add(RunId(2), point(step, 1.5));
            restored.add(RunId(2), point(step, 1.5));
        }
        assert_eq!(restored, whole);
        assert_eq!(Series::unpack(&[FORMAT, 1]), None);
        assert_eq!(Series::unpack(&[9]), None);
        let points = whole.points(usize::MAX, |run, step| run == RunId(2) || step < 10);
        assert!(points.iter().all(|p| p.step < 10 || p.step >= 3000));
    }

    #[test]
    fn what_is_not_a_number_is_left_out() {
        let mut series = Series::default();
        series.add(RunId(1), point(1, f64::NAN));
        series.add(RunId(1), point(2, f64::INFINITY));
        assert!(series.points(10, |_, _| true).is_empty());
        series.add(RunId(1), point(3, 1.0));
        assert_eq!(series.points(1, |_, _| true).len(), 1);
    }

    #[test]
    fn values_of_batches_are_passed_over_but_counted_as_read() {
        let line = br#"{"s":3,"t":30,"m":{"loss":0.5},"b":[{"loss":9.0},{"loss":8.0}]}"#;
        let row = ChunkRow {
            id: MetricChunkId(7),
            trial_id: TrialId(1),
            group_name: "training".into(),
            run_id: RunId(2),
            first_step: 3,
            last_step: 3,
            reports: 1,
            data: chunk::pack_bytes(line).unwrap(),
        };
        let mut group = GroupSeries::default();
        group.add(&row).unwrap();
        assert_eq!(
            group.metrics["loss"].points(10, |_, _| true),
            [Point {
                step: 3,
                at: 30,
                value: 0.5
            }]
        );
        assert_eq!((group.through.0, group.new_reports), (7, 1));
        assert!(group.new_bytes >= line.len());
    }
}
