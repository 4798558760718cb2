//! Which experiments a listing or a bulk action is about.

use std::collections::BTreeMap;

use det_api_types::experiments::{
    BulkExperimentFilters, ExperimentSortBy, ExperimentState, GetExperimentsQuery, Int32FieldFilter,
};
use det_api_types::page::{OrderBy, Pagination};
use det_ids::{ExperimentId, ProjectId, UserId};
use det_lifecycle::state_name::StateName;
use det_store::allocations;
use det_store::experiments::{self, Active, Filter, Sort};
use tokio::sync::SemaphorePermit;

use crate::app::reads;
use crate::app::reads::experiments::{ExperimentSources, ShownExperiments};
use crate::app::reads::phase::{Phase, StateFilter};
use crate::auth::Actor;
use crate::error::AppResult;

/// Experiments on a page when no limit is given.
pub(crate) const DEFAULT_LIMIT: i64 = 100;

/// The limit of the *SQL* family as the store takes it: 0 = the default, −1 = all, −2 = none.
pub(crate) fn store_limit(limit: i64) -> i64 {
    match limit {
        0 => DEFAULT_LIMIT,
        -2 => 0,
        other => other,
    }
}

/// The bounds of a page of the *SQL* family. Beyond the end: an empty page at the end.
pub(crate) fn pagination(offset: i64, limit: i64, shown: usize, total: i64) -> Pagination {
    let start = offset.max(0).min(total);
    let end = start + i64::try_from(shown).unwrap_or(0);
    Pagination {
        offset,
        limit,
        start_index: start,
        end_index: end,
        total,
    }
}

/// One page of experiments, and the turn to make it and its answer.
pub(crate) async fn page<'m>(
    sources: &'m ExperimentSources,
    actor: &Actor,
    query: &GetExperimentsQuery,
) -> AppResult<(ShownExperiments, Pagination, Option<SemaphorePermit<'m>>)> {
    super::require(actor)?;
    let turn = sources.listings.acquire().await.ok();
    let mut filter = Filter {
        name: text(&query.name),
        description: text(&query.description),
        labels: query.labels.clone(),
        owners: owners(sources, &query.users, &query.user_ids),
        archived: query.archived,
        project_id: query.project_id.given(),
        ..Filter::default()
    };
    if filter.archived == Some(false) && filter.project_id.is_none() {
        let homes = reads::homes::all(&sources.homes, actor)?;
        let archived = homes.projects.values().filter(|row| homes.is_archived(row));
        filter.not_projects = archived.map(|row| row.id).collect();
    }
    apply_ids(&mut filter, &query.experiment_id_filter);
    apply_states(sources, &mut filter, &query.states).await?;
    let (rows, total) = experiments::list(
        &sources.store,
        &sources.catalogue,
        &filter,
        sort(query.sort_by),
        query.order_by == OrderBy::Desc,
        query.offset,
        store_limit(query.limit),
    )
    .await?;
    let pagination = pagination(query.offset, query.limit, rows.len(), total);
    Ok((
        ShownExperiments::of(sources, actor, rows).await?,
        pagination,
        turn,
    ))
}

/// The project that a bulk action is limited to. The client sends 0 or less where it means those of all projects.
pub(crate) fn named_project(id: ProjectId) -> Option<ProjectId> {
    (id.0 > 0).then_some(id)
}

/// The experiments of a bulk action.
pub(crate) enum BulkSelection {
    /// The experiments with these numbers.
    Ids(Vec<ExperimentId>),
    /// All that these filters mean.
    Meant(Box<BulkExperimentFilters>),
}

/// The numbers of the chosen experiments; `project_id` of 0 or less = of all projects.
pub(crate) async fn chosen(
    sources: &ExperimentSources,
    actor: &Actor,
    project_id: ProjectId,
    chosen: BulkSelection,
) -> AppResult<Vec<ExperimentId>> {
    super::require(actor)?;
    let filters = match chosen {
        BulkSelection::Ids(ids) => return Ok(ids),
        BulkSelection::Meant(filters) => filters,
    };
    let mut filter = Filter {
        name: text(&filters.name),
        description: text(&filters.description),
        labels: filters.labels.clone(),
        owners: owners(sources, &[], &filters.user_ids),
        archived: filters.archived,
        project_id: named_project(project_id),
        not_ids: filters.excluded_experiment_ids,
        ..Filter::default()
    };
    apply_states(sources, &mut filter, &filters.states).await?;
    let (store, catalogue) = (&sources.store, &sources.catalogue);
    Ok(experiments::numbers(store, catalogue, &filter).await?)
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|t| !t.is_empty())
}

/// Owners by name or number; a name that no user has matches nothing.
fn owners(sources: &ExperimentSources, names: &[String], ids: &[UserId]) -> Option<Vec<UserId>> {
    if names.is_empty() && ids.is_empty() {
        return None;
    }
    let named = names
        .iter()
        .filter_map(|name| sources.auth.user_by_name(name))
        .map(|user| user.id);
    Some(named.chain(ids.iter().copied()).collect())
}

fn apply_ids(filter: &mut Filter, ids: &Int32FieldFilter) {
    let below = [ids.lt, ids.lte.map(|n| n.saturating_add(1))];
    let above = [ids.gt, ids.gte.map(|n| n.saturating_sub(1))];
    filter.id_below = below.into_iter().flatten().min().map(ExperimentId);
    filter.id_above = above.into_iter().flatten().max().map(ExperimentId);
    let included: Vec<ExperimentId> = ids.incl.iter().copied().map(ExperimentId).collect();
    filter.ids = Some(included).filter(|included| !included.is_empty());
    let excluded = ids.not_in.iter().copied().map(ExperimentId);
    filter.not_ids.extend(excluded);
}

/// Filters by reported states: what is stored as ACTIVE is distinguished by its live allocations.
async fn apply_states(
    sources: &ExperimentSources,
    filter: &mut Filter,
    states: &[ExperimentState],
) -> AppResult<()> {
    let Some(wanted) = StateFilter::new(states) else {
        return Ok(());
    };
    filter.states = Some(wanted.in_question());
    if wanted.phases.is_empty() || wanted.wants_all_phases() {
        return Ok(());
    }
    let mut phases: BTreeMap<ExperimentId, Phase> = BTreeMap::new();
    {
        let mut conn = sources.store.read().await?;
        for live in allocations::live_states(&mut conn.conn()).await? {
            let phase = phases.entry(live.experiment_id).or_default();
            *phase = (*phase).max(Phase::of_allocation(&live.state));
        }
        let outside = experiments::unmanaged_running(&mut conn.conn()).await?;
        phases.extend(outside.into_iter().map(|id| (id, Phase::Running)));
    }
    // What has no live allocation is queued; only those that have one can be named.
    let queued = wanted.wants(StateName::Active, Phase::default());
    let named = phases
        .into_iter()
        .filter(|(_, phase)| wanted.wants(StateName::Active, *phase) != queued)
        .map(|(id, _)| id)
        .collect();
    filter.active = Some(if queued {
        Active::Not(named)
    } else {
        Active::Only(named)
    });
    Ok(())
}

fn sort(by: ExperimentSortBy) -> Sort {
    match by {
        ExperimentSortBy::Unspecified | ExperimentSortBy::Id => Sort::Id,
        ExperimentSortBy::Description => Sort::Description,
        ExperimentSortBy::StartTime => Sort::StartTime,
        ExperimentSortBy::EndTime => Sort::EndTime,
        ExperimentSortBy::State => Sort::State,
        ExperimentSortBy::NumTrials => Sort::TrialCount,
        ExperimentSortBy::Progress => Sort::Progress,
        ExperimentSortBy::User => Sort::User,
        ExperimentSortBy::Name => Sort::Name,
        ExperimentSortBy::ForkedFrom => Sort::ForkedFrom,
        ExperimentSortBy::ResourcePool => Sort::ResourcePool,
        ExperimentSortBy::ProjectId => Sort::ProjectId,
        ExperimentSortBy::CheckpointSize => Sort::CheckpointSize,
        ExperimentSortBy::CheckpointCount => Sort::CheckpointCount,
        ExperimentSortBy::SearcherMetricVal => Sort::SearcherMetric,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_sql_family() {
        assert_eq!([0, -1, -2, 7].map(store_limit), [100, -1, 0, 7]);
    }

    #[test]
    fn a_page_beyond_the_end_is_at_the_end() {
        let page = pagination(500, 100, 0, 20);
        assert_eq!((page.start_index, page.end_index, page.total), (20, 20, 20));
        let page = pagination(10, 5, 5, 20);
        assert_eq!((page.start_index, page.end_index), (10, 15));
    }

    #[test]
    fn bounds_of_ids_narrow_each_other() {
        let mut filter = Filter::default();
        let bounds = Int32FieldFilter {
            lt: Some(10),
            lte: Some(5),
            gt: Some(1),
            gte: Some(3),
            incl: vec![4],
            not_in: vec![2],
        };
        apply_ids(&mut filter, &bounds);
        assert_eq!(
            (filter.id_below, filter.id_above),
            (Some(ExperimentId(6)), Some(ExperimentId(2)))
        );
        assert_eq!(
            (filter.ids, filter.not_ids),
            (Some(vec![ExperimentId(4)]), vec![ExperimentId(2)])
        );
    }
}
