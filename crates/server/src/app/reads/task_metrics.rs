//! Reading what was measured of a launched task.

use det_authz::Kind;
use det_ids::{ContainerId, TaskId};
use serde_json::{Map, Value};

use crate::app::{Master, reads};
use crate::auth::Actor;
use crate::error::AppResult;

/// What was measured of one group in one container at one time.
pub(crate) struct MeasuredGroup {
    pub(crate) group: String,
    /// When it was made, microseconds.
    pub(crate) at: i64,
    pub(crate) container_id: ContainerId,
    /// Values by agent, and by name or by label and name.
    pub(crate) values: Map<String, Value>,
}

/// A page of what was measured of a task, behind what `after` names, of one group unless `group` is empty; and where to go
/// on, `None` = there is no more.
pub(crate) async fn page(
    master: &Master,
    actor: &Actor,
    task_id: &TaskId,
    (group, after): (&str, i64),
) -> AppResult<(Vec<MeasuredGroup>, Option<i64>)> {
    reads::require(actor, Kind::Task, "tasks")?;
    let (chunks, next) = master.task_metrics.page(task_id, after).await?;
    let mut found = Vec::new();
    for chunk in chunks {
        for measurement in chunk.unpack()? {
            let wanted = measurement.groups.into_iter();
            let wanted = wanted.filter(|(name, _)| group.is_empty() || name == group);
            found.extend(wanted.map(|(name, values)| MeasuredGroup {
                group: name,
                at: measurement.at,
                container_id: chunk.container_id.clone(),
                values: Map::from_iter([(measurement.agent_id.clone(), values)]),
            }));
        }
    }
    Ok((found, next))
}
