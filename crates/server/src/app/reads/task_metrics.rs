//! Reading what was measured of a launched task.

use det_authz::Kind;
use det_ids::{ContainerId, TaskId};
use det_store::task_metrics::MeasurementChunk;
use serde_json::{Map, Value};

use crate::app::metrics::task_metrics::TaskMetrics;
use crate::app::reads;
use crate::auth::Actor;
use crate::budget::{Budget, Reservation};
use crate::error::AppResult;

/// What was measured of launched tasks is read from this.
#[derive(Clone)]
pub(crate) struct TaskMetricSources {
    pub(crate) task_metrics: TaskMetrics,
    /// What streams of metrics may take.
    pub(crate) streams: Budget,
}

/// What was measured of one group in one container at one time.
pub(crate) struct MeasuredGroup {
    pub(crate) group: String,
    /// When it was made, microseconds.
    pub(crate) at: i64,
    pub(crate) container_id: ContainerId,
    /// Values by agent, and by name or by label and name.
    pub(crate) values: Map<String, Value>,
}

/// A page of what was measured of a task.
pub(crate) struct MeasuredPage {
    pub(crate) found: Vec<MeasuredGroup>,
    /// Where to go on; `None` = there is no more.
    pub(crate) next: Option<i64>,
    /// Counts it while it exists.
    _held: Reservation,
}

/// What a byte of stored values takes as objects at most, with the answer that is made of them: names of one letter with
/// numbers of one digit.
const BYTES_OF_BYTE: usize = 16;

/// A page of what was measured of a task, behind what `after` names, of one group unless `group` is empty. It is
/// counted in the budget of streams of metrics before it is unpacked.
pub(crate) async fn page(
    sources: &TaskMetricSources,
    actor: &Actor,
    task_id: &TaskId,
    (group, after): (&str, i64),
) -> AppResult<MeasuredPage> {
    reads::require(actor, Kind::Task, "tasks")?;
    let (chunks, next) = sources.task_metrics.page(task_id, after).await?;
    let unpacked = chunks.iter().map(MeasurementChunk::unpacked_size);
    let bytes = unpacked.sum::<usize>().saturating_mul(BYTES_OF_BYTE);
    let account = Some(actor.user().id);
    let held = sources.streams.reserve(account, bytes).await?;
    let mut found = Vec::new();
    for chunk in chunks {
        for measurement in chunk.unpack()? {
            let wanted = measurement.groups.into_iter();
            let wanted = wanted.filter(|(name, _)| group.is_empty() || name == group);
            found.extend(wanted.map(|(name, values)| MeasuredGroup {
                group: name,
                at: measurement.at,
                container_id: chunk.container_id.clone(),
                values: Map::from_iter([(measurement.agent_id.0.clone(), values)]),
            }));
        }
    }
    Ok(MeasuredPage {
        found,
        next,
        _held: held,
    })
}
