//! The series in stored reports of system metrics, read in bounded memory.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use det_store::metrics::{StoredReport, number};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::MOST_NAME_BYTES;
use super::system::{MISC_GROUP, Reading, SeriesKind, SeriesLabels, TIMING_GROUP};
use crate::error::{AppError, AppResult};

/// [`SeriesLabels`] of a stored report, borrowed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredLabels<'a> {
    pub(crate) kind: SeriesKind,
    pub(crate) name: &'a str,
    pub(crate) agent_id: &'a str,
    pub(crate) label: &'a str,
}

/// The readings in a stored report of this group, in its order.
pub(crate) fn readings_of<'a>(
    group: &str,
    report: &'a StoredReport,
) -> impl Iterator<Item = (StoredLabels<'a>, Reading)> {
    let kind = match group {
        TIMING_GROUP => SeriesKind::Timing,
        MISC_GROUP => SeriesKind::Misc,
        _ => SeriesKind::System,
    };
    let batch = report
        .batches
        .as_deref()
        .and_then(batch_of)
        .unwrap_or_default();
    let at = report.at;
    values_of(&report.metrics).filter_map(move |((agent_id, label, name), value)| {
        // A report of an older version of the master may have longer ones.
        let is_short = |text: &&str| text.len() <= MOST_NAME_BYTES;
        if ![agent_id, label, name].iter().all(is_short) {
            return None;
        }
        let labels = StoredLabels {
            kind,
            name,
            agent_id,
            label,
        };
        let value = number(value)?;
        Some((labels, Reading { value, batch, at }))
    })
}

/// Agent, label and name of each value in a report of system metrics.
fn values_of(metrics: &Map<String, Value>) -> impl Iterator<Item = ((&str, &str, &str), &Value)> {
    metrics.iter().flat_map(|(agent, values)| {
        let alone = (!values.is_object()).then_some((("", "", agent.as_str()), values));
        let below = values.as_object().into_iter().flatten();
        let below = below.flat_map(move |(label, value)| {
            let alone =
                (!value.is_object()).then_some(((agent.as_str(), "", label.as_str()), value));
            let below = value.as_object().into_iter().flatten();
            let below = below
                .map(move |(name, value)| ((agent.as_str(), label.as_str(), name.as_str()), value));
            alone.into_iter().chain(below)
        });
        alone.into_iter().chain(below)
    })
}

fn batch_of(batches: &RawValue) -> Option<i64> {
    #[derive(serde::Deserialize)]
    struct Batch {
        batch: i64,
    }
    let batches: Vec<Batch> = serde_json::from_str(batches.get()).ok()?;
    batches.first().map(|one| one.batch)
}

/// Readings that are gathered before they are given.
const GATHERED: usize = 5000;
/// Bytes of the names of their series, about.
const GATHERED_NAME_BYTES: usize = 1 << 20;

/// Readings that are gathered to be given, in bounded memory.
#[derive(Debug, Default)]
pub(crate) struct GatheredReadings {
    readings: Vec<(SeriesLabels, Reading)>,
    /// The texts of their labels, each once.
    texts: HashSet<Arc<str>>,
    text_bytes: usize,
}

impl GatheredReadings {
    /// Whether they are so many that they are to be given now.
    pub(crate) fn is_full(&self) -> bool {
        self.readings.len() >= GATHERED || self.text_bytes >= GATHERED_NAME_BYTES
    }

    /// Adds a reading of the series with these labels.
    pub(crate) fn add(&mut self, of: StoredLabels<'_>, reading: Reading) {
        let labels = SeriesLabels {
            kind: of.kind,
            name: self.shared(of.name),
            agent_id: self.shared(of.agent_id),
            label: self.shared(of.label),
        };
        self.readings.push((labels, reading));
    }

    fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let text = Arc::<str>::from(text);
        self.text_bytes += text.len();
        self.texts.insert(text.clone());
        text
    }

    /// All of them, in order.
    pub(crate) fn into_readings(self) -> Vec<(SeriesLabels, Reading)> {
        self.readings
    }
}

/// Series that were found, in bounded memory.
#[derive(Debug, Default)]
pub(crate) struct FoundSeries {
    labels: BTreeSet<SeriesLabels>,
    text_bytes: usize,
}

/// Series of a trial that are listed at most.
const MOST_SERIES: usize = 2000;
/// Bytes of the texts of their labels.
const MOST_SERIES_BYTES: usize = 1 << 20;

impl FoundSeries {
    /// Adds a series.
    ///
    /// # Errors
    /// The trial has more than can be listed.
    pub(crate) fn add(&mut self, labels: SeriesLabels) -> AppResult<()> {
        let bytes = labels.text_bytes();
        if self.labels.insert(labels) {
            self.text_bytes += bytes;
        }
        if self.labels.len() > MOST_SERIES || self.text_bytes > MOST_SERIES_BYTES {
            return Err(AppError::invalid(format!(
                "the trial has more than {MOST_SERIES} series of system metrics, or more than {} KiB of names of \
                 series, which is more than can be listed",
                MOST_SERIES_BYTES >> 10
            ))
            .hint("read their reports with GetMetrics"));
        }
        Ok(())
    }

    /// How many series were found.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &SeriesLabels> {
        self.labels.iter()
    }
}

#[cfg(test)]
mod tests {
    use det_ids::{RunId, TrialId};
    use serde_json::json;

    use super::super::Report;
    use super::super::system::{PlacedReadings, Readings};
    use super::*;

    fn labels(kind: SeriesKind, agent: &str, label: &str, name: &str) -> SeriesLabels {
        SeriesLabels {
            kind,
            name: name.into(),
            agent_id: agent.into(),
            label: label.into(),
        }
    }

    fn stored(report: Report) -> StoredReport {
        StoredReport {
            step: report.step,
            at: report.at,
            metrics: report.metrics,
            batches: report.batches,
            report_id: report.report_id,
        }
    }

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(members) = value else {
            panic!("an object")
        };
        members
    }

    #[test]
    fn readings_come_back_as_they_were_sent() {
        use SeriesKind::{Misc, System, Timing};
        let sent = [
            labels(System, "a", "GPU-1", "gpu_util"),
            labels(System, "a", "", "cpu_util_simple"),
            labels(System, "a", "", "free_memory"),
            labels(System, "a", "/", "disk_util"),
            labels(System, "a", "", "net_throughput_sent"),
            labels(Timing, "", "", "dataloader_next"),
            labels(Misc, "a", "", "samples_per_second"),
        ];
        let readings: Vec<Readings> = sent
            .iter()
            .zip(1_i32..)
            .map(|(labels, n)| Readings {
                trial_id: TrialId(1),
                labels: labels.clone(),
                readings: vec![
                    Reading {
                        value: f64::from(n),
                        batch: 7,
                        at: 100,
                    },
                    Reading {
                        value: f64::NAN,
                        batch: 0,
                        at: 200,
                    },
                ],
            })
            .collect();
        let placed = PlacedReadings::new(TrialId(1), RunId::FIRST, &readings).unwrap();
        let mut found: Vec<(SeriesLabels, Reading)> = Vec::new();
        for report in placed.reports() {
            let report = report.unwrap();
            let group = report.group.clone();
            let report = stored(report);
            let mut gathered = GatheredReadings::default();
            for (of, reading) in readings_of(&group, &report) {
                gathered.add(of, reading);
            }
            found.extend(gathered.into_readings());
        }
        for (labels, n) in sent.iter().zip(1_i32..) {
            let of_series: Vec<&Reading> = found
                .iter()
                .filter(|(of, _)| of == labels)
                .map(|(_, reading)| reading)
                .collect();
            assert_eq!(of_series.len(), 2, "{labels:?}");
            assert_eq!(
                *of_series[0],
                Reading {
                    value: f64::from(n),
                    batch: 7,
                    at: 100
                }
            );
            assert!(of_series[1].value.is_nan() && of_series[1].batch == 0);
        }
        assert_eq!(found.len(), 14);
    }

    #[test]
    fn readings_share_the_texts_of_their_labels_and_are_gathered_up_to_a_bound() {
        let label = "x".repeat(MOST_NAME_BYTES);
        let long = "y".repeat(MOST_NAME_BYTES + 1);
        let values: Map<String, Value> = (0..100).map(|n| (format!("x{n}"), json!(1))).collect();
        let report = StoredReport {
            step: None,
            at: 0,
            metrics: object(
                json!({"a": {&label: values, &long: {"x": 1}, "y": {"x": 1}, "z": [1]}, "b": 2}),
            ),
            batches: None,
            report_id: None,
        };
        let mut gathered = GatheredReadings::default();
        for (of, reading) in readings_of("gpu", &report) {
            gathered.add(of, reading);
        }
        assert!(!gathered.is_full());
        assert!(gathered.text_bytes < 2 * MOST_NAME_BYTES);
        let readings = gathered.into_readings();
        // What an older version has stored with longer names is left out.
        assert_eq!(readings.len(), 102);
        assert!(Arc::ptr_eq(&readings[0].0.label, &readings[99].0.label));
        let mut gathered = GatheredReadings::default();
        for n in 0..GATHERED_NAME_BYTES / MOST_NAME_BYTES {
            assert!(!gathered.is_full());
            let of = StoredLabels {
                kind: SeriesKind::System,
                name: &format!("{n:0MOST_NAME_BYTES$}"),
                agent_id: "",
                label: "",
            };
            gathered.add(
                of,
                Reading {
                    value: 1.0,
                    batch: 0,
                    at: 0,
                },
            );
        }
        assert!(gathered.is_full());
    }
}
