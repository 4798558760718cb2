//! Reading the series of system metrics of a trial, as the older operations of the profiler give them.

use std::collections::{BTreeMap, VecDeque};

use det_authz::Kind;
use det_ids::{AgentId, MetricChunkId, TrialId};
use det_store::metrics::StoredReport;
use det_store::{Store, trials};

use crate::app::metrics::journal::Journal;
use crate::app::metrics::reports::Pages;
use crate::app::metrics::stored_series::{
    FoundSeries, GatheredReadings, StoredLabels, readings_of,
};
use crate::app::metrics::system::{Reading, SeriesKind, SeriesLabels, groups_with};
use crate::app::reads::metrics::MetricSources;
use crate::app::{existing, reads};
use crate::auth::Actor;
use crate::budget::{Account, Budget, Reservation};
use crate::error::AppResult;
use crate::hub::{Subscription, Topic};

/// Readings of one message at most.
const MOST_READINGS: usize = 1000;
/// What a stream is counted for in the budget of its user: a page of chunks, one that is unpacked, what is gathered.
const STREAM_BYTES: usize = 6 << 20;

/// Which series are asked for; an empty text or `None` matches any.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeriesFilter {
    pub(crate) kind: Option<SeriesKind>,
    pub(crate) name: String,
    pub(crate) agent_id: Option<AgentId>,
    pub(crate) label: String,
}

impl SeriesFilter {
    fn has(&self, labels: StoredLabels<'_>) -> bool {
        let matches = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
        let agent_id = self.agent_id.as_ref().map(AgentId::as_str);
        self.kind.is_none_or(|kind| kind == labels.kind)
            && matches(&self.name, labels.name)
            && matches(agent_id.unwrap_or_default(), labels.agent_id)
            && matches(&self.label, labels.label)
    }
}

/// A group that is read, and how far.
struct Group {
    name: &'static str,
    /// The last chunk that was read; the default = none.
    after: MetricChunkId,
    /// Reports of that chunk whose readings are not all gathered.
    reports: VecDeque<StoredReport>,
    /// Readings of the first of them that are.
    gathered: usize,
}

impl Group {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            after: MetricChunkId::default(),
            reports: VecDeque::new(),
            gathered: 0,
        }
    }

    /// Gathers readings that the filter has of the chunk that was read last; `false` = there is no capacity for more.
    fn gather(&mut self, filter: &SeriesFilter, into: &mut GatheredReadings) -> bool {
        while let Some(report) = self.reports.front() {
            let found = readings_of(self.name, report).filter(|(of, _)| filter.has(*of));
            for (of, reading) in found.skip(self.gathered) {
                if into.is_full() {
                    return false;
                }
                into.add(of, reading);
                self.gathered += 1;
            }
            self.reports.pop_front();
            self.gathered = 0;
        }
        !into.is_full()
    }
}

/// The readings of a trial, group by group in order of arrival; a follower gets those that arrive until the trial ends.
pub(crate) struct Profiler {
    store: Store,
    journal: Journal,
    budget: Budget,
    account: Account,
    /// What is counted for the actor, from the first reading on.
    held: Option<Reservation>,
    trial_id: TrialId,
    filter: SeriesFilter,
    groups: Vec<Group>,
    /// Changes of metrics and of the trial, for a follower.
    changes: Option<(Subscription, Subscription)>,
}

/// What [`Profiler::pass`] found.
struct Pass {
    readings: Vec<(SeriesLabels, Reading)>,
    /// Whether there may be more by now.
    more: bool,
}

impl Profiler {
    /// Of a trial that exists, for an actor who may read it.
    pub(crate) async fn open(
        sources: &MetricSources,
        actor: &Actor,
        trial_id: TrialId,
        filter: SeriesFilter,
        follow: bool,
    ) -> AppResult<Self> {
        reads::require(actor, Kind::Trial, "trials")?;
        let store = &sources.context.store;
        let mut conn = store.read().await?;
        existing::trial(&mut conn.conn(), trial_id).await?;
        let hub = &sources.context.hub;
        Ok(Self {
            store: store.clone(),
            journal: sources.journal.clone(),
            budget: sources.streams.clone(),
            account: Some(actor.user().id),
            held: None,
            trial_id,
            groups: groups_with(filter.kind, &filter.name)
                .into_iter()
                .map(Group::new)
                .collect(),
            filter,
            changes: follow.then(|| {
                let metrics = hub.subscribe(Topic::SystemMetrics(trial_id));
                (metrics, hub.subscribe(Topic::Trial(trial_id)))
            }),
        })
    }

    /// The next readings of one or several series, each with at most [`MOST_READINGS`]; empty at the end.
    pub(crate) async fn next_readings(
        &mut self,
    ) -> AppResult<VecDeque<(SeriesLabels, Vec<Reading>)>> {
        let readings = self.next().await?.unwrap_or_default();
        let mut by_series: BTreeMap<SeriesLabels, Vec<Reading>> = BTreeMap::new();
        for (labels, reading) in readings {
            by_series.entry(labels).or_default().push(reading);
        }
        let mut messages = VecDeque::new();
        for (labels, readings) in by_series {
            for some in readings.chunks(MOST_READINGS) {
                messages.push_back((labels.clone(), some.to_vec()));
            }
        }
        Ok(messages)
    }

    /// Reads on until `found` has series that it had not, or until nothing more comes, which is `false`.
    pub(crate) async fn next_series(&mut self, found: &mut FoundSeries) -> AppResult<bool> {
        loop {
            let known = found.len();
            loop {
                let ended = self.is_final().await?;
                let pass = self.pass().await?;
                for (labels, _) in pass.readings {
                    found.add(labels)?;
                }
                if pass.more {
                    continue;
                }
                if ended {
                    return Ok(false);
                }
                break;
            }
            if found.len() > known {
                return Ok(true);
            }
            self.changed().await;
        }
    }

    /// The next readings; `None` at the end.
    async fn next(&mut self) -> AppResult<Option<Vec<(SeriesLabels, Reading)>>> {
        loop {
            let ended = self.is_final().await?;
            let pass = self.pass().await?;
            if !pass.readings.is_empty() {
                return Ok(Some(pass.readings));
            }
            if pass.more {
                continue;
            }
            if ended {
                return Ok(None);
            }
            self.changed().await;
        }
    }

    /// Whether nothing comes after what is stored now: no caller follows, or the trial has ended. Its last reports come
    /// before its end.
    async fn is_final(&self) -> AppResult<bool> {
        if self.changes.is_none() {
            return Ok(true);
        }
        let mut conn = self.store.read().await?;
        let trial = trials::find(&mut conn.conn(), self.trial_id).await?;
        Ok(trial.is_none_or(|trial| trial.ended_at.is_some()))
    }

    /// Waits until there may be more.
    async fn changed(&mut self) {
        if let Some((metrics, trial)) = &mut self.changes {
            tokio::select! {
                () = metrics.changed() => {}
                () = trial.changed() => {}
            }
        }
    }

    /// Reads what has arrived since the last time, up to a bound.
    async fn pass(&mut self) -> AppResult<Pass> {
        if self.held.is_none() {
            self.held = Some(self.budget.reserve(self.account, STREAM_BYTES).await?);
        }
        self.journal.flush().await?;
        let mut gathered = GatheredReadings::default();
        for group in &mut self.groups {
            let mut has_capacity = group.gather(&self.filter, &mut gathered);
            let mut pages = Pages::new(&self.store, self.trial_id, group.name).after(group.after);
            while has_capacity {
                let chunks = pages.next().await?;
                if chunks.is_empty() {
                    break;
                }
                for chunk in chunks {
                    group.reports = chunk.unpack()?.into();
                    group.after = chunk.id;
                    has_capacity = group.gather(&self.filter, &mut gathered);
                    if !has_capacity {
                        break;
                    }
                }
            }
            if !has_capacity {
                return Ok(Pass {
                    readings: gathered.into_readings(),
                    more: true,
                });
            }
        }
        Ok(Pass {
            readings: gathered.into_readings(),
            more: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    #[test]
    fn what_does_not_fit_comes_next_also_within_a_report() {
        let values: Map<String, Value> = (0..9000).map(|n| (format!("x{n}"), json!(n))).collect();
        let report = |values: Value| StoredReport {
            step: None,
            at: 0,
            metrics: Map::from_iter([("a".to_owned(), values)]),
            batches: None,
            report_id: None,
        };
        let mut group = Group::new("gpu");
        group.reports = [
            report(json!({ "GPU-1": values })),
            report(json!({"GPU-2": {"x": -1}})),
        ]
        .into();
        let mut gather = |filter: &SeriesFilter| {
            let mut gathered = GatheredReadings::default();
            let has_capacity = group.gather(filter, &mut gathered);
            (gathered.into_readings(), has_capacity)
        };
        let any = SeriesFilter::default();
        let ((first, more), (second, last)) = (gather(&any), gather(&any));
        assert_eq!(
            (first.len(), more, second.len(), last),
            (5000, false, 4001, true)
        );
        let mut values: Vec<f64> = first.iter().chain(&second).map(|(_, r)| r.value).collect();
        values.sort_by(f64::total_cmp);
        assert!(
            values
                .windows(2)
                .all(|pair| (pair[1] - pair[0] - 1.0).abs() < f64::EPSILON)
        );
    }
}
